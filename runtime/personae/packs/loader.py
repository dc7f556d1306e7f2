"""Makes characters of folders. Decides whether a pack can be used; knows no base model, so an adapter is only looked at from outside.

A pack is a folder with a character.toml, data and nothing else: no part of it is ever run. Nothing outside the folder is read,
however the manifest spells it or a link points. A broken pack is a list of problems, and the packs beside it load.
"""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath, PureWindowsPath

from personae.errors import AskedWrong
from personae.packs import manifest as form
from personae.packs.character import AdapterFile, Cast, Character, Exchange, Lore, PackProblem, Severity
from personae.packs.gguf import open_regular
from personae.packs.lora import adapter_key, read_adapter_header
from personae.packs.manifest import Manifest
from personae.types import AdapterKey

MAX_ID_LENGTH = 64  # characters
_HIDDEN = (".", "_")  # folders of tools and people's notes: passed over without a word


class _Found(Exception):  # noqa: N818  no error: the problem that ends the look at one file
    def __init__(self, problem: PackProblem) -> None:
        self.problem = problem


def load_character(folder: Path) -> Character:
    """The character of one pack. AskedWrong `pack_invalid`, details `problems`: all that is wrong with it."""
    character, problems = examine_pack(folder)
    if character is not None:
        return character
    errors = [problem for problem in problems if problem.is_error]
    more = f" There are {len(errors) - 1} more." if len(errors) > 1 else ""
    raise AskedWrong(
        "pack_invalid",
        f"Pack '{errors[0].pack}' cannot be used. {errors[0]}{more}",
        "Put right what is listed under `problems`.",
        problems=[problem.to_wire() for problem in problems],
    )


def load_cast(folder: Path) -> Cast:
    """All packs in a folder. Never raises for what is in it: whatever is wrong is among the problems."""
    root = Path(os.path.abspath(folder))
    characters: dict[str, Character] = {}
    problems: list[PackProblem] = []
    try:
        entries = sorted(entry for entry in root.iterdir() if entry.is_dir())
    except OSError as fault:
        lost = PackProblem("", "", "", f"The folder '{root}' cannot be read ({fault.strerror}).", "Check the path of the characters.")
        return Cast({}, (lost,))
    for entry in entries:
        if entry.name.startswith(_HIDDEN):
            continue
        character, found = _examine_entry(entry, characters)
        problems.extend(found)
        if character is not None:
            characters[character.id] = character
    return Cast(characters, tuple(problems))


def examine_pack(folder: Path) -> tuple[Character | None, tuple[PackProblem, ...]]:
    """The character, or None when the pack has errors, and everything there is to say about it, warnings included."""
    folder = Path(os.path.abspath(folder))
    pack = _id_of(folder)
    problems = list(_name_problems(pack, folder))
    try:
        content = _manifest_bytes(pack, folder)
        table = form.decode(content)
    except _Found as found:
        return None, (*problems, found.problem)
    except ValueError as fault:
        remedy = "Save it as UTF-8 text in TOML; characters/README.md shows one."
        return None, (*problems, PackProblem(pack, form.FILE, "", f"{fault}.", remedy))
    manifest, said = form.check(pack, table)
    adapter, seen = _adapter(pack, folder, table.get("adapter"), manifest)
    problems += said + seen
    if manifest is None or any(problem.is_error for problem in problems):
        return None, tuple(problems)
    return _character(pack, folder, content, manifest, adapter), tuple(problems)


# --- the folder ---------------------------------------------------------------------------------------------------


def _examine_entry(entry: Path, others: dict[str, Character]) -> tuple[Character | None, tuple[PackProblem, ...]]:
    pack = _id_of(entry)
    if not os.path.lexists(entry / form.FILE):
        remedy = f"Add {form.FILE}, or start the folder's name with an underscore."
        return None, (PackProblem(pack, "", "", f"has no {form.FILE} and is passed over.", remedy, Severity.WARNING),)
    if pack in others:  # two spellings of one name in Unicode; file systems keep them apart, players do not
        return None, (PackProblem(pack, "", "", "has the same name as another pack.", "Rename one of the folders."),)
    return examine_pack(entry)


def _id_of(folder: Path) -> str:
    """Composed, since macOS hands out names decomposed and clients type them composed; bytes that are no UTF-8 become "?"."""
    return unicodedata.normalize("NFC", folder.name.encode("utf-8", "replace").decode())


def _name_problems(pack: str, folder: Path) -> Iterator[PackProblem]:
    name = folder.name
    if not name or not name.isprintable() or name != name.strip():
        yield PackProblem(pack, "", "", f"has a folder name that cannot be typed: {name!a}.", "Rename the folder.")
    elif len(pack) > MAX_ID_LENGTH:
        yield PackProblem(pack, "", "", f"has a folder name of more than {MAX_ID_LENGTH} characters.", "Rename the folder.")


def _manifest_bytes(pack: str, folder: Path) -> bytes:
    path = folder / form.FILE
    if not path.exists():
        raise _Found(PackProblem(pack, form.FILE, "", "is missing.", f"A pack is a folder that holds a {form.FILE}."))
    if not _is_inside(path, folder):
        raise _Found(PackProblem(pack, form.FILE, "", "is a link that leads out of the pack.", "Copy the file into the folder."))
    try:
        stream, n_bytes = open_regular(path)
        with stream:
            return stream.read(min(n_bytes, form.MAX_BYTES) + 1)
    except AskedWrong as fault:
        raise _Found(PackProblem(pack, form.FILE, "", fault.message, "Check that it is a plain file you may read.")) from None
    except OSError as fault:
        raise _Found(PackProblem(pack, form.FILE, "", f"cannot be read ({fault.strerror}).", "Check the disk.")) from None


def _is_inside(path: Path, folder: Path) -> bool:
    """Whether a path, all links followed, is still in the folder. False too when links go round in circles."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return False


# --- the adapter --------------------------------------------------------------------------------------------------


def _adapter(pack: str, folder: Path, table: object, manifest: Manifest | None) -> tuple[AdapterFile | None, list[PackProblem]]:
    """Looked at even when the rest of the manifest is wrong, so that its problems are in the same report."""
    name = table.get("file") if isinstance(table, dict) else None
    if table is None:
        return None, list(_unnamed_adapters(pack, folder))
    if not isinstance(name, str) or not name or "\0" in name:
        return None, []  # the manifest's own check says so
    try:
        path = _inside_pack(pack, folder, name)
        key = _checked_key(path)
    except _Found as found:
        return None, [found.problem]
    except AskedWrong as fault:
        return None, [PackProblem(pack, name, "adapter.file", fault.message, fault.hint)]
    scale = manifest.adapter.scale if manifest and manifest.adapter else 1.0
    return AdapterFile(path, scale, key), []


def _inside_pack(pack: str, folder: Path, name: str) -> Path:
    """The adapter's path, refused when it could be anything but a file of this pack."""
    remedy = "Copy the file into the pack and give its name."
    windows = PureWindowsPath(name)
    if "\\" in name or windows.drive or windows.is_absolute() or PurePosixPath(name).is_absolute():
        raise _Found(PackProblem(pack, form.FILE, "adapter.file", f"'{name}' is not a path inside the pack, written with /.", remedy))
    if ".." in PurePosixPath(name).parts:
        raise _Found(PackProblem(pack, form.FILE, "adapter.file", f"'{name}' leads out of the pack.", remedy))
    path = folder / name
    if not _is_inside(path, folder):
        raise _Found(PackProblem(pack, form.FILE, "adapter.file", f"'{name}' is a link that leads out of the pack.", remedy))
    return path


def _unnamed_adapters(pack: str, folder: Path) -> Iterator[PackProblem]:
    for path in sorted(folder.glob("*.gguf")):
        remedy = f'Add an [adapter] table with file = "{path.name}", or remove the file.'
        yield PackProblem(pack, path.name, "adapter", "is in the pack and the manifest does not name it.", remedy, Severity.WARNING)


def _checked_key(path: Path) -> AdapterKey:
    """The content key of an adapter with a sound header. AskedWrong as read_adapter_header."""
    try:
        seen = path.stat()
    except OSError:
        return _checked_key_as_of(path, (0, 0, 0, 0))  # raises what is wrong with it
    return _checked_key_as_of(path, (seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns))


@lru_cache(maxsize=1024)
def _checked_key_as_of(path: Path, version: tuple[int, int, int, int]) -> AdapterKey:
    """Cached, since a watcher examines packs again and again and a file of megabytes seldom changes. Refusals are not cached."""
    read_adapter_header(path)
    return adapter_key(path)


# --- the character ------------------------------------------------------------------------------------------------


def _character(pack: str, folder: Path, content: bytes, manifest: Manifest, adapter: AdapterFile | None) -> Character:
    identity = hashlib.sha256(content)
    identity.update(b"\0" + (adapter.key if adapter else "").encode())
    return Character(
        id=pack,
        name=manifest.name or pack,
        persona=manifest.persona,
        folder=folder,
        content_hash=identity.hexdigest(),
        style=manifest.style,
        greeting=manifest.greeting,
        examples=tuple(Exchange(example.player, example.reply) for example in manifest.examples),
        fallback=tuple(manifest.fallback),
        lore=tuple(Lore(entry.text, entry.name, entry.priority) for entry in manifest.lore),
        adapter=adapter,
        sampling=_set_fields(manifest.sampling),
        limits=_set_fields(manifest.limits),
        stop=tuple(manifest.stop),
        licence=manifest.licence,
        author=manifest.author,
        description=manifest.description,
        tags=tuple(manifest.tags),
        extra=dict(manifest.model_extra or {}),
    )


def _set_fields(table: form.Sampling | form.TurnLimits) -> dict[str, object]:
    return table.model_dump(include=set(type(table).model_fields), exclude_none=True)
