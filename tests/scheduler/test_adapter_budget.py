"""Adapters have bytes and a budget; whoever needs more than it holds waits, in turn, and is never refused for it."""

from __future__ import annotations

from typing import Any

import pytest

from personae.engine.batch import BeginTurn, FreeAdapter, LoadAdapter
from personae.types import AdapterKey, Priority, TurnId
from tests.scheduler.crowd import Crowd
from tests.scheduler.stage import Parts, Stage


def keys(stage: Stage, kind: type[LoadAdapter] | type[FreeAdapter]) -> list[str]:
    return [order.key for order in stage.orders(kind)]


def sized(stage: Stage, **n_bytes: int) -> Stage:
    stage.engine.sizes |= {AdapterKey(key): n for key, n in n_bytes.items()}
    return stage


def told(stage: Stage, **n_bytes: int) -> Stage:
    """What the files say of them, truly or not."""
    stage.told_sizes |= {AdapterKey(key): n for key, n in n_bytes.items()}
    return stage


def said(stage: Stage, *voices: Parts) -> list[TurnId]:
    turns = []
    for voice in voices:
        turns.append(stage.ask(f"npc{len(stage.asked)}", adapter=voice, max_tokens=2))
        stage.settle()
    assert all(stage.reply(turn) == stage.expected(turn)[0] for turn in turns)
    return turns


def figures(stage: Stage) -> dict[str, Any]:
    adapters = stage.scheduler.statistics()["adapters"]
    assert isinstance(adapters, dict)
    return adapters


def test_as_many_go_as_make_the_room_and_those_used_longest_ago_first() -> None:
    stage = sized(Stage(adapter_ram=100), a=30, b=30, c=30, big=50)
    said(stage, "a", "b", "c", "a", "big")
    assert keys(stage, FreeAdapter) == ["b", "c"]
    assert figures(stage)["bytes_resident"] == 80


def test_a_small_one_does_not_go_where_it_would_not_help() -> None:
    stage = sized(Stage(n_slots=2, adapter_ram=100), small=10, mid=80, big=90)
    said(stage, "small")
    stage.ask("bob", adapter="mid", max_tokens=4)
    stage.load()
    stage.ask("ann", adapter="big", max_tokens=2)
    assert keys(stage, FreeAdapter) == [], "mid is in use, and small alone is no room"
    stage.settle()
    assert keys(stage, FreeAdapter) == ["small", "mid"]


def test_what_nobody_in_line_wants_goes_before_what_was_used_longer_ago() -> None:
    stage = Stage(n_slots=1, adapter_ram=3000)
    said(stage, "wanted", "idle")
    stage.ask("first", adapter="first", max_tokens=4)
    stage.load()
    stage.ask("cid", adapter="wanted", max_tokens=2, priority=Priority.AMBIENT)
    stage.ask("ann", adapter="new", max_tokens=2)
    stage.settle()
    assert keys(stage, FreeAdapter) == ["idle"]


def test_what_is_on_its_way_counts_as_its_file_says() -> None:
    stage = told(sized(Stage(n_slots=2, adapter_ram=100), a=60, b=60), a=60, b=60)
    stage.ask("bob", adapter="a")
    stage.ask("ann", adapter="b")
    assert keys(stage, LoadAdapter) == ["a"]


def test_a_voice_larger_than_all_room_speaks_alone() -> None:
    stage = sized(Stage(n_slots=4, adapter_ram=100), a=50, b=50, giant=300)
    small = [stage.ask(npc, adapter=npc, max_tokens=4) for npc in ("a", "b")]
    stage.load(), stage.load()
    stage.step()
    giant = stage.ask("giant", adapter="giant", max_tokens=4)
    plain = stage.ask("plain", max_tokens=4)
    late = stage.ask("late", adapter="a", max_tokens=4)
    stage.settle()
    begun = [order.turn for order in stage.orders(BeginTurn)]
    assert [turn for turn in begun if turn != plain] == [*small, giant, late]
    assert begun.index(plain) < begun.index(giant), "who needs no adapter does not wait"
    orders = [(type(order).__name__, order.key) for order in stage.engine.log if isinstance(order, LoadAdapter | FreeAdapter)]
    assert orders[2:6] == [("FreeAdapter", "b"), ("FreeAdapter", "a"), ("LoadAdapter", "giant"), ("FreeAdapter", "giant")]


def test_a_voice_larger_than_all_room_stays_as_long_as_nobody_else_wants_room() -> None:
    stage = sized(Stage(adapter_ram=100), giant=300)
    said(stage, "giant", "giant", None, "giant")
    assert keys(stage, LoadAdapter) == ["giant"]


def test_without_any_room_each_voice_speaks_alone() -> None:
    stage = Stage(n_slots=4, adapter_ram=0)
    turns = [stage.ask(f"npc{n}", adapter=("a", "b") if n % 2 else "c", max_tokens=2) for n in range(6)]
    stage.settle()
    assert all(stage.reply(turn) == stage.expected(turn)[0] for turn in turns)


def test_when_more_comes_than_was_said_spare_ones_go_at_once() -> None:
    stage = told(sized(Stage(adapter_ram=100), a=30, b=30, liar=80), liar=10)
    said(stage, "a", "b")
    stage.ask("bob", adapter="liar")
    assert keys(stage, FreeAdapter) == []
    stage.load()
    assert keys(stage, FreeAdapter) == ["a", "b"]
    assert figures(stage)["bytes_resident"] == 80


def test_one_that_came_larger_than_there_is_room_beside_those_who_speak_goes_and_comes_once_more() -> None:
    stage = told(sized(Stage(adapter_ram=100), a=50, liar=80), liar=10)
    speaking = stage.ask("ann", adapter="a", max_tokens=6)
    stage.load()
    turn = stage.ask("bob", adapter="liar", max_tokens=2)
    stage.load()
    assert keys(stage, FreeAdapter) == ["liar"]
    stage.settle()
    assert keys(stage, LoadAdapter) == ["a", "liar", "liar"], "its size is known by now"
    assert all(stage.reply(each) == stage.expected(each)[0] for each in (speaking, turn))


def test_who_is_invited_no_more_since_a_part_of_the_voice_had_to_go_holds_nothing_for_itself() -> None:
    """A giant waits ahead. The last part of the voice behind it is larger than was said, so that another goes; then the rest may too."""
    stage = told(sized(Stage(adapter_ram=100), a=30, b=30, c=60, half=30, giant=120), c=0)
    said(stage, "half")
    first = stage.ask("first", adapter=("a", "b", "c"))
    stage.cancel(first)
    giant = stage.ask("giant", adapter=("giant", "half"))
    stage.load(), stage.load()
    behind = stage.ask("behind", adapter=("a", "b", "c"))
    stage.settle()
    assert keys(stage, FreeAdapter)[:2] == ["a", "b"]
    assert [order.turn for order in stage.orders(BeginTurn)][1:] == [giant, behind]


def test_what_a_turn_that_is_gone_had_ordered_goes_again_where_it_is_too_much() -> None:
    stage = sized(Stage(adapter_ram=100), a=50, giant=300)
    stage.cancel(stage.ask("bob", adapter=("a", "giant")))
    stage.load()
    assert keys(stage, FreeAdapter) == ["a"]
    stage.load()
    assert keys(stage, FreeAdapter) == ["a", "giant"]


def test_two_voices_larger_than_all_room_do_not_take_each_other_s_adapters_in_turn() -> None:
    """The one ahead is ready and waits for the end of a step; what comes for the one behind it, which has the same and more, stays."""
    stage = sized(Stage(n_slots=1, adapter_ram=100), a=10, b=80, c=60)
    stage.ask("plain", max_tokens=20)
    said_with_a = stage.ask("ann", adapter="a", max_tokens=2)
    stage.load()
    behind = stage.ask("bob", adapter=("a", "b", "c"), max_tokens=2)
    for _ in range(6):
        if stage.engine.loading:
            stage.load()
    assert keys(stage, LoadAdapter) == ["a", "b", "c"]
    assert keys(stage, FreeAdapter) == []
    stage.settle()
    assert all(stage.reply(turn) == stage.expected(turn)[0] for turn in (said_with_a, behind))


def test_a_voice_that_turns_out_larger_than_all_room_stays_where_nobody_else_is() -> None:
    stage = told(sized(Stage(adapter_ram=100), a=80, b=80), a=0, b=0)
    said(stage, ("a", "b"))
    assert keys(stage, LoadAdapter) == ["a", "b"]
    assert keys(stage, FreeAdapter) == []


def test_many_that_came_larger_than_said_are_kept_in_the_order_of_the_line() -> None:
    names = ("a", "b", "c", "d")
    stage = told(sized(Stage(n_slots=1, adapter_ram=100), **dict.fromkeys(names, 40)), **dict.fromkeys(names, 0))
    stage.ask("plain", max_tokens=12)
    turns = [stage.ask(name, adapter=name, max_tokens=2) for name in names]
    for _ in names:
        stage.load()
    assert keys(stage, FreeAdapter) == ["c", "d"]
    stage.settle()
    assert all(stage.reply(turn) == stage.expected(turn)[0] for turn in turns)
    assert len(keys(stage, LoadAdapter)) == 6


def test_figures_tell_what_is_pinned_and_what_is_waited_for() -> None:
    stage = sized(Stage(n_slots=2, adapter_ram=100), a=30, b=20, c=10, d=90, e=90)
    said(stage, "c")
    stage.ask("bob", adapter=("a", "b"))
    stage.load(), stage.load()
    stage.ask("ann", adapter=("c", "d"))
    stage.ask("cid", adapter="e")
    shown = figures(stage)
    assert {name: shown[name] for name in ("budget_bytes", "bytes_resident", "resident", "pinned", "bytes_pinned", "waiting")} == {
        "budget_bytes": 100,
        "bytes_resident": 60,
        "resident": 3,
        "pinned": 2,
        "bytes_pinned": 50,
        "waiting": 2,
    }


# --- who is served by what was loaded ---------------------------------------------------------------------------------


def hot_and_cold(priority: Priority = Priority.PLAYER) -> tuple[Stage, list[TurnId], TurnId, TurnId]:
    """Room for one adapter and one slot; three turns want the hot one, the second of them and another adapter stand between."""
    stage = Stage(n_slots=1, adapter_ram=1000)
    hot = [stage.ask("hot0", (1, 2), "hot", max_tokens=2)]
    cold = stage.ask("cold", (2, 2), "cold", max_tokens=2, priority=priority)
    hot += [stage.ask(f"hot{n}", (3 + n, 2), "hot", max_tokens=2) for n in (1, 2)]
    stage.load()
    late = stage.ask("late", (9, 2), "hot", max_tokens=2)
    return stage, hot, cold, late


def test_what_was_loaded_serves_all_who_waited_for_it_then_and_not_those_who_asked_later() -> None:
    stage, hot, cold, late = hot_and_cold()
    stage.settle()
    assert [order.turn for order in stage.orders(BeginTurn)] == [*hot, cold, late]
    assert keys(stage, LoadAdapter) == ["hot", "cold", "hot"]


def test_a_player_is_not_kept_waiting_for_ambient_turns_that_an_adapter_was_loaded_for() -> None:
    stage = Stage(n_slots=1, adapter_ram=1000)
    crows = [stage.ask(f"crow{n}", (n + 1, 2), "crow", max_tokens=3, priority=Priority.AMBIENT) for n in range(4)]
    stage.load()
    player = stage.ask("keeper", (9, 2), "keeper", max_tokens=3)
    stage.settle()
    assert [order.turn for order in stage.orders(BeginTurn)] == [crows[0], player, *crows[1:]]


def test_nor_for_those_that_would_begin_under_the_adapter_that_closes_for_it() -> None:
    stage = Stage(n_slots=2, adapter_ram=1000)
    crows = [stage.ask(f"crow{n}", (n + 1, 2), "crow", max_tokens=3 + 4 * n, priority=Priority.AMBIENT) for n in range(4)]
    stage.load()
    player = stage.ask("keeper", (9, 2), "keeper", max_tokens=3)
    stage.settle()
    assert [order.turn for order in stage.orders(BeginTurn)] == [*crows[:2], player, *crows[2:]]


# --- more voices than fit, in steady demand ---------------------------------------------------------------------------


@pytest.mark.parametrize("load_steps", [1, 4])
@pytest.mark.parametrize("n_slots", [8, 16])
@pytest.mark.parametrize("limit", [{"adapter_ram": 8000}, {"max_adapters": 8}])
def test_fifty_npcs_with_room_for_eight_adapters_wait_alike(n_slots: int, load_steps: int, limit: dict[str, int]) -> None:
    crowd = Crowd(Stage(n_slots=n_slots, **limit), [f"voice{n}" for n in range(50)], load_steps=load_steps)
    crowd.play(200 * load_steps)
    assert crowd.max_over_mean < 1.5
    assert min(map(len, crowd.waits_ms)) >= max(map(len, crowd.waits_ms)) - 1 > 0
    assert crowd.loads_per_turn < 1.2


def test_an_adapter_in_demand_by_many_is_loaded_for_many_at_a_time() -> None:
    crowd = Crowd(Stage(n_slots=4, adapter_ram=2000), [f"voice{n}" if n % 2 else "hot" for n in range(30)])
    crowd.play(600)
    assert crowd.max_over_mean < 1.5
    assert crowd.loads_per_turn < 0.7


def test_large_and_small_voices_wait_alike() -> None:
    names = [f"voice{n}" for n in range(30)]
    stage = sized(Stage(n_slots=8, adapter_ram=8000), **{name: (300, 1000, 4000, 20_000)[n % 4] for n, name in enumerate(names)})
    crowd = Crowd(stage, list(names))
    crowd.play(900)
    assert crowd.max_over_mean < 2
    assert min(map(len, crowd.waits_ms)) > 0


def test_voices_of_one_own_and_one_shared_adapter_wait_alike() -> None:
    crowd = Crowd(Stage(n_slots=8, adapter_ram=8000), [(f"own{n}", f"shared{n % 3}") for n in range(40)])
    crowd.play(600)
    assert crowd.max_over_mean < 2
    assert crowd.loads_per_turn < 1.3
