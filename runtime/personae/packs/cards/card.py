"""The form of a card: where each version keeps its fields, and what stands for one that is missing or of the wrong kind.

Knows JSON objects alone: not how they were stored, nor what a pack makes of them. v1 has six texts at the top; v2 and v3 have them and more
under `data`; programs write both at once, or leave out `spec`, or put a number where a text belongs. All of that is read, each
guess is noted, and the object itself is kept as it came (`whole`): fields nobody here knows, and those of versions to come, are in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from personae.errors import AskedWrong
from personae.packs.character import PackProblem, Severity

FIRST_TEXTS = ("name", "description", "personality", "scenario", "first_mes", "mes_example")  # all there was in v1
LATER_TEXTS = ("creator_notes", "system_prompt", "post_history_instructions", "creator", "character_version", "nickname")
LISTS = ("alternate_greetings", "tags", "group_only_greetings", "source")
# Where other programs wrote the same before there was a form, and since.
OTHER_NAMES = {
    "name": ("char_name",),
    "description": ("char_persona",),
    "scenario": ("world_scenario",),
    "first_mes": ("char_greeting",),
    "mes_example": ("example_dialogue",),
    "creator_notes": ("creatorcomment",),
}
BOOK_NAMES = ("character_book", "characterBook", "lorebook", "world_info", "worldInfo", "character_lorebook")
NEWEST = 3.0
_SPEC = re.compile(r"chara_card_v(\d{1,3})")


@dataclass(frozen=True, slots=True)
class Card:
    """A character card that was read. `whole` is never changed."""

    source: str  # the file's name
    whole: Mapping[str, Any]
    texts: Mapping[str, str]  # every one of FIRST_TEXTS and LATER_TEXTS, "" where there is none
    lists: Mapping[str, tuple[str, ...]]  # every one of LISTS
    extensions: Mapping[str, Any]
    book: Mapping[str, Any] | None  # as it is in the card
    version: float  # 1, 2, 3.0, 3.7
    files: Mapping[str, bytes] = field(default_factory=dict)  # that came with it, by name within a pack
    portrait: str = ""  # one of the files
    notes: tuple[PackProblem, ...] = ()

    @property
    def fields(self) -> Mapping[str, Any]:
        """The object that holds the fields of this card."""
        return fields_of(self.whole)


def note(source: str, place: str, problem: str, remedy: str = "") -> PackProblem:
    """Can be printed and sent, whatever the card brought into it."""
    return PackProblem(source, "", shown(place), shown(problem), shown(remedy), Severity.WARNING)


def shown(text: str) -> str:
    readable = text.encode("utf-8", "replace").decode()
    return readable if readable.isprintable() else "".join(c if c.isprintable() else "?" for c in readable)


def fields_of(whole: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = whole.get("data")
    return inner if isinstance(inner, dict) else whole


def card_of_object(value: Any, source: str) -> Card:
    """AskedWrong `not_a_card` when there is nothing to play in it."""
    if not isinstance(value, dict):
        _refuse(source, "it holds no JSON object")
    reading = _Reading(value, source)
    texts = {name: reading.text(name) for name in (*FIRST_TEXTS, *LATER_TEXTS)}
    if not any(texts[name].strip() for name in (*FIRST_TEXTS, "system_prompt", "post_history_instructions")):
        if "entries" in fields_of(value) or str(value.get("spec", "")).startswith("lorebook"):
            hint = "Put it into a card as its character_book, or write its entries as [[lore]] into a pack."
            _refuse(source, "it is a lore book without a character", hint)
        _refuse(source, "it has no name and no text")
    lists = {name: reading.list(name) for name in LISTS}
    version = reading.version()
    return Card(source, value, texts, lists, reading.extensions(), reading.book(), version, notes=tuple(reading.notes))


def _refuse(source: str, why: str, hint: str = "A card is a JSON object with at least a name or a description.") -> Any:
    raise AskedWrong("not_a_card", f"'{source}' is no character card: {why}.", hint)


class _Reading:
    """One card on its way into a Card."""

    def __init__(self, whole: dict[str, Any], source: str) -> None:
        self.notes: list[PackProblem] = []
        self._whole = whole
        self._source = source
        self._fields = fields_of(whole)
        self._prefix = "data." if self._fields is not whole else ""
        if "data" in whole and not self._prefix:
            self._note("data", f"should be an object, and is {kind_of(whole['data'])}.", "The fields beside it were read.")

    def version(self) -> float:
        spec, said = self._whole.get("spec"), number(self._whole.get("spec_version"))
        found = _SPEC.fullmatch(spec.strip()) if isinstance(spec, str) else None
        if found is None:
            if spec is not None:
                what = repr(spec[:40]) if isinstance(spec, str) else kind_of(spec)
                self._note("spec", f"is {what}, which is no version of a card.", "It was read as far as it is known.")
            elif self._prefix:
                self._note("spec", "is missing.", "It was read as a card of version 2.")
            return 2.0 if self._prefix else 1.0
        version = float(found[1])
        if said is not None and version <= said < version + 1:
            version = float(said)
        if version > NEWEST:
            self._note("spec_version", f"is {version:g}, newer than {NEWEST:g}.", "It was read as far as it is known; the rest is kept.")
        return version

    def text(self, name: str) -> str:
        place, value = self._found(name)
        if isinstance(value, str):
            return value
        if isinstance(value, bool | int | float):
            self._note(place, f"should be a text, and is {kind_of(value)}.", "It was read as a text.")
            return str(value)
        if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
            self._note(place, "should be a text, and is a list.", "Its parts were joined.")
            return "\n".join(value)
        self._missing(place, value, is_asked=name in FIRST_TEXTS, instead="an empty text")
        return ""

    def list(self, name: str) -> tuple[str, ...]:
        place, value = self._found(name)
        if isinstance(value, list):
            texts = tuple(part for part in value if isinstance(part, str))
            if len(texts) < len(value):
                self._note(place, f"holds {len(value) - len(texts)} things that are no texts.", "They were passed over.")
            return texts
        if isinstance(value, str):
            self._note(place, "should be a list, and is a text.", "It was read as a list of commas.")
            return tuple(part.strip() for part in value.split(",") if part.strip()) if name == "tags" else (value,) * bool(value)
        self._missing(place, value, is_asked=False, instead="an empty list")
        return ()

    def extensions(self) -> Mapping[str, Any]:
        place, value = self._found("extensions")
        if isinstance(value, dict):
            return value
        self._missing(place, value, is_asked=False, instead="an empty object")
        return {}

    def book(self) -> Mapping[str, Any] | None:
        """The first there is: in its own place, at the top, in the extensions, under any of its names."""
        for prefix, there in self._places():
            for name in BOOK_NAMES:
                if isinstance(found := there.get(name), dict):
                    if (prefix, name) != (self._prefix, BOOK_NAMES[0]):
                        self._note(prefix + name, "is the lore book, in an unusual place.", "It was read from there.")
                    return found
                if isinstance(found, list) and found:
                    self._note(prefix + name, "should be an object, and is a list.", "It was read as the entries of a lore book.")
                    return {"entries": found}
        place, value = self._found(BOOK_NAMES[0])
        if value is not None:
            self._missing(place, value, is_asked=False, instead="no lore book")
        return None

    def _places(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        yield self._prefix, self._fields
        if self._prefix:
            yield "", self._whole
        if isinstance(inner := self._fields.get("extensions"), dict):
            yield f"{self._prefix}extensions.", inner

    def _found(self, name: str) -> tuple[str, Any]:
        """(where, what): in its own place, else under another name, else at the top where v1 had it. None: nowhere."""
        for prefix, place in ((self._prefix, self._fields), ("", self._whole)):
            for known in (name, *OTHER_NAMES.get(name, ())):
                if place.get(known) is not None:
                    return prefix + known, place[known]
        return self._prefix + name, None

    def _missing(self, place: str, value: Any, *, is_asked: bool, instead: str) -> None:
        key = place.rpartition(".")[2]
        if value is not None:
            self._note(place, f"is {kind_of(value)}, which it cannot be.", f"It counts as {instead}; the card itself keeps it.")
        elif key in self._fields:
            self._note(place, "is null.", f"It counts as {instead}.")
        elif is_asked:
            self._note(place, "is missing.", f"It counts as {instead}.")

    def _note(self, place: str, problem: str, remedy: str) -> None:
        self.notes.append(note(self._source, place, problem, remedy))


def kind_of(value: Any) -> str:
    """A JSON value's kind, for people."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    names = {str: "a text", int: "a number", dict: "an object", list: "a list"}
    return next((name for kind, name in names.items() if isinstance(value, kind)), "a number")


def number(value: Any) -> float | int | None:
    """A number, or a text that is one; None when it is neither, or not finite."""
    if isinstance(value, str) and len(value) <= 40:
        try:
            value = float(value) if not value.strip().lstrip("-+").isdecimal() else int(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isinstance(value, int) or value - value == 0 else None
