"""An imported adapter is, number for number, what PEFT defines and what llama.cpp's own converter writes; what does not fit is refused."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from numpy.typing import NDArray

from personae.errors import AskedWrong, WorldFailed
from personae.packs.base import BaseShapes
from personae.packs.gguf import read_header
from personae.packs.lora import Lora, read_lora
from personae.packs.peft import manifest_tables, peft_from_bytes, to_lora, write
from personae.packs.peft.names import ARCHITECTURES
from tests.packs.peft.saved import DOWN, N_EMBD, N_FF, N_HEADS, N_KV, N_Q, N_VOCAB, Array, K, Q, base, config, pair, safetensors, whole

SAVED = "base_model.model."
ATTN_Q, ATTN_K, FFN_DOWN = "blk.0.attn_q.weight", "blk.1.attn_k.weight", "blk.1.ffn_down.weight"
OF = {ATTN_Q: Q, ATTN_K: K, FFN_DOWN: DOWN}


def imported(folder: Path, tensors: dict[str, Array], shapes: BaseShapes, **changes: Any) -> Lora:
    """Through a file and back, as a pack would hold it."""
    path = folder / "adapter.gguf"
    write(to_lora(peft_from_bytes(config(**changes), safetensors(tensors), "pirate"), shapes), path)
    return read_lora(path, shapes)


def refused(tensors: dict[str, Array], shapes: BaseShapes, **changes: Any) -> AskedWrong:
    with pytest.raises(AskedWrong) as refusal:
        to_lora(peft_from_bytes(config(**changes), safetensors(tensors), "pirate"), shapes)
    assert "pirate" in refusal.value.message
    assert refusal.value.hint
    return refusal.value


def as_f32(array: Array) -> NDArray[np.float32]:
    return (array.astype(np.uint32) << 16).view(np.float32) if array.dtype == np.uint16 else array.astype(np.float32)


def neighbours(n_rows: int, n_heads: int) -> list[int]:
    """Where each of llama.cpp's rows stands in Hugging Face's order, head by head and in words: first half, second half, by turns."""
    width = n_rows // n_heads
    return [head * width + i + half for head in range(n_heads) for i in range(width // 2) for half in (0, width // 2)]


def defined(tensors: dict[str, Array], module: str, rows: list[int] | None = None) -> NDArray[np.float64]:
    """B A by PEFT's definition, in float64, its rows in the base's order."""
    a, b = (as_f32(tensors[f"{SAVED}{module}.lora_{half}.weight"]).astype(np.float64) for half in "AB")
    return (b @ a)[rows] if rows else b @ a


def delta(lora: Lora, target: str) -> NDArray[np.float64]:
    """What llama.cpp adds to the base's matrix, in float64."""
    matrix = lora.matrices[target]
    return matrix.scale * (matrix.b.astype(np.float64) @ matrix.a.astype(np.float64))


ROWS = {ATTN_Q: neighbours(N_Q, N_HEADS), ATTN_K: neighbours(N_KV, 2), FFN_DOWN: None}
# changes of the config -> PEFT's scaling at Q, K and down_proj, worked out by hand
SCALINGS: dict[str, tuple[dict[str, Any], dict[str, int], tuple[float, float, float]]] = {
    "plain": ({}, {}, (4.0, 4.0, 4.0)),
    "rslora": ({"use_rslora": True}, {}, (8.0, 8.0, 8.0)),
    "rank_pattern": ({"rank_pattern": {"q_proj": 8, DOWN: 1}}, {Q: 8, DOWN: 1}, (2.0, 4.0, 16.0)),
    "alpha_pattern": ({"alpha_pattern": {"q_proj": 5, "layers.1.*": 64}}, {}, (1.25, 16.0, 16.0)),
    "all": (
        {"use_rslora": True, "rank_pattern": {"q_proj": 8}, "alpha_pattern": {"k_proj": 3}},
        {Q: 8},
        (16 / math.sqrt(8), 1.5, 8.0),
    ),
}


@pytest.mark.parametrize("dtype", ["f4", "f2", "bf16"])
@pytest.mark.parametrize("kind", SCALINGS)
def test_the_delta_is_the_one_peft_defines(kind: str, dtype: str, tmp_path: Path) -> None:
    changes, ranks, scalings = SCALINGS[kind]
    shapes = {Q: (N_EMBD, N_Q), K: (N_EMBD, N_KV), DOWN: (N_FF, N_EMBD)}
    tensors: dict[str, Array] = {}
    for module, (n_in, n_out) in shapes.items():
        tensors |= pair(module, n_in, n_out, ranks.get(module, 4), dtype)
    lora = imported(tmp_path, tensors, base(), **changes)
    for (target, module), scaling in zip(OF.items(), scalings, strict=True):
        wanted = scaling * defined(tensors, module, ROWS[target])
        assert np.abs(delta(lora, target) - wanted).max() <= 2**-23 * np.abs(wanted).max() * 2, target


def stored_types(path: Path) -> dict[str, str]:
    return {name: tensor.dtype for name, tensor in read_header(path).tensors.items()}


@pytest.mark.parametrize(("dtype", "stored"), [("f4", "f32"), ("f2", "f16"), ("bf16", "bf16")])
def test_weights_stay_as_stored_where_no_factor_is_needed_or_a_power_of_two_will_do(dtype: str, stored: str, tmp_path: Path) -> None:
    tensors = whole(dtype)
    lora = imported(tmp_path, tensors, base("qwen2"), alpha_pattern={"k_proj": 4})
    assert lora.alpha == 16.0
    assert set(stored_types(tmp_path / "adapter.gguf").values()) == {stored}
    for target, module in OF.items():
        a, b = (as_f32(tensors[f"{SAVED}{module}.lora_{half}.weight"]) for half in "AB")
        assert np.array_equal(lora.matrices[target].a, a)
        assert np.array_equal(lora.matrices[target].b, b / 4 if target == ATTN_K else b)


def test_the_alpha_of_most_weights_is_the_files_and_their_b_is_untouched(tmp_path: Path) -> None:
    tensors = whole("f2")
    lora = imported(tmp_path, tensors, base("qwen2"), alpha_pattern={"q_proj": 3})
    assert lora.alpha == 16.0  # K and down_proj: 16 + 24 rows; Q: 32
    types = stored_types(tmp_path / "adapter.gguf")
    assert (types[f"{ATTN_K}.lora_b"], types[f"{FFN_DOWN}.lora_b"], types[f"{ATTN_Q}.lora_b"]) == ("f16", "f16", "f32")
    assert np.array_equal(lora.matrices[ATTN_K].b, tensors[f"{SAVED}{K}.lora_B.weight"])
    wanted = tensors[f"{SAVED}{Q}.lora_B.weight"].astype(np.float64) * 3 / 16
    assert np.array_equal(lora.matrices[ATTN_Q].b, wanted.astype(np.float32))


def test_a_power_of_two_that_float16_cannot_hold_goes_to_float32_and_loses_nothing(tmp_path: Path) -> None:
    tensors = whole("f2")
    b = tensors[f"{SAVED}{K}.lora_B.weight"]
    b[0, 0], b[1, 1] = 60_000, 2**-24
    for alpha in (2.0, 64.0):  # an eighth: the small one is lost in float16; four times: the large one
        lora = imported(tmp_path, tensors, base("qwen2"), alpha_pattern={"k_proj": alpha})
        assert stored_types(tmp_path / "adapter.gguf")[f"{ATTN_K}.lora_b"] == "f32"
        assert np.array_equal(lora.matrices[ATTN_K].b, b.astype(np.float32) * np.float32(alpha / 16))


def test_the_same_adapter_gives_the_same_bytes_whatever_the_order_of_its_tensors(tmp_path: Path) -> None:
    written = []
    for tensors in (whole(), dict(reversed(whole().items()))):
        imported(tmp_path, tensors, base())
        written.append((tmp_path / "adapter.gguf").read_bytes())
    assert written[0] == written[1]


# --- names --------------------------------------------------------------------------------------------------------

DENSE = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
FUSED = {"self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output", "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_module_of_every_known_architecture_finds_its_matrix(architecture: str, tmp_path: Path) -> None:
    shapes = base(architecture)
    names = {f"model.layers.1.{name}": f"blk.1.{short}.weight" for name, short in (FUSED if architecture == "phi3" else DENSE).items()}
    names["lm_head"] = "output.weight"
    tensors: dict[str, Array] = {}
    for module, target in names.items():
        tensors |= pair(module, *shapes.matrices[target])
    lora = imported(tmp_path, tensors, shapes)
    assert set(lora.matrices) == set(names.values())
    permuted = ARCHITECTURES[architecture].permuted
    for module, target in names.items():
        n_heads = {"attn_q": N_HEADS, "attn_k": N_HEADS * N_KV // N_Q}.get(target.split(".")[2] if "blk" in target else "", 0)
        rows = neighbours(shapes.matrices[target][1], n_heads) if permuted and n_heads else None
        assert np.allclose(delta(lora, target), 4 * defined(tensors, module, rows), rtol=1e-6, atol=1e-6), target


@pytest.mark.parametrize("prefix", ["model.", "", "model.language_model.", "language_model.model.", "model.text_model."])
def test_a_layer_is_found_whatever_class_of_the_model_was_trained(prefix: str, tmp_path: Path) -> None:
    module = f"{prefix}layers.0.self_attn.o_proj"
    lora = imported(tmp_path, pair(module, N_Q, N_EMBD), base("gemma3"))
    assert list(lora.matrices) == ["blk.0.attn_output.weight"]


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("model.layers.2.self_attn.q_proj", "unknown_module"),
        ("model.layers.0.self_attn.qkv_proj", "unknown_module"),
        ("model.layers.0.self_attn.rotary", "unknown_module"),
        ("transformer.h.0.attn.c_attn", "unknown_module"),
        ("model.layers.0.mlp.experts.3.up_proj", "unsupported"),
        ("model.layers.0.mlp.experts.base_layer", "unsupported"),
        ("model.layers.0.block_sparse_moe.experts.1.w1", "unsupported"),
        ("model.layers.0.mlp.gate", "unsupported"),
        ("model.embed_tokens", "unsupported"),
        ("model.norm", "unsupported"),
        ("model.layers.0.input_layernorm", "unsupported"),
        ("model.vision_tower.encoder.layers.0.self_attn.q_proj", "unsupported"),
        ("lm_head", "tied_embedding"),
        ("model.layers.0." + "x" * 300, "unknown_module"),
    ],
)
def test_a_module_that_cannot_be_adapted_is_refused_by_name(module: str, code: str) -> None:
    fault = refused(pair(module, N_EMBD, N_VOCAB), base(tied=True))
    assert fault.code == f"peft_{code}"
    assert module[:60] in fault.message
    assert len(fault.message) < 500


def test_a_site_that_the_engine_ruled_out_is_refused() -> None:
    shapes = base()
    assert refused(whole(), shapes.with_sites(shapes.sites - {FFN_DOWN})).code == "peft_unknown_module"


def test_two_names_for_one_matrix_are_refused() -> None:
    tensors = pair("model.layers.0.mlp.up_proj", N_EMBD, N_FF) | pair("layers.00.mlp.up_proj", N_EMBD, N_FF)
    assert refused(tensors, base()).code == "peft_unsupported"


def test_an_architecture_without_known_names_is_refused_and_the_known_ones_are_listed() -> None:
    fault = refused(whole(), replace(base(), architecture="falcon"))
    assert fault.code == "peft_architecture"
    assert "falcon" in fault.message
    assert "qwen3" in fault.hint


def test_another_size_is_refused_with_both_shapes() -> None:
    fault = refused(whole() | pair(K, N_EMBD, 2 * N_KV), base())
    assert fault.code == "peft_shape"
    for number in (N_EMBD, N_KV, 2 * N_KV):
        assert str(number) in fault.message


def test_a_rank_past_the_limit_is_refused() -> None:
    assert refused(pair(Q, N_EMBD, N_Q, 257), base(), r=257).code == "peft_rank"


@pytest.mark.parametrize("changes", [{"n_heads": 0}, {"n_heads": 5}, {"n_heads": 32}, {"n_kv_heads": 1}])
def test_rows_are_not_reordered_on_a_guess(changes: dict[str, Any]) -> None:
    fault = refused(whole(), base(**changes))
    assert fault.code == "peft_unsupported"
    assert "heads" in fault.message
    to_lora(peft_from_bytes(config(), safetensors(whole())), base("qwen2", **changes))


def test_kv_heads_follow_from_the_width_of_a_head_where_the_header_is_silent(tmp_path: Path) -> None:
    said, silent = (imported(tmp_path, whole(), base(n_kv_heads=n)) for n in (2, 0))
    assert np.array_equal(said.matrices[ATTN_K].b, silent.matrices[ATTN_K].b)


def test_a_factor_that_no_float32_holds_is_refused() -> None:
    tensors = whole()
    tensors[f"{SAVED}{K}.lora_B.weight"][0, 0] = 3e38
    assert refused(tensors, base(), alpha_pattern={"k_proj": 500_000}).code == "peft_not_finite"


# --- beside llama.cpp's converter ---------------------------------------------------------------------------------


def as_llama_cpp_converts(path: Path, tensors: dict[str, Array], dtype: str) -> None:
    """The keys, their order and the tensors as convert_lora_to_gguf.py writes them."""
    writer = GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_name("Pirate")
    writer.add_base_model_count(1)
    writer.add_base_model_name(0, "Llama 3.2 1B Instruct")
    writer.add_base_model_organization(0, "Meta Llama")
    writer.add_base_model_repo_url(0, "https://huggingface.co/meta-llama/Llama-3.2-1B-Instruct")
    writer.add_tags(["base_model:adapter", "lora"])
    writer.add_key_value("adapter.lora.alpha", 16.0, GGUFValueType.FLOAT32)
    writer.add_file_type(1 if dtype == "f2" else 0)
    writer.add_quantization_version(2)
    for target, module in OF.items():
        a, b = (tensors[f"{SAVED}{module}.lora_{half}.weight"] for half in "AB")
        writer.add_tensor(f"{target}.lora_a", a.astype(dtype))
        writer.add_tensor(f"{target}.lora_b", (b[ROWS[target]] if ROWS[target] else b).astype(dtype))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("dtype", ["f2", "f4"])
def test_what_llama_cpps_converter_writes_loads_alike(dtype: str, tmp_path: Path) -> None:
    tensors = whole("f2")
    ours = imported(tmp_path, tensors, base())
    as_llama_cpp_converts(tmp_path / "theirs.gguf", tensors, dtype)
    theirs = read_lora(tmp_path / "theirs.gguf", base())
    assert (ours.alpha, ours.rank, list(ours.matrices)) == (theirs.alpha, theirs.rank, list(theirs.matrices))
    for target, matrix in ours.matrices.items():
        assert matrix.scale == theirs.matrices[target].scale
        assert np.array_equal(matrix.a, theirs.matrices[target].a)
        assert np.array_equal(matrix.b, theirs.matrices[target].b)


# --- the file and the pack ----------------------------------------------------------------------------------------


def test_the_file_says_which_base_it_was_trained_on_and_converted_for(tmp_path: Path) -> None:
    imported(tmp_path, whole(), base())
    header = read_header(tmp_path / "adapter.gguf")
    assert header.text("general.architecture") == "llama"
    assert header.text("general.base_model.0.name") == "Llama-3.2-1B-Instruct"
    assert header.metadata["general.base_model.count"] == 1
    assert header.text("personae.base.hash") == "ab" * 32
    assert GGUFReader(tmp_path / "adapter.gguf").get_field("general.base_model.count").contents() == 1


def test_the_manifest_gets_what_is_known_and_no_more() -> None:
    converted = to_lora(peft_from_bytes(config(), safetensors(whole())), base())
    assert manifest_tables(converted, base(), "voice/pirate.gguf") == {
        "adapter": {"file": "voice/pirate.gguf", "scale": 1.0},
        "base": {"architecture": "llama", "name": "Llama-3.2-1B-Instruct", "hash": "ab" * 32, "n_layers": 2, "n_embd": N_EMBD},
    }
    silent = base(hashes=frozenset(), n_layers=0, n_embd=0)
    converted = to_lora(peft_from_bytes(config(base_model_name_or_path=None), safetensors(whole())), silent)
    assert manifest_tables(converted, silent)["base"] == {"architecture": "llama", "name": "Tiny Base"}


def test_an_import_that_cannot_be_written_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converted = to_lora(peft_from_bytes(config(), safetensors(whole())), base())
    path = tmp_path / "adapter.gguf"
    path.write_bytes(b"the last good one")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(WorldFailed) as failure:
        write(converted, path)
    assert failure.value.code == "peft_unwritable"
    assert path.read_bytes() == b"the last good one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    converted = to_lora(peft_from_bytes(config(), safetensors(whole())), base())
    with pytest.raises(WorldFailed, match="nowhere"):
        write(converted, tmp_path / "nowhere" / "adapter.gguf")
