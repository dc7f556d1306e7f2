"""What the two headers alone tell of an adapter and a base. That weights are read after the same rules is for test_lora.py."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from personae.errors import AskedWrong
from personae.packs.base import BaseShapes
from personae.packs.fit import fit
from personae.packs.gguf import parse_header
from tests.packs.gguf_writer import Tensor, gguf, lora_pairs, pair_of

Q, K = "blk.0.attn_q.weight", "blk.0.attn_k.weight"


def test_fitting_pairs_are_told_with_rank_and_alpha(base: BaseShapes) -> None:
    found = fit(parse_header(gguf(lora_pairs(), pair_of(Q, 32, 32, rank=2) + pair_of(K, 32, 16)), Path("a.gguf")), base)
    assert {name: pair.rank for name, pair in found.pairs.items()} == {Q: 2, K: 4}
    assert found.pairs[K].b.dims == (4, 16)
    assert (found.alpha, found.warnings) == (8.0, ())


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (gguf(lora_pairs("qwen2"), pair_of(Q, 32, 32)), "adapter_wrong_architecture"),
        (gguf(lora_pairs(alpha=0.0), pair_of(Q, 32, 32)), "adapter_alpha"),
        (gguf(lora_pairs(), pair_of(Q, 64, 32)), "adapter_shape"),
        (gguf(lora_pairs(), pair_of("blk.7.attn_q.weight", 32, 32)), "adapter_unknown_tensor"),
        (gguf(lora_pairs(), pair_of("token_embd.weight", 32, 64)), "adapter_tied_embedding"),
        (gguf(lora_pairs(), pair_of(Q, 32, 32)[:1]), "adapter_incomplete_pair"),
        (gguf(lora_pairs(), pair_of(Q, 32, 32, rank=257)), "adapter_rank"),
        (gguf(lora_pairs(), [Tensor(f"{Q}.lora_a", (32, 4), b"\0" * 72, "q4_0")]), "adapter_unsupported"),
    ],
)
def test_misfit_is_refused_without_its_weights(content: bytes, code: str, base: BaseShapes) -> None:
    with pytest.raises(AskedWrong) as caught:
        fit(parse_header(content, Path("a.gguf")), base)
    assert caught.value.code == code
    assert "'a.gguf'" in caught.value.message


def test_reading_packs_does_not_cost_numpy() -> None:
    """Which is a sixth of a second at every start of the service."""
    said = subprocess.run(
        [sys.executable, "-c", "import sys, personae.packs.loader, personae.packs.store; print('numpy' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == "False"


def test_adapter_is_held_against_each_base_for_itself(adapter_bytes: bytes, base: BaseShapes) -> None:
    header = parse_header(adapter_bytes, Path("voice.gguf"))
    assert fit(header, base).pairs is fit(parse_header(adapter_bytes, Path("again.gguf")), base).pairs
    smaller = replace(base, matrices={**base.matrices, "blk.0.attn_q.weight": (16, 32)})
    with pytest.raises(AskedWrong) as refused:
        fit(header, smaller)
    assert refused.value.code == "adapter_shape"
