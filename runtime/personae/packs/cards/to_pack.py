"""A card -> the draft of a pack. Decides which field of a card becomes which field of a manifest; reads and writes no file.

    name, else the file's         name
    description, personality,     persona, in this order, behind "You are NAME.": small models take a part better when they are
      scenario                      addressed. The writer's words stay as they are
    system_prompt, the note of    style: both say how to speak, and a pack has no text behind the talk
      extensions.depth_prompt,
      post_history_instructions
    first_mes                     greeting
    alternate_greetings           greetings
    mes_example                   examples
    character_book                lore and lore_rules; more than a manifest holds goes into lore files
    creator_notes                 description
    creator, tags                 author, tags
    extensions.personae           what a pack has and a card has not, adapters among it
    the picture                   portrait

The card is in the pack as card.json, whole: nickname, version, group greetings, talkativeness and whatever nobody here knows.
Whatever the card holds, the manifest that comes out is a valid one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import accumulate
from pathlib import PurePath
from typing import Any

from personae import patterns
from personae.packs import manifest as form
from personae.packs.cards.book import Entry, entries_of, n_entries, rules_of
from personae.packs.cards.card import Card
from personae.packs.cards.examples import exchanges
from personae.packs.cards.extension import CARD_FILE as CARD_FILE
from personae.packs.cards.extension import LORE_FILES, pack_fields, pack_files, without_content
from personae.packs.cards.fitting import KEPT, Fitting, cut, limit_of, most, within
from personae.packs.cards.json_text import json_text
from personae.packs.cards.macros import MAX_TEXT, Macros
from personae.packs.character import PackProblem
from personae.packs.draft import PackDraft, folder_name
from personae.packs.manifest import Example, Lore, LoreRules
from personae.packs.toml_text import toml_text

MAX_LORE_IN_MANIFEST = 64  # entries; a longer book is easier to edit in a file of its own
MAX_LORE_BYTES_IN_MANIFEST = 32_000
LORE_FILE_BYTES = 512 * 1024  # a file that an editor opens at once
_NOTHING_SAID = "Nobody has said more about you yet."


def draft_of(card: Card) -> PackDraft:
    """Never raises for what is in the card: whatever was changed, cut or left out is in the notes, those of the reading first."""
    fields, fitting = imported(card)
    lore, files = _in_files(fields.pop("lore", []))
    table = {"manifest": form.VERSION, **fields, **lore}
    table, dropped = _valid(table)
    _fit_manifest(table, fitting)
    for place, problem in dropped:
        fitting.note(place, f"would not be valid in a pack ({problem}) and was left out.")
    name = folder_name(table["name"])
    content: dict[str, Any] = {CARD_FILE: json_text(without_content(card.whole)).encode(), **files, **card.files}
    content |= {file: held for file, held in pack_files(card).items() if file not in content}
    return PackDraft(name, table, content, [*card.notes, *fitting.closing()])


def imported(card: Card) -> tuple[dict[str, Any], Fitting]:
    """The fields of the manifest that a card becomes, all lore in `lore`, and what was done to them."""
    name, char = names_of(card)
    fitting = Fitting(card.source, Macros(char))
    if not card.texts["name"].strip():
        fitting.note("name", f"is missing: the character is called '{name}', after its file.", "Give it a name in character.toml.")
    fields = {
        "name": name,
        "description": fitting.text(_notes_for_people(card), limit_of("description"), "creator_notes"),
        "author": fitting.line(card.texts["creator"], limit_of("author"), "creator"),
        "tags": fitting.texts(card.lists["tags"], "tags", 40, "tags"),
        "portrait": card.portrait,
        "persona": _persona(card, name, fitting),
        "style": _style(card, fitting),
        "greeting": fitting.text(card.texts["first_mes"], limit_of("greeting"), "first_mes", spoken=True),
        "greetings": fitting.texts(
            card.lists["alternate_greetings"], "greetings", limit_of("greeting"), "alternate_greetings", spoken=True
        ),
        "examples": _examples(card, (name, char), fitting),
        **_lore(card, fitting),
        **pack_fields(card, fitting),
    }
    return {key: value for key, value in fields.items() if value not in ("", [], {})}, fitting


def names_of(card: Card) -> tuple[str, str]:
    """(its name, what {{char}} stands for). The name of a card that has none is its file's."""
    plain = Fitting(card.source, Macros(""))
    name = _name(plain, card.texts["name"]) or _name(plain, PurePath(card.source).stem) or "Unnamed"
    return name, _name(plain, card.texts["nickname"]) or name


def _name(fitting: Fitting, text: str) -> str:
    """Placeholders in it stay: there is nothing yet that they could stand for."""
    return cut(" ".join(fitting.readable(text[:10_000], "name").split()), limit_of("name"))


# --- texts --------------------------------------------------------------------------------------------------------


def _persona(card: Card, name: str, fitting: Fitting) -> str:
    limit = limit_of("persona")
    described = fitting.text(card.texts["description"], limit, "description")
    _, char = names_of(card)
    opening = f"You are {name}." if char in (name, *name.split()) else f"You are {name}, called {char}."
    parts = ["" if re.match(r"you(?: are|'re|’re)\b", described, re.IGNORECASE) else opening, described]
    for key in ("personality", "scenario"):
        said = fitting.text(card.texts[key], limit, key)
        if said and said not in described:
            parts.append(said if said.lower().startswith(f"{key}:") else f"{key.capitalize()}: {said}")
    persona = "\n\n".join(part for part in parts if part)
    if len(persona) > limit:
        fitting.note("description", f"has, with personality and scenario, {len(persona)} characters, more than {limit}, and was cut.", KEPT)
    return cut(persona, limit)


def _style(card: Card, fitting: Fitting) -> str:
    limit = limit_of("style")
    parts = [fitting.text(card.texts["system_prompt"], limit, "system_prompt")]
    if depth_note := depth_prompt(card.extensions):
        parts.append(fitting.text(depth_note, limit, "extensions.depth_prompt.prompt"))
    parts.append(fitting.text(card.texts["post_history_instructions"], limit, "post_history_instructions"))
    style = "\n\n".join(part for part in parts if part)
    if len(style) > limit:
        problem = f"has, with post_history_instructions, {len(style)} characters, more than {limit}, and was cut."
        fitting.note("system_prompt", problem, KEPT)
    return cut(style, limit)


def depth_prompt(extensions: Mapping[str, Any]) -> str:
    """The note that some programs put between the lines of the talk."""
    found = extensions.get("depth_prompt")
    text = found.get("prompt") if isinstance(found, Mapping) else None
    return text if isinstance(text, str) else ""


def _notes_for_people(card: Card) -> str:
    """In English where there are several languages, else in the first."""
    if card.texts["creator_notes"].strip():
        return card.texts["creator_notes"]
    spoken = card.fields.get("creator_notes_multilingual")
    texts = {key: text for key, text in spoken.items() if isinstance(text, str)} if isinstance(spoken, Mapping) else {}
    return texts.get("en") or next(iter(texts.values()), "")


def _examples(card: Card, names: tuple[str, str], fitting: Fitting) -> list[dict[str, str]]:
    found, lost = exchanges(card.texts["mes_example"][:MAX_TEXT], names)
    if lost:
        problem = f"has {len(lost)} piece{'s' * (len(lost) > 1)} where it is not said who speaks or that nobody answers: {lost[0][:40]!r}."
        fitting.note("mes_example", problem, f"They were left out. {KEPT}")
    fitted = []
    for number, (player, reply) in enumerate(found[: 4 * limit_of("examples")], start=1):
        example = {
            "player": fitting.text(player, most(Example, "player"), f"mes_example[{number}].player"),
            "reply": fitting.text(reply, most(Example, "reply"), f"mes_example[{number}].reply", spoken=True),
        }
        if all(example.values()):
            fitted.append(example)
    return fitting.parts(fitted, "examples", "mes_example", len(found))


# --- lore ---------------------------------------------------------------------------------------------------------


def _lore(card: Card, fitting: Fitting) -> dict[str, Any]:
    if card.book is None:
        if isinstance(world := card.extensions.get("world"), str) and world.strip():
            fitting.note(
                "extensions.world", f"names a lore book, {world[:60]!r}, that is not in the card.", "Put it into the card, or as lore."
            )
        return {}
    return {"lore_rules": _rules(card.book, fitting), "lore": [table for _, table in lore_of(card.book, fitting)]}


def lore_of(book: Mapping[str, Any], fitting: Fitting) -> list[tuple[Entry, dict[str, Any]]]:
    """Each entry that a pack can have, and as what. Where there are too many, those that are switched off go first."""
    there = [(entry, table) for entry in entries_of(book) if (table := _lore_table(entry, fitting))]
    n = n_entries(book)
    kept = there
    if len(there) > form.MAX_LORE:
        used = [pair for pair in there if pair[0].enabled][: form.MAX_LORE]
        kept = used + [pair for pair in there if not pair[0].enabled][: form.MAX_LORE - len(used)]
    if n > len(there):
        fitting.note(
            "character_book.entries", f"has {n - len(there)} of {n} that are empty, no objects or too many.", f"They were left out. {KEPT}"
        )
    if len(kept) < len(there):
        fitting.note("character_book.entries", f"has {n} entries, more than {form.MAX_LORE}: so many were taken.", KEPT)
    kept = _bound_bytes(kept, fitting)
    _bound_patterns([table for _, table in kept], fitting)
    return kept


def _bound_bytes(kept: list[tuple[Entry, dict[str, Any]]], fitting: Fitting) -> list[tuple[Entry, dict[str, Any]]]:
    if sum(_n_bytes(table) for _, table in kept) <= form.MAX_LORE_BYTES:
        return kept
    in_order = sorted(kept, key=lambda pair: not pair[0].enabled)
    sizes = accumulate(_n_bytes(table) for _, table in in_order)
    fitted = [pair for pair, n_bytes in zip(in_order, sizes, strict=True) if n_bytes <= form.MAX_LORE_BYTES]
    problem = f"has more than {form.MAX_LORE_BYTES} bytes: {len(fitted)} of {len(kept)} entries were taken."
    fitting.note("character_book.entries", problem, KEPT)
    return fitted


def _lore_table(entry: Entry, fitting: Fitting) -> dict[str, Any]:
    """{} when there is nothing to know in it."""
    place = f"character_book.{entry.place}"
    text = fitting.text(entry.text, most(Lore, "text"), f"{place}.content")
    if not text:
        return {}
    for said in entry.said:
        fitting.note(place, f"is not quite the same: {said}.", KEPT)
    table = {
        "name": fitting.line(entry.name, most(Lore, "name"), f"{place}.name"),
        "text": text,
        "keys": _fitted_keys(entry.keys, entry.regex, "keys", place, fitting),
        "secondary": _fitted_keys(entry.secondary, entry.regex, "secondary", place, fitting),
        "constant": entry.constant,
        "order": within(Lore, "order", entry.order),
        "priority": within(Lore, "priority", entry.priority),
        "regex": entry.regex,
        "case_sensitive": entry.case_sensitive,
    }
    if (table["order"], table["priority"]) != (entry.order, entry.priority):
        problem = f"has order {_shown(entry.order)} and priority {_shown(entry.priority)}, beyond what a pack has."
        fitting.note(place, problem, "The nearest was taken.")
    kept = {key: value for key, value in table.items() if value not in ("", [], 0, False)}
    never = entry.enabled and not (table["keys"] or entry.constant)
    if never:  # in a pack it would always be known
        fitting.note(place, "has no key that can be used and is not constant: it never comes to mind.", "It is kept switched off.")
    return kept if entry.enabled and not never else {**kept, "enabled": False}


def _fitted_keys(keys: tuple[str, ...], regex: bool, name: str, place: str, fitting: Fitting) -> list[str]:
    limit = patterns.MAX_CHARS
    found: list[str] = []
    for key in keys[: most(Lore, name)]:
        fitted = key if regex else fitting.macros.replaced(key)
        fitted = fitting.readable(fitted, f"{place}.{name}")
        if len(fitted) > limit:
            fitting.note(f"{place}.{name}", f"holds a key of {len(fitted)} characters, more than {limit}.", f"It was left out. {KEPT}")
        elif fitted:
            found.append(fitted)
    if len(keys) > most(Lore, name):
        fitting.note(f"{place}.{name}", f"has {len(keys)} keys, more than {most(Lore, name)}.", KEPT)
    return found


def _bound_patterns(tables: list[dict[str, Any]], fitting: Fitting) -> None:
    """A pack may have so many regular expressions; entries beyond that are kept switched off, their keys as words."""
    n = n_classes = 0
    for table in tables:
        if table.get("regex"):
            own = [*table.get("keys", ()), *table.get("secondary", ())]
            own_classes = sum(map(patterns.classes_in, own))
            if n + len(own) > form.MAX_REGEX_KEYS or n_classes + own_classes > form.MAX_REGEX_CLASSES:
                del table["regex"]
                table["enabled"] = False
                problem = f"has more than {form.MAX_REGEX_KEYS} regular expressions, or {form.MAX_REGEX_CLASSES} Unicode classes in them."
                fitting.note("character_book.entries", problem, "The others are switched off.")
            else:
                n += len(own)
                n_classes += own_classes


def _rules(book: Mapping[str, Any], fitting: Fitting) -> dict[str, int]:
    asked = rules_of(book)
    fitted = {name: within(LoreRules, name, value) for name, value in asked.items()}
    for name in fitted:
        if fitted[name] != asked[name]:
            problem = f"asks for {_shown(asked[name])} {name}, and a pack may have {fitted[name]}."
            fitting.note("character_book", problem, "The nearest was taken.")
    return fitted


def _shown(number: int) -> str:
    return str(number) if abs(number) < 10**12 else "very many"


def _in_files(lore: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """(`lore` or `lore_files` of the manifest, the files)"""
    if len(lore) <= MAX_LORE_IN_MANIFEST and sum(map(_n_bytes, lore)) <= MAX_LORE_BYTES_IN_MANIFEST:
        return {"lore": lore} if lore else {}, {}
    files = {name: toml_text({"lore": batch}).encode() for name, batch in zip(LORE_FILES, _batches(lore), strict=False)}
    return {"lore_files": list(files)}, files


def _batches(lore: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Of at most LORE_FILE_BYTES, any two neighbours of more: nine at the most, of all the lore that there may be."""
    batches: list[list[dict[str, Any]]] = [[]]
    room = LORE_FILE_BYTES
    for table in lore:
        room -= (n_bytes := _n_bytes(table))
        if room < 0:
            batches.append([])
            room = LORE_FILE_BYTES - n_bytes
        batches[-1].append(table)
    return batches


def _n_bytes(table: dict[str, Any]) -> int:
    """Of an entry as it stands in a file: 24 to 400,000."""
    return len(toml_text({"lore": [table]}).encode()) + 1


# --- the manifest as a whole --------------------------------------------------------------------------------------


def _valid(table: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """The table without what the form refuses, and what that was. The mapping above leaves nothing to refuse, of what it knows."""
    dropped: list[tuple[str, str]] = []
    for _ in range(20):
        found, problems = form.check("", table)
        errors = [problem for problem in problems if problem.is_error]
        if found is not None and not errors:
            break
        for key in {_top(problem) for problem in errors}:
            if key in ("persona", "name"):
                table[key] = "Unnamed" if key == "name" else f"You are somebody. {_NOTHING_SAID}"
            else:
                table.pop(key, None)
        dropped += [(problem.field, problem.problem) for problem in errors[:5]]
    return table, dropped


def _top(problem: PackProblem) -> str:
    return re.split(r"[.\[]", problem.field, maxsplit=1)[0]


def _fit_manifest(table: dict[str, Any], fitting: Fitting) -> None:
    """Texts of many bytes may make a file that is too long though each field is short enough: the last of the longest lists goes."""
    while len(toml_text(table).encode()) > form.MAX_BYTES:
        key = max(("greetings", "examples", "lore", "moods"), key=lambda name: len(str(table.get(name, ""))))
        if not table.get(key):
            break
        fitting.note(key, f"is left out in part: a manifest has at most {form.MAX_BYTES} bytes.", KEPT)
        table[key] = table[key][: len(table[key]) // 2]
