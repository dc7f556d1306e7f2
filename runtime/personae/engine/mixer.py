"""From a LoRA that has been read to the tables the mixer uses, and the same arithmetic in NumPy.

Tables are binary16, whatever the file holds. An F16 file is kept bit for bit. F32 and BF16 values are scaled by a power of two first,
so that the largest of a matrix lies near the top of binary16's range, and the inverse is folded into the matrix's scale: no value
overflows, and what rounding is left is 2^-11 of each value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from personae.engine import _mixer
from personae.packs.lora import Lora, Matrix

_TOP = 12  # the largest magnitude of a scaled matrix is in [2^11, 2^12): far from overflow, far from the subnormals


@dataclass(frozen=True, slots=True)
class Sites:
    """The target matrices of a base, numbered: the order is that of the mixer's tables."""

    shapes: Mapping[str, tuple[int, int]]  # name -> (n_in, n_out)

    def as_list(self) -> list[tuple[str, int, int]]:
        return [(name, n_in, n_out) for name, (n_in, n_out) in self.shapes.items()]

    def numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.shapes)}


def to_halves(weights: npt.NDArray[np.generic]) -> tuple[npt.NDArray[np.float16], int]:
    """(halves, e): weights = halves * 2^-e, exactly for binary16 input (e = 0)."""
    if weights.dtype == np.float16:
        return np.ascontiguousarray(weights), 0
    largest = float(np.abs(weights).max(initial=0.0))
    exponent = _TOP - int(np.frexp(largest)[1]) if largest > 0 else 0
    return np.ascontiguousarray(np.ldexp(weights.astype(np.float32), exponent).astype(np.float16)), exponent


def tables(lora: Lora, sites: Sites) -> _mixer.Adapter:
    """The adapter's tables. Every matrix of `lora` must be a site (packs/lora.py has seen to that)."""
    numbers = sites.numbers()
    return _mixer.Adapter(len(numbers), [_entry(numbers[name], matrix) for name, matrix in lora.matrices.items()])


def _entry(number: int, matrix: Matrix) -> tuple[int, int, int, int, float, Buffer, Buffer]:
    a, a_exponent = to_halves(matrix.a)
    b, b_exponent = to_halves(matrix.b)
    scale = float(np.ldexp(matrix.scale, -(a_exponent + b_exponent)))
    return number, matrix.rank, a.shape[1], b.shape[0], scale, a.data, b.data


def reference_delta(parts: Sequence[tuple[Matrix, float]], x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """What the mixer adds to one row: over the (matrix, scale) of its voice, at least one, the sum of scale * alpha/r * B (A x).

    x: (n_in,), result: (n_out,), float64 inside. The tests' oracle.
    """
    wide = x.astype(np.float64)
    deltas = [(m.b.astype(np.float64) @ (m.a.astype(np.float64) @ wide)) * (m.scale * scale) for m, scale in parts]
    total: npt.NDArray[np.float32] = np.sum(deltas, axis=0).astype(np.float32)
    return total
