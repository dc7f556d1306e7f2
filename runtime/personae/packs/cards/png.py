"""The card within a PNG, out and in. Decides where a picture's text may stand; knows no picture: pixels are never decoded.

A PNG is a row of chunks, each with its length, kind, content and checksum. A card is a text chunk called `chara` (v1, v2) or `ccv3` (v3),
base64 of JSON in tEXt as the formats ask for it, and in the wild also compressed (zTXt), international (iTXt), in front of
the pixels or behind them, with a wrong checksum, or in a file that ends somewhere in its pixels. All of that is read.

Refused, as AskedWrong `card_unreadable` or `card_too_large`: a chunk whose length no PNG can have, more chunks than MAX_CHUNKS, a text that
unpacks to more than MAX_TEXT_BYTES.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NoReturn

from personae.errors import AskedWrong
from personae.packs.cards import json_text

SIGNATURE = b"\x89PNG\r\n\x1a\n"
MAX_BYTES = 64 * 1024 * 1024
MAX_CHUNKS = 20_000  # pixels come in pieces of 8 KiB, of animations too
MAX_CHUNK_BYTES = 2**31 - 1  # says the format
MAX_TEXT_BYTES = json_text.MAX_BYTES * 4 // 3 + 4  # base64 of the longest JSON
MAX_TEXTS = 64  # looked into
MAX_ALL_TEXTS_BYTES = 4 * MAX_TEXT_BYTES  # unpacked, of all that may be the card
ASSET = "chara-ext-asset_"  # keyword of files that some programs lay beside the card: `chara-ext-asset_:3`
CARD_KEYWORDS = ("ccv3", "chara")  # the newer form wins

_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_HEAD = struct.Struct(">I4s")
_CRC = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Chunk:
    kind: bytes
    start: int  # of the whole chunk in the file
    content: memoryview
    is_intact: bool

    @property
    def end(self) -> int:
        return self.start + _HEAD.size + len(self.content) + _CRC.size


@dataclass(frozen=True, slots=True)
class Text:
    keyword: str
    content: bytes  # unpacked
    is_intact: bool


def chunks(content: bytes, source: str) -> Iterator[Chunk]:
    """In order, up to the end or to where the file breaks off."""
    view, at = memoryview(content), len(SIGNATURE)
    for _ in range(MAX_CHUNKS):
        if at + _HEAD.size > len(content):
            return
        n_bytes, kind = _HEAD.unpack_from(content, at)
        if n_bytes > MAX_CHUNK_BYTES:
            _refuse(source, f"it has a chunk that says it holds {n_bytes} bytes")
        end = at + _HEAD.size + n_bytes
        if end + _CRC.size > len(content):
            return
        said = _CRC.unpack_from(content, end)[0]
        yield Chunk(kind, at, view[at + _HEAD.size : end], said == zlib.crc32(view[at + 4 : end]))
        if kind == b"IEND":
            return
        at = end + _CRC.size
    _refuse(source, f"it has more than {MAX_CHUNKS} chunks")


def is_whole(content: bytes, source: str) -> bool:
    """Whether it reaches to its end mark."""
    return any(chunk.kind == b"IEND" for chunk in chunks(content, source))


def card_texts(content: bytes, source: str) -> list[Text]:
    """Texts that may be the card, the one to be preferred first."""
    found: list[Text] = []
    room = MAX_ALL_TEXTS_BYTES
    named = ((chunk, keyword) for chunk in chunks(content, source) if (keyword := _keyword(chunk)).lower() in CARD_KEYWORDS)
    for chunk, keyword in islice(named, MAX_TEXTS):
        text = _unpacked(chunk.kind, bytes(chunk.content[len(keyword) + 1 :]))
        if text is None:
            continue
        room -= len(text)
        if len(text) > MAX_TEXT_BYTES or room < 0:
            raise AskedWrong("card_too_large", f"'{source}' holds a card of more than {MAX_TEXT_BYTES} bytes.", "Make the card smaller.")
        found.append(Text(keyword, text, chunk.is_intact))
    return sorted(found, key=lambda text: CARD_KEYWORDS.index(text.keyword.lower()))


def assets(content: bytes, source: str) -> Iterator[tuple[str, bytes]]:
    """(path, content) of files laid beside the card, as plain texts only. One whose base64 is none is left out."""
    named = ((chunk, _keyword(chunk)) for chunk in chunks(content, source) if chunk.kind == b"tEXt")
    for chunk, keyword in islice((pair for pair in named if pair[1].startswith(ASSET)), MAX_TEXTS):
        try:
            yield keyword.removeprefix(ASSET).removeprefix(":"), unbase64(bytes(chunk.content[len(keyword) + 1 :]))
        except ValueError:
            continue


def unbase64(text: bytes) -> bytes:
    """With either alphabet, broken into lines or not, padded or not. ValueError when it is something else."""
    packed = re.sub(rb"\s+", b"", text).replace(b"-", b"+").replace(b"_", b"/").rstrip(b"=")
    try:
        return base64.b64decode(packed + b"=" * (-len(packed) % 4), validate=True)
    except binascii.Error:
        raise ValueError("is not base64") from None


def without_card(content: bytes, source: str) -> bytes:
    """The picture alone: the card goes, and so does what lay beside it. All other bytes stay as they are, those of a broken end too."""
    kept, at = [], 0
    for chunk in chunks(content, source):
        if _is_of_card(chunk):
            kept.append(content[at : chunk.start])
            at = chunk.end
    return b"".join([*kept, content[at:]])


def with_texts(picture: bytes, texts: Mapping[str, bytes], source: str) -> bytes:
    """The picture with one tEXt chunk for each keyword, in front of its end mark."""
    bare = without_card(picture, source)
    end = next((chunk.start for chunk in chunks(bare, source) if chunk.kind == b"IEND"), None)
    if end is None:
        _refuse(source, "its picture breaks off")
    added = [_chunk(b"tEXt", keyword.encode("latin-1") + b"\0" + text) for keyword, text in texts.items()]
    return b"".join([bare[:end], *added, bare[end:]])


def blank(side: int = 256) -> bytes:
    """A grey square, for cards of characters without a picture."""
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + b"\x80" * side for _ in range(side)), 9)
    return SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", pixels) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, content: bytes) -> bytes:
    return _HEAD.pack(len(content), kind) + content + _CRC.pack(zlib.crc32(kind + content))


# --- text chunks --------------------------------------------------------------------------------------------------


def _keyword(chunk: Chunk) -> str:
    """Of a text chunk; "" of any other. A keyword has at most 79 characters; those of assets are paths, and longer."""
    if chunk.kind not in _TEXTS:
        return ""
    head = bytes(chunk.content[:300])
    keyword, mark, _ = head.partition(b"\0")
    return keyword.decode("latin-1") if mark else ""


def _is_of_card(chunk: Chunk) -> bool:
    keyword = _keyword(chunk)
    return keyword.lower() in CARD_KEYWORDS or keyword.startswith(ASSET)


def _unpacked(kind: bytes, body: bytes) -> bytes | None:
    """At most one byte more than there may be. None when it cannot be unpacked: the next text may be whole."""
    if kind == b"tEXt":
        return body
    if kind == b"zTXt":
        return _inflated(body[1:])
    is_packed, rest = body[:1] == b"\1", body[2:].split(b"\0", 2)
    if len(rest) < 3:
        return None
    return _inflated(rest[2]) if is_packed else rest[2]


def _inflated(packed: bytes) -> bytes | None:
    try:
        return zlib.decompressobj().decompress(packed, MAX_TEXT_BYTES + 1)
    except zlib.error:
        return None


def _refuse(source: str, why: str) -> NoReturn:
    raise AskedWrong("card_unreadable", f"'{source}' cannot be read: {why}.", "Export or download the card again.")
