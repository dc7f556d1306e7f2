"""Decides what a frame that cannot be delivered means for its session. Knows no request.

A peer that is gone, or so slow that its queue is full, is marked as lost and gets nothing more; the service's loop then ends its turns.
That is not done here: a send fails in the middle of carrying out the scheduler's answers, and would bring forth new ones.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from personae.service.sessions import Session, Sessions
from personae.service.transport import Sent, Transport
from personae.wire.codec import encode

log = logging.getLogger("personae.service")


class Outbox:
    def __init__(self, transport: Transport, sessions: Sessions) -> None:
        self._transport = transport
        self._sessions = sessions
        self._lost: list[Session] = []

    def send(self, session: Session, message: dict[str, Any]) -> None:
        if session.is_lost:
            return
        sent = self._transport.send(session.route, encode(message))
        if sent is not Sent.QUEUED:
            log.warning("client %s is %s: its turns end", session.client, sent.value)
            session.is_lost = True
            self._lost.append(session)

    def send_route(self, route: bytes, message: dict[str, Any]) -> None:
        """To a peer without session; whether it arrives is its own affair."""
        self._transport.send(route, encode(message))

    def broadcast(self, message: dict[str, Any]) -> None:
        for session in self._sessions:
            self.send(session, message)

    def tell_of_packs(self, message: dict[str, Any]) -> None:
        """To those who have asked to hear of packs."""
        for session in self._sessions:
            if session.hears_packs:
                self.send(session, message)

    def take_lost(self) -> Iterable[Session]:
        """The sessions that could not be reached since the last call."""
        lost, self._lost = self._lost, []
        return lost
