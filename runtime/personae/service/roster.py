"""Decides which characters can be played: the packs that can be used, less those whose persona does not fit the model's context.

It knows no NPC and touches no file but when it is loaded. A pack that fails is a problem to be listed, never a reason not to start: the
other characters play on. A pack that changes is swapped as a whole; when its new version fails, the last good one goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from personae.errors import AskedWrong, PersonaeError
from personae.packs.base import BaseShapes
from personae.packs.character import AdapterFile, Character, Mood, PackProblem
from personae.prompt import Persona, PromptBuilder
from personae.service.inspection import ROOT, PackSeen, Print, look_at, packs_in, prints_of, root_lost
from personae.types import AdapterKey, AdapterSource

Fits = Callable[[Character], None]
"""PersonaeError when a character's persona does not fit."""


class ChangeKind(StrEnum):
    """What became of a pack. The values are part of the wire."""

    ADDED = "added"
    CHANGED = "changed"  # also when only what is said about it has
    REFUSED = "refused"  # it has errors now
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Change:
    kind: ChangeKind
    pack: str
    problems: tuple[PackProblem, ...]
    name: str  # of the character that is, or was, played; the id where there never was one
    kept: bool = False  # refused, and the last good version goes on


def nobody_knows(file: AdapterFile) -> AdapterSource | None:
    """For a roster without a store of adapters."""
    return None


def always_fits(character: Character) -> None:
    """For a roster without a model."""


@dataclass(slots=True)
class Roster:
    characters: dict[str, Character] = field(default_factory=dict)
    problems_of: dict[str, tuple[PackProblem, ...]] = field(default_factory=dict)  # by pack; those of the folder itself under ROOT
    known: Callable[[AdapterFile], AdapterSource | None] = nobody_knows  # the key of an adapter, where it has been read
    fits: Fits = always_fits
    prints: dict[str, Print] = field(default_factory=dict)  # of the packs as they were loaded
    n_changes: int = 0
    _used: set[AdapterKey] = field(default_factory=set)  # keys that a turn was asked with, and that were not retired since

    @classmethod
    def load(
        cls,
        root: Path | None,
        builder: PromptBuilder,
        base: BaseShapes | None = None,
        known: Callable[[AdapterFile], AdapterSource | None] = nobody_knows,
    ) -> Roster:
        """Everything in the folder. A folder that cannot be read is a problem, and so is a bad pack."""
        roster = cls(known=known, fits=fit_of(builder))
        try:
            packs = packs_in(root) if root is not None else {}
        except OSError as fault:
            assert root is not None
            roster.swap(root_lost(root, fault))
            return roster
        roster.prints = prints_of(packs)
        for pack in sorted(roster.prints):
            roster.swap(look_at(pack, packs[pack], base))
        roster.n_changes = 0
        return roster

    def __getitem__(self, character_id: str) -> Character:
        try:
            return self.characters[character_id]
        except KeyError:
            raise AskedWrong("unknown_character", f"There is no character {character_id!r}.", self._hint(character_id)) from None

    def __iter__(self) -> Iterator[Character]:
        return iter(self.characters.values())

    def of_npc(self, npc_id: str, character_id: str) -> Character:
        """For an NPC that was spawned: its pack may have gone since."""
        try:
            return self.characters[character_id]
        except KeyError:
            raise AskedWrong(
                "character_gone",
                f"The pack of {npc_id!r}, {character_id!r}, is gone.",
                "Put the pack back: the NPC goes on where it was. Or despawn it.",
            ) from None

    @property
    def problems(self) -> list[dict[str, Any]]:
        """As the wire has them."""
        return [problem.to_wire() for pack in sorted(self.problems_of) for problem in self.problems_of[pack]]

    def statistics(self) -> dict[str, Any]:
        return {"characters": len(self.characters), "problems": sum(map(len, self.problems_of.values())), "changes": self.n_changes}

    # --- adapters -------------------------------------------------------------------------------------------------------

    def users_of(self, key: AdapterKey) -> list[str]:
        """The ids of the characters that may speak with this adapter, in whatever mood."""
        return sorted(character.id for character in self if key in self._keys_of(character))

    def note_use(self, keys: Sequence[AdapterKey]) -> None:
        self._used.update(keys)

    def take_unnamed(self) -> list[AdapterKey]:
        """Those that turns were asked with and that no pack names any more, each told once."""
        unnamed = self._used.difference(*map(self._keys_of, self))
        self._used -= unnamed
        return sorted(unnamed)

    def _keys_of(self, character: Character) -> set[AdapterKey]:
        """Those that are known: one that nobody has read yet, nobody speaks with."""
        return {source.key for file in character.all_adapters() if (source := self.known(file)) is not None}

    # --- packs that come, change and go -----------------------------------------------------------------------------------

    def swap(self, seen: PackSeen) -> Change | None:
        """Take over what was seen of a pack. None: nothing is different for anybody."""
        if not seen.is_there:
            return self._remove(seen.pack)
        seen = self._judged(seen)
        old, was_said = self.characters.get(seen.pack), self.problems_of.pop(seen.pack, ())
        if seen.problems:
            self.problems_of[seen.pack] = seen.problems
        if seen.character is None and old is not None and not any(problem.is_error for problem in seen.problems):
            seen = replace(seen, problems=(_stripped(seen.pack), *seen.problems[1:]))  # one that is played is no folder to be passed over
            self.problems_of[seen.pack] = seen.problems
        if seen.character is None:
            return self._noted(ChangeKind.REFUSED, seen, old) if seen.problems and seen.pack != ROOT else None
        if seen.character == old and seen.problems == was_said:
            return None
        self.characters[seen.pack] = seen.character
        return self._noted(ChangeKind.CHANGED if old else ChangeKind.ADDED, seen, seen.character)

    def _remove(self, pack: str) -> Change | None:
        old, was_said = self.characters.pop(pack, None), self.problems_of.pop(pack, ())
        return self._noted(ChangeKind.REMOVED, PackSeen(pack, None), old) if old or was_said else None

    def _noted(self, kind: ChangeKind, seen: PackSeen, played: Character | None) -> Change:
        self.n_changes += 1
        is_kept = kind is ChangeKind.REFUSED and played is not None
        return Change(kind, seen.pack, seen.problems, played.name if played else seen.pack, is_kept)

    def _judged(self, seen: PackSeen) -> PackSeen:
        """A persona that does not fit is an error like any other."""
        if seen.character is None:
            return seen
        try:
            self.fits(seen.character)
        except PersonaeError as refusal:
            problem = PackProblem(seen.pack, "", "persona", refusal.message, refusal.hint)
            return replace(seen, character=None, problems=(*seen.problems, problem))
        return seen

    def _hint(self, character_id: str) -> str:
        for problem in self.problems_of.get(character_id, ()):
            return f"Its pack was refused: {problem.problem} {problem.remedy}".strip()
        return f"Known are {', '.join(sorted(self.characters)) or 'none'}."


def fit_of(builder: PromptBuilder) -> Fits:
    def check(character: Character) -> None:
        builder.check(persona_of(character), room=character.limits.get("max_kv"))

    return check


def persona_of(character: Character, memories: Sequence[str] = (), mood: Mood | None = None) -> Persona:
    """A mood changes how it speaks, not who it is."""
    return Persona(
        name=character.name,
        core=character.persona,
        style=character.style if mood is None or mood.style is None else mood.style,
        examples=character.examples,
        lore=character.lore,
        memories=memories,
        lore_rules=character.lore_rules,
    )


def _stripped(pack: str) -> PackProblem:
    return PackProblem(pack, "", "", "has lost its manifest.", "Put it back, or remove the rest of the pack too.")
