"""Any bytes become one message or one typed refusal."""

from __future__ import annotations

import random
import struct
import tracemalloc

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personae.errors import BrokeProtocol, OurBug
from personae.wire.codec import REPLY_LIMITS, REQUEST_LIMITS, FrameLimits, decode, encode

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
MESSAGES = st.dictionaries(st.text(max_size=8), PLAIN, max_size=6)


def refusal(frame: bytes, limits: FrameLimits = REQUEST_LIMITS) -> BrokeProtocol:
    with pytest.raises(BrokeProtocol) as caught:
        decode(frame, limits)
    return caught.value


def outcome(frame: bytes) -> str:
    """What became of it; anything but a map or a BrokeProtocol fails the test."""
    try:
        return "read" if type(decode(frame)) is dict else "no map"
    except BrokeProtocol as error:
        return error.code if error.message.endswith(".") else "no sentence"


@settings(derandomize=True, max_examples=200, deadline=None)
@given(MESSAGES)
def test_what_is_encoded_is_decoded_again(message: dict[str, object]) -> None:
    assert decode(encode(message), REPLY_LIMITS) == message


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_a_refusal(frame: bytes) -> None:
    assert outcome(frame) in ("read", "bad_frame", "too_large")


def malformed(seed: int) -> bytes:
    """A good frame with one to four bytes changed, cut or put in."""
    chance = random.Random(seed)
    frame = bytearray(
        encode({"type": "say", "id": seed + 1, "npc": "zoë", "text": "Grüß Gott 🍺", "stop": ["a"], "sampling": {"top_p": 0.5}})
    )
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(frame) + 1)
        match chance.randrange(4):
            case 0:
                frame[at : at + 1] = bytes([chance.choice([0xC1, 0xC7, 0xD4, 0xDB, 0xDD, 0xDF, 0xFF, chance.randrange(256)])])
            case 1:
                del frame[at:]
            case 2:
                frame[at:at] = chance.randbytes(chance.randint(1, 6))
            case _:
                del frame[at : at + chance.randint(1, 6)]
    return bytes(frame)


@pytest.mark.parametrize("block", range(10))
def test_four_hundred_malformed_frames_harm_nobody(block: int) -> None:
    refused = 0
    for seed in range(block * 40, block * 40 + 40):
        frame = malformed(seed)
        try:
            message = decode(frame)
        except BrokeProtocol:
            refused += 1
        else:
            assert message == msgpack.unpackb(frame)  # what is let through means what msgpack says it means
    assert refused >= 20


@pytest.mark.parametrize("head", ["dd", "df", "db", "c6"])
def test_announced_sizes_cost_no_memory(head: str) -> None:
    frame = bytes.fromhex("81a161" + head + "7fffffff")
    tracemalloc.start()
    refusal(frame)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize(
    ("message", "limits", "says"),
    [
        ({"a": "x" * 100}, FrameLimits(50, 8, 8, 8, 1000), "105"),
        ({"a": "x" * 11}, FrameLimits(100, 8, 8, 8, 10), "11 bytes"),
        ({"a": [[1]]}, FrameLimits(100, 2, 8, 8, 10), "2 levels"),
        ({"a": 1, "b": 2, "c": 3}, FrameLimits(100, 2, 2, 8, 10), "3 keys"),
        ({"a": [1, 2, 3]}, FrameLimits(100, 2, 2, 4, 10), "4 values"),
    ],
)
def test_each_limit_refuses_what_is_one_past_it(message: dict[str, object], limits: FrameLimits, says: str) -> None:
    error = refusal(encode(message), limits)
    assert error.code == "too_large"
    assert says in error.message


def test_what_is_exactly_at_the_limits_is_read() -> None:
    message = {"a": ["x" * 10, 1], "b": 2}
    frame = encode(message)
    assert decode(frame, FrameLimits(frame_bytes=len(frame), depth=2, keys=2, values=7, text_bytes=10)) == message


def test_a_frame_is_one_map_and_nothing_else() -> None:
    for frame in (b"", b"\xc0", b"\x01", b"\x93\1\2\3", b"\x80\x80"):
        assert refusal(frame).code == "bad_frame"


def test_same_key_twice_is_refused() -> None:
    assert "twice" in refusal(bytes.fromhex("82a16101a16102")).message


def test_timestamps_and_extensions_are_refused() -> None:
    stamp = msgpack.packb({"a": msgpack.Timestamp(1)})
    assert "extension" in refusal(stamp).message


def test_every_first_byte_of_a_value_is_decided() -> None:
    for byte in range(256):
        assert outcome(b"\x81\xa1a" + bytes([byte]) + struct.pack(">Q", 0)) in ("read", "bad_frame", "too_large")


def test_a_type_that_does_not_belong_on_the_wire_is_our_bug() -> None:
    with pytest.raises(OurBug, match=r"done\.tags\[\] is a set"):
        encode({"type": "done", "id": 1, "tags": [{1}]})
    with pytest.raises(OurBug, match="not a string"):
        encode({"type": "done", "id": 1, "by_rows": {8: 1}})
    with pytest.raises(OurBug, match="cannot be packed"):
        encode({"type": "delta", "id": 1, "text": object()})
