"""Who speaks, where and when: a pure function of events. `handle(event)` returns what is to be done, orders to the engine first.

Decides slots, KV reuse, steps, adapters, limits and the end of each turn. Refuses to know clocks, sockets, files, text and chance:
time arrives in the event, and the same events give the same actions, whatever else goes on.

The idea: a turn that is asked waits in line. Whenever no step is under way, turns that have adapter and slot begin, and one step is
ordered for all that are at work: a token for each that speaks, and as much prompt as the step's time allows. Its report is entered,
those that are done leave, and the next step is ordered in the same breath, before anybody is told about the last one. When nobody
is at work, parked slots are extended by what the next prompt of their NPC will have before its new words; they are *owed* that.

Rules that always hold (`validate` checks them)
- Every turn asked ends in exactly one EndTurn or FailTurn. A turn is open in exactly one place: in line or in a slot.
- One turn in flight per NPC, one step under way per engine.
- A slot's `known` tokens are in its KV, all made under the one adapter noted beside them.
- Turns begin only between steps; so a slot's books are settled before anybody takes it over.
- An adapter that a slot in work uses is resident.

The service delivers results in the order in which the engine gave them, and none of an engine after its EngineGone.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from personae.engine.batch import AdapterLoaded, ClearSlot, DropTurn, RowDone, StepDone, TurnFaulted
from personae.errors import OurBug
from personae.scheduler import events as ev
from personae.scheduler.actions import Action, Command, EndTurn, FailTurn, Speak
from personae.scheduler.adapters import AdapterTable
from personae.scheduler.admission import Admission, refusal
from personae.scheduler.budget import StepBudget
from personae.scheduler.flight import Flight, plan
from personae.scheduler.ledger import Ledger
from personae.scheduler.sequence import Sequence
from personae.scheduler.settings import SchedulerConfig
from personae.scheduler.slots import SlotTable
from personae.scheduler.story import Story
from personae.scheduler.waiting import WaitingLine
from personae.types import FinishReason, NpcId, TurnId


class Scheduler:
    def __init__(self, config: SchedulerConfig | None = None) -> None:
        self._config = config or SchedulerConfig()
        self._line = WaitingLine(self._config)
        self._slots = SlotTable()
        self._adapters = AdapterTable(self._config.max_adapters)
        self._ledger = Ledger()
        self._admission = Admission(self._line, self._slots, self._adapters, self._ledger)
        self._budget = StepBudget(self._config)
        self._story = Story()
        self._open: dict[TurnId, Sequence] = {}
        self._of_npc: dict[NpcId, Sequence] = {}  # its open turn
        self._deadlines: list[tuple[float, TurnId]] = []  # heap; turns that have ended linger until they come up
        self._flight: Flight | None = None
        self._n_ctx: int | None = None  # None: the engine is down
        self._now_ms = 0.0
        self._stirred = False  # the line may move: something other than plain tokens has happened since turns could last begin
        self._orders: list[Action] = []
        self._news: list[Action] = []
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            ev.TurnAsked: self._on_asked,
            ev.TurnCancelled: self._on_cancelled,
            ev.NpcGone: self._on_npc_gone,
            ev.AdapterRetired: self._on_retired,
            ev.StepReported: self._on_step,
            ev.FaultReported: self._on_fault,
            ev.AdapterReported: self._on_adapter,
            ev.EngineStarted: self._on_started,
            ev.EngineGone: self._on_gone,
            ev.Tick: self._on_tick,
        }

    def handle(self, event: ev.Event) -> list[Action]:
        """What follows from the event: orders first, then news for clients. OurBug: an event that cannot be (a turn asked twice)."""
        self._orders, self._news = [], []
        self._now_ms = max(self._now_ms, event.at_ms)
        try:
            self._handlers[type(event)](event)
            self._end_overdue()
            self._go_on()
        finally:  # an event that fails half-way belongs in the story most of all
            self._story.note(event, (*self._orders, *self._news))
        return self._orders + self._news

    # --- turns --------------------------------------------------------------------------------------------------------

    def _on_asked(self, event: ev.TurnAsked) -> None:
        if event.turn in self._open:
            raise OurBug("internal", f"Turn {event.turn} was asked twice.", "Restart the service and report its story.")
        turn = Sequence(event, self._ledger.asked)
        self._ledger.asked += 1
        refused = self._refusal(turn)
        self._open[turn.turn] = turn
        if refused is not None:
            self._fail(turn, refused)
            return
        if self._line.is_full and not self._make_room(turn):
            return
        self._line.join(turn)
        self._of_npc[turn.npc] = turn
        heapq.heappush(self._deadlines, (turn.deadline_ms, turn.turn))
        if turn.key is not None:
            self._adapters.note_asked(turn.key)
        self._stirred = True

    def _refusal(self, turn: Sequence) -> FailTurn | None:
        if turn.npc in self._of_npc:
            return FailTurn(turn.turn, "npc_busy", f"NPC '{turn.npc}' is still answering.", "Wait for the end of its turn, or cancel it.")
        return refusal(turn, self._n_ctx, self._config)

    def _make_room(self, newcomer: Sequence) -> bool:
        """Whether the newcomer may join the full line: somebody of a lower class yields to it."""
        yielding = self._line.who_yields(newcomer)
        retry_ms = self._ledger.retry_after_ms(len(self._line), len(self._slots))
        message = f"{len(self._line)} turns are waiting already, as many as may."
        self._fail(yielding, FailTurn(yielding.turn, "busy", message, "Ask again later.", retry_ms))
        return yielding is not newcomer

    def _on_cancelled(self, event: ev.TurnCancelled) -> None:
        turn = self._open.get(event.turn)
        if turn is not None:
            self._end(turn, FinishReason.CANCELLED)

    def _on_npc_gone(self, event: ev.NpcGone) -> None:
        turn = self._of_npc.get(event.npc)
        if turn is not None:
            self._end(turn, FinishReason.CANCELLED)
        place = self._slots.disown(event.npc)
        if place is not None:
            self._orders.append(Command(ClearSlot(place.slot)))

    def _end(self, turn: Sequence, finish: FinishReason, *, by_engine: bool = False) -> None:
        reply = turn.reply(finish)
        queued_ms = (turn.begun_ms if turn.place else self._now_ms) - turn.asked.at_ms
        ttft_ms = turn.first_ms - turn.asked.at_ms if turn.drawn else -1.0
        usage = turn.usage(len(reply))
        self._news.append(EndTurn(turn.turn, finish, usage, reply, queued_ms, ttft_ms, self._now_ms - turn.asked.at_ms))
        self._close(turn, finish, by_engine)

    def _fail(self, turn: Sequence, why: FailTurn, *, by_engine: bool = False) -> None:
        self._news.append(why)
        self._close(turn, why.code, by_engine)

    def _close(self, turn: Sequence, how: str, by_engine: bool) -> None:
        """Out of all books but the slot's, if a step is under way that advances it. `by_engine`: it needs not be told."""
        turn.ended = True
        del self._open[turn.turn]
        if self._of_npc.get(turn.npc) is turn:
            del self._of_npc[turn.npc]
        self._ledger.note_ended(turn, how, self._now_ms)
        self._stirred = True
        if turn.turn in self._line:
            self._line.leave(turn)
        if turn.place is None or self._n_ctx is None:
            return
        if not by_engine:
            self._orders.append(Command(DropTurn(turn.turn)))
        if self._flight is None or turn not in self._flight:
            self._slots.park(turn)

    # --- steps --------------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """See to the line if it may move, and order the next step if none is under way."""
        if self._n_ctx is None:
            return
        is_idle = self._flight is None
        if self._stirred:
            self._orders += [Command(order) for order in self._admission.walk(self._now_ms, self._n_ctx, may_begin=is_idle)]
            self._stirred = not is_idle
        if is_idle:
            self._flight = plan(self._slots.busy(), self._slots.owed(), self._budget, self._now_ms, self._config)
            if self._flight is not None:
                self._orders.append(Command(self._flight.order()))

    def _on_step(self, event: ev.StepReported) -> None:
        flight, self._flight = self._flight, None
        if flight is None:
            return  # the last word of an engine that is gone
        self._enter(flight, event.step)
        for turn, row in flight.live_rows(event.step):
            self._advance(turn, row)
        for fault in event.step.faults:
            self._give_up(fault)
        for turn in flight.unaccounted(event.step):
            message = f"The engine's report of a step leaves out turn {turn.turn}."
            self._fail(turn, FailTurn(turn.turn, "engine_failed", message, "Ask again; look into the engine's log."))

    def _enter(self, flight: Flight, step: StepDone) -> None:
        """What is in the KV now, first of all and for the turns that have ended meanwhile too; those leave their slots now."""
        gone = [turn for turn in flight.turns.values() if turn.ended]
        prefilled, rows = flight.enter_prefilled(step), flight.enter_fed(step)
        flight.enter_extended(step)
        self._budget.note(rows, step.decode_ms, prefilled, step.prefill_ms)
        self._ledger.note_step(step, rows, prefilled)
        for turn in gone:
            self._slots.park(turn)

    def _advance(self, turn: Sequence, row: RowDone) -> None:
        assert self._n_ctx is not None
        is_first = turn.note_drawn(row, self._now_ms)
        if is_first:
            turn.first_ms = self._now_ms
        if is_first or row.pieces:
            self._news.append(Speak(turn.turn, row.pieces, is_first))
        finish = turn.finish_of(row, self._n_ctx)
        if finish is not None:
            self._end(turn, finish, by_engine=row.finish is not None)
            if turn.place is not None:
                self._slots.owe(turn.place, turn.next_up(finish), self._n_ctx)

    def _give_up(self, fault: TurnFaulted) -> None:
        """What the slot is known to hold stays known: a fault adds nothing to it, and whatever else is there is cut at the next begin."""
        turn = self._open.get(fault.turn)
        if turn is not None:
            self._fail(turn, FailTurn(fault.turn, fault.code, fault.message, fault.hint), by_engine=True)

    def _on_fault(self, event: ev.FaultReported) -> None:
        self._give_up(event.fault)

    # --- adapters and the engine --------------------------------------------------------------------------------------

    def _on_adapter(self, event: ev.AdapterReported) -> None:
        result = event.result
        if not self._adapters.is_loading(result.key):
            return  # nobody asked for it: the last word of an engine that is gone
        self._stirred = True
        if isinstance(result, AdapterLoaded):
            self._adapters.note_loaded(result.key, result.bytes_resident)
            return
        self._adapters.note_refused(result.key)
        for turn in [turn for turn in self._line if turn.key == result.key]:
            self._fail(turn, FailTurn(turn.turn, result.code, result.message, result.hint))

    def _on_retired(self, event: ev.AdapterRetired) -> None:
        self._adapters.retire(event.key)
        self._stirred = True

    def _on_started(self, event: ev.EngineStarted) -> None:
        if self._n_ctx is not None:
            self._lose_engine("another engine took its place")
        self._n_ctx = event.n_ctx
        self._slots.reset(event.n_slots)
        self._stirred = True
        for turn in list(self._line):
            refused = refusal(turn, self._n_ctx, self._config)
            if refused is not None:
                self._fail(turn, refused)

    def _on_gone(self, event: ev.EngineGone) -> None:
        self._lose_engine(event.reason)

    def _lose_engine(self, reason: str) -> None:
        self._n_ctx, self._flight = None, None
        for turn in list(self._open.values()):
            self._fail(turn, self._lost(turn, f"The engine was lost: {reason}."))
        self._slots.reset(0)
        self._adapters.forget_all()

    def _lost(self, turn: Sequence, message: str) -> FailTurn:
        return FailTurn(turn.turn, "engine_lost", message, "It is being started again; ask again.", self._config.restart_hint_ms)

    # --- time ---------------------------------------------------------------------------------------------------------

    def _on_tick(self, event: ev.Tick) -> None:
        """Time itself is dealt with after every event."""

    def next_deadline_ms(self) -> float | None:
        """When a Tick is due at the latest; None: no turn is open."""
        while self._deadlines and self._deadlines[0][1] not in self._open:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _end_overdue(self) -> None:
        while (deadline_ms := self.next_deadline_ms()) is not None and deadline_ms <= self._now_ms:
            turn = self._open[self._deadlines[0][1]]
            if self._n_ctx is None:
                self._fail(turn, self._lost(turn, "The engine did not come back in the time this turn had."))
            else:
                self._end(turn, FinishReason.TIME)

    # --- for people and tests -----------------------------------------------------------------------------------------

    def open_turns(self) -> tuple[TurnId, ...]:
        """The turns that still owe their one EndTurn or FailTurn."""
        return tuple(self._open)

    def story(self) -> str:
        """The last events and the actions they led to, one a line."""
        return str(self._story)

    def validate(self) -> None:
        """AssertionError says which rule does not hold. For tests and debugging: it compares every token of every slot in work."""
        ledger, busy = self._ledger, self._slots.busy()
        self._line.validate()
        self._slots.validate(self._n_ctx or 0)
        self._adapters.validate(self._admission.in_use() | self._slots.adapters_owed())
        assert ledger.asked == len(self._open) + ledger.ended.total(), "a turn has ended twice or never"
        seated = {turn.turn for turn in busy if not turn.ended}
        waiting = {turn.turn for turn in self._line}
        assert not seated & waiting, "a turn is in line and in a slot"
        assert seated | waiting == self._open.keys(), "an open turn is nowhere, or one that has ended is somewhere"
        assert self._of_npc == {turn.npc: turn for turn in self._open.values()}, "an NPC has two turns, or one nobody knows of"
        self._validate_flight(busy)
        self._admission.validate(is_idle=self._flight is None, is_up=self._n_ctx is not None)

    def _validate_flight(self, busy: list[Sequence]) -> None:
        if self._flight is None:
            assert not busy, "turns are at work and no step is under way"
            assert not self._slots.owed(), "a slot is to be extended and nobody does it"
            return
        assert all(turn in busy for turn in self._flight.turns.values()), "a turn of the step has left its slot"
        assert all(not turn.ended or turn in self._flight for turn in busy), "a turn that has ended holds a slot and no step needs it"
        left_out = [turn for turn in busy if turn.pending is not None and turn not in self._flight]
        assert not left_out or self._flight.chunks, "a speaking turn is left out of a step that prefills nothing"
        assert all(place.turn is None for place, _ in self._flight.extensions), "a slot is extended under a turn"
        assert not (self._flight.turns and self._flight.extensions), "a slot is extended while turns are at work"
        assert self._flight.decode or self._flight.chunks or self._flight.extensions, "an empty step"

    def statistics(self) -> dict[str, object]:
        """Plain values with string keys, ready for the wire."""
        open_seats = [turn for turn in self._slots.busy() if not turn.ended]
        return {
            "engine_up": self._n_ctx is not None,
            "slots": len(self._slots),
            "waiting": len(self._line),
            "speaking": sum(turn.pending is not None for turn in open_seats),
            "prefilling": sum(turn.prompt_left > 0 for turn in open_seats),
            "parked": sum(place.is_parked for place in self._slots),
            "evictions": self._slots.evictions,
            "adapters": self._adapters.statistics(),
            "budget": self._budget.statistics(),
            **self._ledger.statistics(),
        }
