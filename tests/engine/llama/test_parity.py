"""What the backend says under each adapter is what llama.cpp says under that adapter alone, in any company and in both modes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from personae.engine.llama.backend import LlamaBackend
from personae.types import MixMode, Slot, Voice
from tests.engine.llama.conftest import Start
from tests.engine.llama.house import LINE, Adapter, listen, load, logits_of, prompt, speak
from tests.tiny import ARCHES, TinyModel
from tests.tiny.stock import stock_greedy, stock_logits

N_DRAWN = 24
CAST = {0: "wide", 1: "narrow", 2: "some", 3: None}  # slot -> voice
LINES = {0: LINE, 1: "Who goes there?", 2: "A room for the night, and be quick about it.", 3: LINE}
MODES = ("mixed", "grouped")
# Of the largest logit. Most rows agree within 1e-6; where K or V fall on the other side of a binary16 boundary, the KV's type, up to
# 1.1e-3 was seen. A wrong adapter at one matrix makes 1e-1.
WITHIN = 2e-3


def voice_at(voices: Mapping[str, Adapter], name: str | None) -> Voice:
    return voices[name].at() if name else ()


def path_of(voices: Mapping[str, Adapter], name: str | None) -> str | None:
    return str(voices[name].path) if name else None


def listen_all(backend: LlamaBackend, voices: Mapping[str, Adapter], cast: Mapping[int, str | None]) -> dict[int, int]:
    return {slot: listen(backend, slot, prompt(LINES[slot % 4]), voice_at(voices, name)) for slot, name in cast.items()}


def relative(got: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


def assert_as_stock(
    model: TinyModel,
    voices: Mapping[str, Adapter],
    cast: Mapping[int, str | None],
    drawn: Mapping[int, list[int]],
    seen: Mapping[int, list[NDArray[np.float32]]],
) -> None:
    for slot, name in cast.items():
        start, path = prompt(LINES[slot % 4]), path_of(voices, name)
        assert drawn[slot] == stock_greedy(model.path, start, len(drawn[slot]), path), (slot, name)
        wanted = stock_logits(model.path, start + drawn[slot][:-1], path)[len(start) :]
        assert max(map(relative, seen[slot], wanted)) < WITHIN, (slot, name)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_four_voices_at_once_are_each_as_alone(mode: str, threads: int, model: TinyModel, voices: dict[str, Adapter], start: Start) -> None:
    backend = start(model.path, mode=mode, threads=threads)
    load(backend, *voices.values())
    drawn, seen = speak(backend, listen_all(backend, voices, CAST), N_DRAWN)
    assert_as_stock(model, voices, CAST, drawn, seen)
    assert len({tuple(tokens) for tokens in drawn.values()}) == 4


@pytest.mark.parametrize("mode", MODES)
def test_a_step_of_four_voices_is_one_decode_when_mixed_and_four_when_grouped(
    mode: str, llama: TinyModel, llama_voices: dict[str, Adapter], start: Start
) -> None:
    backend = start(llama.path, mode=mode)
    load(backend, *llama_voices.values())
    firsts = listen_all(backend, llama_voices, CAST)
    report = backend.decode([(Slot(slot), token) for slot, token in firsts.items()])
    assert (report.n_decodes, report.n_voices) == ((1, 4) if mode == "mixed" else (4, 1))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("threads", [1, 2])
def test_prompts_of_one_length_are_read_together_each_under_its_own_voice(
    threads: int, mode: str, model: TinyModel, voices: dict[str, Adapter], start: Start
) -> None:
    backend = start(model.path, mode=mode, threads=threads)
    load(backend, *voices.values())
    heard = {slot: prompt(LINES[slot] * 3)[:17] for slot in CAST}
    for slot, name in CAST.items():
        backend.bind(Slot(slot), voice_at(voices, name))
    for part, last in ((slice(0, 9), False), (slice(9, 13), False), (slice(13, 17), True)):
        backend.prefill_alike([(Slot(slot), heard[slot][part]) for slot in (2, 0, 3, 1)], wants_logits=last)
    firsts = {slot: logits_of(backend, slot) for slot in CAST}
    drawn, seen = speak(backend, {slot: int(row.argmax()) for slot, row in firsts.items()}, 8)
    for slot, name in CAST.items():
        path = path_of(voices, name)
        assert drawn[slot] == stock_greedy(model.path, heard[slot], 8, path), (slot, name)
        wanted = stock_logits(model.path, heard[slot] + drawn[slot][:-1], path)[len(heard[slot]) - 1 :]
        assert max(map(relative, [firsts[slot], *seen[slot]], wanted)) < WITHIN, (slot, name)


def test_only_neighbours_share_a_decode_when_prompts_are_read(
    llama: TinyModel, llama_voices: dict[str, Adapter], start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = start(llama.path, mode="mixed")
    decoded: list[int] = []
    decode = backend._mixing.decode
    monkeypatch.setattr(backend._mixing, "decode", lambda rows, voices: decoded.append(len(rows)) or decode(rows, voices))
    backend.prefill_alike([(Slot(slot), [5, 6, 7]) for slot in (0, 1, 3)], wants_logits=True)
    assert decoded == [6, 3]
    assert {slot: backend.n_tokens(Slot(slot)) for slot in range(4)} == {0: 3, 1: 3, 2: 0, 3: 3}


@pytest.mark.parametrize("n_rows", [1, 2, 3, 5])
@pytest.mark.parametrize("threads", [1, 2])
def test_any_number_of_rows_is_as_stock(
    threads: int, n_rows: int, llama: TinyModel, llama_voices: dict[str, Adapter], start: Start
) -> None:
    """With two threads 2 rows go round (`whole`), 1, 3 and 5 do not (`halves`)."""
    backend = start(llama.path, mode="mixed", threads=threads, n_slots=5)
    load(backend, *llama_voices.values())
    cast = dict(enumerate(["some", "wide", None, "narrow", "wide"][:n_rows]))
    drawn, seen = speak(backend, listen_all(backend, llama_voices, cast), 12)
    assert_as_stock(llama, llama_voices, cast, drawn, seen)


@pytest.mark.parametrize("arch", ARCHES)
def test_rows_that_come_and_go_change_nothing(
    arch: str, models: dict[str, TinyModel], all_voices: dict[str, dict[str, Adapter]], start: Start
) -> None:
    """Every number of rows from 4 down to 1 in one reply: graphs are laid out anew and reused in between."""
    model, voices = models[arch], all_voices[arch]
    backend = start(model.path, mode="mixed", threads=2)
    load(backend, *voices.values())
    drawn = {slot: [token] for slot, token in listen_all(backend, voices, CAST).items()}
    seen: dict[int, list[NDArray[np.float32]]] = {slot: [] for slot in CAST}
    for step in range(20):
        speaking = [slot for slot in CAST if step % (slot + 1) == 0]
        once, logits = speak(backend, {slot: drawn[slot][-1] for slot in speaking}, 2)
        for slot in speaking:
            drawn[slot].append(once[slot][1])
            seen[slot] += logits[slot]
    assert_as_stock(model, voices, CAST, drawn, seen)
    assert backend.statistics()["stream_swaps"] != 0


def test_gaps_between_speaking_slots_change_nothing(llama: TinyModel, llama_voices: dict[str, Adapter], start: Start) -> None:
    backend = start(llama.path, mode="mixed", n_slots=8)
    load(backend, *llama_voices.values())
    cast = {0: "wide", 3: "some", 4: None, 7: "narrow"}
    drawn, seen = speak(backend, listen_all(backend, llama_voices, cast), N_DRAWN)
    assert_as_stock(llama, llama_voices, cast, drawn, seen)
    assert backend.statistics()["stream_swaps"] != 0


def test_slots_that_fell_silent_in_the_gap_still_know_what_they_heard(
    llama: TinyModel, llama_voices: dict[str, Adapter], start: Start
) -> None:
    backend = start(llama.path, mode="mixed", n_slots=4)
    load(backend, *llama_voices.values())
    drawn, _ = speak(backend, listen_all(backend, llama_voices, CAST), 6)
    speak(backend, {slot: drawn[slot][-1] for slot in (0, 3)}, 6)  # slots 1 and 2 are moved out of the way
    later, _ = speak(backend, {slot: drawn[slot][-1] for slot in (1, 2)}, 6)
    for slot in (1, 2):
        whole = drawn[slot] + later[slot][1:]
        assert whole == stock_greedy(llama.path, prompt(LINES[slot]), len(whole), path_of(llama_voices, CAST[slot]))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("n_rows", [2, 3, 8])
def test_a_row_is_bit_identical_whatever_adapters_the_others_use(
    n_rows: int, threads: int, model: TinyModel, voices: dict[str, Adapter], start: Start
) -> None:
    """With eight rows on one thread, neighbours under one adapter are computed two at a time."""
    backend = start(model.path, mode="mixed", threads=threads, n_slots=n_rows)
    load(backend, *voices.values())
    rows = []
    for others in ("wide", "narrow", "some", None):
        cast = {0: "wide"} | dict.fromkeys(range(1, n_rows), others)
        _, seen = speak(backend, listen_all(backend, voices, cast), 6)
        rows.append(np.stack(seen[0]))
    assert all(np.array_equal(row, rows[0]) for row in rows)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_of_one_adapter_at_different_scales_are_each_as_stock(
    threads: int, mode: str, llama: TinyModel, llama_voices: dict[str, Adapter], start: Start
) -> None:
    """Three rows: `whole` on one thread, `halves` on two."""
    backend, one = start(llama.path, mode=mode, threads=threads), llama_voices["wide"]
    load(backend, one)
    scales = {0: 1.0, 1: 0.5, 2: 1.5}
    drawn, _ = speak(backend, {slot: listen(backend, slot, prompt(), one.at(scale)) for slot, scale in scales.items()}, 12)
    for slot, scale in scales.items():
        assert drawn[slot] == stock_greedy(llama.path, prompt(), 12, one.path, scale)


def test_the_scale_of_an_adapter_is_applied(llama: TinyModel, llama_voices: dict[str, Adapter], start: Start) -> None:
    for mode in MODES:
        backend = start(llama.path, mode=mode)
        load(backend, llama_voices["narrow"])
        for slot, scale in enumerate((1.0, 0.5, -1.0, 0.0)):
            listen(backend, slot, prompt(), llama_voices["narrow"].at(scale))
            wanted = stock_logits(llama.path, prompt(), llama_voices["narrow"].path, scale)[-1]
            assert relative(backend._logits[Slot(slot)], wanted) < WITHIN


@pytest.mark.parametrize("mode", MODES)
def test_a_prompt_in_chunks_is_as_in_one(mode: str, model: TinyModel, voices: dict[str, Adapter], start: Start) -> None:
    backend = start(model.path, mode=mode, threads=2)
    load(backend, *voices.values())
    tokens = prompt(LINE)
    for size in (1, 7, len(tokens)):
        backend.cut(Slot(1), 0)
        backend.bind(Slot(1), voices["wide"].at())
        for at in range(0, len(tokens), size):
            backend.prefill(Slot(1), tokens[at : at + size], wants_logits=at + size >= len(tokens))
        wanted = stock_logits(model.path, tokens, voices["wide"].path)[-1]
        assert relative(backend._logits[Slot(1)], wanted) < WITHIN


def test_warm_up_leaves_no_trace(llama: TinyModel, llama_voices: dict[str, Adapter], start: Start) -> None:
    cold, warm = start(llama.path), start(llama.path)
    warm.warm_up()
    assert [warm.n_tokens(Slot(slot)) for slot in range(4)] == [0] * 4
    for backend in (cold, warm):
        load(backend, llama_voices["wide"])
        listen(backend, 0, prompt(), llama_voices["wide"].at())
    assert np.array_equal(cold._logits[Slot(0)], warm._logits[Slot(0)])
    assert cold.card.mode is MixMode.MIXED
