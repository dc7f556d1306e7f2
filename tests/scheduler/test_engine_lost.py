"""The engine dies and comes back: every open turn hears of it once, and nothing of the old engine is believed."""

from __future__ import annotations

from personae.engine.batch import LoadAdapter, StepDone
from personae.scheduler.actions import FailTurn
from personae.scheduler.events import EngineStarted, StepReported
from tests.scheduler.stage import Stage


def test_every_open_turn_fails_with_a_hint_when_to_come_again() -> None:
    stage = Stage(n_slots=1)
    turns = [stage.ask("bob"), stage.ask("ann"), stage.ask("cid", adapter="pirate")]
    stage.step()
    stage.lose()
    for turn in turns:
        ended = stage.ended[turn]
        assert isinstance(ended, FailTurn)
        assert ended.code == "engine_lost"
        assert "exit status -6" in ended.message
        assert ended.retry_after_ms == stage.config.restart_hint_ms


def test_after_a_restart_no_kv_and_no_adapter_is_taken_for_granted() -> None:
    stage = Stage()
    stage.ask("bob", adapter="pirate")
    stage.settle()
    stage.lose()
    stage.start()
    turn = stage.ask("bob", adapter="pirate")
    assert [order.key for order in stage.orders(LoadAdapter)] == ["pirate"]
    stage.settle()
    assert stage.begun(turn).keep == 0
    assert stage.reply(turn) == stage.expected(turn)[0]


def test_a_turn_asked_while_the_engine_is_down_waits_for_it() -> None:
    stage = Stage(is_up=False)
    turn = stage.ask("bob", adapter="pirate")
    assert stage.answer == []
    stage.start()
    stage.settle()
    assert stage.reply(turn) == stage.expected(turn)[0]


def test_it_waits_no_longer_than_its_own_time() -> None:
    stage = Stage(is_up=False)
    turn = stage.ask("bob", max_seconds=2.0)
    stage.tick(1999.0)
    assert turn not in stage.ended
    stage.tick(1.0)
    assert stage.code(turn) == "engine_lost"


def test_the_line_is_bounded_while_the_engine_is_down() -> None:
    stage = Stage(is_up=False, max_waiting=2)
    turns = [stage.ask(f"npc{n}") for n in range(3)]
    assert stage.code(turns[2]) == "busy"


def test_a_prompt_too_long_for_the_new_engine_is_refused_when_it_starts() -> None:
    stage = Stage(is_up=False, n_ctx=20)
    long, short = stage.ask("bob", range(1, 50)), stage.ask("ann")
    stage.start()
    assert stage.code(long) == "context_full"
    stage.settle()
    assert stage.reply(short) == stage.expected(short)[0]


def test_cancelled_while_the_engine_is_down() -> None:
    stage = Stage(is_up=False)
    turn = stage.ask("bob")
    assert stage.cancel(turn) == [stage.ended[turn]]
    assert stage.code(turn) == "cancelled"


def test_a_last_report_of_the_dead_engine_is_ignored() -> None:
    stage = Stage()
    stage.ask("bob")
    stage.lose()
    assert stage.tell(StepReported(stage.now_ms, StepDone())) == []


def test_an_engine_that_starts_unannounced_counts_as_a_loss_of_the_old_one() -> None:
    stage = Stage()
    turn = stage.ask("bob")
    stage.engine.steps.clear()
    stage.tell(EngineStarted(stage.now_ms, 2, 400))
    assert stage.code(turn) == "engine_lost"
