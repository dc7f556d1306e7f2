"""What a pack of a soak says and sounds like from one version to the next, and how a version is put on the disk. Decides nothing by chance.

The year that stands in its persona tells one text from another, and the contents of its adapters one voice: whoever reads a prompt, and
the voice that it was asked with, can say which version both are of.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from personae.packs.manifest import FILE
from personae.packs.pack_files import SUFFIX
from personae.types import AdapterKey, AdapterUse, Voice, voice_of

STYLED, VOICED = "merry", "grave"  # moods: another style alone; other adapters too
MOODS = (STYLED, VOICED)
FALLBACKS = ("Not now.", "Give me a moment, will you?")
LORE = (("the bridge", ["bridge"], "The flood took the bridge."), ("the north", ["north"], "In the north they are at war."))
SCALES = (1.0, 0.5, 0.75, 0.25)
BROKEN = 'manifest = 1\nname = 3\npersona = "'
_PERSONA = re.compile(r"You are the ([a-z0-9-]+) of the old town in the year (\d+)\.")


@dataclass(frozen=True, slots=True)
class Adapter:
    path: Path
    key: AdapterKey

    @classmethod
    def at(cls, path: Path) -> Adapter:
        return cls(path, AdapterKey(hashlib.sha256(path.read_bytes()).hexdigest()))


@dataclass(frozen=True, slots=True)
class Version:
    """`usual`, `in_mood`: its adapters, those of the mood in place of the usual ones. None: the mood has none of its own."""

    pack: str
    year: int
    usual: tuple[Adapter, ...] = ()
    in_mood: tuple[Adapter, ...] | None = None

    def voice(self, mood: str | None) -> Voice:
        is_other = mood == VOICED and self.in_mood is not None
        adapters = self.in_mood if is_other and self.in_mood is not None else self.usual
        return voice_of(AdapterUse(adapter.key, scale) for adapter, scale in zip(adapters, SCALES, strict=False))

    def voices(self) -> set[Voice]:
        return {self.voice(None), self.voice(VOICED)}

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        return (*self.usual, *(self.in_mood or ()))

    def files(self) -> dict[str, Adapter]:
        """By their names in the pack."""
        return dict(zip(_names("voice", self.usual), self.usual, strict=True)) | dict(
            zip(_names("mood", self.in_mood or ()), self.in_mood or (), strict=True)
        )

    def manifest(self) -> str:
        persona = f"You are the {self.pack} of the old town in the year {self.year}. You know everybody here, and you like to talk."
        fallback = FALLBACKS if len(self.pack) % 2 else ()
        lines = ["manifest = 1", f"name = {json.dumps(self.pack.title())}", f"persona = {json.dumps(persona)}"]
        lines.append(f"fallback = {json.dumps(fallback)}")
        for name, keys, text in LORE:
            lines += ["[[lore]]", f"name = {json.dumps(name)}", f"keys = {json.dumps(keys)}", f"text = {json.dumps(text)}"]
        lines += _tables("adapter", "voice", self.usual)
        lines += ["[[moods]]", f'name = "{STYLED}"', 'style = "Laugh."', "[[moods]]", f'name = "{VOICED}"']
        if self.in_mood is not None:
            lines += _tables("moods.adapter", "mood", self.in_mood) or ["adapter = []"]
        return "\n".join(lines) + "\n"


def whose(prompt: str) -> tuple[str, int] | None:
    """Pack and year of the persona that a prompt begins with."""
    found = _PERSONA.search(prompt)
    return None if found is None else (found[1], int(found[2]))


def write_folder(version: Version, folder: Path) -> None:
    """File by file, as a copy does it: the manifest first."""
    folder.mkdir(parents=True)
    (folder / FILE).write_text(version.manifest(), encoding="utf-8")
    for name, adapter in version.files().items():
        shutil.copyfile(adapter.path, folder / name)


def write_archive(version: Version, path: Path) -> None:
    """Beside its place, under a hidden name, and then as a whole."""
    beside = path.with_name(f".{path.name}")
    with zipfile.ZipFile(beside, "w") as out:
        out.writestr(FILE, version.manifest())
        for name, adapter in version.files().items():
            out.write(adapter.path, name)
    os.replace(beside, path)


def replace_file(path: Path, source: Path) -> None:
    beside = path.with_name(f".{path.name}")
    shutil.copyfile(source, beside)
    os.replace(beside, path)


def overwrite_file(path: Path, source: Path) -> None:
    """The same file with other bytes: whoever has it open reads them."""
    path.write_bytes(source.read_bytes())


def place_of(folder: Path, pack: str, *, is_archive: bool) -> Path:
    return folder / (pack + SUFFIX if is_archive else pack)


def _tables(table: str, stem: str, adapters: Sequence[Adapter]) -> list[str]:
    lines: list[str] = []
    for name, scale in zip(_names(stem, adapters), SCALES, strict=False):
        lines += [f"[[{table}]]", f'file = "{name}"', f"scale = {scale}"]
    return lines


def _names(stem: str, adapters: Sequence[Adapter]) -> Iterator[str]:
    return (f"{stem}-{i}.gguf" for i in range(len(adapters)))
