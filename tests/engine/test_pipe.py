"""Every order and result crosses the pipe unchanged; what is not ours is refused."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any, BinaryIO, get_args

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personae.engine.batch import DropTurn, Order, Piece, Quit, Result, RowDone, StepDone
from personae.engine.pipe import read_orders, read_result, write_orders, write_result
from personae.errors import WorldFailed
from personae.types import FinishReason, TurnId

st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))
st.register_type_strategy(float, st.floats(allow_nan=False))
ORDERS = st.one_of(*(st.from_type(kind) for kind in get_args(Order)))
RESULTS = st.one_of(*(st.from_type(kind) for kind in get_args(Result)))


class Trickle(io.BytesIO):
    """Gives one byte at a time, as an unbuffered pipe may."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(1, size if size is not None and size >= 0 else 1))


def written(write: Callable[[BinaryIO], None]) -> bytes:
    stream = io.BytesIO()
    write(stream)
    return stream.getvalue()


def framed(content: Any) -> io.BytesIO:
    body = msgpack.packb(content)
    return io.BytesIO(struct.pack("<I", len(body)) + body)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.lists(ORDERS, max_size=4))
def test_orders_come_back_as_they_were(orders: list[Order]) -> None:
    frame = written(lambda stream: write_orders(stream, orders))
    restored = read_orders(io.BytesIO(frame))
    assert restored == orders
    assert repr(restored) == repr(orders)  # equal is not enough: 1 == 1.0 == True, and an enum equals its text


@settings(derandomize=True, max_examples=200, deadline=None)
@given(RESULTS)
def test_result_comes_back_as_it_was(result: Result) -> None:
    restored = read_result(io.BytesIO(written(lambda stream: write_result(stream, result))))
    assert restored == result
    assert repr(restored) == repr(result)


def test_frames_follow_each_other_and_arrive_in_any_portions() -> None:
    def write(stream: BinaryIO) -> None:
        write_orders(stream, [DropTurn(TurnId(1)), Quit()])
        write_orders(stream, [])

    stream = Trickle(written(write))
    assert read_orders(stream) == [DropTurn(TurnId(1)), Quit()]
    assert read_orders(stream) == []
    with pytest.raises(EOFError):
        read_orders(stream)


def test_frame_that_is_torn_anywhere_is_no_orderly_end() -> None:
    frame = written(lambda stream: write_result(stream, StepDone((RowDone(TurnId(1), 2, (Piece("x"),), FinishReason.END),))))
    for n_bytes in range(1, len(frame)):
        with pytest.raises(WorldFailed) as caught:
            read_result(io.BytesIO(frame[:n_bytes]))
        assert caught.value.code == "engine_lost"


@pytest.mark.parametrize(
    "content",
    [
        None,
        7,
        [1],
        ["1", []],
        [99, []],
        [1, ["key", "path"]],  # an order is no result
        [65, []],
        [65, ["1.0"]],
        [65, [1.0, 2.0]],
        [69, [[[1, 2, [["x", "speech"]], "bored", False]], [], [], 0.0, 0.0, 0, 0, 1, [], 0.0, 0.0]],
        [69, [[[1, 2, [["x", 3]], None, False]], [], [], 0.0, 0.0, 0, 0, 1, [], 0.0, 0.0]],
        [69, [[[1.5, 2, [], None, False]], [], [], 0.0, 0.0, 0, 0, 1, [], 0.0, 0.0]],
        [69, [[[1, 2, [], None]], [], [], 0.0, 0.0, 0, 0, 1, [], 0.0, 0.0]],
        [69, [[], [[1, 2, 3]], [], 0.0, 0.0, 0, 0, 1, [], 0.0, 0.0]],
        [69, [[], [], [], 0.0, 0.0, 0, 0, 1, [[1, 2.0]], 0.0, 0.0]],
        [69, [[], [], [], 0.0, 0.0, 0, 0, 1, [1, 2], 0.0, 0.0]],
        [69, [[], 0, [], 0.0, 0.0, 0, 0, 1, [], 0.0, 0.0]],
        [69, [[], [], [], 0.0, 0.0, 0, 0, 1, [], 0.0]],  # a field is missing
        [67, ["key", 1, 1, 1.0, [2]]],
        [74, ["path", 1, [1, "2"], [], 0, ""]],
        [74, ["path", 1, [1], ["key"], 0, ""]],
        [74, ["path", 1, [1], [["key"]], 0, ""]],
        [74, ["path", 1, [1], None, 0, ""]],
    ],
)
def test_frame_that_is_not_ours_is_refused(content: Any) -> None:
    with pytest.raises(WorldFailed):
        read_result(framed(content))


@pytest.mark.parametrize("body", [b"\xc1", b"\x92\x01", b"", b"printf says hello"])
def test_bytes_that_are_no_msgpack_are_refused(body: bytes) -> None:
    with pytest.raises(WorldFailed):
        read_result(io.BytesIO(struct.pack("<I", len(body)) + body))


def test_length_that_nobody_wrote_is_refused_before_anything_is_read() -> None:
    with pytest.raises(WorldFailed):
        read_result(io.BytesIO(b"\xff\xff\xff\xffxxxx"))
