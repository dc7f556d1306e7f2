"""What steps cost is learnt, and what fits is read from it: rows, and prompt tokens in what they leave."""

from __future__ import annotations

from dataclasses import replace

import pytest

from personae.engine.batch import PrefillChunk, RowDone, RunStep, StepDone
from personae.scheduler import SchedulerConfig
from personae.scheduler.budget import AIM, FIRST_ROWS, STRETCH, StepBudget
from personae.scheduler.costs import GUESS_FIXED_MS, GUESS_ROW_MS, GUESS_TOKEN_MS
from personae.scheduler.flight import Flight
from personae.types import Priority, TurnId
from tests.scheduler.machine import Machine, Play
from tests.scheduler.stage import Stage

LAPTOP = Machine(noise=0.0)


def noted(
    budget: StepBudget, rows: int = 0, decode_ms: float = 0.0, tokens: int = 0, prefill_ms: float = 0.0, n_decodes: int = 1, times: int = 1
) -> None:
    """As core tells it: a step of so many rows and one chunk."""
    turns = [Play().ask() for _ in range(rows)]
    for number, turn in enumerate(turns, 2):
        turn.asked = replace(turn.asked, turn=TurnId(number))
    chunks = [PrefillChunk(TurnId(1), tuple(range(tokens)), last=False)] if tokens else []
    prefilled = ((TurnId(1), tokens),) if tokens else ()
    step = StepDone(tuple(RowDone(turn.turn, 1) for turn in turns), prefilled, (), decode_ms, prefill_ms, n_decodes if rows else 0)
    for _ in range(times):
        budget.note(Flight(turns, chunks, n_prefills=len(chunks)), step)


def measured(machine: Machine = LAPTOP, **settings: float) -> StepBudget:
    """A budget that has seen steps of all sizes."""
    budget = StepBudget(SchedulerConfig(**settings))  # type: ignore[arg-type]
    for _ in range(10):
        for n in (1, 4, 8):
            noted(budget, n, machine.decode_ms(n), 8 * n, machine.prefill_ms(8 * n, 1))
    return budget


def chunks(stage: Stage) -> list[PrefillChunk]:
    return list(stage.orders(RunStep)[-1].prefill)


# --- what things cost -------------------------------------------------------------------------------------------------


def test_fixed_and_single_prices_are_told_apart() -> None:
    prices = measured().statistics()
    assert prices["decode_fixed_ms"] == pytest.approx(LAPTOP.fixed_ms, rel=0.15)
    assert prices["decode_row_ms"] == pytest.approx(LAPTOP.row_ms, rel=0.05)
    assert prices["prefill_fixed_ms"] == pytest.approx(LAPTOP.chunk_ms, rel=0.1)
    assert prices["prefill_token_ms"] == pytest.approx(LAPTOP.token_ms, rel=0.05)


def test_a_size_that_was_never_seen_is_judged_by_those_that_were() -> None:
    budget = measured()
    for rows in (2, 6, 16):
        assert budget.decode_ms(rows) == pytest.approx(LAPTOP.decode_ms(rows), rel=0.05)


def test_every_adapter_of_a_grouped_step_costs_a_decode() -> None:
    budget = StepBudget(SchedulerConfig())
    for _ in range(10):
        for rows, n_decodes in ((1, 1), (4, 2), (8, 8), (6, 1)):
            noted(budget, rows, LAPTOP.decode_ms(rows, n_decodes), n_decodes=n_decodes)
    assert budget.decode_ms(8, 4) == pytest.approx(LAPTOP.decode_ms(8, 4), rel=0.05)


def test_a_short_first_prefill_is_not_taken_for_the_price_of_a_token() -> None:
    budget = StepBudget(SchedulerConfig())
    noted(budget, tokens=1, prefill_ms=14.0)
    assert budget.prefill_ms(40) < 2 * LAPTOP.prefill_ms(40, 1)


def test_what_rows_cost_tells_what_prompts_will_cost_on_this_machine() -> None:
    budget = StepBudget(SchedulerConfig())
    noted(budget, rows=1, decode_ms=10 * (GUESS_FIXED_MS + GUESS_ROW_MS))
    assert budget.prefill_ms(10) == pytest.approx(10 * (GUESS_FIXED_MS + 10 * GUESS_TOKEN_MS))


@pytest.mark.parametrize("slowness", [0.5, 2.0, 3.0])
def test_a_machine_that_gets_slower_or_faster_is_followed_within_ten_steps(slowness: float) -> None:
    budget = measured()
    before_ms = budget.prefill_ms(40)
    noted(budget, 8, slowness * LAPTOP.decode_ms(8), times=12)
    assert budget.decode_ms(8) == pytest.approx(slowness * LAPTOP.decode_ms(8), rel=0.2)
    assert budget.prefill_ms(40) == pytest.approx(slowness * before_ms, rel=0.35), "it is as slow in what was not tried since"


def test_one_slow_step_changes_little() -> None:
    budget = measured()
    noted(budget, 8, 20 * LAPTOP.decode_ms(8), 40, 20 * LAPTOP.prefill_ms(40, 1))
    assert budget.decode_ms(8) < 1.45 * LAPTOP.decode_ms(8)
    noted(budget, 8, LAPTOP.decode_ms(8), times=10)
    assert budget.decode_ms(8) == pytest.approx(LAPTOP.decode_ms(8), rel=0.1)


def test_noise_wears_no_price_away() -> None:
    budget, machine = measured(), Machine(noise=0.3)
    for n in range(2000):
        rows, tokens = 1 + n % 8, 10 + n % 40
        noted(budget, rows, machine.decode_ms(rows), tokens, machine.prefill_ms(tokens, 1))
    assert budget.decode_ms(8) == pytest.approx(LAPTOP.decode_ms(8), rel=0.3)
    assert budget.prefill_ms(40) == pytest.approx(LAPTOP.prefill_ms(40, 1), rel=0.3)
    assert all(float(str(price)) > 0 for price in budget.statistics().values())


def test_a_chunk_that_came_to_nothing_is_no_measurement() -> None:
    budget = measured()
    before = budget.statistics()
    flight = Flight([], [PrefillChunk(TurnId(1), (1, 2), last=False)], n_prefills=1)
    budget.note(flight, StepDone(prefill_ms=90.0))
    assert budget.statistics() == before


# --- what fits --------------------------------------------------------------------------------------------------------


def test_as_many_rows_as_fit_and_no_more_than_are_worth_it() -> None:
    assert measured(step_ms=100.0).rows(16) == 8
    assert measured(step_ms=200.0).rows(16) == 16
    assert measured(step_ms=50.0).rows(16) == 4
    assert measured(step_ms=5.0).rows(16) == 1


def test_the_rows_of_a_short_step_are_not_parted() -> None:
    assert [measured(step_ms=100.0).rows(n) for n in range(1, 7)] == [1, 2, 3, 4, 5, 6]


def test_rows_grow_no_faster_than_twofold_into_the_unknown() -> None:
    budget = StepBudget(SchedulerConfig(step_ms=10_000.0))
    assert budget.rows(64) == FIRST_ROWS
    noted(budget, rows=4, decode_ms=20.0)
    assert budget.rows(64) == 8


def test_prefill_gets_what_the_rows_leave() -> None:
    budget = measured(step_ms=100.0)
    fit = int((AIM * 100.0 - LAPTOP.chunk_ms) / LAPTOP.token_ms)
    assert budget.step_tokens == pytest.approx(fit, abs=2)
    assert budget.chunk(500, budget.decode_ms(2)) == pytest.approx(fit - LAPTOP.decode_ms(2) / LAPTOP.token_ms, abs=2)


def test_a_sliver_beside_rows_is_left_to_the_next_step() -> None:
    budget = measured(step_ms=100.0)
    assert budget.chunk(500, budget.decode_ms(8)) == 0
    assert budget.chunk(4, budget.decode_ms(8)) == 4, "that is all there is of it"


def test_the_last_few_tokens_of_a_prompt_do_not_cost_a_decode_of_their_own() -> None:
    budget = measured(step_ms=100.0)
    most = int((STRETCH * 100.0 - LAPTOP.chunk_ms) / LAPTOP.token_ms) - 1
    assert budget.chunk(most, 0.0) == most
    assert budget.chunk(most + 4, 0.0) < budget.step_tokens


def test_a_prompt_goes_on_even_where_one_pass_over_the_weights_takes_too_long() -> None:
    budget = measured(Machine(fixed_ms=150.0, row_ms=20.0, chunk_ms=150.0, token_ms=12.0, noise=0.0), step_ms=100.0)
    assert budget.chunk(500, 0.0) == pytest.approx(150 / 12, abs=2), "as many as cost as much as the pass"


def test_a_fast_machine_takes_several_chunks_a_step() -> None:
    budget = measured(Machine(2.0, 0.4, 3.0, 0.1, noise=0.0), step_ms=100.0)
    assert budget.chunk(1000, 0.0) == 256
    assert 700 < budget.step_tokens < 1000


# --- in the scheduler -------------------------------------------------------------------------------------------------


def test_a_long_prompt_is_prefilled_over_several_steps_and_the_last_chunk_draws_the_first_token() -> None:
    stage = Stage(step_ms=20.0, min_chunk=4)  # four tokens a step at the guessed price
    turn = stage.ask("bob", range(1, 100))
    assert chunks(stage) == [PrefillChunk(turn, tuple(range(1, 5)), last=False)]
    lengths = []
    while turn not in stage.spoken:
        lengths.append(sum(len(chunk.tokens) for chunk in chunks(stage)))
        last = chunks(stage)[-1]
        stage.step()
    assert last.last
    assert lengths[1] <= 40, "a token takes 1 ms there; one piece has not told how its price divides"
    assert max(lengths[2:]) <= 20, "two have"
    stage.settle()
    assert stage.reply(turn) == stage.expected(turn)[0]


def test_no_chunk_is_longer_than_the_engine_takes_and_several_may_share_a_step() -> None:
    stage = Stage(prefill_chunk=20, step_ms=120.0)  # two whole chunks a step at the guessed price
    bob, ann = stage.ask("bob", range(1, 42)), stage.ask("ann", range(1, 30))
    assert [(chunk.turn, len(chunk.tokens), chunk.last) for chunk in chunks(stage)] == [(bob, 20, False), (bob, 20, False), (bob, 1, True)]
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


def test_a_prompt_that_the_next_step_can_take_whole_is_not_begun_beside_the_rows() -> None:
    stage = Stage(n_slots=3, step_ms=20.0, min_chunk=4, pace_ms=200.0)
    speaking = stage.ask("anna", range(1, 6), max_tokens=60)
    while speaking not in stage.spoken:
        stage.step()
    stage.ask("cid", range(200, 204), max_tokens=1)
    stage.step()
    waiting = stage.ask("bob", range(100, 136))  # as much as a step takes at what the first prompts cost, but not beside a row
    stage.step(300.0)  # the prompt of cid took so long that anna is due
    assert stage.orders(RunStep)[-1] == RunStep((speaking,))
    while waiting not in stage.spoken:
        stage.step()
    assert [len(chunk.tokens) for order in stage.orders(RunStep) for chunk in order.prefill if chunk.turn == waiting] == [36]
