"""Adapters that fit are read exactly; every way not to fit has its own code."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from personae.errors import AskedWrong
from personae.packs.base import BaseShapes
from personae.packs.lora import adapter_key, read_adapter_header, read_lora
from personae.packs.lora_header import MAX_BEHIND_BYTES
from tests.packs.gguf_writer import Tensor, encoded, f16, gguf, lora_pairs, matrix, number_array, pair, pair_of, text_pair

WriteAdapter = Callable[[bytes], Path]

Q, K = "blk.0.attn_q.weight", "blk.0.attn_k.weight"


@pytest.fixture
def adapter(tmp_path: Path) -> WriteAdapter:
    def write(content: bytes) -> Path:
        path = tmp_path / "voice.gguf"
        path.write_bytes(content)
        return path

    return write


def refused(path: Path, base: BaseShapes) -> AskedWrong:
    with pytest.raises(AskedWrong) as caught:
        read_lora(path, base)
    assert path.name in caught.value.message
    assert caught.value.hint
    return caught.value


# --- right ones ---------------------------------------------------------------------------------------------------


def test_pairs_come_as_stored_with_their_shapes_and_scale(adapter: WriteAdapter, base: BaseShapes, adapter_bytes: bytes) -> None:
    lora = read_lora(adapter(adapter_bytes), base)
    assert list(lora.matrices) == [Q, K]
    key = lora.matrices[K]
    assert key.a.dtype == key.b.dtype == np.float16
    np.testing.assert_array_equal(key.a, f16(4, 32, 1))
    np.testing.assert_array_equal(key.b, f16(16, 4, 2))
    assert (lora.alpha, lora.rank, key.scale) == (8.0, 4, 2.0)
    assert lora.warnings == ()
    assert lora.n_bytes == sum(tensor.a.nbytes + tensor.b.nbytes for tensor in lora.matrices.values())


def test_key_is_the_hash_of_the_whole_file(adapter: WriteAdapter, base: BaseShapes, adapter_bytes: bytes) -> None:
    path = adapter(adapter_bytes)
    assert read_lora(path, base).key == adapter_key(path) == hashlib.sha256(adapter_bytes).hexdigest()


def test_rank_and_scale_are_those_of_each_matrix(adapter: WriteAdapter, base: BaseShapes) -> None:
    lora = read_lora(adapter(gguf(lora_pairs(alpha=16.0), pair_of(Q, 32, 32, rank=2) + pair_of(K, 32, 16, rank=8))), base)
    assert {name: (found.rank, found.scale) for name, found in lora.matrices.items()} == {Q: (2, 8.0), K: (8, 2.0)}
    assert lora.rank == 8


def test_missing_alpha_means_scale_one_and_a_warning(adapter: WriteAdapter, base: BaseShapes) -> None:
    lora = read_lora(adapter(gguf(lora_pairs(alpha=None), pair_of(Q, 32, 32))), base)
    assert (lora.alpha, lora.matrices[Q].scale) == (None, 1.0)
    assert "adapter.lora.alpha" in lora.warnings[0]


@pytest.mark.parametrize(("dtype", "tolerance"), [("f32", 0), ("bf16", 0.01), ("q8_0", 0.01)])
def test_other_types_become_float32(dtype: str, tolerance: float, adapter: WriteAdapter, base: BaseShapes) -> None:
    lora = read_lora(adapter(gguf(lora_pairs(), pair_of(Q, 32, 32, rank=32, dtype=dtype))), base)
    assert lora.matrices[Q].a.dtype == lora.matrices[Q].b.dtype == np.float32
    np.testing.assert_allclose(lora.matrices[Q].a, f16(32, 32, 1).astype(np.float32), atol=tolerance)
    np.testing.assert_allclose(lora.matrices[Q].b, f16(32, 32, 2).astype(np.float32), atol=tolerance)


def test_negative_q8_0_values_keep_their_sign(adapter: WriteAdapter, base: BaseShapes) -> None:
    a = f16(4, 32)
    a[:, ::2] *= -1
    lora = read_lora(adapter(gguf(lora_pairs(), [matrix(f"{Q}.lora_a", a, "q8_0"), matrix(f"{Q}.lora_b", f16(32, 4))])), base)
    np.testing.assert_allclose(lora.matrices[Q].a, a.astype(np.float32), atol=0.01)


def test_weights_are_aligned_and_read_only_whatever_the_file_says(adapter: WriteAdapter, base: BaseShapes) -> None:
    tensors = pair_of(Q, 32, 32, dtype="f32")
    for extra in range(4):  # one of these puts the weights on an odd address
        content = gguf([*lora_pairs(), pair("general.alignment", "u32", 1), text_pair("pad", "x" * extra)], tensors, alignment=1)
        for weights in (read_lora(adapter(content), base).matrices[Q].a, read_lora(adapter(content), base).matrices[Q].b):
            assert weights.flags.aligned
            assert weights.flags.c_contiguous
            assert not weights.flags.writeable
            assert np.isfinite(weights).all()


def test_rank_one_may_be_stored_with_fewer_or_more_dimensions(adapter: WriteAdapter, base: BaseShapes) -> None:
    a, b = f16(1, 32, 1), f16(32, 1, 2)
    tensors = [Tensor(f"{Q}.lora_a", (32,), encoded(a, "f16")), Tensor(f"{Q}.lora_b", (1, 32, 1), encoded(b, "f16"))]
    found = read_lora(adapter(gguf(lora_pairs(), tensors)), base).matrices[Q]
    assert (found.a.shape, found.b.shape, found.rank) == ((1, 32), (32, 1), 1)


def test_output_matrix_of_an_untied_model_can_be_adapted(adapter: WriteAdapter, untied_base: BaseShapes) -> None:
    assert "output.weight" in read_lora(adapter(gguf(lora_pairs(), pair_of("output.weight", 32, 64))), untied_base).matrices


def test_one_pair_without_effect_is_no_reason_to_refuse(adapter: WriteAdapter, base: BaseShapes) -> None:
    dead = [matrix(f"{Q}.lora_a", f16(4, 32)), matrix(f"{Q}.lora_b", np.zeros((32, 4), np.float16))]
    assert read_lora(adapter(gguf(lora_pairs(), dead + pair_of(K, 32, 16))), base).matrices[Q].is_inert


def test_adapter_that_names_another_base_is_warned_of(adapter: WriteAdapter, base: BaseShapes) -> None:
    said = [*lora_pairs(), text_pair("general.base_model.0.name", "Huge Base 70B")]
    assert "'Huge Base 70B'" in read_lora(adapter(gguf(said, pair_of(Q, 32, 32))), base).warnings[0]
    same = [*lora_pairs(), text_pair("general.base_model.0.name", "tiny-base")]
    assert read_lora(adapter(gguf(same, pair_of(Q, 32, 32))), base).warnings == ()


# --- wrong ones ---------------------------------------------------------------------------------------------------


def spoilt(value: float, dtype: str = "f16") -> list[Tensor]:
    a = f16(4, 32).astype(np.float32)
    a[1, 3] = value
    return [matrix(f"{Q}.lora_a", a, dtype), matrix(f"{Q}.lora_b", f16(32, 4))]


def infinite_block() -> list[Tensor]:
    """q8_0 whose scale is infinite and whose numbers are all zero."""
    return [Tensor(f"{Q}.lora_a", (32, 4), (b"\x00\x7c" + b"\0" * 32) * 4, "q8_0"), matrix(f"{Q}.lora_b", f16(32, 4))]


def without(key: str) -> list[bytes]:
    return [found for found in lora_pairs() if key.encode() not in found]


def with_alpha(found: bytes) -> bytes:
    return gguf([*lora_pairs(alpha=None), found], GOOD)


GOOD = pair_of(Q, 32, 32)
ZERO_A, ZERO_B = np.zeros((4, 32), np.float16), np.zeros((32, 4), np.float16)

BAD = {
    "no gguf at all": ("unreadable", b"PK\x03\x04 a zip file"),
    "html instead of a file": ("unreadable", b"<!DOCTYPE html><html>"),
    "git lfs pointer": ("unreadable", b"version https://git-lfs.github.com/spec/v1\n"),
    "nothing in it": ("truncated", b""),
    "cut in the header": ("truncated", gguf(lora_pairs(), GOOD)[:150]),
    "cut in the weights": ("truncated", gguf(lora_pairs(), GOOD)[:-40]),
    "forged shape": ("truncated", gguf(lora_pairs(), [Tensor(f"{Q}.lora_a", (2**40, 2**40), b"")])),
    "forged number of tensors": ("unreadable", gguf(lora_pairs(), GOOD, n_tensors=2**60)),
    "a model": ("not_lora", gguf([text_pair("general.type", "model"), text_pair("general.architecture", "llama")], GOOD)),
    "no type": ("not_lora", gguf(without("general.type"), GOOD)),
    "no adapter type": ("not_lora", gguf(without("adapter.type"), GOOD)),
    "another kind of adapter": ("not_lora", gguf([*without("adapter.type"), text_pair("adapter.type", "control_vector")], GOOD)),
    "type that is no text": ("not_lora", gguf([*without("general.type"), pair("general.type", "u32", 1)], GOOD)),
    "other architecture": ("wrong_architecture", gguf(lora_pairs("gemma3"), GOOD)),
    "no architecture": ("wrong_architecture", gguf(without("general.architecture"), GOOD)),
    "layer the base has not": ("unknown_tensor", gguf(lora_pairs(), pair_of("blk.7.attn_q.weight", 32, 32))),
    "tensor that is no half": ("unknown_tensor", gguf(lora_pairs(), [*GOOD, matrix("blk.0.something", f16(4, 4))])),
    "tensor called only lora_a": ("unknown_tensor", gguf(lora_pairs(), [matrix(".lora_a", f16(4, 32)), matrix(".lora_b", f16(32, 4))])),
    "a too wide": ("shape", gguf(lora_pairs(), pair_of(Q, 64, 32))),
    "b too tall": ("shape", gguf(lora_pairs(), pair_of(Q, 32, 64))),
    "halves of different rank": ("shape", gguf(lora_pairs(), [pair_of(Q, 32, 32, 4)[0], pair_of(Q, 32, 32, 8)[1]])),
    "transposed": ("shape", gguf(lora_pairs(), [matrix(f"{Q}.lora_a", f16(32, 4)), matrix(f"{Q}.lora_b", f16(4, 32))])),
    "three dimensions": ("shape", gguf(lora_pairs(), [Tensor(f"{Q}.lora_a", (32, 2, 2), encoded(f16(4, 32), "f16")), GOOD[1]])),
    "a without b": ("incomplete_pair", gguf(lora_pairs(), GOOD[:1])),
    "b without a": ("incomplete_pair", gguf(lora_pairs(), [*GOOD, pair_of(K, 32, 16)[1]])),
    "no tensors": ("empty", gguf(lora_pairs())),
    "nan": ("not_finite", gguf(lora_pairs(), spoilt(float("nan")))),
    "infinity": ("not_finite", gguf(lora_pairs(), spoilt(float("-inf"), "f32"))),
    "nan in bf16": ("not_finite", gguf(lora_pairs(), spoilt(float("nan"), "bf16"))),
    "infinite scale in q8_0": ("not_finite", gguf(lora_pairs(), infinite_block())),
    "untrained, b zero": ("inert", gguf(lora_pairs(), [GOOD[0], matrix(f"{Q}.lora_b", ZERO_B)])),
    "a zero": ("inert", gguf(lora_pairs(), [matrix(f"{Q}.lora_a", ZERO_A), GOOD[1]])),
    "a minus zero": ("inert", gguf(lora_pairs(), [matrix(f"{Q}.lora_a", -ZERO_A), GOOD[1]])),
    "alpha zero": ("alpha", with_alpha(pair("adapter.lora.alpha", "f32", 0.0))),
    "alpha negative": ("alpha", with_alpha(pair("adapter.lora.alpha", "f32", -16.0))),
    "alpha nan": ("alpha", with_alpha(pair("adapter.lora.alpha", "f32", float("nan")))),
    "alpha infinite": ("alpha", with_alpha(pair("adapter.lora.alpha", "f32", float("inf")))),
    "alpha a whole number": ("alpha", with_alpha(pair("adapter.lora.alpha", "u32", 16))),
    "alpha in double precision": ("alpha", with_alpha(pair("adapter.lora.alpha", "f64", 16.0))),
    "alpha a text": ("alpha", with_alpha(text_pair("adapter.lora.alpha", "16"))),
    "embedding of a tied model": ("tied_embedding", gguf(lora_pairs(), pair_of("token_embd.weight", 32, 64))),
    "output of a tied model": ("tied_embedding", gguf(lora_pairs(), [*GOOD, *pair_of("output.weight", 32, 64)])),
    "trained norm": ("unsupported", gguf(lora_pairs(), [*GOOD, Tensor("blk.0.attn_norm.weight", (32,), b"\0" * 64)])),
    "pair for a norm": ("unsupported", gguf(lora_pairs(), pair_of("blk.0.attn_norm.weight", 32, 1))),
    "experts": ("unsupported", gguf(lora_pairs(), pair_of("blk.0.ffn_up_exps.weight", 32, 64))),
    "matrix that llama.cpp does not adapt": ("unsupported", gguf(lora_pairs(), pair_of("blk.0.ssm_conv1d.weight", 4, 32))),
    "activated lora": ("unsupported", gguf([*lora_pairs(), number_array("adapter.alora.invocation_tokens", [1, 2])], GOOD)),
    "four bit weights": ("unsupported", gguf(lora_pairs(), [Tensor(f"{Q}.lora_a", (32, 4), b"\1" * 72, "q4_0"), GOOD[1]])),
    "rank above the limit": ("rank", gguf(lora_pairs(), pair_of(Q, 32, 32, rank=257))),
    "rank zero": ("rank", gguf(lora_pairs(), [Tensor(f"{Q}.lora_a", (32, 0), b""), Tensor(f"{Q}.lora_b", (0, 32), b"")])),
}


@pytest.mark.parametrize(("code", "content"), BAD.values(), ids=BAD.keys())
def test_bad_adapter_is_refused_by_its_own_code(code: str, content: bytes, adapter: WriteAdapter, base: BaseShapes) -> None:
    assert refused(adapter(content), base).code == f"adapter_{code}"


def test_embedding_of_an_untied_model_is_unsupported(adapter: WriteAdapter, untied_base: BaseShapes) -> None:
    assert refused(adapter(gguf(lora_pairs(), pair_of("token_embd.weight", 32, 64))), untied_base).code == "adapter_unsupported"


def test_wrong_shape_names_tensor_base_and_both_shapes(adapter: WriteAdapter, base: BaseShapes) -> None:
    message = refused(adapter(gguf(lora_pairs(), pair_of(Q, 64, 32))), base).message
    for part in ("'voice.gguf'", f"'{Q}'", "'Tiny Base'", "lora_a (64, 4)", "lora_b (4, 32)", "(32, 32)"):
        assert part in message


def test_wrong_architecture_names_both_and_shows_both_shapes(adapter: WriteAdapter, base: BaseShapes) -> None:
    message = refused(adapter(gguf(lora_pairs("qwen2"), pair_of(Q, 896, 896))), base).message
    for part in ("'qwen2'", "'llama'", "'Tiny Base'", f"'{Q}'", "(896, 896)", "(32, 32)"):
        assert part in message


def test_missing_adapter_is_missing(tmp_path: Path, base: BaseShapes) -> None:
    assert refused(tmp_path / "gone.gguf", base).code == "adapter_missing"
    for look in (adapter_key, read_adapter_header):
        with pytest.raises(AskedWrong) as caught:
            look(tmp_path / "gone.gguf")
        assert caught.value.code == "adapter_missing"


def test_folder_is_no_adapter(tmp_path: Path, base: BaseShapes) -> None:
    assert refused(tmp_path, base).code == "adapter_unreadable"


def test_file_beyond_the_size_limit_is_not_even_read(adapter: WriteAdapter, base: BaseShapes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("personae.packs.lora.MAX_ADAPTER_BYTES", 100)
    assert "more than 100" in refused(adapter(gguf(lora_pairs(), GOOD)), base).message


def test_file_that_is_mostly_something_else_is_refused_by_its_header(adapter: WriteAdapter, adapter_bytes: bytes) -> None:
    """It would have to be held in memory to be read, and no budget for weights would know."""
    assert read_adapter_header(adapter(adapter_bytes + b"\0" * MAX_BEHIND_BYTES))
    with pytest.raises(AskedWrong, match="behind its weights") as caught:
        read_adapter_header(adapter(adapter_bytes + b"\0" * (MAX_BEHIND_BYTES + 64)))
    assert caught.value.code == "adapter_unreadable"


def test_path_with_spaces_and_other_scripts_is_read(tmp_path: Path, base: BaseShapes, adapter_bytes: bytes) -> None:
    path = tmp_path / "Küche – 宿屋" / "die Stimme.gguf"
    path.parent.mkdir()
    path.write_bytes(adapter_bytes)
    assert read_lora(path, base).path == path


def test_light_check_passes_what_only_a_base_can_refuse(adapter: WriteAdapter) -> None:
    assert read_adapter_header(adapter(gguf(lora_pairs(), pair_of("blk.7.attn_q.weight", 9, 9)))).tensors


SEED = gguf(lora_pairs(), GOOD)


@settings(derandomize=True, max_examples=300, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, len(SEED) - 1), value=st.integers(0, 255))
def test_damaged_adapter_is_whole_or_refused_and_nothing_else(place: int, value: int, adapter: WriteAdapter, base: BaseShapes) -> None:
    content = bytearray(SEED)
    content[place] = value
    code, pairs = "adapter_", []
    try:
        pairs = list(read_lora(adapter(bytes(content)), base).matrices.values())
    except AskedWrong as fault:
        code = fault.code
    assert code.startswith("adapter_")
    assert all(np.isfinite(found.a).all() and np.isfinite(found.b).all() for found in pairs)
