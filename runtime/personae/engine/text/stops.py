"""Decides where a stop string ends the reply. Exact, case-sensitive, across tokens; nothing of a stop string is ever shown.

The first stop string to be complete wins, the longest of those that are complete at the same character. (The earliest *start* would need
to wait for a longer one to fail, and would then show less.) What may be the head of a stop string is held back until that is decided.
"""

from __future__ import annotations

from collections.abc import Iterable

from personae.types import FinishReason


class StopStrings:
    reason = FinishReason.STOP

    def __init__(self, stops: Iterable[str]) -> None:
        self.cut = False
        self._stops = tuple(stop for stop in stops if stop)
        self._heads = frozenset(stop[:n] for stop in self._stops for n in range(1, len(stop)))
        self._longest_head = max(map(len, self._stops), default=1) - 1
        self._held = ""

    def feed(self, text: str, last: bool) -> str:
        text = self._held + text
        complete = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if complete:
            self.cut = True
            _end, start = min(complete)
            return text[:start]
        decided = len(text) if last else self._head_at_end(text)
        self._held = text[decided:]
        return text[:decided]

    def _head_at_end(self, text: str) -> int:
        """Where the longest possible head of a stop string begins; the length of the text when there is none."""
        for start in range(max(0, len(text) - self._longest_head), len(text)):
            if text[start:] in self._heads:
                return start
        return len(text)
