"""Reads safetensors files that nobody vouches for. The only door to `safetensors`; knows nothing of adapters.

The library checks a file well: lengths, shapes against bytes, overflow, holes and overlaps between tensors are all refused (400 000
mutated headers: an error or a sound file, never a crash). What it leaves open is settled here, before it sees the file:
- Its own limit for a header is 100 MB, which as Python objects are gigabytes. Here a header is small, and its tensors are counted first.
- It takes the last of two tensors with the same name. A file with two is refused.
- A file cut short is told from a forged one.
- It would map a file, and a mapping of a file that is cut short meanwhile kills the process. So it is given bytes.

Memory is bounded by twice the file's size, the file and the tensors taken from it, and the header times about 30.
"""

from __future__ import annotations

import json
import struct
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

from personae.errors import AskedWrong

MAX_FILE_BYTES = 2 * 1024**3
MAX_HEADER_BYTES = 2 * 1024**2  # 8 192 tensors with names of 100 characters take 1.5 MB
MAX_TENSORS = 8192  # 126 layers with seven pairs each are 1 764

_LENGTH = struct.Struct("<Q")
_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}

Stored = NDArray[np.float32] | NDArray[np.float16] | NDArray[np.uint16]
"""A tensor as the file has it. uint16 holds the bits of bfloat16, which NumPy has no type for."""


def read_tensors(content: bytes, adapter: str) -> dict[str, Stored]:
    """Name -> array, in order of names. `adapter` is named in errors.

    AskedWrong `peft_unreadable`, `peft_truncated`, `peft_unsupported` (weights of another type).
    """
    _check_header(content, adapter)
    try:
        found = deserialize(content)  # type: ignore[no-untyped-call]
    except SafetensorError as fault:
        _unreadable(adapter, str(fault)[:200])
    except MemoryError:
        _unreadable(adapter, "it does not fit into memory")
    return {name: _array(adapter, name, tensor) for name, tensor in sorted(found, key=lambda entry: entry[0])}


def values(stored: Stored) -> NDArray[np.float32]:
    """As float32, which all three types fit into exactly."""
    if stored.dtype == np.uint16:
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32, copy=False)


def _array(adapter: str, name: str, tensor: dict[str, Any]) -> Stored:
    dtype = _DTYPES.get(tensor["dtype"])
    if dtype is None:
        what = f"stores {_short(name)} as {tensor['dtype']}"
        raise AskedWrong("peft_unsupported", f"Adapter '{adapter}' {what}.", "Save it as float32, float16 or bfloat16.")
    array: Stored = np.frombuffer(tensor["data"], dtype)
    try:
        return array.reshape(tensor["shape"])
    except ValueError:  # more dimensions than NumPy has
        _unreadable(adapter, f"{_short(name)} has {len(tensor['shape'])} dimensions")


# --- before the library sees it -----------------------------------------------------------------------------------


def _check_header(content: bytes, adapter: str) -> None:
    if len(content) < _LENGTH.size:
        _truncated(adapter, f"it has {len(content)} bytes")
    n_header = _LENGTH.unpack_from(content)[0]
    if n_header > MAX_HEADER_BYTES:
        _unreadable(adapter, f"its header is said to have {n_header} bytes, more than {MAX_HEADER_BYTES}")
    n_weights = len(content) - _LENGTH.size - n_header
    if n_weights < 0:
        _truncated(adapter, f"its header reaches beyond its {len(content)} bytes")
    header = _parsed(content[_LENGTH.size : _LENGTH.size + n_header], adapter)
    if _end_of_weights(header) > n_weights:
        _truncated(adapter, f"its header announces more weights than the {n_weights} bytes that follow it")


def _parsed(header: bytes, adapter: str) -> dict[str, Any]:
    """What it says of each tensor, not yet trusted."""
    try:
        table = json.loads(header, object_pairs_hook=_unique)
    except RecursionError:
        _unreadable(adapter, "its header is nested too deeply")
    except ValueError as fault:  # not UTF-8, no JSON, a name twice
        _unreadable(adapter, f"its header is not as it should be ({str(fault)[:200]})")
    if not isinstance(table, dict):
        _unreadable(adapter, "its header is no object")
    table.pop("__metadata__", None)
    if len(table) > MAX_TENSORS:
        _unreadable(adapter, f"it holds {len(table)} tensors, more than {MAX_TENSORS}")
    return table


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a name is there twice")
    return table


def _end_of_weights(table: dict[str, Any]) -> int:
    """The furthest byte that the header speaks of, as far as it makes sense: the library finds what does not."""
    spans = (entry.get("data_offsets") for entry in table.values() if isinstance(entry, dict))
    return max((span[1] for span in spans if isinstance(span, list) and len(span) == 2 and isinstance(span[1], int)), default=0)


def _unreadable(adapter: str, why: str) -> NoReturn:
    raise AskedWrong("peft_unreadable", f"The weights of adapter '{adapter}' cannot be read: {why}.", "Save or download them again.")


def _truncated(adapter: str, why: str) -> NoReturn:
    raise AskedWrong(
        "peft_truncated", f"The weights of adapter '{adapter}' end too early: {why}.", "The copy is incomplete; fetch it again."
    )


def _short(name: str) -> str:
    return repr(name if len(name) <= 100 else name[:97] + "...")
