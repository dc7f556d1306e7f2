"""Shows a result: one JSON object, or the same as text for people. Decides no names and no figures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def show(result: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
        return
    if "table" in result:
        print(result["table"])
        return
    print("\n".join(_lines(result, "")))


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A table for a README, its columns aligned."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    ruled = [head, ["-" * width for width in widths], *rows]
    return "\n".join("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in ruled)


def _lines(result: Mapping[str, Any], indent: str) -> Iterator[str]:
    width = max((len(str(key)) for key in result), default=0)
    for key, value in result.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}"
            yield from _lines(value, indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            yield f"{indent}{key}"
            yield from (f"{indent}  {line}" for line in _table(value))
        else:
            yield f"{indent}{key!s:<{width}}  {_shown(value)}"


def _table(rows: list[Mapping[str, Any]]) -> list[str]:
    head = list(rows[0])
    return markdown(head, [[_shown(row.get(key)) for key in head] for row in rows]).splitlines()


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)
