"""Writes small GGUF files by hand, right or wrong: nothing here checks what it is told. Knows the format and none of our reader."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

KINDS = {"u8": (0, "<B"), "u32": (4, "<I"), "i32": (5, "<i"), "f32": (6, "<f"), "bool": (7, "<?"), "u64": (10, "<Q"), "f64": (12, "<d")}
DTYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "bf16": 30}


@dataclass
class Tensor:
    """`dims` fastest first. `dtype` a name or a raw number; `offset` None: where it belongs."""

    name: str
    dims: tuple[int, ...]
    content: bytes
    dtype: str | int = "f16"
    offset: int | None = None


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def text_pair(key: str | bytes, value: str | bytes) -> bytes:
    return string(key) + struct.pack("<I", 8) + string(value)


def pair(key: str, kind: str, value: float | int | bool) -> bytes:
    number, shape = KINDS[kind]
    return string(key) + struct.pack("<I", number) + struct.pack(shape, value)


def text_array(key: str, texts: Sequence[str]) -> bytes:
    return string(key) + struct.pack("<IIQ", 9, 8, len(texts)) + b"".join(map(string, texts))


def number_array(key: str, values: Sequence[int]) -> bytes:
    return string(key) + struct.pack("<IIQ", 9, 4, len(values)) + struct.pack(f"<{len(values)}I", *values)


def gguf(
    pairs: Sequence[bytes],
    tensors: Sequence[Tensor] = (),
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_pairs: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    head = magic + struct.pack(
        "<IQQ", version, len(tensors) if n_tensors is None else n_tensors, len(pairs) if n_pairs is None else n_pairs
    )
    head += b"".join(pairs)
    weights = b""
    for tensor in tensors:
        dtype = DTYPES[tensor.dtype] if isinstance(tensor.dtype, str) else tensor.dtype
        offset = len(weights) if tensor.offset is None else tensor.offset
        head += string(tensor.name) + struct.pack(f"<I{len(tensor.dims)}QIQ", len(tensor.dims), *tensor.dims, dtype, offset)
        weights += padded(tensor.content, alignment)
    return padded(head, alignment) + weights


def padded(content: bytes, alignment: int) -> bytes:
    return content + b"\0" * (-len(content) % alignment)


def f16(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Random weights, none of them zero."""
    return (np.random.default_rng(seed).random((rows, columns)) + 0.5).astype(np.float16)


def matrix(name: str, array: np.ndarray, dtype: str = "f16") -> Tensor:
    """A 2-D numpy array (rows, columns) as a tensor of dims (columns, rows)."""
    return Tensor(name, array.shape[::-1], encoded(array, dtype), dtype)


def encoded(array: np.ndarray, dtype: str) -> bytes:
    if dtype == "bf16":
        return (array.astype("<f4").view(np.uint32) >> 16).astype("<u2").tobytes()
    if dtype == "q8_0":
        blocks = array.astype(np.float32).reshape(-1, 32)
        scales = (np.abs(blocks).max(1, keepdims=True) / 127).astype("<f2")
        quants = np.round(blocks / scales.astype(np.float32)).astype(np.int8)
        return np.concatenate([scales.view(np.uint8).reshape(-1, 2), quants.view(np.uint8)], 1).tobytes()
    return array.astype({"f16": "<f2", "f32": "<f4"}[dtype]).tobytes()


def pair_of(target: str, n_in: int, n_out: int, rank: int = 4, dtype: str = "f16") -> list[Tensor]:
    return [matrix(f"{target}.lora_a", f16(rank, n_in, 1), dtype), matrix(f"{target}.lora_b", f16(n_out, rank, 2), dtype)]


def lora_pairs(architecture: str = "llama", alpha: float | None = 8.0) -> list[bytes]:
    pairs = [text_pair("general.type", "adapter"), text_pair("adapter.type", "lora"), text_pair("general.architecture", architecture)]
    return pairs if alpha is None else [*pairs, pair("adapter.lora.alpha", "f32", alpha)]
