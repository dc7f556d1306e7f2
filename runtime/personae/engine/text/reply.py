"""Decides which text of one reply may be shown, when, and whether the text itself ends the reply. Knows no tokens, only their bytes.

    bytes -> UTF-8 -> thoughts out -> head trimmed -> stop strings -> speaker guard -> repetition -> tail trimmed -> speech / narration

Every stage is a function of all the text it has been given so far, and holds back what it cannot decide yet. So what comes out does not
depend on how the bytes were cut into tokens: same bytes, same text, same finish.

Rules that always hold
- Every piece is valid UTF-8 by itself, and the pieces joined are the final text: nothing shown is ever taken back.
- A stage that cuts the reply closes the stages behind it. Where several cut, the one furthest down the line decides, because it saw only
  text that those before it had let through.
- The head is trimmed before the stop strings look: a stop string of "\\n" means one line, not "no reply if it begins with a blank".
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import Protocol

from personae.engine.text.narration import NarrationSplit
from personae.engine.text.repetition import Circles
from personae.engine.text.speakers import SpeakerGuard
from personae.engine.text.stops import StopStrings
from personae.engine.text.thoughts import Thoughts
from personae.types import FinishReason, Piece, ReplyRules


@dataclass(frozen=True, slots=True)
class Pushed:
    """What one more token made certain: text to show, and why the reply is over when it is."""

    pieces: tuple[Piece, ...] = ()
    finish: FinishReason | None = None


_NOTHING = Pushed()


class Cutter(Protocol):
    """A stage that may end the reply. After `cut` it has returned all that it ever lets through."""

    reason: FinishReason
    cut: bool

    def feed(self, text: str, last: bool) -> str:
        """More text in; what is decided out. `last`: no more will come, so decide everything."""
        ...


class ReplyText:
    """The text of one reply. `push` each token's bytes; `close` when the reply ends for a reason outside its text.

    `finish` stays None until a rule of the text ends the reply, which the last held-back characters may still do in `close`.
    """

    def __init__(self, rules: ReplyRules) -> None:
        self.finish: FinishReason | None = None
        self._closed = False
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._thoughts = Thoughts()
        self._begun = False
        self._cutters = _cutters(rules)
        self._blank = ""  # whitespace at the end, kept back until something follows
        self._narration = NarrationSplit()

    def push(self, token_bytes: bytes) -> Pushed:
        """Bytes of the next token, possibly none, possibly half a character. After the end nothing comes out."""
        if self._closed:
            return Pushed((), self.finish)
        text = self._utf8.decode(token_bytes)
        if not text:
            return _NOTHING
        return Pushed(self._through(text, last=False), self.finish)

    def close(self) -> tuple[Piece, ...]:
        """No more tokens: what was held back and belongs to the reply after all. Empty when the text was at its end already."""
        if self._closed:
            return ()
        return self._through(self._utf8.decode(b"", final=True), last=True)

    def _through(self, text: str, last: bool) -> tuple[Piece, ...]:
        text = self._trim_head(self._thoughts.feed(text, last))
        for cutter in self._cutters:
            text = cutter.feed(text, last)
            if cutter.cut:
                self.finish = cutter.reason
                last = True
        self._closed = last
        return tuple(self._narration.feed(self._keep_tail(text), last))

    def _trim_head(self, text: str) -> str:
        if not self._begun:
            text = text.lstrip()
            self._begun = bool(text)
        return text

    def _keep_tail(self, text: str) -> str:
        text = self._blank + text
        shown = text.rstrip()
        self._blank = text[len(shown) :]
        return shown


def _cutters(rules: ReplyRules) -> tuple[Cutter, ...]:
    cutters: list[Cutter] = []
    if any(rules.stop):
        cutters.append(StopStrings(rules.stop))
    if any(rules.others):
        cutters.append(SpeakerGuard(rules.others))
    cutters.append(Circles())
    return tuple(cutters)
