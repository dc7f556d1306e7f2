"""Looks at who is behind an endpoint when a handshake fails: libzmq tells "it hung up", and that may be a web server or a missing token.

Which of both ends notices first is a race between two libzmqs, so their events cannot be relied on. A ZMTP 3 peer, though, says its whole
greeting, mechanism included, as soon as it has read eleven bytes of ours, and judges only after the other fifty-three (ZMTP 3.1, RFC 37).
"""

from __future__ import annotations

import contextlib
import socket

PATIENCE_S = 0.5
OPENING = b"\xff" + bytes(8) + b"\x7f" + b"\x03"  # signature, major version
MECHANISM = slice(12, 32)


def mechanism_at(endpoint: str) -> str | None:
    """What a ZMTP 3 peer there wants: "NULL", "PLAIN", ...; None when there is no such peer. Blocks for about half a second at the most."""
    greeting = b""
    with contextlib.suppress(OSError, ValueError):
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), PATIENCE_S) as peer:
            peer.sendall(OPENING)
            while len(greeting) < MECHANISM.stop and (part := peer.recv(64)):
                greeting += part
    if len(greeting) < MECHANISM.stop or greeting[0] != 0xFF or greeting[9] != 0x7F:
        return None
    return greeting[MECHANISM].rstrip(b"\0").decode("ascii", "replace")
