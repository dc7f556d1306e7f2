"""Decides which text is spoken and which is told: `*sighs*` is narration, asterisks included. Changes no character.

- One asterisk opens a narration when something follows it directly and no letter, digit or backslash of ASCII stands before it, so that
  `2 * 3`, `2*3`, `* a list` and `\\*` stay speech. The next single asterisk closes it. Two or more in a row are emphasis, `**bold**`.
- An asterisk that is still open at the end of its line or of the reply was none: that text is speech.
- But a player should not wait for the end of a long narration, and one that max_tokens cuts off must not be read aloud. So an asterisk is
  in doubt for `_PATIENCE` characters at most; after that it is a narration, to its closing asterisk or the end of the line.
"""

from __future__ import annotations

import re

from personae.types import Piece

_SPEECH = "speech"
_NARRATION = "narration"
_PATIENCE = 40  # characters, some ten tokens
_CLOSING = re.compile(r"(?<!\*)\*(?!\*)|\n")  # a single asterisk, or the end of the line
_NEVER_BEFORE_OPENING = re.compile(r"[A-Za-z0-9\\]")


class NarrationSplit:
    def __init__(self) -> None:
        self._narrating = False  # in a narration that has outlasted our patience
        self._held = ""  # begins with an asterisk
        self._before = ""  # the character before `_held`

    def feed(self, text: str, last: bool) -> list[Piece]:
        """The decided text as runs of one kind each. `last`: no more will come."""
        text = self._held + text
        if not self._narrating and "*" not in text:
            self._held, self._before = "", text[-1:] or self._before
            return [Piece(text)] if text else []
        pieces: list[Piece] = []
        at = 0
        while at < len(text):
            kind, end = self._next(text, at, last)
            if end == at:
                break
            if pieces and pieces[-1].kind == kind:
                pieces[-1] = Piece(pieces[-1].text + text[at:end], kind)
            else:
                pieces.append(Piece(text[at:end], kind))
            at = end
        self._held = text[at:]
        self._before = text[at - 1] if at else self._before
        return pieces

    def _next(self, text: str, at: int, last: bool) -> tuple[str, int]:
        """Kind and end of the run that begins at `at`, or of a part of it; end == at when more text must come first."""
        known = len(text) if last else len(text.rstrip("*"))  # asterisks at the end may be the head of a longer run
        if self._narrating:
            closing = _CLOSING.search(text, at, max(at, known))
            self._narrating = closing is None
            if closing is None:
                return _NARRATION, max(at, known)
            if closing[0] == "*":
                return _NARRATION, closing.end()
            if closing.start() > at:
                return _NARRATION, closing.start()
        return self._next_of_speech(text, at, known, last)

    def _next_of_speech(self, text: str, at: int, known: int, last: bool) -> tuple[str, int]:
        star = text.find("*", at)
        if star != at:
            return _SPEECH, star if star > at else len(text)
        after = _end_of_asterisks(text, at)
        if after > known:
            return _SPEECH, at
        if after - at > 1 or not self._may_open(text, at):
            return _SPEECH, after
        closing = _CLOSING.search(text, after, known)
        if closing and closing[0] == "*":
            return _NARRATION, closing.end()
        if (closing.start() if closing else len(text)) - at >= _PATIENCE:
            self._narrating = True
            return _NARRATION, after
        return _SPEECH, after if closing or last else at

    def _may_open(self, text: str, at: int) -> bool:
        before = text[at - 1] if at else self._before
        following = text[at + 1 : at + 2]
        return bool(following) and not following.isspace() and not _NEVER_BEFORE_OPENING.match(before)


def _end_of_asterisks(text: str, at: int) -> int:
    while at < len(text) and text[at] == "*":
        at += 1
    return at
