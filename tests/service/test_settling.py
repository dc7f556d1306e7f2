"""When a pack has come to rest: prints and times in, what is to be looked at and told out."""

from __future__ import annotations

import random

import pytest

from personae.service.inspection import Print
from personae.service.settling import Patience, Settling

SETTLE, GRACE, GONE = 200.0, 2000.0, 1000.0
ONE: Print = ("one",)
TWO: Print = ("two",)


@pytest.fixture
def settling() -> Settling:
    return Settling(Patience(SETTLE, GRACE, GONE))


@pytest.fixture
def known(settling) -> Settling:
    """One pack, told before."""
    settling.know({"guard": ONE})
    return settling


def tell(settling: Settling, at_ms: float, print: Print | None) -> bool:
    assert settling.due(at_ms) == ["guard"]
    return settling.is_to_be_told("guard", print, at_ms)


def test_what_was_told_before_is_not_told_again(known) -> None:
    known.saw({"guard": ONE}, 0.0)
    assert (known.due(1e9), known.next_due_ms()) == ([], None)


def test_new_pack_is_due_when_it_has_not_moved_for_a_while(settling) -> None:
    settling.saw({"guard": ONE}, 100.0)
    assert settling.next_due_ms() == 100.0 + SETTLE
    assert settling.due(100.0 + SETTLE - 1) == []
    assert tell(settling, 100.0 + SETTLE, ONE)
    assert settling.next_due_ms() is None


def test_pack_that_moves_is_not_due_however_long_that_takes(settling) -> None:
    for at_ms in range(0, 10_000, 150):
        settling.saw({"guard": (at_ms,)}, float(at_ms))
        assert settling.due(float(at_ms)) == []


def test_pack_that_moves_back_to_what_was_told_is_nothing_new(known) -> None:
    known.saw({"guard": TWO}, 0.0)
    known.saw({"guard": ONE}, 50.0)
    assert known.next_due_ms() is None


def test_pack_that_changes_while_it_is_looked_at_is_not_told(settling) -> None:
    settling.saw({"guard": ONE}, 0.0)
    settling.saw_one("guard", TWO, SETTLE)
    assert not settling.is_to_be_told("guard", ONE, SETTLE)
    assert tell(settling, 2 * SETTLE, TWO)


def test_what_may_be_half_a_copy_is_looked_at_once_more_after_the_grace(settling) -> None:
    settling.saw({"guard": ONE}, 0.0)
    assert not settling.is_to_be_told("guard", ONE, SETTLE, may_be_half=True)
    assert settling.next_due_ms() == GRACE
    assert settling.due(GRACE - 1) == []
    assert settling.due(GRACE) == ["guard"]
    assert settling.is_to_be_told("guard", ONE, GRACE, may_be_half=True)
    assert settling.next_due_ms() is None


def test_held_pack_that_goes_on_is_looked_at_as_soon_as_it_has_settled(settling) -> None:
    settling.saw({"guard": ONE}, 0.0)
    settling.is_to_be_told("guard", ONE, SETTLE, may_be_half=True)
    settling.saw({"guard": TWO}, 1500.0)
    assert tell(settling, 1500.0 + SETTLE, TWO)


def test_pack_that_is_gone_is_told_after_a_while_and_forgotten(known) -> None:
    known.saw({}, 0.0)
    assert known.due(GONE - 1) == []
    assert tell(known, GONE, None)
    known.saw({"guard": ONE}, 5000.0)
    assert tell(known, 5000.0 + SETTLE, ONE)


def test_pack_that_is_deleted_and_written_again_was_never_gone(known) -> None:
    known.saw({}, 0.0)
    known.saw({"guard": TWO}, GONE / 2)
    assert known.due(GONE) == ["guard"]
    assert known.is_to_be_told("guard", TWO, GONE)


def test_pack_that_came_and_went_before_anybody_looked_is_not_told(settling) -> None:
    settling.saw({"guard": ONE}, 0.0)
    settling.saw({}, 50.0)
    assert settling.next_due_ms() is None


def test_pack_to_be_looked_at_again_has_to_settle_anew_and_is_still_told_when_it_goes(known) -> None:
    known.saw({"guard": TWO}, 0.0)
    known.look_again("guard", SETTLE)
    assert known.due(SETTLE) == []
    assert known.due(2 * SETTLE) == ["guard"]
    known.saw({}, 3 * SETTLE)
    assert tell(known, 3 * SETTLE + GONE, None)


def test_packs_do_not_wait_for_each_other(settling) -> None:
    settling.saw({"bard": ONE, "guard": ONE}, 0.0)
    settling.saw({"bard": ONE, "guard": TWO}, 150.0)
    assert settling.due(SETTLE) == ["bard"]


def test_whatever_happens_the_last_state_is_told_in_the_end_and_nothing_twice() -> None:
    chance = random.Random(7)
    for _ in range(200):
        settling, told, at_ms, there = Settling(Patience(SETTLE, GRACE, GONE)), None, 0.0, None
        for _ in range(30):
            at_ms += chance.choice([10.0, 100.0, 300.0, 1500.0])
            there = chance.choice([None, ONE, TWO, there])
            settling.saw({} if there is None else {"guard": there}, at_ms)
            for pack in settling.due(at_ms):
                if settling.is_to_be_told(pack, there, at_ms, may_be_half=chance.random() < 0.3):
                    assert told != there
                    told = there
        while (due_ms := settling.next_due_ms()) is not None:
            assert settling.due(due_ms) == ["guard"]
            if settling.is_to_be_told("guard", there, due_ms):
                told = there
        assert told == there
