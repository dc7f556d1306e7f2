"""Which slot a turn gets and what of its KV is used again."""

from __future__ import annotations

from personae.engine.batch import RunStep
from personae.scheduler.actions import EndTurn
from personae.scheduler.sequence import common_prefix
from personae.types import AdapterKey, AdapterUse, TurnId
from tests.scheduler.stage import Parts, Stage


def said(stage: Stage, npc: str, prompt: tuple[int, ...] | range, adapter: Parts = None) -> TurnId:
    turn = stage.ask(npc, prompt, adapter)
    stage.settle()
    stage.check_books()
    assert stage.reply(turn) == stage.expected(turn)[0]
    return turn


def test_common_prefix_finds_the_first_difference_wherever_it_is() -> None:
    whole = list(range(1000))
    for place in (0, 1, 127, 128, 129, 500, 999):
        assert common_prefix(whole, (*whole[:place], -1, *whole[place + 1 :])) == place
    assert common_prefix(whole, tuple(whole)) == 1000
    assert common_prefix(whole, tuple(whole[:300])) == 300
    assert common_prefix(whole[:300], tuple(whole)) == 300
    assert common_prefix([], (1,)) == 0


def test_a_new_line_costs_only_its_own_tokens() -> None:
    stage = Stage()
    first = said(stage, "bob", range(1, 30))
    second = said(stage, "bob", (*range(1, 30), *stage.reply(first), 500, 501))
    ended = stage.ended[second]
    assert isinstance(ended, EndTurn)
    assert ended.usage.reused == 29 + 5 - 1, "the last token drawn was never fed"
    assert ended.usage.prefilled == 3
    assert stage.begun(second).history == stage.asked[second].prompt[: ended.usage.reused]


def test_the_same_prompt_again_still_prefills_its_last_token() -> None:
    stage = Stage()
    said(stage, "bob", range(1, 30))
    again = said(stage, "bob", range(1, 30))
    assert stage.begun(again).keep == 28


def test_an_edit_cuts_where_it_is() -> None:
    stage = Stage()
    said(stage, "bob", range(1, 30))
    edited = said(stage, "bob", (*range(1, 11), 99, *range(12, 30)))
    assert stage.begun(edited).keep == 10


def test_kv_of_one_adapter_is_never_used_under_another() -> None:
    stage = Stage(n_slots=1)
    for adapter in ("pirate", None, "elf", AdapterUse(AdapterKey("elf"), 0.5), "pirate"):
        turn = said(stage, "bob", range(1, 30), adapter)
        assert stage.begun(turn).keep == 0


def test_kv_of_another_npc_under_the_same_adapter_is_used_as_far_as_tokens_are_equal() -> None:
    stage = Stage(n_slots=1)
    said(stage, "bob", (*range(1, 30), 100), "guard")
    turn = said(stage, "ann", (*range(1, 30), 200), "guard")
    assert stage.begun(turn).keep == 29


def test_an_npc_finds_its_own_slot_again() -> None:
    stage = Stage(n_slots=3)
    slots = {npc: stage.begun(said(stage, npc, range(n, n + 9))).slot for n, npc in enumerate(("ann", "bob", "cid"))}
    assert len(set(slots.values())) == 3
    for n, npc in ((2, "cid"), (0, "ann"), (1, "bob")):
        assert stage.begun(said(stage, npc, range(n, n + 9))).slot == slots[npc]


def test_the_npc_that_was_silent_longest_gives_way() -> None:
    stage = Stage(n_slots=3)
    slots = {npc: stage.begun(said(stage, npc, range(n + 1, n + 9))).slot for n, npc in enumerate(("ann", "bob", "cid"))}
    said(stage, "ann", range(1, 20))
    newcomer = said(stage, "dan", range(50, 60))
    assert stage.begun(newcomer).slot == slots["bob"]
    returned = said(stage, "bob", range(2, 10))
    assert stage.begun(returned).slot == slots["cid"]
    assert stage.begun(returned).keep == 0
    assert stage.scheduler.statistics()["evictions"] == 2


def test_an_npc_is_silent_from_the_end_of_its_turn_not_from_its_beginning() -> None:
    stage = Stage(n_slots=2)
    long = stage.ask("bob", max_tokens=20)
    stage.ask("ann", (7, 8), max_tokens=1)
    stage.settle()
    assert stage.begun(said(stage, "cid", range(50, 60))).slot != stage.begun(long).slot


def test_an_empty_slot_goes_before_a_parked_one() -> None:
    stage = Stage(n_slots=2)
    bob = said(stage, "bob", range(1, 9))
    ann = said(stage, "ann", range(1, 9))
    assert stage.begun(ann).slot != stage.begun(bob).slot
    assert stage.scheduler.statistics()["evictions"] == 0


def test_when_all_slots_speak_new_turns_wait_and_all_are_served() -> None:
    stage = Stage(n_slots=2)
    turns = [stage.ask(f"npc{n}", (n + 1, 2, 3)) for n in range(20)]
    assert [stage.has_begun(turn) for turn in turns[:3]] == [True, False, False]
    stage.settle()
    assert [stage.reply(turn) for turn in turns] == [stage.expected(turn)[0] for turn in turns]


def test_all_that_speak_are_decoded_in_one_step_in_order_of_slots() -> None:
    stage = Stage(n_slots=4)
    turns = [stage.ask(f"npc{n}", (n + 1, 2, 3), f"key{n % 2}", max_tokens=40) for n in range(4)]
    stage.load(), stage.load()
    for _ in range(3):
        stage.step()
    assert stage.orders(RunStep)[-1].decode == tuple(sorted(turns, key=lambda turn: stage.begun(turn).slot))
