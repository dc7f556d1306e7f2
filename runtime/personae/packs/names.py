"""Names of files within a pack: which are plain enough to mean the same file on every system and never one outside. Opens nothing."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

MAX_NAME_CHARS = 255
MAX_DEPTH = 8  # folders above a file, and one


def plain(name: str) -> str:
    """Composed (NFC): macOS hands names out decomposed, and people type them composed."""
    return unicodedata.normalize("NFC", name)


def fault_in_name(name: str) -> str:
    """Why a name cannot be that of a file in a pack, as the end of a sentence; "" when it can.

    `a/b` is a name; `/a`, `a//b` and `a/` are not.
    """
    parts = name.split("/")
    if not name or len(name) > MAX_NAME_CHARS:
        return f"a name has 1 to {MAX_NAME_CHARS} characters"
    if len(parts) > MAX_DEPTH:
        return f"that is more than {MAX_DEPTH} folders deep"
    if "\\" in name or ":" in name or name.startswith("/"):
        return "that is not a path inside the pack, written with /"
    if ".." in parts:
        return "that leads out of the pack"
    if "" in parts or "." in parts or any(part != part.strip() for part in parts):
        return "that has a part which is empty, a dot, or blank at an end"
    if not name.isprintable():
        return "that holds characters which cannot be seen"
    return ""


def is_hidden(name: str) -> bool:
    """Whether it is of a system or an editor and not part of a pack: passed over without a word."""
    return any(part.startswith(".") or part == "__MACOSX" for part in name.split("/"))


def folders_above(name: str) -> Iterator[str]:
    """`a`, `a/b` for `a/b/c`."""
    at = name.find("/")
    while at >= 0:
        yield name[:at]
        at = name.find("/", at + 1)
