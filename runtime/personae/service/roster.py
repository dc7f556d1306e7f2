"""Decides which characters can be played: the packs that loaded, less those whose persona does not fit the model's context.

It knows no NPC. A pack that fails is a problem to be listed, never a reason not to start: the other characters play on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from personae.errors import AskedWrong, PersonaeError
from personae.packs.character import Character, PackProblem
from personae.packs.loader import load_cast
from personae.prompt import Persona, PromptBuilder
from personae.types import AdapterKey


@dataclass(slots=True)
class Roster:
    characters: dict[str, Character] = field(default_factory=dict)
    problems: list[dict[str, Any]] = field(default_factory=list)  # pack, file, field, problem, remedy: as the wire has them

    @classmethod
    def load(cls, folder: Path | None, builder: PromptBuilder) -> Roster:
        """AskedWrong when the folder itself cannot be read; a bad pack is listed instead."""
        if folder is None:
            return cls()
        cast = load_cast(folder)
        roster = cls(dict(cast.characters), [problem.to_wire() for problem in cast.problems])
        for character in cast.characters.values():
            roster._check(character, builder)
        return roster

    def __getitem__(self, character_id: str) -> Character:
        try:
            return self.characters[character_id]
        except KeyError:
            raise AskedWrong("unknown_character", f"There is no character {character_id!r}.", self._hint(character_id)) from None

    def __iter__(self) -> Iterator[Character]:
        return iter(self.characters.values())

    def users_of(self, key: AdapterKey) -> list[str]:
        """The ids of the characters that speak with this adapter."""
        return sorted(character.id for character in self if character.adapter and character.adapter.key == key)

    def _check(self, character: Character, builder: PromptBuilder) -> None:
        try:
            builder.check(persona_of(character), room=character.limits.get("max_kv"))
        except PersonaeError as refusal:
            del self.characters[character.id]
            problem = PackProblem(character.id, "", "persona", refusal.message, refusal.hint)
            self.problems.append(problem.to_wire())

    def _hint(self, character_id: str) -> str:
        for problem in self.problems:
            if problem["pack"] == character_id:
                return f"Its pack was refused: {problem['problem']} {problem['remedy']}".strip()
        return f"Known are {', '.join(sorted(self.characters)) or 'none'}."


def persona_of(character: Character, memories: Sequence[str] = ()) -> Persona:
    return Persona(character.name, character.persona, character.style, character.examples, character.lore, memories)
