"""Whether lines.jsonl, the lines a voice is trained on, can be read. Decides its form alone; trains nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from personae.packs.character import PackProblem, Severity

LINES_FILE = "lines.jsonl"
MAX_BYTES = 16 * 1024 * 1024
MAX_LINE = 64 * 1024  # characters
STARTED = 2  # lines that `personae pack new` writes to show their form: nobody has begun yet
ENOUGH = 40  # lines: fewer teach a voice by heart instead of its manner
MOST_TOLD = 10  # broken lines; the others come to light when these are put right
PLAYER_KEYS = ("player", "user")  # "user": as the first packs have it

_SHOWN = '{"player": "Hello there.", "reply": "Well met."}'


def lint_lines(pack: str, content: bytes) -> Iterator[PackProblem]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        yield _problem(pack, "", f"is not UTF-8 (byte {fault.start + 1}).", "Save it as UTF-8.")
        return
    good: dict[tuple[str, str], int] = {}
    broken = 0
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        pair, wrong = _pair(line)
        if pair and (first := good.setdefault(pair, number)) != number:
            wrong = f"says the same as line {first}."
        if wrong:
            broken += 1
            if broken <= MOST_TOLD:
                yield _problem(pack, f"line {number}", wrong, "Remove one." if pair else f"One object a line: {_SHOWN}")
    yield from _summed_up(pack, len(good), broken)


def _summed_up(pack: str, n_good: int, n_broken: int) -> Iterator[PackProblem]:
    if n_broken > MOST_TOLD:
        yield _problem(pack, "", f"has {n_broken - MOST_TOLD} more such lines.", "Put the first ones right and check again.")
    if n_good < ENOUGH and (n_broken or n_good != STARTED):
        counted = f"{n_good} usable line{'' if n_good == 1 else 's'}"
        remedy = "Write more, or remove the file: it is for training."
        yield _problem(pack, "", f"has {counted}; a voice wants {ENOUGH} or more.", remedy)


def _pair(line: str) -> tuple[tuple[str, str] | None, str]:
    """What the player says and what is replied; or why the line has none."""
    if len(line) > MAX_LINE:
        return None, f"has more than {MAX_LINE} characters."
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None, "is no JSON."
    if not isinstance(found, dict):
        return None, "is no object."
    player = next((found[key] for key in PLAYER_KEYS if key in found), None)
    for key, value in (("player", player), ("reply", found.get("reply"))):
        if not isinstance(value, str) or not value.strip():
            return None, f"has no text `{key}`."
    return (str(player).strip(), found["reply"].strip()), ""


def _problem(pack: str, field: str, problem: str, remedy: str) -> PackProblem:
    return PackProblem(pack, LINES_FILE, field, problem, remedy, Severity.WARNING)
