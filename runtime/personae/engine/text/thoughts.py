"""Decides what of a reply is thought rather than said: `<think>...</think>` and `<thinking>...</thinking>` never leave this file.

Tags may be torn over tokens and are matched in any case. An unclosed thought is dropped with all that follows. A closing tag without an
opening one is dropped alone: what stood before it has been shown already. Nested opening tags are part of the thought.

Taking a thought out can bring the halves of another tag together (`<thi<think>..</think>nk>`), so what might be the head of a tag is kept
back across a thought, and a chain of such heads as one.
"""

from __future__ import annotations

import re

_FLAGS = re.IGNORECASE | re.ASCII  # ASCII: otherwise the Kelvin sign would spell "think"
_TAG = re.compile(r"<(/?)think(?:ing)?>", _FLAGS)
_CLOSING = re.compile(r"</think(?:ing)?>", _FLAGS)
_LONGEST_HEAD = len("</thinking>") - 1
_HEADS_AT_END = re.compile(r"(?:</?(?:thinking|thinkin|thinki|think|thin|thi|th|t)?)+\Z", _FLAGS)


class Thoughts:
    def __init__(self) -> None:
        self._thinking = False
        self._undecided = ""  # visible unless it becomes a tag
        self._thought = ""  # the end of a thought, where its closing tag may have begun

    def feed(self, text: str, last: bool) -> str:
        if not self._thinking and not self._undecided and "<" not in text:
            return text
        said = []
        while text:
            if self._thinking:
                text = self._skip_thought(text)
            else:
                before, text = self._to_next_tag(text)
                said.append(before)
        if last:
            said.append(self._undecided)
            self._undecided = ""
        return "".join(said)

    def _to_next_tag(self, text: str) -> tuple[str, str]:
        """(what is decided before the next tag, what follows the tag)"""
        text = self._undecided + text
        tag = _TAG.search(text)
        before, after = (text[: tag.start()], text[tag.end() :]) if tag else (text, "")
        self._thinking = tag is not None and not tag[1]
        heads = _HEADS_AT_END.search(before)
        decided = heads.start() if heads else len(before)
        self._undecided = before[decided:]
        return before[:decided], after

    def _skip_thought(self, text: str) -> str:
        """What follows the thought, "" while it goes on."""
        text = self._thought + text
        closing = _CLOSING.search(text)
        self._thinking = closing is None
        self._thought = "" if closing else text[-_LONGEST_HEAD:]
        return text[closing.end() :] if closing else ""
