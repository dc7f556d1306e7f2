"""What a slot holds can be cut, copied, carried away and brought back, exactly; and what does not fit leaves it usable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from personae.engine.batch import ClearSlot, DropTurn, PrefillChunk, TurnRefilled
from personae.engine.llama.backend import LlamaBackend
from personae.errors import AskedWrong, OurBug
from personae.types import FinishReason, Slot, TurnId
from tests.engine.llama.conftest import Start
from tests.engine.llama.house import Adapter, House, begin_turn, listen, listen_on, load, logits_of, prompt, speak
from tests.tiny import ARCHES, TinyModel, write_model
from tests.tiny.models import WINDOW
from tests.tiny.stock import stock_greedy

MODES = ("mixed", "grouped")
S0, S1, S2, S3 = map(Slot, range(4))


@pytest.fixture(params=MODES)
def backend(request: pytest.FixtureRequest, llama: TinyModel, llama_voices: dict[str, Adapter], start: Start) -> LlamaBackend:
    backend = start(llama.path, mode=request.param)
    load(backend, *llama_voices.values())
    return backend


# --- cut ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("keep", [1, 10, 45])
def test_a_slot_cut_and_filled_again_is_as_a_fresh_one(
    keep: int, arch: str, models: dict[str, TinyModel], all_voices: dict[str, dict[str, Adapter]], start: Start
) -> None:
    """But for rounding: the kept tokens were decoded in a batch of another size."""
    backend, voice = start(models[arch].path), all_voices[arch]["wide"]
    load(backend, voice)
    tokens = prompt()
    other = tokens[:keep] + prompt("x" * 40)
    listen(backend, 0, other, voice.at())
    assert backend.cut(S0, keep) == keep
    listen_on(backend, 0, tokens[keep:], voice.at())
    warm = logits_of(backend, 0)
    backend.bind(S1, voice.at())
    backend.prefill(S1, tokens[:keep], wants_logits=False)
    listen_on(backend, 1, tokens[keep:], voice.at())
    fresh = logits_of(backend, 1)
    assert np.abs(warm - fresh).max() < 2e-3 * np.abs(fresh).max()


def test_a_window_layer_forgets_nothing_that_a_cut_brings_back(models: dict[str, TinyModel], start: Start) -> None:
    """gemma3: after 440 tokens a cache of the window's size would have overwritten the 32 that the cut must leave to be seen."""
    backend = start(models["gemma3"].path, n_ctx=512)
    tokens = (prompt() * 3)[: WINDOW + 8]
    listen(backend, 0, tokens + prompt("y" * 400))
    assert backend.cut(S0, len(tokens) - 1) == len(tokens) - 1
    assert backend.card.can_cut
    first = listen_on(backend, 0, tokens[-1:])
    drawn, _ = speak(backend, {0: first}, 8)
    assert drawn[0] == stock_greedy(models["gemma3"].path, tokens, 8)


def test_a_copied_window_is_cut_only_where_it_is_whole(models: dict[str, TinyModel], start: Start) -> None:
    """A copy of gemma3's holds of its window layers what the next token sees. What a cut needs besides is not there, and it says so."""
    backend = start(models["gemma3"].path, n_ctx=256)
    tokens = (prompt() * 3)[: 3 * WINDOW]
    listen(backend, 0, tokens)
    backend.copy(S0, S1)
    assert [backend.cut(S1, keep) for keep in (len(tokens), len(tokens) - 1, len(tokens) - 2)] == [len(tokens), len(tokens) - 1, 0]
    backend.copy(S0, S1)
    backend.cut(S1, len(tokens) - 1)
    assert [listen_on(backend, 1, tokens[-1:])] == stock_greedy(models["gemma3"].path, tokens, 1)
    assert backend.cut(S0, 5) == 5  # the source is as it was


def test_a_window_longer_than_the_sequence_can_be_cut_anywhere(models: dict[str, TinyModel], start: Start) -> None:
    backend = start(models["gemma3"].path)
    tokens = prompt()[: WINDOW - 1]
    listen(backend, 0, tokens)
    backend.copy(S0, S1)
    assert backend.cut(S1, 3) == 3


def test_a_cut_takes_only_what_is_there(backend: LlamaBackend) -> None:
    assert backend.cut(S0, 5) == 0
    listen(backend, 0, prompt("abc"))
    assert [backend.cut(S0, keep) for keep in (9, 3, 2, 0, 0)] == [3, 3, 2, 0, 0]


def test_a_slot_that_was_cut_has_no_logits(backend: LlamaBackend) -> None:
    listen(backend, 0, prompt("abc"))
    backend.cut(S0, 2)
    sampler = backend.new_sampler(begin_turn(1, 0).sampling)
    with pytest.raises(OurBug, match="no logits"):
        backend.sample(S0, sampler)
    sampler.close()


# --- copy, export, restore ----------------------------------------------------------------------------------------


def say_next(backend: LlamaBackend, slot: int, token: int = 50) -> np.ndarray:  # type: ignore[type-arg]
    backend.decode([(Slot(slot), token)])
    return logits_of(backend, slot)


@pytest.mark.parametrize("arch", ARCHES)
def test_a_copy_says_the_same_and_is_a_slot_of_its_own(
    arch: str, models: dict[str, TinyModel], all_voices: dict[str, dict[str, Adapter]], start: Start
) -> None:
    backend, voice = start(models[arch].path), all_voices[arch]["wide"]
    load(backend, voice)
    listen(backend, 0, prompt(), voice.at())
    listen(backend, 2, prompt("something else"))
    backend.copy(S0, S2)
    assert backend.n_tokens(S2) == backend.n_tokens(S0) == len(prompt())
    first = say_next(backend, 0)
    say_next(backend, 0, 60)
    assert np.array_equal(say_next(backend, 2), first)


Act = Callable[[LlamaBackend], object]


@pytest.mark.parametrize(
    "act",
    [
        lambda backend: backend.cut(S0, 0),
        lambda backend: listen(backend, 0, prompt("all of this is new and long enough to overwrite it")),
        lambda backend: backend.restore(S0, backend.export(S1)),
        lambda backend: backend.copy(S1, S0),
        lambda backend: backend.restore(S3, backend.export(S2)),
        lambda backend: backend.decode([(S1, 40), (S3, 41)]),  # swaps
    ],
)
def test_a_copy_is_made_when_it_is_asked_for(act: Act, backend: LlamaBackend) -> None:
    """Whatever happens to the source before the next decode."""
    listen(backend, 1, prompt("something else"))
    listen(backend, 3, prompt("and a third"))
    listen(backend, 0, prompt())
    wanted = say_next(backend, 0)
    backend.cut(S0, len(prompt()))
    backend.copy(S0, S2)
    act(backend)
    assert np.array_equal(say_next(backend, 2), wanted)


def test_a_copy_onto_itself_changes_nothing(backend: LlamaBackend) -> None:
    listen(backend, 0, prompt())
    wanted = say_next(backend, 0)
    backend.cut(S0, len(prompt()))
    backend.copy(S0, S0)
    assert np.array_equal(say_next(backend, 0), wanted)


def test_an_empty_slot_can_be_copied_and_carried_away(backend: LlamaBackend) -> None:
    listen(backend, 0, prompt())
    backend.copy(S1, S0)
    assert backend.n_tokens(S0) == 0
    listen(backend, 0, prompt())
    assert backend.restore(S0, backend.export(S1)) == 0
    fresh = listen(backend, 0, prompt())
    assert [fresh] == stock_greedy(Path(backend._settings.model), prompt(), 1)


@pytest.mark.parametrize("arch", ARCHES)
def test_a_restored_slot_speaks_as_if_nothing_had_happened(
    arch: str, models: dict[str, TinyModel], all_voices: dict[str, dict[str, Adapter]], start: Start
) -> None:
    voice = all_voices[arch]["some"]
    first, second = start(models[arch].path), start(models[arch].path)  # a game that was quit and started again
    for backend in (first, second):
        load(backend, voice)
    listen(first, 2, prompt(), voice.at())
    blob = first.export(S2)
    wanted = say_next(first, 2)
    second.bind(S1, voice.at())
    assert second.restore(S1, blob) == len(prompt())
    assert second.n_tokens(S1) == len(prompt())
    assert np.array_equal(say_next(second, 1), wanted)


def spoilt(blob: bytes) -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    flipped = bytearray(blob)
    flipped[len(blob) // 2] ^= 1
    return {
        "nothing": b"",
        "one_byte": b"x",
        "only_the_front": blob[:20],
        "half": blob[: len(blob) // 2],
        "first_position_missing": blob[:20] + (99).to_bytes(4, "little") + blob[24:],
        "last_byte_missing": blob[:-1],
        "one_byte_more": blob + b"\0",
        "zeros": bytes(len(blob)),
        "noise": rng.integers(0, 256, len(blob), np.uint8).tobytes(),
        "noise_behind_the_front": blob[:24] + rng.integers(0, 256, len(blob) - 24, np.uint8).tobytes(),
        "another_length": (3).to_bytes(4, "little") + blob[4:],
        "a_bit_flipped": bytes(flipped),
    }


def test_garbage_is_not_restored_and_the_slot_can_be_used(backend: LlamaBackend) -> None:
    listen(backend, 0, prompt())
    good = backend.export(S0)
    for name, blob in spoilt(good).items():
        assert backend.seal(blob) != backend.seal(good), name
        if name == "a_bit_flipped":  # of a number among the others: the seal alone can tell
            continue
        listen(backend, 1, prompt("what was there before"))
        assert (backend.restore(S1, blob), backend.n_tokens(S1)) == (0, 0), name
        first = listen(backend, 1, prompt())
        assert [first] == stock_greedy(Path(backend._settings.model), prompt(), 1), name


def test_a_state_of_another_model_or_context_has_another_seal(models: dict[str, TinyModel], start: Start, tmp_path: Path) -> None:
    """llama.cpp itself would take the first: the shapes are the same, and only the weights differ."""
    home = start(models["llama"].path)
    foreign = {
        "same_shapes": start(write_model(tmp_path / "other.gguf", seed=1).path),
        "other_architecture": start(models["gemma3"].path),
        "other_heads": start(models["llama-tied"].path),
        "other_context": start(models["llama"].path, n_ctx=512),
    }
    for name, other in foreign.items():
        listen(other, 0, prompt())
        blob = other.export(S0)
        assert home.seal(blob) != other.seal(blob), name
        assert home.restore(S0, blob) == (len(prompt()) if name in ("same_shapes", "other_context") else 0), name
        assert [listen(home, 0, prompt())] == stock_greedy(models["llama"].path, prompt(), 1), name


# --- full, cancelled ----------------------------------------------------------------------------------------------


def test_a_full_slot_refuses_more_and_keeps_what_it_has(backend: LlamaBackend, llama: TinyModel) -> None:
    n_ctx = backend.card.n_ctx
    tokens = (prompt() * 9)[:n_ctx]
    for at in range(0, n_ctx - 4, 31):
        backend.prefill(S0, tokens[at : min(at + 31, n_ctx - 4)], wants_logits=False)
    listen(backend, 1, prompt())
    with pytest.raises(AskedWrong) as full:
        backend.prefill(S0, tokens[:5], wants_logits=True)
    assert (full.value.code, backend.n_tokens(S0)) == ("context_full", n_ctx - 4)
    first = listen_on(backend, 0, tokens[n_ctx - 4 :])
    assert backend.n_tokens(S0) == n_ctx
    assert first == stock_greedy(llama.path, tokens, 1)[0]
    assert listen(backend, 1, prompt()) == stock_greedy(llama.path, prompt(), 1)[0]


@pytest.mark.parametrize("n", [0, 65])
def test_a_chunk_that_is_empty_or_too_long_is_our_bug(n: int, backend: LlamaBackend) -> None:
    with pytest.raises(OurBug, match="chunk"):
        backend.prefill(S0, [5] * n, wants_logits=True)
    assert backend.n_tokens(S0) == 0


@pytest.mark.parametrize("mode", MODES)
def test_a_turn_that_fills_its_slot_ends_and_another_finishes(mode: str, llama: TinyModel, start: Start) -> None:
    house = House(start(llama.path, mode=mode, n_ctx=256))
    n_ctx = house.backend.card.n_ctx
    tokens = (prompt() * 9)[: n_ctx - 6]
    house.do(begin_turn(1, 0))
    chunks = [tokens[at : at + 50] for at in range(0, len(tokens), 50)]
    for chunk in chunks:
        done = house.step(prefill=[PrefillChunk(TurnId(1), tuple(chunk), last=chunk is chunks[-1])])
    (row,) = done.rows
    drawn = {1: [row.token], 2: [house.begin(2, 1, prompt(), max_tokens=20).rows[0].token]}
    finished = {}
    while len(finished) < 2:
        for row in house.step(1, 2).rows:
            drawn[int(row.turn)].append(row.token)
            if row.finish:
                finished[int(row.turn)] = row.finish
    assert finished == {1: FinishReason.CONTEXT, 2: FinishReason.LENGTH}
    assert drawn[1] == stock_greedy(llama.path, tokens, 7)
    assert drawn[2] == stock_greedy(llama.path, prompt(), 20)


@pytest.mark.parametrize("keep", [0, 20])
@pytest.mark.parametrize("mode", MODES)
def test_a_turn_after_one_cancelled_in_mid_prefill_is_as_fresh(
    keep: int, mode: str, llama: TinyModel, llama_voices: dict[str, Adapter], start: Start
) -> None:
    house, one = House(start(llama.path, mode=mode)), llama_voices["wide"]
    house.load(one)
    tokens = prompt()
    house.do(begin_turn(1, 0, one.at()))
    house.step(prefill=[PrefillChunk(TurnId(1), tuple(tokens[:20]), last=False)])
    house.step(prefill=[PrefillChunk(TurnId(1), tuple(prompt("never mind")), last=False)])
    house.do(DropTurn(TurnId(1)))
    (row,) = house.begin(2, 0, tokens[keep:], one.at(), keep=keep, history=tokens[:keep], max_tokens=12).rows
    drawn = [row.token]
    while len(drawn) < 12:
        drawn.append(house.step(2).rows[0].token)
    assert drawn == stock_greedy(llama.path, tokens, 12, one.path)


def test_a_cleared_slot_holds_nothing(llama: TinyModel, start: Start) -> None:
    house = House(start(llama.path))
    house.begin(1, 0, prompt())
    house.do(ClearSlot(S0))
    assert house.backend.n_tokens(S0) == 0
    assert house.step(1).rows == ()


def test_what_the_slot_lost_is_prefilled_again_from_history(llama: TinyModel, start: Start) -> None:
    house = House(start(llama.path))
    tokens = prompt()
    house.do(begin_turn(1, 3, keep=30, history=tokens[:30], max_tokens=1))
    assert house.results.pop() == TurnRefilled(TurnId(1), 30)
    (row,) = house.step(prefill=[PrefillChunk(TurnId(1), tuple(tokens[30:]), last=True)]).rows
    assert [row.token] == stock_greedy(llama.path, tokens, 1)
