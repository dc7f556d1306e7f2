"""Is ggml laid out as _mixer.c believes? Asked of the live library, before a graph is touched.

Tensors are made in a scratch context through ggml's public functions; `_mixer.probe` then says what it sees at the fields we use.
Whatever differs is named in `AbiMismatch`, and the engine runs in grouped mode instead.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from personae.engine import _mixer
from personae.engine.llama import api

_VOID = ctypes.c_void_p
_OP_NAMES = {
    "none": "NONE",
    "mul_mat": "MUL_MAT",
    "scale": "SCALE",
    "add": "ADD",
    "custom": "CUSTOM",
    "reshape": "RESHAPE",
    "view": "VIEW",
    "permute": "PERMUTE",
    "transpose": "TRANSPOSE",
}
_FUN, _USER, _N_TASKS = 0x1234567890, 0x9876543210, -1


class AbiMismatch(Exception):  # noqa: N818  a finding, and the reason for grouped mode
    """This llama.cpp is laid out otherwise than the mixer was written for."""


@dataclass(frozen=True, slots=True)
class OpCodes:
    """Numbers of the graph operations in the loaded library."""

    none: int
    mul_mat: int
    scale: int
    add: int
    custom: int
    reshape: int
    view: int
    permute: int
    transpose: int

    def as_tuple(self) -> tuple[int, ...]:
        return tuple(getattr(self, name) for name in _OP_NAMES)


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", _VOID), ("no_alloc", ctypes.c_bool))


def _ggml() -> ctypes.CDLL:
    ggml = api.library("ggml-base")
    pointers = (
        "init",
        "new_tensor_2d",
        "set_name",
        "mul_mat",
        "scale",
        "add",
        "custom_4d",
        "reshape_2d",
        "view_1d",
        "permute",
        "transpose",
    )
    for name in pointers:
        getattr(ggml, f"ggml_{name}").restype = _VOID
    ggml.ggml_op_name.restype = ctypes.c_char_p
    return ggml


def _numbers(ggml: ctypes.CDLL) -> dict[str, int]:
    by_name: dict[str, int] = {}
    for number in range(200):
        text = ggml.ggml_op_name(number)
        if not text:
            break
        by_name.setdefault(text.decode(), number)
        if text == b"CUSTOM":
            break
    return by_name


def _expect(what: str, seen: Any, wanted: Any) -> None:
    if seen != wanted:
        raise AbiMismatch(f"{what} is {seen!r} where {wanted!r} was expected")


def _check_tensors(ggml: ctypes.CDLL, ctx: Any, codes: OpCodes) -> None:
    def new(*dims: int) -> Any:
        return _VOID(ggml.ggml_new_tensor_2d(ctx, 0, ctypes.c_int64(dims[0]), ctypes.c_int64(dims[1])))

    w, x, b = new(6, 5), new(6, 3), new(5, 4)
    ggml.ggml_set_name(w, b"blk.0.some.weight.lora_a")
    seen = _mixer.probe(w.value or 0)
    _expect("type", seen["type"], 0)
    _expect("ne", seen["ne"], (6, 5, 1, 1))
    _expect("nb", seen["nb"], (4, 24, 120, 120))
    _expect("name", seen["name"], b"blk.0.some.weight.lora_a")
    _expect("op of a leaf", seen["op"], codes.none)
    ggml.ggml_get_data.restype = _VOID
    _expect("data", seen["data"], ggml.ggml_get_data(w))
    product = _VOID(ggml.ggml_mul_mat(ctx, w, x))
    again = _VOID(ggml.ggml_mul_mat(ctx, b, product))
    scaled = _VOID(ggml.ggml_scale(ctx, again, ctypes.c_float(2.0)))
    total = _VOID(ggml.ggml_add(ctx, again, scaled))
    chain = (("mul_mat", product, w, x), ("mul_mat", again, b, product), ("scale", scaled, again, None), ("add", total, again, scaled))
    for name, tensor, src0, src1 in chain:
        seen = _mixer.probe(tensor.value or 0)
        _expect(f"op of {name}", seen["op"], getattr(codes, name))
        _expect(f"first operand of {name}", seen["src0"], src0.value)
        _expect(f"second operand of {name}", seen["src1"], src1.value if src1 else 0)
    _check_views(ggml, ctx, codes, total)
    _check_custom(ggml, ctx, codes, x)


def _check_views(ggml: ctypes.CDLL, ctx: Any, codes: OpCodes, total: Any) -> None:
    one, three = ctypes.c_int64(1), ctypes.c_int64(3)
    views = {
        "reshape": ggml.ggml_reshape_2d(ctx, total, three, ctypes.c_int64(4)),
        "view": ggml.ggml_view_1d(ctx, total, one, ctypes.c_size_t(4)),
        "permute": ggml.ggml_permute(ctx, total, 1, 0, 2, 3),
        "transpose": ggml.ggml_transpose(ctx, total),
    }
    for name, address in views.items():
        seen = _mixer.probe(address)
        _expect(f"op of {name}", seen["op"], getattr(codes, name))
        _expect(f"view_src of {name}", seen["view_src"], total.value)


def _check_custom(ggml: ctypes.CDLL, ctx: Any, codes: OpCodes, x: Any) -> None:
    dims = [ctypes.c_int64(n) for n in (6, 3, 1, 1)]
    args = (_VOID * 1)(x)
    made = ggml.ggml_custom_4d(ctx, 0, *dims, args, 1, _VOID(_FUN), _N_TASKS, _VOID(_USER))
    seen = _mixer.probe(made)
    _expect("op of custom", seen["op"], codes.custom)
    _expect("custom function", seen["custom_fun"], _FUN)
    _expect("custom task count", seen["custom_tasks"], _N_TASKS)
    _expect("custom user data", seen["custom_user"], _USER)


def verify() -> OpCodes:
    """The library's operation codes, once every field the mixer touches has been found where it believes it is. AbiMismatch otherwise."""
    ggml = _ggml()
    numbers = _numbers(ggml)
    missing = [text for text in _OP_NAMES.values() if text not in numbers]
    if missing:
        raise AbiMismatch(f"this ggml has no operation {', '.join(missing)}")
    codes = OpCodes(**{name: numbers[text] for name, text in _OP_NAMES.items()})
    ctx = _VOID(ggml.ggml_init(_InitParams(1 << 20, None, False)))
    if not ctx:
        raise AbiMismatch("ggml_init failed")
    try:
        _check_tensors(ggml, ctx, codes)
    finally:
        ggml.ggml_free(ctx)
    return codes
