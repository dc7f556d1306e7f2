"""How fast this machine decodes and prefills, by number format of the base, flash attention and threads. No command of its own: `formats`
shows all of it, `personae doctor` what is best.

Rows speak under adapters of their own through the mixer, as in the service; where the mixer does not work, under none. All that is
compared is in memory together and measured in turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from personae.cli.bench.figures import median, rounded
from personae.cli.bench.stage import Stage, chunk, scratch_folder
from personae.engine.llama.context import Context, Row
from personae.engine.llama.mixing import Mixed
from personae.errors import WorldFailed
from personae.types import Voice

ROWS = 8
RANK = 16
N_CTX = 256
N_PROMPT = 64
N_STEPS = 3  # measured in a turn, after one that pays for the change of shape


@dataclass(frozen=True, slots=True)
class Setup:
    format: str
    flash: bool
    threads: int


@dataclass(slots=True)
class Speed:
    """Milliseconds, one entry for each measurement."""

    prefill: list[float] = field(default_factory=list)
    one_row: list[float] = field(default_factory=list)
    all_rows: list[float] = field(default_factory=list)

    def report(self) -> dict[str, float]:
        return {
            "step_1_ms": rounded(median(self.one_row)),
            f"step_{ROWS}_ms": rounded(median(self.all_rows)),
            "prefill_tokens_per_s": rounded(N_PROMPT / median(self.prefill) * 1e3),
        }


def measure(models: dict[str, Path], threads: Sequence[int], flashes: Sequence[bool], turns: int) -> dict[Setup, Speed]:
    """`models`: format -> file. Every combination, `turns` times."""
    stages = {format: Stage(path, max(threads)) for format, path in models.items()}
    try:
        with scratch_folder() as folder:
            adapters = next(iter(stages.values())).random_adapters([RANK] * ROWS, Path(folder))
            places = {(format, flash): _Place(stage, flash, adapters) for format, stage in stages.items() for flash in flashes}
        speeds = {Setup(format, flash, n): Speed() for format, flash in places for n in threads}
        for _ in range(turns):
            for setup, speed in speeds.items():
                places[setup.format, setup.flash].measure(setup.threads, speed)
        return speeds
    finally:
        for stage in stages.values():
            stage.close()


def rows_of(speeds: dict[Setup, Speed]) -> list[dict[str, Any]]:
    return [
        {"format": setup.format, "flash_attention": setup.flash, "threads": setup.threads, **speed.report()}
        for setup, speed in speeds.items()
    ]


def fastest(speeds: dict[Setup, Speed]) -> Setup:
    """By a step in which everybody speaks: what players wait for most."""
    return min(speeds, key=lambda setup: median(speeds[setup].all_rows))


class _Place:
    """A context of one format, with the prompts of all rows in it."""

    def __init__(self, stage: Stage, flash: bool, adapters: Sequence[Path]) -> None:
        self._tokens = stage.random_tokens(N_PROMPT)
        self._context, self._decode = _decoder(stage, flash, adapters)
        for stream in range(1, ROWS):
            self._decode(chunk(stream, self._tokens))

    def measure(self, threads: int, speed: Speed) -> None:
        self._use_threads(threads)
        for stream in range(ROWS):
            self._context.cut(stream, N_PROMPT if stream else 0)
        speed.prefill.append(self._timed(chunk(0, self._tokens)))
        speed.all_rows += self._steps(ROWS, N_PROMPT)
        speed.one_row += self._steps(1, N_PROMPT + N_STEPS + 1)

    def _steps(self, n_rows: int, at: int) -> list[float]:
        steps = [[Row(self._tokens[i], at + i, stream, True) for stream in range(n_rows)] for i in range(N_STEPS + 1)]
        return [self._timed(rows) for rows in steps][1:]

    def _timed(self, rows: Sequence[Row]) -> float:
        started = time.perf_counter()
        self._decode(rows)
        return (time.perf_counter() - started) * 1e3

    def _use_threads(self, n: int) -> None:
        self._context.set_threads(n)
        if self._context.mixer:
            self._context.mixer.set_threads(n)


def _decoder(stage: Stage, flash: bool, adapters: Sequence[Path]) -> tuple[Context, Callable[[Sequence[Row]], None]]:
    try:
        mixed, context = stage.mixed(ROWS, N_CTX, flash=flash)
    except WorldFailed:
        context = stage.plain(ROWS, N_CTX, flash=flash)
        return context, lambda rows: _decode_plain(context, rows)
    voices = stage.install(adapters, mixed)
    return context, lambda rows: _decode_mixed(mixed, voices, rows)


def _decode_plain(context: Context, rows: Sequence[Row]) -> None:
    context.decode(rows)
    context.synchronize()


def _decode_mixed(mixed: Mixed, voices: Sequence[Voice], rows: Sequence[Row]) -> None:
    mixed.decode(rows, [voices[row.stream] for row in rows])
