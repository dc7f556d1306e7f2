"""The placeholders of cards ({{char}}, {{user}}, {{random:a,b}}, ...) in a text, replaced once and for good. Runs nothing.

A pack is read by people and by a model that knows no placeholders, and the same pack must give the same prompt every time. So those that
stand for chance become one fixed choice, comments go, and what nobody here knows stays as it is written. All but names are noted.

Rules that always hold
- What a placeholder became is never looked at again: a character called `{{user}}` is called just that.
- One pass, from left to right, at most MAX_DEPTH placeholders within each other: time in proportion to the text.

`{{user}}` is "the player" where a text tells of them, and "you" where the character speaks to them: "*She smiles at you.*"
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

MAX_DEPTH = 6
MAX_TEXT = 1_000_000  # characters; a text that is longer is cut before it is looked at
PLAYER = "the player"

_MARK = re.compile(r"\{\{(?!\{)|\}\}|<(?:user|char|bot)>", re.IGNORECASE)  # of three braces the inner two
_SEPARATORS = re.compile(r"(?<!\\)::|(?<!\\),")
# A part of a placeholder's inside: text as the card has it, or what an inner placeholder became.
_Part: TypeAlias = "tuple[str, bool]"


@dataclass(slots=True)
class Macros:
    """How placeholders of one card are replaced. `met` collects, for its notes, which kinds there were beside names."""

    char: str  # what {{char}} becomes
    user: str = PLAYER
    users: str = f"{PLAYER}'s"  # for {{user}}'s
    met: dict[str, int] = field(default_factory=dict)  # kind -> how often

    def spoken_to(self) -> Macros:
        """For what the character says, where the player is addressed."""
        return Macros(self.char, "you", "your", self.met)

    def replaced(self, text: str) -> str:
        """Never raises."""
        text = text[:MAX_TEXT]
        stack: list[list[_Part]] = [[]]
        at = 0
        for mark in _MARK.finditer(text):
            if mark.start() < at:  # within what an earlier one took
                continue
            stack[-1].append((text[at : mark.start()], True))
            at = self._step(text, mark, stack)
        stack[-1].append((text[at:], True))
        return "".join("{{" * bool(depth) + _joined(parts) for depth, parts in enumerate(stack))

    def _step(self, text: str, mark: re.Match[str], stack: list[list[_Part]]) -> int:
        """Takes one mark in; the place behind what it took."""
        end = mark.end()
        if mark[0] == "{{" and len(stack) <= MAX_DEPTH:
            stack.append([])
        elif mark[0] == "}}" and len(stack) > 1:
            result = self._result(stack.pop())
            if result == self.user and text.startswith("'s", end):
                result, end = self.users, end + 2
            stack[-1].append((result, False))
        elif mark[0].startswith("<"):
            stack[-1].append((self._named(mark[0][1:-1].lower()), False))
        else:
            stack[-1].append((mark[0], True))
        return end

    def _named(self, name: str) -> str:
        return self.user if name == "user" else self.char

    def _result(self, parts: list[_Part]) -> str:
        head = parts[0][0] if parts else ""
        whole = _joined(parts)
        name = whole.strip().lower()
        if name in ("char", "bot", "user"):
            return self._named(name)
        kind = "//" if head.lstrip().startswith("//") else re.split(r"::?|\s", head.strip(), maxsplit=1)[0].lower()
        known = _KINDS.get(kind)
        if known is None:
            self._meet(f"{{{{{kind[:20]}}}}}")
            return "{{" + whole + "}}"
        if kind not in _SILENT:
            self._meet(f"{{{{{kind}}}}}")
        return known(_after_kind(parts))

    def _meet(self, kind: str) -> None:
        if kind in self.met or len(self.met) < 20:
            self.met[kind] = self.met.get(kind, 0) + 1


def _joined(parts: list[_Part]) -> str:
    return "".join(text for text, _ in parts)


def _after_kind(parts: list[_Part]) -> list[_Part]:
    """The inside behind `kind:` or `kind::` or `kind `."""
    head = re.sub(r"^\s*(?://|[^:\s]*)(?:::?|\s)?", "", parts[0][0], count=1)
    return [(head, True), *parts[1:]]


def _first_choice(parts: list[_Part]) -> str:
    """Only what the card itself wrote is looked at for separators; those of a name are its own. `a::b::c` may hold commas."""
    doubled = any("::" in text for text, is_written in parts if is_written)
    separator = re.compile(r"(?<!\\)::") if doubled else _SEPARATORS
    chosen = []
    for text, is_written in parts:
        found = separator.search(text) if is_written else None
        chosen.append(text[: found.start()] if found else text)
        if found:
            break
    return "".join(chosen).replace("\\,", ",").strip()


def _rolled(parts: list[_Part]) -> str:
    """The middle of the die."""
    found = re.fullmatch(r"\s*(\d{0,3})d?(\d{1,9})\s*", _joined(parts), re.IGNORECASE)
    return str((int(found[2]) + 1) // 2) if found else "1"


def _nothing(parts: list[_Part]) -> str:
    return ""


_KINDS: dict[str, Callable[[list[_Part]], str]] = {
    "random": _first_choice,
    "pick": _first_choice,
    "roll": _rolled,
    "reverse": lambda parts: _joined(parts)[::-1],
    "//": _nothing,
    "comment": _nothing,
    "hidden_key": _nothing,
    "original": _nothing,  # the other program's own system prompt
    "noop": _nothing,
    "trim": _nothing,
    "newline": lambda parts: "\n",
}
_SILENT = ("newline", "noop", "trim")
