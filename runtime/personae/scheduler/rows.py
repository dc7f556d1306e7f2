"""Who of those that speak gets a token in the next step. Decides order and rotation; how many fit is the budget's to say.

Who is of a higher class goes first, then who was heard longest ago; whoever is not heard rises a class each second, so that all
go on. The rows of a step are neighbours in the order of slots where that can be had: the engine keeps them side by side in memory, and
would have to move KV for any other choice. So those of one class take turns in fixed parties.

While somebody waits for a first word, those of that class speak at the pace of a reader, no faster, and below a player's not at all for a
second: a decode of few rows costs nearly as much as one of many, and the time saved goes to the prompt. They catch up after it. When one of
them is due, its whole class speaks: their rows cost little beside its own.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from math import ceil

from personae.scheduler.budget import StepBudget
from personae.scheduler.sequence import Sequence
from personae.scheduler.settings import SchedulerConfig
from personae.types import MixMode, Voice

RISE_MS = 1000.0  # unheard for so long, a turn goes first as one of the class above does
YIELD_MS = 1000.0  # that speakers below a player's class are silent for the sake of a player's prompt


def fitting(speakers: Ordered[Sequence], budget: StepBudget, now_ms: float, config: SchedulerConfig, mode: MixMode) -> list[Sequence]:
    """As many of `speakers`, in order of slots, as a step has time for; at least one of them."""
    if not speakers:
        return []
    if mode is MixMode.GROUPED:
        chosen = set(_groups(speakers, budget, now_ms, config))
    else:
        chosen = set(_party(speakers, budget.rows(len(speakers)), now_ms, config))
    return [turn for turn in speakers if turn in chosen]


def ahead_of(head: Sequence, speakers: Ordered[Sequence], now_ms: float, config: SchedulerConfig) -> list[Sequence]:
    """Those that speak as if the prompt of `head` were not there: those of a higher class, and all if nobody waits to hear it."""
    if not head.asked.draws:
        return list(speakers)
    return [turn for turn in speakers if _is_above(turn, head, now_ms, config)]


def due(head: Sequence, speakers: Ordered[Sequence], now_ms: float, config: SchedulerConfig) -> list[Sequence]:
    """Of the others, those whose turn it is to speak all the same."""
    others = [] if not head.asked.draws else [turn for turn in speakers if not _is_above(turn, head, now_ms, config)]
    below = [turn for turn in others if head.native_class == 0 and _is_above(head, turn, now_ms, config)]
    level = [turn for turn in others if turn not in below]
    return [*_all_if_one_is(level, config.pace_ms, now_ms), *_all_if_one_is(below, max(YIELD_MS, config.pace_ms), now_ms)]


def _all_if_one_is(speakers: list[Sequence], pace_ms: float, now_ms: float) -> list[Sequence]:
    return speakers if any(now_ms - turn.heard_ms >= pace_ms for turn in speakers) else []


def _is_above(one: Sequence, other: Sequence, now_ms: float, config: SchedulerConfig) -> bool:
    return one.class_at(now_ms, config.ageing_ms) < other.class_at(now_ms, config.ageing_ms)


def _rank(turn: Sequence, now_ms: float, config: SchedulerConfig) -> int:
    return max(0, turn.class_at(now_ms, config.ageing_ms) - int((now_ms - turn.heard_ms) / RISE_MS))


def _party(speakers: Ordered[Sequence], room: int, now_ms: float, config: SchedulerConfig) -> list[Sequence]:
    """The highest ranks whole, as far as they fit; of the next a party."""
    if len(speakers) <= room:
        return list(speakers)
    levels: dict[int, list[Sequence]] = {}
    for turn in speakers:
        levels.setdefault(_rank(turn, now_ms, config), []).append(turn)
    chosen: list[Sequence] = []
    for _, level in sorted(levels.items()):
        left = room - len(chosen)
        chosen += level if len(level) <= left else _neighbours(level, left)
        if len(level) >= left:
            break
    return chosen


def _neighbours(level: list[Sequence], room: int) -> list[Sequence]:
    """A run of at most `room` that begins with the one unheard for longest; so long that as many runs as it takes are about equal."""
    if not room:
        return []
    length = ceil(len(level) / ceil(len(level) / room))
    first = min(range(len(level)), key=lambda i: level[i].heard_ms)
    first = min(first, len(level) - length)
    return level[first : first + length]


def _groups(speakers: Ordered[Sequence], budget: StepBudget, now_ms: float, config: SchedulerConfig) -> list[Sequence]:
    """Whole voices, each of which costs a decode; only one with too many rows for any step is split."""
    by_voice: dict[Voice, list[Sequence]] = {}
    for turn in speakers:
        by_voice.setdefault(turn.voice, []).append(turn)
    in_order = sorted(by_voice.values(), key=lambda group: min((_rank(turn, now_ms, config), turn.heard_ms) for turn in group))
    first = in_order[0]
    if not budget.has_room(len(first), 1):
        return _party(first, budget.rows(len(first)), now_ms, config)
    chosen, n_groups = list(first), 1
    for group in in_order[1:]:
        if budget.is_long(budget.decode_ms(len(chosen), n_groups)):
            break
        if budget.has_room(len(chosen) + len(group), n_groups + 1):
            chosen, n_groups = chosen + group, n_groups + 1
    return chosen
