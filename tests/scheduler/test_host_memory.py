"""NPCs without a slot are kept in host memory: they come back exactly, or are prefilled again, and never cost more bytes than they may."""

from __future__ import annotations

from collections import deque

import pytest

from personae.engine.batch import BeginTurn, DropStash, FetchStash, KvRead, ReadKv, StashSlot, WriteKv
from personae.scheduler import host
from personae.scheduler.actions import KvLoaded, KvSaved
from personae.scheduler.host import WORTH_KEEPING, HostMemory
from personae.scheduler.sequence import common_prefix
from personae.types import AdapterKey, AdapterUse, NpcId, Stash, TurnId
from tests.scheduler.stage import Stage

LONG = range(1, 60)
OTHER = range(1000, 1060)


def said(stage: Stage, npc: str, prompt: tuple[int, ...] | range, adapter: str | None = None) -> TurnId:
    turn = stage.ask(npc, prompt, adapter)
    stage.settle()
    stage.check_books()
    assert stage.reply(turn) == stage.expected(turn)[0]
    return turn


def next_line(stage: Stage, turn: TurnId) -> tuple[int, ...]:
    return (*stage.asked[turn].prompt, *stage.reply(turn), 500, 501)


def test_an_npc_that_lost_its_slot_goes_on_from_where_it_was() -> None:
    stage = Stage(n_slots=1)
    first = said(stage, "bob", LONG)
    said(stage, "ann", OTHER)
    second = said(stage, "bob", next_line(stage, first))
    assert (stage.usage(second).source, stage.usage(second).prefilled) == ("host", 3)


def test_what_came_back_is_given_back_to_the_host() -> None:
    stage = Stage(n_slots=1)
    first = said(stage, "bob", LONG)
    said(stage, "ann", OTHER)
    said(stage, "bob", next_line(stage, first))
    assert [len(cells) for cells in stage.engine.stashes.values()] == [len(OTHER) + 4], "ann's, and no more of bob's"


def test_orders_put_aside_first_fetch_then_and_drop_last() -> None:
    stage = Stage(n_slots=1)
    first = said(stage, "bob", LONG)
    said(stage, "ann", OTHER)
    stage.engine.log.clear()
    said(stage, "bob", next_line(stage, first))
    assert stage.engine.log[:3] == [StashSlot(0, Stash(2)), FetchStash(Stash(1), 0), DropStash(Stash(1))]  # type: ignore[arg-type]
    assert isinstance(stage.engine.log[3], BeginTurn)


@pytest.mark.parametrize("kv_ram", [0, 100])
def test_without_room_it_is_prefilled_again(kv_ram: int) -> None:
    stage = Stage(n_slots=1, kv_ram=kv_ram)
    first = said(stage, "bob", LONG)
    said(stage, "ann", OTHER)
    second = said(stage, "bob", next_line(stage, first))
    assert stage.usage(second).source == "none"
    assert not stage.stashed()


def test_a_few_tokens_are_not_worth_it() -> None:
    stage = Stage(n_slots=1)
    said(stage, "bob", range(1, WORTH_KEEPING - 4))
    said(stage, "ann", OTHER)
    assert not stage.stashed()


def test_who_was_silent_longest_is_dropped_first() -> None:
    stage = Stage(n_slots=1, kv_ram=1500)  # two of them
    lines = {npc: said(stage, npc, range(100 * n, 100 * n + 60)) for n, npc in enumerate(("bob", "ann", "cid", "dan"), 1)}
    assert stage.orders(DropStash) == [DropStash(Stash(1))]
    again = said(stage, "ann", next_line(stage, lines["ann"]))
    assert stage.usage(again).source == "host"
    again = said(stage, "bob", next_line(stage, lines["bob"]))
    assert stage.usage(again).source == "none"


def test_bytes_that_nobody_told_are_learnt_from_the_first_stash() -> None:
    stage = Stage(n_slots=1, kv_ram=1500, tells_bytes=False)
    for n in range(1, 6):
        said(stage, f"npc{n}", range(100 * n, 100 * n + 60))
    assert len(stage.engine.stashes) == 2


def test_a_stash_larger_than_all_the_room_is_dropped_when_it_is_known() -> None:
    stage = Stage(n_slots=1, kv_ram=200, tells_bytes=False)
    said(stage, "bob", LONG)
    said(stage, "ann", OTHER)
    assert len(stage.stashed()) == 1
    assert not stage.engine.stashes


def test_two_npcs_that_change_places_need_room_for_one() -> None:
    stage = Stage(n_slots=1, kv_ram=800)
    lines = {"bob": said(stage, "bob", LONG), "ann": said(stage, "ann", OTHER)}
    for npc in ("bob", "ann") * 3:
        lines[npc] = said(stage, npc, next_line(stage, lines[npc]))
        assert stage.usage(lines[npc]).source == "host"


def test_nothing_is_dropped_for_what_does_not_fit_even_so() -> None:
    memory = HostMemory(1000)
    memory.reset(10)
    speaking, _ = memory.keep(NpcId("bob"), list(range(50)), (), turn=TurnId(1))
    silent, _ = memory.keep(NpcId("ann"), list(range(40)), ())
    assert speaking is not None
    assert memory.keep(NpcId("eve"), list(range(60)), ()) == (None, [])
    assert memory.of_npc(NpcId("ann")) is silent


def test_an_npc_that_is_gone_leaves_nothing() -> None:
    stage = Stage(n_slots=1)
    said(stage, "bob", LONG)
    said(stage, "ann", OTHER)
    stage.despawn("bob")
    assert not stage.engine.stashes


def test_kv_put_aside_under_one_adapter_is_not_fetched_under_another() -> None:
    stage = Stage(n_slots=1)
    said(stage, "bob", LONG, "pirate")
    said(stage, "ann", OTHER)
    other = said(stage, "bob", (*LONG, 70), "elf")
    assert stage.usage(other).reused == 0


def test_memory_that_cannot_be_cut_takes_a_stash_back_only_whole() -> None:
    stage = Stage(n_slots=1, can_cut=False)
    first = said(stage, "bob", LONG)
    said(stage, "ann", OTHER)
    grown = said(stage, "bob", next_line(stage, first))
    said(stage, "ann", OTHER)
    edited = said(stage, "bob", (*range(1, 50), 70))
    assert [stage.usage(turn).source for turn in (grown, edited)] == ["host", "none"]


def test_after_the_engine_died_nothing_is_kept() -> None:
    stage = Stage(n_slots=1)
    said(stage, "bob", LONG)
    said(stage, "ann", OTHER)
    stage.lose()
    stage.start()
    again = said(stage, "bob", (*LONG, 70))
    assert stage.usage(again).source == "none"


def test_a_stash_that_is_not_there_after_all_is_told_as_prefilled() -> None:
    stage = Stage(n_slots=1)
    first = said(stage, "bob", LONG)
    stage.engine.has_host_memory = False
    stage.cancel(stage.ask("ann", OTHER))
    back = stage.ask("bob", next_line(stage, first))
    late, stage.engine.moved = list(stage.engine.moved), deque()
    stage.step()
    assert stage.orders(FetchStash), "nobody had been told yet"
    stage.engine.moved.extendleft(late)
    stage.settle()
    usage = stage.usage(back)
    assert (usage.source, usage.reused, usage.prefilled) == ("none", 0, len(next_line(stage, first)))
    assert stage.reply(back) == stage.expected(back)[0]


def test_of_a_thousand_stashes_a_few_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, persona = HostMemory(1 << 40), list(range(500))
    for n in range(1000):
        memory.keep(NpcId(f"npc{n}"), [*persona, n, n + 1], ())
    looks: list[int] = []
    monkeypatch.setattr(host, "common_prefix", lambda one, other: looks.append(1) or common_prefix(one, other))
    stashed, shared = memory.longest((), (*persona, 700, 701, 7), whole=False)
    assert (stashed and stashed.npc, shared) == ("npc700", 502)
    assert len(looks) <= 2


def test_of_sequences_that_are_whole_prefixes_the_longest_is_found_behind_others() -> None:
    memory = HostMemory(1 << 40)
    goal = tuple(range(200))
    for n, tokens in enumerate(([*goal[:40]], [*goal[:90]], [*goal[:120], -1], [*goal[:150], -5], [*goal, 7])):
        memory.keep(NpcId(f"npc{n}"), tokens, ())
    memory.keep(NpcId("other"), [*goal[:110]], (AdapterUse(AdapterKey("pirate")),))
    stashed, shared = memory.longest((), goal, whole=True)
    assert (stashed and stashed.npc, shared) == ("npc1", 90)
    stashed, shared = memory.longest((), goal, whole=False)
    assert (stashed and stashed.npc, shared) == ("npc4", 200)


# --- files ------------------------------------------------------------------------------------------------------------


def test_kv_written_for_an_npc_serves_it_after_a_restart() -> None:
    stage = Stage()
    first = said(stage, "bob", LONG, "pirate")
    stage.save_kv("bob", "bob.kv")
    stage.settle()
    n_tokens = len(LONG) + 4
    assert stage.kv_answers == [KvSaved(NpcId("bob"), "bob.kv", n_tokens, n_tokens * 10)]
    stage.lose()
    stage.start()
    stage.load_kv("bob", "bob.kv")
    stage.settle()
    assert stage.kv_answers[1:] == [KvLoaded(NpcId("bob"), "bob.kv", n_tokens)]
    second = said(stage, "bob", next_line(stage, first), "pirate")
    assert (stage.usage(second).source, stage.usage(second).prefilled) == ("saved", 3)


def test_kv_of_an_npc_at_work_is_written_between_two_steps() -> None:
    stage = Stage()
    stage.ask("bob", LONG)
    stage.step()
    stage.save_kv("bob", "bob.kv")
    assert not stage.orders(WriteKv)
    stage.step()
    (order,) = stage.orders(WriteKv)
    assert order.tokens[: len(LONG)] == tuple(LONG)
    stage.settle()
    assert stage.kv_answers[0].reason == ""


def test_kv_of_an_npc_without_a_slot_is_written_from_its_stash() -> None:
    stage = Stage(n_slots=1)
    said(stage, "bob", LONG)
    said(stage, "ann", OTHER)
    stage.save_kv("bob", "bob.kv")
    stage.settle()
    (order,) = stage.orders(WriteKv)
    assert (order.slot, order.stash) == (None, Stash(1))
    assert stage.kv_answers[0].reason == ""


def test_every_question_about_a_file_is_answered_with_a_reason_where_nothing_was_done() -> None:
    stage = Stage()
    stage.save_kv("nobody", "a.kv")
    stage.load_kv("nobody", "a.kv")
    stage.settle()
    said(stage, "bob", LONG)
    stage.save_kv("bob", "b.kv")
    stage.load_kv("bob", "b.kv")
    stage.engine.steps.clear()
    stage.lose()
    stage.save_kv("bob", "b.kv")
    stage.load_kv("bob", "b.kv")
    reasons = [answer.reason for answer in stage.kv_answers]
    assert reasons[:2] == ["nothing is held of it", "there is no such file"]
    assert all("the engine was lost" in reason for reason in reasons[2:4])
    assert reasons[4:] == ["the engine is down"] * 2


def test_without_host_memory_no_kv_is_read() -> None:
    stage = Stage(kv_ram=0)
    stage.load_kv("bob", "bob.kv")
    assert not stage.orders(ReadKv)
    assert "kv_ram" in stage.kv_answers[0].reason


def test_kv_read_for_an_npc_that_is_gone_meanwhile_is_dropped() -> None:
    stage = Stage()
    said(stage, "bob", LONG)
    stage.save_kv("bob", "bob.kv")
    stage.settle()
    stage.load_kv("bob", "bob.kv")
    stage.despawn("bob")
    stage.settle()
    assert stage.kv_answers[1].reason == "the NPC is gone"
    assert not stage.engine.stashes


def test_kv_that_does_not_fit_is_dropped_and_said_so() -> None:
    stage = Stage(kv_ram=400)
    said(stage, "bob", LONG)
    stage.save_kv("bob", "bob.kv")
    stage.settle()
    stage.load_kv("ann", "bob.kv")
    assert isinstance(stage.engine.filed[0], KvRead)
    stage.settle()
    assert "does not fit" in stage.kv_answers[1].reason
    assert not stage.engine.stashes


def test_kv_made_under_another_adapter_is_read_and_not_used() -> None:
    stage = Stage()
    said(stage, "bob", LONG, "pirate")
    stage.save_kv("bob", "bob.kv")
    stage.settle()
    stage.load_kv("ann", "bob.kv")
    stage.settle()
    turn = said(stage, "ann", (*LONG, 70), "elf")
    assert stage.usage(turn).reused == 0
