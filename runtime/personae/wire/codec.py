"""Bytes <-> one message. Decides which bytes are a message at all; refuses to know what any field means.

A frame is one msgpack map with string keys, built of nil, bool, int, float, str, bin, array and map. It is *measured* before
it is unpacked: one pass over the heads of its values, which allocates nothing that the frame announces. A frame that promises
four billion entries therefore costs nothing, and what msgpack sees afterwards is known to be whole, shallow and small.

- `decode` takes any bytes and returns a dict or raises `BrokeProtocol`: `bad_frame` (not a message) or `too_large` (past a limit).
- `encode` is for messages of ours. A type that does not belong on the wire is our bug, looked for in debug runs only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import msgpack  # type: ignore[import-untyped]

from personae.errors import BrokeProtocol, OurBug


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """What one frame may hold at the most."""

    frame_bytes: int
    depth: int  # maps and arrays inside one another, the message itself counted
    keys: int  # of one map
    values: int  # of the whole frame, keys counted; bounds the time that measuring takes
    text_bytes: int  # of one str or bin


# A long say with every option takes 50 values and three levels. What needs the room is a restore: nine values a line of history, six
# levels, and by the time it has so many values it has about as many bytes as a frame may have (150 NPCs with 40 lines each). Time goes
# with the values, so their number bounds it.
REQUEST_LIMITS = FrameLimits(frame_bytes=1 << 20, depth=8, keys=128, values=1 << 16, text_bytes=1 << 18)
# What the service sends: a history or a list of characters may be long.
REPLY_LIMITS = FrameLimits(frame_bytes=16 << 20, depth=16, keys=4096, values=1 << 20, text_bytes=8 << 20)


def decode(frame: bytes, limits: FrameLimits = REQUEST_LIMITS) -> dict[str, Any]:
    """The message in a frame. Raises BrokeProtocol `bad_frame` or `too_large`, and nothing else, whatever the bytes."""
    if len(frame) > limits.frame_bytes:
        _too_large(f"The frame has {len(frame)} bytes; {limits.frame_bytes} are allowed.")
    _measure(frame, limits)
    try:
        message = msgpack.unpackb(frame, raw=False, use_list=True, object_pairs_hook=_map_of)
    except (ValueError, msgpack.UnpackException) as error:  # UnicodeDecodeError is a ValueError
        _bad_frame(f"The frame cannot be read: {_reason(error)}.")
    assert isinstance(message, dict)  # _measure saw a map
    return message


def encode(message: dict[str, Any]) -> bytes:
    """The frame of a message of ours. Deltas, the only messages sent many times a second, are packed unchecked."""
    if __debug__ and message.get("type") != "delta":
        _check_plain(message, str(message.get("type")))
    try:
        frame: bytes = msgpack.packb(message, use_bin_type=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise OurBug("internal", f"A message of type {message.get('type')!r} cannot be packed: {error}.") from error
    return frame


# --- measuring ----------------------------------------------------------------------------------------------------

_SCALAR, _TEXT, _ARRAY, _MAP, _REFUSED = range(5)


def _heads() -> Iterator[tuple[int, int, int]]:
    """For every first byte: kind, how many bytes of big-endian length follow it, and the length when none do."""
    for byte in range(256):
        if byte <= 0x7F or byte >= 0xE0:
            yield _SCALAR, 0, 0
        elif byte <= 0x8F:
            yield _MAP, 0, byte & 0x0F
        elif byte <= 0x9F:
            yield _ARRAY, 0, byte & 0x0F
        elif byte <= 0xBF:
            yield _TEXT, 0, byte & 0x1F
        else:
            yield _LONG_HEADS.get(byte, (_REFUSED, 0, 0))


_LONG_HEADS = {
    **{0xC0: (_SCALAR, 0, 0), 0xC2: (_SCALAR, 0, 0), 0xC3: (_SCALAR, 0, 0)},  # nil, false, true
    **{0xC4: (_TEXT, 1, 0), 0xC5: (_TEXT, 2, 0), 0xC6: (_TEXT, 4, 0)},  # bin
    **{0xCA: (_SCALAR, 0, 4), 0xCB: (_SCALAR, 0, 8)},  # float
    **{0xCC + i: (_SCALAR, 0, 1 << i) for i in range(4)},  # uint
    **{0xD0 + i: (_SCALAR, 0, 1 << i) for i in range(4)},  # int
    **{0xD9: (_TEXT, 1, 0), 0xDA: (_TEXT, 2, 0), 0xDB: (_TEXT, 4, 0)},  # str
    **{0xDC: (_ARRAY, 2, 0), 0xDD: (_ARRAY, 4, 0), 0xDE: (_MAP, 2, 0), 0xDF: (_MAP, 4, 0)},
}
_HEADS = tuple(_heads())
_IS_STR = tuple(0xA0 <= byte <= 0xBF or 0xD9 <= byte <= 0xDB for byte in range(256))


def _measure(frame: bytes, limits: FrameLimits) -> None:
    """One walk over the heads of all values: raises where the frame is cut, too big, too deep, or no map with string keys."""
    if not frame or _HEADS[frame[0]][0] != _MAP:
        _bad_frame("A frame must be one msgpack map.")
    at, n_values, end = 0, 0, len(frame)
    waiting: list[tuple[int, bool]] = []  # of every open container outside the innermost: values still to come, is it a map
    left, in_map = 1, False
    while True:
        while not left:
            if not waiting:
                return _check_end(at, end)
            left, in_map = waiting.pop()
        if at >= end:
            _cut_short(at)
        n_values += 1
        if n_values > limits.values:
            _too_large(f"The frame holds more than {limits.values} values.")
        if in_map and not left & 1 and not _IS_STR[frame[at]]:
            _bad_frame(f"A key at byte {at} is not a string.")
        left -= 1
        kind, length, at = _head(frame, at)
        if kind <= _TEXT:
            if kind == _TEXT and length > limits.text_bytes:
                _too_large(f"A string announces {length} bytes; {limits.text_bytes} are allowed.")
            at += length
        else:
            if len(waiting) >= limits.depth:
                _too_large(f"The frame is nested deeper than {limits.depth} levels.")
            if kind == _MAP and length > limits.keys:
                _too_large(f"A map announces {length} keys; {limits.keys} are allowed.")
            waiting.append((left, in_map))
            left, in_map = (length * 2, True) if kind == _MAP else (length, False)


def _head(frame: bytes, at: int) -> tuple[int, int, int]:
    """Kind and length of the value that starts here, and where its content starts."""
    kind, n_length, length = _HEADS[frame[at]]
    if kind == _REFUSED:
        _bad_frame(f"Byte {at} starts an extension or reserved type (0x{frame[at]:02x}), which the wire does not use.")
    content = at + 1 + n_length
    if n_length:
        if content > len(frame):
            _cut_short(at)
        length = int.from_bytes(frame[at + 1 : content], "big")
    return kind, length, content


def _check_end(at: int, end: int) -> None:
    if at > end:
        _cut_short(end)
    if at < end:
        _bad_frame(f"{end - at} bytes follow the message; a frame holds exactly one.")


def _map_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A dict of the pairs. Twice the same key is refused: readers in two languages would see two different messages."""
    built = dict(pairs)
    if len(built) != len(pairs):
        raise ValueError("a map has the same key twice")
    return built


# --- refusals -----------------------------------------------------------------------------------------------------

_HINT = "Send one msgpack map with string keys per frame; see bindings/PROTOCOL.md."


def _bad_frame(message: str) -> NoReturn:
    raise BrokeProtocol("bad_frame", message, _HINT)


def _cut_short(at: int) -> NoReturn:
    _bad_frame(f"The frame ends at byte {at} in the middle of a value.")


def _too_large(message: str) -> NoReturn:
    raise BrokeProtocol("too_large", message, "Send less in one message; the `limits` of hello say how much.")


def _reason(error: Exception) -> str:
    return "a string is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error) or type(error).__name__


def _check_plain(value: object, where: str) -> None:
    """Raise OurBug unless the value is built of the wire's types, so that a test names the field where msgpack would name only the type."""
    if type(value) is dict:
        for key, inner in value.items():
            if type(key) is not str:
                raise OurBug("internal", f"{where} has the key {key!r}, which is not a string.")
            _check_plain(inner, f"{where}.{key}")
    elif type(value) in (list, tuple):
        for inner in value:  # type: ignore[attr-defined]
            _check_plain(inner, f"{where}[]")
    elif value is not None and not isinstance(value, (bool, int, float, str, bytes)):
        raise OurBug("internal", f"{where} is a {type(value).__name__}, which the wire does not carry.")
