"""Whether lines.jsonl, the lines a voice is trained on, can be read, and whether there are enough. Trains nothing."""

from __future__ import annotations

from collections.abc import Iterator

from personae.packs.character import PackProblem, Severity
from personae.packs.lines import LINES_FILE, parse_lines

STARTED = 2  # lines that `personae pack new` writes to show their form: nobody has begun yet
ENOUGH = 40  # lines: fewer teach a voice by heart instead of its manner
MOST_TOLD = 10  # broken lines; the others come to light when these are put right


def lint_lines(pack: str, content: bytes) -> Iterator[PackProblem]:
    try:
        lines = parse_lines(content)
    except ValueError as fault:
        yield _problem(pack, "", str(fault), "Save it as UTF-8.")
        return
    for bad in lines.bad[:MOST_TOLD]:
        yield _problem(pack, f"line {bad.number}", bad.problem, bad.remedy)
    yield from _summed_up(pack, len(lines.sayings), len(lines.bad))


def _summed_up(pack: str, n_good: int, n_broken: int) -> Iterator[PackProblem]:
    if n_broken > MOST_TOLD:
        yield _problem(pack, "", f"has {n_broken - MOST_TOLD} more such lines.", "Put the first ones right and check again.")
    if n_good < ENOUGH and (n_broken or n_good != STARTED):
        counted = f"{n_good} usable line{'' if n_good == 1 else 's'}"
        remedy = "Write more, or remove the file: it is for training."
        yield _problem(pack, "", f"has {counted}; a voice wants {ENOUGH} or more.", remedy)


def _problem(pack: str, field: str, problem: str, remedy: str) -> PackProblem:
    return PackProblem(pack, LINES_FILE, field, problem, remedy, Severity.WARNING)
