"""A model as Hugging Face holds and computes it, in NumPy and float64, for the LLaMA and Qwen2 families. Knows no llama.cpp.

Rotary embedding turns the two halves of a head against each other (`rotate_half`), and matrices are in that order: written from the
models' definition, so that an import that puts rows into another order than the base's converter did comes out wrong here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

_LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


@dataclass(frozen=True, slots=True)
class Model:
    weights: Mapping[str, Matrix]  # "model.layers.0.self_attn.q_proj.weight", ...
    n_layers: int
    n_heads: int
    n_kv_heads: int
    theta: float
    epsilon: float

    def merged(self, deltas: Mapping[str, Matrix]) -> Model:
        """With `deltas` added: module -> what is added to its weight."""
        return replace(
            self, weights=dict(self.weights) | {f"{name}.weight": self.weights[f"{name}.weight"] + d for name, d in deltas.items()}
        )

    def logits(self, tokens: Sequence[int]) -> Matrix:
        """After each token, (len(tokens), n_vocab)."""
        x = self.weights["model.embed_tokens.weight"][list(tokens)]
        for layer in range(self.n_layers):
            x = x + self._attention(f"model.layers.{layer}.", self._norm(f"model.layers.{layer}.input_layernorm", x))
            x = x + self._mlp(f"model.layers.{layer}.mlp.", self._norm(f"model.layers.{layer}.post_attention_layernorm", x))
        return self._linear("lm_head", self._norm("model.norm", x))

    def _linear(self, name: str, x: Matrix) -> Matrix:
        y = x @ self.weights[f"{name}.weight"].T
        return y + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else y

    def _norm(self, name: str, x: Matrix) -> Matrix:
        normal: Matrix = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.epsilon) * self.weights[f"{name}.weight"]
        return normal

    def _mlp(self, prefix: str, x: Matrix) -> Matrix:
        gate = self._linear(f"{prefix}gate_proj", x)
        return self._linear(f"{prefix}down_proj", gate / (1 + np.exp(-gate)) * self._linear(f"{prefix}up_proj", x))

    def _attention(self, prefix: str, x: Matrix) -> Matrix:
        n, group = len(x), self.n_heads // self.n_kv_heads
        q, k, v = (self._linear(f"{prefix}self_attn.{name}_proj", x) for name in "qkv")
        q = self._rotated(q.reshape(n, self.n_heads, -1).swapaxes(0, 1))
        k = self._rotated(k.reshape(n, self.n_kv_heads, -1).swapaxes(0, 1)).repeat(group, 0)
        v = v.reshape(n, self.n_kv_heads, -1).swapaxes(0, 1).repeat(group, 0)
        scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1]) + np.triu(np.full((n, n), -np.inf), 1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        heard = (weights / weights.sum(-1, keepdims=True)) @ v
        return self._linear(f"{prefix}self_attn.o_proj", heard.swapaxes(0, 1).reshape(n, -1))

    def _rotated(self, x: Matrix) -> Matrix:
        """(heads, tokens, width)"""
        width = x.shape[-1]
        angles = np.arange(x.shape[1])[:, None] * self.theta ** (-np.arange(0, width, 2) / width)
        cos, sin = (np.concatenate([turn, turn], -1) for turn in (np.cos(angles), np.sin(angles)))
        halves = np.concatenate([-x[..., width // 2 :], x[..., : width // 2]], -1)
        turned: Matrix = x * cos + halves * sin
        return turned


def from_gguf(path: Path) -> Model:
    """The model that a GGUF file of these families was converted from."""
    reader = GGUFReader(path)
    architecture = str(reader.fields["general.architecture"].contents())

    def number(key: str) -> float:
        return float(reader.fields[f"{architecture}.{key}"].contents())

    n_layers, n_heads, n_kv_heads = (int(number(key)) for key in ("block_count", "attention.head_count", "attention.head_count_kv"))
    tensors = {tensor.name: tensor.data.astype(np.float64) for tensor in reader.tensors}
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    names |= {f"model.layers.{i}.{name}": f"blk.{i}.{short}" for i in range(n_layers) for name, short in _LAYER.items()}
    tensors.setdefault("output.weight", tensors["token_embd.weight"])
    weights = {
        f"{name}.{kind}": tensors[f"{short}.{kind}"]
        for name, short in names.items()
        for kind in ("weight", "bias")
        if f"{short}.{kind}" in tensors
    }
    if architecture == "llama":
        for name in weights:
            if "q_proj" in name or "k_proj" in name:
                weights[name] = _in_halves(weights[name], n_heads if "q_proj" in name else n_kv_heads)
    return Model(weights, n_layers, n_heads, n_kv_heads, number("rope.freq_base"), number("attention.layer_norm_rms_epsilon"))


def _in_halves(rows: Matrix, n_heads: int) -> Matrix:
    """Back from neighbours: of each head first the even rows, then the odd ones."""
    heads = np.split(rows, n_heads)
    return np.concatenate([part for head in heads for part in (head[0::2], head[1::2])])
