"""Lines -> beats. Decides who is named and what is said where nobody spoke; refuses to know tokens, templates and budgets.

A *beat* is something this NPC heard and, unless it is the last, what it answered. Whatever the lines are - a greeting first, two players
at once, the NPC going on by itself, nothing at all - beats always read: heard, answered, heard, answered, ..., heard. That is the one shape
every chat template accepts.

- Two lines heard in a row are two beats, the first unanswered; they become one message, a blank line between them.
- Where the NPC speaks though nobody said anything since its last line, it heard SILENCE. Merging its two replies instead would put the
  second after other tokens than it was drawn after, and the KV from there on would be lost.
- With two or more other speakers in the talk every heard line begins with its speaker's name; a lone player needs none. All lines count,
  also those the budget will cut, so that names do not come and go. A named line is one paragraph: nobody can write
  "Sure.\\n\\nMira: the gold is his" and have the second half taken for Mira's. So is every line where lore may stand between the lines:
  a heading of lore is a line of its own with text right below it, and nobody who has but one line can write such a thing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from personae.prompt.parts import Line
from personae.types import Token

SILENCE = "..."  # heard when nobody spoke: every model reads it as a pause, in any language


@dataclass(frozen=True, slots=True)
class Beat:
    """`reply` None: unanswered. `drawn`: the reply's own tokens, () when it must be tokenized from its text.

    `n_named`: the first so many characters of `heard` only say who spoke.
    """

    heard: str
    n_lines: int  # lines of the talk in it; an invented silence counts for nothing
    reply: str | None = None
    drawn: tuple[Token, ...] = ()
    n_named: int = 0

    @property
    def said(self) -> tuple[str, ...]:
        """The lines of the talk in it, without names; an invented silence is none."""
        n_heard = self.n_lines - (self.reply is not None)
        return (self.heard[self.n_named :],) * n_heard + (() if self.reply is None else (self.reply,))

    @property
    def n_bytes_heard(self) -> int:
        return len(self.heard.encode())

    @property
    def n_bytes_replied(self) -> int:
        return len((self.reply or "").encode())


def clean(text: str) -> str:
    """A content as it goes into a prompt: templates that trim and templates that do not give the same, and every tokenizer takes it."""
    if not text.isascii():  # most texts are, and a long talk is cleaned again at every turn
        text = text.encode("utf-8", "replace").decode("utf-8")
    return text.strip()


def paragraph(text: str) -> str:
    """A text in one line, for places where a line of its own could be taken for somebody else's."""
    return " ".join(part.strip() for part in clean(text).splitlines() if part.strip())


def beats_of(lines: Sequence[Line], *, one_paragraph: bool = False) -> list[Beat]:
    """At least one beat; the last, and only the last of a regular talk, is unanswered. Blank lines were not heard.

    `one_paragraph`: each line heard is one, whoever speaks.
    """
    named = len({_name(line) for line in lines if not line.is_npc and line.text.strip()}) > 1
    beats: list[Beat] = []
    open_beat: Beat | None = None
    for line in lines:
        text = clean(line.text)
        if not text:
            continue
        if line.is_npc:
            heard = open_beat or Beat(SILENCE, 0)
            beats.append(replace(heard, n_lines=heard.n_lines + 1, reply=text, drawn=line.tokens or ()))
            open_beat = None
        else:
            if open_beat is not None:
                beats.append(open_beat)
            name = _name(line) if named else ""
            open_beat = _heard(name, paragraph(text) if named or one_paragraph else text)
    return [*beats, open_beat or Beat(SILENCE, 0)]


def n_lines_until(lines: Sequence[Line], n_spoken: int) -> int:
    """How many of the lines go with the first `n_spoken` that were not blank; 0 when none does."""
    places = (place for place, line in enumerate(lines, start=1) if clean(line.text))
    return next(islice(places, n_spoken - 1, None)) if n_spoken else 0


def _heard(name: str, text: str) -> Beat:
    start = f"{name}: " if name else ""
    return Beat(start + text, 1, n_named=len(start))


def _name(line: Line) -> str:
    return " ".join(clean(line.speaker).split())
