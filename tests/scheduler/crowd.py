"""More voices than there is room for, all of them in steady demand: everybody asks again as soon as answered. Adapters take their time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from personae.scheduler.actions import EndTurn
from personae.types import Priority, TurnId
from tests.scheduler.stage import Parts, Stage

STEP_MS = 10.0


@dataclass
class Crowd:
    """`voices[i]` is that of the i-th NPC. A load takes `load_steps` of a step's time; they come one after the other."""

    stage: Stage
    voices: list[Parts]
    priorities: list[Priority] = field(default_factory=lambda: [Priority.AMBIENT])
    load_steps: int = 3
    reply: Callable[[int], int] = lambda n: 4 + n % 3  # tokens of the n-th turn

    def __post_init__(self) -> None:
        self.turns: dict[TurnId, int] = {}
        self.waits_ms: list[list[float]] = [[] for _ in self.voices]
        self._load_left = self.load_steps
        self._n_ended = 0
        for npc in range(len(self.voices)):
            self._ask(npc)

    def _ask(self, npc: int) -> None:
        prompt = (npc + 1, len(self.turns) + 1, 3)
        priority = self.priorities[npc % len(self.priorities)]
        tokens = self.reply(len(self.turns))
        self.turns[self.stage.ask(f"npc{npc}", prompt, self.voices[npc], priority=priority, max_tokens=tokens, max_seconds=1e6)] = npc

    def play(self, n_steps: int) -> None:
        """What was waited for in the first fifth is left out: the line still grew."""
        for step in range(n_steps):
            self._step()
            self._hear(counts=step > n_steps / 5)

    def _step(self) -> None:
        stage = self.stage
        self._load_left = self._load_left - 1 if stage.engine.loading else self.load_steps
        if self._load_left <= 0:
            self._load_left = self.load_steps
            stage.load()
        while stage.engine.moved:
            stage.told_of_kv()
        if stage.can_step:
            stage.step(STEP_MS)
        else:
            stage.tick(STEP_MS)

    def _hear(self, *, counts: bool) -> None:
        ended = list(self.stage.ended.items())[self._n_ended :]
        self._n_ended += len(ended)
        for turn, end in ended:
            assert isinstance(end, EndTurn), f"{end} was refused"
            if counts:
                self.waits_ms[self.turns[turn]].append(end.queued_ms)
            self._ask(self.turns[turn])

    @property
    def max_over_mean(self) -> float:
        """The longest wait of any turn over the mean of all."""
        waits = [ms for of_npc in self.waits_ms for ms in of_npc]
        return max(waits) * len(waits) / sum(waits)

    @property
    def loads_per_turn(self) -> float:
        adapters = self.stage.scheduler.statistics()["adapters"]
        assert isinstance(adapters, dict)
        return float(adapters["loads"]) / max(1, self._n_ended)
