from __future__ import annotations

import pytest

from personae.prompt.budget import first_mark, n_examples_within, n_newest_within


def test_examples_are_kept_from_the_first() -> None:
    assert [n_examples_within([10, 20, 5], room) for room in (-1, 9, 10, 34, 35, 99)] == [0, 0, 1, 2, 3, 3]


def test_beats_are_kept_from_the_newest_and_older_ones_are_not_measured() -> None:
    def costs() -> object:
        yield from (10, 20, 30)
        pytest.fail("measured a beat that cannot be in the prompt")

    assert n_newest_within(costs(), 35) == 2  # type: ignore[arg-type]


def test_uncut_talk_stays_uncut() -> None:
    assert first_mark([10] * 20, 0, 40) == 0


def test_cut_moves_on_to_the_next_mark() -> None:
    assert [first_mark([10] * 20, start, 40) for start in range(1, 10)] == [4, 4, 4, 4, 8, 8, 8, 8, 12]


def test_marks_stay_where_they_are_as_the_talk_goes_on() -> None:
    estimates = [7, 31, 12, 5, 90, 3, 3, 44, 18, 9, 27, 61, 2, 15]
    marks = [first_mark(estimates, start, 50) for start in range(1, 12)]
    assert [first_mark([*estimates, 10, 80, 30], start, 50) for start in range(1, 12)] == marks
    assert marks == sorted(marks)


def test_talk_without_a_further_mark_is_cut_where_it_must_be() -> None:
    assert first_mark([10, 10, 10], 2, 1000) == 2
