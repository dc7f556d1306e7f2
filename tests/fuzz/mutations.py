"""Spoils bytes by chance, as files are spoiled and as attackers spoil them. The same seed gives the same inputs."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from random import Random

MOST_BYTES = 1 << 16
_NUMBERS = (
    0,
    1,
    2,
    7,
    8,
    0x7F,
    0x80,
    0xFF,
    0x100,
    0x7FFF,
    0xFFFF,
    0x7FFF_FFFF,
    0x8000_0000,
    0xFFFF_FFFF,
    1 << 40,
    (1 << 63) - 1,
    (1 << 64) - 1,
)
_WORDS = (
    b"[[lore]]", b"[adapter]", b"=", b'"""', b"'''", b"{", b"}", b"[", b"]", b"null", b"NaN", b"1e999", b"-0", b"\xef\xbb\xbf", b"\x00",
    b"\\u0000", b"\\ud800", b"../", b"/", b"C:\\", b"a.a.a.a", b"9" * 40, b"{{char}}", b"{{user}}", b"<START>", b"/(a+)+$/i", b"(?i)",
    b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"tEXt", b"zTXt", b"iTXt", b"chara\x00", b"ccv3\x00", b"IEND", b"GGUF", b"general.type",
    b"F32", b"BF16", b'"shape":[1,1]', b'"data_offsets":[0,4]', b"__metadata__", "é".encode(), "\u202e".encode(), "𝕏".encode(),
)  # fmt: skip


def spoiled(corpus: Sequence[bytes], seed: int) -> Iterator[bytes]:
    """Without end: inputs made of those in the corpus, which must not be empty."""
    chance = Random(seed)
    while True:
        content = bytearray(chance.choice(corpus))
        for _ in range(1 + min(int(chance.expovariate(0.5)), 12)):
            content = chance.choice(_WAYS)(content, corpus, chance)[:MOST_BYTES]
        yield bytes(content)


def _flip(content: bytearray, corpus: Sequence[bytes], chance: Random) -> bytearray:
    if content:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return content


def _set(content: bytearray, corpus: Sequence[bytes], chance: Random) -> bytearray:
    if content:
        content[chance.randrange(len(content))] = chance.randrange(256)
    return content


def _number(content: bytearray, corpus: Sequence[bytes], chance: Random) -> bytearray:
    """A length or an offset that is forged."""
    form = chance.choice(("<I", "<Q", "<H", ">I"))
    raw = struct.pack(form, chance.choice(_NUMBERS) & ((1 << 8 * struct.calcsize(form)) - 1))
    at = chance.randrange(len(content) + 1)
    content[at : at + len(raw)] = raw
    return content


def _word(content: bytearray, corpus: Sequence[bytes], chance: Random) -> bytearray:
    at = chance.randrange(len(content) + 1)
    content[at:at] = chance.choice(_WORDS)
    return content


def _cut(content: bytearray, corpus: Sequence[bytes], chance: Random) -> bytearray:
    start = chance.randrange(len(content) + 1)
    del content[start : start + chance.randrange(1, 64) ** 2]
    return content


def _end(content: bytearray, corpus: Sequence[bytes], chance: Random) -> bytearray:
    """A copy that was broken off."""
    return content[: chance.randrange(len(content) + 1)]


def _repeat(content: bytearray, corpus: Sequence[bytes], chance: Random) -> bytearray:
    start = chance.randrange(len(content) + 1)
    piece = content[start : start + chance.randrange(1, 256)]
    content[start:start] = piece * chance.choice((1, 2, 16, 256))
    return content


def _splice(content: bytearray, corpus: Sequence[bytes], chance: Random) -> bytearray:
    other = chance.choice(corpus)
    return content[: chance.randrange(len(content) + 1)] + other[chance.randrange(len(other) + 1) :]


_WAYS = (_flip, _flip, _set, _number, _number, _word, _word, _cut, _end, _repeat, _splice)
