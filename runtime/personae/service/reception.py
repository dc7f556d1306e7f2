"""Decides what each request does, and that it is answered: frame in, exactly one terminal message out (a `say` gets its own later).

It knows no socket, process or thread. What it cannot do itself it asks of its neighbours: the conductor for turns, the house for everything
that concerns the service as a whole.

A frame that is no message ends its peer's session; a request that cannot be done ends in an error; a fault of ours ends in `internal`.
Each costs that peer alone.
"""

from __future__ import annotations

import logging
from typing import Any, Protocol

from personae.errors import AskedWrong, BrokeProtocol, OurBug, PersonaeError
from personae.scheduler.events import NpcGone
from personae.service.conductor import Conductor
from personae.service.npcs import Npc, Npcs
from personae.service.outbox import Outbox
from personae.service.roster import Roster
from personae.service.sessions import Session, Sessions
from personae.service.turns import Turns
from personae.wire import replies
from personae.wire.codec import decode
from personae.wire.messages import (
    Cancel,
    Characters,
    Despawn,
    Hello,
    History,
    Ping,
    Request,
    Say,
    Shutdown,
    Spawn,
    Stats,
    id_of,
    parse,
)

log = logging.getLogger("personae.service")

MAX_OPEN_SAYS = 256  # of one client; the scheduler bounds the sum of all


class House(Protocol):
    """What concerns the service as a whole."""

    def introduction(self) -> dict[str, Any]:
        """The fields of the answer to hello, session excepted."""
        ...

    def statistics(self) -> dict[str, Any]: ...

    def check_open(self) -> None:
        """Raises `shutting_down` or `engine_failed` when nothing new can be begun."""
        ...

    def stop(self) -> None: ...


class Reception:
    def __init__(
        self, house: House, sessions: Sessions, roster: Roster, npcs: Npcs, turns: Turns, conductor: Conductor, outbox: Outbox
    ) -> None:
        self._house = house
        self._sessions = sessions
        self._roster = roster
        self._npcs = npcs
        self._turns = turns
        self._conductor = conductor
        self._outbox = outbox

    def take(self, route: bytes, frame: bytes | None, at_ms: float) -> None:
        """One frame of one peer, answered. Raises nothing, whatever the frame."""
        session = self._sessions.by_route(route, at_ms)
        request_id = 0
        try:
            if frame is None:
                raise BrokeProtocol("bad_frame", "A message must be one ZeroMQ frame.", "Use a DEALER socket and send single frames.")
            message = decode(frame)
            request_id = _free_id(message, session)
            self._serve(parse(message), route, session, at_ms)
        except PersonaeError as refusal:
            self._refuse(route, request_id, refusal)
            if isinstance(refusal, BrokeProtocol) and session is not None:
                self._end(session, at_ms)
        except Exception:
            log.exception("a request failed in a way nobody thought of")
            self._refuse(route, request_id, OurBug("internal", "The request failed in a way nobody thought of.", "The log says more."))

    def forget_silent(self, at_ms: float) -> None:
        for session in self._sessions.silent(at_ms):
            log.warning("client %s fell silent: its turns end", session.client)
            self._end(session, at_ms)

    def forget_lost(self, at_ms: float) -> None:
        for session in self._outbox.take_lost():
            self._end(session, at_ms)

    def _refuse(self, route: bytes, request_id: int, refusal: PersonaeError) -> None:
        self._outbox.send_route(route, replies.error(request_id, refusal))

    def _end(self, session: Session, at_ms: float) -> None:
        self._conductor.lose(session, at_ms)  # while it is still known: a client that is only stuck hears how its turns ended
        self._sessions.forget(session)

    # --- requests -------------------------------------------------------------------------------------------------------

    def _serve(self, request: Request, route: bytes, session: Session | None, at_ms: float) -> None:
        if isinstance(request, Hello):
            self._hello(request, route, at_ms)
        elif session is None:
            raise BrokeProtocol(
                "hello_first", f"Before {request.type} comes hello.", "A connection begins, and after a break begins again, with hello."
            )
        elif isinstance(request, Say):
            self._say(request, session, at_ms)
        else:
            self._outbox.send(session, replies.done(request.id, **self._answer(request, session, at_ms)))
            if isinstance(request, Shutdown):
                self._house.stop()

    def _answer(self, request: Request, session: Session, at_ms: float) -> dict[str, Any]:
        match request:
            case Characters():
                return self._characters()
            case Spawn():
                return self._spawn(request)
            case Cancel():
                return {"cancelled": self._cancel(request, session, at_ms)}
            case History():
                return _history(self._npcs[request.npc])
            case Despawn():
                self._conductor.handle(NpcGone(at_ms, self._npcs.despawn(request.npc).id))
                return {"npc": request.npc}
            case Stats():
                return self._house.statistics()
            case Ping():
                return {"at_ms": at_ms}
            case Shutdown():
                return {}
        raise OurBug("internal", f"Nobody answers {request.type}.")

    def _hello(self, hello: Hello, route: bytes, at_ms: float) -> None:
        session, is_moved = self._sessions.greet(hello, route, at_ms)
        if is_moved:  # what was open on the old connection ends untold: request ids were that connection's
            for turn in self._turns.mute(session):
                self._conductor.cancel(turn, at_ms)
        log.info("client %s %s", session.client, "is back" if is_moved else "is here")  # a session's id is its key: not for logs
        self._outbox.send(session, replies.done(hello.id, session=session.id, **self._house.introduction()))

    def _characters(self) -> dict[str, Any]:
        characters = [
            {
                "id": character.id,
                "name": character.name,
                "adapter": character.adapter.key if character.adapter else None,
                "greeting": character.greeting,
            }
            for character in self._roster
        ]
        return {"characters": characters, "problems": self._roster.problems}

    def _spawn(self, spawn: Spawn) -> dict[str, Any]:
        self._house.check_open()
        character = self._roster[spawn.character]
        npc = self._npcs.spawn(character, spawn.npc, spawn.player)
        return {
            "npc": npc.id,
            "character": npc.character,
            "name": npc.name,
            "greeting": character.greeting,
            "adapter": npc.adapter,
        }

    def _say(self, say: Say, session: Session, at_ms: float) -> None:
        self._house.check_open()
        if len(session.open) >= MAX_OPEN_SAYS:
            raise AskedWrong("busy", f"{len(session.open)} of this client's turns are open.", "Wait for some to end.", retry_after_ms=1000)
        npc = self._npcs[say.npc]
        self._conductor.handle(self._turns.ask(say, npc, self._roster[npc.character], session, at_ms))

    def _cancel(self, cancel: Cancel, session: Session, at_ms: float) -> bool:
        """Whether there was something to cancel. A say that has ended meanwhile is no error: the two crossed on the way."""
        turn = session.open.get(cancel.turn) if cancel.turn is not None else self._npcs[str(cancel.npc)].turn
        if turn is not None:
            self._conductor.cancel(turn, at_ms)
        elif cancel.turn is not None and cancel.turn > session.last_say:
            raise AskedWrong("unknown_turn", f"This session has asked no say {cancel.turn}.", "Give the id of the say.")
        return turn is not None


def _free_id(message: dict[str, Any], session: Session | None) -> int:
    """The id that the answer goes to. One that an open say uses is refused: nobody could say which of the two an answer ends."""
    request_id = id_of(message)
    if session is not None and request_id in session.open:
        raise AskedWrong("bad_message", f"The id {request_id} belongs to a say that is still open.", "Number requests upwards.")
    return request_id


def _history(npc: Npc) -> dict[str, Any]:
    return {"npc": npc.id, "lines": [{"speaker": line.speaker, "text": line.text, "is_npc": line.is_npc} for line in npc.lines]}
