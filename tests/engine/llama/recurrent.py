"""A tiny Mamba with random weights: a model whose memory is one state for each sequence, which cannot be cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray

from tests.tiny.models import finish
from tests.tiny.vocabulary import CHATML, N_VOCAB, add_vocabulary

N_LAYER, N_EMBD, N_INNER, N_STATE, KERNEL, N_RANK = 2, 64, 128, 8, 4, 4


def write_mamba(path: Path) -> Path:
    writer = GGUFWriter(path, "mamba")
    writer.add_type("model")
    writer.add_name("tiny mamba")
    writer.add_context_length(512)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(N_LAYER)
    writer.add_ssm_conv_kernel(KERNEL)
    writer.add_ssm_inner_size(N_INNER)
    writer.add_ssm_state_size(N_STATE)
    writer.add_ssm_time_step_rank(N_RANK)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(N_VOCAB)
    add_vocabulary(writer, chat_template=CHATML, adds_bos=False)
    for name, weights in _tensors().items():
        writer.add_tensor(name, weights)
    finish(writer)
    return path


def _tensors() -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(0)

    def normal(*dims: int) -> NDArray[np.float32]:
        return (random.standard_normal(dims) * 0.4).astype(np.float32)

    tensors = {"token_embd.weight": normal(N_VOCAB, N_EMBD), "output_norm.weight": np.ones(N_EMBD, np.float32)}
    for layer in range(N_LAYER):
        block = {
            "attn_norm.weight": np.ones(N_EMBD, np.float32),
            "ssm_in.weight": normal(2 * N_INNER, N_EMBD),
            "ssm_conv1d.weight": normal(N_INNER, KERNEL),
            "ssm_conv1d.bias": normal(N_INNER),
            "ssm_x.weight": normal(N_RANK + 2 * N_STATE, N_INNER),
            "ssm_dt.weight": normal(N_INNER, N_RANK),
            "ssm_dt.bias": normal(N_INNER),
            "ssm_a": -np.abs(normal(N_INNER, N_STATE)) - np.float32(0.1),
            "ssm_d": np.ones(N_INNER, np.float32),
            "ssm_out.weight": normal(N_EMBD, N_INNER),
        }
        tensors |= {f"blk.{layer}.{name}": weights for name, weights in block.items()}
    return tensors
