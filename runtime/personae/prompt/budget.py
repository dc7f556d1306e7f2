"""Which examples and which beats stay. Numbers in, numbers out: it knows no text, no template and no model.

What goes first, when a prompt is too long:
 1. the oldest of the talk, while the examples stay: they teach the voice at every turn, and a small model that has lost them has
    nothing but its own last replies to imitate;
 2. examples beyond their share, last first (their author put the best first). The share, a quarter of what core and style leave of the
    context, is fixed before the talk is looked at: so recent talk has the rest, and examples never come and go while it grows;
 3. for one very long line only: the past, then the examples one by one (recent talk takes what room is left then), then the style.
Never the persona's core, never the newest line: where these two do not fit, the builder refuses.

The cut moves rarely. A prompt whose oldest beat falls away has another prefix, and its KV must be filled anew. Were just enough cut
at every turn, every turn of a long talk would pay for the whole prompt. So the past is cut at *marks* only: beats that begin a new
stretch of about a quarter of the room, measured from the first line of the talk. A talk that is too long is cut at the first mark
after which it fits, is then about three quarters of the room, and stays cut there until it has grown by another quarter. Nothing is
remembered between turns: marks depend on what was said before them alone, so they stay where they are as the talk goes on. (It follows
that a caller who forgets old lines should forget many at once.) Stretches are measured in estimated tokens, for to measure exactly
would mean to tokenize a thousand lines that are not in the prompt; whether the rest fits is counted exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

EXAMPLES_SHARE = 4  # examples may take one part in four of what core, style and scaffold leave of the context
STRETCHES = 4  # marks in a full room


def examples_share(room: int) -> int:
    return room // EXAMPLES_SHARE


def stretch_of(room: int) -> int:
    """Tokens from mark to mark."""
    return max(1, room // STRETCHES)


def n_examples_within(costs: Sequence[int], room: int) -> int:
    """How many examples, from the first, fit together in `room` tokens."""
    return sum(1 for total in accumulate(costs) if total <= room)


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
