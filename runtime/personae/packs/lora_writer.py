"""Writes GGUF LoRA files: the template the mixer stands on, the adapters of the self-check and of the benchmarks.

A writer of the few things an adapter holds, version 3, little-endian. Reading foreign files is packs/lora.py.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

_ALIGNMENT = 32
_U32, _F32, _STRING = 4, 6, 8  # GGUF value types
_TENSOR_TYPES = {np.dtype(np.float32): 0, np.dtype(np.float16): 1}

Pair = tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]  # A: (rank, n_in), B: (n_out, rank); float16 or float32


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _key(name: str, kind: int, value: bytes) -> bytes:
    return _string(name) + struct.pack("<I", kind) + value


def _aligned(n: int) -> int:
    return (n + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT


def write_lora(path: Path, architecture: str, alpha: float, matrices: Mapping[str, Pair]) -> None:
    """matrices: base tensor name -> (A, B). `alpha` as llama.cpp reads it: scale = alpha / rank of each matrix."""
    keys = [
        _key("general.type", _STRING, _string("adapter")),
        _key("general.architecture", _STRING, _string(architecture)),
        _key("adapter.type", _STRING, _string("lora")),
        _key("adapter.lora.alpha", _F32, struct.pack("<f", alpha)),
        _key("general.alignment", _U32, struct.pack("<I", _ALIGNMENT)),
    ]
    tensors = [(f"{name}.lora_{half}", array) for name, pair in matrices.items() for half, array in zip("ab", pair, strict=True)]
    head, offset = [], 0
    for name, array in tensors:
        rows, columns = array.shape
        head.append(_string(name) + struct.pack("<IQQIQ", 2, columns, rows, _TENSOR_TYPES[array.dtype], offset))
        offset += _aligned(array.nbytes)
    header = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys)) + b"".join(keys) + b"".join(head)
    with path.open("wb") as file:
        file.write(header.ljust(_aligned(len(header)), b"\0"))
        for _, array in tensors:
            file.write(np.ascontiguousarray(array).tobytes().ljust(_aligned(array.nbytes), b"\0"))


def zero_pairs(shapes: Mapping[str, tuple[int, int]]) -> dict[str, Pair]:
    """A rank-1 adapter that changes nothing, for every matrix of `shapes` (name -> (n_in, n_out))."""
    return {name: (np.zeros((1, n_in), np.float16), np.zeros((n_out, 1), np.float16)) for name, (n_in, n_out) in shapes.items()}


def random_pairs(
    shapes: Mapping[str, tuple[int, int]], rank: int, magnitude: float, rng: np.random.Generator, dtype: type[np.generic] = np.float16
) -> dict[str, Pair]:
    """Gaussian A and B with standard deviation `magnitude`."""

    def draw(*dims: int) -> npt.NDArray[np.generic]:
        return (rng.standard_normal(dims, np.float32) * np.float32(magnitude)).astype(dtype)

    return {name: (draw(rank, n_in), draw(n_out, rank)) for name, (n_in, n_out) in shapes.items()}
