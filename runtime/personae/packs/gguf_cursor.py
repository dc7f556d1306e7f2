"""Reads forward through the header of a GGUF file that nobody vouches for. Knows numbers, strings and limits; not what stands in a header.

The file is read front to back into a buffer that grows only as far as the header reaches, so a forged count or length meets the
file's size or a stated limit before anything is allocated for it. There is no mmap: a file cut short by somebody else while it is
mapped kills the process with SIGBUS, and packs are replaced while a game runs.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from personae.errors import AskedWrong


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

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
SCALARS = {
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


class Cursor:
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
            truncated(self.path, f"its header reaches beyond its {self._n_bytes} bytes")
        if end > self.limits.header_bytes:
            unreadable(self.path, f"its header is larger than {self.limits.header_bytes} bytes")
        missing = end - len(self._buffer)
        if missing > 0:
            self._buffer += self._stream.read(max(missing, self.limits.chunk_bytes))
            if len(self._buffer) < end:
                truncated(self.path, "it became shorter while it was read")

    def take(self, n: int) -> bytes:
        end = self.at + n
        if end > len(self._buffer):
            self.need(end)
        piece = bytes(self._buffer[self.at : end])
        self.at = end
        return piece

    def is_at(self, piece: bytes) -> bool:
        """Whether these bytes come next."""
        end = self.at + len(piece)
        if end > min(self._n_bytes, self.limits.header_bytes):
            return False
        self.need(end)
        return self._buffer.startswith(piece, self.at)

    def between(self, start: int, end: int) -> bytes:
        return bytes(self._buffer[start:end])

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
        value: int | float | bool = self.unpack(SCALARS[kind][1])[0]
        return value

    def u32(self) -> int:
        return int(self.unpack(_U32)[0])

    def u64(self) -> int:
        return int(self.unpack(_U64)[0])

    def count(self, most: int, what: str) -> int:
        n = int(self.unpack(_U64)[0])
        if n > most:
            unreadable(self.path, f"it announces {n} {what}, more than {most}")
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
                unreadable(self.path, f"it announces {n} bytes in a tensor name, more than {MAX_TENSOR_NAME_BYTES}")
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


def unreadable(path: Path, why: str) -> NoReturn:
    raise AskedWrong("gguf_unreadable", f"'{path.name}' cannot be read: {why}.", "Export or download the file again.")


def truncated(path: Path, what: str) -> NoReturn:
    raise AskedWrong("gguf_truncated", f"'{path.name}' ends too early: {what}.", "The copy or download is incomplete; fetch it again.")


def name_of(cursor: Cursor, raw: bytes, what: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        unreadable(cursor.path, f"{what} is not UTF-8")


def padded(n: int, alignment: int) -> int:
    return -(-n // alignment) * alignment


def short(name: str) -> str:
    return repr(name if len(name) <= 80 else name[:77] + "...")
