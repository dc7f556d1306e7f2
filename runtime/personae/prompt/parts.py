"""What goes into a prompt and what comes out. Data only: it knows no template, no budget and no engine.

`Tokenizer`, `Example`, `Lore` and `LoreRules` are this package's own view of things made elsewhere (engine.backend.Vocabulary, packs'
Exchange, Lore and LoreRules): a floor imports only downwards, and a Protocol says better than an import what is needed of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Protocol

from personae.types import Token


class Tokenizer(Protocol):
    """Text -> tokens of one model. `engine.backend.Vocabulary` is one."""

    @property
    def chat_template(self) -> str:
        """The model's own jinja2 chat template; "" when it has none."""
        ...

    def tokenize(self, text: str, *, special: bool) -> list[Token]:
        """`special`: parse control tokens. Never adds BOS."""
        ...

    def token_text(self, name: str) -> str:
        """The text of `bos` or `eos`; "" when the model has none."""
        ...

    @property
    def adds_bos(self) -> bool: ...


class Example(Protocol):
    """One exchange that shows how the character talks."""

    @property
    def player(self) -> str: ...

    @property
    def reply(self) -> str: ...


class Lore(Protocol):
    """One thing the character knows of its world: always, or where the talk touches it (lorebook.py)."""

    @property
    def text(self) -> str: ...

    @property
    def name(self) -> str:
        """A label for the receipt; "" when the first words of the text must do."""
        ...

    @property
    def priority(self) -> int:
        """Higher stays longer; those with the same stay in their order."""
        ...

    @property
    def keys(self) -> Sequence[str]:
        """Any of them calls it to mind; none: it is always known."""
        ...

    @property
    def secondary(self) -> Sequence[str]:
        """Where there are any, one of them has to be there beside a key."""
        ...

    @property
    def constant(self) -> bool:
        """Always known, whatever its keys."""
        ...

    @property
    def order(self) -> int:
        """Lower stands earlier; those with the same stand in their order."""
        ...

    @property
    def regex(self) -> bool:
        """Keys are regular expressions and not words."""
        ...

    @property
    def case_sensitive(self) -> bool: ...

    @property
    def enabled(self) -> bool: ...


class LoreRules(Protocol):
    """How lore comes to mind."""

    @property
    def tokens(self) -> int | None:
        """The most that all of it may take of a prompt; None: a fixed share."""
        ...

    @property
    def scan_lines(self) -> int:
        """Lines of the talk, from the newest, that are looked through for keys."""
        ...

    @property
    def recursion(self) -> int:
        """How often lore that came to mind may bring other lore along."""
        ...


@dataclass(frozen=True, slots=True)
class UsualRules:
    """For whoever says nothing about it."""

    tokens: int | None = None
    scan_lines: int = 4
    recursion: int = 1


USUAL_RULES = UsualRules()


@dataclass(frozen=True, slots=True)
class Persona:
    """Who an NPC is and what it knows. `core` opens the prompt word for word: its adapter was trained on it.

    Examples stand in order of importance, memories from the oldest to the newest.
    """

    name: str
    core: str
    style: str = ""
    examples: Sequence[Example] = ()
    lore: Sequence[Lore] = ()
    memories: Sequence[str] = ()
    lore_rules: LoreRules = USUAL_RULES


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the talk, as this NPC witnessed it.

    `is_npc`: spoken by the NPC whose prompt this is; other NPCs are speakers like any player. `tokens`: the exact tokens the model
    drew for a reply, end token left out, used instead of `text` so that the prompt repeats what the slot's KV holds. None when
    the text is not (or no longer) what was drawn: a greeting, a reply cut by barge-in or at a stop string, one whose think block was
    taken out, a line from a save.
    """

    speaker: str
    text: str
    is_npc: bool
    tokens: tuple[Token, ...] | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """What one kind of text takes of the prompt. `count`: texts of that kind that are in it."""

    part: str  # one of PARTS
    tokens: int
    count: int


PARTS = ("scaffold", "persona", "style", "lore", "memory", "examples", "history", "line")  # in the prompt's order


@dataclass(frozen=True, slots=True)
class Cut:
    """What was left out, and why, in a sentence for a writer. `tokens` is None where counting them would have meant tokenizing them."""

    part: str
    count: int
    tokens: int | None
    reason: str
    names: tuple[str, ...] = ()  # of lore: its label, else its first words


class LoreState(StrEnum):
    """What became of an entry. Words that a client may compare."""

    CONSTANT = "constant"  # in the system text
    KEY = "key"  # in the talk, where a key of it was said
    BROUGHT = "brought"  # in the talk, brought along by another entry
    LEFT_OUT = "left_out"  # known or touched, and not in the prompt
    SILENT = "silent"  # nothing touched it. One note for all of them, without a name
    OFF = "off"  # switched off by its writer. One note for all of them


@dataclass(frozen=True, slots=True)
class LoreNote:
    """What became of one entry, and why, for a writer."""

    name: str  # its label, else its first words; "" where it is about several
    state: LoreState
    why: str
    tokens: int  # of its text; 0 where that was not looked at


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where the tokens of a prompt went. The parts add up to `total`, and total <= budget."""

    total: int
    budget: int  # the most there may be of prompt and reply together, less the reserve
    reserve: int  # tokens kept free for the reply
    template: str  # "model", "folded" or "builtin": whose scaffold it is
    parts: tuple[Part, ...]
    cuts: tuple[Cut, ...] = ()
    lore: tuple[LoreNote, ...] = ()  # what is in it in the prompt's order, then what was left out, then the rest in numbers

    def to_wire(self) -> dict[str, Any]:
        """A plain map for msgpack, with the names used here: parts, cuts and lore are arrays of maps."""
        cuts = [asdict(cut) | {"names": list(cut.names)} for cut in self.cuts]
        lore = [asdict(note) | {"state": note.state.value} for note in self.lore]
        return asdict(self) | {"parts": [asdict(part) for part in self.parts], "cuts": cuts, "lore": lore}


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some tokens of a prompt that stand together. All of a prompt's, one after the other, are the prompt."""

    part: str  # one of PARTS
    name: str  # of lore its label; who speaks in examples and talk: "player", "heard", "reply"; else ""
    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model is shown.

    `tail`: what the next prompt has between the reply to this one and what the next line brings: lore that comes to mind, then its
    content; if nothing is cut by then. `n_cut_lines`: so many of the lines asked for, from the oldest, are not in it.
    """

    tokens: tuple[Token, ...]
    receipt: Receipt
    tail: tuple[Token, ...] = ()
    n_cut_lines: int = 0
