"""What the service costs: tokens through the socket against the same rows on the bare engine, in rounds that take turns.

A round is a line said to every NPC at once, each of them new: a whole prompt to prefill, a reply of --tokens. The engine's round repeats
its shapes exactly (prompt and reply lengths as the service reported them) with no scheduler, process border, text or socket around it.
Both have the model in memory all the time; the one that waits sleeps.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from personae.cli.bench.choir import Choir
from personae.cli.bench.figures import median, paired_ratio, percentile, rounded
from personae.cli.bench.house import House, Spoken, speak_to_all, write_pack
from personae.cli.bench.options import add_count, add_format, add_serving_threads
from personae.cli.bench.stage import Stage, model_file, scratch_folder
from personae.cli.models import AUTO
from personae.engine.settings import EngineSettings
from personae.engine.threads import physical_cores
from personae.types import AdapterKey
from personae_client import Client, Done

PERSONA = "You are a teller of long tales in the tavern of the old town, and you never come to an end."
LINE = "Tell me the longest story that you know."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_count(parser, "npcs", 8, 64, "that speak at once")
    add_count(parser, "rank", 16, 256, "of every adapter")
    add_count(parser, "tokens", 64, 512, "of every reply")
    add_count(parser, "rounds", 4, 100, "of each, after one that is not counted")
    add_serving_threads(parser)
    add_format(parser, AUTO)


def run(args: argparse.Namespace) -> dict[str, Any]:
    settings = settings_of(args)
    with scratch_folder() as name:
        adapters = write_cast(Path(name), settings.model, args)
        choir = Choir(settings)
        try:
            keys = choir.load(adapters)
            with House(settings, Path(name) / "characters") as house:
                rounds = [_round(house.client, choir, keys, args) for _ in range(args.rounds + 1)][1:]
                return _report(rounds, args, house.client.stats())
        finally:
            choir.close()


def settings_of(args: argparse.Namespace) -> EngineSettings:
    model = model_file(args, physical_cores())
    return EngineSettings(model=str(model), n_slots=args.npcs, n_ctx=1024, threads=args.threads)


def write_cast(folder: Path, model: str, args: argparse.Namespace) -> list[Path]:
    """A pack for each NPC, with a random adapter of its own; returns the adapters."""
    with Stage(Path(model), physical_cores()) as stage:
        adapters = stage.random_adapters([args.rank] * args.npcs, folder)
    for i, adapter in enumerate(adapters):
        write_pack(folder / "characters", f"teller{i}", PERSONA, adapter)
    return adapters


def speak_anew(client: Client, args: argparse.Namespace) -> Spoken:
    """A round with new NPCs, who go when it is over."""
    npcs = [client.spawn(f"teller{i}") for i in range(args.npcs)]
    spoken = speak_to_all(client, npcs, LINE, args.tokens)
    for npc in npcs:
        npc.despawn()
    return spoken


def threads_of(stats: dict[str, Any]) -> int:
    """Of the engine's last step."""
    return int(stats["scheduler"]["engine"]["threads"])


def _round(client: Client, choir: Choir, keys: Sequence[AdapterKey], args: argparse.Namespace) -> tuple[Spoken, float]:
    """(the service's round, tokens/s of the engine with its shapes)."""
    spoken = speak_anew(client, args)
    return spoken, _engine_round(choir, keys, spoken.dones)


def _engine_round(choir: Choir, keys: Sequence[AdapterKey], dones: Sequence[Done]) -> float:
    prompts = [[100 + at % 100 for at in range(done.usage.prefilled)] for done in dones]
    started = time.perf_counter()
    for slot, (prompt, key, done) in enumerate(zip(prompts, keys, dones, strict=True)):
        choir.begin(slot, prompt, key, done.usage.reply)
    n_tokens = len(dones)
    while choir.speaking:
        n_tokens += len(choir.step().rows)
    seconds = time.perf_counter() - started
    choir.silence()
    return n_tokens / seconds


def _report(rounds: Sequence[tuple[Spoken, float]], args: argparse.Namespace, stats: dict[str, Any]) -> dict[str, Any]:
    ours, engine = [spoken.tokens_per_s for spoken, _ in rounds], [tokens_per_s for _, tokens_per_s in rounds]
    first_ms = [first * 1e3 for spoken, _ in rounds for first in spoken.first_s]
    return {
        "service_over_engine": rounded(paired_ratio(ours, engine)),
        "service_tokens_per_s": rounded(median(ours)),
        "engine_tokens_per_s": rounded(median(engine)),
        "ttft_ms": {"p50": rounded(percentile(first_ms, 0.5)), "p95": rounded(percentile(first_ms, 0.95))},
        "npcs": args.npcs,
        "rank": args.rank,
        "tokens_per_reply": rounded(sum(spoken.n_tokens for spoken, _ in rounds) / (len(rounds) * args.npcs)),
        "prompt_tokens": rounds[0][0].dones[0].usage.prompt,
        "rounds": args.rounds,
        "mode": stats["mode"],
        "threads": threads_of(stats),
        "threads_policy": stats["model"]["details"].get("threads", ""),
        "format": args.format,
        "model": stats["model"]["name"],
    }
