"""Decides how frames come in and go out: one ROUTER on TCP, who may shake hands, what a slow or a gone peer costs.

It refuses to know what a frame means. This is the only file that imports zmq.

Rules that always hold
- Nothing blocks but `wait`. A send reaches a bounded queue or says why it did not.
- No peer is ever held back: libzmq 4.3.5 aborts the whole process (`Assertion failed: !_io_error`) when one that it holds back resets its
  connection and a PING, or the time for one, is due before its input is read on. Every `wait` takes in what is there, and who sends more
  than the inbox keeps for one peer is hung up on.
- A peer that has not finished a ZMTP 3 handshake which the ZAP handler here agreed to gets no byte through. Without ZAP_DOMAIN a NULL
  ROUTER takes ZMTP 1.0 frames without any handshake, and a web page can shape a POST like one.
- Without a token only loopback is served; with one every peer must bring it as PLAIN password, and the socket refuses NULL by itself.
- Only the owner's thread touches zmq. `wake` may be called from any thread and from a signal handler: it writes one byte to a plain
  socket pair which `wait` also polls. (An inproc PAIR would belong to a single waking thread.)
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import math
import os
import socket
from collections.abc import Iterator
from enum import Enum

import zmq

from personae.errors import AskedWrong, WorldFailed
from personae.service.inbox import Inbox

HANDSHAKE_MS = 3_000  # a peer that connects and says nothing is dropped after this
ZMTP_HEARTBEAT_MS = 5_000
ZMTP_TIMEOUT_MS = 15_000  # a game at a breakpoint is silent, but its libzmq thread still answers; a dead machine does not
SEND_QUEUE = 1_000  # frames that may wait for one peer; then it counts as slow
RECEIVE_QUEUE = 0  # no bound of libzmq's (see above): inbox.py has ours
FRAMES_TAKEN_IN = 1_024  # by one `wait`: some milliseconds
SEND_BUFFER = 256 * 1024  # bytes of the kernel for one peer: loopback would otherwise hide a stalled reader behind megabytes
FAREWELL_MS = 250  # what `close` may wait for last frames; LINGER 0 would drop the terminal messages of a shutdown
ZAP_ENDPOINT = "inproc://zeromq.zap.01"  # RFC 27
ZAP_DOMAIN = b"personae"


class Sent(Enum):
    """What became of a frame."""

    QUEUED = "queued"
    GONE = "gone"  # nobody there by that route
    SLOW = "slow"  # its queue is full


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Transport:
    """A bound ROUTER. Routes are libzmq's own peer ids: bytes that mean one connection and die with it."""

    def __init__(self, host: str, port: int, *, token: str | None, max_frame: int, flood_notice: bytes = b"") -> None:
        """`flood_notice`: the last frame to a peer that is hung up on because it sends more than is kept for it."""
        if token is None and not is_loopback(host):
            raise AskedWrong(
                "bad_arguments", f"{host} can be reached from other machines.", "Set a token (--token), or serve on 127.0.0.1."
            )
        self._token = token
        self._flood_notice = flood_notice
        self._inbox = Inbox()
        self._floods: list[bytes] = []
        self._is_open = False
        self._is_taken_in = True
        self._waker, self._woken = _wake_pair()
        self._context = zmq.Context()
        self._zap = self._context.socket(zmq.REP)
        self._zap.bind(ZAP_ENDPOINT)
        self._router = self._context.socket(zmq.ROUTER)
        _configure(self._router, token is not None, max_frame)
        try:
            self.endpoint = _bind(self._router, host, port)
        except BaseException:
            self.close()
            raise
        self._poller = zmq.Poller()
        self._poller.register(self._zap, zmq.POLLIN)
        self._poller.register(self._woken.fileno(), zmq.POLLIN)
        self._poller.register(self._router, zmq.POLLIN)

    def open(self) -> None:
        """From now on `receive` hands out frames. Until then peers may connect and what they send is kept for them."""
        self._is_open = True

    @property
    def is_drained(self) -> bool:
        """Whether all that was there at the last `wait` has been received."""
        return self._is_taken_in and not self._inbox

    def wait(self, timeout_ms: float | None) -> None:
        """Sleep until a frame, a wake-up or the time is there; None: no time limit. Answers handshakes by the way."""
        if self._is_open and self._inbox:
            timeout_ms = 0.0
        ready = dict(self._poller.poll(None if timeout_ms is None else math.ceil(max(0.0, timeout_ms))))
        if self._woken.fileno() in ready:
            self._drain_wakes()
        if self._zap in ready:
            self._answer_handshakes()
        if self._router in ready:
            self._take_in()

    def wake(self) -> None:
        """Let `wait` return. From any thread, any number of times; a full pair means that it is about to wake already."""
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")

    def receive(self, limit: int) -> Iterator[tuple[bytes, bytes | None]]:
        """Up to `limit` of the frames that have come, each with its route, one of each peer in turn. None: a message of more or fewer
        frames than one."""
        for _ in range(limit if self._is_open else 0):
            if not self._inbox:
                return
            yield self._inbox.take()

    def take_floods(self) -> list[bytes]:
        """The routes that were hung up on since the last call; no frame of them is received any more."""
        floods, self._floods = self._floods, []
        return floods

    def send(self, route: bytes, frame: bytes) -> Sent:
        try:
            self._router.send_multipart((route, frame), zmq.NOBLOCK)
        except zmq.Again:
            return Sent.SLOW
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return Sent.GONE
            raise
        return Sent.QUEUED

    def close(self) -> None:
        """Flush for a moment, then let go of the port. A second call is harmless."""
        self._router.close(linger=FAREWELL_MS)
        self._zap.close(linger=0)
        self._context.term()
        self._waker.close()
        self._woken.close()

    def _take_in(self) -> None:
        for _ in range(FRAMES_TAKEN_IN):
            try:
                route = self._router.recv(zmq.NOBLOCK)
            except zmq.Again:
                self._is_taken_in = True
                return
            if self._inbox.is_flooder(route) or self._inbox.is_full(route):
                self._turn_away(route)
            else:
                frames = self._router.recv_multipart()  # whole messages only: the rest is there
                self._inbox.put(route, frames[0] if len(frames) == 1 else None)
        self._is_taken_in = False

    def _turn_away(self, route: bytes) -> None:
        """Throw its message away, and hang up the first time: a peer written for it sends fifty times faster than we can read."""
        frames = self._router.recv_multipart(copy=False)
        if self._inbox.is_flooder(route):
            return
        self._inbox.shut(route)
        self._floods.append(route)
        self._router.getsockopt(zmq.EVENTS)  # hear now of peers that are gone: the number of their socket may be another's already
        if self.send(route, self._flood_notice) is not Sent.GONE:
            _hang_up(frames[0])

    def _drain_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass

    def _answer_handshakes(self) -> None:
        while True:
            try:
                request = self._zap.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._zap.send_multipart(zap_reply(request, self._token))


def zap_reply(request: list[bytes], token: str | None) -> list[bytes]:
    """RFC 27: version, id, domain, address, identity, mechanism, credentials -> version, id, status, text, user, metadata."""
    version, request_id, domain, address, _identity, mechanism, *credentials = request
    is_welcome = version == b"1.0" and domain == ZAP_DOMAIN and _may_enter(token, address, mechanism, credentials)
    status, text = (b"200", b"OK") if is_welcome else (b"400", b"token missing or wrong")
    return [version, request_id, status, text, b"", b""]


def _may_enter(token: str | None, address: bytes, mechanism: bytes, credentials: list[bytes]) -> bool:
    if token is None:
        return mechanism == b"NULL" and is_loopback(address.decode("ascii", "replace"))
    return mechanism == b"PLAIN" and len(credentials) == 2 and hmac.compare_digest(credentials[1], token.encode())


def _configure(router: zmq.Socket[bytes], has_token: bool, max_frame: int) -> None:
    router.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
    router.setsockopt(zmq.PLAIN_SERVER, int(has_token))
    router.setsockopt(zmq.MAXMSGSIZE, max_frame)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.setsockopt(zmq.LINGER, 0)
    router.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    router.setsockopt(zmq.HEARTBEAT_IVL, ZMTP_HEARTBEAT_MS)
    router.setsockopt(zmq.HEARTBEAT_TIMEOUT, ZMTP_TIMEOUT_MS)
    router.setsockopt(zmq.HEARTBEAT_TTL, ZMTP_TIMEOUT_MS)
    router.setsockopt(zmq.SNDHWM, SEND_QUEUE)
    router.setsockopt(zmq.SNDBUF, SEND_BUFFER)
    router.setsockopt(zmq.RCVHWM, RECEIVE_QUEUE)


def _hang_up(frame: zmq.Frame) -> None:
    """On the connection that brought it. libzmq has no call for that, but sees an end like any other when the socket is shut down."""
    with contextlib.suppress(OSError, zmq.ZMQError):
        connection = socket.socket(fileno=int(frame.get(zmq.SRCFD)))
        try:
            connection.shutdown(socket.SHUT_RDWR)
        finally:
            connection.detach()  # it stays libzmq's to close


def _bind(router: zmq.Socket[bytes], host: str, port: int) -> str:
    address = f"[{host}]" if ":" in host else "127.0.0.1" if host == "localhost" else host
    router.setsockopt(zmq.IPV6, int(":" in host))
    try:
        router.bind(f"tcp://{address}:{port or '*'}")
    except zmq.ZMQError as error:
        if error.errno == zmq.EADDRINUSE:
            raise WorldFailed(
                "endpoint_taken",
                f"{host}:{port} is taken by another program.",
                "End that program, or choose another port (--port 0 picks a free one).",
            ) from error
        raise AskedWrong(
            "bad_arguments", f"Cannot serve on {host}:{port}: {os.strerror(error.errno or 0)}.", "Give an address of this machine."
        ) from error
    return router.getsockopt_string(zmq.LAST_ENDPOINT)


def _wake_pair() -> tuple[socket.socket, socket.socket]:
    waker, woken = socket.socketpair()
    waker.setblocking(False)
    woken.setblocking(False)
    return waker, woken
