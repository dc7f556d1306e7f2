"""What adapter_config.json may say, what it means at each module, and what is refused by the name of its field."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from personae.errors import AskedWrong
from personae.packs.peft.config import MAX_CONFIG_BYTES, MAX_MATCHING, PeftConfig, Strength, read_config, strengths
from tests.packs.peft.saved import DOWN, K, Q, config


def read(**changes: Any) -> PeftConfig:
    return read_config(config(**changes), "pirate")


def refused(content: bytes) -> AskedWrong:
    with pytest.raises(AskedWrong) as refusal:
        read_config(content, "pirate")
    assert "pirate" in refusal.value.message
    assert refusal.value.hint
    return refusal.value


def strength(module: str, **changes: Any) -> Strength:
    return strengths(read(**changes), [Q, K, DOWN], "pirate")[module]


def test_what_peft_saves_is_read() -> None:
    assert read() == PeftConfig(r=4, alpha=16.0, base_name="Llama-3.2-1B-Instruct")


def test_an_old_file_with_few_fields_is_read() -> None:
    assert read_config(b'{"peft_type": "LORA", "r": 16, "lora_alpha": 32.5}', "old") == PeftConfig(r=16, alpha=32.5)


def test_rslora_scales_with_the_root_of_the_rank() -> None:
    found = strength(Q, use_rslora=True)
    assert found.alpha / found.r == pytest.approx(16 / math.sqrt(4), rel=1e-15)


@pytest.mark.parametrize(
    ("key", "hit"),
    [
        ("q_proj", (Q,)),
        (Q, (Q,)),
        (f"^{Q}", (Q,)),
        ("layers.1.self_attn.k_proj", (K,)),
        (r"layers\.\d+\.self_attn\..*", (Q, K)),
        (r".*\.(q|k)_proj", (Q, K)),
        ("model", ()),
        ("proj", ()),
        ("self_attn", ()),
        ("^layers.0.self_attn.q_proj", ()),
    ],
)
def test_a_pattern_matches_whole_parts_at_the_end_of_a_name_as_in_peft(key: str, hit: tuple[str, ...]) -> None:
    found = strengths(read(rank_pattern={key: 7}), [Q, K, DOWN], "pirate")
    assert {module for module, one in found.items() if one.r == 7} == set(hit)


def test_the_first_pattern_that_matches_counts_and_both_kinds_are_apart() -> None:
    found = strength(Q, rank_pattern={"q_proj": 8, Q: 2}, alpha_pattern={Q: 64, "q_proj": 1})
    assert found == Strength(8, 64.0)
    assert strength(K, rank_pattern={"q_proj": 8}, alpha_pattern={Q: 64}) == Strength(4, 16.0)


def test_rank_pattern_counts_for_rslora() -> None:
    assert strength(Q, use_rslora=True, rank_pattern={"q_proj": 9}) == Strength(9, 48.0)


VARIANTS = {
    "use_dora": True,
    "use_qalora": True,
    "use_bdlora": {"target_modules_bd_a": ["q_proj"]},
    "lora_bias": True,
    "modules_to_save": ["lm_head"],
    "trainable_token_indices": [1, 2],
    "target_parameters": ["mlp.experts.gate_up_proj"],
    "layer_replication": [[0, 4], [2, 5]],
    "fan_in_fan_out": True,
    "alora_invocation_tokens": [1, 2],
    "arrow_config": {"top_k": 2},
    "bias": "all",
    "peft_type": "LOHA",
    "init_lora_weights": "pissa",
    "some_future_field": {"on": True},
}


@pytest.mark.parametrize(("name", "value"), VARIANTS.items())
def test_what_is_no_plain_lora_is_refused_by_the_name_of_its_field(name: str, value: Any) -> None:
    fault = refused(config(**{name: value}))
    assert fault.code == "peft_unsupported"
    assert name in fault.message


@pytest.mark.parametrize("beginning", ["pissa_niter_16", "olora", "corda", "loftq", "lora_ga", "something new", 1, {}])
def test_a_beginning_that_changed_the_base_is_refused(beginning: Any) -> None:
    fault = refused(config(init_lora_weights=beginning))
    assert fault.code == "peft_unsupported"
    assert "path_initial_model_for_weight_conversion" in fault.hint


@pytest.mark.parametrize("beginning", [True, False, None, "gaussian", "eva", "orthogonal"])
def test_a_beginning_that_left_the_base_alone_is_read(beginning: Any) -> None:
    assert read(init_lora_weights=beginning) == read()


def test_a_name_of_half_a_character_is_told_in_whole_ones() -> None:
    refused(b'{"peft_type": "LORA", "use_\\ud800": true}').message.encode()
    refused(b'{"peft_type": "LORA", "rank_pattern": {"\\ud800": 0}}').message.encode()


def test_unknown_fields_that_are_off_are_read_over() -> None:
    assert read(use_something=False, other=None, third=[], fourth=0) == read()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("r", 0),
        ("r", -1),
        ("r", 2.0),
        ("r", True),
        ("r", "8"),
        ("r", 10**30),
        ("r", 10**4000),
        ("lora_alpha", 0),
        ("lora_alpha", -16),
        ("lora_alpha", 1e300),
        ("lora_alpha", 1e-300),
        ("lora_alpha", None),
        ("use_rslora", "yes"),
        ("rank_pattern", [1]),
        ("rank_pattern", {"q_proj": 0}),
        ("rank_pattern", {"q_proj": None}),
        ("alpha_pattern", {"q_proj": []}),
        ("rank_pattern", {f"k{i}": 1 for i in range(4097)}),
        ("layers_to_transform", "all"),
        ("layers_to_transform", [0, "1"]),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    fault = refused(config(**{name: value}))
    assert fault.code == "peft_config"
    assert name in fault.message
    assert len(fault.message) < 400


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe{}",
        b'{"peft_type": "LORA", "r": NaN}',
        b'{"peft_type": "LORA", "r": 1' + b"0" * 5000 + b"}",
        b"[" * 500_000,
        b'{"a":' * 100_000,
        b" " * (MAX_CONFIG_BYTES + 1),
    ],
)
def test_what_is_no_json_object_is_unreadable(content: bytes) -> None:
    assert refused(content).code == "peft_unreadable"


@pytest.mark.parametrize("key", ["(?<=x)q_proj", r"(q)_proj\1", "(", "x" * 1000])
def test_a_pattern_that_needs_more_than_linear_time_is_refused(key: str) -> None:
    with pytest.raises(AskedWrong) as refusal:
        strengths(read(rank_pattern={key: 8}), [Q], "pirate")
    assert refusal.value.code == "peft_unsupported"
    assert "rank_pattern" in refusal.value.message


def test_patterns_times_modules_are_bounded() -> None:
    modules = ["m" * 100] * (MAX_MATCHING // 100 // 4096 + 1)
    with pytest.raises(AskedWrong) as refusal:
        strengths(read(rank_pattern={f"k{i}": 1 for i in range(4096)}), modules, "pirate")
    assert refusal.value.code == "peft_config"


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("HuggingFaceTB/SmolLM2-135M", "SmolLM2-135M"),
        ("/home/ann/models/Llama 3/", "Llama 3"),
        (r"C:\Users\ann\qwen", "qwen"),
        ("./", ""),
        (None, ""),
        (7, ""),
        ("a\nb\ud800c", "a b c"),
        ("x" * 500, "x" * 200),
    ],
)
def test_the_base_is_named_without_anybodys_folders(said: Any, kept: str) -> None:
    assert read(base_model_name_or_path=said).base_name == kept


def test_layers_to_transform_is_one_number_or_several() -> None:
    assert read(layers_to_transform=3).layers == frozenset({3})
    assert read(layers_to_transform=[0, 2]).layers == frozenset({0, 2})
    assert json.loads(config())["layers_to_transform"] is None
    assert read().layers is None
