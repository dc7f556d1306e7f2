"""What is due when: of every open turn the deadlines it was promised and the time it may take. Knows no clock; decides no end."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from enum import IntEnum

from personae.scheduler.sequence import Sequence
from personae.types import TurnId


class Due(IntEnum):
    """Of two that are due at once the first counts: a promise that was not kept is a miss, even at the end of the turn's time."""

    FIRST = 0  # its first token, by deadline
    END = 1  # its end, by deadline
    TIME = 2  # its end, by max_seconds


class DeadlineHeap:
    def __init__(self) -> None:
        self._heap: list[tuple[float, Due, TurnId]] = []  # what is met or of no account any more lingers until it comes up

    def note_asked(self, turn: Sequence) -> None:
        asked = turn.asked
        self._push(turn, Due.TIME, asked.limits.max_seconds * 1000.0)
        self._push(turn, Due.FIRST, asked.deadlines.first_ms)
        self._push(turn, Due.END, asked.deadlines.end_ms)

    def _push(self, turn: Sequence, due: Due, after_ms: float | None) -> None:
        if after_ms is not None:
            heapq.heappush(self._heap, (turn.asked.at_ms + after_ms, due, turn.turn))

    def next_ms(self, open_turns: Mapping[TurnId, Sequence]) -> float | None:
        """When something is due; None: nothing ever will be."""
        while self._heap and self._is_past(open_turns.get(self._heap[0][2]), self._heap[0][1]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take_due(self, open_turns: Mapping[TurnId, Sequence], now_ms: float) -> tuple[Sequence, Due] | None:
        """The next that is due by now."""
        next_ms = self.next_ms(open_turns)
        if next_ms is None or next_ms > now_ms:
            return None
        _, due, turn = heapq.heappop(self._heap)
        return open_turns[turn], due

    @staticmethod
    def _is_past(turn: Sequence | None, due: Due) -> bool:
        return turn is None or (due is Due.FIRST and bool(turn.drawn))
