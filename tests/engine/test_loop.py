"""The engine loop on the fake backend: steps, endings, faults that stay with their turn, adapters that come between steps."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from personae.engine.batch import (
    AdapterLoaded,
    AdapterRefused,
    ClearSlot,
    DropTurn,
    ExtendSlot,
    FreeAdapter,
    LoadAdapter,
    PrefillChunk,
    Quit,
    RunStep,
    StepDone,
    TurnFaulted,
    TurnRefilled,
)
from personae.engine.loop import EngineLoop
from personae.engine.settings import EngineSettings
from personae.errors import OurBug, WorldFailed
from personae.types import AdapterKey, FinishReason, ReplyRules, SamplingParams, Slot, TurnId
from tests.engine.stage import ADAPTER, OTHER_ADAPTER, OTHER_VOICE, SETTINGS, VOICE, Stage, WatchedBackend, begin_turn, chunk, prompt

# --- steps and endings --------------------------------------------------------------------------------------------


def test_turn_speaks_until_the_model_ends_it(stage: Stage) -> None:
    first = stage.begin(1, "Hello")
    assert first.prefilled == ((1, len(prompt("Hello"))),)
    assert (first.n_decodes, first.n_voices) == (0, 0)
    assert stage.talk(1, first) == ("[base] I heard: Hello.", FinishReason.END)
    assert stage.backend.samplers[0].closed


def test_rows_with_different_adapters_share_one_decode_in_slot_order(stage: Stage, tmp_path: Path) -> None:
    stage.install(ADAPTER, tmp_path / "a")
    stage.install(OTHER_ADAPTER, tmp_path / "b")
    for turn, voice in ((3, ()), (1, VOICE), (2, OTHER_VOICE)):
        stage.begin(turn, "Hello", voice=voice)
    done = stage.step((3, 1, 2))
    assert [row.turn for row in done.rows] == [1, 2, 3]
    assert [[slot for slot, _ in rows] for rows in stage.backend.decodes] == [[1, 2, 3]]
    assert (done.n_decodes, done.n_voices) == (1, 3)


def test_a_line_said_to_everybody_is_prefilled_in_one_decode(stage: Stage) -> None:
    for turn in (1, 2, 3):
        stage.do(begin_turn(turn, slot=turn))
    done = stage.step(prefill=(chunk(1, "Hello"), chunk(2, "Hello"), chunk(3, "Good evening")))
    assert [[slot for slot, _ in chunks] for chunks in stage.backend.together] == [[1, 2]]
    assert done.prefilled == ((1, len(prompt("Hello"))), (2, len(prompt("Hello"))), (3, len(prompt("Good evening"))))
    assert [row.turn for row in done.rows] == [1, 2, 3]


def test_two_chunks_of_one_turn_are_not_prefilled_together(stage: Stage) -> None:
    stage.do(begin_turn(1, slot=1))
    tokens = prompt("Hello")
    done = stage.step(prefill=(PrefillChunk(TurnId(1), tokens[:4], False), PrefillChunk(TurnId(1), tokens[4:8], False)))
    assert stage.backend.together == []
    assert done.prefilled == ((1, 4), (1, 4))


def test_one_of_a_group_that_does_not_fit_takes_nobody_with_it() -> None:
    full = EngineSettings(model="fake", n_slots=4, n_ctx=len(prompt("Hello")) + 3)
    stage = Stage(WatchedBackend(full))
    stage.do(begin_turn(1, slot=1), begin_turn(2, slot=2))
    stage.step(prefill=(PrefillChunk(TurnId(2), prompt("Hello")[:5], False),))
    done = stage.step(prefill=(chunk(1, "Hello"), chunk(2, "Hello")))
    assert done.prefilled == ((1, len(prompt("Hello"))),)
    assert [(fault.turn, fault.code) for fault in done.faults] == [(2, "context_full")]


def test_step_decodes_first_and_then_prefills(stage: Stage) -> None:
    stage.begin(1, "Hello")
    stage.do(begin_turn(2, slot=2))
    done = stage.step((1,), (chunk(2, "Bye"),))
    assert [row.turn for row in done.rows] == [1, 2]
    assert done.prefilled == ((2, len(prompt("Bye"))),)
    assert done.decode_ms > 0
    assert done.prefill_ms > 0


def test_only_the_last_chunk_of_a_prompt_draws(stage: Stage) -> None:
    tokens = prompt("Hello")
    stage.do(begin_turn(1, slot=1))
    assert stage.step(prefill=(PrefillChunk(TurnId(1), tokens[:5], False),)).rows == ()
    first = stage.step(prefill=(PrefillChunk(TurnId(1), tokens[5:], True),))
    assert stage.talk(1, first)[0] == "[base] I heard: Hello."


def test_max_tokens_ends_the_turn_and_releases_what_was_held_back(stage: Stage) -> None:
    first = stage.begin(1, "fake:say:abcdef", max_tokens=4, rules=ReplyRules(stop=("cdX",)))
    assert stage.talk(1, first) == ("abcd", FinishReason.LENGTH)


def test_stop_string_ends_the_turn(stage: Stage) -> None:
    first = stage.begin(1, "fake:say:One.\\nTwo.", rules=ReplyRules(stop=("\n",)))
    assert stage.talk(1, first) == ("One.", FinishReason.STOP)


def test_speaking_for_another_ends_the_turn(stage: Stage) -> None:
    first = stage.begin(1, "fake:say:One.\\nPlayer: Two.", rules=ReplyRules(others=("Player",)))
    assert stage.talk(1, first) == ("One.", FinishReason.SPEAKER)


def test_going_round_in_circles_ends_the_turn(stage: Stage) -> None:
    assert stage.talk(1, stage.begin(1, "fake:loop", max_tokens=1000))[1] is FinishReason.REPETITION


def test_rule_that_the_end_itself_completes_gives_the_finish(stage: Stage) -> None:
    first = stage.begin(1, "fake:say:a <", rules=ReplyRules(stop=("<",)))
    assert stage.talk(1, first) == ("a", FinishReason.STOP)


def test_full_context_ends_the_turn_and_leaves_the_others_speaking(stage: Stage) -> None:
    text, finish = stage.talk(1, stage.begin(1, "fake:long", max_tokens=10_000))
    assert finish is FinishReason.CONTEXT
    assert len(text) in (n_drawn := SETTINGS.n_ctx - len(prompt("fake:long")) + 1, n_drawn - 1)  # a blank at the end is not shown
    assert stage.backend.n_tokens(Slot(1)) == SETTINGS.n_ctx
    assert stage.talk(2, stage.begin(2, "Hello"))[1] is FinishReason.END


def test_torn_characters_are_shown_whole(stage: Stage) -> None:
    first = stage.begin(1, "fake:unicode")
    text, finish = stage.talk(1, first)
    assert finish is FinishReason.END
    assert text == "[base] Grüße, 旅人! Ünïcödé ‘…’ 🐉🧙‍♀️ é."


def test_turns_that_are_not_open_are_passed_over(stage: Stage) -> None:
    stage.begin(1, "Hello")
    stage.do(DropTurn(TurnId(1)), DropTurn(TurnId(1)), DropTurn(TurnId(77)))
    assert stage.backend.samplers[0].closed
    done = stage.step((1, 77), (chunk(1, "x"), chunk(77, "y")))
    assert (done.rows, done.prefilled, done.faults, done.n_decodes) == ((), (), (), 0)


def test_dropped_turn_leaves_its_kv_for_the_next(stage: Stage) -> None:
    stage.begin(1, "Hello")
    stage.do(DropTurn(TurnId(1)))
    kept = stage.backend.tokens(Slot(1))
    rest = prompt("And?")
    stage.do(begin_turn(2, slot=1, keep=len(kept), history=kept))
    first = stage.step(prefill=(PrefillChunk(TurnId(2), rest, True),))
    assert stage.backend.tokens(Slot(1)) == kept + rest
    assert stage.talk(2, first)[0] == "[base] I heard: And."


# --- slots extended between turns -----------------------------------------------------------------------------------


def parked(stage: Stage, line: str = "Hello") -> tuple[int, ...]:
    """A turn has been in slot 1; what the slot holds now."""
    stage.talk(1, stage.begin(1, line))
    return stage.backend.tokens(Slot(1))


def test_a_slot_is_extended_after_rows_and_chunks(stage: Stage) -> None:
    held, tail = parked(stage), (258, 10)
    first = stage.begin(2, "Hello")
    stage.do(begin_turn(3, slot=3))
    done = stage.step((2,), (chunk(3, "Bye"),), (ExtendSlot(Slot(1), len(held), tail),))
    assert [row.turn for row in (*first.rows, *done.rows)] == [2, 2, 3]
    assert done.extended == ((1, 2),)
    assert done.extend_ms > 0
    assert stage.backend.tokens(Slot(1)) == held + tail


def test_a_turn_in_an_extended_slot_says_what_it_would_in_a_fresh_one(stage: Stage, tmp_path: Path) -> None:
    stage.install(ADAPTER, tmp_path / "a")
    stage.talk(1, stage.begin(1, "Hello", voice=VOICE))
    held = stage.backend.tokens(Slot(1))
    tail = prompt("")[:6]  # up to the content of a line
    stage.step(extend=(ExtendSlot(Slot(1), len(held), tail),))
    stage.do(begin_turn(2, slot=1, keep=len(held + tail), history=held + tail, voice=VOICE))
    first = stage.step(prefill=(PrefillChunk(TurnId(2), prompt("Again")[6:], True),))
    assert stage.talk(2, first) == stage.talk(3, stage.begin(3, "Again", voice=VOICE))


def test_a_slot_that_holds_another_number_of_tokens_is_left_as_it_is(stage: Stage) -> None:
    held = parked(stage)
    assert stage.step(extend=(ExtendSlot(Slot(1), len(held) - 1, (1, 2)), ExtendSlot(Slot(0), 1, (1,)))).extended == ((1, 0), (0, 0))
    assert stage.backend.tokens(Slot(1)) == held


def test_a_fault_while_a_slot_is_extended_is_cut_away_and_harms_no_row(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    held, small = parked(stage), EngineLoop(stage.backend, stage.results.append, prefill_chunk=4)
    stage.begin(2, "Hello")
    prefill, chunks = stage.backend.prefill, []

    def second_fails(slot: Slot, tokens: Any, *, wants_logits: bool) -> None:
        prefill(slot, tokens, wants_logits=wants_logits)
        chunks.append(tuple(tokens))
        if len(chunks) == 2:
            raise WorldFailed("engine_failed", "llama_decode said no.")

    monkeypatch.setattr(stage.backend, "prefill", second_fails)
    small.handle(RunStep(extend=(ExtendSlot(Slot(1), len(held), tuple(range(10))),)))
    done = stage.results.pop()
    assert isinstance(done, StepDone)
    assert (done.extended, done.faults, chunks) == (((1, 0),), (), [(0, 1, 2, 3), (4, 5, 6, 7)])
    assert stage.backend.tokens(Slot(1)) == held
    assert len(stage.step((2,)).rows) == 1


def test_a_slot_in_which_a_turn_is_open_is_never_extended(stage: Stage) -> None:
    stage.begin(1, "Hello")
    with pytest.raises(OurBug):
        stage.step(extend=(ExtendSlot(Slot(1), stage.backend.n_tokens(Slot(1)), (1,)),))


def test_a_slot_is_not_extended_under_an_adapter_that_was_freed(stage: Stage, tmp_path: Path) -> None:
    stage.install(ADAPTER, tmp_path / "a")
    stage.talk(1, stage.begin(1, "Hello", voice=VOICE))
    stage.backend.free_adapter(ADAPTER)
    with pytest.raises(OurBug):
        stage.step(extend=(ExtendSlot(Slot(1), stage.backend.n_tokens(Slot(1)), (1,)),))


def test_cleared_slot_is_empty(stage: Stage) -> None:
    stage.begin(1, "Hello")
    stage.do(ClearSlot(Slot(1)), ClearSlot(Slot(0)))
    assert stage.backend.n_tokens(Slot(1)) == 0
    assert stage.step((1,)).rows == ()


def test_two_turns_in_one_slot_are_our_bug(stage: Stage) -> None:
    stage.begin(1, "Hello")
    with pytest.raises(OurBug):
        stage.do(begin_turn(2, slot=1))


def test_decoding_a_turn_that_has_drawn_nothing_is_our_bug(stage: Stage) -> None:
    stage.do(begin_turn(1, slot=1))
    with pytest.raises(OurBug):
        stage.step((1,))


def test_quit_is_remembered(stage: Stage) -> None:
    assert not stage.loop.quitting
    stage.do(Quit())
    assert stage.loop.quitting


# --- penalties ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "n_seen"),
    [
        (SamplingParams(), 0),
        (SamplingParams(repeat_penalty=1.1, repeat_last_n=3), 6),  # three of the history, three of the chunk
        (SamplingParams(presence_penalty=0.5, repeat_last_n=0), 0),
        (SamplingParams(dry_multiplier=0.8), None),
        (SamplingParams(dry_multiplier=0.8, dry_last_n=2), 4),
        (SamplingParams(frequency_penalty=0.1, repeat_last_n=-1), None),
    ],
)
def test_penalties_see_as_much_of_the_prompt_as_they_look_back_on(stage: Stage, sampling: SamplingParams, n_seen: int | None) -> None:
    stage.begin(1, "Hello")
    stage.do(DropTurn(TurnId(1)))
    history, line = stage.backend.tokens(Slot(1)), prompt("And?")
    stage.do(begin_turn(2, slot=1, keep=len(history), history=history, sampling=sampling))
    stage.step(prefill=(PrefillChunk(TurnId(2), line, False),))
    accepted = tuple(stage.backend.samplers[-1].accepted)
    whole = history + line
    assert accepted == (whole if n_seen is None else history[len(history) - n_seen // 2 :] + line[len(line) - n_seen // 2 :])


# --- faults -------------------------------------------------------------------------------------------------------


def test_sampler_fault_ends_its_turn_and_no_other(stage: Stage) -> None:
    stage.begin(1, "fake:fault")
    stage.begin(2, "Hello")
    while not (done := stage.step((1, 2))).faults:
        pass
    assert [fault.turn for fault in done.faults] == [1]
    assert done.faults[0].code == "grammar_error"
    assert [row.turn for row in done.rows] == [2]
    assert [sampler.closed for sampler in stage.backend.samplers] == [True, False]
    assert stage.talk(2, stage.step((2,)))[1] is FinishReason.END


def test_bad_grammar_is_reported_at_the_begin_and_leaves_what_was_kept(stage: Stage) -> None:
    stage.begin(1, "Hello")
    stage.do(DropTurn(TurnId(1)))
    kept = stage.backend.tokens(Slot(1))[:9]
    stage.do(begin_turn(2, slot=1, keep=9, history=kept, sampling=SamplingParams(grammar="nonsense")))
    fault = stage.results.pop()
    assert isinstance(fault, TurnFaulted)
    assert (fault.turn, fault.code) == (2, "bad_grammar")
    assert stage.backend.tokens(Slot(1)) == kept
    assert stage.step(prefill=(chunk(2, "x"),)).prefilled == ()


def test_chunk_that_does_not_fit_ends_its_turn_and_keeps_what_is_there(stage: Stage) -> None:
    stage.do(begin_turn(1, slot=1), begin_turn(2, slot=2))
    fill = PrefillChunk(TurnId(1), (65,) * 250, False)
    stage.step(prefill=(fill, fill))
    done = stage.step(prefill=(fill, chunk(2, "Hello")))
    assert [(fault.turn, fault.code) for fault in done.faults] == [(1, "context_full")]
    assert [turn for turn, _ in done.prefilled] == [2]
    assert stage.backend.n_tokens(Slot(1)) == 500


class FailingBackend(WatchedBackend):
    """Its next decode or prefill appends half of what it should, then fails as a world that does not hold."""

    failing = False

    def decode(self, rows: Any) -> Any:
        if self.failing:
            self.failing = False
            super().decode(rows[:1])
            raise WorldFailed("engine_failed", "llama_decode returned 1.")
        return super().decode(rows)

    def prefill(self, slot: Slot, tokens: Any, *, wants_logits: bool) -> None:
        if self.failing:
            self.failing = False
            super().prefill(slot, tokens[:2], wants_logits=False)
            raise WorldFailed("engine_failed", "llama_decode returned 1.")
        super().prefill(slot, tokens, wants_logits=wants_logits)


def test_decode_that_fails_half_way_ends_its_rows_and_leaves_the_kv_that_was_reported() -> None:
    backend = FailingBackend()
    stage = Stage(backend)
    stage.begin(1, "Hello")
    stage.begin(2, "Hello")
    held = [backend.tokens(Slot(slot)) for slot in (1, 2)]
    backend.failing = True
    done = stage.step((1, 2))
    assert [fault.turn for fault in done.faults] == [1, 2]
    assert (done.rows, done.n_decodes) == ((), 0)
    assert [backend.tokens(Slot(slot)) for slot in (1, 2)] == held
    assert stage.talk(3, stage.begin(3, "Hello"))[1] is FinishReason.END


def test_prefill_that_fails_half_way_leaves_the_kv_that_was_reported() -> None:
    backend = FailingBackend()
    stage = Stage(backend)
    stage.do(begin_turn(1, slot=1))
    stage.step(prefill=(chunk(1, "Hello", last=False),))
    backend.failing = True
    assert [fault.code for fault in stage.step(prefill=(chunk(1, "Hello"),)).faults] == ["engine_failed"]
    assert backend.tokens(Slot(1)) == prompt("Hello")


def forgetful() -> WatchedBackend:
    """With a memory that cannot be cut anywhere but at its start, as recurrent models have."""
    return WatchedBackend(replace(SETTINGS, fake_can_cut=False))


def test_prefix_that_the_memory_could_not_keep_is_prefilled_again() -> None:
    backend = forgetful()
    stage = Stage(backend)
    stage.begin(1, "A rather long line to begin with")
    stage.do(DropTurn(TurnId(1)))
    kept = backend.tokens(Slot(1))[:30]
    stage.do(begin_turn(2, slot=1, keep=30, history=kept))
    assert stage.results == [TurnRefilled(TurnId(2), 30)]
    assert backend.tokens(Slot(1)) == kept


def test_prefix_that_is_lost_without_a_history_is_a_fault() -> None:
    backend = forgetful()
    stage = Stage(backend)
    stage.begin(1, "A rather long line to begin with")
    stage.do(DropTurn(TurnId(1)), begin_turn(2, slot=1, keep=30))
    fault = stage.results.pop()
    assert isinstance(fault, TurnFaulted)
    assert fault.code == "kv_lost"
    assert backend.samplers[-1].closed


def test_our_bug_passes_through(stage: Stage) -> None:
    stage.begin(1, "fake:bug")
    with pytest.raises(OurBug):
        stage.talk(1, stage.step((1,)))


# --- adapters -----------------------------------------------------------------------------------------------------


class GatedBackend(WatchedBackend):
    """Reads adapters only when the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def prepare_adapter(self, key: AdapterKey, path: str) -> Any:
        assert self.gate.wait(10)
        return super().prepare_adapter(key, path)


def load(stage: Stage, key: AdapterKey, path: Path, content: bytes = b"GGUF") -> Any:
    path.write_bytes(content)
    stage.do(LoadAdapter(key, str(path)))
    stage.loop.settle(block=True)
    return stage.results.pop()


def test_steps_go_on_while_an_adapter_is_read(tmp_path: Path) -> None:
    backend = GatedBackend()
    stage = Stage(backend)
    (tmp_path / "a").write_bytes(b"GGUF")
    stage.do(LoadAdapter(ADAPTER, str(tmp_path / "a")))
    assert stage.talk(1, stage.begin(1, "Hello"))[1] is FinishReason.END
    stage.loop.settle()
    assert stage.results == []
    backend.gate.set()
    stage.loop.settle(block=True)
    (loaded,) = stage.results
    assert isinstance(loaded, AdapterLoaded)
    assert (loaded.key, loaded.bytes_resident, loaded.rank) == (ADAPTER, 4, 0)
    first = stage.begin(2, "Hello", voice=VOICE)
    assert stage.talk(2, first)[0] == "[aaaaaa] I heard: Hello."


def test_finished_load_wakes_the_loop(stage: Stage, tmp_path: Path) -> None:
    woken = threading.Event()
    stage.loop = EngineLoop(stage.backend, stage.results.append, woken.set)
    (tmp_path / "a").write_bytes(b"GGUF")
    stage.do(LoadAdapter(ADAPTER, str(tmp_path / "a")))
    assert woken.wait(10)
    stage.loop.settle()
    assert isinstance(stage.results.pop(), AdapterLoaded)


def test_loading_what_is_resident_is_answered_at_once(stage: Stage, tmp_path: Path) -> None:
    loaded = load(stage, ADAPTER, tmp_path / "a")
    stage.do(LoadAdapter(ADAPTER, "wherever"))
    assert stage.results == [loaded]


def test_adapter_is_refused_with_code_and_hint_and_the_next_one_loads(stage: Stage, tmp_path: Path) -> None:
    refused = load(stage, ADAPTER, tmp_path / "a", b"BAD")
    assert isinstance(refused, AdapterRefused)
    assert (refused.key, refused.code) == (ADAPTER, "adapter_unreadable")
    assert refused.message
    assert refused.hint
    assert isinstance(load(stage, ADAPTER, tmp_path / "a"), AdapterLoaded)


class OddBackend(WatchedBackend):
    error: Exception = Exception()

    def prepare_adapter(self, key: AdapterKey, path: str) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FileNotFoundError(2, "No such file"), "adapter_missing"),
        (PermissionError(13, "Permission denied"), "adapter_unreadable"),
        (MemoryError(), "internal"),
        (ZeroDivisionError("surprise"), "internal"),
        (OurBug("internal", "A broken invariant."), "internal"),
    ],
)
def test_whatever_reading_an_adapter_raises_becomes_a_refusal(error: Exception, code: str) -> None:
    backend = OddBackend()
    backend.error = error
    stage = Stage(backend)
    stage.do(LoadAdapter(ADAPTER, "voice.gguf"))
    stage.loop.settle(block=True)
    assert [(result.key, result.code) for result in stage.results if isinstance(result, AdapterRefused)] == [(ADAPTER, code)]


def test_adapter_past_the_limit_is_refused_and_those_there_stay(tmp_path: Path) -> None:
    stage = Stage(WatchedBackend(type(SETTINGS)(model="fake", max_adapters=1)))
    assert isinstance(load(stage, ADAPTER, tmp_path / "a"), AdapterLoaded)
    assert load(stage, OTHER_ADAPTER, tmp_path / "b").code == "adapter_limit"
    stage.do(FreeAdapter(ADAPTER))
    assert isinstance(load(stage, OTHER_ADAPTER, tmp_path / "b"), AdapterLoaded)


def test_freeing_twice_or_what_never_was_is_harmless(stage: Stage, tmp_path: Path) -> None:
    load(stage, ADAPTER, tmp_path / "a")
    stage.do(FreeAdapter(ADAPTER), FreeAdapter(ADAPTER), FreeAdapter(OTHER_ADAPTER))
    assert stage.backend.statistics()["adapters"] == 0


def test_freeing_an_adapter_under_a_speaking_turn_is_our_bug(stage: Stage, tmp_path: Path) -> None:
    load(stage, ADAPTER, tmp_path / "a")
    stage.begin(1, "Hello", voice=VOICE)
    with pytest.raises(OurBug):
        stage.do(FreeAdapter(ADAPTER))


def test_a_voice_is_begun_only_when_all_its_adapters_are_there(stage: Stage, tmp_path: Path) -> None:
    load(stage, ADAPTER, tmp_path / "a")
    with pytest.raises(OurBug, match="not installed"):
        stage.do(begin_turn(1, slot=0, voice=VOICE + OTHER_VOICE))


def test_no_adapter_of_a_voice_is_freed_while_it_speaks(stage: Stage, tmp_path: Path) -> None:
    load(stage, ADAPTER, tmp_path / "a")
    load(stage, OTHER_ADAPTER, tmp_path / "b")
    first = stage.begin(1, "Hello", voice=VOICE + OTHER_VOICE)
    for key in (ADAPTER, OTHER_ADAPTER):
        with pytest.raises(OurBug, match="while a turn speaks"):
            stage.do(FreeAdapter(key))
    assert stage.talk(1, first)[0] == "[aaaaaa+bbbbbb] I heard: Hello."
    stage.do(FreeAdapter(OTHER_ADAPTER))
    assert stage.backend.statistics()["adapters"] == 1


def test_every_step_is_answered_once(stage: Stage) -> None:
    stage.begin(1, "fake:fault")
    for _ in range(6):
        assert isinstance(stage.step((1,)), StepDone)
    assert stage.results == []
