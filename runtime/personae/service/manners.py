"""Decides what happens to a line that comes while its NPC is still speaking: who is interrupted, who waits, and for how long.

It knows no engine and no client. It keeps the lines of those who wait for one NPC; what a turn is, the book of turns knows.

A player who speaks is not made to wait: the NPC breaks off. Everybody else waits until it has finished. Either can be asked for by name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from personae.errors import AskedWrong
from personae.types import FinishReason, NpcId, Priority
from personae.wire.messages import MidReply, Say

MOST_WAITING = 8  # for one NPC: a line that comes later than that would answer something nobody remembers


def priority_of(say: Say, player: str) -> Priority:
    """By who speaks: nobody (the NPC goes on of its own accord), its player, somebody else of the scene."""
    if say.priority is not None:
        return say.priority
    if say.text is None:
        return Priority.AMBIENT
    return Priority.PLAYER if say.speaker in (None, player) else Priority.SCENE


def mid_reply_of(say: Say, player: str) -> MidReply:
    if say.mid_reply is not None:
        return say.mid_reply
    return MidReply.INTERRUPT if priority_of(say, player) is Priority.PLAYER else MidReply.QUEUE


def npc_busy(npc_id: str, doing: str) -> AskedWrong:
    return AskedWrong("npc_busy", f"{npc_id!r} is still {doing}.", "Cancel that turn, or wait for its end.", retry_after_ms=500)


class Waits(Protocol):
    """A turn that waits until its NPC comes free."""

    @property
    def npc_id(self) -> NpcId: ...

    @property
    def due(self) -> tuple[float, FinishReason]:
        """When it ends although its time has not come, in ms of the service's clock, and how."""
        ...


Turn = TypeVar("Turn", bound=Waits)


class Queues(Generic[Turn]):
    """Those who wait, by NPC, first come first served."""

    def __init__(self) -> None:
        self._of_npc: dict[NpcId, deque[Turn]] = {}

    def __contains__(self, turn: Turn) -> bool:
        return turn in self._of_npc.get(turn.npc_id, ())

    def of(self, npc_id: NpcId) -> tuple[Turn, ...]:
        return tuple(self._of_npc.get(npc_id, ()))

    def check_room(self, npc_id: NpcId) -> None:
        """AskedWrong `npc_busy` when as many wait as may."""
        if len(self.of(npc_id)) >= MOST_WAITING:
            raise AskedWrong("npc_busy", f"{MOST_WAITING} lines wait for {npc_id!r} already.", "Say it later.", retry_after_ms=2000)

    def join(self, turn: Turn, *, first: bool) -> None:
        """`first`: it goes ahead of all who wait, having made the NPC break off."""
        queue = self._of_npc.setdefault(turn.npc_id, deque())
        if first:
            queue.appendleft(turn)
        else:
            queue.append(turn)

    def take(self, npc_id: NpcId) -> Turn | None:
        queue = self._of_npc.get(npc_id)
        if queue is None:
            return None
        turn = queue.popleft()
        self._drop_empty(npc_id)
        return turn

    def leave(self, turn: Turn) -> None:
        """Harmless when it does not wait."""
        if turn in self:
            self._of_npc[turn.npc_id].remove(turn)
            self._drop_empty(turn.npc_id)

    def overdue(self, at_ms: float) -> list[Turn]:
        return [turn for turn in self._all() if turn.due[0] <= at_ms]

    def next_deadline_ms(self) -> float | None:
        return min((turn.due[0] for turn in self._all()), default=None)

    def _all(self) -> Iterator[Turn]:
        for queue in self._of_npc.values():
            yield from queue

    def _drop_empty(self, npc_id: NpcId) -> None:
        if not self._of_npc[npc_id]:
            del self._of_npc[npc_id]
