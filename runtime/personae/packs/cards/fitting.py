"""Texts of a card on their way into a manifest: placeholders replaced, what a manifest refuses taken out, what is too long cut.

Knows the limits from the manifest's own models and nothing of which field goes where. Every change but that of names is a note; the card
itself is kept beside the manifest, so nothing is lost by a cut.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel

from personae.packs.cards.card import note
from personae.packs.cards.macros import MAX_TEXT, Macros
from personae.packs.character import PackProblem
from personae.packs.manifest import Manifest

MAX_NOTES = 200  # of one import; a book of broken entries would have thousands

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
KEPT = "All of it is in card.json."


def most(model: type[BaseModel], name: str) -> int:
    """The longest that a field of a form may be: characters of a text, parts of a list."""
    lengths = [found for part in model.model_fields[name].metadata if (found := getattr(part, "max_length", None)) is not None]
    assert lengths, name
    return int(lengths[0])


def within(model: type[BaseModel], name: str, value: int) -> int:
    """The nearest number that a field may have."""
    for part in model.model_fields[name].metadata:
        value = max(value, getattr(part, "ge", value))
        value = min(value, getattr(part, "le", value))
    return value


class Fitting:
    """One import's texts and what was done to them. Owns the notes."""

    def __init__(self, source: str, macros: Macros) -> None:
        self.notes: list[PackProblem] = []
        self.macros = macros
        self._source = source
        self._n_left_out = 0

    def text(self, text: str, most_chars: int, place: str, *, spoken: bool = False) -> str:
        """As a manifest takes it. `spoken`: the character says it to the player."""
        macros = self.macros.spoken_to() if spoken else self.macros
        found = self.readable(macros.replaced(text), place)
        n = len(text) if len(text) > MAX_TEXT else len(found)
        if n > most_chars:
            self.note(place, f"has {n} characters, more than {most_chars}, and was cut.", KEPT)
        return cut(found, most_chars)

    def line(self, text: str, most_chars: int, place: str) -> str:
        """On one line, and without placeholders replaced: for names."""
        return self.text(" ".join(text[:MAX_TEXT].split()), most_chars, place)

    def readable(self, text: str, place: str) -> str:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        clean = _SURROGATE.sub("\ufffd", _CONTROL.sub("", text)).strip()
        if len(clean) < len(text.strip()) or (not text.isascii() and _SURROGATE.search(text)):
            self.note(place, "holds characters that cannot be shown.", "They were taken out.")
        return clean

    def texts(self, texts: tuple[str, ...], name: str, most_chars: int, place: str, *, spoken: bool = False) -> list[str]:
        """A list of the manifest's, empty ones left out."""
        looked_at = texts[: 4 * most(Manifest, name)]
        fitted = (self.text(text, most_chars, f"{place}[{n}]", spoken=spoken) for n, text in enumerate(looked_at, start=1))
        return self.parts([text for text in fitted if text], name, place, len(texts))

    def parts(self, parts: list[Any], name: str, place: str, n_there: int = 0) -> list[Any]:
        """At most so many as a list of the manifest may have."""
        limit = most(Manifest, name)
        if len(parts) > limit:
            self.note(place, f"has {max(n_there, len(parts))} parts, more than {limit}: the first {limit} were taken.", KEPT)
        return parts[:limit]

    def note(self, place: str, problem: str, remedy: str = KEPT) -> None:
        if len(self.notes) < MAX_NOTES:
            self.notes.append(note(self._source, place, problem, remedy))
        else:
            self._n_left_out += 1

    def closing(self) -> list[PackProblem]:
        """All notes, those about placeholders and about the notes left out behind the others."""
        for kind, times in self.macros.met.items():
            self._say_macro(kind, times)
        if self._n_left_out:
            more = f"needed {self._n_left_out} more notes like these."
            self.notes.append(note(self._source, "", more, KEPT))
        return self.notes

    def _say_macro(self, kind: str, times: int) -> None:
        known = {
            "{{random}}": "the first of its choices",
            "{{pick}}": "the first of its choices",
            "{{roll}}": "the middle of the die",
            "{{reverse}}": "its text backwards",
        }
        gone = ("{{//}}", "{{comment}}", "{{hidden_key}}", "{{original}}")
        what = f"it became {known[kind]}" if kind in known else "it was taken out" if kind in gone else "it is not known here and stays"
        self.note("", f"holds {kind} {'once' if times == 1 else f'{times} times'}: {what}.", "A pack is the same text every time; edit it.")


def cut(text: str, most_chars: int) -> str:
    """At a paragraph's, sentence's or word's end where there is one in its last quarter."""
    if len(text) <= most_chars:
        return text
    kept = text[:most_chars]
    for mark in ("\n\n", "\n", ". ", " "):
        if (end := kept.rfind(mark)) > most_chars * 3 // 4:
            return kept[: end + len(mark)].rstrip()
    return kept.rstrip()


def limit_of(name: str) -> int:
    return most(Manifest, name)
