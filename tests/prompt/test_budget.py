from __future__ import annotations

import pytest

from personae.prompt.budget import allot, each_that_fits, each_that_stays, first_mark, lore_room, n_first_within, n_newest_within


def test_examples_are_kept_from_the_first() -> None:
    assert [n_first_within([10, 20, 5], room) for room in (-1, 9, 10, 34, 35, 99)] == [0, 0, 1, 2, 3, 3]


def test_what_is_too_large_does_not_stand_in_the_way_of_what_comes_after_it() -> None:
    assert [each_that_fits([10, 30, 5, 10], room) for room in (-1, 4, 9, 15, 24, 40, 99)] == [
        [],
        [],
        [2],
        [0, 2],
        [0, 2],
        [0, 1],
        [0, 1, 2, 3],
    ]


def test_kinds_are_served_in_order_and_none_before_all_of_the_kind_before_it() -> None:
    kinds = [[10], [4, 4], [], [3, 3]]
    found = {room: tuple(allot(kinds, room)) for room in (-5, 0, 9, 10, 13, 14, 17, 18, 20, 21, 24, 99)}
    assert found == {
        **dict.fromkeys((-5, 0, 9), (0, 0, 0, 0)),
        **dict.fromkeys((10, 13), (1, 0, 0, 0)),
        **dict.fromkeys((14, 17), (1, 1, 0, 0)),
        **dict.fromkeys((18, 20), (1, 2, 0, 0)),
        21: (1, 2, 0, 1),
        **dict.fromkeys((24, 99), (1, 2, 0, 2)),
    }


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


def test_lore_has_a_share_or_what_its_writer_allows_up_to_half() -> None:
    assert [lore_room(1000, tokens) for tokens in (None, -1, 0, 16, 500, 501)] == [200, 0, 0, 16, 500, 500]
    assert lore_room(-10, 16) == 0


def test_what_is_no_must_stays_only_where_a_quarter_is_left_free() -> None:
    assert each_that_stays([30, 30, 30], [True, True, True], 100) == [0, 1, 2]
    assert each_that_stays([30, 30, 30], [False, False, False], 100) == [0, 1]
    assert each_that_stays([50, 40, 10, 20], [False, True, True, False], 100) == [0, 1, 2]
