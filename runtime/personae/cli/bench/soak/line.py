"""A client's line to the service, as bare as can be: ZMTP 3 over a TCP socket, written out. It decides when nothing is read or sent.

A client library keeps its connection alive, hangs up politely and sorts what comes in; the players of a soak must be able to do none of
that: to die in the middle of a frame, to fall silent without hanging up, and to count every answer, wanted or not. Spec: ZeroMQ RFC 23.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from typing import Any

import msgpack  # type: ignore[import-untyped]

# signature, version 3.1, mechanism NULL, not a server, filler
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
MORE, LONG, COMMAND = 1, 2, 4
READ_BYTES = 1 << 16


def _frame(flags: int, body: bytes) -> bytes:
    head = struct.pack(">BQ", flags | LONG, len(body)) if len(body) > 255 else struct.pack(">BB", flags, len(body))
    return head + body


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + struct.pack(">I", len(value)) + value


READY = _frame(COMMAND, b"\x05READY" + _property(b"Socket-Type", b"DEALER") + _property(b"Identity", b""))


class Line:
    """Connects when it is made. `is_open` turns False when the other side has hung up."""

    def __init__(self, endpoint: str) -> None:
        """`endpoint`: tcp://host:port. OSError when nobody listens there."""
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self.socket = socket.create_connection((host.strip("[]"), int(port)), timeout=5.0)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.is_open = True
        self._out = bytearray(GREETING + READY)
        self._in = bytearray()
        self._held: bytearray | None = bytearray()  # messages that wait for the other side's READY; None: it has come
        self._is_greeted = False
        self.push()

    def say(self, message: dict[str, Any]) -> None:
        frame = _frame(0, msgpack.packb(message))
        if self._held is not None:
            self._held += frame
            return
        self._out += frame
        self.push()

    def push(self) -> None:
        """Send what the system takes now."""
        with contextlib.suppress(BlockingIOError):
            try:
                while self._out:
                    del self._out[: self.socket.send(self._out)]
            except (ConnectionError, TimeoutError):
                self.is_open = False

    def hear(self) -> Iterator[dict[str, Any]]:
        """The messages that have come."""
        self._read()
        while (frame := self._next()) is not None:
            flags, body = frame
            if flags & COMMAND:
                self._answer(body)
            else:
                assert not flags & MORE, "the service sent a message of several frames"
                yield msgpack.unpackb(body)

    def die(self, random_byte: int) -> None:
        """Hang up without a word; now and then with half a frame under way."""
        with contextlib.suppress(OSError):
            if random_byte < 128:
                self.socket.send(_frame(0, msgpack.packb({"type": "say"}))[: 3 + random_byte % 4])
        self.close()

    def close(self) -> None:
        self.is_open = False
        self.socket.close()

    def _read(self) -> None:
        try:
            while read := self.socket.recv(READ_BYTES):
                self._in += read
        except BlockingIOError:
            return
        except (ConnectionError, TimeoutError):
            pass
        self.is_open = False

    def _next(self) -> tuple[int, bytes] | None:
        """(flags, body) of a whole frame."""
        if not self._is_greeted:
            if len(self._in) < len(GREETING):
                return None
            del self._in[: len(GREETING)]
            self._is_greeted = True
        if len(self._in) < 2:
            return None
        flags = self._in[0]
        n_head = 9 if flags & LONG else 2
        if len(self._in) < n_head:
            return None
        end = n_head + int.from_bytes(self._in[1:n_head], "big")
        if len(self._in) < end:
            return None
        body = bytes(self._in[n_head:end])
        del self._in[:end]
        return flags, body

    def _answer(self, command: bytes) -> None:
        """READY lets go what was held; a PING wants its context back."""
        if command.startswith(b"\x05READY") and self._held is not None:
            self._out += self._held
            self._held = None
        elif command.startswith(b"\x04PING"):
            self._out += _frame(COMMAND, b"\x04PONG" + command[7:])
        self.push()
