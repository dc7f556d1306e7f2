"""In which file an entry of a character's lore is written, and as which of it. A character only knows them in one row.

The row is the loader's: the manifest's own entries, then those of `lore_files`, in order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from personae.errors import AskedWrong
from personae.packs import manifest as form
from personae.packs.character import PackProblem
from personae.packs.pack_files import PackFiles, open_pack

_ENTRY = re.compile(r"\blore\[(\d{1,5})\]")


def placed(path: Path, problems: list[PackProblem]) -> list[PackProblem]:
    """The same problems; what is said of `lore[70]` in the manifest is said of `lore[6]` in the lore file where it is."""
    if not any(_ENTRY.match(problem.field) for problem in problems):
        return problems
    try:
        with open_pack(path) as files:
            places = list(_places(files))
    except (AskedWrong, ValueError):
        return problems
    return [_placed(problem, places) for problem in problems]


def _places(files: PackFiles) -> Iterator[tuple[str, int]]:
    """(file, number in it) of every entry. ValueError when the manifest is none."""
    table = form.decode(files.read(form.FILE, form.MAX_BYTES))
    yield from ((form.FILE, number) for number in range(1, _n_entries(table) + 1))
    names = table.get("lore_files")
    texts = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    for name in list(dict.fromkeys(texts))[: form.MAX_LORE_FILES]:
        with suppress(AskedWrong, ValueError):
            more = form.decode(files.read(name, form.MAX_LORE_FILE_BYTES), form.MAX_LORE_FILE_BYTES)
            yield from ((name, number) for number in range(1, _n_entries(more) + 1))


def _n_entries(table: dict[str, object]) -> int:
    entries = table.get("lore")
    return len(entries) if isinstance(entries, list) else 0


def _placed(problem: PackProblem, places: list[tuple[str, int]]) -> PackProblem:
    found = _ENTRY.match(problem.field)
    if found is None or problem.file != form.FILE or not 1 <= int(found[1]) <= len(places):
        return problem
    file, number = places[int(found[1]) - 1]
    text = _ENTRY.sub(lambda other: _told(other, file, places), problem.problem)
    return replace(problem, file=file, field=f"lore[{number}]{problem.field[found.end() :]}", problem=text)


def _told(other: re.Match[str], here: str, places: list[tuple[str, int]]) -> str:
    """Another entry as seen from a file."""
    if not 1 <= int(other[1]) <= len(places):
        return other[0]
    file, number = places[int(other[1]) - 1]
    return f"lore[{number}]" if file == here else f"lore[{number}] in {file}"
