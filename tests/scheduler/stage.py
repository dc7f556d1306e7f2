"""A deterministic engine that works off orders faithfully, and a stage on which a scheduler plays against it.

The engine keeps the true KV of each slot, every token with the adapter that made it, and objects to any order that a real one could not
obey. A reply is a function of the KV alone, so a slot whose KV is not what the scheduler believes says something else than `fresh_reply`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from zlib import crc32

from personae.engine.batch import (
    AdapterLoaded,
    AdapterRefused,
    BeginTurn,
    ClearSlot,
    DropTurn,
    ExtendSlot,
    FreeAdapter,
    LoadAdapter,
    Order,
    RowDone,
    RunStep,
    StepDone,
    TurnFaulted,
)
from personae.scheduler import Scheduler, SchedulerConfig
from personae.scheduler.actions import Action, Command, EndTurn, FailTurn, Speak
from personae.scheduler.events import (
    AdapterReported,
    EngineGone,
    EngineStarted,
    Event,
    FaultReported,
    StepReported,
    Tick,
    TurnAsked,
    TurnCancelled,
)
from personae.types import AdapterKey, AdapterUse, FinishReason, Limits, NpcId, Piece, Priority, ReplyRules, SamplingParams, TurnId

MASK = (1 << 40) - 1


@cache
def salt(adapter: AdapterUse | None) -> int:
    return crc32(repr(adapter).encode())


def rolled(state: int, token: int, adapter: AdapterUse | None) -> int:
    return (state * 1_000_003 + token * 31 + salt(adapter)) & MASK


def drawn_from(state: int) -> int:
    return 1 + (state >> 7) % 997


def is_end(token: int, end_every: int) -> bool:
    return end_every > 0 and token % end_every == 0


def fresh_reply(asked: TurnAsked, n_ctx: int, end_every: int) -> tuple[tuple[int, ...], FinishReason]:
    """What an NPC without a past answers to the prompt."""
    state = 0
    for token in asked.prompt:
        state = rolled(state, token, asked.adapter)
    reply: list[int] = []
    while True:
        token = drawn_from(state)
        if is_end(token, end_every):
            return tuple(reply), FinishReason.END
        reply.append(token)
        if len(reply) >= asked.limits.max_tokens:
            return tuple(reply), FinishReason.LENGTH
        if len(asked.prompt) + len(reply) > n_ctx:
            return tuple(reply), FinishReason.CONTEXT
        state = rolled(state, token, asked.adapter)


@dataclass
class Cell:
    token: int
    adapter: AdapterUse | None
    state: int


@dataclass
class Voice:
    order: BeginTurn
    pending: int | None = None
    n_drawn: int = 0


@dataclass
class ModelEngine:
    n_slots: int
    n_ctx: int
    max_adapters: int = 256
    end_every: int = 0  # a drawn token divisible by it ends the reply; 0: none does
    bad_keys: set[AdapterKey] = field(default_factory=set)
    bad_begins: set[TurnId] = field(default_factory=set)  # their BeginTurn faults, as one with a bad grammar does
    bad_draws: set[TurnId] = field(default_factory=set)  # their next draw faults
    bad_slots: set[int] = field(default_factory=set)  # they cannot be extended
    max_drawn: int | None = None  # None: as the turn's limits say

    def __post_init__(self) -> None:
        self.kv: list[list[Cell]] = [[] for _ in range(self.n_slots)]
        self.voices: dict[TurnId, Voice] = {}
        self.resident: set[AdapterKey] = set()
        self.loading: deque[LoadAdapter] = deque()
        self.steps: deque[StepDone] = deque()  # not delivered yet; at most one
        self.faults: deque[TurnFaulted] = deque()  # of begins; not delivered yet
        self.uses: dict[int, AdapterUse | None] = {}  # slot -> the adapter it is bound to
        self.tainted: set[int] = set()  # slots where a fault left tokens that the scheduler cannot know of
        self.log: list[Order] = []

    def obey(self, order: Order) -> None:
        self.log.append(order)
        work: dict[type[Any], Callable[[Any], None]] = {
            LoadAdapter: self._load,
            FreeAdapter: self._free,
            BeginTurn: self._begin,
            DropTurn: self._drop,
            ClearSlot: self._clear,
            RunStep: self._run,
        }
        work[type(order)](order)

    def load_one(self) -> AdapterLoaded | AdapterRefused:
        key = self.loading.popleft().key
        if key in self.bad_keys:
            return AdapterRefused(key, "adapter_shape", f"Adapter {key} does not fit.", "Train it on this base.")
        self.resident.add(key)
        return AdapterLoaded(key, 1000, 8, 1.0)

    def _load(self, order: LoadAdapter) -> None:
        assert order.path == f"{order.key}.gguf"
        assert order.key not in self.resident, "loaded twice"
        assert order.key not in [each.key for each in self.loading], "ordered twice"
        self.loading.append(order)
        assert len(self.resident) + len(self.loading) <= self.max_adapters, "over the adapter limit"

    def _free(self, order: FreeAdapter) -> None:
        assert order.key in self.resident, "freed and not there"
        users = [voice.order.turn for voice in self.voices.values() if voice.order.adapter and voice.order.adapter.key == order.key]
        assert not users, f"freed while {users} speak with it"
        self.resident.remove(order.key)

    def _begin(self, order: BeginTurn) -> None:
        cells = self.kv[order.slot]
        assert not self.steps, "begun while a step is under way"
        assert order.turn not in self.voices, "begun twice"
        assert all(voice.order.slot != order.slot for voice in self.voices.values()), "the slot is taken"
        assert order.adapter is None or order.adapter.key in self.resident, "its adapter is not resident"
        assert order.keep <= len(cells), "keeps more than there is"
        assert tuple(cell.token for cell in cells[: order.keep]) == order.history, "keeps other tokens than its prompt's"
        assert all(cell.adapter == order.adapter for cell in cells[: order.keep]), "keeps KV of another adapter"
        if order.turn in self.bad_begins:
            self.tainted.add(order.slot)
            self.faults.append(TurnFaulted(order.turn, "bad_grammar", "The grammar does not compile.", "Mend it."))
            return
        del cells[order.keep :]
        self.uses[order.slot] = order.adapter
        self.tainted.discard(order.slot)
        self.voices[order.turn] = Voice(order)

    def _drop(self, order: DropTurn) -> None:
        self.voices.pop(order.turn, None)

    def _clear(self, order: ClearSlot) -> None:
        assert all(voice.order.slot != order.slot for voice in self.voices.values()), "cleared under a speaking turn"
        self.kv[order.slot].clear()

    def _run(self, order: RunStep) -> None:
        assert not self.steps, "a second step under way"
        assert order.decode or order.prefill or order.extend, "an empty step"
        assert not (order.prefill and order.extend), "a slot is extended while a prompt waits"
        rows: list[RowDone] = []
        faults: list[TurnFaulted] = []
        prefilled: list[tuple[TurnId, int]] = []
        voices = [self.voices[turn] for turn in order.decode]
        assert [voice.order.slot for voice in voices] == sorted({voice.order.slot for voice in voices}), "rows not in order of slots"
        for voice in voices:
            assert voice.pending is not None
            self._feed(voice.order.slot, voice.order.adapter, voice.pending)
            self._draw(voice, rows, faults)
        for chunk in order.prefill:
            voice = self.voices.get(chunk.turn)
            if voice is None:
                continue  # it faulted in its begin
            assert voice.pending is None, "prefills a turn that speaks"
            assert chunk.tokens, "an empty chunk"
            for token in chunk.tokens:
                self._feed(voice.order.slot, voice.order.adapter, token)
            prefilled.append((chunk.turn, len(chunk.tokens)))
            if chunk.last:
                self._draw(voice, rows, faults)
        adapters = len({voice.order.adapter for voice in voices})
        n_prefilled = sum(n for _, n in prefilled)
        extended = tuple((each.slot, self._extend(each)) for each in order.extend)
        self.steps.append(
            StepDone(
                tuple(rows),
                tuple(prefilled),
                tuple(faults),
                5.0 + len(voices),
                float(n_prefilled),
                int(bool(voices)),
                adapters,
                extended=extended,
            )
        )

    def _extend(self, order: ExtendSlot) -> int:
        adapter = self.uses[order.slot]
        assert all(voice.order.slot != order.slot for voice in self.voices.values()), "extended under a speaking turn"
        assert adapter is None or adapter.key in self.resident, "extended under an adapter that is not resident"
        assert order.tokens, "extended by nothing"
        assert len(self.kv[order.slot]) == order.held, "extended where it does not end"
        if order.slot in self.bad_slots:
            return 0
        for token in order.tokens:
            self._feed(order.slot, adapter, token)
        return len(order.tokens)

    def _feed(self, slot: int, adapter: AdapterUse | None, token: int) -> None:
        cells = self.kv[slot]
        assert len(cells) < self.n_ctx, "the slot is full"
        assert not cells or cells[-1].adapter == adapter, "fed after KV of another adapter"
        cells.append(Cell(token, adapter, rolled(cells[-1].state if cells else 0, token, adapter)))

    def _draw(self, voice: Voice, rows: list[RowDone], faults: list[TurnFaulted]) -> None:
        turn = voice.order.turn
        if turn in self.bad_draws:
            self.bad_draws.remove(turn)
            self.tainted.add(voice.order.slot)
            del self.voices[turn]
            faults.append(TurnFaulted(turn, "grammar_error", "Nothing can be drawn."))
            return
        token = drawn_from(self.kv[voice.order.slot][-1].state)
        voice.pending, voice.n_drawn = token, voice.n_drawn + 1
        finish = FinishReason.END if is_end(token, self.end_every) else None
        if finish is None and voice.n_drawn >= (self.max_drawn or voice.order.limits.max_tokens):
            finish = FinishReason.LENGTH
        if finish is not None:
            del self.voices[turn]
        rows.append(RowDone(turn, token, (Piece(f"{token} "),), finish))


class Stage:
    """Scheduler, engine and clock. Every event goes through `tell`, which checks what must hold for any answer."""

    def __init__(self, n_slots: int = 2, n_ctx: int = 400, is_up: bool = True, end_every: int = 0, **settings: Any) -> None:
        self.config = SchedulerConfig(**{"pace_ms": 0.0, **settings})  # 0: every voice in every step, so that steps can be counted
        self.scheduler = Scheduler(self.config)
        self.engine = ModelEngine(n_slots, n_ctx, self.config.max_adapters, end_every)
        self.now_ms = 1000.0
        self.asked: dict[TurnId, TurnAsked] = {}
        self.ended: dict[TurnId, EndTurn | FailTurn] = {}
        self.spoken: dict[TurnId, list[Speak]] = {}
        self.is_up = False
        if is_up:
            self.start()

    def tell(self, event: Event) -> list[Action]:
        actions = self.scheduler.handle(event)
        kinds = [isinstance(action, Command) for action in actions]
        assert kinds == sorted(kinds, reverse=True), "orders go first"
        for action in actions:
            self._take(action)
        self.scheduler.validate()
        return actions

    def _take(self, action: Action) -> None:
        if isinstance(action, Command):
            assert self.is_up, "an order to an engine that is down"
            self.engine.obey(action.order)
            return
        assert action.turn in self.asked, "news of a turn nobody asked"
        assert action.turn not in self.ended, f"turn {action.turn} ended twice"
        if isinstance(action, Speak):
            assert action.first == (action.turn not in self.spoken), "first and only first is first"
            self.spoken.setdefault(action.turn, []).append(action)
        else:
            self.ended[action.turn] = action

    def start(self) -> list[Action]:
        old = self.engine
        self.engine = ModelEngine(old.n_slots, old.n_ctx, old.max_adapters, old.end_every, old.bad_keys)
        self.is_up = True
        return self.tell(EngineStarted(self.now_ms, self.engine.n_slots, self.engine.n_ctx))

    def lose(self) -> list[Action]:
        self.is_up = False
        self.engine.steps.clear()
        self.engine.loading.clear()
        self.engine.faults.clear()
        return self.tell(EngineGone(self.now_ms, "exit status -6"))

    def ask(
        self,
        npc: str,
        prompt: tuple[int, ...] | range = range(1, 9),
        adapter: str | AdapterUse | None = None,
        *,
        priority: Priority = Priority.PLAYER,
        max_tokens: int = 5,
        max_seconds: float = 60.0,
        tail: tuple[int, ...] = (),
    ) -> TurnId:
        turn = TurnId(len(self.asked) + 1)
        use = AdapterUse(AdapterKey(adapter)) if isinstance(adapter, str) else adapter
        self.asked[turn] = TurnAsked(
            self.now_ms,
            turn,
            NpcId(npc),
            tuple(prompt),
            use,
            f"{use.key}.gguf" if use else "",
            SamplingParams(),
            ReplyRules(),
            Limits(max_tokens, max_seconds),
            priority,
            tail,
        )
        self.answer = self.tell(self.asked[turn])
        return turn

    def cancel(self, turn: TurnId) -> list[Action]:
        return self.tell(TurnCancelled(self.now_ms, turn))

    def tick(self, passed_ms: float = 0.0) -> list[Action]:
        self.now_ms += passed_ms
        return self.tell(Tick(self.now_ms))

    @property
    def can_step(self) -> bool:
        return bool(self.engine.steps)

    def step(self, passed_ms: float = 10.0) -> list[Action]:
        """Deliver the report of the step under way."""
        self.now_ms += passed_ms
        return self.tell(StepReported(self.now_ms, self.engine.steps.popleft()))

    def load(self) -> list[Action]:
        """Deliver the fate of the adapter ordered first."""
        return self.tell(AdapterReported(self.now_ms, self.engine.load_one()))

    def fault(self) -> list[Action]:
        return self.tell(FaultReported(self.now_ms, self.engine.faults.popleft()))

    def settle(self, most_steps: int = 2000) -> None:
        """Go on until nothing is under way."""
        for _ in range(most_steps):
            if self.engine.faults:
                self.fault()
            elif self.engine.loading:
                self.load()
            elif self.engine.steps:
                self.step()
            else:
                return
        raise AssertionError(f"still at work after {most_steps} steps")

    def orders(self, kind: type[Any]) -> list[Any]:
        return [order for order in self.engine.log if isinstance(order, kind)]

    def begun(self, turn: TurnId) -> BeginTurn:
        (begun,) = [order for order in self.orders(BeginTurn) if order.turn == turn]
        return begun

    def has_begun(self, turn: TurnId) -> bool:
        return any(order.turn == turn for order in self.orders(BeginTurn))

    def code(self, turn: TurnId) -> str:
        """How the turn ended: the finish reason, or the error code."""
        ended = self.ended[turn]
        return ended.finish if isinstance(ended, EndTurn) else ended.code

    def reply(self, turn: TurnId) -> tuple[int, ...]:
        ended = self.ended[turn]
        assert isinstance(ended, EndTurn), ended
        return ended.reply

    def expected(self, turn: TurnId) -> tuple[tuple[int, ...], FinishReason]:
        return fresh_reply(self.asked[turn], self.engine.n_ctx, self.engine.end_every)

    def check_books(self) -> None:
        """What the scheduler knows of a slot is a prefix of what is there, and all of it where nothing faulted and no step is under way."""
        for place in self.scheduler._slots:
            cells = self.engine.kv[place.slot]
            if place.npc is None and place.turn is not None:
                continue  # its NPC is gone: cleared, and in the books until the report
            held = cells[: len(place.known)]
            assert place.known == [cell.token for cell in held], f"slot {place.slot} holds other tokens than known"
            assert {cell.adapter for cell in held} <= {place.adapter}, f"slot {place.slot} holds KV of another adapter than known"
            if not self.engine.steps and place.slot not in self.engine.tainted:
                assert len(place.known) == len(cells), f"slot {place.slot} holds {len(cells)} tokens, known are {len(place.known)}"
