"""Bytes <-> messages for the client. Decides what is a message; refuses to know what it means. Limits: PROTOCOL.md, section 2."""

from __future__ import annotations

from typing import Any

import msgpack  # type: ignore[import-untyped]

MAX_REPLY_BYTES = 16 << 20
MAX_DEPTH = 16


class BadFrame(ValueError):  # noqa: N818
    """The bytes are no message."""


def encode(message: dict[str, Any]) -> bytes:
    """TypeError, ValueError or OverflowError when a value does not belong on the wire."""
    packed: bytes = msgpack.packb(message, use_bin_type=True)
    return packed


def decode(frame: bytes) -> dict[str, Any]:
    """The message in a frame, or BadFrame, whatever the bytes."""
    if len(frame) > MAX_REPLY_BYTES:
        raise BadFrame(f"a frame of {len(frame)} bytes")
    try:
        message = msgpack.unpackb(frame, raw=False, ext_hook=_refuse_ext, object_pairs_hook=_map_of)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise BadFrame(str(error) or type(error).__name__) from error
    if not isinstance(message, dict):
        raise BadFrame("a frame that is no map")
    _check(message, MAX_DEPTH)
    return message


def _map_of(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    built = dict(pairs)
    if len(built) != len(pairs) or not all(type(key) is str for key in built):
        raise BadFrame("a map with a key that is no string, or twice there")
    return built


def _check(value: Any, depth: int) -> None:
    """BadFrame for what msgpack lets through and the wire does not: deep nesting, timestamps."""
    inner = value.values() if type(value) is dict else value if type(value) is list else None
    if inner is None:
        if isinstance(value, msgpack.Timestamp):
            raise BadFrame("an extension type")
        return
    if depth == 0:
        raise BadFrame("a frame nested too deep")
    for one in inner:
        if type(one) in (dict, list, msgpack.Timestamp):
            _check(one, depth - 1)


def _refuse_ext(code: int, _content: bytes) -> Any:
    raise BadFrame(f"extension type {code}")
