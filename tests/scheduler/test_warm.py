"""An NPC is prepared before anybody speaks to it, and nobody waits for that."""

from __future__ import annotations

from personae.engine.batch import BeginTurn, DropTurn, RunStep
from personae.scheduler.actions import EndTurn
from personae.types import Priority, TurnId, Usage
from tests.scheduler.stage import Stage

PROMPT = range(1, 100)


def first_chunk(stage: Stage, turn: TurnId) -> int:
    """The step that prefilled something of it first."""
    steps = stage.orders(RunStep)
    return next(n for n, step in enumerate(steps) if any(chunk.turn == turn for chunk in step.prefill))


def test_it_ends_when_all_is_prefilled_and_has_said_nothing() -> None:
    stage = Stage()
    warm = stage.warm("bob", PROMPT)
    stage.settle()
    ended = stage.ended[warm]
    assert isinstance(ended, EndTurn)
    assert (ended.finish, ended.reply, ended.ttft_ms) == ("warm", (), -1.0)
    assert ended.usage == Usage(prompt=99, prefilled=99)
    assert DropTurn(warm) in stage.engine.log
    assert not any(chunk.last for step in stage.orders(RunStep) for chunk in step.prefill)
    stage.check_books()


def test_the_first_line_to_a_warm_npc_costs_its_own_tokens() -> None:
    stage = Stage()
    stage.warm("bob", PROMPT)
    stage.settle()
    turn = stage.ask("bob", (*PROMPT, 200, 201))
    stage.settle()
    assert (stage.usage(turn).source, stage.usage(turn).prefilled) == ("slot", 2)
    assert stage.reply(turn) == stage.expected(turn)[0]


def test_who_is_warm_already_is_done_at_once_without_an_order() -> None:
    stage = Stage()
    stage.ask("bob", PROMPT)
    stage.settle()
    stage.engine.log.clear()
    warm = stage.warm("bob", PROMPT)
    assert stage.code(warm) == "warm"
    assert not stage.engine.log
    assert (stage.usage(warm).reused, stage.usage(warm).prefilled, stage.usage(warm).source) == (99, 0, "slot")


def test_who_is_warm_in_host_memory_is_brought_into_a_slot() -> None:
    stage = Stage(n_slots=1)
    stage.ask("bob", PROMPT)
    stage.settle()
    stage.ask("ann", range(300, 340))
    stage.settle()
    warm = stage.warm("bob", PROMPT)
    assert stage.code(warm) == "warm"
    assert stage.usage(warm).source == "host"
    assert len(stage.engine.kv[0]) == 99
    stage.check_books()


def test_it_waits_for_every_prompt_that_somebody_will_hear() -> None:
    stage = Stage(n_slots=3, step_ms=20.0)
    warm = stage.warm("guard", PROMPT)
    talk = stage.ask("crowd", range(200, 260), priority=Priority.AMBIENT, max_tokens=2)
    stage.settle()
    assert first_chunk(stage, talk) <= 1
    assert stage.ended[talk] is next(iter(stage.ended.values())), "it was asked later and ends earlier"
    assert stage.code(warm) == "warm"


def test_a_full_line_does_without_it_first() -> None:
    stage = Stage(n_slots=1, max_waiting=1)
    stage.ask("bob", max_tokens=20)
    warm = stage.warm("guard", PROMPT)
    talk = stage.ask("crowd", range(200, 260), priority=Priority.AMBIENT)
    assert stage.code(warm) == "busy"
    stage.settle()
    assert stage.reply(talk) == stage.expected(talk)[0]


def test_the_prompt_may_fill_the_context_to_the_last_token() -> None:
    stage = Stage(n_ctx=99)
    warm, turn = stage.warm("bob", PROMPT), stage.ask("ann", PROMPT)
    stage.settle()
    assert [stage.code(each) for each in (warm, turn)] == ["warm", "context_full"]


def test_cancelled_half_way_it_leaves_what_it_has() -> None:
    stage = Stage(step_ms=20.0)
    warm = stage.warm("bob", PROMPT)
    stage.step()
    stage.cancel(warm)
    stage.settle()
    turn = stage.ask("bob", (*PROMPT, 200))
    stage.settle()
    assert stage.usage(turn).reused > 0
    assert stage.reply(turn) == stage.expected(turn)[0]


def test_whoever_waits_behind_a_warm_turn_begins_in_the_same_breath_it_ends() -> None:
    stage = Stage(n_slots=1)
    warm = stage.warm("bob", PROMPT)
    other = stage.warm("ann", range(200, 299))
    while warm not in stage.ended:
        stage.step()
    assert any(isinstance(order, BeginTurn) and order.turn == other for order in stage.engine.log)
