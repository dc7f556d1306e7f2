"""What a pack has and a card has no place for: `extensions.personae` of a card. Decides its form, reads it and writes it.

    {"version": 1, "licence": "MIT", "sampling": {...}, "adapter": [{"file": "voice.gguf", "scale": 1.0}], "moods": [...],
     "files": {"voice.gguf": {"sha256": "...", "n_bytes": 5242880, "content": "base64, only when asked for"}}}

The keys are those of character.toml. An adapter named here becomes one of the pack's only if its file came along, within the card or
beside it in a CHARX. Keys of later versions are kept.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

from personae.errors import AskedWrong
from personae.packs import manifest as form
from personae.packs.cards.card import Card, fields_of
from personae.packs.cards.fitting import Fitting
from personae.packs.cards.json_text import Spelled
from personae.packs.character import PackProblem
from personae.packs.draft import Places
from personae.packs.pack_files import PackFiles
from personae.packs.toml_text import toml_text

NAME = "personae"
VERSION = 1
# Of each as TOML. Those of moods may have to go when all are together, and the others always find room in a manifest.
MAX_KEY_BYTES = {
    "licence": 2000,
    "fallback": 32_000,
    "stop": 8000,
    "sampling": 8000,
    "limits": 8000,
    "moods": form.MAX_BYTES,
    "base": 8000,
    "adapter": 16_000,
}
KEYS = tuple(MAX_KEY_BYTES)
MAX_INLINE_BYTES = 8 * 1024 * 1024  # of all adapters within a card: base64 makes a third more of them, and readers take 16 MiB
MAX_FILE_BYTES = 128 * 1024 * 1024  # of one adapter in a CHARX
SUFFIX = ".gguf"
CARD_FILE = "card.json"  # in a pack: the card it was made from
LORE_FILES = tuple(f"lore-{n}.toml" for n in range(1, form.MAX_LORE_FILES + 1))
PICTURE = "portrait.png"  # the one that the card was in
ICONS = ("icon.png", "icon.jpg", "icon.webp")  # one that was in the card
_CHUNK = 1024 * 1024


def places_beside(files: Iterable[str] = ()) -> Places:
    """Where a card's files may lie in a pack: beside `files` and what an import itself lays there."""
    return Places((CARD_FILE, *LORE_FILES, PICTURE, *ICONS, *files))


def extension_of(extensions: Mapping[str, Any]) -> Mapping[str, Any]:
    found = extensions.get(NAME)
    return found if isinstance(found, Mapping) else {}


def pack_fields(card: Card, fitting: Fitting) -> dict[str, Any]:
    """The manifest's keys that the card brings along, those left out that a manifest would refuse."""
    found = extension_of(card.extensions)
    fields = {key: _plain(found[key]) for key in KEYS if key in found}
    files = {*card.files, *pack_files(card)}
    for key in ("adapter", "moods"):
        if key in fields:
            fields[key] = _with_files(fields[key], files, fitting)
    for key in [key for key, value in fields.items() if value is None or not _is_valid(key, value, fitting)]:
        del fields[key]
    return fields


def pack_files(card: Card) -> dict[str, bytes]:
    """Adapters within the card itself, by name within the pack. One that is damaged, or in another's place, is left out."""
    files: dict[str, bytes] = {}
    places = places_beside(card.files)
    for name, said in _files(card.extensions):
        content = _content(said)
        if content is not None and name.endswith(SUFFIX) and not places.why_not(name):
            places.take(name)
            files[name] = content
    return files


def without_content(whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """A card's object without the adapters within it: in a pack they are files."""
    fields = fields_of(whole)
    inner = fields.get("extensions")
    ours = extension_of(inner) if isinstance(inner, Mapping) else {}
    files = ours.get("files")
    if not isinstance(inner, Mapping) or not isinstance(files, Mapping):
        return whole
    kept = {name: {k: v for k, v in said.items() if k != "content"} if isinstance(said, Mapping) else said for name, said in files.items()}
    bare = {**fields, "extensions": {**inner, NAME: {**ours, "files": kept}}}
    return bare if fields is whole else {**whole, "data": bare}


def adapters_in(table: Mapping[str, Any]) -> list[str]:
    """Files of all adapters of a manifest, those of moods too, each once."""
    moods = table.get("moods", [])
    lists = [table.get("adapter", []), *(mood.get("adapter", []) for mood in moods if isinstance(mood, Mapping))]
    parts = [part for found in lists for part in (found if isinstance(found, list) else [found])]
    return list(dict.fromkeys(str(part["file"]) for part in parts if isinstance(part, Mapping) and "file" in part))


def files_said(pack: PackFiles, names: list[str], *, with_content: bool) -> dict[str, dict[str, Any]]:
    """What the extension says of each adapter. AskedWrong `card_too_large` (all content is too much for a card), `pack_file_*`."""
    room = MAX_INLINE_BYTES
    said: dict[str, dict[str, Any]] = {}
    for name in names:
        stream, n_bytes = pack.open(name)
        with stream:
            room -= n_bytes
            if with_content and room < 0:
                hint = "Export it as .charx, which carries files, or without its adapter."
                raise AskedWrong("card_too_large", f"The adapters have more than {MAX_INLINE_BYTES} bytes, too many for a card.", hint)
            try:
                said[name] = _said(stream, n_bytes, with_content)
            except OSError as fault:
                raise AskedWrong("pack_file_refused", f"'{name}' cannot be read ({fault.strerror}).", "Check the disk.") from fault
    return said


def _said(stream: BinaryIO, n_bytes: int, with_content: bool) -> dict[str, Any]:
    digest, pieces = hashlib.sha256(), []
    while piece := stream.read(_CHUNK):
        digest.update(piece)
        if with_content:
            pieces.append(piece)
    content = {"content": base64.b64encode(b"".join(pieces)).decode()} if with_content else {}
    return {"sha256": digest.hexdigest(), "n_bytes": n_bytes, **content}


# --- reading ------------------------------------------------------------------------------------------------------


def _files(extensions: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    files = extension_of(extensions).get("files")
    if isinstance(files, Mapping):
        yield from ((name, said) for name, said in list(files.items())[:16] if isinstance(said, Mapping))


def _content(said: Mapping[str, Any]) -> bytes | None:
    try:
        content = base64.b64decode(said.get("content") or "", validate=True)
    except (ValueError, TypeError):
        return None
    is_right = said.get("sha256", "") in ("", hashlib.sha256(content).hexdigest())
    return content if content and is_right and len(content) <= MAX_INLINE_BYTES else None


def _with_files(part: Any, files: set[str], fitting: Fitting) -> Any:
    """An adapter, a mood with its adapters, or a list of either, without adapters whose file did not come along. None: nothing is left."""
    if isinstance(part, list):
        kept = [left for one in part if (left := _with_files(one, files, fitting)) is not None]
        return kept if kept or not part else None  # an empty list of adapters would mean the base model alone
    if not isinstance(part, dict):
        return part
    if "adapter" in part:
        left = _with_files(part["adapter"], files, fitting)
        return {key: value for key, value in {**part, "adapter": left}.items() if value is not None}
    if (file := part.get("file")) is None or (isinstance(file, str) and file in files):
        return part
    remedy = "Copy the file into the pack and name it in character.toml."
    fitting.note(f"extensions.{NAME}.adapter", f"names {str(file)[:80]!r}, which is not in the card.", remedy)
    return None


def _is_valid(key: str, value: Any, fitting: Fitting) -> bool:
    _, problems = form.check("", {"name": "x", "persona": "x", key: value})
    errors: list[PackProblem] = [problem for problem in problems if problem.is_error]
    fault = f"{errors[0].field} {errors[0].problem}" if errors else _fault_in_text(key, value)
    if fault:
        fitting.note(f"extensions.{NAME}.{key}", fault[:200], "It was left out.")
    return not fault


def _fault_in_text(key: str, value: Any) -> str:
    """Keys that the form does not know are kept, whatever they hold: it has to be what a manifest can be written with, and read."""
    try:
        form.decode(toml_text({key: value}).encode(), MAX_KEY_BYTES[key])
    except ValueError as fault:
        return f"{fault}."
    return ""


def _plain(value: Any) -> Any:
    """Without what TOML cannot hold."""
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items() if part is not None and not _is_torn(key)}
    if isinstance(value, list):
        return [_plain(part) for part in value if part is not None]
    if isinstance(value, Spelled):
        return float(value)
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _is_torn(key: str) -> bool:
    return key.encode("utf-8", "ignore").decode() != key
