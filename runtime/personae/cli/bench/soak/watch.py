"""Watches a service from inside while it is played with: every order is judged, every prompt read, memory weighed. Changes nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

from personae.cli.bench.soak.cast import Secrets
from personae.cli.bench.soak.failures import Failures
from personae.cli.bench.soak.playbill import Playbill
from personae.engine.backend import Vocabulary
from personae.scheduler.actions import Action
from personae.scheduler.events import Event, TurnAsked
from personae.scheduler.referee import Referee
from personae.scheduler.settings import SchedulerConfig
from personae.service.memory import resident_bytes
from personae.types import Token

WARM_UP = 0.2  # of the time, in which memory is still being filled
GROWTH_MB, GROWTH_SHARE = 32.0, 0.10  # from the first third after that to the last: the greater of the two is allowed
WEIGH_S = 0.5
MB = 1 << 20


class Watcher:
    """A witness of one run of the service. Told on the service's thread; what it finds is read by another when the service has ended."""

    def __init__(self, config: SchedulerConfig, vocabulary: Vocabulary, secrets: Secrets, playbill: Playbill, failures: Failures) -> None:
        self.referee = Referee(config)
        self.n_prompts = 0
        self.is_broken = False  # a rule was broken: what follows from it is not judged
        self._pieces = [vocabulary.piece(token) for token in range(vocabulary.n_vocab)]
        self._secrets = secrets
        self._playbill = playbill
        self._failures = failures

    def saw(self, event: Event, actions: Sequence[Action]) -> None:
        if isinstance(event, TurnAsked):
            self._read_prompt(event)
        if self.is_broken:
            return
        try:
            self.referee.saw(event, actions)
        except AssertionError as broken:
            self.is_broken = True
            self._failures.note(f"After event {self.referee.n_events} ({type(event).__name__}): {broken}.")

    def _read_prompt(self, asked: TurnAsked) -> None:
        self.n_prompts += 1
        prompt = self._text(asked.prompt)
        self._playbill.begins(asked.npc, asked.sampling.seed if asked.draws else None, prompt, asked.voice)
        for other in self._secrets.told_by_others(asked.npc, prompt):
            self._failures.note(f"The prompt of turn {asked.turn} of NPC '{asked.npc}' holds what NPC '{other}' was told.")

    def _text(self, tokens: Sequence[Token]) -> str:
        return b"".join([self._pieces[token] for token in tokens]).decode("utf-8", "replace")


class Scales:
    """The memory of this process and of the engine's, over time."""

    def __init__(self) -> None:
        self._weighed: list[tuple[float, int | None]] = []
        self._engine: list[tuple[float, int | None]] = []
        self._due_s = 0.0

    def weigh(self, engine_pid: int | None) -> None:
        """Now and then."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + WEIGH_S
        self._weighed.append((now_s, resident_bytes()))
        self._engine.append((now_s, resident_bytes(engine_pid) if engine_pid else None))

    def report(self, failures: Failures) -> dict[str, object]:
        """None where the system does not tell."""
        bounds = {"bound_mb": GROWTH_MB, "bound_share": GROWTH_SHARE}
        return {"service": _growth("service", self._weighed, failures), "engine": _growth("engine", self._engine, failures), **bounds}


def _growth(name: str, weighed: list[tuple[float, int | None]], failures: Failures) -> dict[str, float] | None:
    known = [(at_s, n_bytes / MB) for at_s, n_bytes in weighed if n_bytes]
    if len(known) < 6:
        return None
    begin_s, end_s = known[0][0], known[-1][0]
    begin_s += (end_s - begin_s) * WARM_UP
    third_s = (end_s - begin_s) / 3
    first = [mb for at_s, mb in known if begin_s <= at_s <= begin_s + third_s]
    last = [mb for at_s, mb in known if at_s >= end_s - third_s]
    if not first or not last:
        return None
    first_mb, last_mb = median(first), median(last)
    if last_mb - first_mb > max(GROWTH_MB, GROWTH_SHARE * first_mb):
        failures.note(f"The memory of the {name} grew from {first_mb:.0f} to {last_mb:.0f} MB.")
    return {"first_third_mb": round(first_mb, 1), "last_third_mb": round(last_mb, 1), "growth_mb": round(last_mb - first_mb, 1)}
