"""A character as the rest of the service sees it, and what may be wrong with a pack. Data only; loader.py makes it from a folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from personae.types import AdapterKey


class Severity(StrEnum):
    ERROR = "error"  # the pack cannot be used
    WARNING = "warning"  # it can, though not quite as its writer may think


@dataclass(frozen=True, slots=True)
class PackProblem:
    """One thing to put right in a pack: where it is, what it is, what to do."""

    pack: str  # the folder's name
    file: str  # within the pack, with / between folders; "" for the folder itself
    field: str  # "sampling.top_p", "examples[2].reply" (counted from 1); "" for the whole file
    problem: str
    remedy: str
    severity: Severity = Severity.ERROR

    @property
    def is_error(self) -> bool:
        return self.severity is Severity.ERROR

    def __str__(self) -> str:
        place = "/".join(part for part in (self.pack, self.file) if part)
        return f"{place}: {f'{self.field}: ' if self.field else ''}{self.problem} {self.remedy}".strip()

    def to_wire(self) -> dict[str, str]:
        """Plain text only: a path that is no UTF-8 must not make a reply that cannot be encoded."""
        return {name: str(getattr(self, name)).encode("utf-8", "replace").decode() for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Exchange:
    """An example of how the character talks."""

    player: str
    reply: str


@dataclass(frozen=True, slots=True)
class Lore:
    """One thing the character knows of its world."""

    text: str
    name: str = ""  # a label for people; the prompt holds the text alone
    priority: int = 0  # higher stays longer when the context is short


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """An adapter whose header was read; whether it fits the base only the engine can tell."""

    path: Path  # absolute
    scale: float  # multiplies alpha / rank
    key: AdapterKey


@dataclass(frozen=True, slots=True)
class Character:
    """A pack that can be used. Two packs with the same text and adapter have the same `content_hash`, whatever their folders."""

    id: str  # the folder's name, in Unicode's composed form (NFC)
    name: str
    persona: str
    folder: Path  # absolute
    content_hash: str  # SHA-256, hex, over the manifest and the adapter's key
    style: str = ""
    greeting: str = ""
    examples: tuple[Exchange, ...] = ()
    fallback: tuple[str, ...] = ()  # lines to be spoken in turn where a reply would come too late
    lore: tuple[Lore, ...] = ()  # in the writer's order
    adapter: AdapterFile | None = None
    sampling: dict[str, Any] = field(default_factory=dict)  # fields of SamplingParams that the pack sets
    limits: dict[str, Any] = field(default_factory=dict)  # fields of Limits that the pack sets
    stop: tuple[str, ...] = ()
    licence: str = ""
    author: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)  # top-level keys this version does not know, kept as they are


@dataclass(frozen=True, slots=True)
class Cast:
    """What a folder of packs holds: those that can be used, and everything there is to say about all of them."""

    characters: dict[str, Character]  # by id, sorted
    problems: tuple[PackProblem, ...]
