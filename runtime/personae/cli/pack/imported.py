"""What an import tells: what it made of which source, what was kept aside, what did not come along, and what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from personae.cli.pack.adapters import Ready
from personae.cli.pack.check import problem_lines
from personae.cli.pack.screen import Line, counted, folded, line
from personae.packs.character import Character, PackProblem
from personae.packs.draft import PackDraft
from personae.packs.lint.files import CARD_FILE, lint_files
from personae.packs.lint.lore import is_keyed
from personae.packs.loader import examine_pack

MOST_NOTES = 12
INDENT = 4


def report(folder: Path, source: Path, about: str, draft: PackDraft, ready: Ready | None) -> Iterator[Line]:
    character, problems = examine_pack(folder)
    yield from folded(f"{folder}: made of {source.name} ({about}).", 0, "bold")
    if character is not None:
        yield from folded(f"Taken: {_parts(character)}.", INDENT)
    if ready is not None:
        yield from folded(f"Adapter: {ready.said}.", INDENT)
    if CARD_FILE in draft.files:
        yield from folded(f"Kept aside: all of the card, in {CARD_FILE}; `personae pack export --card` gives it back.", INDENT)
    yield from note_lines(draft.notes, "Not as it was:")
    for problem in problems:
        if problem.is_error:
            yield from problem_lines(problem)
    yield from _next(folder)


def report_added(folder: Path, source: Path, file: str, ready: Ready) -> Iterator[Line]:
    yield from folded(f"{folder}: {source.name} is its adapter now, as {file} ({ready.said}).", 0, "bold")
    unnamed = [problem.file for problem in lint_files(folder) if problem.field == "adapter"]
    if unnamed:
        yield from folded(f"No longer named: {', '.join(unnamed)}. Delete it when no running game speaks with it.", INDENT)
    yield from _next(folder)


def _parts(character: Character) -> str:
    n_keyed = sum(map(is_keyed, character.lore))
    lore = counted(len(character.lore), "lore entry", "lore entries") + (f" ({n_keyed} with keys)" if n_keyed else "")
    greetings = "greeting" + (f" and {counted(len(character.greetings), 'other')}" if character.greetings else "")
    parts = {
        "name": bool(character.name),
        "persona": bool(character.persona),
        "style": bool(character.style),
        greetings: bool(character.greeting),
        counted(len(character.examples), "example"): bool(character.examples),
        lore: bool(character.lore),
        counted(len(character.moods), "mood"): bool(character.moods),
        "portrait": bool(character.portrait),
        counted(len(character.tags), "tag"): bool(character.tags),
    }
    return ", ".join(part for part, is_there in parts.items() if is_there)


def note_lines(notes: list[PackProblem], heading: str) -> Iterator[Line]:
    """The first of them, each in a paragraph."""
    if notes:
        yield from folded(heading, INDENT)
    for note in notes[:MOST_NOTES]:
        text = " ".join(part for part in (note.field or "The card", note.problem, note.remedy) if part)
        yield from folded(text, INDENT + 2, "dim", first=" " * INDENT + "-")
    if len(notes) > MOST_NOTES:
        yield from folded(f"and {len(notes) - MOST_NOTES} more like these.", INDENT + 2)


def _next(folder: Path) -> Iterator[Line]:
    yield line(f"Next: personae pack check {shlex.quote(str(folder))}", "bold")
