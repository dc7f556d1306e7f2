"""Lore of a pack -> entries of a card's lore book. Decides which entry of the card an entry of the pack is, and how a change is spelled.

An entry that the pack still has as the import made it keeps its object untouched. One that was edited keeps its object too, and only
what was edited is changed, under the name that the object uses for it. What the import left out (entries without text) is kept at the
end; what the writer took out is gone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from personae.packs.cards.book import RULES, SPELLINGS, Entry, raw_entries

_DEFAULTS: Mapping[str, Any] = {
    "text": "",
    "name": "",
    "keys": [],
    "secondary": [],
    "constant": False,
    "order": 0,
    "priority": 0,
    "regex": False,
    "case_sensitive": False,
    "enabled": True,
}

Made = Sequence[tuple[Entry, Mapping[str, Any]]]  # entries of the card, and what the import made of each


def put_entries(book: dict[str, Any], lore: Sequence[Mapping[str, Any]], before: Made) -> None:
    """Lays the pack's lore into a card's book, in the book's own form: a list, or an object keyed by number."""
    there = dict(raw_entries(book))
    imported = {entry.place for entry, _ in before}
    written = [_written(table, origin, there) for table, origin in _matched(lore, before)]
    entries = written + [raw for place, raw in there.items() if place not in imported]
    book["entries"] = {str(n): raw for n, raw in enumerate(entries)} if isinstance(book.get("entries"), Mapping) else entries


def put_rules(book: dict[str, Any], rules: Mapping[str, Any]) -> None:
    for meaning, spellings in RULES.items():
        spelling = next((name for name in spellings if name in book), spellings[0])
        if meaning in rules:
            book[spelling] = bool(rules[meaning]) if meaning == "recursion" else rules[meaning]
        else:
            book.pop(spelling, None)


def same(one: Any, other: Any) -> bool:
    """Whether two values of manifests say the same: blanks around a text, and what is empty, say nothing; a table is a list of one."""
    return bool(_bare(one) == _bare(other))


def _bare(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: bare for key, part in value.items() if (bare := _bare(part)) is not None} or None
    if isinstance(value, list):
        bare = [_bare(part) for part in value]
        return (bare[0] if len(bare) == 1 and isinstance(bare[0], dict) else bare) or None
    return (value.strip() or None) if isinstance(value, str) else value


# --- which entry is which -----------------------------------------------------------------------------------------

_Origin = tuple[Entry, Mapping[str, Any]] | None


def _matched(lore: Sequence[Mapping[str, Any]], before: Made) -> list[tuple[Mapping[str, Any], _Origin]]:
    """Each entry of the pack with what it was: those untouched first, then those with the same name, then with the same text."""
    found: dict[int, _Origin] = {}
    taken: set[str] = set()
    for key_of in (_whole_key, _name_key, _text_key):
        free: dict[str, list[tuple[Entry, Mapping[str, Any]]]] = {}
        for origin in reversed(before):
            if origin[0].place not in taken and (key := key_of(origin[1])):
                free.setdefault(key, []).append(origin)
        for place, table in enumerate(lore):
            candidates = free.get(key_of(table)) if place not in found else None
            if candidates:
                origin = candidates.pop()
                taken.add(origin[0].place)
                found[place] = origin
    return [(table, found.get(place)) for place, table in enumerate(lore)]


def _whole_key(table: Mapping[str, Any]) -> str:
    return json.dumps(_bare(table), sort_keys=True, default=str)


def _name_key(table: Mapping[str, Any]) -> str:
    return str(table.get("name", "")).strip()


def _text_key(table: Mapping[str, Any]) -> str:
    return str(table.get("text", "")).strip()


# --- one entry ----------------------------------------------------------------------------------------------------


def _written(table: Mapping[str, Any], origin: _Origin, there: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    if origin is None:
        entry: dict[str, Any] = {"keys": [], "content": "", "extensions": {}, "enabled": True, "insertion_order": 0, "use_regex": False}
        made: Mapping[str, Any] = {}
    else:
        entry, made = dict(there[origin[0].place]), origin[1]
    for meaning, default in _DEFAULTS.items():
        value = table.get(meaning, default)
        if not same(value, made.get(meaning, default)):
            _put(entry, meaning, value)
    if not table.get("keys") and not table.get("constant") and not made:
        entry["constant"] = True  # a pack always knows what has no keys, and a card never does
    return entry


def _put(entry: dict[str, Any], meaning: str, value: Any) -> None:
    spelling = next((name for name in SPELLINGS[meaning] if name in entry), SPELLINGS[meaning][0])
    if meaning == "enabled":
        for name in SPELLINGS["disabled"]:
            if name in entry:
                entry[name] = not value
        if "enabled" not in entry and any(name in entry for name in SPELLINGS["disabled"]):
            return
    elif meaning == "secondary":
        entry["selective"] = bool(value)
    entry[spelling] = value
