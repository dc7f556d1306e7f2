"""A pack that is not written yet, and its way onto the disk. Decides where it goes and that it appears there whole or not at all.

It does not ask whether the manifest is a good one: `loader.examine_pack` says that of what was written.

Rules that always hold
- Nothing is written outside the folder given, however the pack or its files are named.
- A reader sees no pack, or all of it: it is made beside, in a hidden folder, and renamed. What is replaced goes only after that.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import unicodedata
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from personae.errors import AskedWrong, WorldFailed
from personae.packs.character import PackProblem
from personae.packs.manifest import FILE
from personae.packs.names import fault_in_name, folders_above, is_hidden
from personae.packs.pack_files import SUFFIX
from personae.packs.toml_text import toml_text

MAX_FOLDER_CHARS = 48  # four bytes each at the most: file systems take 255
MAX_PART_BYTES = 255  # of a name between two /, in UTF-8
MAX_FILES = 900  # folders included; readers of packs take 1000
_UNNAMED = "character"
# Windows opens a device for these, whatever follows behind a dot.
_DEVICES = {"con", "prn", "aux", "nul", "conin$", "conout$", *(f"{port}{n}" for port in ("com", "lpt") for n in "0123456789¹²³")}


@dataclass(frozen=True, slots=True)
class PackDraft:
    """`name`: of the folder. `manifest`: the table of character.toml. `files`: by name within the pack; a Path is copied."""

    name: str
    manifest: dict[str, Any]
    files: dict[str, bytes | Path] = field(default_factory=dict)
    notes: list[PackProblem] = field(default_factory=list)  # what was changed, cut or left out on the way here
    text: bytes = b""  # character.toml as it is to be, comments included, in place of `manifest`


def folder_name(name: str) -> str:
    """A name for a pack's folder, made of the letters, digits, - and _ of `name`: the same on every system, and never a path."""
    kept = (c if _is_letter(c) else "-" for c in unicodedata.normalize("NFKC", name[:1000]).lower())
    words = "-".join(part for part in "".join(kept).split("-") if part)
    short = unicodedata.normalize("NFC", words)[:MAX_FOLDER_CHARS].strip("-_")
    if is_device(short):
        return f"{short}-{_UNNAMED}"
    return short or _UNNAMED


def is_device(name: str) -> bool:
    """Whether Windows takes a file or folder of this name for a device."""
    return name.split(".")[0].strip().lower() in _DEVICES


class Places:
    """Names that files of one pack may have beside each other, on every system. character.toml is taken."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._files: set[str] = set()
        self._folders: set[str] = set()
        for name in (FILE, *taken):
            self.take(name)

    def __len__(self) -> int:
        """Files, and the folders that they lie in."""
        return len(self._files) + len(self._folders)

    def why_not(self, name: str) -> str:
        """Why a file cannot have it, as the end of a sentence; "" when it can."""
        if fault := fault_in_name(name):
            return fault
        if is_hidden(name):
            return "that is hidden"
        if any(map(is_device, name.split("/"))):
            return "that is the name of a device"
        if any(len(part.encode()) > MAX_PART_BYTES for part in name.split("/")):
            return f"that has a part of more than {MAX_PART_BYTES} bytes"
        alike = _alike(name)
        if alike in self._files or alike in self._folders or not self._files.isdisjoint(folders_above(alike)):
            return "another has that name already"
        return ""

    def n_with(self, name: str) -> int:
        """How many there are when it is taken."""
        return len(self._files) + 1 + len(self._folders.union(folders_above(_alike(name))))

    def take(self, name: str) -> None:
        alike = _alike(name)
        self._files.add(alike)
        self._folders.update(folders_above(alike))


def _alike(name: str) -> str:
    """The same for names that some system takes for one: of either case, composed or not, with dots at the end, which Windows drops."""
    return "/".join(part.rstrip(". ") for part in unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold()).split("/"))


def write_pack(draft: PackDraft, into: Path, *, replace: bool = False) -> Path:
    """The folder of the pack, within `into`. `replace`: a pack of that name goes, once the new one is whole.

    AskedWrong `pack_exists`, `pack_invalid` (a name that cannot be one); WorldFailed `pack_unwritable`.
    """
    target = into / draft.name
    _check(draft)
    if not replace:
        _refuse_another(target)
    content = _manifest(draft)
    is_new = not into.exists()
    try:
        into.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=".new-", dir=into))
        try:
            _fill(beside, {FILE: content, **draft.files})
            _put_in_place(beside, target, replace)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
            if is_new:
                with suppress(OSError):  # it holds the pack
                    into.rmdir()
    except (OSError, shutil.Error) as fault:
        why = getattr(fault, "strerror", None) or str(fault)
        raise WorldFailed("pack_unwritable", f"Pack '{draft.name}' cannot be written to '{into}' ({why}).", "Check the folder.") from fault
    return target


# --- names --------------------------------------------------------------------------------------------------------


def _is_letter(c: str) -> bool:
    """Marks too, which some scripts write their vowels with."""
    return c.isalnum() or c == "_" or unicodedata.category(c) in ("Mn", "Mc")


def _check(draft: PackDraft) -> None:
    name = draft.name
    plain = all(_is_letter(c) or c in "-. " for c in name) and name == name.strip(" .")
    if not name or not plain or is_hidden(name) or name.startswith("_") or len(name) > 64 or is_device(name):
        hint = f"Call it '{folder_name(name)}', for instance."
        raise AskedWrong("pack_invalid", f"{name[:80]!a} cannot be the name of a pack's folder.", hint)
    places = Places()
    for file in draft.files:
        if fault := places.why_not(file):
            _refuse(draft, f"would hold {file[:80]!a}, and {fault}")
        places.take(file)
    if len(places) > MAX_FILES:
        _refuse(draft, f"holds {len(places)} files and folders, more than {MAX_FILES}")


def _refuse(draft: PackDraft, what: str) -> NoReturn:
    raise AskedWrong("pack_invalid", f"Pack '{draft.name}' {what}.", "Give the file another name, or leave it out.")


def _refuse_another(target: Path) -> None:
    """A folder and an archive of one name would be one character."""
    for path in (target, target.with_name(target.name + SUFFIX)):
        if os.path.lexists(path):
            hint = "Take another name, or ask for it to be replaced."
            raise AskedWrong("pack_exists", f"There is a pack '{path.name}' in '{path.parent}' already.", hint)


# --- the disk -----------------------------------------------------------------------------------------------------


def _manifest(draft: PackDraft) -> bytes:
    if draft.text:
        return draft.text
    try:
        return toml_text(draft.manifest).encode()
    except ValueError as fault:
        raise AskedWrong("pack_invalid", f"The manifest of pack '{draft.name}' cannot be written: {fault}.", "Change that value.") from None


def _fill(folder: Path, files: Mapping[str, bytes | Path]) -> None:
    folder.chmod(0o755)  # mkdtemp makes folders that nobody else may enter
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as out:
            if isinstance(content, Path):
                with content.open("rb") as source:
                    shutil.copyfileobj(source, out)
            else:
                out.write(content)
            out.flush()
            os.fsync(out.fileno())


def _put_in_place(beside: Path, target: Path, replace: bool) -> None:
    gone: list[tuple[Path, Path]] = []  # where each replaced one is, where it was
    try:
        if replace:
            _set_aside(target, gone)
        os.rename(beside, target)
    except OSError:
        for aside, before in gone:
            with suppress(OSError):
                os.rename(aside, before)
                aside.parent.rmdir()
        if not replace:
            _refuse_another(target)  # it came meanwhile
        raise
    for aside, _ in gone:
        shutil.rmtree(aside.parent, ignore_errors=True)  # of a link only the link


def _set_aside(target: Path, gone: list[tuple[Path, Path]]) -> None:
    """Folder and archive alike."""
    for path in (target, target.with_name(target.name + SUFFIX)):
        if os.path.lexists(path):
            aside = Path(tempfile.mkdtemp(prefix=".old-", dir=target.parent)) / path.name
            os.rename(path, aside)
            gone.append((aside, path))
