"""One target matrix of a graph, made by hand of ggml's structs: what the mixer rewrites and is called for, without a model or llama.cpp.

The chain is the one in the opening comment of _mixer.c. Whatever the mixer leaves as it was stays uncomputed: there is no ggml here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from personae.engine import _mixer

NONE, MUL_MAT, SCALE, ADD, CUSTOM = range(5)
CODES = tuple(range(9))  # op_codes in the order of _mixer.Mixer's argument

Rows = NDArray[np.float32]

_on_node = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)
_custom = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)


class Tensor(ctypes.Structure):
    """ggml_tensor, as _mixer.c mirrors it."""

    _fields_ = [
        ("type", ctypes.c_int32),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int32),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10),
        ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("name", ctypes.c_char * 64),
        ("extra", ctypes.c_void_p),
    ]


class Site:
    """out = res + scale(B (A x)) of the rows of one decode; `run` gives out."""

    def __init__(self, name: str, x: Rows, res: Rows, *, in_place: bool) -> None:
        """x: (rows, n_in), res: (rows, n_out). `in_place`: out is written over res, as ggml mostly does it."""
        self._x, self._res = x.copy(), res.copy()
        self.out_rows = self._res if in_place else np.full_like(res, np.nan)
        low = np.zeros((len(x), 1), np.float32)
        self._x_tensor, self._res_tensor = _tensor(self._x), _tensor(self._res)
        self._lora_a, self._lora_b = _tensor(low, name=f"{name}.lora_a"), _tensor(low, name=f"{name}.lora_b")
        self.a = _tensor(low, MUL_MAT, self._lora_a, self._x_tensor)
        self.b = _tensor(low, MUL_MAT, self._lora_b, self.a)
        self.s = _tensor(low, SCALE, self.b)
        self.out = _tensor(self.out_rows, ADD, self._res_tensor, self.s)

    def show_to(self, mixer: _mixer.Mixer) -> None:
        for node in (self.a, self.b, self.s, self.out):
            assert not _on_node(mixer.callback)(ctypes.addressof(node), True, mixer.user_data)

    @property
    def form(self) -> str:
        ops = tuple(node.op for node in (self.a, self.b, self.s, self.out))
        return {(NONE, NONE, NONE, CUSTOM): "whole", (CUSTOM, NONE, NONE, CUSTOM): "halves"}[ops]

    def run(self, n_threads: int) -> Rows:
        """All nodes in order, each on all threads at once, with a barrier after each."""
        for node in (self.a, self.out):
            if node.op == CUSTOM:
                _on_all(_work_of(node), n_threads)
        return self.out_rows.copy()


def _tensor(rows: Rows, op: int = NONE, *sources: Tensor, name: str = "") -> Tensor:
    made = Tensor(op=op, data=rows.ctypes.data, name=name.encode())
    made.ne[:] = [rows.shape[1], rows.shape[0], 1, 1]
    made.nb[:] = [4, rows.strides[0], rows.nbytes, rows.nbytes]
    for i, source in enumerate(sources):
        made.src[i] = ctypes.addressof(source)
    return made


def _work_of(node: Tensor) -> Callable[[int, int], None]:
    probe = _mixer.probe(ctypes.addressof(node))
    work = _custom(probe["custom_fun"])
    return lambda ith, nth: work(ctypes.addressof(node), ith, nth, probe["custom_user"])


def _on_all(work: Callable[[int, int], None], n_threads: int) -> None:
    with ThreadPoolExecutor(n_threads) as team:
        list(team.map(work, range(n_threads), [n_threads] * n_threads))
