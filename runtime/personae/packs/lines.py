"""lines.jsonl: what a character is heard to say, for its voice to be trained on and measured with. Decides its form and its split.

One JSON object a line:

    {"player": "Hello there.", "reply": "Well met."}
    {"player": "And then?", "reply": "Then it rained.", "context": "It is late."}
    {"player": "And then?", "reply": "Then it rained.", "context": [{"player": "What happened?", "reply": "We rowed."}]}

`context` is what went before: an event, or earlier exchanges. It is shown to the model and not learned. `user` is read for `player`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

LINES_FILE = "lines.jsonl"
MAX_BYTES = 16 * 1024 * 1024
MAX_LINE = 64 * 1024  # characters
MAX_EXCHANGES = 16  # of a context
PLAYER_KEYS = ("player", "user")  # "user": as the first packs have it
SHOWN = '{"player": "Hello there.", "reply": "Well met."}'


@dataclass(frozen=True, slots=True)
class Saying:
    """One thing the player says and what the character answers. Texts are stripped."""

    player: str
    reply: str
    event: str = ""  # told before it, by nobody
    before: tuple[tuple[str, str], ...] = ()  # earlier exchanges, (player, reply), oldest first


@dataclass(frozen=True, slots=True)
class BadLine:
    number: int  # from 1
    problem: str  # goes after "line 3"
    remedy: str


@dataclass(frozen=True, slots=True)
class Lines:
    """What a file holds: each saying once, in the file's order, and what else stands there."""

    sayings: tuple[Saying, ...]
    bad: tuple[BadLine, ...]
    hash: str  # SHA-256 of the file, hex


def parse_lines(content: bytes) -> Lines:
    """ValueError when it is no UTF-8; its message goes after the file's name."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        raise ValueError(f"is not UTF-8 (byte {fault.start + 1}).") from None
    good: dict[Saying, int] = {}
    bad: list[BadLine] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        saying, wrong = _saying(line)
        if saying is None:
            bad.append(BadLine(number, wrong, f"One object a line: {SHOWN}"))
        elif (first := good.setdefault(saying, number)) != number:
            bad.append(BadLine(number, f"says the same as line {first}.", "Remove one."))
    return Lines(tuple(good), tuple(bad), hashlib.sha256(content).hexdigest())


def split(sayings: Sequence[Saying], share: float, seed: int) -> tuple[list[Saying], list[Saying]]:
    """(learned, held out), each in the file's order. About `share` of the different replies are held out, each with all its sayings, so
    that no held-out reply was ever seen; at least one where there are two or more and `share` is above 0.

    Which they are depends on the replies and the seed alone, not on their order: a line that is added moves few others.
    """
    replies = sorted({saying.reply for saying in sayings}, key=lambda reply: hashlib.sha256(f"{seed}\0{reply}".encode()).digest())
    n_held = min(max(round(len(replies) * share), 1), len(replies) - 1) if share > 0 and len(replies) > 1 else 0
    held = frozenset(replies[:n_held])
    learned = [saying for saying in sayings if saying.reply not in held]
    return learned, [saying for saying in sayings if saying.reply in held]


def _saying(line: str) -> tuple[Saying | None, str]:
    """Or why the line has none."""
    if len(line) > MAX_LINE:
        return None, f"has more than {MAX_LINE} characters."
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None, "is no JSON."
    if not isinstance(found, dict):
        return None, "is no object."
    pair = _pair(found)
    if isinstance(pair, str):
        return None, f"has no text `{pair}`."
    try:
        event, before = _context(found.get("context"))
    except ValueError as fault:
        return None, str(fault)
    return Saying(*pair, event, before), ""


def _pair(found: dict[str, Any]) -> tuple[str, str] | str:
    """What the player says and what is replied; or the key that is missing."""
    player = next((found[key] for key in PLAYER_KEYS if key in found), None)
    reply = found.get("reply")
    for key, value in (("player", player), ("reply", reply)):
        if not _is_text(value):
            return key
    return str(player).strip(), str(reply).strip()


def _context(found: Any) -> tuple[str, tuple[tuple[str, str], ...]]:
    if found is None:
        return "", ()
    if isinstance(found, str):
        return found.strip(), ()
    if not isinstance(found, list) or len(found) > MAX_EXCHANGES:
        raise ValueError(f"has a `context` that is neither a text nor a list of up to {MAX_EXCHANGES} exchanges.")
    return "", tuple(_exchanges(found))


def _exchanges(found: list[Any]) -> Iterator[tuple[str, str]]:
    for exchange in found:
        pair = _pair(exchange) if isinstance(exchange, dict) else "player"
        if isinstance(pair, str):
            raise ValueError(f"has an exchange in its `context` without a text `{pair}`.")
        yield pair


def _is_text(value: Any) -> bool:
    """One that can be written in UTF-8: JSON has escapes for halves of characters."""
    return isinstance(value, str) and bool(value.strip()) and not any("\ud800" <= char <= "\udfff" for char in value)
