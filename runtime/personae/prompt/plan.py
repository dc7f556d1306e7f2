"""What of a persona and a talk will be in one prompt. Decides which text stands in which row; which rows stay, budget.py says in numbers.

Two steps. `Material` is everything that could be in the prompt, cleaned. `plan_of` says what of it is: first each kind of text within
its share of the context, whatever was said, but for lore that comes to mind (mind.py); then what the newest line leaves of that, which is
all of it unless the line is very long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from personae.prompt import budget as rules
from personae.prompt.lorebook import Lorebook, set_of
from personae.prompt.mind import Attention, Mind, Recall
from personae.prompt.page import LORE_HEADING, MEMORY_HEADING, Block, Named, Setting
from personae.prompt.parts import Example, Line, Persona
from personae.prompt.talk import Beat, beats_of, clean, paragraph

SAMPLE = "Good evening. What have you got to eat?"  # shows how dense a model's tokens are


@dataclass(frozen=True, slots=True)
class Material:
    """Persona and lines, cleaned: what could be in the prompt. Texts that are blank are not in it."""

    core: str
    style: str
    memories: tuple[str, ...]  # one paragraph each
    examples: tuple[Example, ...]
    past: Sequence[Beat]
    newest: Beat | None  # None: what is said next is not known yet
    attention: Attention  # for past and newest
    lore_tokens: int | None

    @staticmethod
    def of(persona: Persona, book: Lorebook, past: Sequence[Beat], newest: Beat | None) -> Material:
        memories = tuple(text for memory in persona.memories if (text := paragraph(memory)))
        examples = tuple(example for example in persona.examples if clean(example.player) and clean(example.reply))
        attention = Attention(book, persona.lore_rules, [*past, newest] if newest else past)
        core, style = clean(persona.core), clean(persona.style)
        return Material(core, style, memories, examples, past, newest, attention, persona.lore_rules.tokens)

    @staticmethod
    def for_reply(persona: Persona, book: Lorebook, lines: Sequence[Line]) -> Material:
        *past, newest = beats_of(lines, one_paragraph=bool(book.keyed))
        return Material.of(persona, book, past, newest)

    @staticmethod
    def before_next(persona: Persona, book: Lorebook, lines: Sequence[Line]) -> Material:
        """All lines are the past; one that nobody answered yet is its last beat."""
        *past, newest = beats_of(lines, one_paragraph=bool(book.keyed))
        return Material.of(persona, book, [*past, newest] if newest.n_lines else past, None)

    @property
    def book(self) -> Lorebook:
        return self.attention.book


@dataclass(frozen=True, slots=True)
class Plan:
    """What a prompt will hold. Places and indices of memories are rising: on the page, texts keep their writer's order."""

    style: str  # or ""
    memories: tuple[int, ...]
    n_examples: int  # from the first
    start: int  # the past from this beat on
    mind: Mind
    lore_room: int  # tokens that lore may take
    is_narrow: bool  # the newest line is so long that lore gave way to it


def system_of(setting: Setting, material: Material, plan: Plan) -> list[Block]:
    always = in_order(material.book, [place for place in plan.mind.ranked if place not in plan.mind.beats])
    return setting.system(material.core, plan.style, named(material.book, always), [material.memories[index] for index in plan.memories])


def lore_at(material: Material, plan: Plan, beat: int) -> list[Named]:
    """What comes to mind there, in the order of the page."""
    return named(material.book, in_order(material.book, [place for place, there in plan.mind.beats.items() if there == beat]))


def in_order(book: Lorebook, places: Sequence[int]) -> list[int]:
    return sorted(places, key=lambda place: (book.lore[place].order, place))


def named(book: Lorebook, places: Sequence[int]) -> list[Named]:
    return [(book.labels[place], book.texts[place]) for place in places]


def lore_cost(setting: Setting, book: Lorebook, place: int) -> int:
    """What an entry may add to a prompt: one in the talk is counted with a heading of its own, though it may share it."""
    text = book.texts[place]
    return setting.item_cost(text, LORE_HEADING) if book.keyed >> place & 1 else setting.block_cost(text)


def plan_of(setting: Setting, material: Material, budget: int, most: int) -> Plan | None:
    """`budget`: tokens of the prompt; `most`: of prompt and reply, which shares are of. None: core and newest line alone do not fit."""
    line = len(setting.of(material.newest.heard)) if material.newest else 0
    bare = setting.frame_cost(setting.system(material.core))
    if bare + line > budget:
        return None
    recall = _recall(setting, material, most - bare)
    now = recall.since(len(material.past))
    fair = _within_shares(setting, material, now.ranked, most - bare)
    kept = fair.first(rules.allot(fair.costs(setting, material), budget - bare - line))
    if len(kept.lore) < len(fair.lore):
        recall.eligible = set_of(kept.lore)
    style, memories = material.style if kept.style else "", tuple(sorted(kept.memories))
    system = setting.system(material.core, style, (), [material.memories[index] for index in memories])
    fixed = setting.frame_cost(system) + sum(_example_costs(setting, material)[: len(kept.examples)])
    start, mind = _start(setting, material, recall, budget - fixed - line, most - fixed)
    return Plan(style, memories, len(kept.examples), start, mind, recall.room, recall.eligible is not None)


@dataclass(frozen=True, slots=True)
class _Choice:
    """Indices of texts of each kind, the one that stays longest first."""

    style: Sequence[int]  # (0,) or ()
    memories: Sequence[int]
    lore: Sequence[int]  # what is always known, and what the newest line alone would call to mind
    examples: Sequence[int]

    def first(self, counts: Sequence[int]) -> _Choice:
        """So many of each kind, in the order of the fields."""
        n_style, n_memories, n_lore, n_examples = counts
        return _Choice(self.style[:n_style], self.memories[:n_memories], self.lore[:n_lore], self.examples[:n_examples])

    def costs(self, setting: Setting, material: Material) -> list[list[int]]:
        """Tokens of each text; the memories' heading is paid by the one that stays longest."""
        memories = [len(setting.of_item(material.memories[index])) for index in self.memories]
        memories[:1] = [cost + setting.block_cost(MEMORY_HEADING) for cost in memories[:1]]
        examples = _example_costs(setting, material)
        return [
            [setting.block_cost(material.style)] * len(self.style),
            memories,
            [lore_cost(setting, material.book, place) for place in self.lore],
            [examples[index] for index in self.examples],
        ]


def _within_shares(setting: Setting, material: Material, lore: Sequence[int], room: int) -> _Choice:
    """What stays of each kind however short the talk is. `room`: of the context, what the core leaves; `lore`: chosen already."""
    style = (0,) if _has_style(setting, material, room) else ()
    room -= setting.block_cost(material.style) if style else 0
    newest_first = range(len(material.memories) - 1, -1, -1)
    memory_costs = [len(setting.of_item(material.memories[index])) for index in newest_first]
    memory_room = room // rules.MEMORY_SHARE - setting.block_cost(MEMORY_HEADING)
    return _Choice(
        style,
        [newest_first[place] for place in rules.each_that_fits(memory_costs, memory_room)],
        lore,
        range(rules.n_first_within(_example_costs(setting, material), room // rules.EXAMPLES_SHARE)),
    )


def _recall(setting: Setting, material: Material, room: int) -> Recall:
    """`room`: of the context, what the core leaves."""
    book = material.book
    lore_room = rules.lore_room(
        room - (setting.block_cost(material.style) if _has_style(setting, material, room) else 0), material.lore_tokens
    )
    by_priority = sorted(book.always, key=lambda place: (-book.lore[place].priority, book.lore[place].order, place))
    fitting = rules.each_that_fits([lore_cost(setting, book, place) for place in by_priority], lore_room)
    return Recall(material.attention, lambda place: lore_cost(setting, book, place), lore_room, [by_priority[index] for index in fitting])


def _has_style(setting: Setting, material: Material, room: int) -> bool:
    return bool(material.style) and setting.block_cost(material.style) <= room // rules.STYLE_SHARE


def _example_costs(setting: Setting, material: Material) -> list[int]:
    return [setting.example_cost(example) for example in material.examples]


def _start(setting: Setting, material: Material, recall: Recall, room: int, full_room: int) -> tuple[int, Mind]:
    """The first beat of the past that stays, and the lore of the talk from there on: together they fit in `room`.

    `full_room` depends on neither line nor reserve. Lore in the talk depends on where that begins: so one mark after the other is tried.
    """
    always = sum(recall.cost(place) for place in recall.always if recall.eligible is None or recall.eligible >> place & 1)
    costs = [0, *accumulate(setting.beat_cost(beat) for beat in _newest_that_fit(setting, material, room - always))]
    n_past = len(material.past)
    for start in _starts(setting, material, n_past + 1 - len(costs), rules.stretch_of(full_room - always)):
        mind = recall.since(start)
        if costs[n_past - start] + max(always, mind.n_tokens) <= room or start == n_past:
            break
    return start, mind


def _starts(setting: Setting, material: Material, start: int, stretch: int) -> Iterator[int]:
    """Where the past may begin, from the oldest beat that fits; the last is behind its end."""
    if start == 0:
        yield 0
        start = 1
    estimates = _estimates(setting, material)
    while start < len(material.past):
        start = rules.first_mark(estimates, start, stretch)
        yield start
        start += 1
    yield len(material.past)


def _newest_that_fit(setting: Setting, material: Material, room: int) -> Sequence[Beat]:
    """From the newest backwards."""
    newest_first = material.past[::-1]
    return newest_first[: rules.n_newest_within((setting.beat_cost(beat) for beat in newest_first), room)]


def _estimates(setting: Setting, material: Material) -> list[int]:
    known = (SAMPLE, material.core)  # the core is probably in the language of the talk, and may be short
    tokens_per_byte = sum(len(setting.of(text)) for text in known) / sum(len(text.encode()) for text in known)
    return [setting.beat_estimate(beat, tokens_per_byte) for beat in material.past]
