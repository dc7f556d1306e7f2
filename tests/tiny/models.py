"""Tiny random-weight F32 models of four kinds. Decides shapes and weights; knows no adapter and no llama.cpp.

    llama       untied output.weight, one KV head
    llama-tied  token_embd.weight is the output too, two KV heads
    qwen2       biases on Q, K and V, untied, no BOS
    gemma3      tied, norms after each block, Q and K norms, a sliding window on layers 0 and 2

Weights are seeded by tensor name, so a model is the same whatever else is written, and scaled so that logits are well spread and greedy
text wanders: in a tied model the blocks must outweigh the embedding in the residual, or it repeats its last token for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from zlib import crc32

import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray

from tests.tiny.vocabulary import CHATML, N_VOCAB, add_vocabulary, speakable

N_EMBD = 64
N_HEAD = 2
HEAD_DIM = 32
N_FF = 128
N_CTX = 512
GAIN = 2.0  # deviation of a matrix times sqrt(n_in): what a block adds is then well above an embedding of 0.4
# Gemma multiplies embeddings by sqrt(N_EMBD), so its post norms must be loud too; sharp Q and K keep attention from averaging everything.
NORM_GAIN = {"post_attention_norm": 8.0, "post_ffw_norm": 8.0, "attn_q_norm": 2.5, "attn_k_norm": 2.5}
WINDOW = 32  # tokens a sliding-window layer of gemma3 looks back

Weights = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Shape:
    architecture: str  # GGUF general.architecture
    n_layer: int
    n_head_kv: int
    tied: bool
    qkv_bias: bool = False
    gemma: bool = False
    adds_bos: bool = True

    @property
    def n_kv(self) -> int:
        return self.n_head_kv * HEAD_DIM


SHAPES = MappingProxyType(
    {
        "llama": Shape("llama", n_layer=2, n_head_kv=1, tied=False),
        "llama-tied": Shape("llama", n_layer=2, n_head_kv=2, tied=True),
        "qwen2": Shape("qwen2", n_layer=2, n_head_kv=1, tied=False, qkv_bias=True, adds_bos=False),
        "gemma3": Shape("gemma3", n_layer=3, n_head_kv=1, tied=True, gemma=True),
    }
)
ARCHES = tuple(SHAPES)


@dataclass(frozen=True, slots=True)
class TinyModel:
    path: Path
    architecture: str
    targets: dict[str, tuple[int, int]]  # what llama.cpp applies LoRA to as B(Ax): name -> (n_in, n_out); never token_embd
    tied: bool
    n_layer: int
    n_vocab: int = N_VOCAB


def write_model(path: Path, arch: str = "llama", seed: int = 0, *, chat_template: str | None = CHATML) -> TinyModel:
    """Write one of ARCHES. The same arguments give the same bytes. `chat_template` None: the file has none."""
    shape = SHAPES[arch]
    writer = GGUFWriter(path, shape.architecture)
    _add_hyperparameters(writer, shape, f"tiny {arch} {seed}")
    add_vocabulary(writer, chat_template=chat_template, adds_bos=shape.adds_bos)
    for name, weights in _tensors(shape, seed).items():
        writer.add_tensor(name, weights)
    finish(writer)
    return TinyModel(path, shape.architecture, _targets(shape), shape.tied, shape.n_layer)


def finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_hyperparameters(writer: GGUFWriter, shape: Shape, name: str) -> None:
    writer.add_type("model")
    writer.add_name(name)
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(N_VOCAB)
    if shape.gemma:
        writer.add_key_length(HEAD_DIM)
        writer.add_value_length(HEAD_DIM)
        writer.add_sliding_window(WINDOW)
        writer.add_sliding_window_pattern([layer % 2 == 0 for layer in range(shape.n_layer)])


def _block_matrices(shape: Shape) -> dict[str, tuple[int, int]]:
    """The matrices of one layer: name -> (n_in, n_out)."""
    n_q = N_HEAD * HEAD_DIM
    return {
        "attn_q": (N_EMBD, n_q),
        "attn_k": (N_EMBD, shape.n_kv),
        "attn_v": (N_EMBD, shape.n_kv),
        "attn_output": (n_q, N_EMBD),
        "ffn_gate": (N_EMBD, N_FF),
        "ffn_up": (N_EMBD, N_FF),
        "ffn_down": (N_FF, N_EMBD),
    }


def _block_norms(shape: Shape) -> dict[str, int]:
    plain = {"attn_norm": N_EMBD, "ffn_norm": N_EMBD}
    extra = {"post_attention_norm": N_EMBD, "post_ffw_norm": N_EMBD, "attn_q_norm": HEAD_DIM, "attn_k_norm": HEAD_DIM}
    return plain | extra if shape.gemma else plain


def _targets(shape: Shape) -> dict[str, tuple[int, int]]:
    blocks = {f"blk.{i}.{name}.weight": dims for i in range(shape.n_layer) for name, dims in _block_matrices(shape).items()}
    return blocks if shape.tied else blocks | {"output.weight": (N_EMBD, N_VOCAB)}


def _tensors(shape: Shape, seed: int) -> dict[str, Weights]:
    """Arrays are (n_out, n_in) or (n,), as the writer wants them."""
    loud = np.array([speakable(token) for token in range(N_VOCAB)], np.float32)[:, None]
    words = _normal(seed, "token_embd.weight", (N_VOCAB, N_EMBD), 0.4) * loud
    tensors = {"token_embd.weight": words, "output_norm.weight": _norm(seed, "output_norm.weight", N_EMBD)}
    if not shape.tied:
        tensors["output.weight"] = _normal(seed, "output.weight", (N_VOCAB, N_EMBD), 0.4) * loud
    for layer in range(shape.n_layer):
        tensors |= _block(shape, seed, f"blk.{layer}.")
    return tensors


def _block(shape: Shape, seed: int, prefix: str) -> dict[str, Weights]:
    tensors: dict[str, Weights] = {}
    for short, (n_in, n_out) in _block_matrices(shape).items():
        name = f"{prefix}{short}.weight"
        tensors[name] = _normal(seed, name, (n_out, n_in), GAIN / n_in**0.5)
    for short, size in _block_norms(shape).items():
        name = f"{prefix}{short}.weight"
        tensors[name] = _norm(seed, name, size) * np.float32(NORM_GAIN.get(short, 1))
    if shape.qkv_bias:
        for short, size in (("attn_q", N_HEAD * HEAD_DIM), ("attn_k", shape.n_kv), ("attn_v", shape.n_kv)):
            name = f"{prefix}{short}.bias"
            tensors[name] = _normal(seed, name, (size,), 0.5)
    return tensors


def _normal(seed: int, name: str, dims: tuple[int, ...], deviation: float) -> Weights:
    random = np.random.default_rng([seed, crc32(name.encode())])
    return (random.standard_normal(dims) * deviation).astype(np.float32)


def _norm(seed: int, name: str, size: int) -> Weights:
    return np.float32(1) + _normal(seed, name, (size,), 0.1)
