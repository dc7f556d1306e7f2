"""Writes down what the scheduler saw and what it answered, and reads it again. Knows nothing of what any of it means.

    file     := frame...               the first holds the Header, each one after it a moment
    frame    := length u32 little-endian, bytes
    moment   := digest u32 little-endian, event        as engine/packing.py writes it

The digest is that of the answer: with it a replay can tell whether a scheduler still decides the same. Everything that players typed and
NPCs said is in the file, as tokens: whoever hands one on hands that on.

Rules that always hold
- The service's loop only ever pays for packing: bytes go out when a turn has ended or a second has passed, to the system's cache.
- A process that is killed leaves a file that is read up to its last whole moment.
- A disk that is full ends the record with one line in the log, and nothing else: play goes on.
- A file that was there is kept beside the new one, with `.before` behind its name.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from personae import __version__
from personae.engine import batch
from personae.engine.packing import Shapes
from personae.errors import AskedWrong, WorldFailed
from personae.scheduler import actions as act
from personae.scheduler import events as ev
from personae.scheduler.settings import SchedulerConfig

log = logging.getLogger("personae.service")

RECORD_VERSION = 2  # 2: a turn is asked with a voice of several adapters, and adapters have a budget of bytes
FLUSH_MS = 1000.0  # of the events' own time
LONGEST_FRAME = 1 << 26  # bytes; the longest prompt there is takes a twentieth of it


@dataclass(frozen=True, slots=True)
class Header:
    """Under which circumstances the events came about."""

    version: int
    personae: str  # version of the package
    config: SchedulerConfig


@dataclass(frozen=True, slots=True)
class _Stamp:
    """The first field of a header, which every version of it has there."""

    version: int


def _stamp(members: Any) -> _Stamp:
    version = members[0] if type(members) is tuple and members else None
    if type(version) is not int:
        raise TypeError(f"{version!r} is no version")
    return _Stamp(version)


_STAMPS = Shapes({0: _Stamp}, {_Stamp: _stamp})
_HEADERS = Shapes({0: Header})
_EVENTS = Shapes(
    {
        1: ev.TurnAsked,
        2: ev.TurnCancelled,
        3: ev.NpcGone,
        4: ev.AdapterRetired,
        5: ev.StepReported,
        6: ev.FaultReported,
        7: ev.AdapterReported,
        8: ev.KvReported,
        9: ev.KvSaveAsked,
        10: ev.KvLoadAsked,
        11: ev.EngineStarted,
        12: ev.EngineGone,
        13: ev.Tick,
    }
)
_ANSWERS = Shapes(
    {
        1: batch.LoadAdapter,
        2: batch.FreeAdapter,
        3: batch.BeginTurn,
        4: batch.RunStep,
        5: batch.DropTurn,
        6: batch.PauseTurn,
        7: batch.ResumeTurn,
        8: batch.StashSlot,
        9: batch.FetchStash,
        10: batch.DropStash,
        11: batch.CopySlot,
        12: batch.WriteKv,
        13: batch.ReadKv,
        14: batch.ClearSlot,
        15: act.EndTurn,
        16: act.FailTurn,
        17: act.SetAside,
        18: act.KvSaved,
        19: act.KvLoaded,
    }
)
_LENGTH, _DIGEST = struct.Struct("<I"), struct.Struct("<I")


def digest(actions: Sequence[act.Action]) -> int:
    """Of what was decided: the orders, and how turns ended. Words are the engine's own, and left out."""
    decided = [action.order if isinstance(action, act.Command) else action for action in actions if not isinstance(action, act.Speak)]
    return crc32(_ANSWERS.pack_all(decided)) if decided else 0


# --- writing ------------------------------------------------------------------------------------------------------


class Recorder:
    """A witness that writes to a file. Belongs to one thread."""

    def __init__(self, path: Path, config: SchedulerConfig) -> None:
        """AskedWrong `bad_arguments` when nothing can be written there."""
        self._path = path
        self._waiting = bytearray()
        self._flushed_ms: float | None = None
        try:
            _keep_former(path)
            self._file: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o600)
        except OSError as error:
            raise AskedWrong(
                "bad_arguments", f"{path} cannot be recorded to: {error.strerror}.", "Name another file (--record)."
            ) from error
        self._put(_HEADERS.pack(Header(RECORD_VERSION, __version__, config)))
        self.flush()

    def saw(self, event: ev.Event, actions: Sequence[act.Action]) -> None:
        if self._file is None:
            return
        try:
            self._put(_DIGEST.pack(digest(actions)) + _EVENTS.pack(event))
        except Exception:  # ours, and no reason to end anybody's turn
            log.exception("%s: %s could not be written down; nothing more is recorded", self._path, type(event).__name__)
            self._give_up()
            return
        if self._flushed_ms is None:
            self._flushed_ms = event.at_ms
        if event.at_ms - self._flushed_ms >= FLUSH_MS or any(isinstance(action, act.EndTurn | act.FailTurn) for action in actions):
            self._flushed_ms = event.at_ms
            self.flush()

    def flush(self) -> None:
        """Hand to the system what has come together. Where it does not take it, the record ends here."""
        if self._file is None:
            return
        try:
            while self._waiting:
                del self._waiting[: os.write(self._file, self._waiting)]
        except OSError as error:
            log.error("%s: %s; nothing more is recorded", self._path, error.strerror)
            self._give_up()

    def close(self) -> None:
        """Twice is harmless."""
        self.flush()
        self._give_up()

    def _put(self, frame: bytes) -> None:
        self._waiting += _LENGTH.pack(len(frame)) + frame

    def _give_up(self) -> None:
        self._waiting.clear()
        if self._file is not None:
            os.close(self._file)
        self._file = None


def _keep_former(path: Path) -> None:
    """A service that is started again by a script writes over nothing: the record of its crash is what somebody wants."""
    if path.is_file() and path.stat().st_size:
        path.replace(path.with_name(f"{path.name}.before"))


# --- reading ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Moment:
    event: ev.Event
    digest: int  # of what was answered then


class Record:
    """A file that was recorded. `is_whole` tells, after all moments were read, whether it ended between two of them."""

    def __init__(self, path: Path) -> None:
        """WorldFailed `record_unreadable`: it cannot be read, is none, or is newer than this reader."""
        self._path = path
        self.is_whole = True
        try:
            self._bytes = path.read_bytes()
        except OSError as error:
            raise _unreadable(path, f"it cannot be read ({error.strerror})") from error
        self._frames = self._cut()
        self.header = self._header()

    def moments(self) -> Iterator[Moment]:
        """Once. A moment that is no moment ends it with WorldFailed `record_unreadable`."""
        for number, frame in enumerate(self._frames):
            try:
                yield Moment(_EVENTS.unpack(frame[_DIGEST.size :]), *_DIGEST.unpack_from(frame))
            except (WorldFailed, struct.error) as error:
                raise _unreadable(self._path, f"event {number} in it is none") from error

    def _header(self) -> Header:
        frame = next(self._frames, b"")
        stamp: _Stamp = self._unpacked(_STAMPS, frame)
        if stamp.version != RECORD_VERSION:
            raise _unreadable(self._path, f"it is a record of version {stamp.version}, and {RECORD_VERSION} is read here")
        header: Header = self._unpacked(_HEADERS, frame)
        return header

    def _unpacked(self, shapes: Shapes, frame: bytes) -> Any:
        try:
            return shapes.unpack(frame)
        except WorldFailed as error:
            raise _unreadable(self._path, f"it is no record, or one of another version than {__version__}") from error

    def _cut(self) -> Iterator[bytes]:
        at = 0
        while at < len(self._bytes):
            start = at + _LENGTH.size
            length = _LENGTH.unpack_from(self._bytes, at)[0] if start <= len(self._bytes) else LONGEST_FRAME
            at = start + length
            if length > LONGEST_FRAME or at > len(self._bytes):
                self.is_whole = False
                return
            yield self._bytes[start:at]


def _unreadable(path: Path, why: str) -> WorldFailed:
    return WorldFailed("record_unreadable", f"{path}: {why}.", "Give a file that `personae serve --record` of this version wrote.")
