"""Writes GGUF LoRA files: what an import makes of another format, the template the mixer stands on, adapters of self-check and benchmarks.

A writer of the few things an adapter holds, version 3, little-endian. Decides no factor. Reading foreign files is packs/lora.py.
The file is written beside its place and then renamed: whoever watches the folder, or reads the file meanwhile, never sees half of one.
"""

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

_ALIGNMENT = 32
_U32, _F32, _STRING = 4, 6, 8  # GGUF value types
_TENSOR_TYPES = {np.dtype(np.float32): 0, np.dtype(np.float16): 1, np.dtype(np.uint16): 30}

# A: (rank, n_in), B: (n_out, rank); float32, float16, or uint16 for the bits of bfloat16
Pair = tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _key(name: str, kind: int, value: bytes) -> bytes:
    return _string(name) + struct.pack("<I", kind) + value


def _aligned(n: int) -> int:
    return (n + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT


def write_lora(
    path: Path, architecture: str, alpha: float, matrices: Mapping[str, Pair], extra: Mapping[str, str | int] | None = None
) -> None:
    """matrices: base tensor name -> (A, B). `alpha` as llama.cpp reads it: scale = alpha / rank of each matrix.

    `extra`: further metadata, texts and 32-bit numbers. OSError when it cannot be written; then nothing is left behind.
    """
    keys = [
        _key("general.type", _STRING, _string("adapter")),
        _key("general.architecture", _STRING, _string(architecture)),
        _key("adapter.type", _STRING, _string("lora")),
        _key("adapter.lora.alpha", _F32, struct.pack("<f", alpha)),
        _key("general.alignment", _U32, struct.pack("<I", _ALIGNMENT)),
        *(_extra(name, value) for name, value in (extra or {}).items()),
    ]
    tensors = [(f"{name}.lora_{half}", array) for name, pair in matrices.items() for half, array in zip("ab", pair, strict=True)]
    head, offset = [], 0
    for name, array in tensors:
        rows, columns = array.shape
        head.append(_string(name) + struct.pack("<IQQIQ", 2, columns, rows, _TENSOR_TYPES[array.dtype], offset))
        offset += _aligned(array.nbytes)
    header = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys)) + b"".join(keys) + b"".join(head)
    with _whole(path) as file:
        file.write(header.ljust(_aligned(len(header)), b"\0"))
        for _, array in tensors:
            file.write(np.ascontiguousarray(array).tobytes().ljust(_aligned(array.nbytes), b"\0"))


def _extra(name: str, value: str | int) -> bytes:
    return _key(name, _STRING, _string(value)) if isinstance(value, str) else _key(name, _U32, struct.pack("<I", value))


@contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    """A file that takes its place at the end, if all went well."""
    beside = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with beside.open("xb") as file:
            yield file
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


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
