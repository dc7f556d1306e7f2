"""Decides what an NPC remembers: who it is, who talks to it, and which lines of their talk go into its history.

It knows no session, prompt or engine. NPCs outlive sessions and engines; a thousand of them are a thousand small records.

Rules that always hold
- No line of one NPC is ever seen by another.
- A turn changes the history once, when it ends, and only by what was said aloud: a failed turn leaves no trace.
- A reply keeps the tokens it was drawn as only where they spell exactly its visible text. Then the next prompt begins with what the
  NPC's slot already holds. Where something was filtered or cut, the text is the truth and is tokenized anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, count

from personae.engine.backend import Vocabulary
from personae.errors import AskedWrong
from personae.packs.character import Character
from personae.prompt import Line
from personae.types import FinishReason, NpcId, Token, TurnId

DEFAULT_PLAYER = "Player"
FORGOTTEN = frozenset({FinishReason.REPETITION})  # a reply that went round in circles would teach the next one to
WHOLE = frozenset({FinishReason.END, FinishReason.LENGTH})  # the model's tokens, all of them, up to where it stopped


@dataclass(slots=True, eq=False)
class Npc:
    id: NpcId
    character: str  # looked up anew at each turn, so that a changed pack speaks from the next turn on
    name: str
    player: str
    most_lines: int
    lines: list[Line] = field(default_factory=list)
    turn: TurnId | None = None  # the one that is open
    adapter: str | None = None  # key it last spoke or was spawned with

    def commit(self, heard: Line, reply: str, finish: FinishReason, drawn: Sequence[Token], vocabulary: Vocabulary) -> None:
        """What was said to it and what it answered, once the turn has ended."""
        if not reply.strip() and finish is FinishReason.CANCELLED:
            return  # nothing was answered, and the question taken back
        self.lines.append(heard)
        if reply.strip() and finish not in FORGOTTEN:
            tokens = tuple(drawn) if finish in WHOLE and spells(drawn, reply, vocabulary) else None
            self.lines.append(Line(self.name, reply, True, tokens))
        if len(self.lines) > self.most_lines:
            # A quarter at once: a prompt that lost its oldest line at every turn would never find its beginning in the slot.
            del self.lines[: self.most_lines // 4]


def spells(drawn: Sequence[Token], text: str, vocabulary: Vocabulary) -> bool:
    """Whether the tokens are the text, give or take space around it."""
    return b"".join(map(vocabulary.piece, drawn)).strip() == text.strip().encode()


class Npcs:
    def __init__(self, *, most: int, most_lines: int) -> None:
        self._most = most
        self._most_lines = most_lines
        self._by_id: dict[str, Npc] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __getitem__(self, npc_id: str) -> Npc:
        try:
            return self._by_id[npc_id]
        except KeyError:
            raise AskedWrong("unknown_npc", f"There is no NPC {npc_id!r}.", "Spawn it first.") from None

    def spawn(self, character: Character, npc_id: str | None, player: str | None) -> Npc:
        """A new NPC with its greeting as first line. AskedWrong `npc_exists`, `too_many_npcs`."""
        if npc_id in self._by_id:
            raise AskedWrong("npc_exists", f"There is an NPC {npc_id!r} already.", "Talk to it, despawn it, or choose another id.")
        if len(self._by_id) >= self._most:
            raise AskedWrong("too_many_npcs", f"There are {self._most} NPCs already.", "Despawn some.")
        npc = Npc(
            NpcId(npc_id or self._free_id(character.id)),
            character.id,
            character.name,
            player or DEFAULT_PLAYER,
            self._most_lines,
            adapter=character.adapter.key if character.adapter else None,
        )
        if character.greeting:
            npc.lines.append(Line(character.name, character.greeting, True))
        self._by_id[npc.id] = npc
        return npc

    def despawn(self, npc_id: str) -> Npc:
        npc = self[npc_id]
        del self._by_id[npc_id]
        return npc

    def _free_id(self, character_id: str) -> str:
        """The character's own id, or with the first number that is free."""
        numbered = (f"{character_id}-{number}" for number in count(2))
        return next(npc_id for npc_id in chain([character_id], numbered) if npc_id not in self._by_id)
