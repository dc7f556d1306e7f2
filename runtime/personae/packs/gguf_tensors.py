"""The table of tensors in a GGUF header: what each is called, its shape, and where it lies. Decides whether the table is sound.

llama.cpp's own loader is stricter than the format's text (padding, order of tensors, unique names); what it refuses is refused here, since
there it may end in an assertion.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from personae.packs.gguf_cursor import MAX_DIMS, Cursor, name_of, padded, short, truncated, unreadable

# ggml_type -> (name, elements in a block, bytes of a block). Gaps are types that ggml has withdrawn.
_DTYPES = {
    0: ("f32", 1, 4),
    1: ("f16", 1, 2),
    2: ("q4_0", 32, 18),
    3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24),
    8: ("q8_0", 32, 34),
    9: ("q8_1", 32, 40),
    10: ("q2_k", 256, 84),
    11: ("q3_k", 256, 110),
    12: ("q4_k", 256, 144),
    13: ("q5_k", 256, 176),
    14: ("q6_k", 256, 210),
    15: ("q8_k", 256, 292),
    16: ("iq2_xxs", 256, 66),
    17: ("iq2_xs", 256, 74),
    18: ("iq3_xxs", 256, 98),
    19: ("iq1_s", 256, 50),
    20: ("iq4_nl", 32, 18),
    21: ("iq3_s", 256, 110),
    22: ("iq2_s", 256, 82),
    23: ("iq4_xs", 256, 136),
    24: ("i8", 1, 1),
    25: ("i16", 1, 2),
    26: ("i32", 1, 4),
    27: ("i64", 1, 8),
    28: ("f64", 1, 8),
    29: ("iq1_m", 256, 56),
    30: ("bf16", 1, 2),
    34: ("tq1_0", 256, 54),
    35: ("tq2_0", 256, 66),
    39: ("mxfp4", 32, 17),
    40: ("nvfp4", 64, 36),
}

_Announced = dict[str, tuple[tuple[int, ...], int, int]]  # tensor name -> (dims, dtype number, offset in the weights), as the file says it


class TensorInfo(NamedTuple):
    """Where a tensor lies and what shape it has. A tuple, which is made twice as fast as a frozen dataclass."""

    dims: tuple[int, ...]  # ggml's `ne`: the fastest-running dimension first, so a numpy shape read backwards
    dtype: str  # "f16", "q8_0", ...
    offset: int  # bytes from the start of the file
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Table:
    """A table of tensors as it stands in a file, and what it says."""

    raw: bytes
    alignment: int
    data_offset: int
    tensors: dict[str, TensorInfo]
    end: int  # of the last tensor, in bytes from the start of the file


# Adapters of one training are laid out alike, to the byte: of a cast of hundreds a few tables are taken apart, the others compared.
_TABLES: deque[Table] = deque(maxlen=16)
_MAX_KEPT_BYTES = 128 * 1024


def known_table(cursor: Cursor, n_tensors: int, alignment: int, n_bytes: int) -> Table | None:
    """One that was found right before and begins here, byte for byte. The cursor is then behind it."""
    for table in tuple(_TABLES):
        is_alike = table.alignment == alignment and len(table.tensors) == n_tensors and table.end <= n_bytes
        if is_alike and padded(cursor.at + len(table.raw), alignment) == table.data_offset and cursor.is_at(table.raw):
            cursor.skip(len(table.raw))
            return table
    return None


def read_table(cursor: Cursor, n_tensors: int, alignment: int, n_bytes: int) -> Table:
    start = cursor.at
    announced = _read_tensors(cursor, n_tensors)
    data_offset = padded(cursor.at, alignment)
    tensors = _place(cursor.path, announced, data_offset, alignment, n_bytes)
    end = max((tensor.offset + tensor.n_bytes for tensor in tensors.values()), default=data_offset)
    table = Table(cursor.between(start, cursor.at), alignment, data_offset, tensors, end)
    if len(table.raw) <= _MAX_KEPT_BYTES:
        _TABLES.append(table)
    return table


def _read_tensors(cursor: Cursor, n: int) -> _Announced:
    raw: _Announced = {}
    for _ in range(n):
        raw_name, n_dims, rest = cursor.tensor()
        name = name_of(cursor, raw_name, "a tensor name")
        if name in raw:
            unreadable(cursor.path, f"tensor {short(name)} is there twice")
        if not 1 <= n_dims <= MAX_DIMS:
            unreadable(cursor.path, f"tensor {short(name)} has {n_dims} dimensions; 1 to {MAX_DIMS} are possible")
        raw[name] = rest[:n_dims], rest[n_dims], rest[n_dims + 1]
    cursor.need(cursor.at)  # the limit of the header's bytes
    return raw


def _place(path: Path, raw: _Announced, data_offset: int, alignment: int, n_bytes: int) -> dict[str, TensorInfo]:
    """Check that the tensors lie one behind the other, padded, as llama.cpp insists, and that the file holds them all."""
    tensors: dict[str, TensorInfo] = {}
    expected = 0
    for name, (dims, kind, offset) in raw.items():
        dtype, size = _sized(path, name, dims, kind)
        if offset != expected:
            unreadable(path, f"tensor {short(name)} lies at {offset} of the weights and should lie at {expected}")
        if data_offset + offset + size > n_bytes:
            truncated(path, f"tensor {short(name)} needs {data_offset + offset + size} bytes of file and there are {n_bytes}")
        tensors[name] = TensorInfo(dims, dtype, data_offset + offset, size)
        expected = offset + padded(size, alignment)
    return tensors


def _sized(path: Path, name: str, dims: tuple[int, ...], kind: int) -> tuple[str, int]:
    """(dtype name, bytes). Python's numbers do not overflow, so a forged shape only gets large and then meets the file's size."""
    if kind not in _DTYPES:
        unreadable(path, f"tensor {short(name)} has the unknown weight type {kind}")
    dtype, block, block_bytes = _DTYPES[kind]
    if dims[0] % block:
        unreadable(path, f"tensor {short(name)} is {dtype}, so its first dimension must be a multiple of {block}, and it is {dims[0]}")
    n = 1
    for dim in dims:
        n *= dim
    return dtype, n // block * block_bytes
