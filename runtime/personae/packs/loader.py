"""Makes characters of packs. Decides whether a pack can be used, and reads no more of it than that takes: headers, never weights.

A pack is a folder or an archive with a character.toml, data and nothing else: no part of it is ever run. Nothing outside it is read,
however the manifest spells it or a link points. A broken pack is a list of problems, and the packs beside it load.

Without a base model at hand an adapter is looked at from outside only; with one, it has to fit.
"""

from __future__ import annotations

import hashlib
import os
import stat
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from personae.errors import AskedWrong
from personae.packs import manifest as form
from personae.packs.base import BaseShapes
from personae.packs.character import (
    AdapterFile,
    Cast,
    Character,
    Exchange,
    Lore,
    LoreRules,
    Mood,
    PackProblem,
    Severity,
    TrainedOn,
)
from personae.packs.manifest import Manifest
from personae.packs.named_files import INCOMPLETE, adapters_of, base_problems, lore_limits, lore_of, portrait_of
from personae.packs.pack_files import SUFFIX, PackFiles, open_pack, version_of, walk

MAX_ID_LENGTH = 64  # characters
_HIDDEN = (".", "_")  # folders of tools and people's notes: passed over without a word

Snapshot = tuple[tuple[str, tuple[int, ...]], ...]  # (name within the pack, its version), sorted


# --- where packs are ----------------------------------------------------------------------------------------------


def pack_paths(root: Path) -> list[Path]:
    """Folders and `.persona` files in a folder, absolute and sorted. OSError when it cannot be read."""
    root = Path(os.path.abspath(root))
    return sorted(entry for entry in root.iterdir() if not entry.name.startswith(_HIDDEN) and _may_be_pack(entry))


def pack_id(path: Path) -> str:
    """What the pack at a path is called, whether or not there is one.

    Composed, since macOS hands out names decomposed and clients type them composed; bytes that are no UTF-8 become "?".
    """
    name = unicodedata.normalize("NFC", path.name.encode("utf-8", "replace").decode())
    return name[: -len(SUFFIX)] if name.casefold().endswith(SUFFIX) else name


def snapshot(path: Path) -> Snapshot | None:
    """What tells one state of a pack from another without reading it: two that are equal are the same. None when there is no pack.

    Bounded as a pack is: of a folder with too many files, those looked at first stand for it.
    """
    try:
        seen = path.stat()
    except (OSError, ValueError):
        return None
    if not stat.S_ISDIR(seen.st_mode):
        return (_fingerprint("", seen),)
    files = []
    with suppress(AskedWrong):
        for name, entry in walk(path):
            with suppress(OSError):  # gone meanwhile, or a link to nowhere
                files.append(_fingerprint(name, entry.stat()))
    return tuple(sorted(files))


def _may_be_pack(entry: Path) -> bool:
    return entry.is_dir() or (entry.name.casefold().endswith(SUFFIX) and entry.is_file())


def _fingerprint(name: str, seen: os.stat_result) -> tuple[str, tuple[int, ...]]:
    return name, version_of(seen)


# --- packs --------------------------------------------------------------------------------------------------------


def load_character(path: Path, base: BaseShapes | None = None) -> Character:
    """The character of one pack. AskedWrong `pack_invalid`, details `problems`: all that is wrong with it."""
    character, problems = examine_pack(path, base)
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


def load_cast(root: Path, base: BaseShapes | None = None) -> Cast:
    """All packs in a folder. Never raises for what is in it: whatever is wrong is among the problems."""
    try:
        paths = pack_paths(root)
    except OSError as fault:
        problem = f"The folder '{os.path.abspath(root)}' cannot be read ({fault.strerror})."
        return Cast({}, (PackProblem("", "", "", problem, "Check the path of the characters."),))
    characters: dict[str, Character] = {}
    problems: list[PackProblem] = []
    seen: dict[str, Path] = {}
    for path in paths:
        character, found = _examine_among(seen, path, base)
        problems.extend(found)
        if character is not None:
            characters[character.id] = character
    return Cast(dict(sorted(characters.items())), tuple(problems))


def examine_pack(path: Path, base: BaseShapes | None = None) -> tuple[Character | None, tuple[PackProblem, ...]]:
    """The character, or None when the pack has errors, and everything there is to say about it, warnings included."""
    path = Path(os.path.abspath(path))
    pack = pack_id(path)
    named = tuple(_name_problems(pack, path))
    try:
        with open_pack(path) as files:
            character, problems = _examined(pack, files, base)
    except AskedWrong as fault:
        why = f"{INCOMPLETE}the archive has no end yet." if fault.code == "pack_incomplete" else fault.message
        return None, (*named, PackProblem(pack, "", "", why, fault.hint))
    return (None if named else character), (*named, *problems)


def passed_over(path: Path) -> PackProblem | None:
    """A warning for a folder that lies among packs and is none."""
    if not path.is_dir() or os.path.lexists(path / form.FILE):
        return None
    problem, remedy = f"has no {form.FILE} and is passed over.", f"Add {form.FILE}, or start the folder's name with an underscore."
    with suppress(AskedWrong), open_pack(path) as files:
        remedy = _misplaced(files) or remedy
    return PackProblem(pack_id(path), "", "", problem, remedy, Severity.WARNING)


def _examine_among(seen: dict[str, Path], path: Path, base: BaseShapes | None) -> tuple[Character | None, tuple[PackProblem, ...]]:
    """One pack of a cast. `seen`: the packs before it by id, to which it is added."""
    pack = pack_id(path)
    if passed := passed_over(path):
        return None, (passed,)
    first = seen.setdefault(pack, path)
    if first != path:  # a folder and an archive, or two spellings in Unicode, which file systems keep apart and players do not
        problem = f"has the same name as another pack: '{first.name}' and '{path.name}' are both '{pack}'."
        return None, (PackProblem(pack, "", "", problem, "Rename one of them, or remove it."),)
    return examine_pack(path, base)


def _name_problems(pack: str, path: Path) -> Iterator[PackProblem]:
    name = path.name
    if not pack or not name.isprintable() or pack != pack.strip():
        yield PackProblem(pack, "", "", f"has a name that cannot be typed: {name!a}.", "Rename the folder or archive.")
    elif len(pack) > MAX_ID_LENGTH:
        yield PackProblem(pack, "", "", f"has a name of more than {MAX_ID_LENGTH} characters.", "Rename the folder or archive.")


def _examined(pack: str, files: PackFiles, base: BaseShapes | None) -> tuple[Character | None, list[PackProblem]]:
    files.names()  # a pack with too many files is refused, since changes to it could go unseen
    try:
        content = files.read(form.FILE, form.MAX_BYTES)
        table = form.decode(content)
    except AskedWrong as fault:
        return None, [_unread(pack, files, fault)]
    except ValueError as fault:
        return None, [PackProblem(pack, form.FILE, "", f"{fault}.", "Save it as UTF-8 text in TOML; characters/README.md shows one.")]
    return _read(pack, files, content, table, base)


def _unread(pack: str, files: PackFiles, fault: AskedWrong) -> PackProblem:
    if fault.code == "pack_file_missing":
        return PackProblem(
            pack, form.FILE, "", "is missing.", _misplaced(files) or f"A pack is a folder or an archive that holds a {form.FILE}."
        )
    return PackProblem(pack, form.FILE, "", fault.message, fault.hint)


def _misplaced(files: PackFiles) -> str:
    """What to do with a manifest that is there under another name or in a folder of its own; "" when none is.

    Editors add endings that Windows does not show, and programs that unpack an archive make a folder around the one in it.
    """
    for name in files.names():
        folder, _, file = name.rpartition("/")
        if folder and file == form.FILE:
            return f"There is '{name}': move '{folder}' up."
        if not folder and file.casefold().startswith(form.FILE):
            return f"There is '{name}': rename it."
    return ""


def _read(
    pack: str, files: PackFiles, content: bytes, table: Mapping[str, Any], base: BaseShapes | None
) -> tuple[Character | None, list[PackProblem]]:
    manifest, problems = form.check(pack, table)
    adapters, said_of_adapters = adapters_of(pack, files, table, base)
    lore, lore_files, said_of_lore = lore_of(pack, files, table)
    portrait, said_of_portrait = portrait_of(pack, files, table)
    problems += [*said_of_adapters, *said_of_lore, *said_of_portrait]
    if manifest is None:
        return None, problems
    lore = [*manifest.lore, *lore]
    problems += lore_limits(pack, lore)
    if base and adapters:
        problems += base_problems(pack, manifest.base, base)
    if any(problem.is_error for problem in problems):
        return None, problems
    content_hash = _content_hash(content, lore_files, adapters)
    return _character(pack, files.path, manifest, content_hash, lore, adapters, portrait), problems


def _content_hash(manifest: bytes, lore_files: Mapping[str, bytes], adapters: Mapping[str, AdapterFile]) -> str:
    """Of all that a character is but its weights, which are not read: the same on every machine."""
    whole = hashlib.sha256(manifest)
    for name, content in lore_files.items():
        whole.update(f"\0{name}\0{len(content)}\0".encode() + content)
    for name, adapter in adapters.items():
        whole.update(f"\0{name}\0{adapter.n_bytes}".encode())
    return whole.hexdigest()


# --- the character ------------------------------------------------------------------------------------------------


def _character(
    pack: str, path: Path, manifest: Manifest, content_hash: str, lore: list[form.Lore], adapters: dict[str, AdapterFile], portrait: str
) -> Character:
    return Character(
        id=pack,
        name=manifest.name or pack,
        persona=manifest.persona,
        pack=path,
        content_hash=content_hash,
        style=manifest.style,
        greeting=manifest.greeting,
        greetings=tuple(manifest.greetings),
        examples=tuple(Exchange(example.player, example.reply) for example in manifest.examples),
        fallback=tuple(manifest.fallback),
        lore=tuple(_lore(entry) for entry in lore),
        lore_rules=LoreRules(manifest.lore_rules.tokens, manifest.lore_rules.scan_lines, manifest.lore_rules.recursion),
        adapters=_scaled(manifest.adapter, adapters),
        moods={mood.name: _mood(mood, adapters) for mood in manifest.moods},
        base=TrainedOn(**_set_fields(manifest.base)),
        sampling=_set_fields(manifest.sampling),
        limits=_set_fields(manifest.limits),
        stop=tuple(manifest.stop),
        licence=manifest.licence,
        author=manifest.author,
        description=manifest.description,
        portrait=portrait,
        tags=tuple(manifest.tags),
        extra=dict(manifest.model_extra or {}),
    )


def _scaled(named: list[form.Adapter], adapters: Mapping[str, AdapterFile]) -> tuple[AdapterFile, ...]:
    return tuple(replace(adapters[part.file], scale=part.scale) for part in named)


def _mood(mood: form.Mood, adapters: Mapping[str, AdapterFile]) -> Mood:
    own = None if mood.adapter is None else _scaled(mood.adapter, adapters)
    return Mood(mood.name, mood.style, own, _set_fields(mood.sampling))


def _lore(entry: form.Lore) -> Lore:
    return Lore(**{**_set_fields(entry), "keys": tuple(entry.keys), "secondary": tuple(entry.secondary)})


def _set_fields(table: form.Table) -> dict[str, Any]:
    return table.model_dump(include=set(type(table).model_fields), exclude_none=True)
