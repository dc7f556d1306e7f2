"""Adapters come when they are wanted, go when they are not, and keep nobody else waiting."""

from __future__ import annotations

from personae.engine.batch import AdapterLoaded, FreeAdapter, LoadAdapter
from personae.scheduler.actions import FailTurn
from personae.scheduler.events import AdapterReported, AdapterRetired
from personae.types import AdapterKey, AdapterUse, Priority
from tests.scheduler.stage import Stage


def keys(stage: Stage, kind: type[LoadAdapter] | type[FreeAdapter]) -> list[str]:
    return [order.key for order in stage.orders(kind)]


def retire(stage: Stage, key: str) -> None:
    stage.tell(AdapterRetired(stage.now_ms, AdapterKey(key)))


def test_an_adapter_is_ordered_once_for_all_that_wait_for_it() -> None:
    stage = Stage(n_slots=4)
    turns = [stage.ask(f"npc{n}", adapter="pirate") for n in range(3)]
    assert keys(stage, LoadAdapter) == ["pirate"]
    assert not any(stage.has_begun(turn) for turn in turns)
    stage.settle()
    assert keys(stage, LoadAdapter) == ["pirate"]
    assert [stage.reply(turn) for turn in turns] == [stage.expected(turn)[0] for turn in turns]


def test_a_turn_that_waits_for_its_adapter_blocks_nobody() -> None:
    stage = Stage(n_slots=1)
    waiting, plain = stage.ask("bob", adapter="pirate"), stage.ask("ann")
    assert stage.has_begun(plain)
    while stage.can_step:
        stage.step()
    assert plain in stage.ended
    assert waiting not in stage.ended


def test_an_adapter_is_ordered_while_a_step_is_under_way() -> None:
    stage = Stage()
    stage.ask("ann", max_tokens=50)
    stage.ask("bob", adapter="pirate")
    assert keys(stage, LoadAdapter) == ["pirate"]


def test_a_refusal_fails_all_that_wait_for_it_with_its_code_and_no_other() -> None:
    stage = Stage(n_slots=4)
    stage.engine.bad_keys.add(AdapterKey("broken"))
    bad = [stage.ask(f"bad{n}", adapter="broken") for n in range(2)]
    good = stage.ask("good", adapter="pirate")
    stage.settle()
    assert [stage.code(turn) for turn in bad] == ["adapter_shape"] * 2
    assert stage.ended[bad[0]] == FailTurn(bad[0], "adapter_shape", "Adapter broken does not fit.", "Train it on this base.")
    assert stage.reply(good) == stage.expected(good)[0]


def test_a_refused_adapter_may_be_asked_for_again() -> None:
    stage = Stage()
    stage.engine.bad_keys.add(AdapterKey("broken"))
    stage.ask("bob", adapter="broken")
    stage.settle()
    stage.engine.bad_keys.clear()
    mended = stage.ask("bob", adapter="broken")
    stage.settle()
    assert stage.reply(mended) == stage.expected(mended)[0]


def test_a_service_without_room_for_adapters_says_so() -> None:
    stage = Stage(max_adapters=0)
    assert stage.code(stage.ask("bob", adapter="pirate")) == "adapter_limit"
    plain = stage.ask("bob")
    stage.settle()
    assert stage.reply(plain) == stage.expected(plain)[0]


def test_the_adapter_used_longest_ago_makes_room() -> None:
    stage = Stage(max_adapters=2)
    for key in ("pirate", "elf", "pirate", "orc"):
        stage.ask("bob", adapter=key)
        stage.settle()
    assert keys(stage, FreeAdapter) == ["elf"]
    order = [(type(each).__name__, each.key) for each in stage.engine.log if isinstance(each, LoadAdapter | FreeAdapter)]
    assert order[-2:] == [("FreeAdapter", "elf"), ("LoadAdapter", "orc")]


def test_an_adapter_in_use_makes_no_room_and_the_turn_waits() -> None:
    stage = Stage(max_adapters=1)
    first = stage.ask("bob", adapter="pirate", max_tokens=5)
    stage.load()
    second = stage.ask("ann", adapter="elf")
    assert keys(stage, LoadAdapter) == ["pirate"]
    stage.settle()
    assert keys(stage, FreeAdapter) == ["pirate"]
    assert [stage.reply(turn) for turn in (first, second)] == [stage.expected(turn)[0] for turn in (first, second)]


def test_what_a_turn_ahead_waits_for_is_not_taken_away_for_one_behind() -> None:
    stage = Stage(n_slots=1, max_adapters=2)
    for key in ("pirate", "elf"):
        stage.ask("bob", adapter=key, max_tokens=1)
        stage.settle()
    stage.ask("cid", max_tokens=5)
    ahead = [stage.ask("bob", adapter="pirate", max_tokens=1), stage.ask("ann", adapter="elf", max_tokens=1)]
    behind = stage.ask("dan", adapter="orc")
    assert keys(stage, FreeAdapter) == []
    stage.settle()
    assert all(turn in stage.ended for turn in (*ahead, behind))
    assert keys(stage, LoadAdapter) == ["pirate", "elf", "orc"]


def test_steady_traffic_of_one_adapter_does_not_starve_another() -> None:
    """Room for one adapter, and turns under it that overlap, so that it is never out of use. The stranger begins when those that spoke
    when it asked have ended, seven steps at the most, and its adapter is loaded."""
    stage = Stage(n_slots=2, max_adapters=1)

    def traffic() -> None:
        for n in range(len(stage.asked), len(stage.asked) + 6 - len(stage.scheduler.open_turns())):
            stage.ask(f"npc{n}", (n + 1, 2, 3), "pirate", max_tokens=4 + 3 * (n % 2))

    stage.ask("npc0", (1, 2, 3), "pirate", max_tokens=4)
    stage.ask("npc1", (1, 2, 3), "pirate", max_tokens=7)
    stage.load()
    stage.step()
    stranger = stage.ask("elf", adapter="elf")
    for _ in range(7):
        traffic()
        if stage.can_step:
            stage.step()
    stage.load()
    assert stage.has_begun(stranger)
    assert keys(stage, FreeAdapter) == ["pirate"]
    stage.settle()
    assert stage.reply(stranger) == stage.expected(stranger)[0]


def test_one_adapter_closes_for_a_newcomer_and_the_others_go_on() -> None:
    stage = Stage(n_slots=4, max_adapters=2)
    spoken = [stage.ask("bob", adapter="pirate", max_tokens=9), stage.ask("ann", adapter="elf", max_tokens=9)]
    stage.load(), stage.load()
    stage.step()
    newcomers = [stage.ask(f"orc{n}", (n + 1, 2), "orc", max_tokens=2) for n in range(2)]
    behind = {key: stage.ask(f"new {key}", adapter=key, max_tokens=2) for key in ("pirate", "elf")}
    stage.step()
    assert stage.has_begun(behind["elf"])
    assert not stage.has_begun(behind["pirate"]), "used longest ago, and one is enough"
    stage.settle()
    turns = (*spoken, *newcomers, *behind.values())
    assert [stage.reply(turn) for turn in turns] == [stage.expected(turn)[0] for turn in turns]


def test_an_adapter_that_is_asked_for_again_is_no_longer_retired() -> None:
    stage = Stage()
    stage.ask("bob", adapter="pirate")
    stage.load()
    retire(stage, "pirate")
    stage.ask("ann", adapter="pirate")
    stage.settle()
    assert keys(stage, FreeAdapter) == []


def test_equal_priority_traffic_of_four_adapters_with_room_for_two_serves_all_in_turn() -> None:
    stage = Stage(n_slots=2, max_adapters=2)
    turns = [stage.ask(f"npc{n}", (n + 1, 2), f"key{n % 4}", priority=Priority.SCENE) for n in range(40)]
    stage.settle()
    assert [stage.reply(turn) for turn in turns] == [stage.expected(turn)[0] for turn in turns]


def test_a_change_of_adapter_takes_effect_at_the_next_turn() -> None:
    stage = Stage()
    first = stage.ask("bob", adapter="old", max_tokens=4)
    stage.load()
    stage.step()
    retire(stage, "old")
    assert keys(stage, FreeAdapter) == [], "a turn speaks with it"
    stage.settle()
    assert keys(stage, FreeAdapter) == ["old"]
    second = stage.ask("bob", adapter="new", max_tokens=4)
    stage.settle()
    assert stage.begun(first).voice == (AdapterUse(AdapterKey("old")),)
    assert stage.begun(second).voice == (AdapterUse(AdapterKey("new")),)
    assert stage.begun(second).keep == 0
    assert [stage.reply(turn) for turn in (first, second)] == [stage.expected(turn)[0] for turn in (first, second)]


def test_a_retired_adapter_goes_at_once_when_nobody_uses_it_and_only_once() -> None:
    stage = Stage()
    stage.ask("bob", adapter="pirate")
    stage.settle()
    retire(stage, "pirate")
    retire(stage, "pirate")
    retire(stage, "stranger")
    assert keys(stage, FreeAdapter) == ["pirate"]


def test_an_adapter_retired_while_it_loads_still_serves_the_turn_that_asked() -> None:
    stage = Stage()
    turn = stage.ask("bob", adapter="pirate")
    retire(stage, "pirate")
    stage.settle()
    assert stage.reply(turn) == stage.expected(turn)[0]
    assert keys(stage, FreeAdapter) == ["pirate"]


def test_the_load_of_an_adapter_nobody_ordered_is_not_entered() -> None:
    stage = Stage()
    assert stage.tell(AdapterReported(stage.now_ms, AdapterLoaded(AdapterKey("ghost"), 1, 1, 1.0))) == []
    adapters = stage.scheduler.statistics()["adapters"]
    assert isinstance(adapters, dict)
    assert adapters["resident"] == 0


def test_a_risen_turn_whose_adapter_must_come_is_not_kept_out_by_risen_ones_that_need_none() -> None:
    """They begin ahead of it; that gives no further players leave to pass it, and the players' adapter closes for it."""
    stage = Stage(max_adapters=1, ageing_ms=200.0)
    stage.ask("first", adapter="pirate")
    elf = stage.ask("elf", adapter="elf", priority=Priority.AMBIENT)
    for _ in range(300):
        waiting = [stage.asked[turn].priority for turn in stage.scheduler.open_turns() if not stage.has_begun(turn)]
        if waiting.count(Priority.PLAYER) < 4:
            stage.ask(f"npc{len(stage.asked)}", adapter="pirate")
        if waiting.count(Priority.AMBIENT) < 20:
            stage.ask(f"npc{len(stage.asked)}", priority=Priority.AMBIENT, max_tokens=4)
        stage.load() if stage.engine.loading else stage.step()
        if elf in stage.spoken:
            return
    raise AssertionError("it never spoke")
