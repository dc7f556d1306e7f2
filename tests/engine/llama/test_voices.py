"""A voice of several adapters is what llama.cpp makes of the same list of them, row by row, in any company and in both modes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from personae.engine.batch import AdapterLoaded, FreeAdapter
from personae.engine.llama.backend import LlamaBackend
from personae.errors import OurBug
from personae.packs.lora import adapter_key
from personae.types import AdapterUse, Slot, Voice, voice_of
from tests.engine.llama.conftest import Start
from tests.engine.llama.house import LINE, Adapter, House, an_adapter, listen, load, logits_of, prompt, speak, sum_of
from tests.tiny import ARCHES, TinyModel
from tests.tiny.adapters import Draft, draft_adapter
from tests.tiny.stock import stock_greedy, stock_logits

MODES = ("mixed", "grouped")
WITHIN = 2e-3  # of the largest logit, as in test_parity.py
N_DRAWN = 12

Scales = Mapping[str, float]  # which adapters, by name

ALONE: Scales = {"wide": 0.8}
PAIR: Scales = {"wide": 0.5, "narrow": -0.75}
TRIO: Scales = {"narrow": 1.0, "some": 1.25, "wide": 0.3}
FOUR: Scales = {"narrow": 0.5, "some": 0.5, "wide": 0.5, "more": 0.5}
CAST: Mapping[int, Scales] = {0: PAIR, 1: {}, 2: TRIO, 3: ALONE, 4: TRIO}
LINES = (LINE, "Who goes there?", "A room for the night, and be quick about it.", "Ho.")


@pytest.fixture(scope="module")
def more(models: dict[str, TinyModel], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Adapter]:
    """A fourth adapter for each architecture."""
    folder = tmp_path_factory.mktemp("more")
    return {arch: an_adapter(folder / f"{arch}.gguf", models[arch], rank=5, seed=4) for arch in ARCHES}


@pytest.fixture
def four(arch: str, voices: dict[str, Adapter], more: dict[str, Adapter]) -> dict[str, Adapter]:
    return voices | {"more": more[arch]}


def voice(adapters: Mapping[str, Adapter], scales: Scales) -> Voice:
    return voice_of(AdapterUse(adapters[name].key, scale) for name, scale in scales.items())


def files(adapters: Mapping[str, Adapter], scales: Scales) -> dict[Path, float]:
    return {adapters[name].path: scale for name, scale in scales.items()}


def listen_all(backend: LlamaBackend, adapters: Mapping[str, Adapter], cast: Mapping[int, Scales]) -> dict[int, int]:
    return {slot: listen(backend, slot, prompt(LINES[slot % 4]), voice(adapters, scales)) for slot, scales in cast.items()}


def relative(got: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


def assert_as_stock(model: TinyModel, adapters: Mapping[str, Adapter], cast: Mapping[int, Scales], backend: LlamaBackend) -> None:
    drawn, seen = speak(backend, listen_all(backend, adapters, cast), N_DRAWN)
    for slot, scales in cast.items():
        start, stock = prompt(LINES[slot % 4]), files(adapters, scales)
        assert drawn[slot] == stock_greedy(model.path, start, N_DRAWN, stock), (slot, scales)
        wanted = stock_logits(model.path, start + drawn[slot][:-1], stock)[len(start) :]
        assert max(map(relative, seen[slot], wanted)) < WITHIN, (slot, scales)


# --- as llama.cpp -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_rows_of_none_one_two_and_three_adapters_are_each_as_stock(
    mode: str, threads: int, model: TinyModel, voices: dict[str, Adapter], start: Start
) -> None:
    """Five rows: `whole` on one thread, `halves` on two."""
    backend = start(model.path, mode=mode, threads=threads, n_slots=5)
    load(backend, *voices.values())
    assert_as_stock(model, voices, CAST, backend)


@pytest.mark.parametrize("scales", [ALONE, PAIR, TRIO, FOUR], ids=["1", "2", "3", "4"])
@pytest.mark.parametrize("mode", MODES)
def test_a_prompt_and_a_reply_under_any_number_of_adapters_are_as_stock(
    scales: Scales, mode: str, model: TinyModel, four: dict[str, Adapter], start: Start
) -> None:
    backend = start(model.path, mode=mode, threads=2)
    load(backend, *four.values())
    assert_as_stock(model, four, {0: scales}, backend)


@pytest.mark.parametrize("mode", MODES)
def test_a_step_is_one_decode_when_mixed_and_one_for_each_voice_when_grouped(
    mode: str, llama: TinyModel, llama_voices: dict[str, Adapter], start: Start
) -> None:
    backend = start(llama.path, mode=mode, n_slots=5)
    load(backend, *llama_voices.values())
    firsts = listen_all(backend, llama_voices, CAST)
    report = backend.decode([(Slot(slot), token) for slot, token in firsts.items()])
    assert (report.n_decodes, report.n_voices) == ((1, 4) if mode == "mixed" else (4, 1))


@pytest.mark.parametrize("n_rows", [2, 3, 8])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_is_bit_identical_whatever_voices_the_others_have(
    threads: int, n_rows: int, model: TinyModel, voices: dict[str, Adapter], start: Start
) -> None:
    backend = start(model.path, mode="mixed", threads=threads, n_slots=n_rows)
    load(backend, *voices.values())
    rows = []
    for others in ({}, ALONE, PAIR, TRIO):
        _, seen = speak(backend, listen_all(backend, voices, {0: TRIO} | dict.fromkeys(range(1, n_rows), others)), 5)
        rows.append(np.stack(seen[0]))
    assert all(np.array_equal(row, rows[0]) for row in rows)


def put_together(path: Path, model: TinyModel, drafts: Sequence[Draft], scales: Sequence[float]) -> Adapter:
    """One adapter of all their ranks: A under A, and B, each times its scale, beside B."""
    whole = Draft(model.architecture)
    for name in drafts[0].tensors:
        weights = [draft.tensors[name].astype(np.float16).astype(np.float32) for draft in drafts]
        is_b = name.endswith(".lora_b")
        whole.tensors[name] = np.concatenate([one * (scale if is_b else 1) for one, scale in zip(weights, scales, strict=True)], int(is_b))
    whole.write(path, "f32")
    return Adapter(path, adapter_key(path))


@pytest.mark.parametrize("mode", MODES)
def test_a_voice_of_two_is_the_adapter_that_their_ranks_make_together(mode: str, llama: TinyModel, start: Start, tmp_path: Path) -> None:
    """Scales are powers of two, so that nothing is rounded when they are put into B."""
    kinds: list[dict[str, Any]] = [{"rank": 3, "seed": 1, "magnitude": 0.5}, {"rank": 6, "seed": 4, "magnitude": 0.5}]
    one, two = (an_adapter(tmp_path / f"{kind['seed']}.gguf", llama, **kind) for kind in kinds)
    both = put_together(tmp_path / "both.gguf", llama, [draft_adapter(llama, **kind) for kind in kinds], (0.5, -1.0))
    backend = start(llama.path, mode=mode)
    load(backend, one, two, both)
    heard = []
    for spoken in (sum_of(one.at(0.5), two.at(-1.0)), both.at(), one.at(0.5)):
        listen(backend, 0, prompt(), spoken)
        heard.append(logits_of(backend, 0))
    assert relative(heard[0], heard[1]) < WITHIN
    assert relative(heard[2], heard[1]) > 0.1


# --- from turn to turn --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_another_scale_or_another_part_needs_no_load(mode: str, llama: TinyModel, llama_voices: dict[str, Adapter], start: Start) -> None:
    house = House(start(llama.path, mode=mode))
    assert [type(answer) for answer in house.load(*llama_voices.values())] == [AdapterLoaded] * 3
    for turn, scales in enumerate((PAIR, {**PAIR, "narrow": 0.1}, {"wide": 0.5}, {**PAIR, "some": 1.0}, PAIR), 1):
        row = house.begin(turn, 0, prompt(), voice(llama_voices, scales), max_tokens=8).rows[0]
        drawn = [row.token]
        while row.finish is None:
            (row,) = house.step(turn).rows
            drawn.append(row.token)
        assert drawn == stock_greedy(llama.path, prompt(), 8, files(llama_voices, scales)), scales
    assert house.results == []


@pytest.mark.parametrize("mode", MODES)
def test_an_adapter_is_not_freed_while_a_voice_with_it_speaks(
    mode: str, llama: TinyModel, llama_voices: dict[str, Adapter], start: Start
) -> None:
    house = House(start(llama.path, mode=mode))
    house.load(*llama_voices.values())
    house.begin(1, 0, prompt(), voice(llama_voices, PAIR))
    house.do(FreeAdapter(llama_voices["some"].key))
    for name in PAIR:
        with pytest.raises(OurBug, match="while a turn speaks"):
            house.do(FreeAdapter(llama_voices[name].key))


@pytest.mark.parametrize("mode", MODES)
def test_who_speaks_on_after_a_part_of_the_last_voice_was_freed_is_as_stock(
    mode: str, llama: TinyModel, llama_voices: dict[str, Adapter], start: Start
) -> None:
    """In grouped mode llama.cpp still holds the list that was decoded last."""
    backend = start(llama.path, mode=mode)
    load(backend, *llama_voices.values())
    listen(backend, 0, prompt(), voice(llama_voices, TRIO))
    backend.free_adapter(llama_voices["some"].key)
    assert_as_stock(llama, llama_voices, {1: PAIR}, backend)


@pytest.mark.parametrize("mode", MODES)
def test_a_slot_is_not_bound_to_a_voice_of_which_a_part_is_missing_or_of_too_many(
    mode: str, llama: TinyModel, llama_voices: dict[str, Adapter], start: Start
) -> None:
    backend = start(llama.path, mode=mode)
    load(backend, llama_voices["wide"])
    with pytest.raises(OurBug, match="not installed"):
        backend.bind(Slot(0), voice(llama_voices, PAIR))
    with pytest.raises(OurBug, match="5 adapters at once"):
        backend.bind(Slot(0), llama_voices["wide"].at() * 5)
