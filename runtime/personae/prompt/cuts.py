"""What a receipt says of lore, and of all that is not in a prompt. Decides words, for a writer; what is in the prompt was decided before.

A writer of lore asks three things: why is this in my prompt, why is that not, and did anything touch it at all. So each entry that is known
or touched has a note of its own, and those that nothing touched are counted.
"""

from __future__ import annotations

from collections.abc import Iterator

from personae.prompt.lorebook import LABEL_LENGTH, MOST_AT_ONCE, Lorebook, places_in
from personae.prompt.page import Setting
from personae.prompt.parts import Cut, LoreNote, LoreState
from personae.prompt.plan import Material, Plan, in_order, lore_cost
from personae.prompt.talk import paragraph

BEYOND = f"more than {MOST_AT_ONCE} were touched at once: those of the highest priority came to mind"
TOO_MANY_KEYS = "not looked for: keys are too many, or regular expressions too large, together"


def cuts_of(setting: Setting, material: Material, plan: Plan) -> tuple[Cut, ...]:
    """Everything of the material that is not in the plan."""
    cuts = (_cut_history(material, plan), _cut_examples(setting, material, plan), _cut_lore(setting, material, plan))
    return tuple(cut for cut in (*cuts, _cut_memories(setting, material, plan), _cut_style(setting, material, plan)) if cut.count)


def _cut_history(material: Material, plan: Plan) -> Cut:
    n_lines = sum(beat.n_lines for beat in material.past[: plan.start])
    return Cut("history", n_lines, None, "the talk is longer than its room: the oldest lines went")


def _cut_examples(setting: Setting, material: Material, plan: Plan) -> Cut:
    costs = [setting.example_cost(example) for example in material.examples[plan.n_examples :]]
    return Cut("examples", len(costs), sum(costs), "examples have a share of the context, and yield to a long line: the last went")


def _cut_lore(setting: Setting, material: Material, plan: Plan) -> Cut:
    gone = _left_out(material, plan)
    n_tokens = None if plan.mind.beyond else sum(_n_tokens(setting, material.book, place) for place in gone)
    reason = "lore has a share of the context, and yields to a long line: what has the lowest priority, or is too long, went"
    return Cut("lore", len(gone), n_tokens, reason, tuple(material.book.labels[place] for place in gone))


def _cut_memories(setting: Setting, material: Material, plan: Plan) -> Cut:
    gone = [memory for index, memory in enumerate(material.memories) if index not in plan.memories]
    n_tokens = sum(len(setting.of_item(memory)) for memory in gone)
    return Cut(
        "memory", len(gone), n_tokens, "memories have a share of the context, and yield to a long line: the oldest, or too long, went"
    )


def _cut_style(setting: Setting, material: Material, plan: Plan) -> Cut:
    reason = "the style is longer than its share of the context, or the newest line needs the room"
    return Cut("style", int(plan.style != material.style), len(setting.of(material.style)), reason)


# --- lore ---------------------------------------------------------------------------------------------------------


def notes_of(setting: Setting, material: Material, plan: Plan) -> tuple[LoreNote, ...]:
    """What is in the prompt in its order, then what was left out, then the rest in numbers."""
    return (*_there(setting, material, plan), *_not_there(setting, material, plan), *_rest(material, plan))


def _there(setting: Setting, material: Material, plan: Plan) -> Iterator[LoreNote]:
    book, beats = material.book, plan.mind.beats
    for place in sorted(in_order(book, plan.mind.ranked), key=lambda place: beats.get(place, -1)):
        if place in beats:
            state, why = _touched_by(material, place, beats[place])
        else:
            state, why = LoreState.CONSTANT, "always known"
        yield LoreNote(book.labels[place], state, why, _n_tokens(setting, book, place))


def _touched_by(material: Material, place: int, beat: int) -> tuple[LoreState, str]:
    by = material.attention.bringer(place, beat)
    if by is not None:
        return LoreState.BROUGHT, f"brought by {material.book.labels[by]}"
    key, line = material.attention.spoken(place, beat)
    return LoreState.KEY, f"“{paragraph(key)}” in “{_around(key, paragraph(line))}”"


def _not_there(setting: Setting, material: Material, plan: Plan) -> Iterator[LoreNote]:
    book = material.book
    for place in _left_out(material, plan):
        if plan.mind.beyond >> place & 1:
            yield LoreNote(book.labels[place], LoreState.LEFT_OUT, BEYOND, 0)
        else:
            yield LoreNote(book.labels[place], LoreState.LEFT_OUT, _no_room(setting, book, plan, place), _n_tokens(setting, book, place))
    for place in places_in(book.too_long):
        yield LoreNote(book.labels[place], LoreState.LEFT_OUT, "not looked at: the texts of all lore are too long together", 0)
    for place in places_in(book.too_many_keys & ~plan.mind.touched):
        yield LoreNote(book.labels[place], LoreState.LEFT_OUT, TOO_MANY_KEYS, 0)


def _no_room(setting: Setting, book: Lorebook, plan: Plan, place: int) -> str:
    n_tokens = lore_cost(setting, book, place)
    return f"no room: {n_tokens} tokens{', and the newest line is long' if plan.is_narrow else f'; all lore may take {plan.lore_room}'}"


def _n_tokens(setting: Setting, book: Lorebook, place: int) -> int:
    text = book.texts[place]
    return len(setting.of_item(text) if book.keyed >> place & 1 else setting.of(text))


def _rest(material: Material, plan: Plan) -> Iterator[LoreNote]:
    silent = material.book.keyed & ~plan.mind.touched & ~material.book.too_many_keys
    if n_silent := silent.bit_count():
        yield LoreNote("", LoreState.SILENT, f"{n_silent} not touched", 0)
    if material.book.n_off:
        yield LoreNote("", LoreState.OFF, f"{material.book.n_off} switched off", 0)


def _left_out(material: Material, plan: Plan) -> list[int]:
    """Known or touched, and not in the prompt; in the writer's order."""
    kept = set(plan.mind.ranked)
    return sorted({*material.book.always, *places_in(plan.mind.touched)} - kept)


def _around(key: str, line: str) -> str:
    """The part of a line that has the key in it."""
    at = max(0, line.casefold().find(key.casefold()))
    start = max(0, min(at - LABEL_LENGTH // 2, len(line) - LABEL_LENGTH))
    end = start + LABEL_LENGTH
    return f"{'…' if start else ''}{line[start:end]}{'…' if end < len(line) else ''}"
