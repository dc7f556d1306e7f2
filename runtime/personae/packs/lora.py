"""Reads a GGUF LoRA adapter and checks it against the base it is for. Decides whether it can be applied exactly; applies nothing.

An adapter is a set of pairs A (r, n_in), B (n_out, r), each for one matrix W (n_out, n_in) of the base:
`y = W x + scale * B (A x)` with scale = use * alpha / r, or scale = use where the file states no alpha (llama.cpp's convention).

Rules that always hold
- The whole file is read once; header, weights and content key come from those same bytes, so that a file replaced meanwhile is
  either the old one or the new one, never half of each.
- What the header alone tells is refused by lora_header.py and fit.py; what the weights tell (NaN, nothing but zeros) is refused here.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from personae.packs.base import BaseShapes
from personae.packs.fit import HALVES, FitPair, columns, fit
from personae.packs.fit import MAX_RANK as MAX_RANK
from personae.packs.gguf import ADAPTER_LIMITS, TensorInfo, open_regular, parse_header
from personae.packs.lora_header import ALPHA as ALPHA
from personae.packs.lora_header import MAX_ADAPTER_BYTES, as_adapter, check_header, reading, refuse
from personae.packs.lora_header import adapter_key as adapter_key
from personae.packs.lora_header import read_adapter_header as read_adapter_header
from personae.types import AdapterKey

Weights = NDArray[np.float16] | NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Matrix:
    """One pair. Read-only; float16 as stored, everything else as float32."""

    a: Weights  # (r, n_in)
    b: Weights  # (n_out, r)
    scale: float  # alpha / r, or 1 without an alpha; what the pack's scale is multiplied with

    @property
    def rank(self) -> int:
        return int(self.a.shape[0])

    @property
    def is_inert(self) -> bool:
        return not (self.a.any() and self.b.any())


@dataclass(frozen=True, slots=True)
class Lora:
    """An adapter that fits its base."""

    path: Path
    key: AdapterKey
    alpha: float | None  # None: the file states none
    rank: int  # the largest of its matrices
    matrices: dict[str, Matrix]  # tensor name in the base -> pair, in the file's order
    warnings: tuple[str, ...]

    @property
    def n_bytes(self) -> int:
        """Bytes of the weights as they are held here."""
        return sum(matrix.a.nbytes + matrix.b.nbytes for matrix in self.matrices.values())


def read_lora(path: Path, base: BaseShapes) -> Lora:
    """Read and check an adapter. AskedWrong with one of the `adapter_*` codes says what is wrong with it."""
    path = Path(path)
    with reading(path):
        return _read(path, base)


def _read(path: Path, base: BaseShapes) -> Lora:
    content = _whole(path)
    with as_adapter():
        header = parse_header(content, path, ADAPTER_LIMITS)
    check_header(header)
    fitting = fit(header, base)
    matrices = {target: _matrix(content, path, target, pair, fitting.alpha) for target, pair in fitting.pairs.items()}
    if all(matrix.is_inert for matrix in matrices.values()):
        refuse(path, "inert", "changes nothing: in every pair one half is all zeros", "Export it after training, not before.")
    return Lora(
        path=path,
        key=AdapterKey(hashlib.sha256(content).hexdigest()),
        alpha=fitting.alpha,
        rank=max(matrix.rank for matrix in matrices.values()),
        matrices=matrices,
        warnings=fitting.warnings,
    )


def _whole(path: Path) -> bytes:
    with as_adapter():
        stream, n_bytes = open_regular(path)
    with stream:
        if n_bytes > MAX_ADAPTER_BYTES:
            refuse(path, "unreadable", f"has {n_bytes} bytes, more than {MAX_ADAPTER_BYTES}", "Is it a model rather than an adapter?")
        return stream.read(n_bytes)


def _matrix(content: bytes, path: Path, target: str, pair: FitPair, alpha: float | None) -> Matrix:
    a, b = (_weights(content, path, target + half, tensor) for half, tensor in zip(HALVES, (pair.a, pair.b), strict=True))
    return Matrix(a, b, 1.0 if alpha is None else alpha / pair.rank)


def _weights(content: bytes, path: Path, name: str, tensor: TensorInfo) -> Weights:
    """A tensor as a read-only array, its dimensions in numpy's order."""
    stored = np.frombuffer(content, np.uint8, tensor.n_bytes, tensor.offset)
    # general.alignment may be 1; engines hand pointers to these arrays to C, which wants them aligned.
    decoded = np.require(_decoded(stored, tensor.dtype), requirements=["A", "C"])
    decoded.flags.writeable = False
    if not np.isfinite(decoded).all():
        refuse(path, "not_finite", f"holds NaN or infinity in '{name}'", "Its training diverged; train it again with a lower rate.")
    return decoded.reshape(-1, columns(tensor))


def _decoded(stored: NDArray[np.uint8], dtype: str) -> Weights:
    """Of a tensor in one of fit.DTYPES."""
    if dtype == "f16":
        return stored.view("<f2")
    if dtype == "f32":
        return stored.view("<f4")
    if dtype == "bf16":
        return (stored.view("<u2").astype(np.uint32) << 16).view(np.float32)
    blocks = stored.reshape(-1, 34)  # a float16 scale, then 32 int8
    quants = blocks[:, 2:].copy().view(np.int8).astype(np.float32)
    scales = blocks[:, :2].copy().view("<f2").astype(np.float32)
    with np.errstate(invalid="ignore"):  # 0 times infinity is NaN, and is refused as such
        return (quants * scales).reshape(-1)
