"""What went wrong in a soak. Everybody who judges notes it here; nobody asks why."""

from __future__ import annotations


class Failures:
    """What went wrong, a sentence each. The first few are told; the rest is counted."""

    MOST = 20

    def __init__(self) -> None:
        self.told: list[str] = []
        self.n = 0

    def note(self, sentence: str) -> None:
        self.n += 1
        if len(self.told) < self.MOST and sentence not in self.told:
            self.told.append(sentence)
