"""Who goes first, who yields, and that nobody waits for ever."""

from __future__ import annotations

import pytest

from personae.engine.batch import BeginTurn
from personae.scheduler.actions import FailTurn
from personae.types import Priority, TurnId
from tests.scheduler.stage import Stage


def begun(stage: Stage) -> list[TurnId]:
    return [order.turn for order in stage.orders(BeginTurn)]


def test_player_goes_before_scene_before_ambient_and_each_in_order_of_arrival() -> None:
    stage = Stage(n_slots=1)
    first = stage.ask("npc0")
    wanted = [Priority.AMBIENT, Priority.SCENE, Priority.PLAYER] * 2
    turns = [stage.ask(f"npc{n + 1}", priority=priority) for n, priority in enumerate(wanted)]
    stage.settle()
    assert begun(stage) == [first, turns[2], turns[5], turns[1], turns[4], turns[0], turns[3]]


def test_a_waiting_turn_rises_one_class_in_each_ageing_time() -> None:
    stage = Stage(n_slots=1, ageing_ms=1000.0)
    stage.ask("npc0", max_tokens=1)
    ambient = stage.ask("npc1", priority=Priority.AMBIENT)
    stage.now_ms += 1000.0
    scene = stage.ask("npc2", priority=Priority.SCENE)
    stage.settle()
    assert begun(stage)[1:] == [ambient, scene], "of the same class by now, and older"


@pytest.mark.parametrize("n_ambient", [10, 100])
def test_the_first_word_to_the_player_does_not_wait_for_ambient_chatter(n_ambient: int) -> None:
    """The bound is the rest of one turn in the only slot, one risen turn, and the player's own prefill: no matter how many wait."""
    stage = Stage(n_slots=1, ageing_ms=10.0)
    for n in range(n_ambient):
        stage.ask(f"npc{n}", (n + 1, 2), priority=Priority.AMBIENT, max_tokens=5)
    stage.now_ms += 1000.0  # every one of them has risen as far as it can
    player = stage.ask("keeper")
    steps = 0
    while player not in stage.spoken:
        stage.step()
        steps += 1
    assert steps <= 5 + 5 + 1


def test_steady_players_do_not_keep_an_ambient_turn_waiting() -> None:
    """Risen after two ageing times, 40 steps of 10 ms; then three players at most go ahead, of five steps each."""
    stage = Stage(n_slots=1, ageing_ms=200.0, players_in_a_row=3)
    stage.ask("npc0")
    ambient = stage.ask("crow", priority=Priority.AMBIENT)
    steps = 0
    while not stage.has_begun(ambient):
        while len(stage.scheduler.open_turns()) < 6:
            stage.ask(f"npc{len(stage.asked)}", (len(stage.asked) + 1, 5))
        stage.step()
        steps += 1
        assert steps <= 40 + 5 + 3 * 5


def test_players_keep_their_share_beside_risen_turns() -> None:
    stage = Stage(n_slots=1, ageing_ms=1.0, players_in_a_row=3)
    stage.ask("npc", max_tokens=1)
    others = [stage.ask(f"crow{n}", priority=Priority.AMBIENT, max_tokens=1) for n in range(3)]
    stage.now_ms += 100.0
    players = [stage.ask(f"hero{n}", max_tokens=1) for n in range(7)]
    stage.settle()
    p, o = players, others
    assert begun(stage)[1:] == [*p[0:3], o[0], *p[3:6], o[1], p[6], o[2]]


def test_the_share_holds_among_turns_that_begin_together() -> None:
    stage = Stage(n_slots=4, ageing_ms=1.0, players_in_a_row=1)
    for n in range(4):
        stage.ask(f"npc{n}", max_tokens=1)
    stage.step()
    others = [stage.ask(f"crow{n}", priority=Priority.AMBIENT, max_tokens=1) for n in range(2)]
    stage.now_ms += 100.0
    players = [stage.ask(f"hero{n}", max_tokens=1) for n in range(2)]
    stage.settle()
    assert begun(stage)[4:] == [players[0], others[0], players[1], others[1]]


def test_a_full_line_refuses_with_a_hint_and_recovers_when_drained() -> None:
    stage = Stage(n_slots=1, max_waiting=3)
    turns = [stage.ask(f"npc{n}", priority=Priority.AMBIENT) for n in range(10)]
    refused = [turn for turn in turns if turn in stage.ended]
    assert refused == turns[4:]
    for turn in refused:
        ended = stage.ended[turn]
        assert isinstance(ended, FailTurn)
        assert ended.code == "busy"
        assert ended.retry_after_ms is not None
        assert ended.retry_after_ms > 0
    stage.settle()
    again = stage.ask("npc9")
    stage.settle()
    assert stage.reply(again) == stage.expected(again)[0]


def test_the_hint_follows_how_long_turns_take() -> None:
    def hint(step_ms: float) -> int:
        stage = Stage(n_slots=1, max_waiting=4)
        for n in range(6):
            stage.ask(f"npc{n}", (n + 1,), max_seconds=1e9)
        for _ in range(200):
            if stage.can_step:
                stage.step(step_ms)
        for n in range(6):
            last = stage.ask(f"more{n}", (n + 1,), max_seconds=1e9)
        ended = stage.ended[last]
        assert isinstance(ended, FailTurn)
        assert ended.retry_after_ms is not None
        return ended.retry_after_ms

    assert hint(2000.0) > 2 * hint(200.0)


def test_ambient_chatter_yields_its_place_in_a_full_line_to_the_player() -> None:
    stage = Stage(n_slots=1, max_waiting=2)
    stage.ask("npc0")
    older, newer = stage.ask("npc1", priority=Priority.AMBIENT), stage.ask("npc2", priority=Priority.AMBIENT)
    player = stage.ask("npc3")
    assert stage.code(newer) == "busy"
    stage.settle()
    assert begun(stage)[1:] == [player, older]


def test_turns_of_one_class_do_not_push_each_other_out() -> None:
    stage = Stage(n_slots=1, max_waiting=2)
    stage.ask("npc0")
    waiting = [stage.ask(f"npc{n}") for n in (1, 2)]
    assert stage.code(stage.ask("npc3")) == "busy"
    assert not any(turn in stage.ended for turn in waiting)


def test_waits_are_counted_by_class_and_paused_turns_apart() -> None:
    stage = Stage(n_slots=1)
    stage.ask("crowd", priority=Priority.AMBIENT, max_tokens=20)
    stage.now_ms += 5.0
    stage.ask("bob", priority=Priority.PLAYER)
    stage.ask("ann", priority=Priority.PLAYER)
    stage.step(10.0)
    seen = stage.scheduler.statistics()
    assert (seen["waiting"], seen["paused"], seen["pauses"]) == (1, 1, 1)
    waits = seen["waits"]
    assert isinstance(waits, dict)
    assert waits["by_class"] == {
        "player": {"mean_ms": 10.0, "max_ms": 10.0},
        "scene": {"mean_ms": 0.0, "max_ms": 0.0},
        "ambient": {"mean_ms": 0.0, "max_ms": 0.0},
    }
    stage.settle()
