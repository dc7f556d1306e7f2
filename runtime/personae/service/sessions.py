"""Decides who is a client: who may enter, by which route it is reached, and when its silence means that it is gone.

It knows no socket (a route is bytes), reads no clock (the time is given), and holds nothing that an NPC needs: NPCs outlive sessions.

A session is made by `hello` and found by the route of the frame. libzmq gives every connection a new route, so a client whose connection
broke comes back by another one and says which session it was; the old route is then forgotten.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from personae.errors import AskedWrong, BrokeProtocol
from personae.types import NpcId, TurnId
from personae.wire import PROTOCOL_VERSION
from personae.wire.messages import Hello

SILENT_HEARTBEATS = 3
MOST_SPOKEN = 256  # a client that says how much was heard of an older reply than that is answered that there is nothing to cut


@dataclass(slots=True, eq=False)
class Session:
    id: str
    client: str
    route: bytes
    heard_ms: float
    open: dict[int, TurnId] = field(default_factory=dict)  # request id of each open say or warm -> its turn
    pending: set[int] = field(default_factory=set)  # request ids of other requests whose answer is still to come
    spoken: OrderedDict[int, tuple[NpcId, TurnId]] = field(default_factory=OrderedDict)  # of the newest says that have ended
    hears_packs: bool = False  # it has subscribed to what becomes of packs
    is_lost: bool = False  # a frame could not be sent: nothing more is, and the session is about to be forgotten
    last_say: int = 0  # the highest request id of a say so far: tells an ended turn from one that never was

    def note_spoken(self, request: int, npc: NpcId, turn: TurnId) -> None:
        self.spoken[request] = npc, turn
        while len(self.spoken) > MOST_SPOKEN:
            self.spoken.popitem(last=False)


class Sessions:
    def __init__(self, *, token: str | None, heartbeat_ms: int, max_clients: int) -> None:
        self._token = token
        self._silence_ms = heartbeat_ms * SILENT_HEARTBEATS
        self._max_clients = max_clients
        self._by_route: dict[bytes, Session] = {}
        self._by_id: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._by_id.values()))

    def by_route(self, route: bytes, at_ms: float) -> Session | None:
        """The session a frame came from; whatever the frame holds, its client lives."""
        session = self._by_route.get(route)
        if session is not None:
            session.heard_ms = at_ms
        return session

    def greet(self, hello: Hello, route: bytes, at_ms: float) -> tuple[Session, bool]:
        """The session for a hello, and whether it was taken over from another connection.

        A session id that is not known (the service was started again, or the silence was too long) gives a new session.
        """
        self._check(hello)
        known = self._by_route.get(route)
        wanted = self._by_id.get(hello.session or "")
        if wanted is not None and wanted is not known:
            self._move(wanted, known, route)
        session = wanted or known or self._admit(hello, route, at_ms)
        session.client, session.heard_ms = hello.client, at_ms
        return session, wanted is not None and wanted is not known

    def forget(self, session: Session) -> None:
        self._by_id.pop(session.id, None)
        self._by_route.pop(session.route, None)

    def silent(self, at_ms: float) -> list[Session]:
        """Those from whom nothing was heard for three heartbeats."""
        return [session for session in self._by_id.values() if at_ms - session.heard_ms >= self._silence_ms]

    def next_deadline_ms(self) -> float | None:
        """When the next session would count as silent."""
        return min((session.heard_ms + self._silence_ms for session in self._by_id.values()), default=None)

    def _check(self, hello: Hello) -> None:
        if hello.v != PROTOCOL_VERSION:
            raise BrokeProtocol(
                "unsupported_version",
                f"Protocol {hello.v} is not spoken here.",
                f"Use a client of protocol {PROTOCOL_VERSION}, or a service of the client's age.",
                supported=[PROTOCOL_VERSION],
            )
        # With a token the socket has let nobody in without it; a client that says another one believes that it talks to another service.
        if hello.token is not None and not self._is_token(hello.token):
            raise BrokeProtocol(
                "unauthorized", "The token is not this service's.", "Give the client the token the service was started with."
            )

    def _is_token(self, given: str) -> bool:
        return self._token is None or hmac.compare_digest(given.encode(), self._token.encode())

    def _admit(self, hello: Hello, route: bytes, at_ms: float) -> Session:
        if len(self._by_id) >= self._max_clients:
            raise AskedWrong(
                "too_many_clients",
                f"{self._max_clients} clients are connected already.",
                "Close one, or start the service with room for more.",
            )
        session = Session(secrets.token_hex(8), hello.client, route, at_ms)
        self._by_id[session.id] = self._by_route[route] = session
        return session

    def _move(self, session: Session, displaced: Session | None, route: bytes) -> None:
        if displaced is not None:
            raise AskedWrong("bad_request", "This connection has a session already.", "Say hello once for each connection.")
        del self._by_route[session.route]
        session.route = route
        self._by_route[route] = session
