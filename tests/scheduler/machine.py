"""A machine in numbers: what decodes cost on it, and turns that `plan` and the budget take through steps on it. No engine, no scheduler."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

from personae.engine.batch import RowDone, StepDone
from personae.scheduler.budget import StepBudget
from personae.scheduler.events import TurnAsked
from personae.scheduler.flight import Flight, n_decodes, plan
from personae.scheduler.sequence import Place, Sequence
from personae.scheduler.settings import SchedulerConfig
from personae.types import (
    AdapterKey,
    AdapterSource,
    AdapterUse,
    KvSource,
    Limits,
    MixMode,
    NpcId,
    Priority,
    ReplyRules,
    SamplingParams,
    Slot,
    TurnId,
)


@dataclass
class Machine:
    """Milliseconds. `noise`: a step takes up to so much of itself more or less."""

    fixed_ms: float = 7.0
    row_ms: float = 7.3
    chunk_ms: float = 14.0
    token_ms: float = 2.2
    mode: MixMode = MixMode.MIXED
    noise: float = 0.05
    slowness: float = 1.0
    moved_ms: float = 0.0

    def __post_init__(self) -> None:
        self._random = Random(1)

    def decode_ms(self, rows: int, n_decodes: int = 1) -> float:
        return self._noisy(self.fixed_ms * n_decodes + self.row_ms * rows) if rows else 0.0

    def prefill_ms(self, tokens: int, n_decodes: int) -> float:
        return self._noisy(self.chunk_ms * n_decodes + self.token_ms * tokens) if tokens else 0.0

    def _noisy(self, ms: float) -> float:
        return ms * self.slowness * self._random.uniform(1 - self.noise, 1 + self.noise)


@dataclass
class Play:
    """Everybody on one machine. `step` plans and does one; what was heard when is noted by turn."""

    machine: Machine = field(default_factory=Machine)
    config: SchedulerConfig = field(default_factory=SchedulerConfig)
    now_ms: float = 10_000.0

    def __post_init__(self) -> None:
        self.budget = StepBudget(self.config)
        self.busy: list[Sequence] = []
        self.last: Flight | None = None
        self.took_ms: list[float] = []  # of each step
        self.gaps_ms: dict[TurnId, list[float]] = {}  # between the words of a turn
        self.first_ms: dict[TurnId, float] = {}  # from ask to the first word, or to the end of a prompt that draws nothing
        self._n_asked = 0

    def ask(
        self,
        n_prompt: int = 8,
        priority: Priority = Priority.PLAYER,
        adapter: str | None = None,
        *,
        max_tokens: int = 1 << 20,
        draws: bool = True,
    ) -> Sequence:
        """A turn that has a slot at once."""
        self._n_asked += 1
        voice = (AdapterUse(AdapterKey(adapter)),) if adapter else ()
        turn = Sequence(
            TurnAsked(
                self.now_ms,
                TurnId(self._n_asked),
                NpcId(f"npc{self._n_asked}"),
                tuple(range(n_prompt)),
                voice,
                tuple(AdapterSource(use.key, "a.gguf") for use in voice),
                SamplingParams(),
                ReplyRules(),
                Limits(max_tokens),
                priority,
                draws=draws,
            ),
            self._n_asked,
        )
        slot = next(slot for slot in range(1000) if all(other.place and other.place.slot != slot for other in self.busy))
        turn.begin(Place(Slot(slot), turn.npc, voice=voice, turn=turn), 0, KvSource.NONE, self.now_ms)
        self.busy = sorted([*self.busy, turn], key=lambda turn: turn.place.slot if turn.place else 0)
        return turn

    def speaking(self, n: int, priority: Priority = Priority.AMBIENT, adapters: Iterable[str | None] = ()) -> list[Sequence]:
        """Turns in the middle of a long reply."""
        names = list(adapters) or [None] * n
        turns = [self.ask(4, priority, names[i % len(names)]) for i in range(n)]
        while any(turn.prompt_left for turn in turns):
            self.step()
        return turns

    def plan(self) -> Flight:
        flight = plan(self.busy, [], self.budget, self.now_ms, self.config, mode=self.machine.mode, last=self.last)
        assert flight is not None
        return flight

    def step(self) -> Flight:
        flight = self.last = self.plan()
        step = self._done(flight)
        self.took_ms.append(step.decode_ms + step.prefill_ms)
        self.now_ms += self.took_ms[-1]
        flight.enter_prefilled(step)
        flight.enter_fed(step)
        self.budget.note(flight, step)
        assert flight.unaccounted(step) == []
        for turn in flight.turns.values():
            turn.note_served(self.now_ms)
            if not turn.asked.draws and not turn.prompt_left:
                self.first_ms[turn.turn] = self.now_ms - turn.asked.at_ms
        for turn, row in flight.live_rows(step):
            self._hear(turn, row)
        done = [
            turn for turn in self.busy if len(turn.drawn) >= turn.asked.limits.max_tokens or (not turn.asked.draws and not turn.prompt_left)
        ]
        self.busy = [turn for turn in self.busy if turn not in done]
        return flight

    def steps(self, n: int) -> list[float]:
        """What they took."""
        for _ in range(n):
            self.step()
        return self.took_ms[-n:]

    def until_heard(self, turn: Sequence) -> float:
        """Ms from its ask."""
        while turn.turn not in self.first_ms:
            self.step()
        return self.first_ms[turn.turn]

    def n_words(self) -> int:
        return sum(len(gaps) for gaps in self.gaps_ms.values())

    def longest_gap_ms(self) -> float:
        """The longest that anybody was silent in mid-reply; those who are silent now are counted."""
        still = [self.now_ms - turn.heard_ms for turn in self.busy if turn.drawn]
        return max([*still, *(gap for gaps in self.gaps_ms.values() for gap in gaps)], default=0.0)

    def _hear(self, turn: Sequence, row: RowDone) -> None:
        before_ms = turn.heard_ms
        if turn.note_drawn(row, self.now_ms):
            self.first_ms[turn.turn] = self.now_ms - turn.asked.at_ms
        else:
            self.gaps_ms.setdefault(turn.turn, []).append(self.now_ms - before_ms)

    def _done(self, flight: Flight) -> StepDone:
        order, machine = flight.order(), self.machine
        names = [*order.decode, *(chunk.turn for chunk in order.prefill if chunk.last)]
        n = n_decodes(flight.decode, machine.mode)
        return StepDone(
            rows=tuple(RowDone(name, 7) for name in names),
            prefilled=tuple((chunk.turn, len(chunk.tokens)) for chunk in order.prefill),
            decode_ms=machine.decode_ms(len(order.decode), n),
            prefill_ms=machine.prefill_ms(sum(len(chunk.tokens) for chunk in order.prefill), flight.n_prefills),
            n_decodes=n,
            moved_ms=machine.moved_ms,
        )
