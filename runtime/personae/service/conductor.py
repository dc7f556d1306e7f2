"""Decides the order in which the scheduler's answers are carried out: what the engine waits for first, what people wait for after it.

It knows no request and no frame. Everything that happens to turns goes through `handle`, one event at a time.

When our own books turn out to be wrong, nobody is left hanging: the story is logged, every open turn ends with `internal`, and both
scheduler and engine begin anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from personae.engine.batch import (
    AdapterLoaded,
    AdapterRefused,
    EngineReady,
    EngineWarm,
    Result,
    StepDone,
    TurnFaulted,
)
from personae.scheduler.actions import Action, Command, EndTurn, FailTurn, Speak
from personae.scheduler.core import Scheduler
from personae.scheduler.events import (
    AdapterReported,
    EngineGone,
    EngineStarted,
    Event,
    FaultReported,
    StepReported,
    Tick,
    TurnCancelled,
)
from personae.service.engine_host import EngineDied, EngineHost
from personae.service.outbox import Outbox
from personae.service.sessions import Session
from personae.service.turns import Turns
from personae.types import TurnId

log = logging.getLogger("personae.service")


class Conductor:
    def __init__(self, new_scheduler: Callable[[], Scheduler], host: EngineHost, turns: Turns, outbox: Outbox) -> None:
        self._new_scheduler = new_scheduler
        self._scheduler = new_scheduler()
        self._host = host
        self._turns = turns
        self._outbox = outbox

    def handle(self, event: Event) -> None:
        """Orders first, so that the next step runs while the words of the last one are being sent."""
        try:
            actions = self._scheduler.handle(event)
        except Exception as error:  # whatever it is, it is ours
            self._begin_anew(error)
            return
        self._host.send([action.order for action in actions if isinstance(action, Command)], event.at_ms)
        for action in actions:
            self._carry_out(action)

    def report(self, result: Result | EngineDied, at_ms: float) -> None:
        """What an engine said, as the scheduler's event."""
        match result:
            case StepDone():
                self.handle(StepReported(at_ms, result))
            case TurnFaulted():
                self.handle(FaultReported(at_ms, result))
            case AdapterLoaded() | AdapterRefused():
                self.handle(AdapterReported(at_ms, result))
            case EngineReady():
                self.handle(EngineStarted(at_ms, result.card.n_slots, result.card.n_ctx))
            case EngineDied():
                self.handle(EngineGone(at_ms, result.reason))
            case EngineWarm():
                pass  # the scheduler may use an engine that is ready; warm is for people

    def cancel(self, turn: TurnId, at_ms: float) -> None:
        self.handle(TurnCancelled(at_ms, turn))

    def lose(self, session: Session, at_ms: float) -> None:
        """The client is gone: its own turns end, and no others."""
        for turn in tuple(session.open.values()):
            self.cancel(turn, at_ms)

    def tick(self, at_ms: float) -> None:
        deadline_ms = self._scheduler.next_deadline_ms()
        if deadline_ms is not None and at_ms >= deadline_ms:
            self.handle(Tick(at_ms))

    def next_deadline_ms(self) -> float | None:
        return self._scheduler.next_deadline_ms()

    def statistics(self) -> dict[str, Any]:
        return self._scheduler.statistics()

    def fail_open_turns(self, code: str, message: str, hint: str) -> None:
        """End every open turn here and now, whatever the scheduler thinks of it."""
        for turn in self._turns:
            self._carry_out(FailTurn(turn.turn, code, message, hint))

    def _carry_out(self, action: Action) -> None:
        """A fault of ours in telling one client ends that turn; the others are told as if nothing had been."""
        try:
            self._tell(action)
        except Exception:
            log.exception("a client could not be told: %s", action)
            if not isinstance(action, Command):
                self._tell(FailTurn(action.turn, "internal", "The reply was lost in the service.", "Say it again; the log says more."))

    def _tell(self, action: Action) -> None:
        match action:
            case Speak() if (spoken := self._turns.speak(action)) is not None:
                session, deltas = spoken
                for delta in deltas:
                    self._outbox.send(session, delta)
            case EndTurn() if (ended := self._turns.end(action)) is not None:
                self._outbox.send(*ended)
            case FailTurn() if (failed := self._turns.fail(action)) is not None:
                self._outbox.send(*failed)

    def _begin_anew(self, error: Exception) -> None:
        log.critical("the scheduler's books are wrong; its story:\n%s", self._scheduler.story(), exc_info=error)
        self.fail_open_turns("internal", "The service lost its books and began anew.", "Say it again; the log holds what a report needs.")
        self._scheduler = self._new_scheduler()
        self._host.restart()
