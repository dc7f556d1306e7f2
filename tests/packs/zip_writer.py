"""Writes zip archives by hand, right or wrong: nothing here checks what it is told. Knows the format and none of our reader."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

FILE, FOLDER, LINK, PIPE = 0o100644, 0o040755, 0o120777, 0o010644
STORED, DEFLATED = 0, 8


@dataclass
class Member:
    """None: what it should be. `n_bytes`, `n_packed` and `crc` are what the headers state; `local_name` is the name before the content."""

    name: str | bytes
    content: bytes = b""
    method: int = DEFLATED
    flags: int = 0
    mode: int = FILE
    n_bytes: int | None = None
    n_packed: int | None = None
    crc: int | None = None
    local_name: str | bytes | None = None
    header_at: int | None = None
    packed: bytes | None = None


def raw(name: str | bytes) -> bytes:
    return name.encode() if isinstance(name, str) else name


def deflated(content: bytes) -> bytes:
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return squeeze.compress(content) + squeeze.flush()


def archive(members: Sequence[Member], *, before: bytes = b"", comment: bytes = b"", n_entries: int | None = None, disk: int = 0) -> bytes:
    """`before` shifts everything without the offsets knowing, as a picture before an archive does."""
    body, directory = b"", b""
    for member in members:
        packed = member.packed
        if packed is None:
            packed = deflated(member.content) if member.method == DEFLATED else member.content
        crc = zlib.crc32(member.content) if member.crc is None else member.crc
        n_packed = len(packed) if member.n_packed is None else member.n_packed
        n_bytes = len(member.content) if member.n_bytes is None else member.n_bytes
        name, local = raw(member.name), raw(member.name if member.local_name is None else member.local_name)
        at = len(body) if member.header_at is None else member.header_at
        stated = (member.flags, member.method, 0, 0, crc, n_packed, n_bytes)
        body += struct.pack("<4s5H3L2H", b"PK\3\4", 20, *stated, len(local), 0) + local + packed
        directory += struct.pack("<4s6H3L5H2L", b"PK\1\2", 0x0314, 20, *stated, len(name), 0, 0, 0, 0, member.mode << 16, at) + name
    n = len(members) if n_entries is None else n_entries
    return (
        before + body + directory + struct.pack("<4s4H2LH", b"PK\5\6", disk, disk, n, n, len(directory), len(body), len(comment)) + comment
    )
