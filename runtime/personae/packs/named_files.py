"""The files that a manifest names: adapters, lore, portrait. Decides whether each is what the manifest takes it for.

Of an adapter only the header is read: whether it fits the base shows there, and a service with two hundred packs starts in a second.
Everything is looked at even when the rest of the manifest is wrong, so that all problems are in one report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from personae.errors import AskedWrong
from personae.packs import manifest as form
from personae.packs.base import BaseShapes
from personae.packs.character import AdapterFile, PackProblem, Severity
from personae.packs.fit import fit
from personae.packs.gguf import ADAPTER_LIMITS, GgufHeader
from personae.packs.lora_header import adapter_header, alpha_of, reading
from personae.packs.manifest import tables_in
from personae.packs.mistakes import MAX_PROBLEMS
from personae.packs.pack_files import PackFiles
from personae.patterns import classes_in

INCOMPLETE = "is incomplete: "  # begins a problem that may be gone when a copy is finished
MAX_PORTRAIT_BYTES = 8 * 1024 * 1024
MAX_ADAPTERS = 160  # looked at in one pack: as many as a manifest without mistakes can name
MAX_HEADERS_BYTES = 16 * 1024 * 1024  # of all adapters of a pack: they bound the time it takes; one that is refused counts as the largest

Problems = list[PackProblem]


# --- adapters -----------------------------------------------------------------------------------------------------


def adapters_of(pack: str, files: PackFiles, table: Mapping[str, Any], base: BaseShapes | None) -> tuple[dict[str, AdapterFile], Problems]:
    """Every adapter that a manifest names, as yet unchecked, at scale 1, by name; and what is wrong with them, each told once."""
    found: dict[str, AdapterFile] = {}
    problems: Problems = []
    named = _named(table)
    room = MAX_HEADERS_BYTES
    for name, field in islice(named.items(), MAX_ADAPTERS):
        if room <= 0:
            remedy = "Put right what else is said of adapters, or use fewer."
            problems.append(PackProblem(pack, name, field, "was not looked at: those before it are too many or too large.", remedy))
            break
        try:
            found[name], warnings, n_header = _adapter(files, name, base)
        except AskedWrong as fault:
            problems.append(_adapter_problem(pack, name, field, fault))
            room -= ADAPTER_LIMITS.header_bytes if fault.code.startswith("adapter_") else 0
        else:
            room -= n_header
            remedy = "Use it with the base it was trained on, exported with its alpha."
            problems += [PackProblem(pack, name, field, warning, remedy, Severity.WARNING) for warning in warnings]
    if "adapter" not in table and not named:
        problems += islice(_unnamed_adapters(pack, files), MAX_PROBLEMS)
    return found, problems


def _named(table: Mapping[str, Any]) -> dict[str, str]:
    """name -> the field where it stands first, of all names that are texts."""
    places = [*tables_in(table, "adapter")]
    for place, mood in tables_in(table, "moods"):
        places += [(f"{place}.{inner}", part) for inner, part in tables_in(mood, "adapter")]
    named: dict[str, str] = {}
    for place, part in places:
        if isinstance(name := part.get("file"), str) and name:
            named.setdefault(name, f"{place}.file")
    return named


def _adapter(files: PackFiles, name: str, base: BaseShapes | None) -> tuple[AdapterFile, tuple[str, ...], int]:
    """With warnings, and the bytes of its header.

    The version is taken first: what is read may be newer than it, and is then found to be so, but never older.
    """
    version = files.version(name)
    label = Path(PurePosixPath(name).name)
    stream, n_bytes = files.open(name)
    with stream, reading(label):
        header = adapter_header(stream, n_bytes, label)
    alpha_of(header)
    warnings = fit(header, base).warnings if base else ()
    return AdapterFile(files.path, name, 1.0, version, _weight_bytes(header)), warnings, header.data_offset


def _weight_bytes(header: GgufHeader) -> int:
    return sum(tensor.n_bytes for tensor in header.tensors.values())


def _adapter_problem(pack: str, name: str, field: str, fault: AskedWrong) -> PackProblem:
    if fault.code == "adapter_truncated":
        return PackProblem(pack, name, field, INCOMPLETE + fault.message, fault.hint)
    file = form.FILE if fault.code.startswith("pack_file") else name
    return PackProblem(pack, file, field, fault.message, fault.hint)


def _unnamed_adapters(pack: str, files: PackFiles) -> Iterator[PackProblem]:
    for name in files.names():
        if name.endswith(".gguf") and "/" not in name:
            remedy = f'Add an [adapter] table with file = "{name}", or remove the file.'
            yield PackProblem(pack, name, "adapter", "is in the pack and the manifest does not name it.", remedy, Severity.WARNING)


def base_problems(pack: str, said: form.Base, base: BaseShapes) -> Iterator[PackProblem]:
    """Where the base that a pack's adapters were made for is another than the one at hand: another shape is an error."""
    here = f"the base '{base.name}' here"
    for field, theirs, ours in (
        ("architecture", said.architecture, base.architecture),
        ("n_layers", said.n_layers, base.n_layers),
        ("n_embd", said.n_embd, base.n_embd),
    ):
        if theirs and ours and theirs != ours:
            problem = f"is {theirs!r}, and that of {here} is {ours!r}: the adapters were made for another model."
            yield PackProblem(pack, form.FILE, f"base.{field}", problem, "Load the base they were trained on, or train them on this one.")
    if said.hash and base.hashes and said.hash not in base.hashes:
        problem = f"is that of another file than {here}: the voice may differ from how it was trained."
        remedy = "Load the base it was trained on, or remove the hash when you have heard that it is right."
        yield PackProblem(pack, form.FILE, "base.hash", problem, remedy, Severity.WARNING)


# --- lore ---------------------------------------------------------------------------------------------------------


def lore_of(pack: str, files: PackFiles, table: Mapping[str, Any]) -> tuple[list[form.Lore], dict[str, bytes], Problems]:
    """The entries of all lore files, in their order, and the files as they are by name."""
    entries: list[form.Lore] = []
    contents: dict[str, bytes] = {}
    problems: Problems = []
    n_tried = len(form.patterns_in(table))
    for number, name in enumerate(_lore_names(table), start=1):
        if not isinstance(name, str) or not name or name in contents:
            continue  # the manifest's own check says so, or it is there already
        try:
            contents[name] = files.read(name, form.MAX_LORE_FILE_BYTES)
            if sum(map(len, contents.values())) > form.MAX_LORE_BYTES:
                problems.append(_too_much_lore(pack))
                break
            part = form.decode(contents[name], form.MAX_LORE_FILE_BYTES)
            read, said = form.check_lore(pack, name, part, max(form.MAX_REGEX_KEYS - n_tried, 0))
            n_tried += len(form.patterns_in(part))
        except AskedWrong as fault:
            problems.append(PackProblem(pack, form.FILE, f"lore_files[{number}]", fault.message, fault.hint))
        except ValueError as fault:
            problems.append(PackProblem(pack, name, "", f"{fault}.", "Save it as UTF-8 text in TOML that holds [[lore]] tables."))
        else:
            entries += read.lore if read else []
            problems += said
    return entries, contents, problems


def _too_much_lore(pack: str) -> PackProblem:
    problem = f"hold more than {form.MAX_LORE_BYTES} bytes together."
    return PackProblem(pack, form.FILE, "lore_files", problem, "Keep what this character needs to know.")


def _lore_names(table: Mapping[str, Any]) -> list[object]:
    names = table.get("lore_files")
    return names[: form.MAX_LORE_FILES] if isinstance(names, list) else []


def lore_limits(pack: str, entries: list[form.Lore]) -> Iterator[PackProblem]:
    if len(entries) > form.MAX_LORE:
        problem = f"and lore hold {len(entries)} entries together, more than {form.MAX_LORE}."
        yield PackProblem(pack, form.FILE, "lore_files", problem, "Keep what this character needs to know.")
    n_patterns = sum(len(entry.keys) + len(entry.secondary) for entry in entries if entry.regex)
    if n_patterns > form.MAX_REGEX_KEYS:
        problem = f"has {n_patterns} keys that are regular expressions, more than {form.MAX_REGEX_KEYS}."
        yield PackProblem(pack, form.FILE, "lore", problem, "Use words where words will do; one pattern may hold several: a|b.")
    n_classes = sum(classes_in(key) for entry in entries if entry.regex for key in (*entry.keys, *entry.secondary))
    if n_classes > form.MAX_REGEX_CLASSES:
        problem = f"has keys with {n_classes} Unicode classes (\\p), more than {form.MAX_REGEX_CLASSES}."
        yield PackProblem(pack, form.FILE, "lore", problem, r"Write the letters that are meant, as in [a-zàéè], or \w.")


# --- portrait -----------------------------------------------------------------------------------------------------


def portrait_of(pack: str, files: PackFiles, table: Mapping[str, Any]) -> tuple[str, Problems]:
    """The portrait's name, or "" where there is none that can be used."""
    name = table.get("portrait")
    if not isinstance(name, str) or not name:
        return "", []
    try:
        stream, n_bytes = files.open(name)
        with stream:
            fault = _fault_in_image(stream.read(12), n_bytes)
    except AskedWrong as refused:
        fault = refused.message
    except OSError as failed:
        fault = f"cannot be read ({failed.strerror})."
    if not fault:
        return name, []
    remedy = "Put a PNG, JPEG or WebP image into the pack and give its name."
    return "", [PackProblem(pack, form.FILE, "portrait", fault, remedy, Severity.WARNING)]


def _fault_in_image(head: bytes, n_bytes: int) -> str:
    if n_bytes > MAX_PORTRAIT_BYTES:
        return f"has {n_bytes} bytes, more than {MAX_PORTRAIT_BYTES}."
    is_webp = head[:4] == b"RIFF" and head[8:12] == b"WEBP"
    return "" if is_webp or head.startswith((b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")) else "is no PNG, JPEG or WebP image."
