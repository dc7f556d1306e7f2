"""The life of one turn: asked, prefilled, spoken, ended; cancelled, late, faulted."""

from __future__ import annotations

import pytest

from personae.engine.batch import BeginTurn, ClearSlot, DropTurn, PrefillChunk, RowDone, RunStep, StepDone
from personae.errors import OurBug
from personae.scheduler import Scheduler, SchedulerConfig
from personae.scheduler.actions import Command, EndTurn, FailTurn, Speak
from personae.scheduler.events import EngineStarted, NpcGone, StepReported, TurnAsked, TurnCancelled
from personae.types import FinishReason, Limits, NpcId, Piece, ReplyRules, SamplingParams, Slot, TurnId, Usage
from tests.scheduler.stage import Stage


def asked(turn: int, at_ms: float = 0.0, prompt: tuple[int, ...] = (1, 2, 3), npc: str = "bob") -> TurnAsked:
    return TurnAsked(at_ms, TurnId(turn), NpcId(npc), prompt, (), (), SamplingParams(), ReplyRules(), Limits(2, 60.0))


def started() -> Scheduler:
    scheduler = Scheduler(SchedulerConfig())
    assert scheduler.handle(EngineStarted(0.0, n_slots=2, n_ctx=100)) == []
    return scheduler


def test_a_whole_turn_event_by_event() -> None:
    scheduler = started()
    turn = TurnId(7)
    assert scheduler.handle(asked(7)) == [
        Command(BeginTurn(turn, Slot(0), 0, (), SamplingParams(), ReplyRules(), Limits(2, 60.0))),
        Command(RunStep((), (PrefillChunk(turn, (1, 2, 3), last=True),))),
    ]
    first = StepDone((RowDone(turn, 50, (Piece("Good"),)),), ((turn, 3),))
    assert scheduler.handle(StepReported(30.0, first)) == [
        Command(RunStep((turn,))),
        Speak(turn, (Piece("Good"),), first=True),
    ]
    last = StepDone((RowDone(turn, 51, (Piece(" evening"),), FinishReason.LENGTH),), n_decodes=1, n_voices=1)
    assert scheduler.handle(StepReported(45.0, last)) == [
        Speak(turn, (Piece(" evening"),)),
        EndTurn(turn, FinishReason.LENGTH, Usage(3, 0, 3, 2), (50, 51), queued_ms=0.0, ttft_ms=30.0, total_ms=45.0),
    ]


def test_the_next_order_goes_before_the_news_of_the_last_step() -> None:
    stage = Stage()
    stage.ask("bob")
    actions = stage.step()
    assert [type(action) for action in actions] == [Command, Speak]


def test_a_turn_that_arrives_joins_the_next_step() -> None:
    stage = Stage()
    bob = stage.ask("bob", max_tokens=50)
    stage.step()
    ann = stage.ask("ann", max_tokens=50)
    assert stage.answer == [], "a step is under way"
    stage.step()
    step = stage.orders(RunStep)[-1]
    assert step.decode == (bob,)
    assert [chunk.turn for chunk in step.prefill] == [ann]
    stage.step()
    assert stage.orders(RunStep)[-1].decode == (bob, ann)


def test_a_finished_row_leaves_at_once() -> None:
    stage = Stage()
    short, long = stage.ask("bob", max_tokens=1), stage.ask("ann", max_tokens=30)
    stage.step()
    assert stage.code(short) == "length"
    assert short not in stage.orders(RunStep)[-1].decode
    stage.settle()
    assert stage.reply(long) == stage.expected(long)[0]


def test_the_end_token_is_left_out_of_the_reply() -> None:
    scheduler = started()
    scheduler.handle(asked(1))
    end = StepDone((RowDone(TurnId(1), 9, (), FinishReason.END),), ((TurnId(1), 3),))
    (speak, ended) = scheduler.handle(StepReported(5.0, end))
    assert speak == Speak(TurnId(1), (), first=True)
    assert isinstance(ended, EndTurn)
    assert ended.reply == ()


def test_max_tokens_holds_even_past_an_engine_that_does_not_count() -> None:
    stage = Stage()
    stage.engine.max_drawn = 1000
    turn = stage.ask("bob", max_tokens=2)
    stage.settle()
    assert (stage.code(turn), len(stage.reply(turn))) == ("length", 2)
    assert stage.orders(DropTurn) == [DropTurn(turn)]


def test_a_prompt_that_leaves_no_room_for_a_reply_is_refused() -> None:
    stage = Stage(n_ctx=20)
    fits, too_long = stage.ask("ann", range(1, 20)), stage.ask("bob", range(1, 21))
    assert stage.code(too_long) == "context_full"
    stage.settle()
    assert stage.reply(fits) == stage.expected(fits)[0]


@pytest.mark.parametrize("counts", [True, False], ids=["engine counts", "scheduler counts"])
def test_a_row_at_the_end_of_its_context_ends_and_disturbs_nobody(counts: bool) -> None:
    stage = Stage(n_ctx=20)
    stage.engine.max_drawn = None if counts else 1000
    full = stage.ask("bob", range(1, 17), max_tokens=100)
    other = stage.ask("ann", (2, 3), max_tokens=15)
    stage.settle()
    stage.check_books()
    assert (stage.code(full), len(stage.reply(full))) == ("context", 5), "four tokens fit, and the last one drawn need not"
    assert (stage.reply(other), stage.code(other)) == stage.expected(other)
    again = stage.ask("bob", range(1, 12), max_tokens=3)
    stage.settle()
    assert stage.reply(again) == stage.expected(again)[0]


def test_max_tokens_and_a_full_context_at_once_count_as_max_tokens() -> None:
    stage = Stage(n_ctx=20)
    turn = stage.ask("bob", range(1, 17), max_tokens=5)
    stage.settle()
    assert stage.code(turn) == "length"


def test_an_empty_prompt_is_refused_and_the_service_goes_on() -> None:
    stage = Stage()
    assert stage.code(stage.ask("bob", ())) == "internal"
    turn = stage.ask("bob")
    stage.settle()
    assert stage.reply(turn) == stage.expected(turn)[0]


def test_a_second_turn_of_a_speaking_npc_is_refused() -> None:
    stage = Stage()
    first, second = stage.ask("bob"), stage.ask("bob")
    assert stage.code(second) == "npc_busy"
    stage.settle()
    third = stage.ask("bob")
    stage.settle()
    assert isinstance(stage.ended[first], EndTurn)
    assert isinstance(stage.ended[third], EndTurn)


def test_a_turn_id_asked_twice_is_a_bug_that_changes_nothing() -> None:
    scheduler = started()
    scheduler.handle(asked(1))
    with pytest.raises(OurBug):
        scheduler.handle(asked(1, npc="ann"))
    scheduler.validate()
    assert scheduler.open_turns() == (1,)


# --- cancelled ----------------------------------------------------------------------------------------------------


def test_cancelled_in_line_needs_no_word_to_the_engine() -> None:
    stage = Stage(n_slots=1)
    speaking, waiting = stage.ask("bob"), stage.ask("ann")
    assert stage.cancel(waiting) == [stage.ended[waiting]]
    assert stage.code(waiting) == "cancelled"
    stage.settle()
    assert stage.reply(speaking) == stage.expected(speaking)[0]


def test_cancelled_while_its_first_chunk_is_under_way_keeps_that_chunk_for_the_next_turn() -> None:
    stage = Stage(step_ms=1, min_chunk=4, prefill_chunk=4)
    prompt = tuple(range(1, 20))
    turn = stage.ask("bob", prompt)
    assert stage.cancel(turn)[0] == Command(DropTurn(turn))
    again = stage.ask("bob", prompt)
    assert not stage.has_begun(again), "the step is still under way"
    stage.settle()
    stage.check_books()
    assert stage.begun(again).keep == 4
    assert stage.reply(again) == stage.expected(again)[0]


def test_cancelled_mid_decode_knows_the_token_that_the_step_under_way_feeds() -> None:
    stage = Stage()
    turn = stage.ask("bob", max_tokens=50)
    for _ in range(3):
        stage.step()
    stage.cancel(turn)
    drawn = stage.reply(turn)
    assert len(drawn) == 3
    stage.step()
    stage.check_books()
    again = stage.ask("bob", (*range(1, 9), *drawn, 77))
    stage.settle()
    assert stage.begun(again).keep == 8 + 3, "prompt and all that was fed; the token drawn meanwhile was not"
    assert stage.reply(again) == stage.expected(again)[0]


def test_results_of_a_cancelled_turn_are_not_told() -> None:
    stage = Stage()
    turn = stage.ask("bob", max_tokens=50)
    stage.step()
    stage.cancel(turn)
    assert stage.step() == []


def test_a_cancelled_turn_frees_its_slot_before_the_next_step() -> None:
    stage = Stage(n_slots=1)
    bob, ann = stage.ask("bob", max_tokens=50), stage.ask("ann")
    stage.step()
    stage.cancel(bob)
    stage.step()
    assert stage.has_begun(ann)


def test_cancelling_twice_or_a_stranger_is_harmless() -> None:
    stage = Stage()
    turn = stage.ask("bob")
    stage.cancel(turn)
    assert stage.cancel(turn) == []
    assert stage.cancel(TurnId(99)) == []


def test_cancelling_one_turn_leaves_the_others_alone() -> None:
    stage = Stage(n_slots=3)
    bob, ann, cid = stage.ask("bob"), stage.ask("ann", (5, 6, 7)), stage.ask("cid", (8, 9))
    stage.step()
    stage.cancel(ann)
    stage.settle()
    assert [stage.reply(turn) for turn in (bob, cid)] == [stage.expected(turn)[0] for turn in (bob, cid)]


# --- npc gone -----------------------------------------------------------------------------------------------------


def test_a_despawned_npc_ends_its_turn_and_clears_its_slot() -> None:
    stage = Stage()
    turn = stage.ask("bob", max_tokens=50)
    stage.step()
    stage.tell(NpcGone(stage.now_ms, NpcId("bob")))
    assert stage.code(turn) == "cancelled"
    assert stage.orders(ClearSlot) == [ClearSlot(Slot(0))]
    stage.step()
    stage.check_books()
    again = stage.ask("bob")
    stage.settle()
    assert stage.begun(again).keep == 0
    assert stage.reply(again) == stage.expected(again)[0]


def test_a_despawned_npc_that_comes_back_during_the_step_gets_a_clean_slot() -> None:
    stage = Stage(n_slots=1)
    stage.ask("bob", max_tokens=50)
    stage.tell(NpcGone(stage.now_ms, NpcId("bob")))
    again = stage.ask("bob")
    stage.settle()
    stage.check_books()
    assert stage.begun(again).keep == 0
    assert stage.reply(again) == stage.expected(again)[0]


# --- time ---------------------------------------------------------------------------------------------------------


def test_a_turn_out_of_time_ends_with_what_it_said() -> None:
    stage = Stage()
    turn = stage.ask("bob", max_tokens=50, max_seconds=1.0)
    assert stage.scheduler.next_deadline_ms() == stage.now_ms + 1000.0
    stage.step()
    actions = stage.tick(1000.0)
    assert actions[0] == Command(DropTurn(turn))
    assert stage.code(turn) == "time"
    assert stage.reply(turn) == stage.expected(turn)[0][:1]
    assert stage.scheduler.next_deadline_ms() is None


def test_a_turn_out_of_time_in_line_ends_too() -> None:
    stage = Stage(n_slots=1)
    stage.ask("bob", max_tokens=50)
    waiting = stage.ask("ann", max_seconds=1.0)
    stage.tick(1001.0)
    ended = stage.ended[waiting]
    assert isinstance(ended, EndTurn)
    assert (ended.finish, ended.reply, ended.ttft_ms, ended.queued_ms) == ("time", (), -1.0, 1001.0)


def test_a_result_that_comes_with_the_deadline_still_counts() -> None:
    stage = Stage()
    turn = stage.ask("bob", max_tokens=1, max_seconds=1.0)
    stage.step(passed_ms=1000.0)
    assert stage.code(turn) == "length"


# --- faults -------------------------------------------------------------------------------------------------------


def test_a_fault_ends_that_turn_and_no_other() -> None:
    stage = Stage()
    bad, good = stage.ask("bob", max_tokens=50), stage.ask("ann", (4, 5, 6))
    stage.step()
    stage.engine.bad_draws.add(bad)
    stage.settle()
    assert stage.code(bad) == "grammar_error"
    assert stage.reply(good) == stage.expected(good)[0]
    again = stage.ask("bob", (*range(1, 9), 50, 60))
    stage.settle()
    assert stage.reply(again) == stage.expected(again)[0]


def test_a_fault_in_begin_ends_the_turn_and_its_slot_serves_on() -> None:
    stage = Stage(n_slots=1)
    first = stage.ask("bob")
    stage.settle()
    stage.engine.bad_begins.add(TurnId(2))
    bad = stage.ask("bob", (*range(1, 9), 70))
    stage.settle()
    assert stage.code(bad) == "bad_grammar"
    good = stage.ask("bob", (*range(1, 9), 70))
    stage.settle()
    assert stage.reply(good) == stage.expected(good)[0]
    assert isinstance(stage.ended[first], EndTurn)


def test_a_turn_that_the_report_leaves_out_is_not_waited_for() -> None:
    scheduler = started()
    scheduler.handle(asked(1))
    actions = scheduler.handle(StepReported(9.0, StepDone()))
    assert actions[0] == Command(DropTurn(TurnId(1)))
    assert isinstance(actions[-1], FailTurn)
    assert actions[-1].code == "engine_failed"
    scheduler.validate()


def test_a_report_of_a_turn_nobody_named_is_a_bug_and_stands_in_the_story() -> None:
    scheduler = started()
    scheduler.handle(asked(1))
    with pytest.raises(OurBug):
        scheduler.handle(StepReported(9.0, StepDone((RowDone(TurnId(5), 1),))))
    assert "StepReported" in scheduler.story().splitlines()[-1]


def test_the_story_names_events_and_actions() -> None:
    scheduler = started()
    scheduler.handle(asked(1, prompt=tuple(range(1, 50))))
    scheduler.handle(TurnCancelled(3.0, TurnId(1)))
    story = scheduler.story()
    assert "TurnAsked(turn=1, npc=bob, prompt=<49 tokens 1..49>" in story
    assert "-> BeginTurn(turn=1, slot=0, keep=0" in story
    assert "-> EndTurn(turn=1, finish=cancelled" in story
