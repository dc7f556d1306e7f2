"""Adapter files that must be refused, each spoiled in one way, with the code of the refusal. Decides what is wrong; knows no reader.

`SPOILED` are well-formed files with wrong content; `FORGED` are bytes a writer would not write: cut short, or lying about sizes, counts and
places. llama.cpp accepts several of them without a word, and one makes it abort: a reader of ours has to stand in front of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFValueType

from tests.tiny.adapters import Draft, Factor, draft_adapter
from tests.tiny.models import N_EMBD, N_FF, TinyModel
from tests.tiny.vocabulary import N_VOCAB

Q, DOWN = "blk.0.attn_q.weight", "blk.0.ffn_down.weight"  # what the drafts hold before they are spoiled
EXPERTS = "blk.0.ffn_gate_exps.weight"  # no tiny model has any
TYPE, KIND, ALPHA, INVOCATION = "general.type", "adapter.type", "adapter.lora.alpha", "adapter.alora.invocation_tokens"
TEXT, F32 = GGUFValueType.STRING, GGUFValueType.FLOAT32
TOO_FAR = 2**62

Spoil = Callable[[Draft], None]
Forge = Callable[[bytes], bytes]


def bad_adapters(folder: Path, model: TinyModel) -> list[tuple[Path, str]]:
    """Write them all into `folder`; (path, error code) of each. The file's stem says what is wrong with it. One path does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = whole_adapter(folder / "whole.gguf", model).read_bytes()
    for name, (_, spoil) in (SPOILED | _about_embedding(model.tied)).items():
        _write_spoiled(folder / f"{name}.gguf", model, spoil)
    for name, (_, forge) in FORGED.items():
        (folder / f"{name}.gguf").write_bytes(forge(whole))
    draft_adapter(model, only=(Q, DOWN), alpha=32.0, rank=32).write(folder / "dtype_q4_0.gguf", "q4_0")
    return [(folder / f"{name}.gguf", code) for name, code in bad_kinds(model.tied).items()]


def bad_kinds(tied: bool) -> dict[str, str]:
    """Stem of each bad file -> error code, in the order in which `bad_adapters` returns them."""
    fixed = {"nowhere": "adapter_missing", "dtype_q4_0": "adapter_unsupported"}
    return fixed | {name: code for name, (code, _) in (SPOILED | _about_embedding(tied) | FORGED).items()}


def whole_adapter(path: Path, model: TinyModel) -> Path:
    """What all of them were before they were spoiled: nothing is wrong with it."""
    draft_adapter(model, only=(Q, DOWN), alpha=4.0).write(path, "f32")
    return path


def draft_embedding(model: TinyModel) -> Draft:
    """A token_embd pair as llama.cpp wants it: A (n_vocab, r), looked up by token; B (n_embd, r). Untied models take it, tied abort."""
    draft = Draft(model.architecture)
    _add_embedding(draft)
    return draft


def _write_spoiled(path: Path, model: TinyModel, spoil: Spoil) -> None:
    draft = draft_adapter(model, only=(Q, DOWN), alpha=4.0)
    spoil(draft)
    draft.write(path, "f32")


def _some(*dims: int) -> Factor:
    return np.random.default_rng(dims).standard_normal(dims).astype(np.float32)


# Spoiled: well-formed, wrong.


def _key(key: str, value: object, *kinds: GGUFValueType) -> Spoil:
    def spoil(draft: Draft) -> None:
        draft.keys[key] = value, *kinds

    return spoil


def _no_key(key: str) -> Spoil:
    def spoil(draft: Draft) -> None:
        del draft.keys[key]

    return spoil


def _call_it_phi3(draft: Draft) -> None:
    draft.architecture = "phi3"


def _add_pair(name: str, n_in: int, n_out: int) -> Spoil:
    return lambda draft: draft.add_pair(name, _some(4, n_in), _some(n_out, 4))


def _replace(name: str, half: str, *dims: int) -> Spoil:
    def spoil(draft: Draft) -> None:
        draft.tensors[f"{name}.lora_{half}"] = _some(*dims)

    return spoil


def _drop(*tensors: str) -> Spoil:
    def spoil(draft: Draft) -> None:
        for tensor in tensors:
            del draft.tensors[tensor]

    return spoil


def _put(tensor: str, value: float) -> Spoil:
    def spoil(draft: Draft) -> None:
        draft.tensors[tensor][-1, -1] = value

    return spoil


def _silence(half: str) -> Spoil:
    def spoil(draft: Draft) -> None:
        for name, array in draft.tensors.items():
            if name.endswith(half):
                array[:] = 0

    return spoil


def _set_rank(rank: int) -> Spoil:
    def spoil(draft: Draft) -> None:
        draft.add_pair(Q, _some(rank, N_EMBD), _some(N_EMBD, rank))

    return spoil


def _add_norm(draft: Draft) -> None:
    draft.tensors["blk.0.attn_norm.weight"] = _some(N_EMBD)


def _add_experts(draft: Draft) -> None:
    draft.add_pair(EXPERTS, _some(2, 4, N_EMBD), _some(2, N_FF, 4))


def _add_stranger(draft: Draft) -> None:
    draft.tensors["blk.0.attn_q.magnitude"] = _some(N_EMBD)


def _keep_nothing(draft: Draft) -> None:
    draft.tensors.clear()


SPOILED: dict[str, tuple[str, Spoil]] = {
    "general_type_is_model": ("adapter_not_lora", _key(TYPE, "model", TEXT)),
    "general_type_left_out": ("adapter_not_lora", _no_key(TYPE)),
    "adapter_type_is_control_vector": ("adapter_not_lora", _key(KIND, "control_vector", TEXT)),
    "adapter_type_left_out": ("adapter_not_lora", _no_key(KIND)),
    "other_architecture": ("adapter_wrong_architecture", _call_it_phi3),
    "unknown_tensor": ("adapter_unknown_tensor", _add_pair("blk.0.attn_qq.weight", N_EMBD, N_EMBD)),
    "layer_too_many": ("adapter_unknown_tensor", _add_pair("blk.99.attn_q.weight", N_EMBD, N_EMBD)),
    "half_a_missing": ("adapter_incomplete_pair", _drop(f"{Q}.lora_a")),
    "half_b_missing": ("adapter_incomplete_pair", _drop(f"{DOWN}.lora_b")),
    "wrong_n_in": ("adapter_shape", _replace(Q, "a", 4, N_EMBD * 2)),
    "wrong_n_out": ("adapter_shape", _replace(Q, "b", N_EMBD - 2, 4)),
    "halves_differ_in_rank": ("adapter_shape", _replace(Q, "b", N_EMBD, 8)),
    "halves_swapped": ("adapter_shape", lambda draft: draft.add_pair(Q, _some(N_EMBD, 4), _some(4, N_EMBD))),
    "vector_for_matrix": ("adapter_shape", _replace(Q, "a", N_EMBD)),
    "nan_in_a": ("adapter_not_finite", _put(f"{Q}.lora_a", np.nan)),
    "nan_in_b": ("adapter_not_finite", _put(f"{DOWN}.lora_b", np.nan)),
    "infinity": ("adapter_not_finite", _put(f"{Q}.lora_b", np.inf)),
    "all_of_a_zero": ("adapter_inert", _silence(".lora_a")),
    "all_of_b_zero": ("adapter_inert", _silence(".lora_b")),
    "no_tensors": ("adapter_empty", _keep_nothing),
    "alpha_zero": ("adapter_alpha", _key(ALPHA, 0.0, F32)),
    "alpha_nan": ("adapter_alpha", _key(ALPHA, float("nan"), F32)),
    "alpha_infinite": ("adapter_alpha", _key(ALPHA, float("inf"), F32)),
    "rank_zero": ("adapter_rank", _set_rank(0)),
    "rank_over_256": ("adapter_rank", _set_rank(257)),
    "norm_tensor": ("adapter_unsupported", _add_norm),
    "norm_pair": ("adapter_unsupported", _add_pair("blk.0.attn_norm.weight", 1, N_EMBD)),
    "expert_tensor": ("adapter_unknown_tensor", _add_experts),
    "tensor_of_another_method": ("adapter_unknown_tensor", _add_stranger),
    "invocation_tokens": ("adapter_unsupported", _key(INVOCATION, [1, 2], GGUFValueType.ARRAY, GGUFValueType.UINT32)),
    "alpha_is_a_text": ("adapter_alpha", _key(ALPHA, "4", TEXT)),
    "type_is_a_number": ("adapter_not_lora", _key(TYPE, 1.0, F32)),
}


def _add_embedding(draft: Draft) -> None:
    draft.add_pair("token_embd.weight", _some(N_VOCAB, 4), _some(N_EMBD, 4))


def _about_embedding(tied: bool) -> dict[str, tuple[str, Spoil]]:
    """What is wrong depends on whether the model's output is its embedding."""
    if tied:
        output = ("adapter_tied_embedding", _add_pair("output.weight", N_EMBD, N_VOCAB))
        return {"embedding_of_tied": ("adapter_tied_embedding", _add_embedding), "output_of_tied": output}
    return {"embedding_of_untied": ("adapter_unsupported", _add_embedding)}


# Forged: bytes that lie.


@dataclass(frozen=True, slots=True)
class Entry:
    """Where the fields of a tensor's entry stand in the file; all tensors here have two dimensions."""

    name: int
    n_dims: int

    @property
    def dims(self) -> int:
        return self.n_dims + 4

    @property
    def dtype(self) -> int:
        return self.dims + 16

    @property
    def offset(self) -> int:
        return self.dtype + 4


def _entry(raw: bytes, tensor: str) -> Entry:
    name = raw.index(struct.pack("<Q", len(tensor)) + tensor.encode()) + 8
    return Entry(name, name + len(tensor))


def _write_at(raw: bytes, place: int, layout: str, *values: int) -> bytes:
    patch = struct.pack(f"<{layout}", *values)
    return raw[:place] + patch + raw[place + len(patch) :]


def _at(place: int, layout: str, *values: int) -> Forge:
    return lambda raw: _write_at(raw, place, layout, *values)


def _in_entry(field: str, layout: str, *values: int) -> Forge:
    return lambda raw: _write_at(raw, getattr(_entry(raw, f"{Q}.lora_a"), field), layout, *values)


def _cut_to(share: float) -> Forge:
    return lambda raw: raw[: int(len(raw) * share)]


def _cut_in_entries(raw: bytes) -> bytes:
    return raw[: _entry(raw, f"{DOWN}.lora_a").dtype + 2]


def _drop_tail(raw: bytes) -> bytes:
    """One value short: the writer pads data to 32 bytes, so cut the padding too."""
    return raw[:-36]


def _twice_the_same_name(raw: bytes) -> bytes:
    other = _entry(raw, f"{Q}.lora_b")
    return _write_at(raw, other.name + len(Q) + 6, "B", ord("a"))


def _overlap(raw: bytes) -> bytes:
    """B's data is said to start where A's does."""
    start = struct.unpack_from("<Q", raw, _entry(raw, f"{Q}.lora_a").offset)[0]
    return _write_at(raw, _entry(raw, f"{Q}.lora_b").offset, "Q", start)


N_TENSORS_AT, N_KEYS_AT, FIRST_KEY_AT = 8, 16, 24

FORGED: dict[str, tuple[str, Forge]] = {
    "no_bytes": ("adapter_truncated", lambda raw: b""),
    "magic_alone": ("adapter_truncated", lambda raw: raw[:4]),
    "header_cut_in_keys": ("adapter_truncated", lambda raw: raw[:60]),
    "header_cut_in_tensors": ("adapter_truncated", _cut_in_entries),
    "half_a_file": ("adapter_truncated", _cut_to(0.5)),
    "last_value_missing": ("adapter_truncated", _drop_tail),
    "wrong_magic": ("adapter_unreadable", lambda raw: b"GGML" + raw[4:]),
    "a_text": ("adapter_unreadable", lambda raw: b"name: Anselm\nstyle: gruff\n" * 40),
    "version_99": ("adapter_unreadable", _at(4, "I", 99)),
    "too_many_tensors": ("adapter_unreadable", _at(N_TENSORS_AT, "Q", TOO_FAR)),
    "too_many_keys": ("adapter_unreadable", _at(N_KEYS_AT, "Q", TOO_FAR)),
    "key_too_long": ("adapter_unreadable", _at(FIRST_KEY_AT, "Q", TOO_FAR)),
    "too_many_dimensions": ("adapter_unreadable", _in_entry("n_dims", "I", 1_000_000)),
    "dimension_overflows": ("adapter_truncated", _in_entry("dims", "QQ", TOO_FAR, 8)),
    "unknown_dtype": ("adapter_unreadable", _in_entry("dtype", "I", 9999)),
    "offset_outside": ("adapter_unreadable", _in_entry("offset", "Q", 2**40)),
    "offset_overflows": ("adapter_unreadable", _in_entry("offset", "Q", 2**64 - 32)),
    "offset_not_aligned": ("adapter_unreadable", _in_entry("offset", "Q", 3)),
    "two_tensors_of_one_name": ("adapter_unreadable", _twice_the_same_name),
    "tensors_overlap": ("adapter_unreadable", _overlap),
}
