"""Decides what it means that an NPC could not be written down: play goes on. Knows no folder and no request.

A full disk must not silence anybody. The first failure is logged and told to every client; what could not be kept is tried again with the
next NPC that can.
"""

from __future__ import annotations

import logging

from personae.errors import WorldFailed
from personae.service.npcs import Npc
from personae.service.outbox import Outbox
from personae.service.state import Keeper
from personae.types import NpcId
from personae.wire import replies

log = logging.getLogger("personae.service")


class Keeping:
    """A Keeper that never fails."""

    def __init__(self, keeper: Keeper, outbox: Outbox) -> None:
        self._keeper = keeper
        self._outbox = outbox
        self._behind: dict[NpcId, Npc] = {}  # changed since they were last kept
        self._is_failing = False

    def keep(self, npc: Npc) -> None:
        """Before the client hears of the change."""
        self._behind[npc.id] = npc
        try:
            while self._behind:
                self._keeper.keep(npc)
                del self._behind[npc.id]
                npc = next(iter(self._behind.values()), npc)
            self._is_failing = False
        except Exception as failure:
            self._report(failure)

    def forget(self, npc_id: NpcId) -> None:
        self._behind.pop(npc_id, None)
        try:
            self._keeper.forget(npc_id)
        except Exception as failure:
            self._report(failure)

    def _report(self, failure: Exception) -> None:
        """Whatever it is: a turn that has ended must be told as ended."""
        if not self._is_failing:
            log.error("%s", failure, exc_info=None if isinstance(failure, WorldFailed) else failure)
            self._outbox.broadcast(replies.event("state_failed", message=str(failure)))
        self._is_failing = True
