"""What of a persona and a talk will be in one prompt. Decides which text stands in which row; which rows stay, budget.py says in numbers.

Two steps. `Material` is everything that could be in the prompt, cleaned. `plan_of` says what of it is: first each kind of text within
its share of the context, whatever was said; then what the newest line leaves of that, which is all of it unless the line is very long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from personae.prompt import budget as rules
from personae.prompt.page import MEMORY_HEADING, Block, Setting
from personae.prompt.parts import Cut, Example, Line, Lore, Persona
from personae.prompt.talk import Beat, beats_of, clean, paragraph

SAMPLE = "Good evening. What have you got to eat?"  # shows how dense a model's tokens are
LABEL_LENGTH = 40  # characters of a lore entry without a name, for the receipt


@dataclass(frozen=True, slots=True)
class Material:
    """Persona and lines, cleaned: what could be in the prompt. Texts that are blank are not in it."""

    core: str
    style: str
    lore: tuple[Lore, ...]
    memories: tuple[str, ...]  # one paragraph each
    examples: tuple[Example, ...]
    past: Sequence[Beat]
    newest: Beat | None  # None: what is said next is not known yet

    @staticmethod
    def of(persona: Persona, past: Sequence[Beat], newest: Beat | None) -> Material:
        lore = tuple(entry for entry in persona.lore if clean(entry.text))
        memories = tuple(text for memory in persona.memories if (text := paragraph(memory)))
        examples = tuple(example for example in persona.examples if clean(example.player) and clean(example.reply))
        return Material(clean(persona.core), clean(persona.style), lore, memories, examples, past, newest)

    @staticmethod
    def for_reply(persona: Persona, lines: Sequence[Line]) -> Material:
        *past, newest = beats_of(lines)
        return Material.of(persona, past, newest)

    @staticmethod
    def before_next(persona: Persona, lines: Sequence[Line]) -> Material:
        """All lines are the past; one that nobody answered yet is its last beat."""
        *past, newest = beats_of(lines)
        return Material.of(persona, [*past, newest] if newest.n_lines else past, None)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a prompt will hold. Indices are rising: on the page, texts keep their writer's order."""

    style: str  # or ""
    lore: tuple[int, ...]
    memories: tuple[int, ...]
    n_examples: int  # from the first
    start: int  # the past from this beat on


def system_of(setting: Setting, material: Material, plan: Plan) -> list[Block]:
    lore = [clean(material.lore[index].text) for index in plan.lore]
    return setting.system(material.core, plan.style, lore, [material.memories[index] for index in plan.memories])


def plan_of(setting: Setting, material: Material, budget: int, most: int) -> Plan | None:
    """`budget`: tokens of the prompt; `most`: of prompt and reply, which shares are of. None: core and newest line alone do not fit."""
    line = len(setting.of(material.newest.heard)) if material.newest else 0
    bare = setting.frame_cost(setting.system(material.core))
    if bare + line > budget:
        return None
    fair = _within_shares(setting, material, most - bare)
    kept = fair.first(rules.allot(fair.costs(setting, material), budget - bare - line))
    plan = Plan(material.style if kept.style else "", tuple(sorted(kept.lore)), tuple(sorted(kept.memories)), len(kept.examples), 0)
    fixed = setting.frame_cost(system_of(setting, material, plan)) + sum(_example_costs(setting, material)[: plan.n_examples])
    start = _start(setting, material, budget - fixed - line, most - fixed)
    return Plan(plan.style, plan.lore, plan.memories, plan.n_examples, start)


@dataclass(frozen=True, slots=True)
class _Choice:
    """Indices of texts of each kind, the one that stays longest first."""

    style: Sequence[int]  # (0,) or ()
    memories: Sequence[int]
    lore: Sequence[int]
    examples: Sequence[int]

    def first(self, counts: Sequence[int]) -> _Choice:
        """So many of each kind, in the order of the fields."""
        n_style, n_memories, n_lore, n_examples = counts
        return _Choice(self.style[:n_style], self.memories[:n_memories], self.lore[:n_lore], self.examples[:n_examples])

    def costs(self, setting: Setting, material: Material) -> list[list[int]]:
        """Tokens of each text; the memories' heading is paid by the one that stays longest."""
        memories = [len(setting.of_memory(material.memories[index])) for index in self.memories]
        memories[:1] = [cost + setting.block_cost(MEMORY_HEADING) for cost in memories[:1]]
        examples = _example_costs(setting, material)
        return [
            [setting.block_cost(material.style)] * len(self.style),
            memories,
            [setting.block_cost(clean(material.lore[index].text)) for index in self.lore],
            [examples[index] for index in self.examples],
        ]


def _within_shares(setting: Setting, material: Material, room: int) -> _Choice:
    """What stays of each kind however short the talk is. `room`: of the context, what the core leaves."""
    style_cost = setting.block_cost(material.style)
    style = (0,) if material.style and style_cost <= room // rules.STYLE_SHARE else ()
    room -= style_cost if style else 0
    newest_first = range(len(material.memories) - 1, -1, -1)
    memory_costs = [len(setting.of_memory(material.memories[index])) for index in newest_first]
    by_priority = sorted(range(len(material.lore)), key=lambda index: -material.lore[index].priority)
    lore_costs = [setting.block_cost(clean(material.lore[index].text)) for index in by_priority]
    memory_room = room // rules.MEMORY_SHARE - setting.block_cost(MEMORY_HEADING)
    return _Choice(
        style,
        [newest_first[place] for place in rules.each_that_fits(memory_costs, memory_room)],
        [by_priority[place] for place in rules.each_that_fits(lore_costs, room // rules.LORE_SHARE)],
        range(rules.n_first_within(_example_costs(setting, material), room // rules.EXAMPLES_SHARE)),
    )


def _example_costs(setting: Setting, material: Material) -> list[int]:
    return [setting.example_cost(example) for example in material.examples]


def _start(setting: Setting, material: Material, room: int, full_room: int) -> int:
    """The first beat of the past that stays: from there on it fits in `room`. `full_room` depends on neither line nor reserve."""
    newest_first = (setting.beat_cost(beat) for beat in reversed(material.past))
    start = len(material.past) - rules.n_newest_within(newest_first, room)
    return rules.first_mark(_estimates(setting, material), start, rules.stretch_of(full_room)) if start else 0


def _estimates(setting: Setting, material: Material) -> list[int]:
    known = (SAMPLE, material.core)  # the core is probably in the language of the talk, and may be short
    tokens_per_byte = sum(len(setting.of(text)) for text in known) / sum(len(text.encode()) for text in known)
    return [setting.beat_estimate(beat, tokens_per_byte) for beat in material.past]


# --- the receipt --------------------------------------------------------------------------------------------------


def cuts_of(setting: Setting, material: Material, plan: Plan) -> tuple[Cut, ...]:
    """Everything of the material that is not in the plan."""
    cuts = (_cut_history(material, plan), _cut_examples(setting, material, plan), _cut_lore(setting, material, plan))
    return tuple(cut for cut in (*cuts, _cut_memories(setting, material, plan), _cut_style(setting, material, plan)) if cut.count)


def _cut_history(material: Material, plan: Plan) -> Cut:
    n_lines = sum(beat.n_lines for beat in material.past[: plan.start])
    return Cut("history", n_lines, None, "the talk is longer than its room: the oldest lines went")


def _cut_examples(setting: Setting, material: Material, plan: Plan) -> Cut:
    costs = _example_costs(setting, material)[plan.n_examples :]
    return Cut("examples", len(costs), sum(costs), "examples have a share of the context, and yield to a long line: the last went")


def _cut_lore(setting: Setting, material: Material, plan: Plan) -> Cut:
    kept = set(plan.lore)
    gone = [entry for index, entry in enumerate(material.lore) if index not in kept]
    n_tokens = sum(len(setting.of(clean(entry.text))) for entry in gone)
    reason = "lore has a share of the context, and yields to a long line: what has the lowest priority, or is too long, went"
    return Cut("lore", len(gone), n_tokens, reason, tuple(map(_label, gone)))


def _cut_memories(setting: Setting, material: Material, plan: Plan) -> Cut:
    gone = [memory for index, memory in enumerate(material.memories) if index not in plan.memories]
    n_tokens = sum(len(setting.of_memory(memory)) for memory in gone)
    return Cut(
        "memory", len(gone), n_tokens, "memories have a share of the context, and yield to a long line: the oldest, or too long, went"
    )


def _cut_style(setting: Setting, material: Material, plan: Plan) -> Cut:
    reason = "the style is longer than its share of the context, or the newest line needs the room"
    return Cut("style", int(plan.style != material.style), len(setting.of(material.style)), reason)


def _label(entry: Lore) -> str:
    if name := paragraph(entry.name):
        return name
    text = paragraph(entry.text)
    return text if len(text) <= LABEL_LENGTH else text[:LABEL_LENGTH].rsplit(" ", 1)[0] + "…"
