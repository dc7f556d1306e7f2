"""Orders and results <-> bytes, for the pipe between service and engine process. Decides tags and frames; knows nothing of what they mean.

    frame   := length u32 little-endian, msgpack
    orders  := [[tag, [field, ...]], ...]      one frame for all orders of a moment
    result  := [tag, [field, ...]]

How a dataclass becomes an array is said in `packing`. What does not fit exactly is not ours: `WorldFailed`, code `engine_lost`. Both ends
are always of one version, so there is nothing to negotiate.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, BinaryIO, cast

from personae.engine import batch
from personae.engine.batch import Order, Result, RowDone
from personae.engine.packing import Shapes
from personae.errors import WorldFailed
from personae.types import FinishReason, Piece, TurnId

_LENGTH = struct.Struct("<I")
_LONGEST_FRAME = 1 << 28  # bytes; a length beyond it is not one we wrote


def _row_done(value: Any) -> RowDone:
    turn, token, pieces, finish, in_kv = value
    if not (type(turn) is type(token) is int and type(pieces) is tuple and type(in_kv) is bool):
        raise TypeError(f"{value!r} is not a row")
    return RowDone(TurnId(turn), token, tuple(map(_piece, pieces)) if pieces else (), _FINISHES[finish], in_kv)


def _piece(value: Any) -> Piece:
    text, kind = value
    if not (type(text) is type(kind) is str):
        raise TypeError(f"{value!r} is not a piece")
    return Piece(text, kind)


_FINISHES: dict[str | None, FinishReason | None] = {None: None} | {reason.value: reason for reason in FinishReason}
_ORDERS = Shapes(
    {
        1: batch.LoadAdapter,
        2: batch.FreeAdapter,
        3: batch.BeginTurn,
        4: batch.RunStep,
        5: batch.DropTurn,
        6: batch.ClearSlot,
        7: batch.Quit,
        8: batch.PauseTurn,
        9: batch.ResumeTurn,
        10: batch.StashSlot,
        11: batch.FetchStash,
        12: batch.DropStash,
        13: batch.CopySlot,
        14: batch.WriteKv,
        15: batch.ReadKv,
    }
)
_RESULTS = Shapes(
    {
        64: batch.EngineReady,
        65: batch.EngineWarm,
        66: batch.EngineFailed,
        67: batch.AdapterLoaded,
        68: batch.AdapterRefused,
        69: batch.StepDone,
        70: batch.TurnFaulted,
        71: batch.TurnRefilled,
        72: batch.SlotStashed,
        73: batch.KvWritten,
        74: batch.KvRead,
    },
    # One row for every speaking NPC, every step: written out, these take about half of what the general way does.
    by_hand={RowDone: _row_done, Piece: _piece},
)


def write_orders(stream: BinaryIO, orders: Iterable[Order]) -> None:
    _write(stream, _ORDERS.pack_all(orders))


def read_orders(stream: BinaryIO) -> list[Order]:
    """EOFError when the other end has closed between two frames, WorldFailed in the middle of one."""
    body = _read(stream)
    try:
        return _ORDERS.unpack_all(body)
    except WorldFailed as error:
        raise _not_ours(error) from error


def write_result(stream: BinaryIO, result: Result) -> None:
    _write(stream, _RESULTS.pack(result))


def read_result(stream: BinaryIO) -> Result:
    """Fails as `read_orders` does."""
    body = _read(stream)
    try:
        return cast(Result, _RESULTS.unpack(body))
    except WorldFailed as error:
        raise _not_ours(error) from error


# --- frames -------------------------------------------------------------------------------------------------------


def _write(stream: BinaryIO, body: bytes) -> None:
    stream.write(_LENGTH.pack(len(body)) + body)
    stream.flush()


def _read(stream: BinaryIO) -> bytes:
    head = _exactly(stream, _LENGTH.size, between_frames=True)
    (length,) = _LENGTH.unpack(head)
    if length > _LONGEST_FRAME:
        raise _broken(f"a frame of {length} bytes")
    return _exactly(stream, length, between_frames=False)


def _exactly(stream: BinaryIO, n_bytes: int, *, between_frames: bool) -> bytes:
    parts = b""
    while len(parts) < n_bytes:
        part = stream.read(n_bytes - len(parts))
        if not part:
            if between_frames and not parts:
                raise EOFError("The pipe was closed.")
            raise _broken("the end in the middle of a frame")
        parts += part
    return parts


def _not_ours(error: WorldFailed) -> WorldFailed:
    return _broken(f"a frame that is not ours: {error.message.rstrip('.')}")


def _broken(what: str) -> WorldFailed:
    return WorldFailed("engine_lost", f"The pipe between service and engine brought {what}.")
