"""Decides what an NPC remembers: who it is, who talks to it, and which lines of their talk go into its history.

It knows no session, prompt or engine. NPCs outlive sessions and engines; a thousand of them are a thousand small records.

Rules that always hold
- No line of one NPC is ever seen by another.
- A turn changes the history once, when it ends, and only by what was said aloud and heard: a failed turn leaves no trace.
- What an NPC witnesses while it speaks is in its history at once, and stands after the reply when that has ended.
- A reply keeps the tokens it was drawn as only where they spell exactly its visible text. Then the next prompt begins with what the
  NPC's slot already holds. Where something was filtered or cut, the text is the truth and is tokenized anew: a reply that was broken off
  is then the same history as if somebody had typed it, to the token.
- The seed of a turn is a function of the NPC's seed and of how many turns it was asked: an NPC that is restored goes on with the luck it
  would have had.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, count

from personae.engine.backend import Vocabulary
from personae.errors import AskedWrong
from personae.packs.character import Character
from personae.prompt import Line
from personae.service.heard import heard_part
from personae.types import FinishReason, NpcId, Token, TurnId
from personae.wire.messages import Heard

DEFAULT_PLAYER = "Player"
FORGOTTEN = frozenset({FinishReason.REPETITION})  # a reply that went round in circles would teach the next one to
WHOLE = frozenset({FinishReason.END, FinishReason.LENGTH})  # the model's tokens, all of them, up to where it stopped
MAX_SEED = 2**32 - 2  # 2^32 - 1 asks llama.cpp for a random one
MOST_MEMORIES = 64


@dataclass(frozen=True, slots=True)
class Answer:
    """The turn whose reply is the newest line of a history."""

    turn: TurnId
    has_question: bool  # the line before it is what it answers


@dataclass(slots=True, eq=False)
class Npc:
    """The fields down to `remembered` are what a save holds; the rest is of this run."""

    id: NpcId
    character: str  # looked up anew at each turn, so that a changed pack speaks from the next turn on
    name: str
    player: str
    most_lines: int
    lines: list[Line] = field(default_factory=list)
    memories: list[str] = field(default_factory=list)
    seed: int = 0
    asked: int = 0  # turns so far
    remembered: int = 0  # lines, from the oldest, that are summed up among the memories
    turn: TurnId | None = None  # the one that is open
    adapter: str | None = None  # key it last spoke or was spawned with
    reply_at: int | None = None  # where in the history the open turn's lines will stand
    answer: Answer | None = None  # None: the newest line is nothing a turn of this run has said
    unseen: int = 0  # lines, from the oldest, that its last prompt had no room for
    n_trimmed: int = 0  # lines that have gone from the front for good
    edition: int = 0  # how often the history was rewritten
    n_fallbacks: int = 0
    is_unsaid: bool = False  # the last reply has left nothing: what is told of how much of it was heard is not about the one before it

    @property
    def turn_seed(self) -> int:
        """For the turn that is asked next."""
        return digest(self.seed, self.asked) % (MAX_SEED + 1)

    def begin(self, turn: TurnId) -> None:
        self.turn, self.reply_at = turn, len(self.lines)

    def settle(self) -> None:
        """The open turn is over."""
        self.turn = self.reply_at = None

    # --- what is said -----------------------------------------------------------------------------------------------------

    def commit(
        self, turn: TurnId, heard: Line | None, reply: str, finish: FinishReason, drawn: Sequence[Token], vocabulary: Vocabulary
    ) -> bool:
        """What was said to it, None: nothing, and what it answered, once the turn has ended, though it may never have begun. Returns
        whether an answer is in the history now."""
        if not reply.strip() and finish is FinishReason.CANCELLED:
            return False  # nothing was answered, and the question taken back
        said = [] if heard is None else [heard]
        is_answer = bool(reply.strip()) and finish not in FORGOTTEN
        if is_answer:
            tokens = tuple(drawn) if finish in WHOLE and spells(drawn, reply, vocabulary) else None
            said.append(Line(self.name, reply, True, tokens))
        at = self.reply_at if turn == self.turn and self.reply_at is not None else len(self.lines)
        if said and at == len(self.lines):  # else the newest line stays what it is
            self.answer = Answer(turn, heard is not None) if is_answer else None
        self.lines[at:at] = said
        self._trim()
        return is_answer

    def witness(self, line: Line) -> None:
        """Somebody said something, or something happened, that it does not answer."""
        self.lines.append(line)
        self.answer = None
        self._trim()

    def cut_heard(self, heard: Heard) -> None:
        """A line tells how much was heard of the last reply: the rest never happened. Where that reply left nothing, nothing is cut."""
        if not self.is_unsaid:
            self.cut_last(heard)

    def cut_last(self, heard: Heard, *, with_question: bool = False) -> int:
        """Take out of the newest line, if it is the NPC's own, what was not heard; returns how many characters. Where nothing of it was
        heard it goes, and `with_question` the line that it answered goes with it."""
        if not self.lines or not self.lines[-1].is_npc:
            return 0
        line = self.lines[-1]
        text = heard_part(line.text, chars=heard.chars, sentences=heard.sentences)
        if text == line.text:
            return 0
        if text:
            self.lines[-1] = Line(line.speaker, text, True)
        else:
            n_gone = 2 if with_question and self.answer is not None and self.answer.has_question else 1
            del self.lines[-n_gone:]
            self.answer, self.is_unsaid = None, True
        self._clip()
        return len(line.text) - len(text)

    # --- history --------------------------------------------------------------------------------------------------------

    def rewrite(self, lines: Sequence[Line]) -> None:
        """Another history; how much of it is summed up counts only as far as both are the same."""
        same = _n_same(self.lines, lines)
        self.lines = [*self.lines[:same], *lines[same:]]  # the old ones know the tokens they were drawn as
        self.remembered, self.answer, self.is_unsaid = min(self.remembered, same), None, False
        self.edition += 1
        self._clip()
        self._trim()

    def remember(self, memory: str, edition: int, until: int) -> bool:
        """A summary of the first `until` lines, counted from the very first; False when the history was rewritten meanwhile."""
        if edition != self.edition:
            return False
        self.memories.append(memory)
        del self.memories[:-MOST_MEMORIES]
        self.remembered = max(self.remembered, min(until - self.n_trimmed, len(self.lines)))
        return True

    def _trim(self) -> None:
        if len(self.lines) <= self.most_lines:
            return
        # A quarter at once: a prompt that lost its oldest line at every turn would never find its beginning in the slot.
        n_gone = max(self.most_lines // 4, len(self.lines) - self.most_lines)
        del self.lines[:n_gone]
        self.n_trimmed += n_gone
        self.remembered, self.unseen = max(0, self.remembered - n_gone), max(0, self.unseen - n_gone)
        if self.reply_at is not None:
            self.reply_at = max(0, self.reply_at - n_gone)

    def _clip(self) -> None:
        self.remembered, self.unseen = min(self.remembered, len(self.lines)), min(self.unseen, len(self.lines))
        if self.reply_at is not None:
            self.reply_at = min(self.reply_at, len(self.lines))


def greetings_of(character: Character) -> tuple[str, ...]:
    """Those that can be asked for, by number. () where there is none at all."""
    return (character.greeting, *character.greetings) if character.greeting or character.greetings else ()


def _n_same(old: Sequence[Line], new: Sequence[Line]) -> int:
    """How many lines, from the first, say the same."""
    said = [[(line.speaker, line.text, line.is_npc) for line in lines] for lines in (old, new)]
    return next((i for i, (one, other) in enumerate(zip(*said, strict=False)) if one != other), min(len(old), len(new)))


def spells(drawn: Sequence[Token], text: str, vocabulary: Vocabulary) -> bool:
    """Whether the tokens are the text, give or take space around it."""
    return b"".join(map(vocabulary.piece, drawn)).strip() == text.strip().encode()


def digest(*parts: object) -> int:
    """A number of 64 bits that follows from the parts, on every machine and in every version."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big")


class Npcs:
    """`seed`: makes the seeds of NPCs a function of their ids; None: drawn by chance."""

    def __init__(self, *, most: int, most_lines: int, seed: int | None = None) -> None:
        self._most = most
        self._seed = seed
        self._by_id: dict[str, Npc] = {}
        self.most_lines = most_lines

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Npc]:
        return iter(tuple(self._by_id.values()))

    def __contains__(self, npc_id: object) -> bool:
        return npc_id in self._by_id

    def __getitem__(self, npc_id: str) -> Npc:
        try:
            return self._by_id[npc_id]
        except KeyError:
            raise AskedWrong("unknown_npc", f"There is no NPC {npc_id!r}.", "Spawn it first.") from None

    def spawn(self, character: Character, npc_id: str | None, player: str | None, *, greeting: int = 0, adapter: str | None = None) -> Npc:
        """A new NPC with a greeting as first line, where its character has any. `adapter`: the key it will speak with, None: unknown.

        AskedWrong `npc_exists`, `too_many_npcs`.
        """
        given = NpcId(npc_id or self._free_id(character.id))
        npc = Npc(
            given,
            character.id,
            character.name,
            player or DEFAULT_PLAYER,
            self.most_lines,
            seed=random.getrandbits(64) if self._seed is None else digest(self._seed, given),
            adapter=adapter,
        )
        said = greetings_of(character)
        if said and said[greeting]:
            npc.lines.append(Line(character.name, said[greeting], True))
        self.adopt(npc)
        return npc

    def adopt(self, npc: Npc) -> None:
        """Take in an NPC that was made elsewhere. AskedWrong `npc_exists`, `too_many_npcs`."""
        if npc.id in self._by_id:
            raise AskedWrong("npc_exists", f"There is an NPC {npc.id!r} already.", "Talk to it, despawn it, or choose another id.")
        if len(self._by_id) >= self._most:
            raise AskedWrong("too_many_npcs", f"There are {self._most} NPCs already.", "Despawn some.")
        self._by_id[npc.id] = npc

    def despawn(self, npc_id: str) -> Npc:
        npc = self[npc_id]
        del self._by_id[npc_id]
        return npc

    def _free_id(self, character_id: str) -> str:
        """The character's own id, or with the first number that is free."""
        numbered = (f"{character_id}-{number}" for number in count(2))
        return next(npc_id for npc_id in chain([character_id], numbered) if npc_id not in self._by_id)
