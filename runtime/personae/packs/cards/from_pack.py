"""A pack -> a card (chara_card_v3, with everything that readers of v2 look for). Decides what is given back as it came and what is new.

A pack that was a card holds it as card.json. That card is made into a manifest once more, in memory: every field that the pack still has
as the import made it goes out as it came in, value for value, odd spellings and unknown keys included; a field that was edited goes out
as edited. A pack that never was a card is written into an empty one.

Where several fields of a card became one of a pack and that was edited, the first of them takes the new text and the others are emptied:
description for persona, system_prompt for style.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from personae.errors import AskedWrong
from personae.packs import manifest as form
from personae.packs.cards.book_out import put_entries, put_rules, same
from personae.packs.cards.card import BOOK_NAMES, OTHER_NAMES, Card, card_of_object, fields_of
from personae.packs.cards.examples import text_of
from personae.packs.cards.extension import KEYS, NAME, VERSION, adapters_in, extension_of, files_said
from personae.packs.cards.fitting import Fitting, limit_of
from personae.packs.cards.json_text import MAX_BYTES, read_json
from personae.packs.cards.macros import Macros
from personae.packs.cards.to_pack import CARD_FILE, depth_prompt, imported, lore_of
from personae.packs.pack_files import PackFiles, open_pack

# A manifest's field -> the card's that takes it, and those that were part of it.
_TEXTS = {
    "name": ("name",),
    "persona": ("description", "personality", "scenario"),
    "style": ("system_prompt", "post_history_instructions"),
    "greeting": ("first_mes",),
    "description": ("creator_notes",),
    "author": ("creator",),
}
_LISTS = {"greetings": "alternate_greetings", "tags": "tags"}
_REQUIRED: Mapping[str, Any] = {
    **dict.fromkeys(("name", "description", "personality", "scenario", "first_mes", "mes_example", "creator_notes"), ""),
    **dict.fromkeys(("system_prompt", "post_history_instructions", "creator", "character_version"), ""),
    "alternate_greetings": [],
    "tags": [],
    "group_only_greetings": [],
    "extensions": {},
}


def card_of(pack: Path, *, with_adapter: bool = False) -> dict[str, Any]:
    """The card's object. `with_adapter`: with the adapters inside it, as base64.

    AskedWrong `pack_invalid`, `card_too_large` (adapters too large for that), and what opening a pack raises.
    """
    with open_pack(pack) as files:
        return card_from(files, with_content=with_adapter)


def card_from(pack: PackFiles, *, with_content: bool) -> dict[str, Any]:
    table = manifest_of(pack)
    origin = _origin(pack)
    return _Export(table, origin).card(files_said(pack, adapters_in(table), with_content=with_content))


def manifest_of(pack: PackFiles) -> dict[str, Any]:
    """A pack's manifest as it is written, the lore of its files included. AskedWrong `pack_invalid`."""
    table = _table(pack, form.FILE, form.MAX_BYTES)
    found, problems = form.check(pack.path.name, table)
    if found is None:
        first = next(problem for problem in problems if problem.is_error)
        raise AskedWrong("pack_invalid", f"Pack '{pack.path.name}' cannot be exported. {first}", "Run `personae pack check`.")
    lore = [*table.get("lore", [])]
    for name in found.lore_files:
        more = _table(pack, name, form.MAX_LORE_FILE_BYTES)
        lore += [entry for entry in more.get("lore", []) if isinstance(entry, dict)]
    named = {"name": pack.path.name.removesuffix(".persona"), **table}
    return {**named, "lore": lore, "licence": table.get("licence", table.get("license", ""))}


def _table(pack: PackFiles, name: str, most_bytes: int) -> dict[str, Any]:
    try:
        return form.decode(pack.read(name, most_bytes), most_bytes)
    except ValueError as fault:
        raise AskedWrong("pack_invalid", f"'{name}' of pack '{pack.path.name}' {fault}.", "Run `personae pack check`.") from None


def _origin(pack: PackFiles) -> Card | None:
    """The card that the pack was made from. None when there is none, or when what is there is none any more."""
    if CARD_FILE not in pack.names():
        return None
    try:
        value, _ = read_json(pack.read(CARD_FILE, MAX_BYTES), CARD_FILE)
        return card_of_object(value, CARD_FILE)
    except AskedWrong:
        return None


class _Export:
    """One pack on its way into a card. Owns the object that comes out."""

    def __init__(self, table: Mapping[str, Any], origin: Card | None) -> None:
        self._table = table
        self._origin = origin
        self._made: Mapping[str, Any] = {}
        self._fitting = Fitting("", Macros(""))
        whole: dict[str, Any] = {}
        if origin is not None:
            self._made, self._fitting = imported(origin)
            whole = copy.deepcopy(dict(origin.whole))
        self._whole = whole
        if fields_of(whole) is whole:  # a card of version 1, or none: its fields stay at the top for readers of version 1
            inner = {key: copy.deepcopy(whole[name]) for key in _REQUIRED for name in (key, *OTHER_NAMES.get(key, ())) if name in whole}
            whole["data"] = inner | {key: copy.deepcopy(whole[key]) for key in BOOK_NAMES if key in whole}
        self._fields: dict[str, Any] = whole["data"]

    def card(self, files: Mapping[str, Any]) -> dict[str, Any]:
        self._texts()
        self._lists()
        self._examples()
        self._book()
        self._extension(files)
        for key, empty in _REQUIRED.items():
            self._fields.setdefault(key, copy.copy(empty))
        version = self._origin.version if self._origin else 1.0
        if version < 3:
            self._whole |= {"spec": "chara_card_v3", "spec_version": "3.0"}
        head = {key: self._whole[key] for key in ("spec", "spec_version", "data") if key in self._whole}
        return head | self._whole

    def _is_edited(self, *keys: str) -> bool:
        return any(not same(self._table.get(key), self._made.get(key)) for key in keys)

    def _set(self, key: str, value: Any) -> None:
        """Also at the top, where the card has it there too."""
        self._fields[key] = value
        for known in (key, *OTHER_NAMES.get(key, ())):
            if known in self._whole and known not in ("spec", "data"):
                self._whole[known] = copy.deepcopy(value)

    def _texts(self) -> None:
        for key, (first, *others) in _TEXTS.items():
            if not self._is_edited(key):
                continue
            self._set(first, self._table.get(key, ""))
            for other in others:
                if self._fields.get(other):
                    self._set(other, "")
            if key == "style" and depth_prompt(_mapping(self._fields.get("extensions"))):
                self._fields["extensions"]["depth_prompt"]["prompt"] = ""

    def _lists(self) -> None:
        for key, field in _LISTS.items():
            if self._is_edited(key):
                came = self._texts_as_they_came(key, field)
                self._set(field, [came.get(text, text) for text in self._table.get(key, [])])

    def _texts_as_they_came(self, key: str, field: str) -> Mapping[str, str]:
        """A text of the manifest's list -> the card's, with its placeholders."""
        origin = self._origin
        if origin is None or key != "greetings":
            return {}
        fitted = ((self._fitting.text(text, limit_of("greeting"), field, spoken=True), text) for text in origin.lists[field])
        return dict(fitted)

    def _examples(self) -> None:
        if self._is_edited("examples"):
            pairs = [(example["player"], example["reply"]) for example in self._table.get("examples", [])]
            self._set("mes_example", text_of(pairs))

    # --- the lore book ---------------------------------------------------------------------------------------------

    def _book(self) -> None:
        origin = self._origin
        before = lore_of(origin.book, self._fitting) if origin and origin.book is not None else []
        is_edited = not same(self._table["lore"], [table for _, table in before])
        rules = self._table.get("lore_rules", {})
        if is_edited or (rules and self._is_edited("lore_rules")) or (before and self._is_edited("lore_rules")):
            book = self._own_book()
            if is_edited:
                put_entries(book, self._table["lore"], before)
            if self._is_edited("lore_rules"):
                put_rules(book, rules)

    def _own_book(self) -> dict[str, Any]:
        """The card's book, to be changed where it is; a new one when there was none."""
        for place in (self._fields, self._whole, _mapping(self._fields.get("extensions"))):
            for name in BOOK_NAMES:
                if isinstance(found := place.get(name), dict):
                    return found
                if isinstance(found, list) and found:
                    place[name] = {"entries": found}
                    return dict_in(place, name)
        self._fields[BOOK_NAMES[0]] = {"extensions": {}, "entries": []}
        return dict_in(self._fields, BOOK_NAMES[0])

    # --- our own ---------------------------------------------------------------------------------------------------

    def _extension(self, files: Mapping[str, Any]) -> None:
        extensions = dict(_mapping(self._fields.get("extensions")))
        before = dict(extension_of(extensions))
        ours = {key: value for key, value in before.items() if key not in (*KEYS, "files", "version")}
        for key in KEYS:
            if not self._is_edited(key) and key in before:
                ours[key] = before[key]
            elif self._table.get(key):
                ours[key] = _json(self._table[key])
        if files or "files" in before:
            ours["files"] = {**_mapping(before.get("files")), **files}
        if ours:
            extensions[NAME] = {"version": before.get("version", VERSION), **ours}
        else:
            extensions.pop(NAME, None)
        if ours or before:
            self._fields["extensions"] = extensions


def dict_in(place: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = place[name]
    assert isinstance(found, dict)
    return found


def _mapping(value: Any) -> Any:
    return value if isinstance(value, Mapping) else {}


def _json(value: Any) -> Any:
    """A manifest's value in JSON, which has no dates."""
    if isinstance(value, Mapping):
        return {key: _json(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_json(part) for part in value]
    return value if isinstance(value, str | bool | int | float) else str(value)
