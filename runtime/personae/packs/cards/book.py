"""The lore book of a card, in all the spellings there are, and its entries as `[[lore]]` of a pack.

Decides what an entry means here; it neither cuts texts to a pack's limits nor replaces placeholders. Two forms are about: the card's
(`keys`, `secondary_keys`, `insertion_order`, `enabled`, in a list) and that of world info files (`key`, `keysecondary`, `order`, `disable`,
in an object keyed by number), and mixtures of them. A pack's lore says less than either: what it cannot say is noted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from personae import patterns
from personae.packs.cards.card import kind_of, number
from personae.packs.cards.macros import MAX_TEXT

MAX_ENTRIES = 5000  # looked at; a pack takes 1024, and the card keeps them all
MAX_KEYS = 256  # of an entry, looked at
MAX_PATTERNS = 2000  # of a book, tried: a pack may have 256, and trying one costs a millisecond, or ten with Unicode classes
MAX_DECORATORS = 64  # lines in front of an entry's text

# What is meant -> how it is spelled, the card's own spelling first.
SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "text": ("content", "text", "entry"),
    "name": ("name", "comment", "displayName", "memo"),
    "keys": ("keys", "key", "keywords"),
    "secondary": ("secondary_keys", "keysecondary", "secondaryKeys", "secondary_key"),
    "order": ("insertion_order", "order", "insertionOrder"),
    "priority": ("priority",),
    "enabled": ("enabled",),
    "disabled": ("disable", "disabled"),
    "constant": ("constant", "alwaysActive"),
    "selective": ("selective",),
    "regex": ("use_regex", "useRegex"),
    "case_sensitive": ("case_sensitive", "caseSensitive"),
}
RULES: Mapping[str, tuple[str, ...]] = {
    "scan_lines": ("scan_depth", "scanDepth"),
    "tokens": ("token_budget", "tokenBudget", "budget"),
    "recursion": ("recursive_scanning", "recursiveScanning", "recursive"),
}
_FLAGS = "imsguy"
_PATTERN = re.compile(r"/(.+)/([a-z]{0,8})", re.DOTALL)
_SPECIAL = re.compile(r"[\\^$|?*+\[\]{}()]")
_LOGIC = {1: "not all", 2: "not any", 3: "all"}
# Decorators of v3 that say something a pack can say too.
_OBEYED = ("activate", "dont_activate", "additional_keys", "constant")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry as a pack would have it. `said`: what a pack cannot say of it, in words."""

    place: str  # "entries[3]", counted from 1
    raw: Mapping[str, Any]
    text: str
    name: str
    keys: tuple[str, ...]
    secondary: tuple[str, ...]
    constant: bool
    enabled: bool
    order: int
    priority: int
    regex: bool
    case_sensitive: bool
    said: tuple[str, ...] = ()


@dataclass(slots=True)
class _Draft:
    """An entry while it is read."""

    raw: Mapping[str, Any]
    tried: list[int]  # one number, of all entries of a book: patterns that were tried
    said: list[str] = field(default_factory=list)

    def value(self, meaning: str) -> Any:
        inner = self.raw.get("extensions")
        for place in (self.raw, inner if isinstance(inner, Mapping) else {}):
            for spelling in SPELLINGS[meaning]:
                if (found := place.get(spelling)) is not None and found != "":
                    return found
        return None

    def text(self, meaning: str) -> str:
        value = self.value(meaning)
        if value is None or isinstance(value, str):
            return value or ""
        self.say(f"its {meaning} is {kind_of(value)}")
        return str(value) if isinstance(value, int | float) else ""

    def flag(self, meaning: str, otherwise: bool) -> bool:
        value = self.value(meaning)
        if isinstance(value, str):
            value = {"true": True, "1": True, "false": False, "0": False}.get(value.strip().lower())
        return bool(value) if isinstance(value, bool | int | float) else otherwise

    def number(self, meaning: str) -> int:
        value = self.value(meaning)
        found = number(value)
        if value is not None and found is None:
            self.say(f"its {meaning} is {kind_of(value)} and counts as 0")
        return round(found or 0)

    def texts(self, meaning: str) -> list[str]:
        value = self.value(meaning)
        if isinstance(value, str) and not _PATTERN.fullmatch(value):
            value = value.split(",")
        parts = value if isinstance(value, list) else [value]
        kept = [str(part).strip() for part in parts[:MAX_KEYS] if isinstance(part, str | int) and str(part).strip()]
        if len(parts) > MAX_KEYS:
            self.say(f"it has {len(parts)} {meaning}, of which {MAX_KEYS} were read")
        return list(dict.fromkeys(kept))

    def say(self, what: str) -> None:
        self.said.append(what)


def raw_entries(book: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """(place, entry) of every entry that is an object, in the book's order; those keyed by number in the order of their numbers."""
    entries = book.get("entries")
    if isinstance(entries, Mapping):
        pairs = sorted(entries.items(), key=lambda pair: _by_number(pair[0]))
        return [(f"entries.{key[:40]}", entry) for key, entry in pairs[:MAX_ENTRIES] if isinstance(entry, Mapping)]
    listed = entries[:MAX_ENTRIES] if isinstance(entries, list) else []
    return [(f"entries[{n}]", entry) for n, entry in enumerate(listed, start=1) if isinstance(entry, Mapping)]


def n_entries(book: Mapping[str, Any]) -> int:
    entries = book.get("entries")
    return len(entries) if isinstance(entries, list | Mapping) else 0


def entries_of(book: Mapping[str, Any]) -> Iterator[Entry]:
    tried = [0]
    for place, raw in raw_entries(book):
        yield _entry(place, _Draft(raw, tried))


def rules_of(book: Mapping[str, Any]) -> dict[str, int]:
    """`[lore_rules]` as far as the book says any; not within a pack's ranges yet."""
    found: dict[str, int] = {}
    for meaning in ("tokens", "scan_lines"):
        value = number(_first(book, RULES[meaning]))
        if value is not None and value >= 1:
            found[meaning] = round(value)
    recursive = _first(book, RULES["recursion"])
    if isinstance(recursive, bool):
        found["recursion"] = int(recursive)
    return found


def _first(table: Mapping[str, Any], spellings: Sequence[str]) -> Any:
    return next((table[spelling] for spelling in spellings if table.get(spelling) is not None), None)


def _by_number(key: str) -> tuple[int, str]:
    return (int(key) if key.isdecimal() and len(key) < 12 else 10**12, key)


# --- one entry ----------------------------------------------------------------------------------------------------


def _entry(place: str, draft: _Draft) -> Entry:
    text, decorators = _undecorated(draft.text("text")[:MAX_TEXT])
    written = draft.texts("keys")
    regex, keys, case_sensitive, is_usable = _keys(draft, written, draft.flag("case_sensitive", False))
    secondary = _secondary(draft, decorators, regex)
    if regex and secondary:
        secondary = [pattern for key in secondary if (pattern := _as_pattern(key, case_sensitive, draft))]
    constant = draft.flag("constant", False) or "activate" in decorators or "constant" in decorators
    _say_what_is_lost(draft, decorators)
    if draft.flag("disabled", False) or not draft.flag("enabled", True):
        enabled = False
    else:
        enabled = is_usable and ("dont_activate" not in decorators or "activate" in decorators)
    return Entry(
        place,
        draft.raw,
        text,
        " ".join(draft.text("name").split()),
        tuple(keys),
        tuple(secondary),
        constant,
        enabled,
        draft.number("order"),
        draft.number("priority"),
        regex,
        True if regex else case_sensitive,
        tuple(draft.said),
    )


def _keys(draft: _Draft, written: list[str], case_sensitive: bool) -> tuple[bool, list[str], bool, bool]:
    """(regex, keys, case_sensitive, whether it can be used)

    One flag holds for all keys of a pack's entry: one pattern makes all of them patterns.

    Patterns say for themselves whether they tell capital letters, so those of an entry always do.
    """
    may_be = draft.flag("regex", False)
    if not any(_is_pattern(key, may_be) for key in written):
        return False, written, case_sensitive, True
    found = [(_pattern if _is_pattern(key, may_be) else _as_pattern)(key, case_sensitive, draft) for key in written]
    usable = [pattern for pattern in found if pattern]
    if usable or not written:
        return bool(usable), usable, case_sensitive, True
    draft.say("none of its keys can be used, so it is kept switched off")
    return False, written, case_sensitive, False


def _is_pattern(key: str, may_be: bool) -> bool:
    """`/x/i` is one wherever it stands. Some programs set `use_regex` on every entry: a key that is a plain word stays one."""
    return bool(_PATTERN.fullmatch(key)) or (may_be and bool(_SPECIAL.search(key)))


def _pattern(key: str, case_sensitive: bool, draft: _Draft) -> str:
    """`/x/i` or `x` as RE2 has it, "" where it cannot."""
    found = _PATTERN.fullmatch(key)
    body, flags = (found[1].replace("\\/", "/"), found[2]) if found else (key, "" if case_sensitive else "i")
    if unknown := sorted(set(flags) - set(_FLAGS)):
        draft.say(f"the flags {', '.join(unknown)} of {key[:40]!r} mean nothing here")
    kept = "".join(flag for flag in "ims" if flag in flags)
    return _tried(f"(?{kept}){body}" if kept else body, key, draft)


def _as_pattern(key: str, case_sensitive: bool, draft: _Draft) -> str:
    """A plain key among patterns, or a pattern among the secondary keys."""
    if _PATTERN.fullmatch(key) or len(key) > patterns.MAX_CHARS:
        return _pattern(key, case_sensitive, draft)
    body = "".join(c if c.isalnum() or not c.isascii() or c in "_ " else f"\\{c}" for c in key)
    before, behind = (r"\b" if c.isascii() and (c.isalnum() or c == "_") else "" for c in (key[0], key[-1]))
    return _tried(f"{'' if case_sensitive else '(?i)'}{before}{body}{behind}", key, draft)


def _tried(pattern: str, key: str, draft: _Draft) -> str:
    draft.tried[0] += 1
    if draft.tried[0] > MAX_PATTERNS:
        draft.say(f"its key {key[:40]!r} is one of more than {MAX_PATTERNS} patterns")
        return ""
    try:
        patterns.compiled(pattern, case_sensitive=True)
    except ValueError as fault:
        draft.say(f"its key {key[:40]!r} {fault}")
        return ""
    return pattern


def _secondary(draft: _Draft, decorators: Mapping[str, str], regex: bool) -> list[str]:
    keys = draft.texts("secondary") if draft.value("secondary") is not None else []
    extensions = draft.raw.get("extensions")
    logic = draft.raw.get("selectiveLogic", extensions.get("selectiveLogic") if isinstance(extensions, Mapping) else None)
    if not draft.flag("selective", False) or (regex and draft.flag("regex", False)):
        keys = []
    if keys and isinstance(logic, int) and logic in _LOGIC:
        draft.say(f"its secondary keys ask for '{_LOGIC[logic]}', and here they can only ask for 'any'")
        keys = keys if logic == 3 else []
    return keys or [key.strip() for key in decorators.get("additional_keys", "").split(",") if key.strip()]


def _say_what_is_lost(draft: _Draft, decorators: Mapping[str, str]) -> None:
    extensions = draft.raw.get("extensions")
    for place in (draft.raw, extensions if isinstance(extensions, Mapping) else {}):
        chance = number(place.get("probability"))
        if chance is not None and 0 <= chance < 100 and place.get("useProbability", True):
            draft.say(f"it comes with a probability of {chance:g} %, and here it always comes")
    if lost := [name for name in decorators if name not in _OBEYED]:
        draft.say(f"it holds @@{', @@'.join(lost[:5])}, which has no effect here")


def _undecorated(content: str) -> tuple[str, dict[str, str]]:
    """The text behind the lines that begin with `@@`, and what those say: of each with its `@@@` fallbacks the first that is known here."""
    found: dict[str, str] = {}
    rest, pending = content.lstrip(), ""
    for _ in range(MAX_DECORATORS):
        if not rest.startswith("@@"):
            break
        line, _, rest = rest.partition("\n")
        name, _, value = line.lstrip("@").strip().partition(" ")
        rest = rest.lstrip()
        if not line.startswith("@@@"):
            pending = name
            found.setdefault(name[:40], value.strip())
        elif pending and pending not in _OBEYED and name in _OBEYED:
            found.pop(pending[:40], None)
            found.setdefault(name, value.strip())
            pending = name
    return (rest, found) if found else (content, found)
