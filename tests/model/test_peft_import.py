"""Base and imported adapter in llama.cpp give the logits that PEFT's definition gives, worked out in NumPy without either.

Two references. Where the model's own forward pass is written down (hugging_face.py), the merged weights go through that, in Hugging
Face's order of rows and in float64. For every kind of base besides, the delta is added to the base's file and llama.cpp decodes that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter
from numpy.typing import NDArray

from personae.packs.base import BaseShapes
from personae.packs.gguf import read_header
from personae.packs.lora_writer import write_lora
from personae.packs.peft import read_peft, to_lora, write
from tests.packs.peft.hugging_face import Model, from_gguf
from tests.packs.peft.saved import Array, bf16, halves, save
from tests.tiny import ARCHES, TinyModel, stock, write_model
from tests.tiny.models import GAIN, HEAD_DIM
from tests.tiny.stock import stock_logits

TOKENS = [3, 40, 77, 5, 130, 64, 9, 200, 31, 118, 18, 90]
# Of the largest logit. llama.cpp multiplies A with inputs rounded to A's own type: nothing with float32, and then only the order of
# additions differs; 11 and 8 bits with the others, which is llama.cpp's arithmetic and no matter of what the file says.
WITHIN = {"f4": 2e-5, "f2": 4e-3, "bf16": 3e-2}
FAR = 1e-1
R, ALPHA = 6, 16
Factors = dict[str, tuple[Array, Array]]  # module -> A (r, n_in), B (n_out, r)

MODULES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# kind -> fields of adapter_config.json
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "rank_pattern": {"rank_pattern": {"q_proj": 3, r"layers\.1\.mlp\.down_proj": 8}},
    "alpha_pattern": {"alpha_pattern": {"k_proj": 5, "^model.layers.0.mlp.up_proj": 64}},
    "all at once": {"use_rslora": True, "rank_pattern": {"q_proj": 3, "v_proj": 12}, "alpha_pattern": {"q_proj": 24, "o_proj": 7}},
}


def rank_and_scaling(kind: str, module: str) -> tuple[int, float]:
    """By PEFT's definition and by hand: no pattern is matched here, so that none can be matched wrongly alike."""
    r, alpha = R, float(ALPHA)
    last, layer = module.split(".")[-1], module.removeprefix("model.layers.")[:1]
    if kind == "rank_pattern":
        r = 3 if last == "q_proj" else 8 if (last, layer) == ("down_proj", "1") else R
    if kind == "alpha_pattern":
        alpha = 5.0 if last == "k_proj" else 64.0 if (last, layer) == ("up_proj", "0") else alpha
    if kind == "all at once":
        r = {"q_proj": 3, "v_proj": 12}.get(last, R)
        alpha = {"q_proj": 24.0, "o_proj": 7.0}.get(last, alpha)
    return r, alpha / (math.sqrt(r) if "use_rslora" in KINDS[kind] else r)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TinyModel]:
    folder = tmp_path_factory.mktemp("models")
    return {arch: write_model(folder / f"{arch}.gguf", arch) for arch in ARCHES}


@pytest.fixture(autouse=True)
def float32_kv(monkeypatch: pytest.MonkeyPatch) -> None:
    """K and V in float16 alone would move the logits by 4e-3."""
    usual = stock._context_params

    def params(n_tokens: int) -> Any:
        made = usual(n_tokens)
        made.type_k = made.type_v = llama_cpp.GGML_TYPE_F32
        return made

    monkeypatch.setattr(stock, "_context_params", params)


def module_of(target: str) -> str:
    if target == "output.weight":
        return "lm_head"
    _, layer, name, _ = target.split(".")
    return f"model.layers.{layer}.{MODULES[name]}"


def trained(model: TinyModel, kind: str, dtype: str = "f4") -> Factors:
    """Factors for every module, each delta about half as large as its matrix."""
    random = np.random.default_rng(7)
    found: Factors = {}
    for target, (n_in, n_out) in model.targets.items():
        r, scaling = rank_and_scaling(kind, module_of(target))
        a = (random.standard_normal((r, n_in)) / n_in**0.5).astype(np.float32)
        b = (random.standard_normal((n_out, r)) * 0.5 * GAIN / (scaling * r**0.5)).astype(np.float32)
        found[module_of(target)] = (bf16(a), bf16(b)) if dtype == "bf16" else (a.astype(dtype), b.astype(dtype))
    return found


def as_f64(array: Array) -> NDArray[np.float64]:
    return ((array.astype(np.uint32) << 16).view(np.float32) if array.dtype == np.uint16 else array).astype(np.float64)


def deltas(factors: Factors, kind: str) -> dict[str, NDArray[np.float64]]:
    """PEFT's definition."""
    return {module: rank_and_scaling(kind, module)[1] * (as_f64(b) @ as_f64(a)) for module, (a, b) in factors.items()}


def imported(folder: Path, model: TinyModel, factors: Factors, kind: str) -> Path:
    tensors = {name: half for module, (a, b) in factors.items() for name, half in halves(module, a, b).items()}
    saved = save(folder / "peft", tensors, r=R, lora_alpha=ALPHA, **KINDS[kind])
    write(to_lora(read_peft(saved), BaseShapes.of(read_header(model.path))), folder / "adapter.gguf")
    return folder / "adapter.gguf"


def relative(got: NDArray[Any], wanted: NDArray[Any]) -> float:
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("arch", ["llama", "llama-tied", "qwen2"])
def test_the_reference_is_the_base_that_llama_cpp_decodes(arch: str, models: dict[str, TinyModel]) -> None:
    assert relative(stock_logits(models[arch].path, TOKENS), from_gguf(models[arch].path).logits(TOKENS)) < WITHIN["f4"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arch", ["llama", "llama-tied", "qwen2"])
def test_logits_are_those_of_pefts_definition_in_hugging_faces_model(
    arch: str, kind: str, models: dict[str, TinyModel], tmp_path: Path
) -> None:
    model = models[arch]
    factors = trained(model, kind)
    reference: Model = from_gguf(model.path).merged(deltas(factors, kind))
    wanted = reference.logits(TOKENS)
    assert relative(stock_logits(model.path, TOKENS, imported(tmp_path, model, factors, kind)), wanted) < WITHIN["f4"]
    assert relative(stock_logits(model.path, TOKENS), wanted) > FAR


@pytest.mark.parametrize("dtype", ["f4", "f2", "bf16"])
@pytest.mark.parametrize("arch", ARCHES)
def test_logits_are_those_of_the_base_with_the_delta_added_to_its_file(
    arch: str, dtype: str, models: dict[str, TinyModel], tmp_path: Path
) -> None:
    model, kind = models[arch], "all at once"
    factors = trained(model, kind, dtype)
    write_merged(tmp_path / "merged.gguf", model, deltas(factors, kind))
    wanted = stock_logits(tmp_path / "merged.gguf", TOKENS)
    assert relative(stock_logits(model.path, TOKENS, imported(tmp_path, model, factors, kind)), wanted) < WITHIN[dtype]
    assert relative(stock_logits(model.path, TOKENS), wanted) > FAR


def write_merged(path: Path, model: TinyModel, added: Mapping[str, NDArray[np.float64]]) -> None:
    """A copy of the base with the deltas in it, their rows as the base's are."""
    reader = GGUFReader(model.path)
    writer = GGUFWriter(path, model.architecture)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            writer.add_key_value(name, field.contents(), field.types[0], *field.types[1:2])
    for tensor in reader.tensors:
        delta = added[module_of(tensor.name)] if tensor.name in model.targets else np.zeros(tensor.data.shape)
        if model.architecture == "llama" and tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
            delta = by_turns(delta)
        writer.add_tensor(tensor.name, (tensor.data + delta).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def by_turns(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each head's two halves one row by turns, as LLaMA's Q and K lie in GGUF."""
    heads = np.split(rows, len(rows) // HEAD_DIM)
    halves_of = [np.split(head, 2) for head in heads]
    return np.stack([row for first, second in halves_of for both in zip(first, second, strict=True) for row in both])


@pytest.mark.parametrize(("arch", "kind"), [("llama", "plain"), ("qwen2", "rslora"), ("qwen2", "alpha_pattern")])
def test_rows_left_in_order_or_a_scale_left_out_would_be_seen(arch: str, kind: str, models: dict[str, TinyModel], tmp_path: Path) -> None:
    model = models[arch]
    factors = trained(model, kind)
    write_lora(tmp_path / "naive.gguf", model.architecture, ALPHA, {target: factors[module_of(target)] for target in model.targets})
    wanted = from_gguf(model.path).merged(deltas(factors, kind)).logits(TOKENS)
    assert relative(stock_logits(model.path, TOKENS, tmp_path / "naive.gguf"), wanted) > FAR
