"""The files beside the manifest: which nobody names, which are junk, whether the portrait is a picture. Follows no link out of the pack."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from personae.errors import AskedWrong
from personae.packs import manifest as form
from personae.packs.character import PackProblem, Severity
from personae.packs.lines import LINES_FILE
from personae.packs.lines import MAX_BYTES as MAX_LINES_BYTES
from personae.packs.lint.lines import lint_lines
from personae.packs.loader import pack_id
from personae.packs.names import plain
from personae.packs.pack_files import PackFiles, open_pack

CARD_FILE = "card.json"  # the card that a pack was made of, which an export gives back
MOST_NAMED = 20  # files that are listed one by one

_JUNK = re.compile(r"^(thumbs\.db|desktop\.ini|.*~|.*\.(bak|orig|rej|swp|tmp|temp|part|crdownload))$", re.IGNORECASE)
_HIDDEN_JUNK = (".DS_Store", ".git", ".svn", ".idea", ".vscode")
_EXPECTED = re.compile(r"^(readme|licen[sc]e|notice|copying|credits|changelog)(\.\w+)?$", re.IGNORECASE)
_LOADER_SAYS = ("pack_missing", "pack_archive", "pack_incomplete", "pack_too_many_files")
_ENDINGS = ((b"\x89PNG", ("png",)), (b"\xff\xd8\xff", ("jpg", "jpeg")), (b"RIFF", ("webp",)))  # of a portrait, by how it begins


def is_junk(name: str) -> bool:
    """Whether a file is of an editor, a system or a browser and not of the character."""
    return bool(_JUNK.match(PurePosixPath(name).name))


def lint_files(path: Path) -> Iterator[PackProblem]:
    """Nothing when the pack cannot be opened at all: the loader says so."""
    pack = pack_id(path)
    try:
        with open_pack(path) as files:
            names = files.names()
            table = _manifest(files)
            yield from _hidden(pack, path)
            yield from _names(pack, names, named_in(table) if table is not None else None)
            yield from _portrait(pack, files, (table or {}).get("portrait"), names)
            if LINES_FILE in names:
                yield from lint_lines(pack, files.read(LINES_FILE, MAX_LINES_BYTES))
    except AskedWrong as fault:
        if fault.code not in _LOADER_SAYS:
            yield PackProblem(pack, "", "", fault.message, fault.hint, Severity.WARNING)


def named_in(table: Mapping[str, Any]) -> frozenset[str]:
    """Every text of a manifest: whatever file it names, in a key of ours or of another tool, is among them."""
    found: set[str] = set()
    waiting: list[object] = [table]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            found.add(plain(value.removeprefix("./")))
        elif isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return frozenset(found)


def _manifest(files: PackFiles) -> dict[str, Any] | None:
    """None when it cannot be read: then nobody knows what it would name."""
    try:
        return form.decode(files.read(form.FILE, form.MAX_BYTES))
    except (AskedWrong, ValueError):
        return None


def _hidden(pack: str, path: Path) -> Iterator[PackProblem]:
    for name in _HIDDEN_JUNK:
        if path.is_dir() and (path / name).exists():
            yield _problem(pack, name, "is no part of the character.", "Delete it; `personae pack build` leaves it out.")


def _names(pack: str, names: tuple[str, ...], named: frozenset[str] | None) -> Iterator[PackProblem]:
    by_fold: dict[str, str] = {}
    unnamed = []
    for name in names:
        first = by_fold.setdefault(plain(name).casefold(), name)
        if first != name:
            yield _problem(pack, name, f"and '{first}' differ in case only: Windows and macOS keep one of them.", "Rename one.")
        if is_junk(name):
            yield _problem(pack, name, "is no part of the character.", "Delete it; `personae pack build` leaves it out.")
        elif named is not None and not _is_expected(name) and plain(name) not in named:
            unnamed.append(name)
    for name in unnamed[:MOST_NAMED]:
        field = "adapter" if name.endswith(".gguf") else ""
        yield _problem(pack, name, "is in the pack and the manifest does not name it.", "Name it, or remove it.", field)
    if len(unnamed) > MOST_NAMED:
        yield _problem(pack, "", f"holds {len(unnamed) - MOST_NAMED} more files that nobody names.", "Remove what is not needed.")


def _is_expected(name: str) -> bool:
    return name in (form.FILE, LINES_FILE, CARD_FILE) or bool(_EXPECTED.match(name))


def _portrait(pack: str, files: PackFiles, name: object, names: tuple[str, ...]) -> Iterator[PackProblem]:
    """Whether it is a picture at all, and not too large, the loader says."""
    if not isinstance(name, str) or name not in names:
        return
    stream, _ = files.open(name)
    with stream:
        head = stream.read(4)
    endings = next((endings for magic, endings in _ENDINGS if head.startswith(magic)), ())
    if endings and PurePosixPath(name).suffix.lower().lstrip(".") not in endings:
        problem = "is a picture of another kind than its name says: games that go by the name cannot show it."
        yield _problem(pack, name, problem, f"Call it .{endings[0]}.", "portrait")


def _problem(pack: str, file: str, problem: str, remedy: str, field: str = "") -> PackProblem:
    return PackProblem(pack, file, field, problem, remedy, Severity.WARNING)
