"""Reads the header of a GGUF file that nobody vouches for. Decides whether it is well formed; knows nothing of what tensors are for.

Rules that always hold
- Every fault of the file is `AskedWrong` with `gguf_missing`, `gguf_truncated` (it ends before what it announces) or
  `gguf_unreadable` (all else).
- Arrays are stepped over and only their length is kept: a vocabulary of 262 144 strings is of no use above the engine.
"""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from personae.errors import AskedWrong
from personae.packs.gguf_cursor import ADAPTER_LIMITS, MAX_KEY_BYTES, MODEL_LIMITS, SCALARS, Cursor, Limits, name_of, short, unreadable
from personae.packs.gguf_tensors import TensorInfo, known_table, read_table
from personae.packs.plain_files import open_plain

__all__ = [
    "ADAPTER_LIMITS",
    "MODEL_LIMITS",
    "GgufHeader",
    "Limits",
    "SkippedArray",
    "TensorInfo",
    "open_regular",
    "parse_header",
    "parse_stream",
    "read_header",
]

MAX_ALIGNMENT = 65_536
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class SkippedArray:
    """A metadata array that was stepped over."""

    kind: str  # of its elements: "string", "u32", ...
    length: int


MetaValue = str | int | float | bool | SkippedArray


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """All a GGUF file says before its weights."""

    path: Path
    version: int
    metadata: dict[str, MetaValue]
    kinds: dict[str, str]  # key -> type it is stored as; llama.cpp aborts on a key of another type than it expects
    tensors: dict[str, TensorInfo]  # in the file's order; shared with files that are laid out alike, so not to be changed
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
            unreadable(path, "it is not a regular file")
        return stream, os.fstat(stream.fileno()).st_size
    except (FileNotFoundError, NotADirectoryError):
        raise AskedWrong("gguf_missing", f"'{path}' does not exist.", "Check the path, and that the file was copied.") from None
    except (OSError, ValueError) as fault:  # ValueError: a NUL in the path
        unreadable(path, f"the system does not let it be read ({getattr(fault, 'strerror', None) or fault})")


def parse_stream(stream: BinaryIO, n_bytes: int, path: Path, limits: Limits = MODEL_LIMITS) -> GgufHeader:
    """The header of an open file of `n_bytes`, read from its start; `path` is named in errors. Raises as `read_header` does."""
    cursor = Cursor(stream, n_bytes, path, limits)
    version = _version(cursor)
    n_tensors = cursor.count(limits.tensors, "tensors")
    n_keys = cursor.count(limits.keys, "metadata keys")
    metadata: dict[str, MetaValue] = {}
    kinds: dict[str, str] = {}
    for _ in range(n_keys):
        _read_pair(cursor, metadata, kinds)
    alignment = _alignment(path, metadata, kinds)
    table = known_table(cursor, n_tensors, alignment, n_bytes) or read_table(cursor, n_tensors, alignment, n_bytes)
    return GgufHeader(path, version, metadata, kinds, table.tensors, table.data_offset, alignment, n_bytes)


def _version(cursor: Cursor) -> int:
    if cursor.take(4) != b"GGUF":
        unreadable(cursor.path, "it does not begin with 'GGUF', so it is a file of another kind")
    version = cursor.u32()
    if version not in (2, 3) and version & 0xFFFF == 0:
        unreadable(cursor.path, "it was written for a big-endian machine")
    if version not in (2, 3):
        unreadable(cursor.path, f"it is GGUF version {version}; versions 2 and 3 are known")
    return version


def _read_pair(cursor: Cursor, metadata: dict[str, MetaValue], kinds: dict[str, str]) -> None:
    key = name_of(cursor, cursor.string(MAX_KEY_BYTES, "bytes in a metadata key"), "a metadata key")
    if key in metadata:
        unreadable(cursor.path, f"metadata key {short(key)} is there twice")
    kind = cursor.u32()
    if kind == _ARRAY:
        kinds[key], metadata[key] = "array", _skip_array(cursor, key)
    elif kind == _STRING:
        text = cursor.string(cursor.limits.string_bytes, f"bytes in metadata value {short(key)}")
        kinds[key], metadata[key] = "string", text.decode("utf-8", "replace")
    elif kind in SCALARS:
        kinds[key], metadata[key] = SCALARS[kind][0], cursor.scalar(kind)
    else:
        unreadable(cursor.path, f"metadata key {short(key)} has the unknown type {kind}")


def _skip_array(cursor: Cursor, key: str) -> SkippedArray:
    kind = cursor.u32()
    length = cursor.count(cursor.limits.array_length, f"elements in metadata array {short(key)}")
    if kind == _STRING:
        cursor.skip_strings(length)
        return SkippedArray("string", length)
    if kind not in SCALARS:  # llama.cpp reads no arrays of arrays either
        unreadable(cursor.path, f"metadata array {short(key)} has elements of the unknown type {kind}")
    name, shape = SCALARS[kind]
    cursor.skip(length * shape.size)
    return SkippedArray(name, length)


def _alignment(path: Path, metadata: dict[str, MetaValue], kinds: dict[str, str]) -> int:
    value = metadata.get("general.alignment", 32)
    if kinds.get("general.alignment", "u32") != "u32" or not isinstance(value, int):
        unreadable(path, "general.alignment is not a 32-bit number")
    if not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
        unreadable(path, f"general.alignment is {value}, not a power of two up to {MAX_ALIGNMENT}")
    return value
