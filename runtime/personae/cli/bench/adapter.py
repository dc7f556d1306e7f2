"""What it costs the others when an adapter is loaded, replaced or freed while they speak.

Seven NPCs speak on the engine loop of the product; its own loader thread reads the files, and what it has ready is installed between
steps. `stall_ms` is the longest step while a file was read, or an adapter installed or freed, less the median of ordinary steps: what a
player may notice. Then two hundred replacements in a row, and what they left of the process's memory: nothing, if all is well.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from personae.cli.bench.choir import Choir, timed
from personae.cli.bench.figures import median, rounded
from personae.cli.bench.options import add_count, add_format, add_threads
from personae.cli.bench.stage import Stage, model_file, scratch_folder
from personae.engine.settings import EngineSettings
from personae.service.memory import resident_bytes
from personae.types import AdapterKey

N_FILES = 4  # that are replaced by each other
WARM_UP = 12  # replacements before memory is looked at: allocators have what they keep by then
N_CTX = 2048
PROMPT = [100 + at for at in range(64)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_count(parser, "npcs", 7, 63, "that speak meanwhile")
    add_count(parser, "rank", 16, 256, "of every adapter")
    add_count(parser, "loads", 10, 1000, "that are timed")
    add_count(parser, "replacements", 200, 10_000, "after which memory is looked at")
    add_threads(parser)
    add_format(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    model = model_file(args, args.threads)
    settings = EngineSettings(model=str(model), n_slots=args.npcs, n_ctx=N_CTX, threads=args.threads)
    with scratch_folder() as folder:
        with Stage(model, args.threads) as stage:
            files = stage.random_adapters([args.rank] * (args.npcs + N_FILES), Path(folder))
        choir = Choir(settings)
        try:
            play = _Play(choir, choir.load(files[: args.npcs]), files[args.npcs :])
            timing = play.time_loads(args.loads)
            memory = play.watch_memory(args.replacements)
        finally:
            choir.close()
    return timing | memory | _setting(args, model)


def _setting(args: argparse.Namespace, model: Path) -> dict[str, Any]:
    return {"npcs": args.npcs, "rank": args.rank, "threads": args.threads, "format": args.format, "model": model.name}


class _Play:
    def __init__(self, choir: Choir, voices: Sequence[AdapterKey], files: Sequence[Path]) -> None:
        self._choir, self._voices, self._files = choir, voices, files
        self._n_replaced = 0
        self._resident: AdapterKey | None = None

    def time_loads(self, n_loads: int) -> dict[str, Any]:
        """A load that finds the file in the disk cache: the first of each file is not counted."""
        self._replace_often(N_FILES)
        ordinary = [self._step_ms() for _ in range(12)]
        load_ms, longest = [], 0.0
        for _ in range(n_loads):
            ms, steps = self._replace()
            load_ms.append(ms)
            longest = max(longest, *steps)
            ordinary.append(self._step_ms())
        loaded = self._choir.loaded[self._voices[0]]
        n_file = self._files[0].stat().st_size
        return {
            "load_ms": rounded(median(load_ms)),
            "stall_ms": rounded(max(0.0, longest - median(ordinary))),
            "ordinary_step_ms": rounded(median(ordinary)),
            "longest_ordinary_step_ms": rounded(max(ordinary)),
            "bytes_resident": loaded.bytes_resident,
            "bytes_file": n_file,
            "bytes_ratio": rounded(loaded.bytes_resident / n_file),
            "loads": n_loads,
        }

    def watch_memory(self, n_replacements: int) -> dict[str, Any]:
        """None where the system does not tell."""
        self._replace_often(WARM_UP)
        start = resident_bytes()
        self._replace_often(n_replacements)
        end = resident_bytes()
        return {
            "replacements": n_replacements,
            "rss_start_mb": _mb(start),
            "rss_end_mb": _mb(end),
            "rss_growth_mb": None if start is None or end is None else rounded((end - start) / 2**20),
        }

    def _replace_often(self, n: int) -> None:
        for _ in range(n):
            self._replace()

    def _replace(self) -> tuple[float, list[float]]:
        """Load another file while everybody speaks, then free the one before it: (ms of the load, ms of the steps from order to freed)."""
        key = self._choir.ask_for(self._files[self._n_replaced % len(self._files)])
        self._n_replaced += 1
        steps = []
        while key not in self._choir.loaded:
            steps.append(self._step_ms())
        load_ms = self._choir.loaded[key].load_ms
        steps.append(self._step_ms(free=self._resident))
        self._resident = key
        return load_ms, steps

    def _step_ms(self, free: AdapterKey | None = None) -> float:
        """A step with what the engine process does around it. Whoever has ended begins again first, which is not counted."""
        self._keep_speaking()
        return timed(lambda: self._step(free))

    def _step(self, free: AdapterKey | None) -> None:
        if free is not None:
            self._choir.free(free)
        self._choir.step()
        self._choir.loop.settle()

    def _keep_speaking(self) -> None:
        silent = set(range(len(self._voices))) - set(self._choir.speaking.values())
        for slot in silent:
            self._choir.begin(slot, PROMPT, self._voices[slot])


def _mb(n_bytes: int | None) -> float | None:
    return None if n_bytes is None else round(n_bytes / 2**20, 1)
