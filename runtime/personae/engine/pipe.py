"""Orders and results <-> bytes, for the pipe between service and engine process. Knows their shapes and nothing of what they mean.

    frame   := length u32 little-endian, msgpack
    orders  := [[tag, [field, ...]], ...]      one frame for all orders of a moment
    result  := [tag, [field, ...]]

A dataclass is the array of its fields in their order, an enum its value; only the outermost has a tag. The annotations of the dataclasses
are the schema, read once at import, and what does not fit it exactly is not ours: `WorldFailed`, code `engine_lost`. Both ends are
always of one version, so there is nothing to negotiate.
"""

from __future__ import annotations

import struct
import types
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from operator import attrgetter
from typing import Any, BinaryIO, NewType, Union, cast, get_args, get_origin, get_type_hints

import msgpack  # type: ignore[import-untyped]

from personae.engine import batch
from personae.engine.batch import ExtendSlot, Order, PrefillChunk, Result, RowDone
from personae.errors import WorldFailed
from personae.types import AdapterUse, FinishReason, Limits, ModelCard, Piece, ReplyRules, SamplingParams, TurnId

_ORDERS: dict[int, type] = {
    1: batch.LoadAdapter,
    2: batch.FreeAdapter,
    3: batch.BeginTurn,
    4: batch.RunStep,
    5: batch.DropTurn,
    6: batch.ClearSlot,
    7: batch.Quit,
}
_RESULTS: dict[int, type] = {
    64: batch.EngineReady,
    65: batch.EngineWarm,
    66: batch.EngineFailed,
    67: batch.AdapterLoaded,
    68: batch.AdapterRefused,
    69: batch.StepDone,
    70: batch.TurnFaulted,
}
_INNER = (AdapterUse, SamplingParams, ReplyRules, Limits, Piece, ModelCard, PrefillChunk, ExtendSlot, RowDone)
_LENGTH = struct.Struct("<I")
_LONGEST_FRAME = 1 << 28  # bytes; a length beyond it is not one we wrote


def write_orders(stream: BinaryIO, orders: Iterable[Order]) -> None:
    _write(stream, [(_TAGS[type(order)], order) for order in orders])


def read_orders(stream: BinaryIO) -> list[Order]:
    """EOFError when the other end has closed between two frames, WorldFailed in the middle of one."""
    return [cast(Order, order) for order in _read(stream, lambda frame: [_tagged(order, _ORDERS) for order in _a_tuple(frame)])]


def write_result(stream: BinaryIO, result: Result) -> None:
    _write(stream, (_TAGS[type(result)], result))


def read_result(stream: BinaryIO) -> Result:
    """Fails as `read_orders` does."""
    return cast(Result, _read(stream, lambda frame: _tagged(frame, _RESULTS)))


# --- frames -------------------------------------------------------------------------------------------------------


def _write(stream: BinaryIO, frame: object) -> None:
    # surrogatepass: a path may hold bytes that are not UTF-8, which Python keeps as lone surrogates
    body = msgpack.packb(frame, default=_fields_of, unicode_errors="surrogatepass")
    stream.write(_LENGTH.pack(len(body)) + body)
    stream.flush()


def _read(stream: BinaryIO, restore: Callable[[Any], Any]) -> Any:
    head = _exactly(stream, _LENGTH.size, between_frames=True)
    (length,) = _LENGTH.unpack(head)
    if length > _LONGEST_FRAME:
        raise _broken(f"a frame of {length} bytes")
    body = _exactly(stream, length, between_frames=False)
    try:
        return restore(msgpack.unpackb(body, use_list=False, strict_map_key=False, unicode_errors="surrogatepass"))
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise _broken(f"a frame that is not ours: {error!r}") from error


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


def _broken(what: str) -> WorldFailed:
    return WorldFailed("engine_lost", f"The pipe between service and engine brought {what}.")


# --- dataclass -> array -------------------------------------------------------------------------------------------


def _fields_getter(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    names = [field.name for field in fields(kind)]
    if len(names) > 1:
        return cast("Callable[[Any], tuple[Any, ...]]", attrgetter(*names))
    return lambda instance: tuple(getattr(instance, name) for name in names)


_GETTERS = {kind: _fields_getter(kind) for kind in (*_ORDERS.values(), *_RESULTS.values(), *_INNER)}
_TAGS = {kind: tag for tag, kind in (_ORDERS | _RESULTS).items()}


def _fields_of(instance: object) -> tuple[Any, ...]:
    """msgpack asks here for what it does not know: our dataclasses. Everything inside them it packs, or asks again."""
    return _GETTERS[type(instance)](instance)


# --- array -> dataclass -------------------------------------------------------------------------------------------

_Restore = Callable[[Any], Any]


def _restorer(hint: Any) -> _Restore:
    """What turns an unpacked value into one of the annotated type, or raises TypeError or ValueError."""
    if isinstance(hint, NewType):
        return _restorer(hint.__supertype__)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple:
        return _tuple_restorer(arguments)
    if origin is dict:
        return _dict_restorer(*map(_restorer, arguments))
    if origin in (Union, types.UnionType):
        return _optional_restorer(hint)
    if is_dataclass(hint):
        return _dataclass_restorer(cast(type, hint))
    if issubclass(hint, Enum):
        return cast(_Restore, hint)
    return _plain_restorer(hint)


def _plain_restorer(kind: type) -> _Restore:
    kinds = {float, int} if kind is float else {kind}

    def plain(value: Any) -> Any:
        if type(value) not in kinds:
            raise TypeError(f"{value!r} is not {kind.__name__}")
        return value

    return plain


def _optional_restorer(hint: Any) -> _Restore:
    (inner,) = (_restorer(member) for member in get_args(hint) if member is not type(None))
    return lambda value: None if value is None else inner(value)


def _dict_restorer(key: _Restore, entry: _Restore) -> _Restore:
    return lambda value: {key(k): entry(v) for k, v in value.items()}


def _tuple_restorer(arguments: tuple[Any, ...]) -> _Restore:
    if arguments[-1] is not ...:
        return _exact_tuple_restorer(tuple(map(_restorer, arguments)))
    if arguments[0] is int or getattr(arguments[0], "__supertype__", None) is int:
        return _ints  # token lists: thousands of them in a prompt
    restore = _restorer(arguments[0])
    return lambda value: tuple(map(restore, _a_tuple(value))) if value else _a_tuple(value)


def _exact_tuple_restorer(members: tuple[_Restore, ...]) -> _Restore:
    return lambda value: tuple(restore(v) for restore, v in zip(members, _a_tuple(value), strict=True))


def _ints(value: Any) -> Any:
    if not set(map(type, _a_tuple(value))) <= {int}:
        raise TypeError("a list of numbers holds something else")
    return value


def _dataclass_restorer(kind: type) -> _Restore:
    if kind in _BY_HAND:
        return _BY_HAND[kind]
    hints = get_type_hints(kind)
    members = tuple(_restorer(hints[field.name]) for field in fields(kind))
    n_members = len(members)

    def restore(value: Any) -> Any:
        if len(_a_tuple(value)) != n_members:
            raise ValueError(f"{kind.__name__} with {len(value)} fields")
        return kind(*[member(v) for member, v in zip(members, value, strict=True)])

    return restore


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


# One row for every speaking NPC, every step: written out, these take about half of what the general way does.
_BY_HAND: dict[type, _Restore] = {RowDone: _row_done, Piece: _piece}
_FINISHES: dict[str | None, FinishReason | None] = {None: None} | {reason.value: reason for reason in FinishReason}


def _a_tuple(value: Any) -> tuple[Any, ...]:
    if type(value) is not tuple:
        raise TypeError(f"{value!r} is not an array")
    return value


_RESTORERS = {tag: _dataclass_restorer(kind) for tag, kind in (_ORDERS | _RESULTS).items()}


def _tagged(value: Any, known: dict[int, type]) -> Any:
    tag, members = _a_tuple(value)
    if tag not in known:
        raise ValueError(f"tag {tag!r}")
    return _RESTORERS[tag](members)
