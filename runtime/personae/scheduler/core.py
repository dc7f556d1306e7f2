"""Who speaks, where and when: a pure function of events. `handle(event)` returns what is to be done, orders to the engine first.

Decides steps and the end of each turn, and hands the rest to those who decide it: admission.py who begins and who is paused for it,
seating.py where KV comes from, making_room.py what is resident, flight.py what a step does, engine_life.py what dies with an engine.
Refuses to know clocks, sockets, files, text and chance: time arrives in the event, and the same events give the same actions, whatever
else goes on.

The idea: a turn that is asked waits in line. Whenever no step is under way, turns that have voice and slot begin, and one step is
ordered for all that are at work: a token for each that speaks, and as much prompt as the step's time allows. Its report is entered,
those that are done leave, and the next step is ordered in the same breath, before anybody is told about the last one. When nobody
is at work, parked slots are extended by what the next prompt of their NPC will have before its new words; they are *owed* that.

Rules that always hold (checks.py)
- Every turn asked ends in exactly one EndTurn or FailTurn. A turn is open in exactly one place: in line, perhaps paused, or in a slot.
- One turn in flight per NPC, one step under way per engine.
- A slot's `known` tokens are in its KV, all made under the one voice noted beside them.
- Turns begin, pause and go on only between steps; so a slot's books are settled before anybody takes it over.
- Every adapter of the voice of a slot in work is resident.

The service delivers results in the order in which the engine gave them, and none of an engine after its EngineGone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from personae.engine.batch import ClearSlot, KvRead, KvWritten, RowDone, SlotStashed, StepDone, TurnFaulted, TurnRefilled
from personae.errors import OurBug
from personae.scheduler import checks
from personae.scheduler import events as ev
from personae.scheduler.actions import Action, FailTurn, KvSaved, Speak
from personae.scheduler.admission import Admission
from personae.scheduler.books import Answer, Books
from personae.scheduler.deadlines import DeadlineHeap, Due
from personae.scheduler.endings import Endings
from personae.scheduler.engine_life import EngineLife
from personae.scheduler.flight import Flight, plan
from personae.scheduler.kv_files import KvFiles
from personae.scheduler.seating import Seating
from personae.scheduler.sequence import Sequence
from personae.scheduler.settings import SchedulerConfig
from personae.scheduler.story import Story
from personae.types import FinishReason, TurnId


class Scheduler:
    def __init__(self, config: SchedulerConfig | None = None) -> None:
        self._config = config or SchedulerConfig()
        self._books = books = Books(self._config)
        self._seating = Seating(books.slots, books.host)
        self._admission = Admission(self._config, books.line, books.slots, self._seating, books.adapters, books.ledger)
        self._endings = Endings(books)
        self._kv_files = KvFiles(books.slots, books.host)
        self._engine = EngineLife(books, self._endings, self._seating, self._kv_files)
        self._deadlines = DeadlineHeap()
        self._last_flight: Flight | None = None
        self._story = Story()
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            ev.TurnAsked: self._on_asked,
            ev.TurnCancelled: self._on_cancelled,
            ev.NpcGone: self._on_npc_gone,
            ev.AdapterRetired: self._engine.on_retired,
            ev.StepReported: self._on_step,
            ev.FaultReported: self._on_fault,
            ev.AdapterReported: self._engine.on_adapter,
            ev.KvReported: self._on_kv,
            ev.KvSaveAsked: self._on_save_asked,
            ev.KvLoadAsked: self._on_load_asked,
            ev.EngineStarted: self._engine.on_started,
            ev.EngineGone: self._engine.on_gone,
            ev.Tick: self._on_tick,
        }

    def handle(self, event: ev.Event) -> list[Action]:
        """What follows from the event: orders first, then news for clients. OurBug: an event that cannot be (a turn asked twice)."""
        books = self._books
        books.answer = answer = Answer()
        books.now_ms = max(books.now_ms, event.at_ms)
        try:
            self._handlers[type(event)](event)
            self._end_overdue()
            self._go_on()
        finally:  # an event that fails half-way belongs in the story most of all
            self._story.note(event, (*answer.orders, *answer.news))
        return answer.orders + answer.news

    # --- turns --------------------------------------------------------------------------------------------------------

    def _on_asked(self, event: ev.TurnAsked) -> None:
        books = self._books
        if event.turn in books.turns:
            raise OurBug("internal", f"Turn {event.turn} was asked twice.", "Restart the service and report its story.")
        if [use.key for use in event.voice] != [source.key for source in event.sources]:
            raise OurBug("internal", f"Turn {event.turn} does not say where its adapters are.", "Restart the service and report its story.")
        turn = Sequence(event, books.ledger.asked)
        books.ledger.asked += 1
        refused = self._refusal(turn)
        books.turns[turn.turn] = turn
        if refused is not None:
            self._endings.fail(turn, refused)
            return
        if books.line.is_full and not self._make_room(turn):
            return
        books.line.join(turn)
        books.of_npc[turn.npc] = turn
        self._deadlines.note_asked(turn)
        books.adapters.note_asked(turn.keys)
        books.stirred = True

    def _refusal(self, turn: Sequence) -> FailTurn | None:
        if turn.npc in self._books.of_npc:
            return FailTurn(turn.turn, "npc_busy", f"NPC '{turn.npc}' is still answering.", "Wait for the end of its turn, or cancel it.")
        return self._engine.refusal(turn)

    def _make_room(self, newcomer: Sequence) -> bool:
        """Whether the newcomer may join the full line: somebody of a lower class yields to it."""
        books = self._books
        yielding = books.line.who_yields(newcomer)
        retry_ms = books.ledger.retry_after_ms(len(books.line), len(books.slots))
        message = f"{books.line.n_new} turns are waiting already, as many as may."
        self._endings.fail(yielding, FailTurn(yielding.turn, "busy", message, "Ask again later.", retry_ms))
        return yielding is not newcomer

    def _on_cancelled(self, event: ev.TurnCancelled) -> None:
        turn = self._books.turns.get(event.turn)
        if turn is not None:
            self._endings.end(turn, event.finish)

    def _on_npc_gone(self, event: ev.NpcGone) -> None:
        books = self._books
        turn = books.of_npc.get(event.npc)
        if turn is not None:
            self._endings.end(turn, FinishReason.CANCELLED)
        place = books.slots.disown(event.npc)
        if place is not None:
            books.answer.order(ClearSlot(place.slot))
        books.answer.order(*books.host.forget_npc(event.npc))
        self._kv_files.forget_npc(event.npc)

    # --- steps --------------------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """See to the line if it may move, and order the next step if none is under way."""
        books = self._books
        if books.n_ctx is None:
            return
        if books.is_idle:
            self._catch_up()
            self._end_warm()
        if books.stirred:
            self._move_line(books.n_ctx)
        if books.is_idle:
            self._order_step()

    def _move_line(self, n_ctx: int) -> None:
        """Until nobody can move any more: a turn that finds all it was to prepare leaves its slot at once, a paused one its adapter."""
        books = self._books
        may_begin = books.is_idle
        while books.stirred:
            self._end_prepared()
            n_pauses = books.ledger.pauses
            books.answer.order(*self._admission.walk(books.now_ms, n_ctx, may_begin=may_begin))
            if not may_begin:
                return
            books.stirred = books.ledger.pauses > n_pauses  # then an adapter may have come free too
            self._end_warm()

    def _order_step(self) -> None:
        books = self._books
        self._pass_on(*self._kv_files.write(books.of_npc))
        busy, owed = books.slots.busy(), books.slots.owed()
        books.flight = plan(busy, owed, books.budget, books.now_ms, self._config, mode=books.mode, last=self._last_flight)
        self._last_flight = None
        if books.flight is not None:
            books.answer.order(books.flight.order())

    def _catch_up(self) -> None:
        """Those who still read their prompt may copy what another has read by now."""
        books = self._books
        for turn in books.slots.busy():
            if turn.prompt_left > 0 and not turn.drawn:
                n_copies = self._seating.copies
                books.answer.order(*self._seating.catch_up(turn))
                if self._seating.copies > n_copies:
                    books.ledger.note_seated(turn)

    def _end_prepared(self) -> None:
        """Turns that were only to prepare an NPC which is ready as it is."""
        for turn in [turn for turn in self._books.line if self._seating.is_prepared(turn)]:
            turn.note_prepared()
            self._endings.end(turn, FinishReason.WARM)

    def _end_warm(self) -> None:
        """Turns that were only to prepare their NPC, and have."""
        for turn in [turn for turn in self._books.slots.busy() if turn.is_warm]:
            self._endings.end(turn, FinishReason.WARM)

    def _on_step(self, event: ev.StepReported) -> None:
        books = self._books
        flight, books.flight = books.flight, None
        if flight is None:
            return  # the last word of an engine that is gone
        self._last_flight = flight
        self._enter(flight, event.step)
        for turn, row in flight.live_rows(event.step):
            self._advance(turn, row)
        for fault in event.step.faults:
            self._give_up(fault)
        for turn in flight.unaccounted(event.step):
            message = f"The engine's report of a step leaves out turn {turn.turn}."
            self._endings.fail(turn, FailTurn(turn.turn, "engine_failed", message, "Ask again; look into the engine's log."))

    def _enter(self, flight: Flight, step: StepDone) -> None:
        """What is in the KV now, first of all and for the turns that have ended meanwhile too; those leave their slots now."""
        books = self._books
        gone = [turn for turn in flight.turns.values() if turn.ended]
        prefilled, rows = flight.enter_prefilled(step), flight.enter_fed(step)
        flight.enter_extended(step)
        books.budget.note(flight, step)
        books.ledger.note_step(step, rows, prefilled)
        if books.adapters.note_step({key for turn in flight.turns.values() for key in turn.keys}):
            books.stirred = True
        for turn in flight.turns.values():
            turn.note_served(books.now_ms)
        for turn in gone:
            books.slots.park(turn)

    def _advance(self, turn: Sequence, row: RowDone) -> None:
        books = self._books
        assert books.n_ctx is not None
        is_first = turn.note_drawn(row, books.now_ms)
        if is_first:
            turn.first_ms = books.now_ms
        if is_first or row.pieces:
            books.answer.tell(Speak(turn.turn, row.pieces, is_first))
        finish = turn.finish_of(row, books.n_ctx)
        if finish is not None:
            self._endings.end(turn, finish, by_engine=row.finish is not None)
            if turn.place is not None:
                books.slots.owe(turn.place, turn.next_up(finish), books.n_ctx)

    def _give_up(self, fault: TurnFaulted) -> None:
        """What the slot is known to hold stays known: a fault adds nothing to it, and whatever else is there is cut at the next begin."""
        turn = self._books.turns.get(fault.turn)
        if turn is not None:
            self._endings.fail(turn, FailTurn(fault.turn, fault.code, fault.message, fault.hint), by_engine=True)

    def _on_fault(self, event: ev.FaultReported) -> None:
        self._give_up(event.fault)

    # --- KV that moves ------------------------------------------------------------------------------------------------

    def _on_kv(self, event: ev.KvReported) -> None:
        books, result = self._books, event.result
        match result:
            case SlotStashed():
                books.answer.order(*books.host.note_stashed(result))
            case TurnRefilled(name, n_tokens):
                turn = books.turns.get(name)
                if turn is not None:
                    books.ledger.note_refilled(turn, n_tokens)
            case KvWritten():
                self._pass_on(*self._kv_files.note_written(result))
            case KvRead():
                self._pass_on(*self._kv_files.note_read(result))

    def _on_save_asked(self, event: ev.KvSaveAsked) -> None:
        if self._books.n_ctx is None:
            self._pass_on(KvSaved(event.npc, event.path, 0, 0, "the engine is down"))
        else:
            self._kv_files.ask_save(event)

    def _on_load_asked(self, event: ev.KvLoadAsked) -> None:
        self._pass_on(self._kv_files.ask_load(event, is_up=self._books.n_ctx is not None))

    def _pass_on(self, *actions: Action) -> None:
        self._books.answer.add(*actions)

    # --- time ---------------------------------------------------------------------------------------------------------

    def _on_tick(self, event: ev.Tick) -> None:
        """Time itself is dealt with after every event."""

    def next_deadline_ms(self) -> float | None:
        """When a Tick is due at the latest; None: no turn is open."""
        return self._deadlines.next_ms(self._books.turns)

    def _end_overdue(self) -> None:
        books = self._books
        while (overdue := self._deadlines.take_due(books.turns, books.now_ms)) is not None:
            turn, due = overdue
            if due is not Due.TIME:
                self._endings.end(turn, FinishReason.DEADLINE)
            elif books.n_ctx is None:
                self._endings.fail(turn, self._engine.lost(turn, "The engine did not come back in the time this turn had."))
            else:
                self._endings.end(turn, FinishReason.TIME)

    # --- for people and tests -----------------------------------------------------------------------------------------

    def open_turns(self) -> tuple[TurnId, ...]:
        """The turns that still owe their one EndTurn or FailTurn."""
        return tuple(self._books.turns)

    def story(self) -> str:
        """The last events and the actions they led to, one a line."""
        return str(self._story)

    def validate(self) -> None:
        """AssertionError says which rule does not hold. For tests and debugging: it compares every token of every slot in work."""
        checks.validate(self._books, self._admission)

    def statistics(self) -> dict[str, object]:
        """Plain values with string keys, ready for the wire."""
        return checks.statistics(self._books, self._seating, self._admission)
