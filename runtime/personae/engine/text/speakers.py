"""Decides where a reply begins to speak for somebody else: at the first line that starts with another participant's cue.

A cue is `Name:` and what models make of it: `**Name:**`, `**Name**:`, `*Name*:`, `[Name]:`, with the colon of other scripts, in any case,
after blanks. Only names in `ReplyRules.others` count ("Player" and "User" too, when the caller lists them). The line is held back while
it may still become a cue. The NPC's own cue is none of our business: who renders the prompt knows that name.
"""

from __future__ import annotations

from collections.abc import Iterable

from personae.types import FinishReason

_CUES = ("{}:", "{} :", "{}：", "*{}*:", "**{}:", "**{}**:", "[{}]:", "[{}:")
_INDENT = " \t\r"


class SpeakerGuard:
    reason = FinishReason.SPEAKER

    def __init__(self, others: Iterable[str]) -> None:
        self.cut = False
        # casefold looks at one character at a time, so the folded head of a line is the head of the folded line
        names = {name.strip().casefold() for name in others} - {""}
        self._cues = tuple(cue.format(name) for name in sorted(names) for cue in _CUES)
        self._heads = frozenset(cue[:n] for cue in self._cues for n in range(len(cue)))
        self._at_line_start = True
        self._held = ""  # the line so far, while it may become a cue

    def feed(self, text: str, last: bool) -> str:
        if not self._at_line_start and "\n" not in text:
            return text
        lines = _lines(self._held + text)
        self._held = ""
        shown = []
        for line in lines:
            if self._at_line_start and self._is_cue(line):
                self.cut = True
                break
            if self._at_line_start and not last and self._may_become_cue(line):
                self._held = line  # only ever the last one: a line with its newline is decided
                break
            shown.append(line)
            self._at_line_start = line.endswith("\n")
        return "".join(shown)

    def _is_cue(self, line: str) -> bool:
        return line.lstrip(_INDENT).casefold().startswith(self._cues)

    def _may_become_cue(self, line: str) -> bool:
        return line.lstrip(_INDENT).casefold() in self._heads


def _lines(text: str) -> list[str]:
    """Cut after each newline and nowhere else (str.splitlines knows a dozen other separators)."""
    *whole, rest = text.split("\n")
    return [line + "\n" for line in whole] + ([rest] if rest else [])
