"""A character as the rest of the service sees it, and what may be wrong with a pack. Data only; loader.py makes it from a pack.

An adapter is known here by where it lies and how large it is. Its key, which is its content's, costs reading all of it: store.py finds
that out, off the loop where it can.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class Severity(StrEnum):
    ERROR = "error"  # the pack cannot be used
    WARNING = "warning"  # it can, though not quite as its writer may think


@dataclass(frozen=True, slots=True)
class PackProblem:
    """One thing to put right in a pack: where it is, what it is, what to do."""

    pack: str  # the id: the folder's name, or the archive's without its ending
    file: str  # within the pack, with / between folders; "" for the pack itself
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
    """One thing the character knows of its world. With `keys` it comes to mind only where the talk touches it."""

    text: str
    name: str = ""  # a label for people; the prompt holds the text alone
    priority: int = 0  # higher stays longer when the context is short
    keys: tuple[str, ...] = ()  # any of them; () and `constant` alike: always known
    secondary: tuple[str, ...] = ()  # and any of these too, where there are any
    constant: bool = False  # always known, whatever its keys
    order: int = 0  # lower stands earlier in the prompt; those with the same stay in the writer's order
    regex: bool = False  # keys are regular expressions (RE2) and not words
    case_sensitive: bool = False
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class LoreRules:
    """How a character's lore comes to mind. `tokens` None: the prompt's usual share."""

    tokens: int | None = None  # the most that all of it may take of a prompt
    scan_lines: int = 4  # of the talk, from the newest, are looked through for keys
    recursion: int = 1  # how often lore that came to mind may bring other lore along; 0: never


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """An adapter whose header was read. Whether it fits the base is checked where that is at hand; all of it only the engine checks."""

    pack: Path  # absolute: the pack's folder or archive
    file: str  # within the pack, with /
    scale: float  # multiplies alpha / rank
    version: tuple[int, ...]  # of the file it lies in (inode, size, times): another version is another file
    n_bytes: int  # of its weights as stored: about what it takes in memory


@dataclass(frozen=True, slots=True)
class Mood:
    """Another way to speak, for single turns. None: as always."""

    name: str
    style: str | None = None
    adapters: tuple[AdapterFile, ...] | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)  # laid over the character's


@dataclass(frozen=True, slots=True)
class TrainedOn:
    """The base that a pack's adapters were made for, as far as it says; "" and 0 where it does not."""

    architecture: str = ""
    name: str = ""
    hash: str = ""  # SHA-256 of the GGUF file, hex
    n_layers: int = 0
    n_embd: int = 0


@dataclass(frozen=True, slots=True)
class Character:
    """A pack that can be used."""

    id: str  # the pack's name, in Unicode's composed form (NFC)
    name: str
    persona: str
    pack: Path  # absolute: its folder or archive
    content_hash: str  # SHA-256, hex, over the manifest and the name and size of every adapter: the same on every machine
    style: str = ""
    greeting: str = ""
    greetings: tuple[str, ...] = ()  # alternatives to `greeting`
    examples: tuple[Exchange, ...] = ()
    fallback: tuple[str, ...] = ()  # lines to be spoken in turn where a reply would come too late
    lore: tuple[Lore, ...] = ()  # in the writer's order
    lore_rules: LoreRules = LoreRules()
    adapters: tuple[AdapterFile, ...] = ()
    moods: Mapping[str, Mood] = field(default_factory=dict)
    base: TrainedOn = TrainedOn()
    sampling: Mapping[str, Any] = field(default_factory=dict)  # fields of SamplingParams that the pack sets
    limits: Mapping[str, Any] = field(default_factory=dict)  # fields of Limits that the pack sets
    stop: tuple[str, ...] = ()
    licence: str = ""
    author: str = ""
    description: str = ""
    portrait: str = ""  # image file within the pack
    tags: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)  # top-level keys this version does not know, kept as they are

    def all_adapters(self) -> tuple[AdapterFile, ...]:
        """Those of every mood too, each file once."""
        moods = (mood.adapters or () for mood in self.moods.values())
        return tuple({(part.file, part.version): part for parts in (self.adapters, *moods) for part in parts}.values())


@dataclass(frozen=True, slots=True)
class Cast:
    """What a folder of packs holds: those that can be used, and everything there is to say about all of them."""

    characters: dict[str, Character]  # by id, sorted
    problems: tuple[PackProblem, ...]
