"""Which texts of the persona and which beats stay. Numbers in, numbers out: it knows no text, no template and no model.

What goes first, when a prompt is too long:
 1. what is beyond its share. Style, lore, memories and examples each have a fixed share of the context, settled before the talk is
    looked at: so they never come and go while it grows, none of them pushes another out, and the talk has all that they leave. Lore
    stays by priority, memories from the newest, examples from the first (their author put the best first). Only lore that comes to mind
    comes as the talk goes; it shares what lore has, and where that is not enough the rank of lore decides: priority, then what is
    always known, then what was touched last;
 2. the oldest of the talk, while all of those stay: the examples teach the voice at every turn, and a small model that has lost them
    has nothing but its own last replies to imitate;
 3. for one very long line only: the past, then the examples, last first, then lore from the lowest priority, then the oldest
    memories, then the style. Recent talk takes what room is left then.
Never the persona's core, never the newest line: where these two do not fit, the builder refuses.

The cut moves rarely. A prompt whose oldest beat falls away has another prefix, and its KV must be filled anew. Were just enough cut
at every turn, every turn of a long talk would pay for the whole prompt. So the past is cut at *marks* only: beats that begin a new
stretch of about a quarter of the room, measured from the first line of the talk. A talk that is too long is cut at the first mark
after which it fits, is then about three quarters of the room, and stays cut there until it has grown by another quarter. Nothing is
remembered between turns: marks depend on what was said before them alone, so they stay where they are as the talk goes on. (It follows
that a caller who forgets old lines should forget many at once.) Stretches are measured in estimated tokens, for to measure exactly
would mean to tokenize a thousand lines that are not in the prompt; whether the rest fits is counted exactly.

Lore in the talk moves as rarely. When something there has to give way, as much goes with it as makes a quarter of lore's room free; and
a past is held to need as much for lore as it ever did, so that lore's going does not bring old lines back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

# One part in so many: the style's of what the core leaves of the context, the others' of what core and style leave.
STYLE_SHARE = 2
EXAMPLES_SHARE = 4
LORE_SHARE = 5
MEMORY_SHARE = 10  # with lore and examples 55 in 100: what is happening now needs the rest more than a small model needs more facts
MOST_LORE = 2  # the share that a writer may give to lore at most
STRETCHES = 4  # marks in a full room
SPARE_LORE = 4  # one part in so many of lore's room is made free when something that stood in the talk has to go


def stretch_of(room: int) -> int:
    """Tokens from mark to mark."""
    return max(1, room // STRETCHES)


def n_first_within(costs: Iterable[int], room: int) -> int:
    """How many, from the first, fit together in `room` tokens."""
    return sum(1 for total in accumulate(costs) if total <= room)


def each_that_fits(costs: Sequence[int], room: int) -> list[int]:
    """Indices of those that find room, asked in order: one that is too large does not stand in the way of those after it."""
    kept = []
    for index, cost in enumerate(costs):
        if cost <= room:
            kept.append(index)
            room -= cost
    return kept


def lore_room(room: int, tokens: int | None) -> int:
    """`room`: of the context, what core and style leave; `tokens`: what the writer allows."""
    return room // LORE_SHARE if tokens is None else max(0, min(tokens, room // MOST_LORE))


def each_that_stays(costs: Sequence[int], must: Sequence[bool], room: int) -> list[int]:
    """Like `each_that_fits`, with room to spare afterwards: what is not a must stays only where that is left free."""
    kept = []
    used = 0
    for index, cost in enumerate(costs):
        if used + cost <= (room if must[index] else room - room // SPARE_LORE):
            kept.append(index)
            used += cost
    return kept


def allot(kinds: Sequence[Sequence[int]], room: int) -> list[int]:
    """How many of each kind, from its first, `room` tokens hold. The most needed kind stands first; the next waits until it is whole."""
    counts = []
    for costs in kinds:
        count = n_first_within(costs, room)
        room = room - sum(costs) if count == len(costs) else -1
        counts.append(count)
    return counts


def n_newest_within(costs_newest_first: Iterable[int], room: int) -> int:
    """How many beats, from the newest backwards, fit together in `room` tokens. Costs further back are not asked for."""
    kept = used = 0
    for cost in costs_newest_first:
        used += cost
        if used > room:
            break
        kept += 1
    return kept


def first_mark(estimates: Sequence[int], start: int, stretch: int) -> int:
    """The first beat at or after `start` that begins a new stretch, or `start` itself where the rest of the talk has no mark.

    `estimates`: tokens of each beat of the past, from the first line of the talk; `start`: the oldest that fits; `stretch`: in tokens.
    """
    if start == 0:
        return 0
    position = sum(estimates[: start - 1])
    for beat in range(start, len(estimates)):
        before, position = position, position + estimates[beat - 1]
        if before // stretch != position // stretch:
            return beat
    return start
