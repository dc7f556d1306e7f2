"""Number formats of the base: what each costs and saves on this machine, and whether it leaves the characters their voices.

Speed: a step of one row and of eight, and prefill, with flash attention and without, on one thread and on all physical cores.
Voices: what the characters' adapters gain on their own lines (voices.py); a format that keeps the gain keeps the voice.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from personae.cli.bench.figures import rounded
from personae.cli.bench.options import add_count
from personae.cli.bench.speeds import fastest, measure, rows_of
from personae.cli.bench.stage import Stage
from personae.cli.bench.voices import Speaker, gain, speakers_in
from personae.cli.models import find_model
from personae.engine.llama import formats
from personae.engine.threads import physical_cores
from personae.errors import AskedWrong

CHARACTERS = Path("characters")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_count(parser, "turns", 3, 100, "measurements of each combination")
    add_count(parser, "lines", 12, 1000, "of each character that are scored")
    parser.add_argument("--characters", type=Path, default=CHARACTERS, metavar="DIR", help="packs with lines.jsonl (default: ./characters)")


def run(args: argparse.Namespace) -> dict[str, Any]:
    source, cores = find_model(args.model), physical_cores()
    models = {format: formats.resolve(source, format, cores) for format in formats.FORMATS}
    threads = sorted({1, cores})
    speeds = measure(models, threads, (False, True), args.turns)
    best = fastest(speeds)
    return {
        "speeds": rows_of(speeds),
        "fastest": {"format": best.format, "flash_attention": best.flash, "threads": best.threads},
        "voices": _voices(models, args),
        "megabytes": {format: rounded(path.stat().st_size / 1e6) for format, path in models.items()},
        "model": source.name,
    }


def _voices(models: dict[str, Path], args: argparse.Namespace) -> dict[str, Any]:
    """{} with a reason in it where there is nothing to score."""
    speakers = speakers_in(args.characters, args.lines) if args.characters.is_dir() else []
    if not speakers:
        return {"note": f"no packs with an adapter and lines.jsonl in {args.characters}"}
    try:
        return {format: _gain(path, speakers) for format, path in models.items()}
    except AskedWrong as refusal:
        return {"note": f"the adapters in {args.characters} are not for this model: {refusal.message}"}


def _gain(path: Path, speakers: list[Speaker]) -> dict[str, float]:
    with Stage(path, physical_cores()) as stage:
        return gain(stage, speakers)
