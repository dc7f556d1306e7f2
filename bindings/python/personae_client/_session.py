"""The protocol without I/O: builds and numbers requests, routes what comes back, keeps the NPCs, notices silence. It decides what is due;
it knows no socket, reads no clock (`now` is seconds of any steady clock) and takes no lock. `_link.py` drives it.

    LOST ──may_connect──▶ CONNECTING ──connected──▶ GREETING ──welcome──▶ OPEN
     ▲                        │                        │                   │
     └────────────────────────┴───────── lost ─────────┴───────────────────┘
    any ── fail ──▶ FAILED (for good: wrong server, wrong token)      any ── close ──▶ CLOSED

Rules that always hold
- No request leaves before the answer to hello has been checked: `server` must be ours and `v` ours, or nothing is ever sent.
- Every exchange ends exactly once: by its `done`, its `error`, or an error made here.
- What was sent when the connection broke ends with ConnectionLost; what was still held back goes out over the next one, if that
  comes within `patience` seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from personae_client import _codec
from personae_client._errors import Closed, ConnectionLost, PersonaeError, UnsupportedVersion, WrongServer, from_wire
from personae_client._types import Delta, Event, Message, NpcCard, Welcome, int_of, maps_of, text_of

PROTOCOL_VERSION = 1
SERVER_NAME = "personae"
GREETING_S = 15.0  # a service that is loading its model answers hello late; one that is stuck never does
FIRST_RETRY_S, LAST_RETRY_S = 0.1, 2.0
MAX_HANG_UPS = 3
PING_SHARE = 0.5  # of a heartbeat without a frame: a late thread then does not cost the session
SILENT_HEARTBEATS = 2  # after an unanswered ping, that is three heartbeats at the most after the last frame
TURNS = ("say", "warm")  # what is answered later, and can be cancelled until then
MAX_EVENTS = 256  # kept for a game that never asks for them; a folder of packs that is dropped in brings one for each
PASSING = {
    "busy",
    "shutting_down",
    "too_many_clients",
    "engine_lost",
    "internal",
    "hello_first",
}  # refusals of a second hello worth a retry


class State(Enum):
    LOST = "lost"  # no socket; the next one is due at `retry_at`
    CONNECTING = "connecting"
    GREETING = "greeting"
    OPEN = "open"
    FAILED = "failed"
    CLOSED = "closed"


def _nobody() -> None:
    pass


@dataclass(slots=True, eq=False)
class Exchange:
    """One request and what came back so far. `news` is called after every change, on whichever thread feeds the session."""

    id: int
    kind: str
    asked_at: float
    news: Callable[[], None] = _nobody
    deltas: deque[Delta] = field(default_factory=deque)  # arrived, not yet taken
    done: Message | None = None
    failure: PersonaeError | None = None

    @property
    def is_over(self) -> bool:
        return self.done is not None or self.failure is not None

    def result(self) -> Message:
        """The `done` of an exchange that is over; raises its failure."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)  # it may be raised many times
        assert self.done is not None
        return self.done


class Session:
    def __init__(self, client: str, token: str | None, patience: float) -> None:
        self._client, self._token, self._patience = client, token, patience
        self.state = State.LOST
        self.failure: PersonaeError | None = None  # why it is FAILED or CLOSED
        self.welcome: Welcome | None = None
        self.npcs: dict[str, NpcCard] = {}
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self.is_warm = False
        self.hears_packs = False  # what was last asked for, and granted
        self.trouble = ""  # why the last connection did not hold
        self.retry_at = 0.0
        self._retries = 0
        self._hang_ups = 0  # handshakes that failed
        self._last_id = 0
        self._hello_id = 0
        self._open: dict[int, Exchange] = {}
        self._held: dict[int, bytes] = {}  # frames of open exchanges that wait for the welcome, in order
        self._out: list[bytes] = []
        self._last_sent = self._last_heard = self._greeted_at = 0.0
        self._pinged_at: float | None = None  # since when a ping has been without any answer

    @property
    def is_over(self) -> bool:
        return self.state in (State.FAILED, State.CLOSED)

    # --- asking ---------------------------------------------------------------------------------------------------

    def ask(self, kind: str, fields: Message, now: float, news: Callable[[], None] = _nobody) -> Exchange:
        """Number and queue a request. Fields that are None are left out. Raises when there can be no answer, or they cannot be sent."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)  # it may be raised many times
        exchange = Exchange(self._next_id(), kind, now, news)
        frame = self._frame(kind, exchange.id, fields)
        self._open[exchange.id] = exchange
        if self.state is State.OPEN:
            self._send(frame, now)
        else:
            self._held[exchange.id] = frame
        return exchange

    def forget(self, exchange: Exchange) -> None:
        """Nobody waits any more: a late answer will be ignored, an unsent request stays unsent."""
        self._open.pop(exchange.id, None)
        self._held.pop(exchange.id, None)

    def open_turns(self) -> list[int]:
        return [id for id, exchange in self._open.items() if exchange.kind in TURNS and id not in self._held]

    def take_outgoing(self) -> list[bytes]:
        taken, self._out = self._out, []
        return taken

    # --- what the transport reports ---------------------------------------------------------------------------------

    def may_connect(self, now: float) -> bool:
        return self.state is State.LOST and now >= self.retry_at

    def connecting(self) -> None:
        self.state = State.CONNECTING

    def connected(self, now: float) -> None:
        """A peer has shaken hands: greet it."""
        if self.state is not State.CONNECTING:
            return
        self.state, self._greeted_at, self._hello_id = State.GREETING, now, self._next_id()
        known = self.welcome.session if self.welcome else None
        fields = {"v": PROTOCOL_VERSION, "client": self._client, "token": self._token, "session": known or None}
        self._send(self._frame("hello", self._hello_id, fields), now)

    def handshake_failed(self, now: float, *, is_zeromq: bool) -> None:
        """A peer took the connection and hung up. A service that is ending does so once; a program of another kind every time."""
        if not is_zeromq:
            self._hang_ups += 1
        if self.welcome is None and self._hang_ups >= MAX_HANG_UPS:
            self._refuse_peer("it does not speak ZeroMQ")
        else:
            self.lost("the handshake failed", now)

    def lost(self, reason: str, now: float) -> None:
        """The connection is of no use any more. What was sent over it ends; the next one is due after a pause."""
        if self.is_over or self.state is State.LOST:
            return
        if self.state is State.OPEN:
            self.events.append(Event("connection_lost", {"reason": reason}))
        self.state, self.trouble = State.LOST, reason
        self.retry_at = now + min(LAST_RETRY_S, FIRST_RETRY_S * 2.0**self._retries)
        self._retries = min(self._retries + 1, 10)
        self._pinged_at = None
        self._out.clear()
        for id in [id for id in self._open if id not in self._held]:
            self._fail(id, ConnectionLost("connection_lost", f"The connection was lost: {reason}.", "Ask again; it is being made anew."))

    def fail(self, failure: PersonaeError) -> None:
        self._end(State.FAILED, failure)

    def close(self) -> None:
        self._end(State.CLOSED, Closed("client_closed", "The client was closed."))

    # --- time -----------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Do what is due. Feed it the frames that are there before, or a pause of the whole program looks like silence."""
        if self.state is State.GREETING and now >= self._greeting_due():
            self.lost("it did not answer hello", now)
        elif self.state is State.OPEN:
            self._keep_alive(now)
        for id in [id for id in self._held if now >= self._open[id].asked_at + self._patience]:
            reason = self.trouble or "nobody answers"
            self._fail(id, ConnectionLost("connection_lost", f"There was no connection to send this over: {reason}.", "Ask again."))

    def next_due(self, now: float) -> float:
        """Seconds until `tick` or `may_connect` has something to do; 0 when it has now."""
        due = [self._open[id].asked_at + self._patience for id in self._held]
        if self.state is State.LOST:
            due.append(self.retry_at)
        elif self.state is State.GREETING:
            due.append(self._greeting_due())
        elif self.state is State.OPEN:
            due.append(self._ping_due() if self._pinged_at is None else self._pinged_at + self._heartbeat * SILENT_HEARTBEATS)
        return max(0.0, min(due, default=now + 60.0) - now)

    @property
    def _heartbeat(self) -> float:
        stated = self.welcome.heartbeat_ms if self.welcome else 0
        return stated / 1000 if stated > 0 else 5.0

    def _greeting_due(self) -> float:
        """The first time the caller's own timeout decides: another hello would only make another session."""
        return self._greeted_at + (GREETING_S if self.welcome else 3600.0)

    def _ping_due(self) -> float:
        return min(self._last_sent, self._last_heard) + self._heartbeat * PING_SHARE

    def _keep_alive(self, now: float) -> None:
        if self._pinged_at is not None:
            if now >= self._pinged_at + self._heartbeat * SILENT_HEARTBEATS:
                self.lost("the service fell silent", now)
        elif now >= self._ping_due():
            self._pinged_at = now
            self._send(self._frame("ping", self._next_id(), {}), now)

    # --- what comes in --------------------------------------------------------------------------------------------

    def receive(self, frame: bytes, now: float) -> None:
        """One frame from the peer. Whatever it holds, this does not raise."""
        self._last_heard, self._pinged_at = now, None
        try:
            message = _codec.decode(frame)
        except _codec.BadFrame as error:
            if self.state is State.GREETING:
                self._refuse_peer(f"it answered hello with bytes that are no message ({error})")
            else:
                self.lost(f"the service sent bytes that are no message ({error})", now)
            return
        if self.state is State.GREETING:
            self._judge(message, now)
        elif self.state is State.OPEN:
            self._route(message, now)

    def _judge(self, message: Message, now: float) -> None:
        """The answer to hello: is this a Personae service that speaks our version?"""
        kind, is_answer = message.get("type"), message.get("id") == self._hello_id
        if kind == "done" and is_answer and text_of(message, "server").startswith(SERVER_NAME):
            self._welcomed(Welcome.of(message), now)
        elif kind == "error" and (is_answer or message.get("id") == 0):
            error = from_wire(message)
            if self.welcome is not None and error.code in PASSING:
                self.lost(error.message.rstrip("."), now)
            else:
                self.fail(error)
        elif kind != "event":
            self._refuse_peer(f"it answered hello as {text_of(message, 'server') or 'somebody else'!r}")

    def _welcomed(self, welcome: Welcome, now: float) -> None:
        if welcome.v != PROTOCOL_VERSION:
            hint = "Update this client, or the service."
            message = f"The service speaks protocol {welcome.v}, this client {PROTOCOL_VERSION}."
            self.fail(UnsupportedVersion("unsupported_version", message, hint))
            return
        is_same = self.welcome is not None and welcome.session == self.welcome.session
        if self.welcome is not None:
            self.events.append(Event("reconnected", {"same_session": is_same}))
        self.state, self.welcome, self.is_warm = State.OPEN, welcome, welcome.state == "warm"
        self._retries, self.trouble = 0, ""
        if self.hears_packs and not is_same:
            self._send(self._frame("subscribe", self._next_id(), {"packs": True}), now)
        held, self._held = self._held, {}
        for frame in held.values():
            self._send(frame, now)

    def _refuse_peer(self, what: str) -> None:
        self.fail(
            WrongServer("wrong_server", f"This is no Personae service: {what}.", "Another program owns the port; check the endpoint.")
        )

    def _route(self, message: Message, now: float) -> None:
        kind = message.get("type")
        if kind == "event":
            self._note_event(message)
        elif kind == "error" and message.get("code") == "hello_first":
            self.lost("the service has forgotten this session", now)
        elif kind == "error" and message.get("id") == 0:
            self.events.append(Event("error", {key: value for key, value in message.items() if key not in ("type", "id")}))
        elif (exchange := self._open.get(int_of(message, "id"))) is not None:
            self._answer(exchange, message)

    def _answer(self, exchange: Exchange, message: Message) -> None:
        kind = message.get("type")
        if kind == "delta":
            exchange.deltas.append(Delta.of(message))
            exchange.news()
        elif kind == "done":
            del self._open[exchange.id]
            self._learn(exchange.kind, message)
            exchange.done = message
            exchange.news()
        elif kind == "error":
            self._fail(exchange.id, from_wire(message))

    def _note_event(self, message: Message) -> None:
        name = text_of(message, "event")
        if name in ("warm", "engine_lost"):
            self.is_warm = name == "warm"
        self.events.append(Event(name, {key: value for key, value in message.items() if key not in ("type", "event")}))

    def _learn(self, kind: str, message: Message) -> None:
        npc = text_of(message, "npc")
        if kind == "spawn" and npc:
            self.npcs[npc] = NpcCard.of(message)
        elif kind == "despawn":
            self.npcs.pop(npc, None)
        elif kind == "subscribe":
            self.hears_packs = message.get("packs") is True
        elif kind == "restore":
            for one in maps_of(message, "restored"):
                self.npcs.setdefault(text_of(one, "npc"), NpcCard(text_of(one, "npc"), text_of(one, "character")))

    # --- books ----------------------------------------------------------------------------------------------------

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _frame(self, kind: str, id: int, fields: Message) -> bytes:
        message: dict[str, Any] = {"type": kind, "id": id, **{key: value for key, value in fields.items() if value is not None}}
        try:
            frame = _codec.encode(message)
        except (TypeError, ValueError, OverflowError) as error:
            raise PersonaeError(
                "bad_request", f"This {kind} cannot be sent: {error}.", "Text must be valid Unicode, numbers plain."
            ) from error
        limit = int_of(self.welcome.limits, "frame_bytes") if self.welcome else 0
        if len(frame) > (limit or 1 << 20):
            raise PersonaeError("too_large", f"This {kind} has {len(frame)} bytes; {limit or 1 << 20} are allowed.", "Send less at once.")
        return frame

    def _send(self, frame: bytes, now: float) -> None:
        self._out.append(frame)
        self._last_sent = now

    def _fail(self, id: int, failure: PersonaeError) -> None:
        self._held.pop(id, None)
        exchange = self._open.pop(id)
        exchange.failure = failure
        exchange.news()

    def _end(self, state: State, failure: PersonaeError) -> None:
        if self.is_over:
            return
        self.state, self.failure = state, failure
        self._out.clear()
        for id in list(self._open):
            self._fail(id, failure)
