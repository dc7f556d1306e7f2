"""JSON from strangers, read with bounds and written back value for value. Knows nothing of cards.

Python's own reader is quick and careful with memory; what it lacks is put around it: a bound on size, depth and count of values, numbers
that keep their spelling, and faults that are ours. A number that a float cannot hold exactly is a `Spelled`, a float that remembers
how it was written, so that a card comes out with the digits it came in with.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn

from personae.errors import AskedWrong

MAX_BYTES = 16 * 1024 * 1024  # cards with pictures inside their JSON reach 10
MAX_VALUES = 500_000  # commas and brackets, those within texts too: about 100 bytes of memory each
MAX_DEPTH = 64
MAX_DIGITS = 400  # of a number; the largest float has 309


class Spelled(float):
    """A number with digits or an exponent that a float does not keep. As a float it is the nearest."""

    text: str

    def __new__(cls, text: str) -> Spelled:
        number = super().__new__(cls, text)
        number.text = text
        return number


def read_json(content: bytes, source: str) -> tuple[Any, list[str]]:
    """The value, and what was odd about it, in words. AskedWrong `card_unreadable`, `card_too_large`."""
    if len(content) > MAX_BYTES:
        raise AskedWrong(
            "card_too_large", f"'{source}' holds {len(content)} bytes of JSON, more than {MAX_BYTES}.", "Make the card smaller."
        )
    n_marks = content.count(b",") + content.count(b"[") + content.count(b"{") - 2 * content.count(b"{{")  # placeholders are no objects
    if n_marks > MAX_VALUES:
        raise AskedWrong("card_too_large", f"'{source}' holds more than {MAX_VALUES} values.", "Make the card smaller.")
    text = _decoded(content, source)
    odd = _Oddities()
    try:
        value = json.loads(text, parse_float=_float, parse_int=_int, parse_constant=odd.constant, object_pairs_hook=odd.table, cls=None)
    except RecursionError:
        _refuse(source, "is nested too deeply")
    except ValueError as fault:  # JSONDecodeError, or a number
        _refuse(source, str(fault).removeprefix("Expecting value: ") if isinstance(fault, json.JSONDecodeError) else str(fault))
    if _is_deeper(value, MAX_DEPTH):
        _refuse(source, f"is nested more than {MAX_DEPTH} deep")
    return value, odd.said()


def json_text(value: Any) -> str:
    """Of what `read_json` gave, or of plain values. Reads back to the same; halves of surrogate pairs stay escaped."""
    return "".join(_pieces(value, "\n"))


# --- reading ------------------------------------------------------------------------------------------------------


def _decoded(content: bytes, source: str) -> str:
    try:
        return content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError as fault:
        _refuse(source, f"is not UTF-8 (at byte {fault.start + 1})")


def _float(text: str) -> float:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"holds a number of {len(text)} characters, more than {MAX_DIGITS}")
    number = float(text)
    try:
        kept = repr(number) == text or Decimal(repr(number)) == Decimal(text)
    except InvalidOperation:
        kept = False
    return number if kept else Spelled(text)


def _int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"holds a number of {len(text)} characters, more than {MAX_DIGITS}")
    return int(text)


class _Oddities:
    """What JSON's own text forbids or leaves open, and some programs write."""

    def __init__(self) -> None:
        self._twice: dict[str, None] = {}
        self._constants: dict[str, None] = {}

    def constant(self, text: str) -> None:
        self._constants[text] = None

    def table(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) < len(pairs) and len(self._twice) < 10:
            seen: set[str] = set()
            self._twice.update((key, None) for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        return table

    def said(self) -> list[str]:
        twice = [f"holds the key {key[:40]!a} twice in one object: the last one counts" for key in list(self._twice)[:10]]
        return twice + [f"holds {text}, which JSON does not have: it is read as null" for text in self._constants]


def _is_deeper(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most + 1):
        level = [part for whole in level for part in _parts(whole)]
        if not level:
            return False
    return True


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        return iter(value.values())
    return iter(value) if isinstance(value, list) else iter(())


def _refuse(source: str, what: str) -> NoReturn:
    raise AskedWrong("card_unreadable", f"The JSON of '{source}' cannot be read: it {what}.", "Export or download the card again.")


# --- writing ------------------------------------------------------------------------------------------------------


def _pieces(value: Any, line: str) -> Iterator[str]:
    inner = line + " "
    if isinstance(value, Mapping) and value:
        for before, (key, part) in zip(_marks("{", inner), value.items(), strict=False):
            yield f"{before}{_string(key)}: "
            yield from _pieces(part, inner)
        yield f"{line}}}"
    elif isinstance(value, list | tuple) and value:
        for before, part in zip(_marks("[", inner), value, strict=False):
            yield before
            yield from _pieces(part, inner)
        yield f"{line}]"
    elif isinstance(value, str):
        yield _string(value)
    elif isinstance(value, Spelled):
        yield value.text
    else:
        yield json.dumps(value, allow_nan=False)


def _marks(first: str, line: str) -> Iterator[str]:
    yield first + line
    while True:
        yield "," + line


def _string(text: str) -> str:
    written = json.dumps(text, ensure_ascii=False)
    return written if written.isascii() or _is_whole(written) else json.dumps(text)


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
