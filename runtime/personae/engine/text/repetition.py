"""Decides when a reply goes round in circles: the text ends in at least three copies of one unit, 120 characters or more of them in all.

One rule for a stuck word, line, sentence or cycle of lines. It leaves refrains alone: a chorus with verses between is no run, a chant
("Fight for the king!" three times over) and a laugh are too short, and three in a row of a long sentence is what stuck models do and
people do not. Exact copies only; a loop that varies is ended by max_tokens.

The unit is found as the distance to the last earlier place of the text's last 12 characters; then one comparison tells whether the whole
run has that period. Looked at after words and sentences, where a cut reads well, and every 32 characters for scripts without blanks.
Positions count from the start of the reply, so the verdict does not depend on how the text arrives.
"""

from __future__ import annotations

from personae.types import FinishReason

_COPIES = 3
_RUN = 120  # characters, the least that counts as a circle
_LONGEST_UNIT = 512  # characters: about a paragraph
_KEY = 12
_STRIDE = 32
_WINDOW = _COPIES * _LONGEST_UNIT
_BREAKS = frozenset(" \t\n.!?…。！？")


class Circles:
    reason = FinishReason.REPETITION

    def __init__(self) -> None:
        self.cut = False
        self._seen = ""  # the last _WINDOW characters
        self._n_seen = 0

    def feed(self, text: str, last: bool) -> str:
        before = len(self._seen)
        seen = self._seen + text
        for n, character in enumerate(text, 1):
            if (character in _BREAKS or (self._n_seen + n) % _STRIDE == 0) and _ends_in_circle(seen, before + n):
                self.cut = True
                return text[:n]
        self._n_seen += len(text)
        self._seen = seen[-_WINDOW:]
        return text


def _ends_in_circle(seen: str, end: int) -> bool:
    oldest = max(0, end - _WINDOW)
    if end - oldest < _RUN:
        return False
    earlier = seen.rfind(seen[end - _KEY : end], oldest, end - 1)
    if earlier < 0:
        return False
    unit = end - _KEY - earlier
    start = end - max(_RUN, _COPIES * unit)
    return start >= oldest and seen[start + unit : end] == seen[start : end - unit]
