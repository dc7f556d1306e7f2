"""Speaking slots become neighbours at the least cost, and the books say where everybody's KV is."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest

from personae.engine.llama.streams import Streams
from personae.types import Slot


def slots(*numbers: int) -> list[Slot]:
    return [Slot(number) for number in numbers]


def run(streams: Streams, speaking: list[Slot], weight: list[int], content: list[int] | None = None) -> int:
    """Do what `gather` asks, to the content of the streams too; what it cost."""
    cost = 0
    for a, b in streams.gather(speaking, weight):
        cost += weight[streams.slot_in[a]] + weight[streams.slot_in[b]]
        if content is not None:
            content[a], content[b] = content[b], content[a]
        streams.swap(a, b)
    return cost


def are_neighbours(streams: Streams, speaking: list[Slot]) -> bool:
    places = sorted(streams.of[slot] for slot in speaking)
    return places == list(range(places[0], places[0] + len(places)))


@pytest.mark.parametrize("speaking", [(), (2,), (0, 1), (3, 2, 1), (0, 1, 2, 3)])
def test_neighbours_stay_where_they_are(speaking: tuple[int, ...]) -> None:
    assert Streams(4).gather(slots(*speaking), [1, 1, 1, 1]) == []


def test_a_gap_is_closed_by_the_slot_that_is_cheaper_to_move() -> None:
    assert Streams(4).gather(slots(0, 2, 3), [900, 0, 5, 5]) in ([(3, 1)], [(2, 1)])
    assert Streams(4).gather(slots(0, 2, 3), [5, 0, 900, 900]) == [(0, 1)]


def test_an_empty_slot_is_displaced_rather_than_a_full_one() -> None:
    streams = Streams(5)
    pairs = streams.gather(slots(0, 4), [10, 700, 700, 0, 10])
    assert pairs == [(0, 3)]


def test_gathering_changes_no_books_until_the_swap_is_done() -> None:
    streams = Streams(3)
    assert streams.gather(slots(0, 2), [1, 1, 1]) != []
    assert streams.of == [0, 1, 2]


def least_cost(streams: Streams, speaking: list[Slot], weight: list[int]) -> int:
    """By trying every arrangement: swaps cost what they move, so an arrangement costs its slots that change places."""
    n = len(streams.of)
    costs = []
    for places in permutations(range(n)):
        taken = sorted(places[slot] for slot in speaking)
        if taken[-1] - taken[0] == len(taken) - 1:
            costs.append(sum(weight[slot] for slot in range(n) if places[slot] != streams.of[slot]))
    return min(costs)


@pytest.mark.parametrize("seed", range(8))
def test_no_arrangement_is_cheaper(seed: int) -> None:
    rng = np.random.default_rng(seed)
    streams, n = Streams(5), 5
    for a, b in combinations(range(n), 2):
        if rng.random() < 0.4:
            streams.swap(a, b)
    weight = [int(cost) for cost in rng.integers(0, 50, n)]
    for k in range(1, n + 1):
        for speaking in combinations(range(n), k):
            fresh = Streams(n)
            fresh.of, fresh.slot_in = list(streams.of), list(streams.slot_in)
            assert run(fresh, slots(*speaking), weight) == least_cost(streams, slots(*speaking), weight)


@pytest.mark.parametrize("seed", range(5))
def test_after_any_history_of_swaps_everybody_finds_their_own_content(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 12))
    streams, content = Streams(n), list(range(n))
    for _ in range(200):
        speaking = [Slot(int(slot)) for slot in rng.choice(n, int(rng.integers(1, n + 1)), replace=False)]
        run(streams, speaking, [int(cost) for cost in rng.integers(0, 100, n)], content)
        assert are_neighbours(streams, speaking)
        assert [content[streams.of[slot]] for slot in range(n)] == list(range(n))
        assert [streams.slot_in[streams.of[slot]] for slot in range(n)] == list(range(n))
