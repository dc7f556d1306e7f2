"""What llama.cpp does not look at in a state that it is given: whether its positions are those of one sequence. Knows no model.

It checks types and sizes itself, but takes negative positions and gaps, whose cells no later cut finds again. As of the build at hand

    state   := 8 bytes, cache ...                               one cache; two where some layers have a sliding window
    cache   := number of streams u32, stream ...
    stream  := cells u32, and where there are any: (position i32, 1 u32, sequence u32) for each cell, V is transposed u32,
               layers u32, K of each layer, V of each layer
    K       := type i32, bytes of a cell u64, cells             V as well, or
    V       := type i32, bytes of a number u32, numbers of a cell u32, cells        where it is transposed

Whether that is the form of a build is found out at its start, on a state of its own.
"""

from __future__ import annotations

import struct

import numpy as np

_FRONT_BYTES = 8
_COUNT = struct.Struct("<I")
_PAIR = struct.Struct("<II")
_ROWS = struct.Struct("<iQ")
_COLUMNS = struct.Struct("<iII")
_CELL = np.dtype([("position", "<i4"), ("n_sequences", "<u4"), ("sequence", "<u4")])


def is_one_sequence(state: memoryview, n_tokens: int) -> bool:
    """Whether every cache in it holds the last of positions 0 .. n_tokens - 1 (all, or as many as its window), and nothing follows it."""
    at = _FRONT_BYTES
    try:
        while at < len(state):
            at = _past_cache(state, at, n_tokens)
    except (struct.error, ValueError, OverflowError):
        return False
    return at == len(state) > _FRONT_BYTES


def _past_cache(state: memoryview, at: int, n_tokens: int) -> int:
    (n_streams,) = _COUNT.unpack_from(state, at)
    at += _COUNT.size
    n_filled = 0
    for _ in range(n_streams):
        (n_cells,) = _COUNT.unpack_from(state, at)
        at += _COUNT.size
        if n_cells:
            n_filled += 1
            at = _past_layers(state, _past_cells(state, at, n_cells, n_tokens), n_cells)
    if n_filled != 1:
        raise ValueError("cells of no stream, or of several")
    return at


def _past_cells(state: memoryview, at: int, n_cells: int, n_tokens: int) -> int:
    end = at + n_cells * _CELL.itemsize
    if n_cells > n_tokens or end > len(state):
        raise ValueError("another number of cells")
    cells = np.frombuffer(state[at:end], _CELL)
    if (cells["n_sequences"] != 1).any() or not np.array_equal(np.sort(cells["position"]), np.arange(n_tokens - n_cells, n_tokens)):
        raise ValueError("positions of no sequence")
    return end


def _past_layers(state: memoryview, at: int, n_cells: int) -> int:
    is_transposed, n_layers = _PAIR.unpack_from(state, at)
    at += _PAIR.size
    for number in range(2 * n_layers):
        if number >= n_layers and is_transposed:
            _, n_bytes, n_numbers = _COLUMNS.unpack_from(state, at)
            at += _COLUMNS.size + n_cells * n_bytes * n_numbers
        else:
            _, n_bytes = _ROWS.unpack_from(state, at)
            at += _ROWS.size + n_cells * n_bytes
    return at
