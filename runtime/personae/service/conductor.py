"""Decides the order in which the scheduler's answers are carried out: what the engine waits for first, what people wait for after it.

It knows no request and no frame. Everything that happens to turns goes through here, one event at a time: those that the scheduler has,
and those that wait for their NPC and that it has not heard of yet. When an event has been carried out, whoever has come up begins, in the
same breath.

When our own books turn out to be wrong, nobody is left hanging: the story is logged, every open turn ends with `internal`, and both
scheduler and engine begin anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from personae.engine.batch import (
    AdapterLoaded,
    AdapterRefused,
    EngineReady,
    EngineWarm,
    KvRead,
    KvWritten,
    Result,
    SlotStashed,
    StepDone,
    TurnFaulted,
    TurnRefilled,
)
from personae.errors import PersonaeError
from personae.scheduler.actions import Action, Command, EndTurn, FailTurn, KvLoaded, KvSaved, SetAside, Speak
from personae.scheduler.core import Scheduler
from personae.scheduler.events import (
    AdapterReported,
    EngineGone,
    EngineStarted,
    Event,
    FaultReported,
    KvReported,
    NpcGone,
    StepReported,
    Tick,
    TurnCancelled,
)
from personae.service.engine_host import EngineDied, EngineHost
from personae.service.errands import Errands, Told
from personae.service.keeping import Keeping
from personae.service.npcs import Npc
from personae.service.open_turn import OpenTurn
from personae.service.outbox import Outbox
from personae.service.roster import Roster
from personae.service.sessions import Session
from personae.service.summaries import Summaries
from personae.service.turns import Ended, Turns
from personae.service.witness import NobodyWatches, Witness
from personae.types import FinishReason, TurnId
from personae.wire import replies

log = logging.getLogger("personae.service")


class Conductor:
    """`summaries` None: nothing is summed up."""

    def __init__(
        self,
        new_scheduler: Callable[[], Scheduler],
        host: EngineHost,
        turns: Turns,
        outbox: Outbox,
        *,
        roster: Roster,
        keeping: Keeping,
        errands: Errands,
        summaries: Summaries | None = None,
        witness: Witness | None = None,
    ) -> None:
        self._new_scheduler = new_scheduler
        self._scheduler = new_scheduler()
        self._host = host
        self._turns = turns
        self._outbox = outbox
        self._roster = roster
        self._keeping = keeping
        self._errands = errands
        self._summaries = summaries
        self._witness = witness or NobodyWatches()
        self._now_ms = 0.0

    def handle(self, event: Event) -> None:
        self._follow(event)
        self._settle()

    def report(self, result: Result | EngineDied, at_ms: float) -> None:
        """What an engine said, as the scheduler's event."""
        match result:
            case StepDone():
                self.handle(StepReported(at_ms, result))
            case TurnFaulted():
                self.handle(FaultReported(at_ms, result))
            case AdapterLoaded() | AdapterRefused():
                self.handle(AdapterReported(at_ms, result))
            case SlotStashed() | TurnRefilled() | KvWritten() | KvRead():
                self.handle(KvReported(at_ms, result))
            case EngineReady():
                card = result.card
                facts = (card.n_slots, card.n_ctx, card.can_cut, card.mode, card.kv_token_bytes, card.can_cut_moved)
                self.handle(EngineStarted(at_ms, *facts))
            case EngineDied():
                self.handle(EngineGone(at_ms, result.reason))
                self._answer(self._errands.give_up(f"the engine was lost: {result.reason}"))
            case EngineWarm():
                pass  # the scheduler may use an engine that is ready; warm is for people

    def cancel(self, turn: TurnId, at_ms: float, finish: FinishReason = FinishReason.CANCELLED) -> None:
        """Harmless when it has ended."""
        if self._turns.is_waiting(turn):
            self._carry_out(self._turns.end_of_waiting(self._turns[turn], finish, at_ms))
        else:
            self.handle(TurnCancelled(at_ms, turn, finish))

    def dismiss(self, npc: Npc, at_ms: float) -> None:
        """The NPC is about to go: all that is open of it ends, and nothing of it stays with the engine."""
        for turn in self._turns.waiting_for(npc):
            self.cancel(turn.turn, at_ms)
        self.handle(NpcGone(at_ms, npc.id))

    def lose(self, session: Session, at_ms: float) -> None:
        """The client is gone: its own turns end, and no others. Last come first, so that none begins only to be ended."""
        for turn in reversed(tuple(session.open.values())):
            self.cancel(turn, at_ms)

    def tick(self, at_ms: float) -> None:
        for end in self._turns.overdue(at_ms):
            self._carry_out(end)
        deadline_ms = self._scheduler.next_deadline_ms()
        if deadline_ms is not None and at_ms >= deadline_ms:
            self.handle(Tick(at_ms))

    def next_deadline_ms(self) -> float | None:
        return min((ms for ms in (self._scheduler.next_deadline_ms(), self._turns.next_deadline_ms()) if ms is not None), default=None)

    def statistics(self) -> dict[str, Any]:
        return self._scheduler.statistics()

    def fail_open_turns(self, code: str, message: str, hint: str) -> None:
        """End every open turn here and now, whatever the scheduler thinks of it."""
        if self._summaries is not None:
            self._summaries.forget_all()
        for turn in self._turns:
            self._carry_out(FailTurn(turn.turn, code, message, hint))

    # --- one event ------------------------------------------------------------------------------------------------------

    def _follow(self, event: Event) -> None:
        """Orders first, so that the next step runs while the words of the last one are being sent."""
        self._now_ms = max(self._now_ms, event.at_ms)  # a turn that waited is asked as of the time of its request
        try:
            actions = self._scheduler.handle(event)
        except Exception as error:  # whatever it is, it is ours
            self._show(event, [])  # the one event that a record must not lack
            self._begin_anew(error)
            return
        self._show(event, actions)
        self._host.send([action.order for action in actions if isinstance(action, Command)], self._now_ms)
        for action in actions:
            self._carry_out(action)

    def _show(self, event: Event, actions: Sequence[Action]) -> None:
        """To whoever looks on; nobody who speaks pays for their faults."""
        try:
            self._witness.saw(event, actions)
        except Exception:
            log.exception("a witness failed over a %s", type(event).__name__)

    def _settle(self) -> None:
        """Those whose NPC has come free begin, and what is to be summed up is."""
        while (turn := self._turns.next_up()) is not None:
            self._begin(turn)
        while self._summaries is not None and (event := self._summaries.next_up(self._now_ms)) is not None:
            self._follow(event)

    def _begin(self, turn: OpenTurn) -> None:
        try:
            asked = self._turns.begin(turn)
        except PersonaeError as refusal:
            retry_ms = refusal.details.get("retry_after_ms")
            self._carry_out(FailTurn(turn.turn, refusal.code, refusal.message, refusal.hint, retry_ms))
        except Exception:
            log.exception("a turn that had waited could not begin")
            self._carry_out(_lost(turn.turn))
        else:
            self._follow(asked)

    def _carry_out(self, action: Action) -> None:
        """A fault of ours in telling one client ends that turn; the others are told as if nothing had been."""
        try:
            self._tell(action)
        except Exception:
            log.exception("a client could not be told: %s", action)
            if isinstance(action, Speak | EndTurn | FailTurn):
                self._tell(_lost(action.turn))

    def _tell(self, action: Action) -> None:
        match action:
            case Speak() | EndTurn() | FailTurn() if self._summaries is not None and action.turn in self._summaries:
                self._tell_summaries(action, self._summaries)
            case Speak() if (spoken := self._turns.speak(action)) is not None:
                session, deltas = spoken
                for delta in deltas:
                    self._outbox.send(session, delta)
            case EndTurn() if (ended := self._turns.end(action)) is not None:
                self._close(ended)
            case FailTurn() if (failed := self._turns.fail(action)) is not None:
                self._close(failed)
            case KvSaved() | KvLoaded():
                self._answer(self._errands.note(action))
            case SetAside():
                self._tell_set_aside(action)

    def _close(self, ended: Ended) -> None:
        """What a client has been told of is there after a kill: the NPC is kept before its client hears of the end."""
        if ended.has_changed_npc:
            self._keeping.keep(ended.npc)
            if self._summaries is not None:
                self._summaries.note(ended.npc)
        if ended.session is not None:
            self._answer((ended.session, message) for message in ended.messages)

    def _tell_summaries(self, action: Speak | EndTurn | FailTurn, summaries: Summaries) -> None:
        match action:
            case Speak():
                summaries.speak(action)
            case EndTurn():
                summaries.end(action)
            case FailTurn():
                summaries.fail(action)

    def _tell_set_aside(self, action: SetAside) -> None:
        characters = self._roster.users_of(action.key)
        message = (
            f"The adapter {action.path} has ended the engine twice and is set aside: {', '.join(characters) or 'nobody'} cannot speak."
        )
        log.error("%s", message)
        self._outbox.broadcast(replies.event("adapter_set_aside", adapter=action.key, characters=characters, message=message))

    def _answer(self, told: Iterable[Told]) -> None:
        for session, message in told:
            self._outbox.send(session, message)

    def _begin_anew(self, error: Exception) -> None:
        log.critical("the scheduler's books are wrong; its story:\n%s", self._scheduler.story(), exc_info=error)
        self.fail_open_turns("internal", "The service lost its books and began anew.", "Say it again; the log holds what a report needs.")
        self._answer(self._errands.give_up("the service lost its books and began anew"))
        self._scheduler = self._new_scheduler()
        self._host.restart()


def _lost(turn: TurnId) -> FailTurn:
    return FailTurn(turn, "internal", "The reply was lost in the service.", "Say it again; the log says more.")
