"""A pack -> a card file: .json, .png or .charx, by the name asked for. Decides what each of them carries.

JSON is the object alone. A PNG is the portrait with the card twice in it, as `ccv3` and, for readers of v2, as `chara`. A CHARX carries the
pack's pictures and adapters as files. The file appears whole or not at all.
"""

from __future__ import annotations

import base64
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from personae.errors import AskedWrong, WorldFailed
from personae.packs.cards import charx, png
from personae.packs.cards.card import note
from personae.packs.cards.extension import adapters_in
from personae.packs.cards.from_pack import card_from, manifest_of
from personae.packs.cards.json_text import json_text
from personae.packs.cards.reading import MAX_PORTRAIT_BYTES
from personae.packs.character import PackProblem
from personae.packs.pack_files import PackFiles, open_pack

MAX_CARRIED_BYTES = charx.MAX_BYTES // 2  # of all files of a CHARX that we write
_ICON = "assets/icon/images/main"


def write_card(pack: Path, to: Path, *, with_adapter: bool = False) -> list[PackProblem]:
    """Writes the card and says what could not go along. `with_adapter`: inside JSON and PNG too; a CHARX has them always.

    AskedWrong `card_format` (a name that ends otherwise), `pack_invalid`, `card_too_large`; WorldFailed `card_unwritable`.
    """
    forms: dict[str, Callable[[PackFiles, bool], tuple[bytes, list[PackProblem]]]] = {".json": _json, ".png": _png, ".charx": _charx}
    form = forms.get(to.suffix.lower())
    if form is None:
        raise AskedWrong("card_format", f"'{to.name}' names no kind of card.", "Let the name end in .json, .png or .charx.")
    with open_pack(pack) as files:
        content, notes = form(files, with_adapter)
    _put(content, to)
    return notes


def card_v2(card: dict[str, Any]) -> dict[str, Any]:
    """The same for readers that know v2 alone. Fields that came later stay: v2 asks its readers to keep what they do not know."""
    return {**card, "spec": "chara_card_v2", "spec_version": "2.0"}


# --- the three kinds ----------------------------------------------------------------------------------------------


def _json(pack: PackFiles, with_adapter: bool) -> tuple[bytes, list[PackProblem]]:
    notes = [*_no_picture(pack), *_not_carried(pack, with_adapter)]
    return json_text(card_from(pack, with_content=with_adapter)).encode(), notes


def _png(pack: PackFiles, with_adapter: bool) -> tuple[bytes, list[PackProblem]]:
    card = card_from(pack, with_content=with_adapter)
    picture, notes = _picture(pack)
    texts = {"chara": _packed(card_v2(card)), "ccv3": _packed(card)}
    return png.with_texts(picture, texts, pack.path.name), [*notes, *_not_carried(pack, with_adapter)]


def _charx(pack: PackFiles, with_adapter: bool) -> tuple[bytes, list[PackProblem]]:
    table = manifest_of(pack)
    card = card_from(pack, with_content=False)
    names = {name: charx.name_in_charx(name) for name in pack.names() if name.startswith(charx.ASSETS)}
    names |= {name: charx.ADAPTERS + name for name in adapters_in(table)}
    if portrait := str(table.get("portrait", "")):
        names.setdefault(portrait, f"{_ICON}{Path(portrait).suffix}")
        _point_icon(card, portrait, names[portrait])
    files, notes = _carried(pack, names)
    held = io.BytesIO()
    charx.charx(json_text(card).encode(), files, held)
    return held.getvalue(), notes


def _packed(card: dict[str, Any]) -> bytes:
    return base64.b64encode(json_text(card).encode())


def _not_carried(pack: PackFiles, with_adapter: bool) -> Iterator[PackProblem]:
    names = [] if with_adapter else adapters_in(manifest_of(pack))
    if names:
        problem = f"names {', '.join(map(repr, names[:4]))}, whose content is not in it."
        yield note(pack.path.name, "adapter", problem, "Export it as .charx, or with --with-adapter.")


def _no_picture(pack: PackFiles) -> Iterator[PackProblem]:
    if portrait := manifest_of(pack).get("portrait"):
        yield note(pack.path.name, "portrait", f"is {str(portrait)!r}, and JSON holds no picture.", "Export it as .png or .charx.")


def _picture(pack: PackFiles) -> tuple[bytes, list[PackProblem]]:
    """The portrait, or a blank square where it is no PNG: we change no picture into another kind."""
    portrait = str(manifest_of(pack).get("portrait", ""))
    if not portrait:
        return png.blank(), []
    try:
        content = pack.read(portrait, MAX_PORTRAIT_BYTES)
        if content.startswith(png.SIGNATURE) and png.is_whole(content, portrait):
            return content, []
        why = "is no whole PNG"
    except AskedWrong as fault:
        why = f"cannot be taken ({fault.message})"
    return png.blank(), [
        note(pack.path.name, "portrait", f"{why}: the card has a blank picture.", "Export it as .charx, or make the portrait a PNG.")
    ]


def _carried(pack: PackFiles, names: dict[str, str]) -> tuple[dict[str, bytes], list[PackProblem]]:
    files: dict[str, bytes] = {}
    notes: list[PackProblem] = []
    room = MAX_CARRIED_BYTES
    for name, inside in names.items():
        try:
            files[inside] = pack.read(name, room)
            room -= len(files[inside])
        except AskedWrong as fault:
            notes.append(note(pack.path.name, name, f"was left out: {fault.message}", "Send it along beside the card."))
    return files, notes


def _point_icon(card: dict[str, Any], portrait: str, inside: str) -> None:
    """Lets the main icon be the portrait, unless it is already or is held by the card itself."""
    fields = card["data"]
    assets = list(fields["assets"]) if isinstance(fields.get("assets"), list) else []
    icon = {"type": "icon", "uri": f"embeded://{inside}", "name": "main", "ext": Path(inside).suffix.lstrip(".").lower()}
    for place, asset in enumerate(assets):
        if isinstance(asset, dict) and (asset.get("type"), asset.get("name")) == ("icon", "main"):
            uri = str(asset.get("uri", ""))
            if uri.partition("//")[2] != inside and not (uri.startswith("data:") and portrait.startswith("icon.")):
                assets[place] = {**asset, **icon}
            break
    else:
        assets.insert(0, icon)
    fields["assets"] = assets


# --- the disk -----------------------------------------------------------------------------------------------------


def _put(content: bytes, to: Path) -> None:
    try:
        descriptor, beside = tempfile.mkstemp(prefix=".card-", dir=to.parent)
        try:
            with os.fdopen(descriptor, "wb") as out:
                out.write(content)
            os.chmod(beside, 0o644)  # mkstemp lets nobody else read
            os.replace(beside, to)
        except BaseException:
            with suppress(OSError):
                os.unlink(beside)
            raise
    except OSError as fault:
        raise WorldFailed("card_unwritable", f"'{to}' cannot be written ({fault.strerror}).", "Check the folder and the disk.") from fault
