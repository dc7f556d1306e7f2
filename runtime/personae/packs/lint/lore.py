"""Which lore can never come to mind, or says more than it does. Knows the fields, not how keys are found (prompt/ does that)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from string import punctuation, whitespace

from personae.packs.character import Character, Lore, PackProblem, Severity
from personae.packs.manifest import FILE
from personae.patterns import compiled

MOST_COMPARED = 256  # entries that are compared with each other
MOST_KEYS = 4  # of each, then
LABEL_LENGTH = 40  # characters of a text that stands for a name
_LOOKS_LIKE_REGEX = re.compile(r"^/.+/[a-z]*$|\\[bdswBDSW]|\.[*+]|\(\?")


def lint_lore(character: Character) -> Iterator[PackProblem]:
    pack = character.id
    for number, entry in enumerate(character.lore, start=1):
        for field, problem, remedy in _of_entry(entry):
            where = f"lore[{number}]{f'.{field}' if field else ''}"
            yield PackProblem(pack, FILE, where, f"('{label(entry)}') {problem}", remedy, Severity.WARNING)
    yield from _doubles(character)
    if character.lore_rules.recursion == 0:
        yield from _only_brought_by_others(character)


def label(entry: Lore) -> str:
    text = entry.name or " ".join(entry.text.split())
    return text if len(text) <= LABEL_LENGTH else text[:LABEL_LENGTH].rsplit(" ", 1)[0] + "…"


def is_keyed(entry: Lore) -> bool:
    """Whether it comes to mind only where the talk touches it."""
    return entry.enabled and bool(entry.keys) and not entry.constant


def _of_entry(entry: Lore) -> Iterator[tuple[str, str, str]]:
    """(field, problem, remedy)"""
    if not entry.enabled:
        yield "enabled", "is switched off: it is never in a prompt.", "Remove enabled = false, or the entry."
    elif entry.constant and entry.keys:
        yield "keys", "have no effect: the entry is constant, and always known.", "Remove the keys, or constant = true."
    elif entry.secondary and not entry.keys:
        yield "secondary", "has no effect without keys: the entry is always known.", "Move them to keys."
    if is_keyed(entry):
        yield from _of_keys(entry, "keys", entry.keys)
        yield from _of_keys(entry, "secondary", entry.secondary)


def _of_keys(entry: Lore, field: str, keys: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    look = _of_pattern if entry.regex else _of_word
    folded = [_folded(entry, key) for key in keys]
    for place, key in enumerate(keys):
        if said := look(key) or _beside(keys, folded, place, are_words=not entry.regex):
            yield (f"{field}[{place + 1}]", *said)


def _of_word(key: str) -> tuple[str, str] | None:
    if (len(key.strip()) == 1 and key.isascii()) or not key.strip(punctuation + whitespace):
        return f"'{key}' is found in nearly every line: the entry comes to mind at all of them.", "Write a word that a player would say."
    if _LOOKS_LIKE_REGEX.search(key):
        return f"'{key}' looks like a regular expression and is taken as words.", "Add regex = true, or write plain words."
    return None


def _of_pattern(key: str) -> tuple[str, str] | None:
    try:
        matches_nothing_at_all = compiled(key, case_sensitive=True).search("") is not None
    except ValueError:
        return None  # the loader refuses it
    if matches_nothing_at_all:
        return (
            f"'{key}' matches every text, an empty one too: the entry comes to mind at every line.",
            "Use constant = true, or tighten it.",
        )
    return None


def _beside(keys: tuple[str, ...], folded: list[str], place: int, *, are_words: bool) -> tuple[str, str] | None:
    """What another key of the same list makes of the one at `place`."""
    own = folded[place]
    if folded.index(own) < place:
        return f"'{keys[place]}' stands there twice.", "Remove one."
    covering = (other for other, key in enumerate(folded) if key != own and _has_words(own, key)) if are_words else ()
    found = next(iter(covering), None)
    if found is None:
        return None
    return f"'{keys[place]}' adds nothing: wherever it is said, '{keys[found]}' is found already.", "Remove the longer one, or the shorter."


def _folded(entry: Lore, text: str) -> str:
    words = " ".join(text.split())
    return words if entry.case_sensitive or entry.regex else words.casefold()


def _has_words(text: str, words: str) -> bool:
    """Whether `words` stand in `text` as whole words."""
    return words in text and re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text) is not None


def _doubles(character: Character) -> Iterator[PackProblem]:
    names: dict[str, int] = {}
    texts: dict[str, int] = {}
    for number, entry in enumerate(character.lore, start=1):
        name, text = entry.name.casefold(), _plain(entry)
        if name and (first := names.setdefault(name, number)) != number:
            problem = f"is called '{entry.name}' like lore[{first}]: a receipt that names it may mean either."
            yield PackProblem(character.id, FILE, f"lore[{number}].name", problem, "Give each a name of its own.", Severity.WARNING)
        if (first := texts.setdefault(text, number)) != number:
            problem = f"('{label(entry)}') says what lore[{first}] says: it takes its room twice."
            yield PackProblem(character.id, FILE, f"lore[{number}].text", problem, "Remove one of the two.", Severity.WARNING)


def _only_brought_by_others(character: Character) -> Iterator[PackProblem]:
    """With recursion 0 lore brings no other lore along, though its writer may have counted on it. Lore that is always known never does."""
    keyed = [(number, entry) for number, entry in enumerate(character.lore, start=1) if is_keyed(entry)][:MOST_COMPARED]
    texts = {case: [" ".join(entry.text.split()) if case else _plain(entry) for _, entry in keyed] for case in (False, True)}
    for number, entry in keyed:
        others = [(label(other), text) for (_, other), text in zip(keyed, texts[entry.case_sensitive], strict=True) if other is not entry]
        bringing = [_bringer(_folded(entry, key), others) for key in entry.keys[:MOST_KEYS]]
        if not entry.regex and None not in bringing:
            problem = f"('{label(entry)}') is not brought along by '{bringing[0]}', though that names it: lore_rules.recursion is 0."
            yield PackProblem(character.id, FILE, f"lore[{number}].keys", problem, "Set recursion = 1, or add a key.", Severity.WARNING)


def _plain(entry: Lore) -> str:
    return " ".join(entry.text.split()).casefold()


def _bringer(key: str, others: list[tuple[str, str]]) -> str | None:
    return next((name for name, text in others if _has_words(text, key)), None)
