"""A promise that was not kept ends the turn, wherever it stands, and is told apart from the turn's own limits."""

from __future__ import annotations

import pytest

from personae.types import Priority
from tests.scheduler.stage import Stage


def test_without_a_first_token_in_time_it_is_a_miss() -> None:
    stage = Stage()
    turn = stage.ask("bob", first_ms=100.0)
    assert stage.scheduler.next_deadline_ms() == stage.now_ms + 100.0
    stage.tick(99.0)
    assert turn not in stage.ended
    stage.tick(1.0)
    assert stage.code(turn) == "deadline"
    stage.settle()


def test_with_the_first_token_that_deadline_is_forgotten() -> None:
    stage = Stage()
    turn = stage.ask("bob", first_ms=100.0, max_seconds=60.0)
    stage.step(50.0)
    assert stage.scheduler.next_deadline_ms() == 61_000.0
    stage.tick(60.0)
    stage.settle()
    assert stage.reply(turn) == stage.expected(turn)[0]


def test_the_report_that_brings_the_first_token_at_the_last_moment_keeps_the_promise() -> None:
    stage = Stage()
    turn = stage.ask("bob", first_ms=100.0)
    stage.step(100.0)
    assert turn in stage.spoken
    assert turn not in stage.ended


def test_without_its_end_in_time_it_is_a_miss_and_says_what_it_had() -> None:
    stage = Stage()
    turn = stage.ask("bob", end_ms=35.0, max_tokens=20)
    while turn not in stage.ended:
        stage.step(10.0)
    assert stage.code(turn) == "deadline"
    assert stage.reply(turn) == stage.expected(turn)[0][:4]
    stage.settle()


def test_time_without_a_promise_is_no_miss() -> None:
    stage = Stage()
    turn = stage.ask("bob", max_seconds=0.1, max_tokens=20)
    stage.tick(100.0)
    assert stage.code(turn) == "time"
    stage.settle()


def test_of_a_deadline_and_a_limit_at_one_moment_the_promise_counts() -> None:
    stage = Stage()
    turn = stage.ask("bob", end_ms=100.0, max_seconds=0.1)
    stage.tick(100.0)
    assert stage.code(turn) == "deadline"
    stage.settle()


def test_it_counts_while_a_turn_waits_in_line() -> None:
    stage = Stage(n_slots=1)
    stage.ask("bob", max_tokens=20)
    turn = stage.ask("ann", first_ms=100.0)
    stage.tick(100.0)
    assert stage.code(turn) == "deadline"
    stage.settle()
    assert not stage.has_begun(turn)


def test_it_counts_while_a_turn_is_paused() -> None:
    stage = Stage(n_slots=1)
    turn = stage.ask("crowd", priority=Priority.AMBIENT, max_tokens=20, end_ms=300.0)
    stage.step()
    stage.ask("bob", max_tokens=50)
    stage.step()
    stage.tick(300.0)
    assert stage.code(turn) == "deadline"
    assert turn not in stage.engine.speakers
    stage.settle()


@pytest.mark.parametrize("which", ["first_ms", "end_ms"])
def test_it_counts_while_the_engine_is_down(which: str) -> None:
    stage = Stage(is_up=False)
    turn = stage.ask("bob", max_seconds=5.0, **{which: 100.0})  # type: ignore[arg-type]
    limited = stage.ask("ann", max_seconds=0.1)
    stage.tick(100.0)
    assert [stage.code(each) for each in (turn, limited)] == ["deadline", "engine_lost"]


# --- limits of a turn's KV --------------------------------------------------------------------------------------------


def test_prompt_and_reply_together_hold_no_more_than_the_turn_may() -> None:
    stage = Stage()
    turn = stage.ask("bob", range(1, 20), max_kv=25, max_tokens=50)
    stage.settle()
    assert (stage.code(turn), len(stage.reply(turn))) == ("context", 7)
    assert stage.reply(turn) == stage.expected(turn)[0]
    assert len(stage.engine.kv[0]) == 25


def test_a_prompt_that_fills_it_alone_is_refused_with_both_numbers() -> None:
    stage = Stage()
    turn = stage.ask("bob", range(1, 20), max_kv=19)
    assert stage.code(turn) == "context_full"
    assert "19 tokens" in stage.ended[turn].message  # type: ignore[union-attr]
    assert "may hold 19" in stage.ended[turn].message  # type: ignore[union-attr]


def test_more_than_a_slot_holds_is_no_more_than_a_slot_holds() -> None:
    stage = Stage(n_ctx=25)
    turn = stage.ask("bob", range(1, 20), max_kv=1000, max_tokens=50)
    stage.settle()
    assert (stage.code(turn), len(stage.reply(turn))) == ("context", 7)
