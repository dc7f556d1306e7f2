"""What PEFT saves, written by hand: nothing here checks what it is told, and none of it is read by the library under test."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from personae.packs.base import BaseShapes

Array = NDArray[Any]
DTYPES = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", np.dtype(np.uint16): "BF16", np.dtype(np.float64): "F64"}
Q, K, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.k_proj", "model.layers.1.mlp.down_proj"
N_EMBD, N_Q, N_KV, N_FF, N_VOCAB, N_HEADS, N_LAYERS = 24, 32, 16, 40, 50, 4, 2

_AS_SAVED: dict[str, Any] = {
    "alpha_pattern": {},
    "auto_mapping": None,
    "base_model_name_or_path": "meta-llama/Llama-3.2-1B-Instruct",
    "bias": "none",
    "corda_config": None,
    "eva_config": None,
    "exclude_modules": None,
    "fan_in_fan_out": False,
    "inference_mode": True,
    "init_lora_weights": True,
    "layer_replication": None,
    "layers_pattern": None,
    "layers_to_transform": None,
    "loftq_config": {},
    "lora_alpha": 16,
    "lora_bias": False,
    "lora_dropout": 0.05,
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "peft_type": "LORA",
    "qalora_group_size": 16,
    "r": 4,
    "rank_pattern": {},
    "revision": None,
    "target_modules": ["q_proj", "k_proj"],
    "target_parameters": None,
    "task_type": "CAUSAL_LM",
    "trainable_token_indices": None,
    "use_dora": False,
    "use_qalora": False,
    "use_rslora": False,
}


def config(**changes: Any) -> bytes:
    """adapter_config.json as PEFT 0.17 writes it, with changes."""
    return json.dumps(_AS_SAVED | changes).encode()


def safetensors(tensors: Mapping[str, Array]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    content = b""
    for name, array in tensors.items():
        end = len(content) + array.nbytes
        header[name] = {"dtype": DTYPES[array.dtype], "shape": list(array.shape), "data_offsets": [len(content), end]}
        content += array.tobytes()
    return with_header(header, content)


def with_header(header: Any, content: bytes = b"", *, n: int | None = None) -> bytes:
    """`header` an object or its raw bytes; `n` the length that is claimed for it."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if n is None else n) + raw + content


def save(folder: Path, tensors: Mapping[str, Array], **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_bytes(config(**changes))
    (folder / "adapter_model.safetensors").write_bytes(safetensors(tensors))
    return folder


def halves(module: str, a: Array, b: Array, *, prefix: str = "base_model.model.", adapter: str = "") -> dict[str, Array]:
    return {f"{prefix}{module}.lora_A{adapter}.weight": a, f"{prefix}{module}.lora_B{adapter}.weight": b}


def pair(module: str, n_in: int, n_out: int, r: int = 4, dtype: str = "f4", *, seed: int = 0, **names: str) -> dict[str, Array]:
    """Random halves. `dtype` "bf16" is rounded towards zero from float32."""
    random = np.random.default_rng([seed, len(module), n_in, n_out, r])
    drawn = [random.standard_normal(dims).astype(np.float32) for dims in ((r, n_in), (n_out, r))]
    stored = [bf16(array) if dtype == "bf16" else array.astype(dtype) for array in drawn]
    return halves(module, stored[0], stored[1], **names)


def bf16(array: NDArray[np.float32]) -> NDArray[np.uint16]:
    return (array.view(np.uint32) >> 16).astype(np.uint16)


def whole(dtype: str = "f4") -> dict[str, Array]:
    """An adapter for three modules of `base()`."""
    return pair(Q, N_EMBD, N_Q, dtype=dtype) | pair(K, N_EMBD, N_KV, dtype=dtype) | pair(DOWN, N_FF, N_EMBD, dtype=dtype)


def base(architecture: str = "llama", *, tied: bool = False, **changes: Any) -> BaseShapes:
    """A base as its header would tell it: four heads of 8, two KV heads."""
    attention = {"attn_q": (N_EMBD, N_Q), "attn_k": (N_EMBD, N_KV), "attn_v": (N_EMBD, N_KV), "attn_output": (N_Q, N_EMBD)}
    dense = {"ffn_gate": (N_EMBD, N_FF), "ffn_up": (N_EMBD, N_FF), "ffn_down": (N_FF, N_EMBD)}
    fused = {"attn_qkv": (N_EMBD, N_Q + 2 * N_KV), "attn_output": (N_Q, N_EMBD), "ffn_up": (N_EMBD, 2 * N_FF), "ffn_down": (N_FF, N_EMBD)}
    layer = fused if architecture == "phi3" else attention | dense
    matrices = {"token_embd.weight": (N_EMBD, N_VOCAB)} | ({} if tied else {"output.weight": (N_EMBD, N_VOCAB)})
    matrices |= {f"blk.{i}.{name}.weight": shape for i in range(N_LAYERS) for name, shape in layer.items()}
    made = BaseShapes(
        architecture=architecture,
        name="Tiny Base",
        file="tiny.gguf",
        matrices=matrices,
        experts=frozenset(),
        vectors=frozenset({"blk.0.attn_norm.weight"}),
        tied=tied,
        sites=frozenset(name for name in matrices if name != "token_embd.weight"),
        n_layers=N_LAYERS,
        n_embd=N_EMBD,
        n_heads=N_HEADS,
        n_kv_heads=N_HEADS * N_KV // N_Q,
        hashes=frozenset({"ab" * 32}),
    )
    return replace(made, **changes)
