"""An adapter that kills the engine twice is set aside by name; whoever was only near it is not."""

from __future__ import annotations

from personae.engine.batch import FreeAdapter, LoadAdapter
from personae.scheduler.actions import FailTurn, SetAside
from personae.scheduler.events import AdapterRetired
from personae.types import AdapterKey, Priority, TurnId
from tests.scheduler.stage import Stage

KILLER = AdapterKey("killer")


def die_loading(stage: Stage, *npcs: str) -> list[TurnId]:
    turns = [stage.ask(npc, range(1, 10), npc.split("_")[0]) for npc in npcs]
    stage.lose()
    stage.start()
    return turns


def test_twice_while_it_was_loaded_and_it_is_set_aside_by_its_path() -> None:
    stage = Stage()
    (first,) = die_loading(stage, "killer")
    assert stage.code(first) == "engine_lost"
    assert not stage.set_aside
    (second,) = die_loading(stage, "killer")
    assert stage.set_aside == [SetAside(KILLER, "killer.gguf")]
    assert stage.code(second) == "adapter_set_aside"
    later = stage.ask("other", range(1, 10), "killer")
    ended = stage.ended[later]
    assert isinstance(ended, FailTurn)
    assert ended.code == "adapter_set_aside"
    assert "killer.gguf" in ended.message
    assert not stage.orders(LoadAdapter)
    die_loading(stage)
    assert len(stage.set_aside) == 1, "it is said once"


def test_twice_in_its_first_step_and_it_is_set_aside() -> None:
    stage = Stage()
    for _ in range(2):
        stage.ask("bob", range(1, 10), "killer")
        stage.load()
        assert stage.can_step
        stage.lose()
        stage.start()
    assert stage.set_aside == [SetAside(KILLER, "killer.gguf")]


def test_its_turns_in_line_fail_by_its_name_and_the_others_by_the_engines() -> None:
    stage = Stage(n_slots=1)
    die_loading(stage, "killer")
    plain = stage.ask("ann")
    bad = [stage.ask(f"bob{n}", range(1, 10), "killer") for n in range(2)]
    stage.lose()
    assert [stage.code(turn) for turn in (plain, *bad)] == ["engine_lost", "adapter_set_aside", "adapter_set_aside"]


def test_one_step_with_it_clears_its_name() -> None:
    stage = Stage()
    die_loading(stage, "pirate")
    stage.ask("bob", range(1, 10), "pirate")
    stage.settle()
    die_loading(stage)
    (turn,) = die_loading(stage, "pirate")
    assert stage.code(turn) == "engine_lost"
    assert not stage.set_aside


def test_once_proven_it_is_no_suspect_however_often_the_engine_is_killed_beside_it() -> None:
    stage = Stage()
    stage.ask("bob", range(1, 10), "pirate", max_tokens=20)
    stage.load()
    stage.step()
    stage.lose()
    stage.start()
    for _ in range(3):
        die_loading(stage, "pirate")
    assert not stage.set_aside
    assert stage.scheduler.statistics()["adapters"]["suspects"] == 0  # type: ignore[index]


def test_of_many_that_come_at_once_only_the_one_that_kills_is_set_aside() -> None:
    stage = Stage(n_slots=8)
    names = ["elf", "killer", "pirate", "smith"]

    def all_ask() -> None:
        for name in names:
            stage.ask(name, range(1, 10), name)
        while stage.engine.loading and stage.engine.loading[0].key != KILLER:
            stage.load()
        if stage.engine.loading:
            stage.lose()
            stage.start()

    all_ask()
    for _ in range(4):
        all_ask()
        for _ in range(200):
            if stage.engine.steps:
                stage.step()
            elif stage.engine.loading and stage.engine.loading[0].key != KILLER:
                stage.load()
            elif stage.engine.loading:
                stage.lose()
                stage.start()
            else:
                break
    assert stage.set_aside == [SetAside(KILLER, "killer.gguf")]
    for name in ("elf", "pirate", "smith"):
        turn = stage.ask(f"{name} again", range(1, 10), name)
        stage.settle()
        assert stage.reply(turn) == stage.expected(turn)[0]


def test_suspects_come_one_at_a_time_and_all_of_them_come() -> None:
    stage = Stage(n_slots=4)
    die_loading(stage, "elf", "pirate", "smith")
    turns = [stage.ask(name, range(1, 10), name) for name in ("elf", "pirate", "smith")]
    assert [order.key for order in stage.orders(LoadAdapter)] == ["elf"]
    stage.settle()
    assert [order.key for order in stage.orders(LoadAdapter)] == ["elf", "pirate", "smith"]
    assert [stage.reply(turn) for turn in turns] == [stage.expected(turn)[0] for turn in turns]


def test_a_suspect_that_nobody_wants_any_more_keeps_no_other_waiting() -> None:
    stage = Stage(n_slots=4)
    die_loading(stage, "elf", "pirate")
    first, second = (stage.ask(name, range(1, 10), name) for name in ("elf", "pirate"))
    stage.cancel(first)
    stage.settle()
    assert stage.reply(second) == stage.expected(second)[0]


def test_a_pack_taken_away_and_brought_again_is_given_another_chance() -> None:
    stage = Stage()
    die_loading(stage, "killer")
    die_loading(stage, "killer")
    stage.tell(AdapterRetired(stage.now_ms, KILLER))
    turn = stage.ask("bob", range(1, 10), "killer")
    stage.settle()
    assert stage.reply(turn) == stage.expected(turn)[0]


# --- voices of several ------------------------------------------------------------------------------------------------


def die_in_the_first_step(stage: Stage, voice: tuple[str, ...]) -> TurnId:
    turn = stage.ask("bob", range(1, 10), voice)
    for _ in voice:
        stage.load()
    assert stage.can_step
    stage.lose()
    stage.start()
    return turn


def test_every_adapter_of_the_voice_that_killed_is_suspected_and_one_that_was_proven_is_not() -> None:
    stage = Stage()
    stage.ask("ann", range(1, 10), "proven")
    stage.settle()
    stage.lose()
    stage.start()
    die_in_the_first_step(stage, ("accent", "killer", "proven"))
    assert stage.scheduler.statistics()["adapters"]["suspects"] == 2  # type: ignore[index]
    last = die_in_the_first_step(stage, ("accent", "killer", "proven"))
    assert [each.key for each in stage.set_aside] == ["accent", "killer"]
    ended = stage.ended[last]
    assert isinstance(ended, FailTurn)
    assert (ended.code, "accent.gguf" in ended.message) == ("adapter_set_aside", True)
    turn = stage.ask("ann", range(1, 10), "proven")
    stage.settle()
    assert stage.reply(turn) == stage.expected(turn)[0]


def test_suspects_of_one_voice_come_one_after_the_other_and_are_cleared_together() -> None:
    stage = Stage()
    die_in_the_first_step(stage, ("elf", "pirate"))
    turn = stage.ask("bob", range(1, 10), ("elf", "pirate", "smith"))
    assert [order.key for order in stage.orders(LoadAdapter)] == ["elf", "smith"]
    stage.load()
    assert [order.key for order in stage.orders(LoadAdapter)] == ["elf", "smith", "pirate"]
    stage.settle()
    assert stage.reply(turn) == stage.expected(turn)[0]
    assert stage.scheduler.statistics()["adapters"]["suspects"] == 0  # type: ignore[index]


def test_an_innocent_part_clears_itself_in_another_voice_and_only_the_killer_is_set_aside() -> None:
    stage = Stage()
    die_in_the_first_step(stage, ("accent", "killer"))
    turn = stage.ask("ann", range(1, 10), "accent")
    stage.settle()
    assert stage.reply(turn) == stage.expected(turn)[0]
    stage.lose()
    stage.start()
    die_in_the_first_step(stage, ("accent", "killer"))
    assert [each.key for each in stage.set_aside] == ["killer"]


def test_suspects_that_need_each_other_s_room_are_tried_all_the_same() -> None:
    """Half of the voice behind is here and untried when one ahead wants another suspect in its place."""
    stage = Stage(n_slots=4, max_adapters=2)
    die_loading(stage, "a", "b", "c")
    behind = stage.ask("behind", range(1, 10), ("a", "b"), priority=Priority.AMBIENT)
    stage.load()
    ahead = stage.ask("ahead", range(1, 10), ("c", "d"))
    stage.settle()
    assert [stage.reply(turn) for turn in (ahead, behind)] == [stage.expected(turn)[0] for turn in (ahead, behind)]


def test_a_suspect_that_nobody_is_about_to_clear_goes_before_another_comes() -> None:
    stage = Stage(n_slots=4)
    die_loading(stage, "elf", "pirate")
    behind = stage.ask("behind", range(1, 10), ("elf", "smith"), priority=Priority.AMBIENT)
    stage.load()
    ahead = stage.ask("ahead", range(1, 10), "pirate")
    assert [order.key for order in stage.orders(FreeAdapter)] == ["elf"]
    assert [order.key for order in stage.orders(LoadAdapter)] == ["elf", "smith", "pirate"]
    stage.settle()
    assert [stage.reply(turn) for turn in (ahead, behind)] == [stage.expected(turn)[0] for turn in (ahead, behind)]
