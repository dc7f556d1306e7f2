"""Reads the header of a GGUF file that nobody vouches for. Decides whether it is well formed; knows nothing of what tensors are for.

The file is read front to back into a buffer that grows only as far as the header reaches, so a forged count or length meets the
file's size or a stated limit before anything is allocated for it. There is no mmap: a file cut short by somebody else while it is
mapped kills the process with SIGBUS, and packs are replaced while a game runs.

Rules that always hold
- Every fault of the file is `AskedWrong` with `gguf_missing`, `gguf_truncated` (it ends before what it announces) or
  `gguf_unreadable` (all else). llama.cpp's own loader is stricter than the format's text (padding, order of tensors, unique names);
  what it refuses is refused here, since there it may end in an assertion.
- Arrays are stepped over and only their length is kept: a vocabulary of 262 144 strings is of no use above the engine.
"""

from __future__ import annotations

import io
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from personae.errors import AskedWrong
from personae.packs.plain_files import open_plain


@dataclass(frozen=True, slots=True)
class Limits:
    """The most a header may hold. Bytes bound the memory, and with it the time: an empty string in an array costs 8 of them."""

    header_bytes: int
    keys: int = 4096
    tensors: int = 65_536
    array_length: int = 16_777_216  # elements
    string_bytes: int = 1_048_576  # of a metadata value that is kept; chat templates reach 20 kB
    chunk_bytes: int = 1024 * 1024  # read at once


MODEL_LIMITS = Limits(header_bytes=256 * 1024 * 1024)  # vocabulary and merges of the largest models take about 30 MB
# 126 layers with seven pairs each take 160 kB. In small pieces: most headers have 40 kB, and those in archives must be inflated.
ADAPTER_LIMITS = Limits(header_bytes=2 * 1024 * 1024, tensors=8192, chunk_bytes=64 * 1024)
MAX_KEY_BYTES = 1024
MAX_TENSOR_NAME_BYTES = 63  # GGML_MAX_NAME - 1
MAX_DIMS = 4
MAX_ALIGNMENT = 65_536

_STRING, _ARRAY = 8, 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_SCALARS = {
    0: ("u8", struct.Struct("<B")),
    1: ("i8", struct.Struct("<b")),
    2: ("u16", struct.Struct("<H")),
    3: ("i16", struct.Struct("<h")),
    4: ("u32", _U32),
    5: ("i32", struct.Struct("<i")),
    6: ("f32", struct.Struct("<f")),
    7: ("bool", struct.Struct("<?")),
    10: ("u64", _U64),
    11: ("i64", struct.Struct("<q")),
    12: ("f64", struct.Struct("<d")),
}
_LARGEST_TENSOR = 8 + MAX_TENSOR_NAME_BYTES + 4 + 8 * MAX_DIMS + 12  # bytes of its announcement
_NOTHING = struct.Struct("")
_TENSOR_ENDS = {n: struct.Struct(f"<{n}QIQ") for n in range(1, MAX_DIMS + 1)}  # dims, dtype, offset: what follows the count of dims
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


@dataclass(frozen=True, slots=True)
class SkippedArray:
    """A metadata array that was stepped over."""

    kind: str  # of its elements: "string", "u32", ...
    length: int


MetaValue = str | int | float | bool | SkippedArray
_Announced = dict[str, tuple[tuple[int, ...], int, int]]  # tensor name -> (dims, dtype number, offset in the weights), as the file says it


class TensorInfo(NamedTuple):
    """Where a tensor lies and what shape it has. A tuple, which is made twice as fast as a frozen dataclass."""

    dims: tuple[int, ...]  # ggml's `ne`: the fastest-running dimension first, so a numpy shape read backwards
    dtype: str  # "f16", "q8_0", ...
    offset: int  # bytes from the start of the file
    n_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """All a GGUF file says before its weights."""

    path: Path
    version: int
    metadata: dict[str, MetaValue]
    kinds: dict[str, str]  # key -> type it is stored as; llama.cpp aborts on a key of another type than it expects
    tensors: dict[str, TensorInfo]  # in the file's order
    data_offset: int  # bytes from the start of the file
    alignment: int
    n_bytes: int  # of the whole file

    def text(self, key: str) -> str | None:
        """A string value; None when the key is missing or is no string."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None


def read_header(path: Path, limits: Limits = MODEL_LIMITS) -> GgufHeader:
    """The header of a file. AskedWrong `gguf_missing`, `gguf_truncated`, `gguf_unreadable`."""
    stream, n_bytes = open_regular(path)
    with stream:
        return parse_stream(stream, n_bytes, path, limits)


def parse_header(content: bytes, path: Path, limits: Limits = MODEL_LIMITS) -> GgufHeader:
    """The header of a file already in memory; `path` is named in errors. Raises as `read_header` does."""
    return parse_stream(io.BytesIO(content), len(content), path, limits)


def open_regular(path: Path) -> tuple[BinaryIO, int]:
    """Open a file for reading and tell its bytes. Folders, pipes and devices are refused: reading one may never come back."""
    try:
        stream = open_plain(path)
        if stream is None:
            _unreadable(path, "it is not a regular file")
        return stream, os.fstat(stream.fileno()).st_size
    except (FileNotFoundError, NotADirectoryError):
        raise AskedWrong("gguf_missing", f"'{path}' does not exist.", "Check the path, and that the file was copied.") from None
    except (OSError, ValueError) as fault:  # ValueError: a NUL in the path
        _unreadable(path, f"the system does not let it be read ({getattr(fault, 'strerror', None) or fault})")


def _unreadable(path: Path, why: str) -> NoReturn:
    raise AskedWrong("gguf_unreadable", f"'{path.name}' cannot be read: {why}.", "Export or download the file again.")


def _truncated(path: Path, what: str) -> NoReturn:
    raise AskedWrong("gguf_truncated", f"'{path.name}' ends too early: {what}.", "The copy or download is incomplete; fetch it again.")


class _Cursor:
    """Reads forward through a header. Owns the buffer; never asks for a byte past the file's end or the limit."""

    def __init__(self, stream: BinaryIO, n_bytes: int, path: Path, limits: Limits) -> None:
        self.path = path
        self.limits = limits
        self.at = 0
        self._stream = stream
        self._n_bytes = n_bytes
        self._buffer = bytearray()

    def need(self, end: int) -> None:
        """Have bytes up to `end` in the buffer."""
        if end > self._n_bytes:
            _truncated(self.path, f"its header reaches beyond its {self._n_bytes} bytes")
        if end > self.limits.header_bytes:
            _unreadable(self.path, f"its header is larger than {self.limits.header_bytes} bytes")
        missing = end - len(self._buffer)
        if missing > 0:
            self._buffer += self._stream.read(max(missing, self.limits.chunk_bytes))
            if len(self._buffer) < end:
                _truncated(self.path, "it became shorter while it was read")

    def take(self, n: int) -> bytes:
        end = self.at + n
        if end > len(self._buffer):
            self.need(end)
        piece = bytes(self._buffer[self.at : end])
        self.at = end
        return piece

    def skip(self, n: int) -> None:
        self.need(self.at + n)
        self.at += n

    def unpack(self, shape: struct.Struct) -> tuple[Any, ...]:
        at = self.at
        end = at + shape.size
        if end > len(self._buffer):
            self.need(end)
        self.at = end
        return shape.unpack_from(self._buffer, at)

    def scalar(self, kind: int) -> int | float | bool:
        value: int | float | bool = self.unpack(_SCALARS[kind][1])[0]
        return value

    def u32(self) -> int:
        return int(self.unpack(_U32)[0])

    def u64(self) -> int:
        return int(self.unpack(_U64)[0])

    def count(self, most: int, what: str) -> int:
        n = int(self.unpack(_U64)[0])
        if n > most:
            _unreadable(self.path, f"it announces {n} {what}, more than {most}")
        return n

    def string(self, most: int, what: str) -> bytes:
        return self.take(self.count(most, what))

    def tensor(self) -> tuple[bytes, int, tuple[int, ...]]:
        """The next announcement: raw name, how many dimensions, and (*dims, dtype number, offset in the weights).

        A number of dimensions that cannot be is given without the rest. In one piece, since it runs hundreds of times for each of hundreds
        of packs; `skip_strings` is the other loop that counts.
        """
        buffer, at = self._buffer, self.at
        if at + _LARGEST_TENSOR > len(buffer):
            self.need(min(at + _LARGEST_TENSOR, self._n_bytes, self.limits.header_bytes))
        try:
            n = _U64.unpack_from(buffer, at)[0]
            if n > MAX_TENSOR_NAME_BYTES:
                _unreadable(self.path, f"it announces {n} bytes in a tensor name, more than {MAX_TENSOR_NAME_BYTES}")
            end = at + 8 + n
            n_dims = _U32.unpack_from(buffer, end)[0]
            shape = _TENSOR_ENDS.get(n_dims, _NOTHING)
            self.at = end + 4 + shape.size
            return bytes(buffer[at + 8 : end]), n_dims, shape.unpack_from(buffer, end + 4)
        except struct.error:
            self.need(at + _LARGEST_TENSOR)  # which raises: all that there is was in the buffer
            raise

    def skip_strings(self, n: int) -> None:
        """Step over an array of strings, hundreds of thousands of them."""
        read_length = _U64.unpack_from
        at, buffer, ready = self.at, self._buffer, len(self._buffer)
        for _ in range(n):
            if at + 8 > ready:
                self.need(at + 8)
                ready = len(buffer)
            at += 8 + read_length(buffer, at)[0]
        self.need(at)
        self.at = at


def parse_stream(stream: BinaryIO, n_bytes: int, path: Path, limits: Limits = MODEL_LIMITS) -> GgufHeader:
    """The header of an open file of `n_bytes`, read from its start; `path` is named in errors. Raises as `read_header` does."""
    cursor = _Cursor(stream, n_bytes, path, limits)
    version = _version(cursor)
    n_tensors = cursor.count(limits.tensors, "tensors")
    n_keys = cursor.count(limits.keys, "metadata keys")
    metadata: dict[str, MetaValue] = {}
    kinds: dict[str, str] = {}
    for _ in range(n_keys):
        _read_pair(cursor, metadata, kinds)
    alignment = _alignment(path, metadata, kinds)
    raw = _read_tensors(cursor, n_tensors)
    data_offset = _padded(cursor.at, alignment)
    tensors = _place(path, raw, data_offset, alignment, n_bytes)
    return GgufHeader(path, version, metadata, kinds, tensors, data_offset, alignment, n_bytes)


def _version(cursor: _Cursor) -> int:
    if cursor.take(4) != b"GGUF":
        _unreadable(cursor.path, "it does not begin with 'GGUF', so it is a file of another kind")
    version = cursor.u32()
    if version in (2, 3):
        return version
    if version & 0xFFFF == 0:
        _unreadable(cursor.path, "it was written for a big-endian machine")
    _unreadable(cursor.path, f"it is GGUF version {version}; versions 2 and 3 are known")


def _read_pair(cursor: _Cursor, metadata: dict[str, MetaValue], kinds: dict[str, str]) -> None:
    key = _name(cursor, cursor.string(MAX_KEY_BYTES, "bytes in a metadata key"), "a metadata key")
    if key in metadata:
        _unreadable(cursor.path, f"metadata key {_short(key)} is there twice")
    kind = cursor.u32()
    if kind == _ARRAY:
        kinds[key], metadata[key] = "array", _skip_array(cursor, key)
    elif kind == _STRING:
        text = cursor.string(cursor.limits.string_bytes, f"bytes in metadata value {_short(key)}")
        kinds[key], metadata[key] = "string", text.decode("utf-8", "replace")
    elif kind in _SCALARS:
        kinds[key], metadata[key] = _SCALARS[kind][0], cursor.scalar(kind)
    else:
        _unreadable(cursor.path, f"metadata key {_short(key)} has the unknown type {kind}")


def _skip_array(cursor: _Cursor, key: str) -> SkippedArray:
    kind = cursor.u32()
    length = cursor.count(cursor.limits.array_length, f"elements in metadata array {_short(key)}")
    if kind == _STRING:
        cursor.skip_strings(length)
        return SkippedArray("string", length)
    if kind not in _SCALARS:  # llama.cpp reads no arrays of arrays either
        _unreadable(cursor.path, f"metadata array {_short(key)} has elements of the unknown type {kind}")
    name, shape = _SCALARS[kind]
    cursor.skip(length * shape.size)
    return SkippedArray(name, length)


def _alignment(path: Path, metadata: dict[str, MetaValue], kinds: dict[str, str]) -> int:
    value = metadata.get("general.alignment", 32)
    if kinds.get("general.alignment", "u32") != "u32" or not isinstance(value, int):
        _unreadable(path, "general.alignment is not a 32-bit number")
    if not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
        _unreadable(path, f"general.alignment is {value}, not a power of two up to {MAX_ALIGNMENT}")
    return value


def _read_tensors(cursor: _Cursor, n: int) -> _Announced:
    raw: _Announced = {}
    for _ in range(n):
        raw_name, n_dims, rest = cursor.tensor()
        name = _name(cursor, raw_name, "a tensor name")
        if name in raw:
            _unreadable(cursor.path, f"tensor {_short(name)} is there twice")
        if not 1 <= n_dims <= MAX_DIMS:
            _unreadable(cursor.path, f"tensor {_short(name)} has {n_dims} dimensions; 1 to {MAX_DIMS} are possible")
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
            _unreadable(path, f"tensor {_short(name)} lies at {offset} of the weights and should lie at {expected}")
        if data_offset + offset + size > n_bytes:
            _truncated(path, f"tensor {_short(name)} needs {data_offset + offset + size} bytes of file and there are {n_bytes}")
        tensors[name] = TensorInfo(dims, dtype, data_offset + offset, size)
        expected = offset + _padded(size, alignment)
    return tensors


def _sized(path: Path, name: str, dims: tuple[int, ...], kind: int) -> tuple[str, int]:
    """(dtype name, bytes). Python's numbers do not overflow, so a forged shape only gets large and then meets the file's size."""
    if kind not in _DTYPES:
        _unreadable(path, f"tensor {_short(name)} has the unknown weight type {kind}")
    dtype, block, block_bytes = _DTYPES[kind]
    if dims[0] % block:
        _unreadable(path, f"tensor {_short(name)} is {dtype}, so its first dimension must be a multiple of {block}, and it is {dims[0]}")
    n = 1
    for dim in dims:
        n *= dim
    return dtype, n // block * block_bytes


def _name(cursor: _Cursor, raw: bytes, what: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        _unreadable(cursor.path, f"{what} is not UTF-8")


def _padded(n: int, alignment: int) -> int:
    return -(-n // alignment) * alignment


def _short(name: str) -> str:
    return repr(name if len(name) <= 80 else name[:77] + "...")
