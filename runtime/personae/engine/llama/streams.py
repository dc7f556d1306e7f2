"""Which KV stream holds which slot, so that the slots that speak are neighbours. Pure bookkeeping; moves nothing itself.

Why: with a KV stream per sequence llama.cpp puts rows into one ubatch only while their sequence ids follow each other without a
gap (`split_equal` in its llama-batch.cpp). Rows of slots 0, 2 and 3 would run as two passes over the weights, {0} and {2, 3}, each
at nearly the price of the whole. When the NPC in the middle falls silent, somebody must move up.

So a slot is a name and a stream is a place. Before a decode `gather` says which streams are to swap content; a swap costs a
copy of two sequences, once, where a gap would cost a pass in every step.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from personae.types import Slot


class Streams:
    """A permutation: `of[slot]` is the stream that holds it."""

    def __init__(self, n: int) -> None:
        self.of = list(range(n))
        self.slot_in = [Slot(i) for i in range(n)]

    def gather(self, speaking: Collection[Slot], weight: Sequence[int]) -> list[tuple[int, int]]:
        """Pairs of streams to swap so that `speaking` occupies a run of neighbours; [] when it does.

        `weight[slot]`: what it costs to move that slot's content (tokens in its KV). The cheapest set of swaps is chosen.
        The books are not changed; call `swap` for each pair once its content has moved.
        """
        streams = sorted(self.of[slot] for slot in speaking)
        if not streams or streams[-1] - streams[0] == len(streams) - 1:
            return []
        starts = range(len(self.of) - len(streams) + 1)
        return min((self._into(start, streams, weight) for start in starts), key=lambda swaps: self._cost(swaps, weight))

    def _into(self, start: int, streams: list[int], weight: Sequence[int]) -> list[tuple[int, int]]:
        run = range(start, start + len(streams))
        outside = [stream for stream in streams if stream not in run]
        idle = sorted((stream for stream in run if stream not in streams), key=lambda stream: weight[self.slot_in[stream]])
        return list(zip(outside, idle, strict=True))

    def _cost(self, swaps: list[tuple[int, int]], weight: Sequence[int]) -> int:
        return sum(weight[self.slot_in[stream]] for pair in swaps for stream in pair)

    def swap(self, a: int, b: int) -> None:
        slot_a, slot_b = self.slot_in[a], self.slot_in[b]
        self.slot_in[a], self.slot_in[b] = slot_b, slot_a
        self.of[slot_a], self.of[slot_b] = b, a
