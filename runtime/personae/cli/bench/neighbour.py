"""What is left of the service beside a busy game: tokens/s alone and beside one process that burns a core, in rounds that take turns.

A machine of two cores has one left for the engine then; what it must not do is wait for threads that cannot run. Threads and waiting
policy are those of `serve`, and reported as `stats` names them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from personae.cli.bench.figures import median, paired_ratio, percentile, rounded
from personae.cli.bench.house import House, Spoken
from personae.cli.bench.options import add_count, add_format, add_serving_threads
from personae.cli.bench.service import settings_of, speak_anew, threads_of, write_cast
from personae.cli.bench.stage import scratch_folder
from personae.cli.models import AUTO
from personae.engine.threads import physical_cores

BURN = "print(flush=True)\nwhile True: pass"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_count(parser, "npcs", 8, 64, "that speak at once")
    add_count(parser, "rank", 16, 256, "of every adapter")
    add_count(parser, "tokens", 32, 512, "of every reply")
    add_count(parser, "rounds", 4, 100, "alone, and as many beside the busy process")
    add_serving_threads(parser)
    add_format(parser, AUTO)


def run(args: argparse.Namespace) -> dict[str, Any]:
    settings = settings_of(args)
    with scratch_folder() as name:
        write_cast(Path(name), settings.model, args)
        with House(settings, Path(name) / "characters") as house:
            speak_anew(house.client, args)
            alone, beside = [], []
            for _ in range(args.rounds):
                alone.append(speak_anew(house.client, args))
                threads_alone = threads_of(house.client.stats())
                with busy_process():
                    beside.append(speak_anew(house.client, args))
                threads_with = threads_of(house.client.stats())
            stats = house.client.stats()
            return _report(alone, beside, args, stats) | {"threads": {"alone": threads_alone, "with": threads_with}}


@contextmanager
def busy_process() -> Iterator[None]:
    """A child that computes without a pause. It has begun when this yields."""
    with subprocess.Popen([sys.executable, "-c", BURN], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout
            child.stdout.readline()
            yield
        finally:
            child.kill()


def _report(alone: list[Spoken], beside: list[Spoken], args: argparse.Namespace, stats: dict[str, Any]) -> dict[str, Any]:
    quiet, busy = [one.tokens_per_s for one in alone], [one.tokens_per_s for one in beside]
    return {
        "with_over_alone": rounded(paired_ratio(busy, quiet)),
        "alone_tokens_per_s": rounded(median(quiet)),
        "with_tokens_per_s": rounded(median(busy)),
        "alone_ttft_p95_ms": rounded(percentile((first * 1e3 for one in alone for first in one.first_s), 0.95)),
        "with_ttft_p95_ms": rounded(percentile((first * 1e3 for one in beside for first in one.first_s), 0.95)),
        "threads_policy": stats["model"]["details"].get("threads", ""),
        "cores": physical_cores(),
        "waiting": stats["model"]["details"].get("waiting", ""),
        "npcs": args.npcs,
        "rounds": args.rounds,
        "mode": stats["mode"],
        "format": args.format,
        "model": stats["model"]["name"],
    }
