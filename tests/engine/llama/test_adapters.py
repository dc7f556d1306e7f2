"""Adapters come, go and change while others speak, and whatever is wrong with one, nobody else notices."""

from __future__ import annotations

import gc
import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest

from personae.engine.batch import AdapterLoaded, AdapterRefused, FreeAdapter, PrefillChunk
from personae.engine.llama.backend import LlamaBackend
from personae.errors import AskedWrong, OurBug
from personae.packs.lora import adapter_key
from personae.types import Slot, TurnId, Voice
from tests.engine.llama.conftest import Start
from tests.engine.llama.house import LINE, Adapter, House, an_adapter, begin_turn, listen, listen_on, load, logits_of, prompt
from tests.tiny import ARCHES, TinyModel, bad_adapters, write_adapter, write_model
from tests.tiny.adapters import draft_adapter
from tests.tiny.stock import stock_greedy, stock_logits

MODES = ("mixed", "grouped")


@pytest.fixture(params=MODES)
def backend(request: pytest.FixtureRequest, llama: TinyModel, llama_voices: dict[str, Adapter], start: Start) -> LlamaBackend:
    """With two voices loaded."""
    backend = start(llama.path, mode=request.param)
    load(backend, llama_voices["wide"], llama_voices["narrow"])
    return backend


# --- one after the other over the same words ----------------------------------------------------------------------


def test_b_after_a_over_the_same_prefix_is_as_a_cold_b(backend: LlamaBackend, llama_voices: dict[str, Adapter]) -> None:
    """What was decoded under A is cut, and the whole prompt prefilled again: that is the scheduler's rule, and this is what it buys."""
    listen(backend, 0, prompt(), llama_voices["wide"].at())
    listen(backend, 0, prompt(), llama_voices["narrow"].at())
    warm = logits_of(backend, 0)
    listen(backend, 1, prompt(), llama_voices["narrow"].at())
    assert np.array_equal(warm, logits_of(backend, 1))


def test_kv_made_under_a_would_be_wrong_under_b(backend: LlamaBackend, llama_voices: dict[str, Adapter]) -> None:
    """Why that rule exists: nothing else would notice."""
    tokens = prompt()
    backend.bind(Slot(0), llama_voices["wide"].at())
    backend.prefill(Slot(0), tokens[:-1], wants_logits=False)
    listen_on(backend, 0, tokens[-1:], llama_voices["narrow"].at())
    kept = logits_of(backend, 0)
    listen(backend, 0, tokens, llama_voices["narrow"].at())
    assert np.abs(kept - logits_of(backend, 0)).max() > 0.1


def test_the_same_adapter_at_another_scale_speaks_otherwise(backend: LlamaBackend, llama_voices: dict[str, Adapter]) -> None:
    seen = []
    for scale in (1.0, 0.9, 1.0):
        listen(backend, 0, prompt(), llama_voices["wide"].at(scale))
        seen.append(logits_of(backend, 0))
    assert np.array_equal(seen[0], seen[2])
    assert not np.allclose(seen[0], seen[1], atol=1e-2)


# --- while others speak -------------------------------------------------------------------------------------------


def speak_undisturbed(house: House, voice: Voice, tokens: list[int], between: object = None, n: int = 16) -> list[int]:
    """A stream of slot 0; before each of its steps something else happens."""
    events = iter(between or ())  # type: ignore[call-overload]
    row = house.begin(1, 0, tokens, voice, max_tokens=n).rows[0]
    drawn = [row.token]
    while row.finish is None:
        next(events, None)
        rows = house.step(1).rows
        row = rows[0]
        drawn.append(row.token)
    return drawn


def commotion(house: House, folder: Path, model: TinyModel, voices: dict[str, Adapter]) -> object:
    """Load others, speak with them, rescale, unload, load again."""
    new = an_adapter(folder / "new.gguf", model, rank=12, seed=99)
    yield house.load(new)
    yield house.begin(2, 1, prompt("And you?"), new.at(), max_tokens=50)
    yield house.step(2)
    yield house.do(begin_turn(3, 2, voices["wide"].at(0.25)))
    yield house.step(2, prefill=[PrefillChunk(TurnId(3), tuple(prompt("Hush.")), last=True)])
    yield house.step(2, 3)
    yield house.load(voices["narrow"], voices["some"])
    yield house.do(FreeAdapter(voices["some"].key), FreeAdapter(voices["some"].key))  # a second unload is harmless
    yield house.step(3)
    yield house.load(voices["some"])


@pytest.mark.parametrize("mode", MODES)
def test_a_stream_is_the_same_whatever_others_load_unload_and_say(
    mode: str, llama: TinyModel, llama_voices: dict[str, Adapter], start: Start, tmp_path: Path
) -> None:
    house = House(start(llama.path, mode=mode))
    house.load(llama_voices["wide"])
    drawn = speak_undisturbed(house, llama_voices["wide"].at(), prompt(), commotion(house, tmp_path, llama, llama_voices))
    assert drawn == stock_greedy(llama.path, prompt(), 16, llama_voices["wide"].path)


@pytest.mark.parametrize("mode", MODES)
def test_another_scale_takes_effect_at_the_next_turn(mode: str, llama: TinyModel, llama_voices: dict[str, Adapter], start: Start) -> None:
    house, one = House(start(llama.path, mode=mode)), llama_voices["wide"]
    house.load(one)
    for scale in (1.0, 0.5, 1.0):
        drawn = speak_undisturbed(house, one.at(scale), prompt(), n=8)
        assert drawn == stock_greedy(llama.path, prompt(), 8, one.path, scale)


def test_an_adapter_is_not_freed_under_a_turn(llama: TinyModel, llama_voices: dict[str, Adapter], start: Start) -> None:
    house = House(start(llama.path))
    house.load(llama_voices["wide"])
    house.begin(1, 0, prompt(), llama_voices["wide"].at())
    with pytest.raises(OurBug, match="while a turn speaks"):
        house.do(FreeAdapter(llama_voices["wide"].key))


def test_a_slot_is_not_bound_to_what_is_not_installed(backend: LlamaBackend, llama_voices: dict[str, Adapter]) -> None:
    with pytest.raises(OurBug, match="not installed"):
        backend.bind(Slot(0), llama_voices["some"].at())
    backend.free_adapter(llama_voices["narrow"].key)
    backend.free_adapter(llama_voices["narrow"].key)
    with pytest.raises(OurBug, match="not installed"):
        backend.bind(Slot(0), llama_voices["narrow"].at())


def test_an_adapter_freed_and_loaded_again_says_the_same(backend: LlamaBackend, llama_voices: dict[str, Adapter]) -> None:
    listen(backend, 0, prompt(), llama_voices["wide"].at())
    before = logits_of(backend, 0)
    backend.free_adapter(llama_voices["wide"].key)
    listen(backend, 0, prompt())
    load(backend, llama_voices["wide"])
    listen(backend, 0, prompt(), llama_voices["wide"].at())
    assert np.array_equal(before, logits_of(backend, 0))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
@pytest.mark.parametrize("mode", MODES)
def test_memory_is_flat_over_200_alternations(mode: str, llama: TinyModel, llama_voices: dict[str, Adapter], start: Start) -> None:
    """Speaking in turn under A and under B, each loaded for its turn and freed after it. One adapter's tables are 150 KB: a leak of one
    in ten would show in the 3 MB allowed."""
    backend = start(llama.path, mode=mode)
    turns = itertools.cycle([llama_voices["wide"], llama_voices["narrow"]])

    def alternate(n: int) -> None:
        for one in itertools.islice(turns, n):
            load(backend, one)
            listen(backend, 0, prompt("Ho."), one.at())
            backend.free_adapter(one.key)
        gc.collect()

    alternate(30)
    before = resident_bytes()
    alternate(200)
    assert resident_bytes() - before < 3 * 2**20


@pytest.mark.parametrize("mode", MODES)
def test_any_number_of_adapters_up_to_the_limit_then_a_clean_refusal(mode: str, llama: TinyModel, start: Start, tmp_path: Path) -> None:
    house = House(start(llama.path, mode=mode, max_adapters=20))
    crowd = [an_adapter(tmp_path / f"{i}.gguf", llama, rank=1 + i % 5, seed=i) for i in range(21)]
    assert {type(answer) for answer in house.load(*crowd[:20])} == {AdapterLoaded}
    (refusal,) = house.load(crowd[20])
    assert isinstance(refusal, AdapterRefused)
    assert (refusal.code, refusal.key) == ("adapter_limit", crowd[20].key)
    assert "20" in refusal.message
    assert refusal.hint
    for turn, one in enumerate((crowd[0], crowd[7], crowd[19])):
        listen(house.backend, turn, prompt(), one.at())
        wanted = stock_logits(llama.path, prompt(), one.path)[-1]
        assert np.abs(logits_of(house.backend, turn) - wanted).max() < 2e-2
    house.do(FreeAdapter(crowd[3].key))
    assert isinstance(house.load(crowd[20])[0], AdapterLoaded)


# --- files that are wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["llama", "llama-tied"])
@pytest.mark.parametrize("mode", MODES)
def test_bad_adapters_are_refused_by_name_while_two_speakers_go_on(
    mode: str, arch: str, models: dict[str, TinyModel], all_voices: dict[str, dict[str, Adapter]], start: Start, tmp_path: Path
) -> None:
    model, voices = models[arch], all_voices[arch]
    house = House(start(model.path, mode=mode))
    house.load(voices["wide"], voices["narrow"])
    speakers = {1: voices["wide"], 2: voices["narrow"]}
    drawn = {turn: [house.begin(turn, turn, prompt(), one.at()).rows[0].token] for turn, one in speakers.items()}
    for path, code in bad_adapters(tmp_path, model):
        (refusal,) = house.load(Adapter(path, adapter_key(path) if path.exists() else voices["some"].key))
        assert isinstance(refusal, AdapterRefused), path
        assert (refusal.code, path.name in refusal.message) == (code, True), refusal
        for row in house.step(*speakers).rows if len(drawn[1]) < 40 else ():
            drawn[int(row.turn)].append(row.token)
    for turn, one in speakers.items():
        assert drawn[turn] == stock_greedy(model.path, prompt(), len(drawn[turn]), one.path)


def test_an_adapter_of_another_base_is_refused_with_both_names_and_shapes(
    models: dict[str, TinyModel], all_voices: dict[str, dict[str, Adapter]], start: Start
) -> None:
    house = House(start(models["llama"].path))
    (refusal,) = house.load(all_voices["qwen2"]["wide"])
    assert isinstance(refusal, AdapterRefused)
    assert refusal.code == "adapter_wrong_architecture"
    for part in ("wide.gguf", "'qwen2'", "'llama'", "tiny llama 0", "(64, 300)"):
        assert part in refusal.message


def test_an_adapter_of_a_base_of_another_size_is_refused_with_both_shapes(
    models: dict[str, TinyModel], all_voices: dict[str, dict[str, Adapter]], start: Start
) -> None:
    house = House(start(models["llama"].path))
    (refusal,) = house.load(all_voices["llama-tied"]["wide"])
    assert isinstance(refusal, AdapterRefused)
    assert refusal.code == "adapter_shape"
    for part in ("wide.gguf", "(4, 64)", "(64, 32)", "tiny llama 0"):
        assert part in refusal.message


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("folder", ["two words", "Ænne 酒場 🍺", 'quote\'s "and" %20'])
def test_spaces_and_other_alphabets_in_paths_load(folder: str, mode: str, start: Start, tmp_path: Path) -> None:
    home = tmp_path / folder
    home.mkdir()
    model = write_model(home / "modèle tiny.gguf")
    one = an_adapter(home / "voix d'Ænne.gguf", model, seed=4)
    backend = start(model.path, mode=mode)
    load(backend, one)
    first = listen(backend, 0, prompt(), one.at())
    assert [first] == stock_greedy(model.path, prompt(), 1, one.path)
    assert backend.card.name == "modèle tiny.gguf"


@pytest.mark.parametrize("mode", MODES)
def test_a_file_that_changed_since_its_pack_was_read_is_refused(
    mode: str, llama: TinyModel, llama_voices: dict[str, Adapter], start: Start, tmp_path: Path
) -> None:
    path = tmp_path / "voice.gguf"
    shutil.copyfile(llama_voices["wide"].path, path)
    house, known = House(start(llama.path, mode=mode)), Adapter(path, adapter_key(path))
    shutil.copyfile(llama_voices["narrow"].path, path)
    (refusal,) = house.load(known)
    assert isinstance(refusal, AdapterRefused)
    assert (refusal.code, "changed on disk" in refusal.message) == ("adapter_changed", True)


def test_a_file_that_changes_between_check_and_use_never_reaches_llama_cpp(
    llama: TinyModel, llama_voices: dict[str, Adapter], start: Start, tmp_path: Path
) -> None:
    """Grouped mode, where llama.cpp reads the file itself: it aborts the process on some."""
    path = tmp_path / "voice.gguf"
    shutil.copyfile(llama_voices["wide"].path, path)
    backend, key = start(llama.path, mode="grouped"), adapter_key(path)
    prepared = backend.prepare_adapter(key, str(path))
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    with pytest.raises(AskedWrong, match="changed on disk") as refusal:
        backend.install_adapter(key, prepared)
    assert refusal.value.code == "adapter_changed"
    path.unlink()
    with pytest.raises(AskedWrong) as refusal:
        backend.install_adapter(key, prepared)
    assert refusal.value.code == "adapter_missing"
    assert backend.statistics()["adapters"] == 0


# --- how it is stored ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "q8_0"])
def test_every_dtype_means_the_same_weights(dtype: str, arch: str, models: dict[str, TinyModel], start: Start, tmp_path: Path) -> None:
    """Against stock under an F32 file of the very weights that the file holds. q8_0 has more bits than a half: rounding of 2^-11."""
    model, path, twin = models[arch], tmp_path / "a.gguf", tmp_path / "f32.gguf"
    more = {"rank": 32, "seed": 5, "magnitude": 0.5, "alpha": 16.0}
    factors = write_adapter(path, model, dtype=dtype, **more)  # type: ignore[arg-type]
    draft = draft_adapter(model, **more)  # type: ignore[arg-type]
    for name, pair in factors.items():
        draft.add_pair(name, *pair)
    draft.write(twin, "f32")
    backend = start(model.path, mode="mixed")
    load(backend, Adapter(path, adapter_key(path)))
    listen(backend, 0, prompt(LINE), Adapter(path, adapter_key(path)).at())
    wanted = stock_logits(model.path, prompt(LINE), twin)[-1]
    error = np.abs(logits_of(backend, 0) - wanted).max() / np.abs(wanted).max()
    assert error < (2e-3 if dtype != "q8_0" else 3e-2)


def test_resident_bytes_count_the_padding(llama: TinyModel, start: Start, tmp_path: Path) -> None:
    backend = start(llama.path)
    one = an_adapter(tmp_path / "a.gguf", llama, rank=3, only=["output.weight"])  # 64 in, 300 out: ten panels of 32
    prepared = backend.prepare_adapter(one.key, str(one.path))
    assert (prepared.bytes_resident, prepared.rank) == (2 * 3 * (64 + 320), 3)
    assert "alpha" in prepared.warnings[0]
