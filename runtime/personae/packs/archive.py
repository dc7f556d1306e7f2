"""Reads zip archives that nobody vouches for. Decides whether one is well formed and harmless; does not know what its files are for.

The directory at an archive's end is read whole and checked against itself and against the header before each file. After that it is
clear where every file's bytes lie, that no two share any, and what each may unpack to at the most. Unpacking holds to it byte by
byte: a size that a directory states is a promise to be kept and never a reason to allocate.

Only what a pack needs is read: stored and deflated files, no encryption, no parts, no Zip64 (an archive has to be below 4 GiB anyway),
no links. Everything else is AskedWrong `pack_archive`. An archive whose directory is missing, which is what a copy under way looks like, is
`pack_incomplete`.
"""

from __future__ import annotations

import io
import os
import stat
import struct
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NoReturn

from personae.errors import AskedWrong
from personae.packs.names import fault_in_name, folders_above, plain

MAX_ENTRIES = 1000  # files and folders
MAX_ENTRY_BYTES = 2 * 1024**3  # of one file, unpacked: as large as an adapter may be
MAX_TOTAL_BYTES = 4 * 1024**3  # of all files, unpacked
MAX_ARCHIVE_BYTES = 4 * 1024**3 - 1  # what 32-bit offsets reach
MAX_DIRECTORY_BYTES = 1024 * 1024
MAX_RATIO = 100  # unpacked to packed, of files above RATIO_FROM_BYTES: text reaches 20, weights 2, bombs 1000
RATIO_FROM_BYTES = 1024 * 1024

_CHUNK = 64 * 1024  # packed bytes read at once
_END = struct.Struct("<4s4H2LH")  # signature, disk, directory's disk, entries here, entries, bytes, offset, comment's bytes
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_END_REACH = _END.size + 65_535  # a comment may follow
_ENCRYPTED = 0x0001 | 0x0040 | 0x2000  # flags: encrypted, strongly, the directory itself
_UTF8 = 0x0800
_STORED, _DEFLATED = 0, 8


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in an archive, as its directory states it."""

    name: str  # with / between folders, in Unicode's composed form
    raw_name: bytes
    method: int
    flags: int
    crc: int
    n_packed: int
    n_bytes: int
    header_at: int  # offset of its local header
    is_folder: bool


class Archive:
    """An open archive. `entries`: its files by name; folders are left out. Threads may read different files at once."""

    def __init__(self, stream: BinaryIO, label: str) -> None:
        """Takes the stream over. `label` is named in errors. AskedWrong `pack_archive`, `pack_incomplete`."""
        self._label = label
        self._stream = stream
        self._turn = threading.Lock()
        self._n_bytes = os.fstat(stream.fileno()).st_size
        found = list(self._directory())
        self._starts = self._laid_out(found)
        self.entries = {entry.name: entry for entry in found if not entry.is_folder}

    def open(self, name: str) -> BinaryIO:
        """A file's content from its start, unpacked as it is read. KeyError when there is none of that name."""
        entry = self.entries[name]
        return io.BufferedReader(_Unpacking(self, entry, self._starts[name]), _CHUNK)

    def read_at(self, offset: int, n: int) -> bytes:
        with self._turn:
            self._stream.seek(offset)
            return self._stream.read(n)

    def close(self) -> None:
        self._stream.close()

    def refuse(self, why: str) -> NoReturn:
        raise AskedWrong("pack_archive", f"Archive '{self._label}' {why}.", "Make it again with `personae pack build`, or unpack it.")

    # --- the directory --------------------------------------------------------------------------------------------

    def _directory(self) -> Iterator[Entry]:
        n_entries, n_bytes, begin, shift = self._end()
        raw = self.read_at(begin, n_bytes)
        at, total = 0, 0
        for _ in range(n_entries):
            if at + _CENTRAL.size > len(raw):
                self.refuse("has a directory that is cut off")
            entry, at = self._entry(raw, at, shift)
            total += entry.n_bytes
            if total > MAX_TOTAL_BYTES:
                self.refuse(f"would unpack to more than {MAX_TOTAL_BYTES} bytes")
            yield entry
        if at != len(raw):
            self.refuse("has a directory that does not end where it should")

    def _end(self) -> tuple[int, int, int, int]:
        """(entries, bytes, offset) of the directory, and by how much all offsets are short where something stands before the archive."""
        if self._n_bytes > MAX_ARCHIVE_BYTES:
            self.refuse(f"has {self._n_bytes} bytes, more than {MAX_ARCHIVE_BYTES}")
        reach = max(self._n_bytes - _END_REACH, 0)
        tail = self.read_at(reach, _END_REACH)
        at = self._end_in(tail)
        _, disk, first_disk, here, n_entries, n_bytes, offset, _ = _END.unpack_from(tail, at)
        if disk or first_disk or here != n_entries:
            self.refuse("is one of several parts")
        if n_entries > MAX_ENTRIES:
            self.refuse(f"holds {n_entries} entries, more than {MAX_ENTRIES}")
        if n_bytes > MAX_DIRECTORY_BYTES:
            self.refuse(f"has a directory of {n_bytes} bytes, more than {MAX_DIRECTORY_BYTES}")
        shift = reach + at - n_bytes - offset
        if shift < 0:
            self.refuse("has a directory that lies beyond its end")
        return n_entries, n_bytes, offset + shift, shift

    def _end_in(self, tail: bytes) -> int:
        """Where the record that ends an archive stands in its last bytes: its comment must reach to the very end."""
        at = tail.rfind(b"PK\5\6")
        while at >= 0:
            if at + _END.size <= len(tail) and at + _END.size + _END.unpack_from(tail, at)[-1] == len(tail):
                return at
            at = tail.rfind(b"PK\5\6", 0, at)
        head = self.read_at(0, 4)
        if head[:2] not in (b"PK"[: len(head)], b"\0\0"):  # some programs make room for a file before they copy it
            self.refuse("is no zip archive")
        problem = f"Archive '{self._label}' is incomplete: it has no end yet."
        raise AskedWrong("pack_incomplete", problem, "Wait for the copy, or copy it again.")

    def _entry(self, raw: bytes, at: int, shift: int) -> tuple[Entry, int]:
        """The entry at an offset of the directory, and the offset of the next."""
        signature, _, _, flags, method, _, _, crc, n_packed, n_bytes, *rest = _CENTRAL.unpack_from(raw, at)
        name_bytes, extra_bytes, comment_bytes, _, _, attributes, header = rest
        begin = at + _CENTRAL.size
        raw_name = raw[begin : begin + name_bytes]
        if signature != b"PK\1\2" or len(raw_name) < name_bytes:
            self.refuse("has a directory that is garbled")
        name = self._name(raw_name, flags)
        is_folder = name.endswith("/")
        entry = Entry(name.removesuffix("/"), raw_name, method, flags, crc, n_packed, n_bytes, header + shift, is_folder)
        self._check_entry(entry, attributes >> 16)
        return entry, begin + name_bytes + extra_bytes + comment_bytes

    def _name(self, raw: bytes, flags: int) -> str:
        """UTF-8 whether it is said to be or not, since macOS does not say so; what is no UTF-8 is in the code page of old."""
        try:
            return plain(raw.decode("utf-8"))
        except UnicodeDecodeError:
            if flags & _UTF8:
                self.refuse(f"holds a name that is not UTF-8: {raw[:80]!a}")
            return plain(raw.decode("cp437"))

    def _check_entry(self, entry: Entry, mode: int) -> None:
        if fault := fault_in_name(entry.name):
            self.refuse(f"holds {entry.name[:80]!a}, and {fault}")
        kind = stat.S_IFMT(mode)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            self.refuse(f"holds '{entry.name}', which is a link or a device")
        if (kind == stat.S_IFDIR) != entry.is_folder and kind:
            self.refuse(f"holds '{entry.name}', which is said to be both a file and a folder")
        if entry.flags & _ENCRYPTED:
            self.refuse(f"holds '{entry.name}' encrypted")
        if entry.method not in (_STORED, _DEFLATED):
            self.refuse(f"holds '{entry.name}' packed by method {entry.method}; stored and deflated can be read")
        self._check_size(entry)

    def _check_size(self, entry: Entry) -> None:
        if entry.n_bytes > MAX_ENTRY_BYTES:
            self.refuse(f"holds '{entry.name}' of {entry.n_bytes} bytes, more than {MAX_ENTRY_BYTES}")
        if (entry.method == _STORED and entry.n_packed != entry.n_bytes) or (entry.is_folder and entry.n_bytes):
            self.refuse(f"states sizes of '{entry.name}' that cannot be")
        if entry.n_bytes > RATIO_FROM_BYTES and entry.n_bytes > MAX_RATIO * entry.n_packed:
            self.refuse(f"holds '{entry.name}', {entry.n_bytes} bytes packed into {entry.n_packed}: more than {MAX_RATIO} to one")

    # --- the files ------------------------------------------------------------------------------------------------

    def _laid_out(self, entries: list[Entry]) -> dict[str, int]:
        """Where each file's packed bytes begin. Refused: names that clash, and files that share bytes or reach into the directory."""
        _, _, end, _ = self._end()
        self._check_names(entries)
        starts = {}
        for entry in sorted(entries, key=lambda entry: entry.header_at, reverse=True):
            starts[entry.name] = self._start_of(entry)
            if starts[entry.name] + entry.n_packed > end:
                self.refuse(f"holds '{entry.name}', whose bytes overlap those of another file")
            end = entry.header_at
        return starts

    def _check_names(self, entries: list[Entry]) -> None:
        """Two that a file system may hold for one are refused, and so is a file that is also a folder above another."""
        files: set[str] = set()
        folders: set[str] = set()
        for entry in entries:
            folded = entry.name.casefold()
            if folded in files or folded in folders:
                self.refuse(f"holds '{entry.name}' twice, or another that differs in case alone")
            (folders if entry.is_folder else files).add(folded)
        folders.update(above.casefold() for entry in entries for above in folders_above(entry.name))
        if clash := files & folders:
            self.refuse(f"holds {min(clash)[:80]!a} both as a file and as a folder")

    def _start_of(self, entry: Entry) -> int:
        """The header before a file has to say what the directory says: readers that look at the one only must not see another file."""
        header = self.read_at(entry.header_at, _LOCAL.size + len(entry.raw_name))
        if len(header) < _LOCAL.size + len(entry.raw_name):
            self.refuse(f"has no '{entry.name}' where its directory says it is")
        signature, _, flags, method, _, _, _, _, _, name_bytes, extra_bytes = _LOCAL.unpack_from(header)
        if signature != b"PK\3\4" or (method, flags & _ENCRYPTED) != (entry.method, 0):
            self.refuse(f"has no '{entry.name}' where its directory says it is")
        if name_bytes != len(entry.raw_name) or header[_LOCAL.size :] != entry.raw_name:
            self.refuse(f"gives '{entry.name}' another name where it is stored")
        return entry.header_at + _LOCAL.size + int(name_bytes) + int(extra_bytes)


class _Unpacking(io.RawIOBase):
    """One file of an archive, front to back. Never gives more than its directory states, and fails when there is less or it is another."""

    def __init__(self, archive: Archive, entry: Entry, start: int) -> None:
        self._archive = archive
        self._entry = entry
        self._at = start
        self._end = start + entry.n_packed
        self._left = entry.n_bytes
        self._crc = 0
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS) if entry.method == _DEFLATED else None
        self._held = b""  # packed bytes that the last piece did not need

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # typeshed's name for a buffer is private
        piece = self._next(min(len(buffer), self._left)) if self._left else b""
        buffer[: len(piece)] = piece
        self._left -= len(piece)
        self._crc = zlib.crc32(piece, self._crc)
        if piece and not self._left:
            self._check_end()
        return len(piece)

    def _next(self, most: int) -> bytes:
        """At least one byte, or a refusal."""
        while True:
            packed = self._held or self._packed()
            if self._inflate is None:
                self._held = packed[most:]
                piece = packed[:most]
            else:
                piece = self._inflated(packed, most)
            if piece:
                return piece
            if not packed or (self._inflate is not None and self._inflate.eof):
                self._archive.refuse(f"holds less of '{self._entry.name}' than it states")

    def _inflated(self, packed: bytes, most: int) -> bytes:
        assert self._inflate is not None
        try:
            piece = self._inflate.decompress(packed, most)
        except zlib.error:
            self._archive.refuse(f"holds '{self._entry.name}' damaged")
        self._held = self._inflate.unconsumed_tail
        return piece

    def _packed(self) -> bytes:
        piece = self._archive.read_at(self._at, min(_CHUNK, self._end - self._at))
        self._at += len(piece)
        return piece

    def _check_end(self) -> None:
        if self._crc != self._entry.crc:
            self._archive.refuse(f"holds '{self._entry.name}' damaged: its checksum is another")
        if self._inflate is not None and not self._inflate.eof and self._inflate.decompress(self._held or self._packed(), 1):
            self._archive.refuse(f"holds more of '{self._entry.name}' than it states")
