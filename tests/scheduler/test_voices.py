"""A voice of several adapters begins when all of them are there, and two voices that need each other's never wait for each other."""

from __future__ import annotations

import pytest

from personae.engine.batch import BeginTurn, FreeAdapter, LoadAdapter
from personae.errors import OurBug
from personae.scheduler.actions import FailTurn
from personae.scheduler.events import AdapterRetired, TurnAsked
from personae.types import AdapterKey, AdapterUse, Limits, NpcId, Priority, ReplyRules, SamplingParams, TurnId, voice_of
from tests.scheduler.stage import Parts, Stage


def keys(stage: Stage, kind: type[LoadAdapter] | type[FreeAdapter]) -> list[str]:
    return [order.key for order in stage.orders(kind)]


def all_said(stage: Stage, *turns: TurnId) -> bool:
    return all(stage.reply(turn) == stage.expected(turn)[0] for turn in turns)


def begun(stage: Stage) -> list[TurnId]:
    return [order.turn for order in stage.orders(BeginTurn)]


def test_a_turn_begins_when_the_last_adapter_of_its_voice_has_come() -> None:
    stage = Stage()
    turn = stage.ask("bob", adapter=("pirate", "french", "drunk"))
    assert keys(stage, LoadAdapter) == ["drunk", "french", "pirate"]
    stage.load(), stage.load()
    assert not stage.has_begun(turn)
    stage.load()
    assert stage.begun(turn).voice == voice_of(AdapterUse(AdapterKey(key)) for key in ("pirate", "french", "drunk"))
    stage.settle()
    assert all_said(stage, turn)


def test_adapters_that_voices_share_are_loaded_once() -> None:
    stage = Stage(n_slots=3)
    turns = [stage.ask(npc, adapter=(npc, "french")) for npc in ("bob", "ann")] + [stage.ask("cid", adapter="french")]
    assert keys(stage, LoadAdapter) == ["bob", "french", "ann"]
    stage.settle()
    assert len(keys(stage, LoadAdapter)) == 3
    assert all_said(stage, *turns)


def test_kv_is_kept_under_the_same_voice_and_under_no_other() -> None:
    stage = Stage()
    kept = []
    for voice in (("pirate", "french"), ("french", "pirate"), "pirate", ("pirate", AdapterUse(AdapterKey("french"), 0.5)), None):
        turn = stage.ask("bob", range(1, 30), voice)
        stage.settle()
        kept.append(stage.usage(turn).reused)
        assert all_said(stage, turn)
    assert kept == [0, 28, 0, 0, 0]


def test_a_refusal_in_the_middle_of_a_voice_fails_its_turn_and_leaves_the_other_parts_for_others() -> None:
    stage = Stage(n_slots=4)
    stage.engine.bad_keys.add(AdapterKey("broken"))
    bad = stage.ask("bob", adapter=("accent", "broken", "pirate"))
    good = stage.ask("ann", adapter=("accent", "pirate"))
    stage.settle()
    assert stage.ended[bad] == FailTurn(bad, "adapter_shape", "Adapter broken does not fit.", "Train it on this base.")
    assert all_said(stage, good)
    assert keys(stage, LoadAdapter) == ["accent", "broken", "pirate"]


def test_a_voice_of_more_adapters_than_ever_fit_is_refused_by_name_and_no_other() -> None:
    stage = Stage(max_adapters=2)
    turn = stage.ask("bob", adapter=("a", "b", "c"))
    ended = stage.ended[turn]
    assert isinstance(ended, FailTurn)
    assert (ended.code, ended.message) == ("adapter_limit", "NPC 'bob' speaks with 3 adapters at once, and this service holds 2.")
    pair = stage.ask("ann", adapter=("a", "b"))
    stage.settle()
    assert all_said(stage, pair)


@pytest.mark.parametrize("limit", [{"max_adapters": 2}, {"adapter_ram": 2000}, {"adapter_ram": 1500}, {"adapter_ram": 0}])
def test_voices_that_hold_halves_of_each_other_all_end(limit: dict[str, int]) -> None:
    """Room for two, and every pair of five adapters is asked for at once, while the halves are in use."""
    stage = Stage(n_slots=3, **limit)
    first = stage.ask("first", adapter="a", max_tokens=6)
    stage.load()
    names = "abcde"
    voices: list[Parts] = [(one, other) for one in names for other in names if one < other]
    turns = [stage.ask(f"npc{n}", (n + 1, 2), voice, max_tokens=3 + n % 3) for n, voice in enumerate(voices)]
    stage.settle()
    assert all_said(stage, first, *turns)


def test_two_that_hold_what_the_other_needs_both_end_the_first_in_line_first() -> None:
    stage = Stage(n_slots=2, max_adapters=2)
    for key in ("a", "b"):
        stage.ask(key, adapter=key, max_tokens=4)
    stage.load(), stage.load()
    one, other = stage.ask("one", adapter=("a", "c")), stage.ask("other", adapter=("b", "d"))
    stage.settle()
    assert begun(stage)[2:] == [one, other]
    assert all_said(stage, one, other)


def test_half_a_voice_that_waits_goes_for_a_turn_further_ahead() -> None:
    stage = Stage(n_slots=2, max_adapters=2)
    behind = stage.ask("behind", adapter=("a", "b"), priority=Priority.AMBIENT)
    stage.load()
    ahead = stage.ask("ahead", adapter=("c", "d"))
    stage.settle()
    assert begun(stage) == [ahead, behind]
    assert all_said(stage, ahead, behind)


def test_room_that_is_promised_to_a_turn_is_not_taken_by_a_smaller_one_behind_it() -> None:
    """There is room for one at once; but the pair ahead needs it as soon as the adapter in use comes free."""
    stage = Stage(n_slots=3, max_adapters=2)
    stage.ask("first", adapter="a", max_tokens=6)
    stage.load()
    pair = stage.ask("pair", adapter=("b", "c"))
    small = stage.ask("small", adapter="d")
    assert keys(stage, LoadAdapter) == ["a"]
    stage.settle()
    assert begun(stage)[1:] == [pair, small]


def test_a_retired_adapter_stays_while_a_waiting_turn_names_it() -> None:
    stage = Stage(n_slots=1)
    stage.ask("bob", adapter=("pirate", "french"), max_tokens=2)
    stage.load(), stage.load()
    waiting = stage.ask("ann", adapter=("elf", "french"), max_tokens=2)
    stage.load()
    for key in ("french", "pirate"):
        stage.tell(AdapterRetired(stage.now_ms, AdapterKey(key)))
    stage.step(), stage.step()
    assert keys(stage, FreeAdapter) == ["pirate"]
    stage.settle()
    assert all_said(stage, waiting)
    assert keys(stage, FreeAdapter) == ["pirate", "french"]
    assert len(keys(stage, LoadAdapter)) == 3


def test_a_retired_adapter_stays_while_a_paused_turn_names_it() -> None:
    stage = Stage(n_slots=1)
    crowd = stage.ask("crow", adapter=("pirate", "french"), priority=Priority.AMBIENT, max_tokens=9)
    stage.load(), stage.load()
    stage.step()
    stage.ask("bob", max_tokens=3)
    stage.step()
    stage.tell(AdapterRetired(stage.now_ms, AdapterKey("french")))
    stage.settle()
    assert all_said(stage, crowd)
    assert len(keys(stage, LoadAdapter)) == 2


def test_a_turn_that_does_not_say_where_its_adapters_are_is_our_bug() -> None:
    stage = Stage()
    voice = (AdapterUse(AdapterKey("a")),)
    with pytest.raises(OurBug, match="does not say where its adapters are"):
        stage.scheduler.handle(TurnAsked(0.0, TurnId(1), NpcId("bob"), (1,), voice, (), SamplingParams(), ReplyRules(), Limits()))
