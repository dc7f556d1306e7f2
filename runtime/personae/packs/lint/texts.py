"""What in the texts of a pack is probably a mistake. All of it is harmless: content is never parsed for control tokens, nor run."""

from __future__ import annotations

import re
from collections.abc import Iterator

from personae.packs.character import Character, PackProblem, Severity
from personae.packs.manifest import FILE

# ChatML and its kin, Llama's, Gemma's, Mistral's, and the sentence marks of SentencePiece.
CONTROL = re.compile(r"<[|｜][^<>|｜\n]{1,40}[|｜]>|<(?:start|end)_of_turn>|\[/?INST\]|<</?SYS>>|</?s>")
PLACEHOLDER = re.compile(r"\{\{[^{}\n]{1,60}\}\}|<(?:user|char|bot)>", re.IGNORECASE)
_CUE = re.compile(r"^[ \t]*[*\[]{0,2}([^\W\d_][\w'’.-]*(?: [^\W\d_][\w'’.-]*){0,2})[*\]]{0,2} ?[:：]", re.MULTILINE)
_ROLES = frozenset({"player", "user", "you", "human", "assistant", "system", "char", "bot"})


def lint_texts(character: Character) -> Iterator[PackProblem]:
    for field, text in texts_of(character):
        yield from _lint_text(character.id, field, text)
    for number, example in enumerate(character.examples, start=1):
        yield from _lint_reply(character, f"examples[{number}].reply", example.reply)
    yield from _lint_reply(character, "greeting", character.greeting)


def texts_of(character: Character) -> Iterator[tuple[str, str]]:
    """(field, text) of everything that a model may be shown or a player may hear."""
    yield from (("persona", character.persona), ("style", character.style), ("greeting", character.greeting))
    yield from _numbered("greetings[{}]", character.greetings)
    yield from _numbered("fallback[{}]", character.fallback)
    yield from _numbered("examples[{}].player", (example.player for example in character.examples))
    yield from _numbered("examples[{}].reply", (example.reply for example in character.examples))
    yield from _numbered("lore[{}].text", (entry.text for entry in character.lore))
    yield from _numbered("moods[{}].style", (mood.style or "" for mood in character.moods.values()))


def _numbered(field: str, texts: Iterator[str] | tuple[str, ...]) -> Iterator[tuple[str, str]]:
    return ((field.format(number), text) for number, text in enumerate(texts, start=1))


def _lint_text(pack: str, field: str, text: str) -> Iterator[PackProblem]:
    if found := CONTROL.search(text):
        problem = f"holds '{found[0]}', which looks like a control token: here it is read letter by letter, and means nothing."
        yield _warning(pack, field, problem, "Take it out; the model's own template marks who speaks.")
    if found := PLACEHOLDER.search(text):
        problem = f"holds the placeholder '{found[0]}', which nothing fills in: the model reads it as it stands."
        yield _warning(pack, field, problem, "Write the name, or reword it.")


def _lint_reply(character: Character, field: str, text: str) -> Iterator[PackProblem]:
    if stop := next((stop for stop in character.stop if stop in text), None):
        problem = f"holds '{stop}', which is among `stop`: such a reply would end there."
        yield _warning(character.id, field, problem, "Take one of the two out.")
    own = character.name.casefold()
    for cue in _CUE.finditer(text):
        name = cue[1].casefold()
        if name == own:
            yield _warning(character.id, field, f"begins a line with the character's own name, '{cue[1]}:'.", "Write only what is said.")
            return
        if name in _ROLES or (cue.start() > 0 and cue[1].istitle()):
            problem = f"speaks for somebody else ('{cue[1]}:'): the model learns to do the same, and is cut off there."
            yield _warning(character.id, field, problem, "Keep one reply of one speaker in it.")
            return


def _warning(pack: str, field: str, problem: str, remedy: str) -> PackProblem:
    return PackProblem(pack, FILE, field, problem, remedy, Severity.WARNING)
