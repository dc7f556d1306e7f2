"""A step stays under its time: what is left beside the rows goes to prompts, players first."""

from __future__ import annotations

from personae.engine.batch import PrefillChunk, RunStep
from personae.scheduler.budget import GUESS_PREFILL_MS, StepBudget
from personae.scheduler.settings import SchedulerConfig
from personae.types import Priority
from tests.scheduler.stage import Stage


def chunks(stage: Stage) -> list[PrefillChunk]:
    return list(stage.orders(RunStep)[-1].prefill)


def test_prefill_gets_what_the_rows_leave() -> None:
    budget = StepBudget(SchedulerConfig(step_ms=100.0))
    for _ in range(60):
        budget.note(rows=8, decode_ms=60.0, prefill_tokens=64, prefill_ms=64.0)
    assert budget.prefill_tokens(8) == 40
    assert budget.prefill_tokens(0) == 100


def test_a_short_first_prefill_is_not_taken_for_the_price_of_a_token() -> None:
    budget = StepBudget(SchedulerConfig())
    budget.note(rows=0, decode_ms=0.0, prefill_tokens=1, prefill_ms=14.0)
    assert budget.prefill_ms < 1.2 * GUESS_PREFILL_MS


def test_measurements_are_followed_when_the_machine_slows_down() -> None:
    budget = StepBudget(SchedulerConfig())
    for ms in (20.0,) * 5 + (60.0,) * 20:
        budget.note(rows=4, decode_ms=ms, prefill_tokens=0, prefill_ms=0.0)
    assert 58.0 < budget.decode_ms(4) <= 60.0


def test_an_unmeasured_number_of_rows_is_judged_by_its_nearest() -> None:
    budget = StepBudget(SchedulerConfig())
    budget.note(rows=4, decode_ms=40.0, prefill_tokens=0, prefill_ms=0.0)
    assert budget.decode_ms(8) == 80.0
    assert budget.decode_ms(2) == 40.0
    assert budget.decode_ms(0) == 0.0


def test_prefill_goes_on_even_when_rows_alone_take_too_long() -> None:
    budget = StepBudget(SchedulerConfig(step_ms=50.0, min_chunk=16))
    budget.note(rows=8, decode_ms=90.0, prefill_tokens=0, prefill_ms=0.0)
    assert budget.prefill_tokens(8) == 16


def test_a_long_prompt_is_prefilled_over_several_steps_and_the_last_chunk_draws_the_first_token() -> None:
    stage = Stage(step_ms=20.0, min_chunk=4)  # ten tokens a step at the guessed price
    turn = stage.ask("bob", range(1, 100))
    assert chunks(stage) == [PrefillChunk(turn, tuple(range(1, 11)), last=False)]
    while turn not in stage.spoken:
        assert sum(len(chunk.tokens) for chunk in chunks(stage)) <= 20
        last = chunks(stage)[-1]
        stage.step()
    assert last.last
    stage.settle()
    assert stage.reply(turn) == stage.expected(turn)[0]


def test_no_chunk_is_longer_than_the_engine_takes_and_several_may_share_a_step() -> None:
    stage = Stage(prefill_chunk=20, step_ms=100.0)  # fifty tokens a step at the guessed price
    bob, ann = stage.ask("bob", range(1, 46)), stage.ask("ann", range(1, 30))
    assert [(chunk.turn, len(chunk.tokens), chunk.last) for chunk in chunks(stage)] == [(bob, 20, False), (bob, 20, False), (bob, 5, True)]
    stage.settle()
    assert [stage.reply(turn) for turn in (bob, ann)] == [stage.expected(turn)[0] for turn in (bob, ann)]


def test_prompts_of_several_turns_share_a_step() -> None:
    stage = Stage(n_slots=3)
    stage.ask("cid", max_tokens=50)
    bob, ann = stage.ask("bob", range(1, 9)), stage.ask("ann", range(1, 9))
    stage.step()
    assert [(chunk.turn, chunk.last) for chunk in chunks(stage)] == [(bob, True), (ann, True)]


def test_a_player_is_prefilled_before_ambient_turns_that_began_earlier() -> None:
    stage = Stage(n_slots=3, step_ms=20.0, min_chunk=4)
    ambient = stage.ask("crow", range(1, 100), priority=Priority.AMBIENT)
    player = stage.ask("keeper", range(1, 9))
    stage.step()
    assert chunks(stage)[0].turn == player
    stage.step()
    assert player in stage.spoken
    assert ambient not in stage.spoken
    stage.settle()
    assert stage.reply(ambient) == stage.expected(ambient)[0]


def test_a_sliver_of_the_budget_is_left_for_the_next_step() -> None:
    stage = Stage(n_slots=2, step_ms=40.0, min_chunk=8)  # twenty tokens a step at the guessed price
    stage.ask("npc", max_tokens=1)
    bob, ann = stage.ask("bob", range(1, 16)), stage.ask("ann", range(1, 31))
    stage.engine.steps[0] = type(stage.engine.steps[0])(stage.engine.steps[0].rows, stage.engine.steps[0].prefilled)  # took no time
    stage.step()
    assert [chunk.turn for chunk in chunks(stage)] == [bob]
    assert ann not in stage.ended


def test_statistics_tell_rows_and_mixed_decodes() -> None:
    stage = Stage(n_slots=2)
    stage.ask("bob", range(1, 9), "pirate", max_tokens=6)
    stage.ask("ann", range(2, 9), "elf", max_tokens=6)
    stage.load(), stage.load()
    stage.settle()
    statistics = stage.scheduler.statistics()
    engine = statistics["engine"]
    assert isinstance(engine, dict)
    assert engine["mixed_decodes"] > 0
    assert engine["rows"] == sum(int(rows) * times for rows, times in engine["by_rows"].items())
    assert engine["prefill_tokens"] == 15
    assert 1.0 <= float(str(statistics["rows_per_decode"])) <= 2.0
    assert statistics["parked"] == 2
    assert statistics["waiting"] == 0


def test_while_a_prompt_waits_voices_go_on_at_the_pace_of_a_reader() -> None:
    stage = Stage(n_slots=3, step_ms=20.0, min_chunk=4, pace_ms=200.0)
    speaking = stage.ask("anna", range(1, 6), max_tokens=60)
    while speaking not in stage.spoken:
        stage.step()
    stage.step()
    asked_ms, heard = stage.now_ms, len(stage.spoken[speaking])
    waiting = stage.ask("bob", range(100, 300))
    while waiting not in stage.spoken:
        stage.step()
    words = len(stage.spoken[speaking]) - heard
    assert words >= (stage.now_ms - asked_ms) // 200.0 - 1
    assert words < len(stage.orders(RunStep))
    stage.settle()


def test_a_voice_is_due_by_its_own_last_word_and_then_all_speak() -> None:
    stage = Stage(n_slots=3, step_ms=20.0, min_chunk=4, pace_ms=200.0)
    anna = stage.ask("anna", range(1, 5), max_tokens=60)
    stage.step()
    cid = stage.ask("cid", range(20, 24), max_tokens=60)
    stage.ask("bob", range(100, 300))
    stage.step()
    anna_ms = stage.now_ms
    while cid not in stage.spoken:
        stage.step(50.0)
    cid_ms = stage.now_ms
    while stage.now_ms < anna_ms + 200.0:
        assert not stage.orders(RunStep)[-1].decode
        stage.step(30.0)
    assert stage.now_ms < cid_ms + 200.0, "cid is not due by its own last word"
    assert stage.orders(RunStep)[-1].decode == (anna, cid)


def test_a_players_voice_is_not_slowed_by_an_ambient_prompt() -> None:
    stage = Stage(n_slots=3, step_ms=20.0, min_chunk=4, pace_ms=10_000.0)
    player = stage.ask("anna", range(1, 6), max_tokens=60)
    while player not in stage.spoken:
        stage.step()
    stage.ask("bob", range(100, 300), priority=Priority.AMBIENT)
    for _ in range(3):
        stage.step()
        assert player in stage.orders(RunStep)[-1].decode


def test_the_last_few_tokens_of_a_prompt_do_not_cost_a_decode_of_their_own() -> None:
    budget = StepBudget(SchedulerConfig(min_chunk=4))
    assert budget.share(tokens_left=40, prompt_left=48, is_first=True) == 48
    assert budget.share(tokens_left=40, prompt_left=60, is_first=True) == 40


def test_a_prompt_that_the_next_step_can_take_whole_is_not_begun_beside_the_rows() -> None:
    stage = Stage(n_slots=3, step_ms=20.0, min_chunk=4, pace_ms=200.0)
    speaking = stage.ask("anna", range(1, 6), max_tokens=60)
    while speaking not in stage.spoken:
        stage.step()
    stage.ask("cid", range(200, 204), max_tokens=1)
    stage.step()
    waiting = stage.ask("bob", range(100, 111))  # 11 tokens: a step's worth at the guessed price, but not beside a row
    stage.step(300.0)  # the prompt of cid took so long that anna is due
    assert stage.orders(RunStep)[-1] == RunStep((speaking,))
    while waiting not in stage.spoken:
        stage.step()
    assert [len(chunk.tokens) for order in stage.orders(RunStep) for chunk in order.prefill if chunk.turn == waiting] == [11]
