"""Decides what a save holds of an NPC, and what of a save can be believed. Knows no file, session or engine.

A save is one plain map that JSON and msgpack carry alike: text, kilobytes, and nothing that only one machine understands. It is versioned,
and its keys are added to, never changed: what this version does not know it ignores, and a later version it refuses by name.

Rules that always hold
- The persona is not part of it. It comes from the pack as it is on the day of the restore; a save that brought yesterday's would hide every
  change its writer made since.
- One NPC that cannot be read is a problem of that NPC; the others are read.
- The tokens of a reply are a hint: with the same base model the next prompt then begins as the last one did, and what is kept of it in KV
  fits. They are believed only where they spell the text beside them in this vocabulary, and no control token: a save comes from outside.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from personae.engine.backend import Vocabulary
from personae.errors import AskedWrong
from personae.packs.character import Character
from personae.prompt import Line
from personae.service.npcs import DEFAULT_PLAYER, MOST_MEMORIES, Npc, spells
from personae.service.roster import Roster
from personae.types import ModelCard, NpcId, Token

VERSION = 1
MARK = "personae_save"  # holds the version, and tells a save from any other map
MAX_NPCS = 4_096
MAX_LINES = 4_096  # of one NPC
MAX_TEXT_CHARS = 1 << 20  # of one line: a reply of the most tokens there may be, each of the longest kind
MAX_MEMORIES = 1_024
MAX_NAME_CHARS = 255
MAX_COUNT = 2**53 - 1  # what a double, the only number of some script languages, still counts exactly

_Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS, pattern=r"^[^\p{Cc}\u2028\u2029]+$")]  # as on the wire
_Speaker = Annotated[str, Field(max_length=MAX_NAME_CHARS, pattern=r"^[^\p{Cc}\u2028\u2029]*$")]  # "": nobody, a narrated event
_Text = Annotated[str, Field(max_length=MAX_TEXT_CHARS)]
_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")  # what no speaker may hold; the name that a pack gives may
_Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
_Seed = Annotated[str, Field(pattern=r"^[0-9]{1,20}$")]
_Tokens = Annotated[str, Field(max_length=MAX_TEXT_CHARS, pattern=r"^[0-9]{1,9}( [0-9]{1,9})*$")]


class _Form(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", hide_input_in_errors=True)


class SavedLine(_Form):
    """`tokens`: those the model drew, in decimal with blanks between: one value on the wire, where an array would be a thousand."""

    speaker: _Speaker
    text: _Text
    is_npc: bool = False
    tokens: _Tokens | None = None


class SavedKv(_Form):
    """A blob beside a save that the service keeps. `file`: its name in the save's own folder; `tokens`: how many it holds."""

    file: _Name
    tokens: _Count


class SavedNpc(_Form):
    """One NPC of a save that can be read. `base`: the hash of the model it was saved under. `seed`: 64 bits in decimal, as text, because
    many a script language would round the number."""

    base: str = ""
    npc: _Name
    character: _Name
    character_name: str = Field("", max_length=MAX_NAME_CHARS)
    character_hash: str = Field("", max_length=MAX_NAME_CHARS)
    adapter: str | None = Field(None, max_length=MAX_NAME_CHARS)
    player: _Name = DEFAULT_PLAYER
    history: Annotated[list[SavedLine], Field(max_length=MAX_LINES)] = []
    memories: Annotated[list[_Text], Field(max_length=MAX_MEMORIES)] = []
    seed: _Seed = "0"
    asked: _Count = 0
    remembered: _Count = 0
    kv: SavedKv | None = None

    def to_npc(self, character: Character, *, base: str, vocabulary: Vocabulary, most_lines: int) -> Npc:
        """The NPC as its pack is now. `base`: hash of the model that runs. Of a history past `most_lines` the oldest lines are left out."""
        believed = vocabulary if base == self.base else None
        n_cut = max(0, len(self.history) - most_lines)
        return Npc(
            id=NpcId(self.npc),
            character=character.id,
            name=character.name,
            player=self.player,
            most_lines=most_lines,
            lines=[_line(saved, believed) for saved in self.history[n_cut:]],
            memories=self.memories[-MOST_MEMORIES:],
            seed=int(self.seed),
            asked=self.asked,
            remembered=max(0, min(self.remembered, len(self.history)) - n_cut),
            adapter=self.adapter,
        )


@dataclass(frozen=True, slots=True)
class Problem:
    """Why one NPC of a save is not there again. `npc`: "" where not even its name can be read."""

    npc: str
    code: str
    message: str
    hint: str

    def to_wire(self) -> dict[str, str]:
        return {"npc": self.npc, "code": self.code, "message": self.message, "hint": self.hint}


@dataclass(frozen=True, slots=True)
class Save:
    """A save that was read: iterate over its NPCs."""

    npcs: tuple[SavedNpc, ...]
    problems: tuple[Problem, ...]
    saved_at: str

    def __iter__(self) -> Iterator[SavedNpc]:
        return iter(self.npcs)


# --- writing ----------------------------------------------------------------------------------------------------------


def document_of(npcs: Iterable[Npc], card: ModelCard, roster: Roster) -> dict[str, Any]:
    """The save of these NPCs as they are now; a turn that is open is not in it."""
    return {
        MARK: VERSION,
        "saved_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "base": card.content_hash,
        "npcs": [npc_document(npc, roster) for npc in npcs],
    }


def npc_document(npc: Npc, roster: Roster) -> dict[str, Any]:
    """`character_hash` is "" while the character's pack is gone."""
    character = roster.characters.get(npc.character)
    return {
        "npc": npc.id,
        "character": npc.character,
        "character_name": npc.name,
        "character_hash": character.content_hash if character else "",
        "adapter": npc.adapter,
        "player": npc.player,
        "history": [_saved_line(line) for line in npc.lines],
        "memories": list(npc.memories),
        "seed": str(npc.seed),
        "asked": npc.asked,
        "remembered": npc.remembered,
    }


def _saved_line(line: Line) -> dict[str, Any]:
    saved: dict[str, Any] = {"speaker": _BREAKS.sub(" ", line.speaker), "text": line.text, "is_npc": line.is_npc}
    if line.tokens:
        saved["tokens"] = ("%d " * len(line.tokens) % line.tokens)[:-1]  # twice as fast as joining: half of what a `keep` costs
    return saved


# --- reading ----------------------------------------------------------------------------------------------------------


def read_document(raw: Any) -> Save:
    """What a save holds. AskedWrong `bad_save`: it is none; `save_version`: it was written by a later version."""
    version = raw.get(MARK) if isinstance(raw, dict) else None
    if type(version) is not int or version < 1:
        raise _bad(f"has no `{MARK}`")
    if version > VERSION:
        raise AskedWrong(
            "save_version", f"The save is of version {version}; this service reads up to {VERSION}.", "Update Personae, or save again."
        )
    base, saved_at, npcs = raw.get("base", ""), raw.get("saved_at", ""), raw.get("npcs")
    if not isinstance(base, str) or not isinstance(saved_at, str):
        raise _bad("must have text as `base` and `saved_at`")
    if not isinstance(npcs, list) or len(npcs) > MAX_NPCS:
        raise _bad(f"must have an array of at most {MAX_NPCS} `npcs`")
    return _read_npcs(npcs, base, saved_at)


def _bad(what: str) -> AskedWrong:
    return AskedWrong("bad_save", f"The document is no save of Personae: it {what}.", "Give back what `save` answered, as it was.")


def _read_npcs(raws: Sequence[Any], base: str, saved_at: str) -> Save:
    read: dict[str, SavedNpc] = {}
    problems = []
    for number, raw in enumerate(raws, 1):
        try:
            npc = SavedNpc.model_validate({**raw, "base": base} if isinstance(raw, dict) else raw)
        except ValidationError as error:
            problems.append(_unreadable(number, raw, error))
            continue
        if npc.npc in read:
            problems.append(Problem(npc.npc, "bad_save", f"{npc.npc!r} is in the save twice.", "The first is taken."))
        else:
            read[npc.npc] = npc
    return Save(tuple(read.values()), tuple(problems), saved_at)


def _unreadable(number: int, raw: Any, error: ValidationError) -> Problem:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    npc = raw.get("npc") if isinstance(raw, dict) else None
    is_named = isinstance(npc, str) and 0 < len(npc) <= MAX_NAME_CHARS and npc.isprintable()
    where = f"`{field}` of {repr(npc) if is_named else f'NPC {number} of the save'}" if field else f"NPC {number} of the save"
    said = first["msg"].replace("Input should", "should").replace("String should", "should").replace("List should", "should")
    return Problem(str(npc) if is_named else "", "bad_save", f"{where}: {said}.", "The other NPCs of the save are not touched by it.")


def _line(saved: SavedLine, vocabulary: Vocabulary | None) -> Line:
    return Line(saved.speaker, saved.text, saved.is_npc, _tokens(saved, vocabulary) if vocabulary and saved.tokens else None)


def _tokens(saved: SavedLine, vocabulary: Vocabulary) -> tuple[Token, ...] | None:
    """None where they are not what the text says they are. The range is looked at first: outside it a vocabulary may abort."""
    tokens = tuple(map(int, (saved.tokens or "").split()))
    if not saved.is_npc or max(tokens) >= vocabulary.n_vocab or not all(map(vocabulary.piece, set(tokens))):
        return None
    return tokens if spells(tokens, saved.text, vocabulary) else None
