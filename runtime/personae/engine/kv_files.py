"""A sequence's KV as a file: its form, what makes one acceptable, and the thread that writes and reads them. Knows no slot and no turn.

    file   := magic 12 bytes, version u32 LE, length of head u32 LE, seal 16 bytes, head, blob
    head   := KvHead, packed as in `packing`        blob   := what Backend.export gave
    seal   := Backend.seal(head, blob)

Writing is one atomic replacement: beside, to the disk, then over what was there. Reading trusts nothing: what a length promises is
checked before there is memory for it, and a file that is not exactly this model's is refused with a reason, one clause for people.
A reason is all that can go wrong: whatever a file or a disk does, the thread lives and every order is answered.
"""

from __future__ import annotations

import math
import os
import queue
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from personae.engine.backend import Backend
from personae.engine.batch import KvWritten
from personae.engine.packing import Shapes
from personae.errors import WorldFailed
from personae.types import MAX_VOICE_PARTS, Stash, Token, Voice, voice_of

_MAGIC, _VERSION = b"personae KV\n", 2  # 1: of one adapter at the most
_FRONT = struct.Struct("<12sII16s")
_TOKEN_BYTES = 9  # of a token in a head, at the most
_SPARE_BYTES = 1 << 16  # of a head or a blob, beside what each token takes
_BOOKS_BYTES = 64  # of each token in a blob, beside its KV: its position and the like
_MOST_BYTES = 1 << 31  # of a blob, where nobody knows what a token takes
_DAMAGED = "it is damaged"


@dataclass(frozen=True, slots=True)
class KvHead:
    base: str  # content hash of the model
    n_ctx: int
    voice: Voice  # under which the KV was made
    tokens: tuple[Token, ...]
    n_bytes: int  # of the blob


@dataclass(frozen=True, slots=True)
class Refused:
    reason: str


@dataclass(frozen=True, slots=True)
class Arrived:
    """What a file held, or why it is not taken."""

    path: str
    stash: Stash
    content: tuple[KvHead, bytes] | Refused


_HEADS = Shapes({1: KvHead})
_Job = Callable[[], KvWritten | Arrived]


class KvFiles:
    """`wake` is called on the thread that writes and reads when something is ready for `settled`. One after the other, in order."""

    def __init__(self, backend: Backend, wake: Callable[[], None]) -> None:
        self._backend = backend
        self._wake = wake
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[KvWritten | Arrived] = queue.SimpleQueue()
        self._n_open = 0
        self._thread: threading.Thread | None = None

    def write(self, path: str, tokens: tuple[Token, ...], voice: Voice, blob: bytes) -> None:
        card = self._backend.card
        head = KvHead(card.content_hash, card.n_ctx, voice, tokens, len(blob))
        self._do(lambda: self._written(path, head, blob))

    def read(self, path: str, stash: Stash) -> None:
        self._do(lambda: Arrived(path, stash, self._read(path)))

    def settled(self, block: bool) -> Iterator[KvWritten | Arrived]:
        """What has been done meanwhile. `block`: wait for all that is still to be done."""
        while self._n_open and (block or not self._done.empty()):
            self._n_open -= 1
            yield self._done.get()

    def close(self) -> None:
        """What was ordered is done first."""
        if self._thread:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _do(self, job: _Job) -> None:
        self._n_open += 1
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="kv-files", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def _work(self) -> None:
        while job := self._jobs.get():
            self._done.put(job())
            self._wake()

    # --- on that thread -------------------------------------------------------------------------------------------

    def _written(self, path: str, head: KvHead, blob: bytes) -> KvWritten:
        try:
            packed = _HEADS.pack(head)
            front = _FRONT.pack(_MAGIC, _VERSION, len(packed), self._backend.seal(packed, blob))
            _replace(Path(path), (front, packed, blob))
        except OSError as error:
            return KvWritten(path, 0, 0, f"the file cannot be written: {error.strerror or error}")
        except Exception as error:
            return KvWritten(path, 0, 0, f"it could not be written: {error!r}")
        return KvWritten(path, len(head.tokens), len(front) + len(packed) + len(blob))

    def _read(self, path: str) -> tuple[KvHead, bytes] | Refused:
        try:
            with _opened(path) as file:
                return self._content(file)
        except FileNotFoundError:
            return Refused("there is no such file")
        except _UnfitError as unfit:
            return Refused(str(unfit))
        except OSError as error:
            return Refused(f"the file cannot be read: {error.strerror or error}")
        except MemoryError:
            return Refused("there is not enough memory for it")
        except Exception as error:
            return Refused(f"it could not be read: {error!r}")

    def _content(self, file: BinaryIO) -> tuple[KvHead, bytes]:
        size = os.fstat(file.fileno()).st_size
        magic, version, head_length, seal = _FRONT.unpack(_exactly(file, _FRONT.size))
        _require(magic == _MAGIC, "it is no file of ours")
        _require(version == _VERSION, "it was written by another version of Personae")
        _require(head_length <= self._backend.card.n_ctx * _TOKEN_BYTES + _SPARE_BYTES, "it is damaged, or of a far larger context")
        packed = _exactly(file, head_length)
        head = _head(packed)
        self._require_ours(head)
        _require(head.n_bytes == size - _FRONT.size - head_length, _DAMAGED)
        blob = _exactly(file, head.n_bytes)
        _require(self._backend.seal(packed, blob) == seal, "it is damaged, or was made by another build of the engine")
        return head, blob

    def _require_ours(self, head: KvHead) -> None:
        card, n_tokens = self._backend.card, len(head.tokens)
        _require(head.base == card.content_hash, "it was made with another model")
        _require(head.n_ctx == card.n_ctx, f"it was made with another context size: {head.n_ctx} tokens")
        _require(0 < n_tokens <= card.n_ctx and all(token >= 0 for token in head.tokens), _DAMAGED)
        _require(_is_voice(head.voice), _DAMAGED)
        most = n_tokens * (card.kv_token_bytes + _BOOKS_BYTES) + _SPARE_BYTES if card.kv_token_bytes else _MOST_BYTES
        _require(head.n_bytes <= most, _DAMAGED)


class _UnfitError(Exception):
    """Why a file is not taken, one clause."""


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _UnfitError(otherwise)


def _is_voice(voice: Voice) -> bool:
    return len(voice) <= MAX_VOICE_PARTS and all(math.isfinite(use.scale) for use in voice) and voice == voice_of(voice)


def _head(packed: bytes) -> KvHead:
    try:
        head: KvHead = _HEADS.unpack(packed)
    except WorldFailed:
        raise _UnfitError(_DAMAGED) from None
    return head


def _opened(path: str) -> BinaryIO:
    """A regular file: opening a pipe would wait for somebody to write."""
    _require(Path(path).is_file() or not Path(path).exists(), "it is no file")
    return open(path, "rb")


def _exactly(file: BinaryIO, n_bytes: int) -> bytes:
    content = file.read(n_bytes)
    _require(len(content) == n_bytes, "it is cut short")
    return content


def _replace(path: Path, parts: tuple[bytes, ...]) -> None:
    """All or nothing, whenever the machine stops."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    try:
        with beside.open("wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
