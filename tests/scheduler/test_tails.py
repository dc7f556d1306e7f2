"""What the next prompt will begin with is prefilled when nobody waits for anything, and a wrong guess harms nobody."""

from __future__ import annotations

import pytest

from personae.engine.batch import BeginTurn, ExtendSlot, FreeAdapter, RunStep
from personae.scheduler.actions import EndTurn
from personae.scheduler.events import AdapterRetired, NpcGone
from personae.types import AdapterKey, NpcId, TurnId, Usage
from tests.scheduler.stage import Stage

PROMPT, TAIL, WORDS = tuple(range(1, 30)), (301, 302, 303), (500, 501)


def spoken(stage: Stage, npc: str = "bob", adapter: str | None = None, **more: int) -> TurnId:
    """A turn that has just ended; what follows it has not been reported."""
    turn = stage.ask(npc, PROMPT, adapter, tail=TAIL, **more)
    if stage.engine.loading:
        stage.load()
    while turn not in stage.ended:
        stage.step()
    return turn


def next_prompt(stage: Stage, turn: TurnId, words: tuple[int, ...] = WORDS) -> tuple[int, ...]:
    return PROMPT + stage.reply(turn) + TAIL + words


def usage(stage: Stage, turn: TurnId) -> Usage:
    ended = stage.ended[turn]
    assert isinstance(ended, EndTurn)
    assert ended.reply == stage.expected(turn)[0]
    return ended.usage


def extensions(stage: Stage) -> list[ExtendSlot]:
    return [each for order in stage.orders(RunStep) for each in order.extend]


@pytest.mark.parametrize("end_every", [0, 5])
def test_the_second_turn_prefills_only_its_own_words(end_every: int) -> None:
    stage = Stage(end_every=end_every)
    first = spoken(stage, max_tokens=50)
    stage.settle()
    second = stage.ask("bob", next_prompt(stage, first))
    stage.settle()
    assert usage(stage, second).prefilled == len(WORDS)


def test_the_last_token_of_a_reply_that_was_cut_is_fed_with_the_tail() -> None:
    stage = Stage()
    first = spoken(stage)
    (extension,) = extensions(stage)
    assert extension == ExtendSlot(stage.begun(first).slot, len(PROMPT) + 4, (stage.reply(first)[-1], *TAIL))


def test_the_end_token_is_left_to_the_tail() -> None:
    stage = Stage()
    turn = stage.ask("bob", PROMPT, tail=TAIL, max_tokens=50)
    stage.step()
    stage.engine.end_every = 1  # whatever is drawn from now on ends the reply
    while turn not in stage.ended:
        stage.step()
    assert stage.code(turn) == "end"
    assert [each.tokens for each in extensions(stage)] == [TAIL]


def test_a_scheduler_with_nothing_owed_falls_silent() -> None:
    stage = Stage()
    spoken(stage)
    assert stage.orders(RunStep)[-1].extend
    assert stage.step() == []
    assert stage.tick(1000.0) == []
    assert stage.scheduler.statistics()["engine"]["idle_prefill_tokens"] == 1 + len(TAIL)  # type: ignore[index]


def test_a_wrong_guess_is_cut_and_costs_nothing() -> None:
    stage = Stage()
    first = spoken(stage)
    stage.settle()
    other = stage.ask("bob", PROMPT + stage.reply(first) + (TAIL[0], 999, *WORDS))
    stage.settle()
    assert stage.begun(other).keep == len(PROMPT) + 5 + 1
    assert usage(stage, other).prefilled == 1 + len(WORDS)


@pytest.mark.parametrize("n_slots", [2, 3])
def test_a_waiting_prompt_goes_before_any_tail(n_slots: int) -> None:
    stage = Stage(n_slots=n_slots, step_ms=20.0, min_chunk=4)
    first = stage.ask("bob", PROMPT[:4], tail=TAIL, max_tokens=1)
    waiting = stage.ask("ann", range(100, 150))
    while waiting not in stage.spoken:
        assert not extensions(stage)
        stage.step()
    assert first in stage.ended
    stage.settle()
    assert len(extensions(stage)) == 1


def test_a_line_that_arrives_while_a_slot_is_extended_waits_for_that_step_alone() -> None:
    stage = Stage(n_slots=3, step_ms=12.0)  # so short that nothing is extended beside a voice
    turns = [stage.ask(npc, PROMPT, tail=TAIL, max_tokens=3) for npc in ("ann", "bob", "cid")]
    while any(turn not in stage.ended for turn in turns):
        stage.step()
    assert [len(extensions(stage)), stage.can_step] == [1, True], "one slot at a time"
    line = stage.ask("bob", next_prompt(stage, turns[1]))
    assert not stage.has_begun(line)
    stage.step()
    assert stage.orders(RunStep)[-1].prefill[0].turn == line
    stage.settle()
    assert usage(stage, line).reply == 5
    assert len(extensions(stage)) == 2, "that of the one who was asked was forgotten"


def test_no_slot_is_extended_while_somebody_speaks() -> None:
    stage = Stage()
    speaking = stage.ask("ann", range(100, 104), max_tokens=60)
    stage.step()
    spoken(stage, max_tokens=1)
    while speaking not in stage.ended:
        assert extensions(stage) == []
        stage.step()
    stage.settle()
    assert extensions(stage) != []
    assert stage.reply(speaking) == stage.expected(speaking)[0]


def test_a_long_tail_is_prefilled_a_step_at_a_time() -> None:
    stage = Stage(step_ms=20.0)  # of an engine that needs 1 ms for a token
    stage.ask("bob", PROMPT[:8], tail=tuple(range(300, 400)), max_tokens=1)
    stage.settle()
    stage.check_books()
    lengths = [len(each.tokens) for each in extensions(stage)]
    assert sum(lengths) == 101
    assert len(lengths) > 2
    assert max(lengths) <= 40


def test_a_tail_that_the_slot_has_no_room_for_is_left_out() -> None:
    stage = Stage(n_ctx=len(PROMPT) + 5 + len(TAIL) - 1)
    spoken(stage)
    assert not stage.can_step
    assert not extensions(stage)


def test_after_a_cancelled_turn_nothing_is_prefilled() -> None:
    stage = Stage()
    turn = stage.ask("bob", PROMPT, tail=TAIL, max_tokens=50)
    stage.step(), stage.step()
    stage.cancel(turn)
    stage.settle()
    assert not extensions(stage)


def test_an_evicted_slot_forgets_what_it_was_owed() -> None:
    stage = Stage(n_slots=1)
    stage.ask("bob", PROMPT, tail=TAIL, max_tokens=1)
    newcomer = stage.ask("ann", range(100, 110), max_tokens=1)
    stage.settle()
    assert usage(stage, newcomer).prefilled == 10
    assert not extensions(stage)


def test_an_npc_that_goes_while_its_slot_is_extended_leaves_nothing_behind() -> None:
    stage = Stage()
    spoken(stage)
    stage.tell(NpcGone(stage.now_ms, NpcId("bob")))
    stage.settle()
    stage.check_books()
    assert stage.engine.kv == [[], []]
    again = stage.ask("bob", PROMPT)
    assert stage.begun(again).keep == 0


def test_a_slot_whose_adapter_was_freed_is_not_extended() -> None:
    stage = Stage(n_slots=2, step_ms=12.0)  # so short that nothing is extended beside a voice
    speaking = stage.ask("ann", range(100, 104), max_tokens=30)
    stage.step()
    spoken(stage, adapter="pirate", max_tokens=2)
    stage.tell(AdapterRetired(stage.now_ms, AdapterKey("pirate")))
    assert stage.orders(FreeAdapter)
    stage.settle()
    assert speaking in stage.ended
    assert not extensions(stage)


def test_an_adapter_may_be_freed_while_a_slot_is_extended_under_it() -> None:
    stage = Stage()
    first = spoken(stage, adapter="pirate")
    stage.tell(AdapterRetired(stage.now_ms, AdapterKey("pirate")))
    stage.settle()
    stage.check_books()
    second = stage.ask("bob", next_prompt(stage, first), "pirate")
    stage.settle()
    assert usage(stage, second).prefilled == len(WORDS)


def test_a_lost_engine_takes_what_was_owed_with_it() -> None:
    stage = Stage()
    spoken(stage)
    stage.lose()
    assert [type(action) for action in stage.start()] == []
    assert not stage.can_step


def test_a_slot_that_could_not_be_extended_is_not_tried_again() -> None:
    stage = Stage()
    stage.engine.bad_slots = {0, 1}
    first = spoken(stage)
    stage.settle()
    stage.check_books()
    assert len(extensions(stage)) == 1
    second = stage.ask("bob", next_prompt(stage, first))
    stage.settle()
    assert stage.orders(BeginTurn)[-1].keep == len(PROMPT) + 4
    assert usage(stage, second).prefilled == 1 + len(TAIL) + len(WORDS)
