"""All that can be told of a pack without its weights and without a model, in one list. What each part looks at, the package says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from personae.packs.character import Character, PackProblem, Severity
from personae.packs.lint.files import lint_files
from personae.packs.lint.lore import lint_lore
from personae.packs.lint.places import placed
from personae.packs.lint.texts import lint_texts
from personae.packs.manifest import FILE

LOUD_SCALE = 2.0  # of an adapter: past this a small model's words come apart
MOST = 100  # problems listed of one pack

_WORTH_HAVING = {
    "licence": ("nobody knows what they may do with the pack.", 'Add licence = "..." ("CC BY 4.0", "all rights reserved").'),
    "author": ("nobody knows whom to thank, or to ask.", 'Add author = "...".'),
    "greeting": ("the character says nothing until it is spoken to.", 'Add greeting = "..." with its first line.'),
    "description": ("whoever chooses a character is told nothing of it.", 'Add description = "..." in a sentence.'),
    "fallback": ("nothing is said when a reply would come too late.", 'Add fallback = ["..."] with a line or two that suit any question.'),
}


def lint(path: Path, character: Character | None) -> list[PackProblem]:
    """Everything there is to say without a model. `character` None: the pack does not load, and its files are looked at nonetheless."""
    found = [] if character is None else [*_left_out(character), *_moods(character), *lint_texts(character), *lint_lore(character)]
    found = placed(path, found)
    found += lint_files(path)
    if len(found) > MOST:
        more = PackProblem(
            found[0].pack, "", "", f"has {len(found) - MOST} more warnings.", "Put these right and check again.", Severity.WARNING
        )
        return [*found[:MOST], more]
    return found


def merged(*lists: Iterable[PackProblem]) -> list[PackProblem]:
    """Errors first; what two of them say of the same place in the same words is said once, as the first has it."""
    every: dict[tuple[str, str, str, str], PackProblem] = {}
    for problem in chain(*lists):
        every.setdefault((problem.pack, problem.file, problem.field, problem.problem), problem)
    return sorted(every.values(), key=lambda problem: not problem.is_error)


def _left_out(character: Character) -> Iterator[PackProblem]:
    for field, (what, remedy) in _WORTH_HAVING.items():
        if not getattr(character, field):
            yield PackProblem(character.id, FILE, field, f"is missing: {what}", remedy, Severity.WARNING)


def _moods(character: Character) -> Iterator[PackProblem]:
    for number, mood in enumerate(character.moods.values(), start=1):
        if mood.style is None and mood.adapters is None and not mood.sampling:
            problem = f"changes nothing: the mood '{mood.name}' speaks as always."
            remedy = "Give it a style, an adapter or sampling of its own."
            yield PackProblem(character.id, FILE, f"moods[{number}]", problem, remedy, Severity.WARNING)
    for field, parts in (
        ("adapter", character.adapters),
        *((f"moods.{m.name}.adapter", m.adapters or ()) for m in character.moods.values()),
    ):
        for part in parts:
            if part.scale > LOUD_SCALE:
                problem = f"is {part.scale:g}: '{part.file}' is applied at more than {LOUD_SCALE:g} times what it was trained for."
                yield PackProblem(character.id, FILE, f"{field}.scale", problem, "Try 1, and go up in steps of 0.2.", Severity.WARNING)
        if len({(part.file, part.version) for part in parts}) < len(parts):
            problem = "names one file twice: its scales are added up."
            yield PackProblem(character.id, FILE, field, problem, "Name it once, with the scale you mean.", Severity.WARNING)
