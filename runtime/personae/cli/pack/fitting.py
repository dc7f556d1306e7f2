"""What of a character has no room in a model's context, counted in that model's own tokens. Knows no files.

Nothing is estimated: prompts are built as the service builds them, of talks that nobody has had, and their receipts are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from personae.cli.pack.measure import Measure
from personae.errors import AskedWrong
from personae.packs.character import Character, Lore, Mood, PackProblem, Severity
from personae.packs.lint.lore import is_keyed, label
from personae.packs.manifest import FILE
from personae.prompt import Cut, Line, Persona, PromptBuilder, Receipt
from personae.prompt.parts import LoreNote, LoreState
from personae.service.roster import persona_of
from personae.types import Limits

MOST_KEYS = 3  # said at once to call an entry to mind
MOST_NAMED = 8  # entries, in one problem
_REMEDIES = {
    "style": "Shorten it to a sentence or two.",
    "examples": "Keep the best two or three, the best first.",
    "lore": "Give it `keys`, so that it comes to mind only where it is needed, or shorten it.",
}


def room_of(character: Character, n_ctx: int) -> int:
    """Tokens that prompt and reply may have together."""
    return min(int(character.limits.get("max_kv") or n_ctx), n_ctx)


def reserve_of(character: Character, n_ctx: int) -> int:
    """Tokens that are kept free for a reply, as the service keeps them (service/turns.py)."""
    return min(int(character.limits.get("max_tokens", Limits().max_tokens)), room_of(character, n_ctx) // 2)


def budget_problems(character: Character, builder: PromptBuilder, n_ctx: int) -> Iterator[PackProblem]:
    """The core, as nothing can be said without it; then what is cut from a talk that has not begun; then lore that would come to mind."""
    try:
        builder.check(persona_of(character), room=room_of(character, n_ctx))
        receipt = _receipt(character, persona_of(character), [], builder, n_ctx)
    except AskedWrong as fault:
        yield PackProblem(character.id, FILE, "persona", fault.message, fault.hint)
        return
    yield from (_cut_problem(character, cut, cut.part) for cut in receipt.cuts)
    yield from _not_looked_at(character, receipt)
    for number, mood in enumerate(character.moods.values(), start=1):
        cuts = _cuts(character, builder, n_ctx, mood) if mood.style else ()
        yield from (_cut_problem(character, cut, f"moods[{number}].style") for cut in cuts if cut.part == "style")
    yield from _of_keyed_lore(character, builder, n_ctx)


def model_problems(measure: Measure) -> list[PackProblem]:
    """What is to be said of the model itself, and of no pack."""
    builder = measure.builder
    if builder is None or builder.template_kind == "model":
        return []
    means = {
        "folded": "Persona, style and lore open the first user message: a small model may take them for the player's words.",
        "builtin": "Replies may be worse than the model can do.",
    }[builder.template_kind]
    remedy = "Nothing in a pack can change that; say what matters in the first sentence of the persona, and show it in examples."
    note = builder.template_note
    return [PackProblem("", measure.name, "", f"{note[:1].upper()}{note[1:]}. {means}", remedy, Severity.WARNING)]


def _cuts(character: Character, builder: PromptBuilder, n_ctx: int, mood: Mood | None = None) -> tuple[Cut, ...]:
    return _receipt(character, persona_of(character, mood=mood), [], builder, n_ctx).cuts


def _receipt(character: Character, persona: Persona, lines: list[Line], builder: PromptBuilder, n_ctx: int) -> Receipt:
    return builder.build(persona, lines, reserve_of(character, n_ctx), room=room_of(character, n_ctx)).receipt


def _cut_problem(character: Character, cut: Cut, field: str) -> PackProblem:
    named = ": " + ", ".join(f"'{name}'" for name in cut.names) if cut.names else ""
    what = (
        f"is left out of every prompt, {cut.tokens} tokens"
        if cut.part == "style"
        else f"has {cut.count} too many, {cut.tokens} tokens{named}"
    )
    return PackProblem(character.id, FILE, field, f"{what}; {cut.reason}.", _REMEDIES.get(cut.part, "Shorten it."), Severity.WARNING)


# --- lore with keys ---------------------------------------------------------------------------------------------------


def _of_keyed_lore(character: Character, builder: PromptBuilder, n_ctx: int) -> Iterator[PackProblem]:
    """Each entry alone, called to mind by a line that says its keys, as a player may, has to be there."""
    for number, entry in enumerate(character.lore, start=1):
        if not is_keyed(entry):
            continue
        note = _called_to_mind(character, builder, n_ctx, _as_words(entry))
        if note is None or note.state is LoreState.KEY:
            continue
        said, remedy = f"is never in a prompt: {note.why}", "Choose keys that a player would say."
        if note.state is LoreState.LEFT_OUT:
            said = f"has {note.tokens} tokens and does not fit, even alone: {note.why}"
            remedy = "Shorten it, or give lore more room with lore_rules.tokens."
        yield PackProblem(character.id, FILE, f"lore[{number}]", f"('{label(entry)}') {said}.", remedy, Severity.WARNING)


def _not_looked_at(character: Character, receipt: Receipt) -> Iterator[PackProblem]:
    """What a book has beyond its bounds: one problem for each bound."""
    names: dict[str, list[str]] = {}
    for note in receipt.lore:
        if note.state is LoreState.LEFT_OUT and not note.tokens:
            names.setdefault(note.why, []).append(f"'{note.name}'")
    for why, labels in names.items():
        told = ", ".join(labels[:MOST_NAMED]) + (", ..." if len(labels) > MOST_NAMED else "")
        remedy = "Give the book fewer keys, plainer expressions or less text, or more than one character."
        yield PackProblem(character.id, FILE, "lore", f"has {len(labels)} entries ({told}) that are {why}.", remedy, Severity.WARNING)


def _as_words(entry: Lore) -> Lore:
    """What a regular expression finds nobody can say in general: for the size of its entry any word will do."""
    return replace(entry, keys=("word",), secondary=(), regex=False) if entry.regex else entry


def _called_to_mind(character: Character, builder: PromptBuilder, n_ctx: int, entry: Lore) -> LoreNote | None:
    """What became of it; None where even the line did not fit."""
    said = Line("Player", " ".join((*entry.keys[:MOST_KEYS], *entry.secondary[:MOST_KEYS])), False)
    persona = replace(persona_of(character), lore=(entry,))
    try:
        notes = _receipt(character, persona, [said], builder, n_ctx).lore
    except AskedWrong:
        return None
    return notes[0] if notes else None
