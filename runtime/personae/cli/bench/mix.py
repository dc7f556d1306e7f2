"""What a different adapter in every row costs: one decode step of all NPCs, three ways in turn.

    plain     no adapter, no mixer: what stock llama.cpp needs for the base model alone
    mixed     a random adapter of its own for every NPC, on every matrix of the base that is adapted, in one decode
    grouped   the same through llama.cpp's adapter API: one decode for each adapter, which is all that llama.cpp offers

After a prompt of 64 tokens each, steps are interleaved, and the ratios are medians of per-step ratios: two neighbours in time share
whatever else the machine was doing, which medians of the two series on a noisy machine need not.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from personae.cli.bench.figures import median, paired_ratio, rounded
from personae.cli.bench.options import add_count, add_flash, add_format, add_threads
from personae.cli.bench.report import markdown
from personae.cli.bench.stage import Stage, chunk, model_file, scratch_folder
from personae.engine import _mixer
from personae.engine.llama.context import Context, Row
from personae.engine.llama.mixing import Mixing
from personae.types import Voice

N_PROMPT = 64
N_CTX = 512
TABLE_NPCS = (8, 16)
TABLE_RANKS = (8, 16, 32, 64)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_count(parser, "npcs", 8, 64, "rows of a step")
    add_count(parser, "rank", 16, 256, "of every adapter")
    add_count(parser, "steps", 40, 400, "measured, plain and mixed")
    add_count(parser, "grouped-steps", 12, 400, "of them that grouped takes part in")
    add_threads(parser)
    add_format(parser)
    add_flash(parser)
    parser.add_argument("--table", action="store_true", help="npcs 8 and 16 with ranks 8 to 64, as a Markdown table")


def run(args: argparse.Namespace) -> dict[str, Any]:
    path = model_file(args, args.threads)
    if not args.table:
        return _measure(path, args, args.npcs, args.rank)
    cells = [_measure(path, args, npcs, rank) for npcs in TABLE_NPCS for rank in TABLE_RANKS]
    return {"rows": cells, "table": _table(cells)}


def _measure(path: Path, args: argparse.Namespace, npcs: int, rank: int) -> dict[str, Any]:
    with Stage(path, args.threads) as stage:
        times = _times(stage, npcs, rank, args)
        return {
            "plain_ms": rounded(median(times["plain"])),
            "mixed_ms": rounded(median(times["mixed"])),
            "grouped_ms": rounded(median(times["grouped"])),
            "mixed_over_plain": rounded(paired_ratio(times["plain"], times["mixed"])),
            "mixed_over_grouped": rounded(paired_ratio(times["grouped"], times["mixed"])),
            "rank": rank,
            "npcs": npcs,
            "model": path.name,
            "threads": args.threads,
            "format": args.format,
            "flash_attention": args.flash,
            "kernels": _mixer.use_kernels(None),
            "ratio": "median of per-step ratios",
        }


def _times(stage: Stage, npcs: int, rank: int, args: argparse.Namespace) -> dict[str, list[float]]:
    """Milliseconds of each step, by way."""
    plain = stage.plain(npcs, N_CTX, flash=args.flash)
    (mixed, _), grouped = stage.mixed(npcs, N_CTX, flash=args.flash), stage.grouped(npcs, N_CTX, flash=args.flash)
    with scratch_folder() as folder:
        voices = stage.install(stage.random_adapters([rank] * npcs, Path(folder)), mixed, grouped)
    ways = {"plain": _alone(plain), "mixed": _under(mixed, voices), "grouped": _under(grouped, voices)}
    tokens = stage.random_tokens(npcs * (N_PROMPT + args.steps + 1))
    for way in ways.values():
        for stream in range(npcs):
            way(chunk(stream, tokens[stream * N_PROMPT : (stream + 1) * N_PROMPT]))
    return _steps(ways, tokens[npcs * N_PROMPT :], npcs, args.steps, args.grouped_steps)


Way = Callable[[Sequence[Row]], None]


def _alone(context: Context) -> Way:
    def decode(rows: Sequence[Row]) -> None:
        context.decode(rows)
        context.synchronize()

    return decode


def _under(mixing: Mixing, voices: Sequence[Voice]) -> Way:
    """Reading the logits' address waits for the decode, as it does in the service."""
    return lambda rows: _discard(mixing.decode(rows, [voices[row.stream] for row in rows]))


def _discard(_: object) -> None: ...


def _steps(ways: dict[str, Way], tokens: Sequence[int], npcs: int, n_steps: int, n_grouped: int) -> dict[str, list[float]]:
    """One step more is run first, unmeasured. Who begins alternates: the second of two finds the caches as the first left them."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for step in range(n_steps + 1):
        rows = [Row(token, N_PROMPT + step, stream, True) for stream, token in enumerate(tokens[step * npcs : (step + 1) * npcs])]
        order = ["plain", "mixed"] if step % 2 else ["mixed", "plain"]
        for name in order + ["grouped"] * (step <= n_grouped):
            started = time.perf_counter()
            ways[name](rows)
            if step:
                times[name].append((time.perf_counter() - started) * 1e3)
    return times


def _table(cells: list[dict[str, Any]]) -> str:
    head = ["NPCs", "rank", "plain ms", "mixed ms", "grouped ms", "mixed / plain", "mixed / grouped"]
    rows = [
        [
            str(cell["npcs"]),
            str(cell["rank"]),
            f"{cell['plain_ms']:.1f}",
            f"{cell['mixed_ms']:.1f}",
            f"{cell['grouped_ms']:.1f}",
            f"{cell['mixed_over_plain']:.2f}",
            f"{cell['mixed_over_grouped']:.2f}",
        ]
        for cell in cells
    ]
    return markdown(head, rows)
