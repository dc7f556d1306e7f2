"""The time of a step on machines of several kinds: bounded, shared by class and age, and not wasted. A machine here is its costs in ms."""

from __future__ import annotations

from dataclasses import replace

import pytest

from personae.engine.batch import RowDone, StepDone
from personae.scheduler import SchedulerConfig
from personae.scheduler.rows import YIELD_MS
from personae.types import AdapterKey, AdapterUse, MixMode, Priority
from tests.scheduler.machine import Machine, Play

LAPTOP = Machine()
MACHINES = {
    "laptop": LAPTOP,
    "repacked": Machine(7.0, 3.5, 12.0, 1.8),
    "fast": Machine(2.0, 0.4, 3.0, 0.1),
    "slow": Machine(40.0, 12.0, 40.0, 9.0),
    "grouped": Machine(9.0, 5.0, 14.0, 2.2, mode=MixMode.GROUPED),
    "noisy": Machine(noise=0.1),
}
ADAPTERS = [f"voice{i}" for i in range(5)]
TARGET_MS = 100.0


def on(name: str, **settings: float) -> Play:
    return Play(replace(MACHINES[name]), SchedulerConfig(step_ms=TARGET_MS, **settings))  # type: ignore[arg-type]


@pytest.fixture(params=MACHINES)
def play(request: pytest.FixtureRequest) -> Play:
    return on(request.param)


# --- how long a step is -----------------------------------------------------------------------------------------------


def test_no_step_of_many_voices_is_much_longer_than_its_target(play: Play) -> None:
    play.speaking(16, adapters=ADAPTERS)
    play.steps(20)
    assert max(play.steps(300)) <= 1.25 * TARGET_MS


def test_no_step_is_much_longer_while_prompts_come_and_go(play: Play) -> None:
    play.speaking(8, adapters=ADAPTERS)
    play.ask(200, adapter="voice1", max_tokens=1)
    play.steps(20)
    for n in range(60):
        play.ask(10 + 37 * n % 400, list(Priority)[n % 3], ADAPTERS[n % 5], max_tokens=3)
        assert max(play.steps(8)) <= 1.25 * TARGET_MS


@pytest.mark.parametrize("name", [name for name in MACHINES if name != "slow"])
def test_a_machine_that_becomes_twice_as_slow_is_followed_for_rows_and_for_the_next_prompt(name: str) -> None:
    play = on(name)
    play.speaking(16, adapters=ADAPTERS)
    play.ask(100, max_tokens=1)
    play.steps(60)
    play.machine.slowness = 2.0
    play.steps(20)
    assert max(play.steps(100)) <= 1.25 * TARGET_MS
    play.ask(300, max_tokens=1)  # no prompt has been prefilled since it became slow
    assert max(play.steps(40)) <= 1.25 * TARGET_MS


def test_one_slow_step_costs_the_next_few_little() -> None:
    play = on("laptop")
    play.speaking(6)
    play.steps(40)
    play.machine.slowness = 8.0
    play.step()
    play.machine.slowness = 1.0
    assert len(play.step().decode) >= 3
    assert {len(play.step().decode) for _ in range(12)} >= {6}


def test_an_unknown_machine_is_not_tried_with_everything_at_once() -> None:
    play = on("slow")
    turns = [play.ask(1, max_tokens=50) for _ in range(16)]
    for turn in turns:
        turn.pending, turn.drawn, turn.heard_ms = 7, [7], play.now_ms
        assert turn.place is not None
        turn.place.known.append(0)
    assert len(play.step().decode) <= 4


def test_time_for_moving_kv_is_no_part_of_the_price_of_rows_and_tokens() -> None:
    still, moving = on("laptop"), on("laptop")
    moving.machine.moved_ms = 80.0
    for play in (still, moving):
        play.speaking(4)
        play.steps(20)
    assert still.budget.statistics() == moving.budget.statistics()


# --- who speaks -------------------------------------------------------------------------------------------------------


def test_every_voice_goes_on(play: Play) -> None:
    play.speaking(16, adapters=ADAPTERS)
    play.steps(20)
    play.gaps_ms.clear()
    play.steps(300)
    n_steps = play.longest_gap_ms() / max(play.took_ms[-300:])
    assert len(play.gaps_ms) == 16
    assert n_steps <= 8, "no fewer than two rows in a step of the slowest machine"


def test_many_rows_are_not_decoded_at_once_where_few_cost_as_little_each() -> None:
    play = on("laptop")
    play.speaking(16)
    play.steps(20)
    assert [len(play.step().decode) for _ in range(4)] == [8] * 4
    play = on("repacked")
    play.speaking(16)
    play.steps(20)
    assert len(play.step().decode) == 16, "all of them fit, and half as many would cost more each"


def test_the_parties_that_take_turns_stay_the_same_so_that_no_kv_is_moved() -> None:
    play = on("laptop")
    play.speaking(13)
    play.steps(20)
    parties = [tuple(turn.number for turn in play.step().decode) for _ in range(6)]
    assert len(set(parties)) == 2
    assert set(parties[0]) | set(parties[1]) == {turn.number for turn in play.busy}


@pytest.mark.parametrize("n", [1, 2, 5, 8, 13, 16])
def test_no_throughput_is_lost_to_short_steps_where_the_cost_is_linear(n: int) -> None:
    play = on("laptop")
    play.machine.noise = 0.0
    play.speaking(n)
    play.steps(40)
    words, started_ms = play.n_words(), play.now_ms
    play.steps(200)
    rate = (play.n_words() - words) / (play.now_ms - started_ms)
    assert rate >= 0.9 * n / play.machine.decode_ms(n)


def test_players_speak_in_every_step_and_the_others_share_what_is_left() -> None:
    play = on("laptop")
    play.speaking(13)
    players = play.speaking(3, Priority.PLAYER)
    play.steps(20)
    play.gaps_ms.clear()
    for _ in range(60):
        assert set(players) <= set(play.step().decode)
    assert len(play.gaps_ms) == 16
    assert play.longest_gap_ms() < 500


def test_players_that_fill_every_step_do_not_silence_the_others_for_ever() -> None:
    play = on("slow")
    play.speaking(4)
    play.speaking(12, Priority.PLAYER)
    play.steps(20)
    play.gaps_ms.clear()
    play.steps(200)
    assert len(play.gaps_ms) == 16
    assert play.longest_gap_ms() < 4000


def test_adapters_are_decoded_whole_and_in_rotation_in_grouped_mode() -> None:
    play = on("grouped")
    play.speaking(10, adapters=ADAPTERS)
    play.steps(20)
    seen = set()
    for _ in range(4):
        decode = play.step().decode
        keys = [turn.voice[0].key for turn in decode]
        assert all(keys.count(key) == 2 for key in keys)
        seen |= set(keys)
    assert seen == set(ADAPTERS)


def test_an_adapter_with_too_many_rows_for_any_step_is_split_in_grouped_mode() -> None:
    play = on("grouped")
    play.machine.row_ms = 15.0
    play.speaking(12, adapters=["voice"])
    play.steps(20)
    assert max(play.steps(50)) <= 1.25 * TARGET_MS
    assert play.longest_gap_ms() < 1000


def test_the_adapter_of_a_player_goes_first_in_grouped_mode() -> None:
    play = on("grouped")
    play.speaking(15, adapters=ADAPTERS)
    (player,) = play.speaking(1, Priority.PLAYER, ["hero"])
    play.steps(20)
    for _ in range(20):
        assert player in play.step().decode


def test_the_adapters_of_one_number_at_different_scales_are_different_decodes() -> None:
    play = on("grouped")
    turns = play.speaking(2, adapters=["voice"])
    turns[1].asked = replace(turns[1].asked, voice=(AdapterUse(AdapterKey("voice"), 0.5),))
    before = play.machine.fixed_ms
    play.machine.noise = 0.0
    assert play.steps(1)[0] == 2 * before + 2 * play.machine.row_ms


# --- prompts ----------------------------------------------------------------------------------------------------------


def test_a_players_prompt_gets_the_next_step_and_lower_voices_are_silent_meanwhile() -> None:
    play = on("laptop")
    play.speaking(16)
    play.steps(30)
    turn = play.ask(25)
    flight = play.step()
    assert (flight.decode, [len(chunk.tokens) for chunk in flight.chunks]) == ([], [25])
    assert turn.turn in play.first_ms


def test_a_long_prompt_of_a_player_silences_lower_voices_for_a_second_and_no_longer() -> None:
    play = on("laptop")
    play.speaking(8)
    play.steps(30)
    turn, asked_ms = play.ask(1500), play.now_ms
    play.gaps_ms.clear()
    while not play.step().decode:
        assert play.now_ms - asked_ms < YIELD_MS + TARGET_MS
    assert play.now_ms - asked_ms > 0.8 * YIELD_MS
    assert play.until_heard(turn) < 1.25 * 1500 / 39 * TARGET_MS
    assert play.longest_gap_ms() < YIELD_MS + 4 * TARGET_MS


def test_a_voice_of_another_player_goes_on_at_the_pace_of_a_reader_while_a_player_waits() -> None:
    play = on("laptop")
    play.speaking(4)
    (other,) = play.speaking(1, Priority.PLAYER)
    play.steps(30)
    turn = play.ask(800)
    play.gaps_ms.clear()
    play.until_heard(turn)
    gaps_ms = play.gaps_ms[other.turn]
    assert min(gaps_ms) >= 200
    assert max(gaps_ms) < 200 + 2 * 1.25 * TARGET_MS, "it is due after a step that ends too early, and heard at the end of its own"


@pytest.mark.parametrize("pace_ms", [0.0, 200.0])
@pytest.mark.parametrize("name", MACHINES)
def test_neither_prompts_nor_rows_starve_whatever_the_pace(name: str, pace_ms: float) -> None:
    play = on(name, pace_ms=pace_ms)
    play.speaking(8, Priority.PLAYER, ADAPTERS)
    play.steps(20)
    play.gaps_ms.clear()
    turn = play.ask(400)
    alone_ms = 400 * play.machine.token_ms + 400 * play.machine.chunk_ms / max(1, play.budget.step_tokens)
    assert play.until_heard(turn) <= 4 * alone_ms + 4 * TARGET_MS
    assert play.longest_gap_ms() <= 200 + 6 * TARGET_MS


@pytest.mark.parametrize("pace_ms", [0.0, 200.0])
def test_prompts_that_keep_coming_do_not_silence_those_of_their_class(pace_ms: float) -> None:
    play = on("laptop", pace_ms=pace_ms)
    speaking = play.speaking(6, Priority.SCENE)
    play.steps(20)
    play.gaps_ms.clear()
    for _ in range(100):
        if sum(turn.prompt_left > 0 for turn in play.busy) < 5:
            play.ask(60, Priority.SCENE, max_tokens=1)
        play.step()
    assert {turn.turn for turn in speaking} <= set(play.gaps_ms)
    assert play.longest_gap_ms() <= 200 + 4 * TARGET_MS


def test_an_ambient_prompt_behind_players_that_speak_is_prefilled_in_time() -> None:
    play = on("laptop")
    play.speaking(10, Priority.PLAYER)
    play.steps(20)
    play.gaps_ms.clear()
    turn = play.ask(120, Priority.AMBIENT)
    assert play.until_heard(turn) < 20 * TARGET_MS
    assert play.longest_gap_ms() < 4 * TARGET_MS


def test_an_ambient_prompt_behind_players_prompts_that_never_end_is_prefilled_in_time() -> None:
    play = on("laptop")
    turn = play.ask(30, Priority.AMBIENT)
    started_ms = play.now_ms
    while turn.turn not in play.first_ms:
        if not any(other.prompt_left for other in play.busy if other.native_class == 0):
            play.ask(60, max_tokens=1)
        play.step()
        assert play.now_ms - started_ms < 2 * play.config.ageing_ms + 5 * TARGET_MS


def test_a_prompt_of_a_lower_class_does_not_ride_in_a_players_step() -> None:
    play = on("laptop")
    play.speaking(1)
    play.steps(20)
    ambient, player = play.ask(10, Priority.AMBIENT), play.ask(10)
    assert [chunk.turn for chunk in play.step().chunks] == [player.turn]
    while ambient.turn not in play.first_ms:
        play.step()


def test_a_warm_turn_goes_last_in_its_class_and_slows_nobody() -> None:
    play = on("laptop")
    (voice,) = play.speaking(1, Priority.AMBIENT)
    play.steps(20)
    warm, turn = play.ask(30, Priority.AMBIENT, draws=False), play.ask(60, Priority.AMBIENT)
    assert play.step().chunks[0].turn == turn.turn
    play.until_heard(turn)
    play.gaps_ms.clear()
    while warm.turn not in play.first_ms:
        assert voice in play.step().decode
    assert warm not in play.busy


def test_pieces_of_a_prompt_that_takes_several_steps_are_equally_long() -> None:
    play = on("laptop")
    play.until_heard(play.ask(150, max_tokens=1))
    play.ask(100, max_tokens=1)
    lengths = []
    while play.busy:
        lengths += [len(chunk.tokens) for chunk in play.step().chunks]
    assert sum(lengths) == 100
    assert len(lengths) == 4
    assert max(lengths) - min(lengths) <= 4


def test_no_sliver_of_a_prompt_is_prefilled_beside_rows() -> None:
    play = on("laptop", pace_ms=0.0)
    play.speaking(8, Priority.PLAYER)
    play.steps(20)
    turn = play.ask(300, max_tokens=1)
    while turn.turn not in play.first_ms:
        flight = play.step()
        assert bool(flight.decode) != bool(flight.chunks), "too little is left beside eight rows"


def test_a_line_that_is_said_to_everybody_is_planned_as_the_shared_decode_it_is() -> None:
    play = on("repacked")
    play.until_heard(play.ask(100, max_tokens=1))
    turns = [play.ask(20, max_tokens=1) for _ in range(8)]
    flight = play.step()
    assert [chunk.turn for chunk in flight.chunks] == [turn.turn for turn in turns[:2]]
    assert flight.n_prefills == 1


def test_a_turn_that_goes_on_after_a_pause_is_a_prompt_until_its_kv_is_there_again() -> None:
    play = on("laptop")
    (turn,) = play.speaking(1)
    play.steps(30)
    n_drawn = len(turn.drawn)
    place = turn.place
    assert place is not None
    turn.pause(play.now_ms)
    place.known.clear()
    turn.begin(place, 0, turn.source, play.now_ms)
    flight = play.step()
    assert (flight.decode, [chunk.last for chunk in flight.chunks]) == ([], [False])
    assert len(turn.drawn) == n_drawn
    assert play.step().decode == [turn]
    assert len(turn.drawn) == n_drawn + 1


# --- what a report must account for -----------------------------------------------------------------------------------


def test_a_chunk_that_draws_nothing_needs_no_row() -> None:
    play = on("laptop")
    warm = play.ask(5, draws=False)
    flight = play.plan()
    step = StepDone(prefilled=((warm.turn, 5),))
    flight.enter_prefilled(step)
    assert flight.unaccounted(step) == []
    assert flight.unaccounted(StepDone()) == [warm]


def test_the_last_chunk_of_a_prompt_needs_a_row() -> None:
    play = on("laptop")
    turn = play.ask(5)
    flight = play.plan()
    step = StepDone(prefilled=((turn.turn, 5),))
    flight.enter_prefilled(step)
    assert flight.unaccounted(step) == [turn]
    assert flight.unaccounted(StepDone((RowDone(turn.turn, 7),), ((turn.turn, 5),))) == []


def test_a_warm_turn_behind_prompts_that_never_end_goes_on_once_it_has_risen() -> None:
    play = on("laptop")
    warm = play.ask(30, Priority.AMBIENT, draws=False)
    until_ms = play.now_ms + 4 * play.config.ageing_ms
    while warm.prompt_left and play.now_ms < until_ms:
        while len(play.busy) < 5:
            play.ask(600, max_tokens=1)
        play.step()
    assert not warm.prompt_left
