"""Decides who sees to each request, and that it is answered: frame in, exactly one terminal message out (a `say` gets its own later).

It knows no socket, process or thread. What it cannot do itself it asks of its neighbours: talk.py for turns, chronicle.py for what NPCs
know, archive.py for saves, the house for everything that concerns the service as a whole.

A frame that is no message ends its peer's session; a request that cannot be done ends in an error; a fault of ours ends in `internal`.
Each costs that peer alone.
"""

from __future__ import annotations

import logging
from typing import Any, Protocol

from personae.errors import AskedWrong, BrokeProtocol, OurBug, PersonaeError
from personae.packs.character import Character
from personae.service.archive import Archive
from personae.service.chronicle import Chronicle
from personae.service.conductor import Conductor
from personae.service.keeping import Keeping
from personae.service.npcs import Npcs, greetings_of
from personae.service.outbox import Outbox
from personae.service.roster import Roster
from personae.service.sessions import Session, Sessions
from personae.service.talk import Talk
from personae.service.turns import Turns
from personae.service.voices import Adapters, files_to_wire, spoken_if_known, voice_to_wire
from personae.wire import replies
from personae.wire.codec import decode
from personae.wire.messages import (
    Cancel,
    Characters,
    Despawn,
    Hello,
    History,
    Memories,
    Observe,
    Ping,
    Request,
    Restore,
    Save,
    Say,
    Shutdown,
    Spawn,
    Stats,
    Subscribe,
    Warm,
    id_of,
    parse,
)

log = logging.getLogger("personae.service")


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
        self,
        house: House,
        sessions: Sessions,
        roster: Roster,
        npcs: Npcs,
        turns: Turns,
        conductor: Conductor,
        outbox: Outbox,
        keeping: Keeping,
        archive: Archive,
        adapters: Adapters,
    ) -> None:
        self._house = house
        self._sessions = sessions
        self._roster = roster
        self._npcs = npcs
        self._turns = turns
        self._conductor = conductor
        self._outbox = outbox
        self._keeping = keeping
        self._archive = archive
        self._adapters = adapters
        self._talk = Talk(npcs, turns, conductor, keeping)
        self._chronicle = Chronicle(npcs, keeping)

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

    def forget_flooder(self, route: bytes, at_ms: float) -> None:
        """The peer was hung up on: it sent more than is kept for one."""
        session = self._sessions.by_route(route, at_ms)
        log.warning("client %s sent more than is kept for one: it is hung up on", session.client if session else "without a session")
        if session is not None:
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
        elif (fields := self._answer(request, session, at_ms)) is not None:
            self._outbox.send(session, replies.done(request.id, **fields))
            if isinstance(request, Shutdown):
                self._house.stop()

    def _answer(self, request: Request, session: Session, at_ms: float) -> dict[str, Any] | None:
        """The fields of the `done`; None: it comes later."""
        match request:
            case Say() | Warm():
                self._begin_turn(request, session, at_ms)
                return None
            case Cancel():
                is_cancelled, n_cut = self._talk.cancel(request, session, at_ms)
                return {"cancelled": is_cancelled, "cut": n_cut}
            case Spawn():
                return self._spawn(request)
            case Despawn():
                return self._despawn(request, at_ms)
            case Observe():
                return self._chronicle.observe(request)
            case History():
                return self._history(request, at_ms)
            case Memories():
                return self._chronicle.memories(request)
            case Save():
                return self._archive.save(request, session, at_ms)
            case Restore():
                self._house.check_open()
                return self._archive.restore(request, session, at_ms)
        return self._answer_for_all(request, session, at_ms)

    def _answer_for_all(self, request: Request, session: Session, at_ms: float) -> dict[str, Any]:
        """What concerns no NPC."""
        match request:
            case Subscribe():
                session.hears_packs = session.hears_packs if request.packs is None else request.packs
                return {"packs": session.hears_packs}
            case Characters():
                return self._characters()
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
            self._archive.mute(session)
            for turn in reversed(self._turns.mute(session)):
                self._conductor.cancel(turn, at_ms)
        log.info("client %s %s", session.client, "is back" if is_moved else "is here")  # a session's id is its key: not for logs
        self._outbox.send(session, replies.done(hello.id, session=session.id, **self._house.introduction()))

    def _characters(self) -> dict[str, Any]:
        return {"characters": [self._listed(character) for character in self._roster], "problems": self._roster.problems}

    def _listed(self, character: Character) -> dict[str, Any]:
        adapters = files_to_wire(character.adapters, self._adapters)
        return {
            "id": character.id,
            "name": character.name,
            "adapter": adapters[0]["adapter"] if adapters else None,
            "greeting": character.greeting,
            "greetings": len(greetings_of(character)),
            "adapters": adapters,
            "moods": list(character.moods),
            "description": character.description,
            "author": character.author,
            "licence": character.licence,
            "tags": list(character.tags),
            "portrait": character.portrait,
            "pack": character.pack.name.encode("utf-8", "replace").decode(),
        }

    def _spawn(self, spawn: Spawn) -> dict[str, Any]:
        self._house.check_open()
        character = self._roster[spawn.character]
        greeting = _greeting_of(character, spawn.greeting)
        voice = spoken_if_known(character, self._adapters).voice
        adapter = voice[0].key if voice else None
        npc = self._npcs.spawn(character, spawn.npc, spawn.player, greeting=spawn.greeting or 0, adapter=adapter)
        self._keeping.keep(npc)
        return {
            "npc": npc.id,
            "character": npc.character,
            "name": npc.name,
            "greeting": greeting,
            "adapter": adapter,
            "voice": voice_to_wire(voice),
        }

    def _despawn(self, despawn: Despawn, at_ms: float) -> dict[str, Any]:
        npc = self._npcs[despawn.npc]
        self._conductor.dismiss(npc, at_ms)
        self._npcs.despawn(npc.id)
        self._keeping.forget(npc.id)
        return {"npc": npc.id}

    def _begin_turn(self, request: Say | Warm, session: Session, at_ms: float) -> None:
        self._house.check_open()
        if isinstance(request, Say):
            self._talk.say(request, session, at_ms)
        else:
            self._talk.warm(request, session, at_ms)

    def _history(self, history: History, at_ms: float) -> dict[str, Any]:
        if history.is_change:
            self._chronicle.check(history)  # a refusal ends nobody's being prepared
            self._talk.give_way(self._npcs[history.npc], at_ms)
        return self._chronicle.history(history)


def _greeting_of(character: Character, number: int | None) -> str:
    """AskedWrong `unknown_greeting`; "" where it has none and none was asked for."""
    greetings = greetings_of(character)
    if number is None:
        return greetings[0] if greetings else ""
    if number >= len(greetings):
        there_are = f"There are {len(greetings)}, counted from 0." if greetings else "It has none."
        raise AskedWrong("unknown_greeting", f"{character.id!r} has no greeting {number}.", there_are)
    return greetings[number]


def _free_id(message: dict[str, Any], session: Session | None) -> int:
    """The id that the answer goes to. One that an open say uses is refused: nobody could say which of the two an answer ends."""
    request_id = id_of(message)
    if session is not None and (request_id in session.open or request_id in session.pending):
        raise AskedWrong("bad_message", f"The id {request_id} belongs to a request that is still open.", "Number requests upwards.")
    return request_id
