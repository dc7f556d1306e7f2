"""One thread that owns one DEALER and drives a Session: the only file here that knows sockets, clocks and locks.

Why a thread, in the sync client too: a game that loads a level, or sits in a menu, calls nothing for a minute, and its session must not
die of silence meanwhile; several threads may read several streams; and asyncio on Windows cannot poll a ZeroMQ socket, while it
can be woken from a thread. The thread sleeps in poll; callers hand it frames and are told through a condition (sync) or
`Exchange.news` (async). It reads whether or not anybody takes: what waits is bounded by the turns that are open.

- All of the session is touched under `_news`, held for microseconds and never across a poll.
- Every connection is a new socket with an empty identity, made by this thread and closed with LINGER 0.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq

from personae_client._codec import MAX_REPLY_BYTES
from personae_client._errors import ConnectionFailed, PersonaeError, Unauthorized
from personae_client._greeting import mechanism_at
from personae_client._session import Exchange, Session, State, _nobody
from personae_client._types import Delta, Event, Message

USER = b"personae"  # PLAIN wants a user name; the service looks at the password alone
RETRY_MS, LAST_RETRY_MS = 100, 2_000  # of libzmq, while nobody listens
FAREWELL_S = 0.25  # what close may wait for the service to hear that open turns are not wanted any more
JOIN_S = 0.7
SLICE_S = 0.25  # Windows cannot interrupt a wait for a lock with Ctrl-C: wait in slices
WATCHED = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class Link:
    def __init__(self, endpoint: str, token: str | None, name: str, timeout: float) -> None:
        self.endpoint, self._token, self._timeout = endpoint, token, timeout
        self.session = Session(name, token, patience=timeout)
        self._news = threading.Condition(threading.Lock())
        self._waker: socket.socket | None = None
        self._is_leaving = False
        self._dealer: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._out: deque[bytes] = deque()  # the thread's own: taken from the session, not yet taken by libzmq
        self._thread: threading.Thread | None = None

    # --- for callers, from any thread -------------------------------------------------------------------------------

    def open(self) -> None:
        """Start, and return when the service has been greeted and checked. Raises, and leaves nothing behind, when it cannot be."""
        try:
            if self._waker is None:
                self._start()
            if not self.wait(lambda: self.session.state is State.OPEN or self.session.is_over, self._timeout):
                raise self._nobody_there()
            if self.session.failure is not None:
                raise self.session.failure.with_traceback(None)
        except BaseException:
            self.close()
            raise

    def ask(self, kind: str, fields: Message, news: Callable[[], None] = _nobody) -> Exchange:
        """Send a request, or hold it until there is a connection. Never blocks."""
        with self._news:
            exchange = self.session.ask(kind, fields, time.monotonic(), news)
        self._wake()
        return exchange

    def forget(self, exchange: Exchange) -> None:
        with self._news:
            self.session.forget(exchange)

    def take(self, exchange: Exchange) -> Delta | None:
        """The next delta that has arrived and was not taken yet."""
        with self._news:
            return exchange.deltas.popleft() if exchange.deltas else None

    def take_events(self) -> list[Event]:
        with self._news:
            taken = list(self.session.events)
            self.session.events.clear()
        return taken

    def wait(self, is_so: Callable[[], bool], timeout: float | None = None) -> bool:
        """Block until it is so, False when it is not in time. `is_so` is called with the lock held."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._news:
            while not is_so():
                left = SLICE_S if deadline is None else min(SLICE_S, deadline - time.monotonic())
                if left <= 0:
                    return False
                self._news.wait(left)
        return True

    def close(self) -> None:
        """Cancel open turns, end the thread, free the socket. Within a second, whoever is or is not there; twice is harmless."""
        self._cancel_open_turns()
        self.abandon()
        with self._news:
            self.session.close()
            self._news.notify_all()

    def abandon(self) -> None:
        """Close without a word and without the lock: for a client nobody refers to any more, and for the end of the interpreter."""
        self._is_leaving = True
        self._wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_S)

    def _cancel_open_turns(self) -> None:
        with self._news:
            if self.session.state is not State.OPEN:
                return
            now = time.monotonic()
            cancels = [self.session.ask("cancel", {"turn": turn}, now) for turn in self.session.open_turns()]
        if cancels:
            self._wake()
            self.wait(lambda: all(cancel.is_over for cancel in cancels), FAREWELL_S)

    def _nobody_there(self) -> PersonaeError:
        with self._news:
            is_loading = self.session.state is State.GREETING
            trouble = "; it may still be loading its model" if is_loading else f" ({self.session.trouble})" if self.session.trouble else ""
        message = f"No Personae service answered at {self.endpoint} within {self._timeout:g} s{trouble}."
        return ConnectionFailed("connection_failed", message, f"Start one: personae serve --port {self.endpoint.rpartition(':')[2]}")

    def _start(self) -> None:
        self._waker, woken = socket.socketpair()
        for end in (self._waker, woken):
            end.setblocking(False)
        self._thread = threading.Thread(target=self._run, args=(woken,), name=f"personae {self.endpoint}", daemon=True)
        self._thread.start()

    def _wake(self) -> None:
        if self._waker is not None:
            with contextlib.suppress(OSError):  # full: it is about to wake already; closed: nobody is left to wake
                self._waker.send(b"\0")

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self, woken: socket.socket) -> None:
        context = zmq.Context()
        try:
            while not self._is_leaving and self._step(context, woken):
                pass
        except Exception as error:
            self._end(PersonaeError("internal", f"The client failed: {error!r}.", "Please report this."))
        finally:
            self._drop_socket()
            context.destroy(linger=0)
            woken.close()
            if self._waker is not None:
                self._waker.close()
            self._end(None)

    def _end(self, failure: PersonaeError | None) -> None:
        with self._news:
            if failure is not None:
                self.session.fail(failure)
            else:
                self.session.close()
            self._news.notify_all()

    def _step(self, context: zmq.Context[Any], woken: socket.socket) -> bool:
        """Do what is due, send, sleep until there is news, take it in. False when the session is over."""
        with self._news:
            now = time.monotonic()
            self.session.tick(now)
            is_lost, may_connect = self.session.state is State.LOST, self.session.may_connect(now)
            self._out.extend(self.session.take_outgoing())
            due_s = self.session.next_due(now)
            self._news.notify_all()
            if self.session.is_over:
                return False
        if is_lost:
            self._drop_socket()
        if may_connect:
            self._connect(context)
            return True
        self._flush()
        self._poll(due_s, woken)
        self._take_in()
        return True

    def _connect(self, context: zmq.Context[Any]) -> None:
        """A new DEALER. Nothing is sent before the peer has shaken hands."""
        try:
            self._dealer = _dealer(context, self.endpoint, self._token)
            self._monitor = self._dealer.get_monitor_socket(WATCHED)
            self._dealer.connect(self.endpoint)
        except (zmq.ZMQError, TypeError, ValueError) as error:
            hint = "Endpoints look like tcp://127.0.0.1:7777."
            raise_as = ConnectionFailed("connection_failed", f"{self.endpoint!r} cannot be connected to: {error}.", hint)
            self._end(raise_as)
            return
        with self._news:
            self.session.connecting()

    def _drop_socket(self) -> None:
        self._out.clear()
        if self._dealer is not None:
            self._dealer.disable_monitor()
            self._dealer.close(linger=0)
        if self._monitor is not None:
            self._monitor.close(linger=0)
        self._dealer = self._monitor = None

    def _flush(self) -> None:
        with contextlib.suppress(zmq.Again):
            while self._out and self._dealer is not None:
                self._dealer.send(self._out[0], zmq.NOBLOCK)
                self._out.popleft()

    def _poll(self, due_s: float, woken: socket.socket) -> None:
        poller = zmq.Poller()
        poller.register(woken.fileno(), zmq.POLLIN)
        if self._dealer is not None and self._monitor is not None:
            poller.register(self._monitor, zmq.POLLIN)
            poller.register(self._dealer, zmq.POLLIN | (zmq.POLLOUT if self._out else 0))
        poller.poll(int(due_s * 1000) + 1)  # a millisecond late rather than a turn too early, for nothing
        with contextlib.suppress(BlockingIOError):
            while woken.recv(4096):
                pass

    def _take_in(self) -> None:
        """Events were read before frames and count after them: what a connection delivered before it broke is still heard."""
        events, frames = self._read_events(), self._read_frames()
        is_refused = self.session.state is State.CONNECTING and any(event != zmq.EVENT_HANDSHAKE_SUCCEEDED for event in events)
        mechanism = mechanism_at(self.endpoint) if is_refused else None  # before the lock is taken: it may block
        with self._news:
            now = time.monotonic()
            for frame in frames:
                self.session.receive(frame, now)
            for event in events:
                self._take_event(event, mechanism, now)

    def _read_events(self) -> list[int]:
        events: list[int] = []
        with contextlib.suppress(zmq.Again):
            while self._monitor is not None:
                event, _value = struct.unpack("=HI", self._monitor.recv_multipart(zmq.NOBLOCK)[0])
                events.append(event)
        return events

    def _read_frames(self) -> list[bytes]:
        """Messages of several frames are none of ours: they count as one that cannot be read."""
        frames: list[bytes] = []
        with contextlib.suppress(zmq.Again):
            while self._dealer is not None:
                parts = self._dealer.recv_multipart(zmq.NOBLOCK)
                frames.append(parts[0] if len(parts) == 1 else b"")
        return frames

    def _take_event(self, event: int, mechanism: str | None, now: float) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.session.connected(now)
        elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self.session.fail(self._unauthorized())
        elif self.session.state is not State.CONNECTING:
            self.session.lost("it was closed by the other side", now)
        elif mechanism in (None, "PLAIN" if self._token else "NULL"):
            self.session.handshake_failed(now, is_zeromq=mechanism is not None)
        else:
            self.session.fail(self._unauthorized())  # one side wants a token and the other has none

    def _unauthorized(self) -> PersonaeError:
        wants = "does not take this token" if self._token else "wants a token"
        hint = "Give the client the token the service was started with; none, if it was started without."
        return Unauthorized("unauthorized", f"The service at {self.endpoint} {wants}.", hint)


def _dealer(context: zmq.Context[Any], endpoint: str, token: str | None) -> zmq.Socket[bytes]:
    dealer: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    dealer.setsockopt(zmq.MAXMSGSIZE, MAX_REPLY_BYTES)
    dealer.setsockopt(zmq.RECONNECT_IVL, RETRY_MS)
    dealer.setsockopt(zmq.RECONNECT_IVL_MAX, LAST_RETRY_MS)
    dealer.setsockopt(zmq.IPV6, int("[" in endpoint))
    if token is not None:
        dealer.setsockopt(zmq.PLAIN_USERNAME, USER)
        dealer.setsockopt(zmq.PLAIN_PASSWORD, token.encode())
    return dealer
