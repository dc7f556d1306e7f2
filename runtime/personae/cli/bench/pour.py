"""Demand without a pause: every NPC is asked again as soon as it has answered. How long turns wait for their slot, by adapter.

The figure that counts is the longest of the adapters' mean waits over the mean of them all: 1 is perfectly fair, and an adapter that is
kept out shows at once. What was asked in the first fifth of the time is left out: the line still grew.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from personae.cli.bench.figures import rounded
from personae.cli.bench.house import SAMPLING
from personae_client import Done, Npc, PersonaeError, Stream

TOKENS = 8  # of a reply
MOST_S = 600.0  # for one of them: nobody is to be cut short by the clock
PAUSE_S = 0.01
LOOK_S = 1.0


@dataclass(slots=True)
class Waits:
    """Ms that turns waited for a slot, by adapter, and what did not work."""

    by_adapter: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    answered: set[str] = field(default_factory=set)  # NPCs that have ended a turn
    refused: int = 0

    def report(self) -> dict[str, Any]:
        means = [sum(waits) / len(waits) for waits in self.by_adapter.values()]
        if not means:
            return {"max_wait_over_mean": None, "mean_wait_ms": None, "waits": 0, "adapters_that_waited": 0}
        mean = sum(means) / len(means)
        return {
            "max_wait_over_mean": rounded(max(means) / mean) if mean else 1.0,
            "mean_wait_ms": rounded(mean),
            "waits": sum(len(waits) for waits in self.by_adapter.values()),
            "adapters_that_waited": len(means),
        }


def pour(npcs: Sequence[Npc], line: str, seconds: float, look: Callable[[], None] = lambda: None) -> Waits:
    """Ask all of them, and each again when it has ended, for so long. The NPCs are gone afterwards. `look`: once a second."""
    waits = Waits()
    started = time.perf_counter()
    asked: dict[Stream, float] = {}
    streams = [_ask(npc, line) for npc in npcs]
    asked.update(dict.fromkeys(streams, 0.0))
    looked = 0.0
    while (now := time.perf_counter() - started) < seconds:
        for i, done in _ended(streams, waits):
            waits.answered.add(npcs[i].id)
            if asked.pop(streams[i]) >= seconds / 5:
                waits.by_adapter[done.adapter or ""].append(done.timing.queued_ms)
            streams[i] = _ask(npcs[i], line)
            asked[streams[i]] = now
        if now >= looked + LOOK_S:
            looked = now
            look()
        time.sleep(PAUSE_S)
    _see_off(npcs, streams, waits)
    return waits


def _ask(npc: Npc, line: str) -> Stream:
    return npc.say(line, priority="ambient", max_tokens=TOKENS, max_seconds=MOST_S, sampling=SAMPLING)


def _ended(streams: Sequence[Stream], waits: Waits) -> Iterator[tuple[int, Done]]:
    for i, stream in enumerate(streams):
        if stream.is_over:
            try:
                yield i, stream.wait()
            except PersonaeError:
                waits.refused += 1
                raise


def _see_off(npcs: Sequence[Npc], streams: Sequence[Stream], waits: Waits) -> None:
    """Those that have not had a turn yet may end the one they wait for: whether everybody is ever answered is part of the question."""
    for npc, stream in zip(npcs, streams, strict=True):
        if npc.id not in waits.answered:
            stream.wait()
            waits.answered.add(npc.id)
        stream.cancel()
    for npc in npcs:
        npc.despawn()
