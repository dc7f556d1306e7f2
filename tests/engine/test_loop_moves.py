"""The engine loop on the fake backend: turns that are paused, KV that is stashed, fetched, copied, and what becomes of orders that miss."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from personae.engine.batch import (
    BeginTurn,
    ClearSlot,
    CopySlot,
    DropStash,
    DropTurn,
    ExtendSlot,
    FetchStash,
    FreeAdapter,
    PauseTurn,
    PrefillChunk,
    ResumeTurn,
    SlotStashed,
    StashSlot,
    TurnFaulted,
    TurnRefilled,
)
from personae.errors import AskedWrong, OurBug, WorldFailed
from personae.types import AdapterUse, FinishReason, Limits, ReplyRules, SamplingParams, Slot, Stash, TurnId, Voice
from tests.engine.stage import ADAPTER, OTHER_ADAPTER, OTHER_VOICE, SETTINGS, VOICE, Stage, WatchedBackend, begin_turn, chunk, prompt

T1, T2, T77 = TurnId(1), TurnId(2), TurnId(77)
S0, S1, S2, S3 = map(Slot, range(4))
STASH, NOWHERE = Stash(5), Stash(6)
HELLO = prompt("Hello")
WHOLE_MEMORY = replace(SETTINGS, fake_can_cut=False)


def said(stage: Stage, turn: int, n: int) -> str:
    """The text of n more steps of a turn."""
    return "".join(piece.text for _ in range(n) for row in stage.step((turn,)).rows for piece in row.pieces)


def paused(stage: Stage, n: int = 6, **more: Any) -> tuple[str, tuple[int, ...]]:
    """Turn 1 has said n + 1 tokens from slot 1 and is paused: (its text so far, what its slot holds)."""
    first = stage.begin(1, "Hello", **more)
    text = "".join(piece.text for piece in first.rows[0].pieces) + said(stage, 1, n)
    stage.do(PauseTurn(T1))
    return text, stage.backend.tokens(S1)


# --- pause and resume ---------------------------------------------------------------------------------------------


def test_a_paused_turn_keeps_its_text_and_gives_up_its_slot(stage: Stage) -> None:
    text, held = paused(stage)
    assert stage.talk(2, stage.begin(2, "Bye", slot=1)) == ("[base] I heard: Bye.", FinishReason.END)
    stage.do(ResumeTurn(T1, S3, 0))
    done = stage.step(prefill=(PrefillChunk(T1, held, False),))
    assert (done.prefilled, done.rows) == (((1, len(held)),), ())
    rest, finish = stage.talk(1, stage.step((1,)))
    assert (text + rest, finish) == ("[base] I heard: Hello.", FinishReason.END)


def test_a_held_back_stop_string_is_completed_after_a_pause(stage: Stage) -> None:
    stage.begin(1, "fake:say:One. S|TOP. Two.", rules=ReplyRules(stop=("S|TOP",)))
    text = "O" + said(stage, 1, len("ne. S|T"))
    held = stage.backend.tokens(S1)
    stage.do(PauseTurn(T1), ResumeTurn(T1, S1, len(held), held))
    rest, finish = stage.talk(1, stage.step((1,)))
    assert (text + rest, finish) == ("One.", FinishReason.STOP)


def test_a_turn_paused_before_its_first_token_is_prefilled_on(stage: Stage) -> None:
    stage.do(begin_turn(1, slot=1))
    stage.step(prefill=(PrefillChunk(T1, HELLO[:5], False),))
    stage.do(PauseTurn(T1), ResumeTurn(T1, S1, 5, HELLO[:5]))
    first = stage.step(prefill=(PrefillChunk(T1, HELLO[5:], True),))
    assert stage.talk(1, first)[0] == "[base] I heard: Hello."


def test_a_paused_turn_can_be_dropped(stage: Stage) -> None:
    paused(stage)
    stage.do(DropTurn(T1), ResumeTurn(T1, S1, 0))
    assert stage.backend.samplers[0].closed
    assert stage.talk(2, stage.begin(2, "Bye", slot=1))[1] is FinishReason.END


def test_pausing_or_resuming_what_is_not_open_is_harmless(stage: Stage) -> None:
    stage.do(PauseTurn(T77), ResumeTurn(T77, S1, 9, HELLO[:9]))
    assert (stage.results, stage.backend.n_tokens(S1)) == ([], 0)


def test_a_cleared_slot_takes_no_paused_turn_with_it(stage: Stage) -> None:
    _, held = paused(stage)
    stage.do(ClearSlot(S1), ResumeTurn(T1, S1, len(held), held))
    assert stage.results == [TurnRefilled(T1, len(held))]
    stage.results.clear()
    assert stage.step((1,)).rows


@pytest.mark.parametrize("sampling", [SamplingParams(dry_multiplier=0.8), SamplingParams(repeat_penalty=1.1, repeat_last_n=-1)])
@pytest.mark.parametrize("keep", [0, 3, 8])
def test_penalties_hear_every_token_once_however_often_it_is_prefilled(keep: int, sampling: SamplingParams, stage: Stage) -> None:
    stage.do(begin_turn(1, slot=1, sampling=sampling))
    stage.step(prefill=(PrefillChunk(T1, HELLO[:8], False),))
    stage.do(PauseTurn(T1), ResumeTurn(T1, S2, keep, HELLO[:keep]))
    stage.results.clear()
    stage.step(prefill=(PrefillChunk(T1, HELLO[keep:-4], False), PrefillChunk(T1, HELLO[-4:], True)))
    for _ in range(3):
        stage.step((1,))
    held = stage.backend.tokens(S2)
    stage.do(PauseTurn(T1), ResumeTurn(T1, S3, 0))
    stage.step(prefill=(PrefillChunk(T1, held, False),))
    stage.step((1,))
    assert tuple(stage.backend.samplers[0].accepted) == (*stage.backend.tokens(S3), *stage.backend.samplers[0].accepted[-1:])


def test_penalties_hear_a_prefix_that_was_found_while_the_turn_waited(stage: Stage) -> None:
    """Paused after 5 tokens of its prompt, it comes back on a copy that holds 12."""
    stage.do(begin_turn(2, slot=2))
    stage.step(prefill=(PrefillChunk(T2, HELLO, False),))
    stage.do(begin_turn(1, slot=1, sampling=SamplingParams(dry_multiplier=0.8)))
    stage.step(prefill=(PrefillChunk(T1, HELLO[:5], False),))
    stage.do(PauseTurn(T1), CopySlot(S2, S3, 12), ResumeTurn(T1, S3, 12, HELLO[:12]))
    assert stage.results == []
    stage.step(prefill=(PrefillChunk(T1, HELLO[12:], False),))
    assert tuple(stage.backend.samplers[-1].accepted) == HELLO


def test_a_resumed_turn_without_its_kv_and_its_history_faults_alone(stage: Stage) -> None:
    _, held = paused(stage)
    stage.begin(2, "Bye")
    stage.do(ResumeTurn(T1, S3, len(held)))
    fault = stage.results.pop()
    assert isinstance(fault, TurnFaulted)
    assert (fault.turn, fault.code) == (1, "kv_lost")
    assert stage.step((1, 2)).rows[0].turn == 2


def test_a_refill_that_fails_ends_its_turn_alone(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    _, held = paused(stage)

    def fails(*_: Any, **__: Any) -> None:
        raise WorldFailed("engine_failed", "llama_decode said no.")

    monkeypatch.setattr(stage.backend, "prefill", fails)
    stage.do(ResumeTurn(T1, S3, len(held), held))
    assert [(fault.turn, fault.code) for fault in stage.results if isinstance(fault, TurnFaulted)] == [(1, "engine_failed")]
    stage.results.clear()
    assert stage.backend.samplers[0].closed
    assert stage.step((1,)).rows == ()


@pytest.mark.parametrize("memory", [SETTINGS, WHOLE_MEMORY])
def test_a_memory_that_cannot_be_cut_is_refilled_and_says_so(memory: Any) -> None:
    stage = Stage(WatchedBackend(memory))
    text, held = paused(stage)
    stage.do(ResumeTurn(T1, S1, 10, held[:10]))
    assert stage.results == ([] if memory.fake_can_cut else [TurnRefilled(T1, 10)])
    stage.results.clear()
    stage.step(prefill=(PrefillChunk(T1, held[10:], False),))
    assert text + stage.talk(1, stage.step((1,)))[0] == "[base] I heard: Hello."


@pytest.mark.parametrize(
    "orders",
    [
        (ResumeTurn(T1, S1, 5),),  # it is not paused
        (PauseTurn(T1), ResumeTurn(T1, S2, 5)),  # where turn 2 is open
        (PauseTurn(T1), ResumeTurn(T1, S1, len(HELLO) + 1)),  # the token it drew last is in no KV
        (PauseTurn(T1), BeginTurn(T1, S3, 0, (), SamplingParams(), ReplyRules(), Limits())),
        (FetchStash(STASH, S1),),
        (CopySlot(S2, S1, 4),),
        (StashSlot(S1, STASH), StashSlot(S2, STASH)),
    ],
)
def test_orders_against_the_books_are_our_bug(orders: tuple[Any, ...], stage: Stage) -> None:
    stage.begin(1, "Hello")
    stage.begin(2, "Bye")
    with pytest.raises(OurBug):
        stage.do(*orders)


@pytest.mark.parametrize("pause", [True, False])
@pytest.mark.parametrize("chunk_of_it", [PrefillChunk(T1, HELLO[:4], False), chunk(1, "Hello")])
def test_a_step_that_names_a_turn_which_cannot_take_part_is_our_bug(chunk_of_it: PrefillChunk, pause: bool, stage: Stage) -> None:
    """Paused, or with all that it said in KV."""
    stage.begin(1, "Hello")
    stage.do(*[PauseTurn(T1)] * pause)
    with pytest.raises(OurBug):
        stage.step(prefill=(chunk_of_it,))


@pytest.mark.parametrize("n_missing", [1, 9])
def test_a_turn_that_is_not_whole_again_is_not_decoded(n_missing: int, stage: Stage) -> None:
    _, held = paused(stage)
    keep = len(held) - n_missing
    stage.do(ResumeTurn(T1, S1, keep, held[:keep]))
    with pytest.raises(OurBug, match="not prefilled"):
        stage.step((1,))


# --- stashes ------------------------------------------------------------------------------------------------------


def test_a_stash_brings_back_what_a_slot_held(stage: Stage) -> None:
    _, held = paused(stage)
    stage.do(StashSlot(S1, STASH))
    stashed = stage.results.pop()
    assert isinstance(stashed, SlotStashed)
    assert stashed == SlotStashed(STASH, len(held), stashed.n_bytes)
    assert stashed.n_bytes >= len(held) * stage.backend.card.kv_token_bytes
    assert stage.backend.tokens(S1) == held
    stage.do(ClearSlot(S1), FetchStash(STASH, S1), FetchStash(STASH, S3))
    assert stage.backend.tokens(S1) == stage.backend.tokens(S3) == held


def test_an_empty_slot_makes_no_stash(stage: Stage) -> None:
    stage.do(StashSlot(S1, STASH))
    assert stage.results.pop() == SlotStashed(STASH, 0, 0)
    stage.do(StashSlot(S1, STASH))  # the name is free
    assert stage.results.pop() == SlotStashed(STASH, 0, 0)


def test_a_stash_without_memory_for_it_is_no_stash(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    _, held = paused(stage)

    def no_memory(slot: Slot) -> bytes:
        raise MemoryError

    monkeypatch.setattr(stage.backend, "export", no_memory)
    stage.do(StashSlot(S1, STASH))
    assert stage.results.pop() == SlotStashed(STASH, 0, 0)
    assert stage.backend.tokens(S1) == held


@pytest.mark.parametrize("drop", [(), (DropStash(STASH), DropStash(STASH), DropStash(NOWHERE))])
def test_a_stash_that_is_not_there_leaves_the_slot_empty(drop: tuple[DropStash, ...], stage: Stage) -> None:
    _, held = paused(stage)
    if drop:
        stage.do(StashSlot(S1, STASH))
        stage.results.clear()
    stage.do(*drop, FetchStash(STASH, S1))
    assert (stage.backend.n_tokens(S1), stage.results) == (0, [])
    stage.do(ResumeTurn(T1, S1, len(held), held))
    assert stage.results.pop() == TurnRefilled(T1, len(held))
    assert stage.talk(1, stage.step((1,)))[1] is FinishReason.END


def test_a_stash_that_the_backend_does_not_take_leaves_the_slot_empty(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    paused(stage)
    stage.do(StashSlot(S1, STASH))
    stage.begin(2, "Bye")
    stage.do(DropTurn(T2))
    monkeypatch.setattr(stage.backend, "restore", lambda slot, blob: 3)
    stage.do(FetchStash(STASH, S2))
    assert stage.backend.n_tokens(S2) == 0


def test_a_fetched_slot_is_extended_under_its_own_adapter(stage: Stage, tmp_path: Path) -> None:
    stage.install(ADAPTER, tmp_path / "a")
    stage.talk(1, stage.begin(1, "Hello", voice=VOICE))
    held = stage.backend.tokens(S1)
    stage.do(StashSlot(S1, STASH), CopySlot(S1, S3, 7))
    stage.results.clear()
    stage.talk(2, stage.begin(2, "Bye"))
    stage.do(FetchStash(STASH, S2))
    done = stage.step(extend=(ExtendSlot(S2, len(held), (258, 10)), ExtendSlot(S3, 7, held[7:])))
    assert done.extended == ((2, 2), (3, len(held) - 7))
    stage.do(begin_turn(4, slot=2, keep=len(held) + 2, history=(*held, 258, 10), voice=VOICE))
    assert stage.talk(4, stage.step(prefill=(chunk(4, "Again"),)))[0] == "[aaaaaa] I heard: Again."


# --- copies -------------------------------------------------------------------------------------------------------


def test_a_head_is_copied_from_a_turn_at_work_that_goes_on(stage: Stage) -> None:
    first = stage.begin(1, "Hello")
    stage.do(CopySlot(S1, S3, 9))
    assert stage.backend.tokens(S3) == HELLO[:9]
    assert stage.talk(1, first) == ("[base] I heard: Hello.", FinishReason.END)


def test_more_than_the_source_holds_is_not_copied(stage: Stage) -> None:
    stage.begin(1, "Hello")
    stage.do(CopySlot(S1, S3, 999), CopySlot(S0, S2, 4))
    assert (stage.backend.tokens(S3), stage.backend.n_tokens(S2)) == (HELLO, 0)


def test_a_slot_copied_onto_itself_is_cut(stage: Stage) -> None:
    _, held = paused(stage)
    stage.do(CopySlot(S1, S1, 4))
    assert stage.backend.tokens(S1) == held[:4]


def test_a_memory_that_cannot_be_cut_copies_whole_sequences_only() -> None:
    stage = Stage(WatchedBackend(WHOLE_MEMORY))
    stage.begin(1, "Hello")
    stage.do(CopySlot(S1, S2, len(HELLO)), CopySlot(S1, S3, 9))
    assert (stage.backend.tokens(S2), stage.backend.tokens(S3)) == (HELLO, ())
    stage.do(begin_turn(2, slot=3, keep=9, history=HELLO[:9]))
    assert stage.results.pop() == TurnRefilled(T2, 9)


# --- adapters, limits, time ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [(), OTHER_VOICE, VOICE + OTHER_VOICE, (AdapterUse(ADAPTER, 0.5),)])
@pytest.mark.parametrize("orders", [(), (CopySlot(S1, S3, 9),), (StashSlot(S1, STASH), FetchStash(STASH, S3))])
def test_kv_of_one_voice_is_never_built_on_under_another(orders: tuple[Any, ...], other: Voice, stage: Stage, tmp_path: Path) -> None:
    for key in (ADAPTER, OTHER_ADAPTER):
        stage.install(key, tmp_path / key)
    stage.talk(1, stage.begin(1, "Hello", voice=VOICE))
    stage.do(*orders)
    with pytest.raises(OurBug, match="another voice"):
        stage.do(begin_turn(2, slot=3 if orders else 1, voice=other, keep=9, history=HELLO[:9]))


def test_an_adapter_may_be_freed_while_its_turn_is_paused(stage: Stage, tmp_path: Path) -> None:
    stage.install(ADAPTER, tmp_path / "a")
    _, held = paused(stage, voice=VOICE)
    stage.do(FreeAdapter(ADAPTER))
    stage.backend.free_adapter(ADAPTER)
    stage.install(ADAPTER, tmp_path / "a")
    stage.do(ResumeTurn(T1, S1, len(held), held))
    assert stage.step((1,)).rows


@pytest.mark.parametrize(("max_kv", "n_said"), [(0, 13), (len(HELLO) + 4, 5), (len(HELLO), 1), (1, 1), (9999, 13)])
def test_a_turn_ends_when_prompt_and_reply_fill_its_share_of_kv(max_kv: int, n_said: int, stage: Stage) -> None:
    stage.do(BeginTurn(T1, S1, 0, (), SamplingParams(), ReplyRules(), Limits(max_tokens=13, max_kv=max_kv)))
    done, n = stage.step(prefill=(chunk(1, "Hello"),)), 1
    while not done.rows[0].finish:
        done, n = stage.step((1,)), n + 1
    assert (n, done.rows[0].finish) == (n_said, FinishReason.LENGTH if n_said == 13 else FinishReason.CONTEXT)


def test_what_was_moved_since_the_step_before_is_in_the_next_ones_time(stage: Stage) -> None:
    paused(stage)
    stage.do(StashSlot(S1, STASH), ClearSlot(S1), FetchStash(STASH, S1), CopySlot(S1, S3, 4))
    stage.results.clear()
    assert stage.step().moved_ms > 0
    assert stage.step().moved_ms == 0


def test_a_grammar_refused_at_the_begin_leaves_room_for_the_next_turn(stage: Stage) -> None:
    stage.do(begin_turn(1, slot=1, sampling=SamplingParams(grammar="nonsense")))
    fault = stage.results.pop()
    assert isinstance(fault, TurnFaulted)
    assert AskedWrong(fault.code, fault.message).code == "bad_grammar"
    stage.do(ResumeTurn(T1, S1, 0), PauseTurn(T1))
    assert stage.talk(2, stage.begin(2, "Hello", slot=1))[1] is FinishReason.END
