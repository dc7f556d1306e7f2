"""The two files of a PEFT adapter together: what is read, and which tensors are refused by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personae.errors import AskedWrong
from personae.packs.peft import PeftAdapter, peft_from_bytes, read_peft
from personae.packs.peft.adapter import PICKLES
from personae.packs.peft.config import Strength
from tests.packs.peft.saved import DOWN, N_EMBD, N_Q, K, Q, config, halves, pair, safetensors, save, whole

ONE = np.ones((4, N_EMBD), np.float32), np.ones((N_Q, 4), np.float32)


def refused(read: Callable[[], PeftAdapter]) -> AskedWrong:
    with pytest.raises(AskedWrong) as refusal:
        read()
    assert refusal.value.hint
    return refusal.value


def refused_tensors(tensors: dict[str, Any], **changes: Any) -> AskedWrong:
    return refused(lambda: peft_from_bytes(config(**changes), safetensors(tensors), "pirate"))


def test_a_saved_folder_is_read_as_it_was_saved(tmp_path: Path) -> None:
    tensors = whole()
    adapter = read_peft(save(tmp_path / "Ænne's pirate", tensors, alpha_pattern={"k_proj": 8}))
    assert adapter.name == "Ænne's pirate"
    assert adapter.base_name == "Llama-3.2-1B-Instruct"
    assert set(adapter.pairs) == {Q, K, DOWN}
    assert np.array_equal(adapter.pairs[Q].a, tensors[f"base_model.model.{Q}.lora_A.weight"])
    assert np.array_equal(adapter.pairs[Q].b, tensors[f"base_model.model.{Q}.lora_B.weight"])
    assert (adapter.pairs[Q].strength, adapter.pairs[K].strength) == (Strength(4, 16.0), Strength(4, 8.0))


@pytest.mark.parametrize("file", ["adapter_model.safetensors", "adapter_config.json", ""])
def test_the_folder_or_either_file_names_an_adapter(file: str, tmp_path: Path) -> None:
    assert set(read_peft(save(tmp_path / "pirate", whole()) / file).pairs) == {Q, K, DOWN}


def test_weights_under_another_name_are_read_where_they_are_named(tmp_path: Path) -> None:
    folder = save(tmp_path / "pirate", whole())
    (folder / "adapter_model.safetensors").rename(folder / "best.safetensors")
    assert set(read_peft(folder / "best.safetensors").pairs) == {Q, K, DOWN}
    assert refused(lambda: read_peft(folder)).code == "peft_missing"


@pytest.mark.parametrize(("prefix", "adapter"), [("base_model.model.", ""), ("base_model.model.", ".default"), ("", ".pirate"), ("", "")])
def test_names_with_and_without_what_peft_puts_around_them_are_the_same(prefix: str, adapter: str) -> None:
    found = peft_from_bytes(config(), safetensors(halves(Q, *ONE, prefix=prefix, adapter=adapter)))
    assert list(found.pairs) == [Q]


@pytest.mark.parametrize("suffix", PICKLES)
def test_a_pickle_is_refused_by_name_and_never_opened(suffix: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "pirate", whole())
    (folder / "adapter_model.safetensors").unlink()
    os.mkfifo(folder / f"adapter_model{suffix}")  # opening it would never come back
    for path in (folder, folder / f"adapter_model{suffix}"):
        fault = refused(lambda path=path: read_peft(path))  # type: ignore[misc]
        assert fault.code == "peft_pickle"
        assert f"adapter_model{suffix}" in fault.message
        assert "safetensors" in fault.hint


def test_a_pickle_beside_safetensors_is_of_no_concern(tmp_path: Path) -> None:
    folder = save(tmp_path / "pirate", whole())
    (folder / "adapter_model.bin").write_bytes(b"cos\nsystem\n")
    assert read_peft(folder).pairs


@pytest.mark.parametrize("missing", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_missing_file_is_named(missing: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "pirate", whole())
    (folder / missing).unlink()
    fault = refused(lambda: read_peft(folder))
    assert fault.code == "peft_missing"
    assert missing in fault.message


def test_a_mistyped_name_does_not_import_its_neighbour(tmp_path: Path) -> None:
    save(tmp_path, whole())
    (tmp_path / "README.md").write_text("# Pirate")
    for name in ("pirrate", "README.md"):
        fault = refused(lambda name=name: read_peft(tmp_path / name))  # type: ignore[misc]
        assert fault.code == "peft_missing"
        assert name in fault.message


@pytest.mark.parametrize("path", ["nowhere", "nowhere/adapter_model.safetensors", "a\0b", "x" * 5000])
def test_a_path_to_nothing_is_refused(path: str, tmp_path: Path) -> None:
    assert refused(lambda: read_peft(tmp_path / path)).code in ("peft_missing", "peft_unreadable")


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors"])
def test_what_is_no_file_is_not_waited_for(file: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "pirate", whole())
    (folder / file).unlink()
    os.mkfifo(folder / file)
    assert refused(lambda: read_peft(folder)).code == "peft_unreadable"


def test_a_file_past_the_limit_is_not_read(tmp_path: Path) -> None:
    folder = save(tmp_path / "pirate", whole())
    with (folder / "adapter_model.safetensors").open("r+b") as file:
        file.truncate(2 * 1024**3 + 1)  # sparse: takes no room
    fault = refused(lambda: read_peft(folder))
    assert fault.code == "peft_unreadable"
    assert str(2 * 1024**3) in fault.message


SAVED = "base_model.model."
VECTOR, WORDS = np.ones(N_EMBD, np.float32), np.ones((50, N_EMBD), np.float32)
STRANGERS: dict[str, dict[str, Any]] = {
    "magnitude": {f"{SAVED}{Q}.lora_magnitude_vector.default.weight": VECTOR},
    "lora_bias": {f"{SAVED}{Q}.lora_B.bias": VECTOR},
    "modules_to_save": {f"{SAVED}lm_head.modules_to_save.weight": WORDS},
    "whole output": {f"{SAVED}lm_head.weight": WORDS},
    "classifier": {f"{SAVED}score.weight": WORDS},
    "new tokens": {f"{SAVED}model.embed_tokens.weight": WORDS},
    "base layer": {f"{SAVED}model.embed_tokens.base_layer.weight": WORDS},
    "embedding pair": {f"{SAVED}model.embed_tokens.lora_embedding_A": WORDS},
    "token adapter": {f"{SAVED}model.embed_tokens.token_adapter.trainable_tokens_delta": WORDS},
    "norm": {f"{SAVED}model.layers.0.input_layernorm.weight": VECTOR},
    "bias": {f"{SAVED}{Q}.bias": VECTOR},
    "anything": {f"{SAVED}{Q}.hada_w1_a": WORDS},
    "old half": {f"{SAVED}{Q}.lora_C.weight": WORDS},
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_a_tensor_that_is_no_half_of_a_pair_is_refused_by_name(kind: str) -> None:
    fault = refused_tensors(whole() | STRANGERS[kind])
    assert fault.code == "peft_unsupported"
    assert next(iter(STRANGERS[kind])) in fault.message


@pytest.mark.parametrize("half", ["A", "B"])
def test_a_pair_without_its_other_half_is_refused(half: str) -> None:
    tensors = whole()
    del tensors[f"{SAVED}{K}.lora_{half}.weight"]
    fault = refused_tensors(tensors)
    assert fault.code == "peft_incomplete_pair"
    assert f"lora_{half}" in fault.message
    assert K in fault.message


def test_two_adapters_in_one_file_are_refused() -> None:
    assert refused_tensors(halves(Q, *ONE, adapter=".a") | halves(Q, *ONE, adapter=".b")).code == "peft_unsupported"
    assert refused_tensors(halves(Q, *ONE, adapter=".a") | pair(K, N_EMBD, 16, adapter=".b")).code == "peft_unsupported"


def test_no_tensors_are_no_adapter() -> None:
    assert refused_tensors({}).code == "peft_empty"


@pytest.mark.parametrize("name", ["lora_A", "lora_B"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_number_that_is_none_is_refused(name: str, value: float) -> None:
    tensors = whole("f2")
    tensors[f"{SAVED}{K}.{name}.weight"][0, 0] = value
    fault = refused_tensors(tensors)
    assert fault.code == "peft_not_finite"
    assert name in fault.message


def test_an_untrained_adapter_is_inert() -> None:
    tensors = {name: array * np.float32("lora_A" in name) for name, array in whole().items()}
    assert refused_tensors(tensors).code == "peft_inert"
    minus_zero = {name: array * 0 + 0x8000 * np.uint16("lora_A" not in name) for name, array in whole("bf16").items()}
    assert refused_tensors(minus_zero).code == "peft_inert"


def test_a_name_without_end_is_refused() -> None:
    assert refused_tensors(pair("x" * 500, N_EMBD, N_Q)).code == "peft_unreadable"


@pytest.mark.parametrize(
    ("a", "b"), [((4, 24), (32, 5)), ((4,), (32, 4)), ((4, 24), (32,)), ((4, 24, 1), (32, 4)), ((4, 0), (32, 4)), ((5, 24), (32, 5))]
)
def test_halves_that_do_not_belong_together_are_refused(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    fault = refused_tensors(halves(Q, np.ones(a, np.float32), np.ones(b, np.float32)))
    assert fault.code == "peft_shape"
    assert Q in fault.message


def test_a_rank_that_the_config_does_not_give_is_refused_with_both() -> None:
    fault = refused_tensors(pair(Q, N_EMBD, N_Q, 4), rank_pattern={"q_proj": 8})
    assert fault.code == "peft_shape"
    assert "rank 4" in fault.message
    assert "says 8" in fault.message


def test_a_layer_that_was_left_out_cannot_be_there() -> None:
    assert refused_tensors(whole(), layers_to_transform=[0]).code == "peft_config"
    assert peft_from_bytes(config(layers_to_transform=[0, 1]), safetensors(whole())).pairs


WHOLE = safetensors(whole())
MUTATION = st.tuples(st.integers(0, 10_000), st.binary(max_size=6), st.integers(0, 6))  # where, what instead, of how many bytes


def mutated(content: bytes, mutations: list[tuple[int, bytes, int]]) -> bytes:
    for place, piece, n in mutations:
        place %= len(content) + 1
        content = content[:place] + piece + content[place + n :]
    return content


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(MUTATION, max_size=4), st.lists(MUTATION, max_size=4))
def test_whatever_the_bytes_are_nothing_but_askedwrong_comes_out(first: list[Any], second: list[Any]) -> None:
    with suppress(AskedWrong):
        peft_from_bytes(mutated(config(), first), mutated(WHOLE, second))
