"""Values -> TOML, and the change of single values in a TOML text that somebody wrote. The only door to tomlkit.

Decides how a manifest looks that we write; knows nothing of what its keys mean. Text of more than a line, or longer than one, becomes a
multi-line string whose long lines are broken behind a backslash, as a writer would do it: character.toml is made to be edited.

Rules that always hold
- `tomllib.loads(toml_text(table)) == table`, blanks, quotes and control characters included; values alone first, then tables, each in
  the given order.
- What TOML cannot hold (None, half a surrogate pair, objects of other kinds) is a ValueError that names the key.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

MAX_DEPTH = 64  # tables and lists within each other
LINE = 96  # characters of text in one line of ours

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
# Control characters, line ends that only some programs see, and marks that turn the direction of what follows them.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def toml_text(table: Mapping[str, Any]) -> str:
    """`table` as TOML. ValueError when it holds what TOML cannot."""
    return "\n".join(_table_lines(table, (), 0)).strip("\n") + "\n"


def with_values(text: str, changes: Mapping[str, Any]) -> str:
    """`text` with other values, comments and order kept. ValueError when it is no TOML.

    A mapping among the changes is laid over the table of that name; None takes a key out; all else, lists included, replaces what was
    there. Where a text is so unusual that it cannot be edited in place, the values win and its comments are lost.
    """
    wanted = _merged(tomllib.loads(text), changes, 0)
    try:
        document = tomlkit.parse(text)
        _lay_over(document, changes)
        edited = document.as_string()
        if tomllib.loads(edited) == wanted:
            return edited
    except (TOMLKitError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        pass  # tomlkit loses its way in tables that are written in pieces
    return toml_text(wanted)


# --- writing ------------------------------------------------------------------------------------------------------


def _table_lines(table: Mapping[str, Any], path: tuple[str, ...], depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        raise ValueError(f"'{'.'.join(path[:4])}...' is nested more than {MAX_DEPTH} deep")
    plain = {key: value for key, value in table.items() if not _is_table(value)}
    for key, value in plain.items():
        yield f"{_key(key)} = {_value(value, _shown((*path, key)), depth)}"
    for key, value in table.items():
        if key not in plain:
            yield from _headed(value, (*path, key), depth + 1)


def _headed(value: Any, path: tuple[str, ...], depth: int) -> Iterator[str]:
    name = ".".join(map(_key, path))
    if isinstance(value, Mapping):
        yield from ("", f"[{name}]", *_table_lines(value, path, depth))
        return
    for part in value:
        yield from ("", f"[[{name}]]", *_table_lines(part, path, depth))


def _is_table(value: object) -> bool:
    """Stands under a header of its own. An empty list of tables is an empty list."""
    return isinstance(value, Mapping) or (
        isinstance(value, list | tuple) and bool(value) and all(isinstance(part, Mapping) for part in value)
    )


def _value(value: object, where: str, depth: int) -> str:
    if depth > MAX_DEPTH:
        raise ValueError(f"'{where}' is nested more than {MAX_DEPTH} deep")
    if isinstance(value, str):
        return _string(value, where)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return str(float(value)) if math.isfinite(value) else "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return _list([_value(part, where, depth + 1) for part in value])
    if isinstance(value, Mapping):
        parts = (f"{_key(key)} = {_inline(part, where, depth + 1)}" for key, part in value.items())
        return f"{{ {', '.join(parts)} }}" if value else "{}"
    raise ValueError(f"'{where}' is {type(value).__name__}, which TOML cannot hold")


def _inline(value: object, where: str, depth: int) -> str:
    """A table in one line can hold no string or list that needs several."""
    if isinstance(value, str):
        return _one_line(value, where)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_inline(part, where, depth + 1) for part in value)}]"
    return _value(value, where, depth)


def _list(parts: list[str]) -> str:
    line = f"[{', '.join(parts)}]"
    if len(line) <= LINE and "\n" not in line:
        return line
    return "\n".join(["[", *(f"  {part}," for part in parts), "]"])


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _one_line(key, key)


def _shown(path: tuple[str, ...]) -> str:
    return ".".join(path)[:120]


# --- strings ------------------------------------------------------------------------------------------------------


def _string(text: str, where: str) -> str:
    """In one line, or as a block with its long lines folded."""
    if "\n" not in text and len(text) <= LINE:
        return _one_line(text, where)
    _refuse_surrogates(text, where)
    body = "\n".join("\\\n".join(map(_in_block, _folds(line))) for line in text.split("\n"))
    if body.endswith('"'):
        body = body[:-1] + '\\"'
    return f'"""\n{body}"""'


def _one_line(text: str, where: str) -> str:
    _refuse_surrogates(text, where)
    return '"' + _UNSEEN.sub(_escape, re.sub(r'[\\"\t\n]', _escape, text)) + '"'


def _in_block(piece: str) -> str:
    """No two bare quotes beside each other: three would end the block."""
    return _UNSEEN.sub(_escape, re.sub(r'\\|"(?=")', _escape, piece))


def _escape(found: re.Match[str]) -> str:
    return _ESCAPES.get(found[0]) or f"\\u{ord(found[0]):04X}"


def _refuse_surrogates(text: str, where: str) -> None:
    if not text.isascii() and re.search("[\ud800-\udfff]", text):
        raise ValueError(f"'{where[:120]!a}' holds half a surrogate pair, which TOML cannot hold")


def _folds(line: str) -> list[str]:
    """A line in pieces of at most LINE characters. None begins with a blank, since those behind a backslash are passed over."""
    pieces, start = [], 0
    while len(line) - start > LINE and (end := _break(line, start)) < len(line):
        pieces.append(line[start:end])
        start = end
    return [*pieces, line[start:]]


def _break(line: str, start: int) -> int:
    """Behind the last blank that leaves a line well filled, else wherever no blank follows."""
    most = start + LINE
    end = line.rfind(" ", start + LINE // 2, most) + 1
    while end and line[end] in " \t":
        end = line.rfind(" ", start + LINE // 2, end - 1) + 1
    if end:
        return end
    blanks = re.compile(r"[ \t]*")
    found = blanks.match(line, most)
    return found.end() if found else most


# --- editing ------------------------------------------------------------------------------------------------------


def _merged(table: Mapping[str, Any], changes: Mapping[str, Any], depth: int) -> dict[str, Any]:
    if depth > MAX_DEPTH:
        raise ValueError(f"the changes are nested more than {MAX_DEPTH} deep")
    merged = dict(table)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            there = merged.get(key)
            merged[key] = _merged(there if isinstance(there, Mapping) else {}, value, depth + 1)
        else:
            merged[key] = value
    return merged


def _lay_over(table: Any, changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        if value is None:
            table.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(table.get(key), Mapping):
            _lay_over(table[key], value)
        else:
            whole = _merged({}, {key: value}, 0)
            table[key] = tomlkit.parse(toml_text(whole))[key]
