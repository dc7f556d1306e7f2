"""A turn of a lower class gives its slot to one of a higher, and goes on as if nothing had been."""

from __future__ import annotations

import pytest

from personae.engine.batch import BeginTurn, DropTurn, FetchStash, FreeAdapter, LoadAdapter, PauseTurn, ResumeTurn, RunStep, StashSlot
from personae.scheduler.actions import EndTurn
from personae.types import FinishReason, Priority, TurnId
from tests.scheduler.machine import Play
from tests.scheduler.stage import Stage

LONG = range(1, 60)


def ambient(stage: Stage, npc: str = "crowd", prompt: range = LONG, max_tokens: int = 20, **more: object) -> TurnId:
    return stage.ask(npc, prompt, priority=Priority.AMBIENT, max_tokens=max_tokens, **more)  # type: ignore[arg-type]


def paused(stage: Stage) -> list[TurnId]:
    return [order.turn for order in stage.orders(PauseTurn)]


def said_as_ever(stage: Stage, *turns: TurnId) -> bool:
    return all((stage.reply(turn), stage.code(turn)) == stage.expected(turn) for turn in turns)


def test_a_player_takes_the_slot_of_an_ambient_turn_at_the_next_step() -> None:
    stage = Stage(n_slots=1)
    crowd = ambient(stage)
    while crowd not in stage.spoken:
        stage.step()
    player = stage.ask("bob", range(100, 110))
    assert not stage.has_begun(player), "not in the middle of a step"
    stage.step()
    assert stage.has_begun(player)
    kinds = [type(order) for order in stage.engine.log[-4:-1]]
    assert kinds == [PauseTurn, StashSlot, BeginTurn]
    stage.settle()
    assert said_as_ever(stage, crowd, player)


@pytest.mark.parametrize("kv_ram", [0, 1 << 30])
@pytest.mark.parametrize("steps", range(1, 8))
def test_paused_after_any_step_and_resumed_it_says_what_it_would_have_said(steps: int, kv_ram: int) -> None:
    stage = Stage(n_slots=1, kv_ram=kv_ram, step_ms=60.0, prefill_chunk=16)
    crowd = ambient(stage, prompt=range(1, 80))
    for _ in range(steps):
        stage.step()
    player = stage.ask("bob", range(100, 110))
    stage.settle()
    assert paused(stage) == [crowd]
    assert said_as_ever(stage, crowd, player)


def test_what_it_had_computed_comes_back_and_nothing_is_prefilled_again() -> None:
    stage = Stage(n_slots=1)
    crowd = ambient(stage)
    while len(stage.spoken.get(crowd, ())) < 4:
        stage.step()
    stage.ask("bob", range(100, 110))
    stage.settle()
    (resumed,) = stage.orders(ResumeTurn)
    assert resumed.history == (*LONG, *stage.reply(crowd)[: resumed.keep - len(LONG)])
    assert resumed.keep > len(LONG)
    assert sum(len(chunk.tokens) for step in stage.orders(RunStep) for chunk in step.prefill) == len(LONG) + 10


def test_without_host_memory_it_is_prefilled_again_in_chunks_that_draw_nothing() -> None:
    stage = Stage(n_slots=1, kv_ram=0)
    crowd = ambient(stage)
    for _ in range(4):
        stage.step()
    stage.ask("bob", range(100, 110))
    stage.settle()
    assert not stage.orders(StashSlot)
    (resumed,) = stage.orders(ResumeTurn)
    assert resumed.keep == 0
    assert said_as_ever(stage, crowd)
    assert stage.usage(crowd).prefilled == len(LONG), "what was prefilled twice is not the client's"


def test_a_stash_that_failed_costs_time_and_no_word() -> None:
    stage = Stage(n_slots=1)
    stage.engine.has_host_memory = False
    crowd = ambient(stage)
    for _ in range(4):
        stage.step()
    player = stage.ask("bob", range(100, 110))
    stage.settle()
    assert not stage.orders(FetchStash), "it was told in time that there is none"
    assert said_as_ever(stage, crowd, player)


def test_room_for_its_stash_is_not_taken_from_the_one_it_yields_to() -> None:
    stage = Stage(n_slots=1, kv_ram=800)
    first = stage.ask("bob", LONG)
    stage.settle()
    crowd = ambient(stage, prompt=range(500, 560))
    while crowd not in stage.spoken:
        stage.step()
    second = stage.ask("bob", (*LONG, *stage.reply(first), 77))
    stage.settle()
    assert stage.usage(second).source == "host"
    assert said_as_ever(stage, crowd, second)


def test_a_free_slot_spares_everybody() -> None:
    stage = Stage(n_slots=2)
    ambient(stage)
    stage.ask("bob", range(100, 110))
    stage.settle()
    assert not paused(stage)


def test_nobody_is_paused_for_one_of_his_own_class() -> None:
    stage = Stage(n_slots=1)
    first = ambient(stage, "a")
    second = ambient(stage, "b")
    player = stage.ask("bob")
    stage.settle()
    assert paused(stage) == [first]
    other = stage.ask("ann")
    stage.ask("cid")
    stage.settle()
    assert paused(stage) == [first]
    assert said_as_ever(stage, first, second, player, other)


def test_the_lowest_class_yields_first_and_of_these_the_youngest() -> None:
    stage = Stage(n_slots=3)
    scene = stage.ask("scene", LONG, priority=Priority.SCENE, max_tokens=30)
    older, younger = ambient(stage, "older", range(100, 140)), ambient(stage, "younger", range(200, 240))
    stage.step()
    for n in range(3):
        stage.ask(f"player{n}", range(300 + n, 310 + n), max_tokens=30)
        stage.step()
    assert paused(stage) == [younger, older, scene]
    stage.settle()
    assert said_as_ever(stage, *stage.asked)


def test_who_has_only_to_be_prepared_yields_first_of_all() -> None:
    stage = Stage(n_slots=2, step_ms=20.0)
    warm = stage.warm("guard", range(1, 200), priority=Priority.SCENE)
    ambient(stage, "crowd")
    stage.step()
    stage.ask("bob", range(300, 310))
    stage.step()
    assert paused(stage) == [warm]
    stage.settle()
    assert stage.code(warm) == "warm"


def test_one_that_has_waited_its_time_is_not_paused_again() -> None:
    stage = Stage(n_slots=1, ageing_ms=1000.0)
    crowd = ambient(stage, max_tokens=50)
    stage.step()
    stage.ask("bob", max_tokens=1)
    stage.step()
    stage.step(2500.0)  # two classes
    assert [order.turn for order in stage.orders(ResumeTurn)] == [crowd]
    stage.step()
    player = stage.ask("ann", max_tokens=1)
    stage.step()
    assert not stage.has_begun(player)
    assert paused(stage) == [crowd]
    stage.settle()
    assert said_as_ever(stage, crowd, player)


def test_under_players_without_end_an_ambient_turn_ends_all_the_same() -> None:
    stage = Stage(n_slots=2, ageing_ms=300.0)
    crowd = ambient(stage, max_tokens=10)
    for n in range(200):
        stage.ask(f"player{n}", range(100 + n, 110 + n), max_tokens=4)
        stage.step()
        if crowd in stage.ended:
            break
    assert said_as_ever(stage, crowd)
    assert stage.scheduler.statistics()["waiting"], "players still wait"


def test_a_full_line_has_room_for_whoever_is_paused() -> None:
    stage = Stage(n_slots=1, max_waiting=1)
    crowd = ambient(stage)
    stage.step()
    player = stage.ask("bob", max_tokens=20)
    stage.step()
    other = stage.ask("ann")
    third = stage.ask("cid")
    assert stage.code(third) == "busy"
    stage.settle()
    assert said_as_ever(stage, crowd, player, other)


@pytest.mark.parametrize("finish", [FinishReason.CANCELLED, FinishReason.INTERRUPTED])
def test_cancelled_while_it_is_paused_it_leaves_no_trace_in_the_engine(finish: FinishReason) -> None:
    stage = Stage(n_slots=1)
    crowd = ambient(stage)
    for _ in range(4):
        stage.step()
    stage.ask("bob", range(100, 110), max_tokens=20)
    stage.step()
    assert paused(stage) == [crowd]
    stage.cancel(crowd, finish)
    assert stage.code(crowd) == finish
    assert DropTurn(crowd) in stage.engine.log
    assert crowd not in stage.engine.speakers
    stage.settle()
    assert not stage.orders(ResumeTurn)


def test_what_a_paused_turn_had_serves_the_next_turn_of_its_npc() -> None:
    stage = Stage(n_slots=1)
    crowd = ambient(stage)
    for _ in range(4):
        stage.step()
    stage.ask("bob", range(100, 110), max_tokens=3)
    stage.step()
    stage.cancel(crowd, FinishReason.INTERRUPTED)
    stage.settle()
    again = stage.ask("crowd", (*LONG, 77, 78))
    stage.settle()
    assert (stage.usage(again).source, stage.usage(again).reused) == ("host", len(LONG))
    assert said_as_ever(stage, again)


def test_its_npc_gone_a_paused_turn_and_its_stash_are_gone_too() -> None:
    stage = Stage(n_slots=1)
    crowd = ambient(stage)
    stage.step()
    stage.ask("bob", range(100, 110))
    stage.step()
    stage.despawn("crowd")
    assert stage.code(crowd) == "cancelled"
    assert not stage.engine.stashes
    stage.settle()


def test_its_pauses_are_told_at_its_end() -> None:
    stage = Stage(n_slots=1)
    crowd = ambient(stage)
    stage.step()
    stage.ask("bob", range(100, 110), max_tokens=1)
    stage.step()
    stage.step(400.0)
    stage.settle()
    ended = stage.ended[crowd]
    assert isinstance(ended, EndTurn)
    assert (ended.n_pauses, ended.paused_ms) == (1, 400.0)
    assert stage.scheduler.statistics()["pauses"] == 1


def test_an_adapter_may_go_while_its_turn_is_paused_and_comes_back_for_it() -> None:
    stage = Stage(n_slots=1, max_adapters=2)
    crowd = ambient(stage, adapter="crowd")
    stage.load()
    for _ in range(3):
        stage.step()
    stage.ask("bob", range(100, 110), "bob", max_tokens=20)
    stage.load()
    stage.step()
    assert paused(stage) == [crowd]
    stage.ask("ann", range(200, 210), "ann")
    assert [order.key for order in stage.orders(FreeAdapter)] == ["crowd"]
    stage.settle()
    assert [order.key for order in stage.orders(LoadAdapter)].count("crowd") == 2
    assert said_as_ever(stage, *stage.asked)


def test_an_adapter_that_does_not_come_back_ends_the_paused_turn() -> None:
    stage = Stage(n_slots=1, max_adapters=2)
    crowd = ambient(stage, adapter="crowd")
    stage.load()
    stage.step()
    stage.ask("bob", range(100, 110), "bob", max_tokens=5)
    stage.load()
    stage.step()
    stage.ask("ann", range(200, 210), "ann")
    stage.engine.bad_keys.add("crowd")  # type: ignore[arg-type]
    stage.settle()
    assert stage.code(crowd) == "adapter_shape"
    assert crowd not in stage.engine.speakers


def test_the_adapter_of_a_turn_that_is_paused_makes_room_at_once() -> None:
    stage = Stage(max_adapters=1)
    ambient(stage, "crow", range(1, 9), max_tokens=100)
    ambient(stage, "crowd", max_tokens=100, adapter="crowd")
    stage.load()
    stage.step()
    stage.ask("bob", range(100, 110), max_tokens=100)
    bandit = stage.ask("bandit", range(200, 210), "bandit", max_tokens=1)
    for _ in range(20):
        stage.told_of_kv() if stage.engine.moved else stage.load() if stage.engine.loading else stage.step()
    assert bandit in stage.spoken, "it does not wait for the end of the player that took the slot"


def test_what_a_turn_has_risen_to_unserved_in_its_slot_is_not_lost_by_a_pause() -> None:
    play = Play()
    turn = play.ask(priority=Priority.AMBIENT)
    play.now_ms += 1.5 * play.config.ageing_ms
    risen_to = turn.class_at(play.now_ms, play.config.ageing_ms)
    turn.pause(play.now_ms)
    assert turn.class_at(play.now_ms, play.config.ageing_ms) == risen_to == 1


def test_what_a_turn_finds_after_a_pause_that_it_had_not_computed_is_counted_as_reused() -> None:
    """The player that took its slot has the same persona."""
    stage = Stage(n_slots=1, step_ms=60.0, prefill_chunk=16)
    crowd = ambient(stage, prompt=range(1, 100))
    stage.step()
    player = stage.ask("bob", (*range(1, 90), 500))
    stage.settle()
    reused = stage.usage(crowd).reused + stage.usage(player).reused
    assert paused(stage) == [crowd]
    assert stage.usage(crowd).reused > 0
    assert stage.scheduler.statistics()["reuse"] == {"prompt_tokens": 189, "reused_tokens": reused, "refilled_tokens": 0}
