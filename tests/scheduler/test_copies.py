"""An NPC that begins like another, under the same adapter, starts from a copy."""

from __future__ import annotations

from personae.engine.batch import CopySlot, FetchStash, TurnRefilled
from personae.scheduler.events import KvReported
from personae.types import AdapterKey, AdapterUse, TurnId
from tests.scheduler.stage import Parts, Stage

PERSONA = tuple(range(1, 60))


def said(stage: Stage, npc: str, prompt: tuple[int, ...], adapter: Parts = "guard") -> TurnId:
    turn = stage.ask(npc, prompt, adapter)
    stage.settle()
    stage.check_books()
    assert stage.reply(turn) == stage.expected(turn)[0]
    return turn


def test_the_second_guard_costs_its_own_words() -> None:
    stage = Stage()
    said(stage, "guard 1", (*PERSONA, 100, 101))
    second = said(stage, "guard 2", (*PERSONA, 200, 201))
    assert stage.orders(CopySlot) == [CopySlot(0, 1, len(PERSONA))]  # type: ignore[arg-type]
    usage = stage.usage(second)
    assert (usage.source, usage.reused, usage.prefilled) == ("copy", len(PERSONA), 2)
    assert stage.scheduler.statistics()["copies"] == 1


def test_a_guard_at_work_lends_what_it_has() -> None:
    stage = Stage()
    first = stage.ask("guard 1", (*PERSONA, 100), max_tokens=20)
    stage.step()
    second = stage.ask("guard 2", (*PERSONA, 200))
    stage.settle()
    assert stage.usage(second).source == "copy"
    assert [stage.reply(turn) for turn in (first, second)] == [stage.expected(turn)[0] for turn in (first, second)]


def test_of_guards_that_are_spoken_to_at_once_one_reads_and_the_others_copy() -> None:
    stage = Stage(n_slots=4, step_ms=60.0)  # about twenty tokens a step at the guessed price
    turns = [stage.ask(f"guard {n}", (*PERSONA, 100 + n, 101), "guard") for n in range(3)]
    stage.settle()
    assert [stage.reply(turn) for turn in turns] == [stage.expected(turn)[0] for turn in turns]
    assert [stage.usage(turn).source for turn in turns] == ["none", "copy", "copy"]
    assert all(stage.usage(turn).prompt == len(PERSONA) + 2 for turn in turns)
    assert stage.scheduler.statistics()["copies"] == 2, "nobody copies from one who still reads"


def test_a_warm_turn_that_can_copy_all_of_its_prompt_ends() -> None:
    stage = Stage(n_slots=4, step_ms=60.0)
    guard = stage.ask("guard 1", (*PERSONA, 100), "guard")
    warm = stage.ask("guard 2", PERSONA, "guard", draws=False)
    stage.settle()
    assert stage.reply(guard) == stage.expected(guard)[0]
    assert (stage.ended[warm].finish, stage.usage(warm).source) == ("warm", "copy")  # type: ignore[union-attr]


def test_a_copy_is_taken_from_host_memory_too() -> None:
    stage = Stage(n_slots=1)
    said(stage, "guard 1", (*PERSONA, 100))
    said(stage, "smith", tuple(range(500, 560)), "smith")
    third = said(stage, "guard 3", (*PERSONA, 300))
    assert (stage.usage(third).source, stage.usage(third).prefilled) == ("copy", 1)
    assert len(stage.orders(FetchStash)) == 1
    again = said(stage, "guard 1", (*PERSONA, 100, 900))
    assert stage.usage(again).source == "host", "a copy takes nothing away"


def test_what_cannot_be_cut_once_it_was_moved_is_copied_as_a_whole_or_not_at_all() -> None:
    stage = Stage(n_slots=4, can_cut_moved=False)
    said(stage, "guard 1", (*PERSONA, 100, 101))
    second = said(stage, "guard 2", (*PERSONA, 200, 201))
    assert (stage.usage(second).source, stage.orders(CopySlot)) == ("none", [])
    held = (*PERSONA, 100, 101, *stage.reply(TurnId(1))[:-1])  # its last token was never fed
    heir = said(stage, "guard 3", (*held, 300))
    assert (stage.usage(heir).source, stage.usage(heir).prefilled) == ("copy", 1)


def test_a_slot_of_ones_own_can_be_cut_though_what_was_moved_cannot() -> None:
    stage = Stage(can_cut_moved=False)
    said(stage, "guard 1", (*PERSONA, 100, 101))
    again = said(stage, "guard 1", (*PERSONA, 100, 900))
    assert (stage.usage(again).source, stage.usage(again).prefilled) == ("slot", 1)


def test_a_slot_of_ones_own_is_not_cut_into_what_was_moved_there() -> None:
    stage = Stage(n_slots=1, can_cut_moved=False)
    first = said(stage, "guard 1", (*PERSONA, 100, 101))
    said(stage, "smith", tuple(range(500, 560)))
    history = (*PERSONA, 100, 101, *stage.reply(first))
    assert stage.usage(said(stage, "guard 1", (*history, 300, 301))).source == "host"
    behind = said(stage, "guard 1", (*history, 300, 400))
    assert (stage.usage(behind).source, stage.usage(behind).prefilled) == ("slot", 1), "that was appended after the move"
    assert stage.usage(said(stage, "guard 1", (*PERSONA, 100, 900))).source == "none"


def test_a_slot_that_is_taken_over_needs_no_copy() -> None:
    stage = Stage(n_slots=1)
    said(stage, "guard 1", (*PERSONA, 100))
    second = said(stage, "guard 2", (*PERSONA, 200))
    assert not stage.orders(CopySlot)
    assert not stage.orders(FetchStash)
    assert (stage.usage(second).source, stage.usage(second).prefilled) == ("copy", 1)


def test_nothing_is_copied_from_another_adapter_or_scale() -> None:
    stage = Stage(n_slots=4)
    said(stage, "a", (*PERSONA, 100), "guard")
    for n, adapter in enumerate((None, "elf", AdapterUse(AdapterKey("guard"), 0.5))):
        turn = said(stage, f"b{n}", (*PERSONA, 200), adapter)
        assert stage.usage(turn).source == "none"


def test_its_own_comes_first_unless_another_shares_clearly_more() -> None:
    stage = Stage()
    said(stage, "bob", PERSONA[:40])
    said(stage, "ann", PERSONA[:50])
    near = said(stage, "bob", (*PERSONA[:50], 200))
    assert stage.usage(near).source == "slot"
    said(stage, "ann", (*PERSONA, *range(300, 330), 5))
    far = said(stage, "bob", (*PERSONA, *range(300, 330), 6))
    assert (stage.usage(far).source, stage.usage(far).prefilled) == ("copy", 1)


def test_memory_that_cannot_be_cut_is_copied_only_whole() -> None:
    stage = Stage(n_slots=4, can_cut=False)
    warm = stage.warm("guard 1", PERSONA, "guard")
    stage.settle()
    assert stage.code(warm) == "warm"
    whole = said(stage, "guard 2", (*PERSONA, 200))
    said(stage, "smith", (*range(400, 440), 1))
    part = said(stage, "other smith", (*range(400, 440), 2))
    assert [stage.usage(turn).source for turn in (whole, part)] == ["copy", "none"]


def test_what_the_engine_did_not_find_is_not_counted_as_reused() -> None:
    stage = Stage()
    said(stage, "guard 1", (*PERSONA, 100))
    second = stage.ask("guard 2", (*PERSONA, 200, 201), "guard")
    stage.tell(KvReported(stage.now_ms, TurnRefilled(second, 20)))
    stage.settle()
    usage = stage.usage(second)
    assert (usage.reused, usage.prefilled, usage.prompt) == (len(PERSONA) - 20, 22, len(PERSONA) + 2)
