"""A file -> a Card. Decides by a file's content whether it is JSON, PNG or CHARX, and which picture is the character's.

`card_from_bytes` is all of it but the opening of a file, and raises nothing but AskedWrong: `card_unreadable` (damaged), `card_too_large`,
`not_a_card` (whole, and something else).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from personae.errors import AskedWrong
from personae.packs.cards import charx, png
from personae.packs.cards.card import Card, card_of_object, note, shown
from personae.packs.cards.extension import PICTURE, places_beside
from personae.packs.cards.json_text import read_json
from personae.packs.character import PackProblem
from personae.packs.names import plain
from personae.packs.plain_files import open_plain

MAX_FILE_BYTES = charx.MAX_BYTES
MAX_PORTRAIT_BYTES = 8 * 1024 * 1024  # what a pack's may have
MAX_SOURCE_CHARS = 120
# kind of image -> how its file begins
_IMAGES = {"png": (0, png.SIGNATURE), "jpg": (0, b"\xff\xd8\xff"), "webp": (8, b"WEBPVP8")}
_EMBEDDED = ("embeded://", "embedded://")  # the format's own spelling, and the right one
_ZIP, _ZIP_END = b"PK\3\4", b"PK\5\6"


def read_card(path: Path) -> Card:
    """AskedWrong `card_unreadable`, `card_too_large`, `not_a_card`."""
    source = _shown(path.name)
    try:
        stream = _opened(path, source)
        with stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as fault:  # ValueError: a NUL in the path
        why = getattr(fault, "strerror", None) or fault
        raise AskedWrong("card_unreadable", f"'{source}' cannot be read ({why}).", "Check the path, and that you may read it.") from None
    return card_from_bytes(content, source)


def card_from_bytes(content: bytes, source: str) -> Card:
    """A card from a file's whole content. `source`: how it is called in notes and errors, and what stands for a missing name."""
    source = _shown(source)
    if len(content) > MAX_FILE_BYTES:
        raise AskedWrong("card_too_large", f"'{source}' has more than {MAX_FILE_BYTES} bytes.", "Make the card smaller.")
    if content.startswith(png.SIGNATURE):
        return _from_png(content, source)
    head = content[:64].lstrip(b"\xef\xbb\xbf\xff\xfe\0 \t\r\n")
    if head[:1] in (b"{", b"["):
        return _from_json(content, source)
    if content.startswith(_ZIP) or _ZIP_END in content[-65_557:]:
        return _from_charx(content, source)
    raise AskedWrong(
        "not_a_card", f"'{source}' is no character card: it is neither JSON nor PNG nor CHARX.", "Take the file that you downloaded."
    )


def _opened(path: Path, source: str) -> BinaryIO:
    stream = open_plain(path)
    if stream is None:
        raise AskedWrong("card_unreadable", f"'{source}' is not a regular file.", "Give the path of a card.")
    if (n_bytes := os.fstat(stream.fileno()).st_size) > MAX_FILE_BYTES:
        stream.close()
        raise AskedWrong("card_too_large", f"'{source}' has {n_bytes} bytes, more than {MAX_FILE_BYTES}.", "Make the card smaller.")
    return stream


def _shown(name: str) -> str:
    """A file's name as it can be printed and sent."""
    return shown(name)[:MAX_SOURCE_CHARS] or "card"


# --- the three containers -----------------------------------------------------------------------------------------


def _from_json(content: bytes, source: str) -> Card:
    value, odd = read_json(content, source)
    card = card_of_object(value, source)
    return _with_files(card, {}, [note(source, "", f"{what}.") for what in odd])


def _from_png(content: bytes, source: str) -> Card:
    if len(content) > png.MAX_BYTES:
        raise AskedWrong("card_too_large", f"'{source}' has {len(content)} bytes, more than {png.MAX_BYTES}.", "Make the picture smaller.")
    card, notes = _card_in_png(content, source)
    if not png.is_whole(content, source):
        notes.append(note(source, "", "breaks off within its picture.", "The card was read; export or download it again for the picture."))
    files = {PICTURE: png.without_card(content, source)}
    places = places_beside()
    for path, asset in png.assets(content, source):
        name = plain(f"{charx.ASSETS}{path}{'' if '.' in path else '.bin'}")
        if why := places.why_not(name):
            notes.append(note(source, path[:120], f"was left out: {why}.", "Copy it into the pack by hand."))
        else:
            places.take(name)
            files[name] = asset
    return _with_files(card, files, notes)


def _card_in_png(content: bytes, source: str) -> tuple[Card, list[PackProblem]]:
    """The newest form that can be read; the others are only tried when it cannot."""
    notes: list[PackProblem] = []
    fault: AskedWrong | None = None
    for text in png.card_texts(content, source):
        if not text.is_intact:
            notes.append(note(source, text.keyword, "has a wrong checksum.", "It was read all the same; export the card again."))
        try:
            value, odd = read_json(_json_in(text.content, source), source)
            card = card_of_object(value, source)
        except AskedWrong as refused:
            notes.append(note(source, text.keyword, f"cannot be used: {refused.message}", "The next text in the picture was tried."))
            fault = fault or refused
            continue
        return card, notes + [note(source, text.keyword, f"{what}.") for what in odd]
    if fault is not None:
        raise fault
    where = "Some programs and sites take the card out of a picture; take the original file."
    raise AskedWrong("not_a_card", f"'{source}' is a picture without a character card.", where)


def _json_in(text: bytes, source: str) -> bytes:
    """Base64 as the formats ask for it, or the JSON itself."""
    if text.lstrip()[:1] == b"{":
        return text
    try:
        return png.unbase64(text)
    except ValueError:
        raise AskedWrong("card_unreadable", f"The card in '{source}' is not base64.", "Export or download the card again.") from None


def _from_charx(content: bytes, source: str) -> Card:
    found = charx.read_charx(content, source)
    value, odd = read_json(found.card, source)
    card = card_of_object(value, source)
    return _with_files(card, found.files, [*found.notes, *(note(source, "", f"{what}.") for what in odd)])


# --- pictures -----------------------------------------------------------------------------------------------------


def _with_files(card: Card, files: Mapping[str, bytes], notes: list[PackProblem]) -> Card:
    held = dict(files)
    portrait = next(_icons(card, held), "")
    if PICTURE in held and not portrait:
        n_bytes = len(held[PICTURE])
        problem = f"has {n_bytes} bytes, more than the {MAX_PORTRAIT_BYTES} of a portrait."
        notes = [*notes, note(card.source, PICTURE, problem, "It is in the pack and not named; make it smaller.")]
    return replace(card, files=held, portrait=portrait, notes=(*card.notes, *notes))


def _icons(card: Card, files: dict[str, bytes]) -> Iterator[str]:
    """Files that may be the portrait, the best first: the main icon, any icon, the picture that the card is in."""
    for asset in _icon_assets(card.fields.get("assets")):
        name = _file_of(asset.get("uri"), files)
        if name and _is_portrait(files[name]):
            yield name
    yield from (name for name in files if name == PICTURE and _is_portrait(files[name]))


def _icon_assets(assets: Any) -> list[Mapping[str, Any]]:
    listed = assets[:1000] if isinstance(assets, list) else []
    icons = [asset for asset in listed if isinstance(asset, Mapping) and asset.get("type") == "icon"]
    return sorted(icons, key=lambda asset: asset.get("name") != "main")


def _file_of(uri: Any, files: dict[str, bytes]) -> str:
    """Which of the files an asset's address means; one that is within the address itself becomes a file. Nothing is ever fetched."""
    if not isinstance(uri, str):
        return ""
    if uri.startswith("data:"):
        return _from_address(uri, files)
    for scheme in _EMBEDDED:
        if uri.startswith(scheme):
            name = charx.name_in_pack(plain(uri.removeprefix(scheme)))
            return name if name in files else ""
    if uri.startswith("__asset:"):
        path = f"{charx.ASSETS}{uri.removeprefix('__asset:')}"
        return next((name for name in (path, f"{path}.bin") if name in files), "")
    return PICTURE if uri == "ccdefault:" and PICTURE in files else ""


def _from_address(uri: str, files: dict[str, bytes]) -> str:
    head, _, body = uri.partition(",")
    if not head.endswith(";base64") or len(body) > MAX_PORTRAIT_BYTES * 3 // 2:
        return ""
    try:
        content = png.unbase64(body.encode("ascii", "replace"))
    except ValueError:
        return ""
    if not _is_portrait(content):
        return ""
    name = f"icon.{_image_kind(content)}"
    files.setdefault(name, content)
    return name


def _image_kind(content: bytes) -> str:
    """By its first bytes; "" when it is no picture that a pack may have."""
    return next((kind for kind, (at, begins) in _IMAGES.items() if content.startswith(begins, at)), "")


def _is_portrait(content: bytes) -> bool:
    return bool(_image_kind(content)) and len(content) <= MAX_PORTRAIT_BYTES
