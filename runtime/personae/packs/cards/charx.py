"""A CHARX: a zip archive with card.json and the files that go with it. Decides which of them a pack keeps, and under which name.

How an archive is read safely is `packs.archive`'s business. What lies under `assets/` keeps its name, so that an export finds it again;
what lies elsewhere goes under OTHERS; what an export of ours laid under ADAPTERS goes back to its place in the pack.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from personae.errors import AskedWrong
from personae.packs.archive import Archive
from personae.packs.cards.card import note
from personae.packs.cards.extension import CARD_FILE as CARD
from personae.packs.cards.extension import MAX_FILE_BYTES, SUFFIX, places_beside
from personae.packs.cards.json_text import MAX_BYTES as MAX_JSON_BYTES
from personae.packs.character import PackProblem
from personae.packs.names import is_hidden

ASSETS = "assets/"
ADAPTERS = "assets/personae/"  # ours: the pack's adapters
OTHERS = "assets/charx/"  # in a pack: files that lay beside card.json
MAX_BYTES = 256 * 1024 * 1024  # of the archive
MAX_ASSETS = 500  # files and folders
MAX_NOTES = 50  # about files that were left out
MAX_ASSET_BYTES = 16 * 1024 * 1024
MAX_ASSETS_BYTES = 128 * 1024 * 1024  # of all, unpacked; they are in memory until the pack is written
_DATE = (1980, 1, 1, 0, 0, 0)  # the same pack makes the same file


@dataclass(frozen=True, slots=True)
class Contents:
    card: bytes
    files: Mapping[str, bytes]  # by name within a pack
    notes: tuple[PackProblem, ...]


def read_charx(content: bytes, source: str) -> Contents:
    """AskedWrong `card_unreadable`, `card_too_large`, `not_a_card`."""
    if len(content) > MAX_BYTES:
        raise AskedWrong("card_too_large", f"'{source}' has {len(content)} bytes, more than {MAX_BYTES}.", "Take out some of its assets.")
    stream = tempfile.TemporaryFile()  # noqa: SIM115  the archive closes it
    try:
        stream.write(content)
        stream.flush()
        return _contents(stream, source)
    except AskedWrong as fault:
        if not fault.code.startswith("pack_"):
            raise
        raise AskedWrong("card_unreadable", fault.message, "Export or download the card again.") from None
    finally:
        stream.close()


def charx(card: bytes, files: Mapping[str, bytes | Path], to: BinaryIO) -> None:
    """Writes one. `files`: by name within the archive."""
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(CARD, _DATE), card, zipfile.ZIP_DEFLATED)
        for name, content in files.items():
            held = content if isinstance(content, bytes) else content.read_bytes()
            archive.writestr(zipfile.ZipInfo(name, _DATE), held, zipfile.ZIP_STORED)


def name_in_charx(name: str) -> str:
    """Where a file under `assets/` of a pack was in the archive."""
    return name.removeprefix(OTHERS) if name.startswith(OTHERS) else name


def name_in_pack(name: str) -> str:
    if name.startswith(ADAPTERS) and name.endswith(SUFFIX):
        return name.removeprefix(ADAPTERS)
    return name if name.startswith(ASSETS) else OTHERS + name


# --- reading ------------------------------------------------------------------------------------------------------


def _contents(stream: BinaryIO, source: str) -> Contents:
    archive = Archive(stream, source)
    place = _card_in(archive)
    if not place:
        raise AskedWrong("not_a_card", f"'{source}' is no character card: it holds no {CARD}.", "A CHARX is a zip archive with one.")
    entry = archive.entries[place]
    if entry.n_bytes > MAX_JSON_BYTES:
        raise AskedWrong(
            "card_too_large", f"'{source}' holds {entry.n_bytes} bytes of JSON, more than {MAX_JSON_BYTES}.", "Make it smaller."
        )
    notes: list[PackProblem] = []
    files = dict(_files(archive, place, source, notes))
    return Contents(archive.open(place).read(), files, tuple(notes))


def _card_in(archive: Archive) -> str:
    """At the top; else within the one folder that somebody zipped."""
    found = [name for name in archive.entries if name == CARD or (name.endswith(f"/{CARD}") and name.count("/") == 1)]
    return min(found, key=len, default="")


def _files(archive: Archive, place: str, source: str, notes: list[PackProblem]) -> Iterator[tuple[str, bytes]]:
    top = place.removesuffix(CARD)
    room = _Room()
    for name, entry in archive.entries.items():
        if name == place or is_hidden(name) or not name.startswith(top):
            continue
        within = name_in_pack(name.removeprefix(top))
        why = room.why_not(within, entry.n_bytes)
        if not why:
            try:
                content = archive.open(name).read()
                room.take(within, len(content))
                yield within, content
                continue
            except AskedWrong as fault:
                why = fault.message
        if len(notes) < MAX_NOTES:
            notes.append(note(source, name[:120], f"was left out: {why}.", "Copy it into the pack by hand."))


class _Room:
    """What a pack still takes of an archive's files."""

    def __init__(self) -> None:
        self._places = places_beside()
        self._most_places = len(self._places) + MAX_ASSETS
        self._bytes = {True: MAX_FILE_BYTES, False: MAX_ASSETS_BYTES}  # of adapters, of all else

    def why_not(self, name: str, n_bytes: int) -> str:
        if fault := self._places.why_not(name):
            return fault
        is_adapter = name.endswith(SUFFIX)
        if n_bytes > min(self._bytes[is_adapter], MAX_FILE_BYTES if is_adapter else MAX_ASSET_BYTES):
            return f"{n_bytes} bytes are more than there is room for"
        if self._places.n_with(name) > self._most_places:
            return f"there are more than {MAX_ASSETS} files and folders"
        return ""

    def take(self, name: str, n_bytes: int) -> None:
        self._places.take(name)
        self._bytes[name.endswith(SUFFIX)] -= n_bytes
