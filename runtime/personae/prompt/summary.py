"""Asks a model for a memory: which persona and which lines make it sum up what an NPC heard and said. Pure; it runs no model.

What comes back is one more prompt for `PromptBuilder.build`, so it fits like any other: the oldest of the transcript goes first, and
the question, which is the newest line, never.

Tried on the 135M base of the sample cast. Shown its own replies as replies, or a script of "Name: line", it writes the script on; told
what each said, as a story is, and asked at the end what one of them learned and promised, it answers in whole sentences with names.
More orders (to use names, to add nothing) made it worse, and an example of a summary put its own people into the memory. At this size
it still gets half of them wrong: a memory is as good as the model, which is why this is off by default and a writer can edit it. It is
asked for in the third person, though it will stand in the prompt of somebody addressed as *you*: a small model mixes up who "you" is,
and names it copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from personae.prompt.parts import Line, Persona
from personae.prompt.talk import paragraph

PIECE = 400  # characters. Long lines come in pieces, so that a small context loses the beginning of one and not all of it
CORE = "You sum up conversations in two or three short sentences."


def summary_request(name: str, lines: Sequence[Line]) -> tuple[Persona, list[Line]]:
    """What to give to `build`, for the memory that the NPC called `name` keeps of `lines`. No adapter: a voice is no reporter."""
    told = [_told(piece) for line in lines for piece in _told_of(name, line)]
    return Persona(name, CORE), [*told, _told(_question(name))]


def without_question(name: str, said: str) -> str:
    """What the model said, less the question where it began by repeating that; small models do."""
    question = _question(name)[:-1]
    return said[len(question) :].lstrip("?: ") if said.lower().startswith(question.lower()) else said


def _question(name: str) -> str:
    return f"In two or three short sentences, what did {name} learn and promise?"


def _told(text: str) -> Line:
    return Line("", text, False)  # nobody's, so that no line gets a name


def _told_of(name: str, line: Line) -> Iterator[str]:
    speaker = paragraph(name if line.is_npc else line.speaker)
    for piece in _pieces(paragraph(line.text)):
        yield f'{speaker} said: "{piece}"' if speaker else piece


def _pieces(text: str) -> Iterator[str]:
    """The text in parts of at most PIECE characters, cut at blanks where there are any; no part of a blank one."""
    while len(text) > PIECE:
        blank = text.rfind(" ", 1, PIECE + 1)
        end = blank if blank > 0 else PIECE
        yield text[:end]
        text = text[end:].lstrip()
    if text:
        yield text
