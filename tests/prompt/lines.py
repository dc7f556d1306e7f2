"""Short words for the talks that these tests are about."""

from __future__ import annotations

from typing import NamedTuple

from personae.prompt import Prompt


class Exchange(NamedTuple):
    player: str
    reply: str


class Entry(NamedTuple):
    text: str
    name: str = ""
    priority: int = 0
    keys: tuple[str, ...] = ()
    secondary: tuple[str, ...] = ()
    constant: bool = False
    order: int = 0
    regex: bool = False
    case_sensitive: bool = False
    enabled: bool = True


def part(prompt: Prompt, name: str) -> int:
    """Tokens of it in the prompt."""
    return next(part.tokens for part in prompt.receipt.parts if part.part == name)


def cut(prompt: Prompt, name: str) -> int:
    """Texts of it that are not in the prompt."""
    return sum(cut.count for cut in prompt.receipt.cuts if cut.part == name)
