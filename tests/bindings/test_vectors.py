"""The golden messages, read and written by the client's codec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personae_client import _codec
from personae_client._session import Session

FOLDER = Path(__file__).parents[2] / "bindings" / "vectors"


def rows(name: str) -> list[Any]:
    listed: list[Any] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return [pytest.param(row, id=row["name"]) for row in listed]


def frame_of(row: dict[str, Any]) -> bytes:
    if isinstance(row["hex"], str):
        return bytes.fromhex(row["hex"])
    return bytes.fromhex(row["hex"]["head"]) + bytes.fromhex(row["hex"]["repeat"]) * row["hex"]["times"]


@pytest.mark.parametrize("row", rows("requests.json"))
def test_request_is_written_in_these_bytes(row: dict[str, Any]) -> None:
    assert _codec.encode(row["message"]).hex() == row["hex"]


@pytest.mark.parametrize("row", rows("replies.json"))
def test_reply_is_read(row: dict[str, Any]) -> None:
    assert _codec.decode(frame_of(row)) == row["message"]


@pytest.mark.parametrize("row", rows("values.json"))
def test_value_is_read_and_written_in_these_bytes(row: dict[str, Any]) -> None:
    frame = frame_of(row)
    message = _codec.decode(frame)
    assert repr(message) == repr(msgpack.unpackb(frame))
    if row.get("canonical", True):
        assert _codec.encode(message) == frame


@pytest.mark.parametrize("row", [one for one in rows("refused.json") if one.values[0]["code"] == "bad_frame"])
def test_frame_the_service_refuses_is_refused_here_too(row: dict[str, Any]) -> None:
    with pytest.raises(_codec.BadFrame):
        _codec.decode(frame_of(row))


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_bad_frame(frame: bytes) -> None:
    try:
        outcome = type(_codec.decode(frame))
    except _codec.BadFrame:
        outcome = dict
    assert outcome is dict


@pytest.mark.parametrize("head", ["dd", "df", "db", "c6"])
def test_deep_or_huge_frames_are_refused(head: str) -> None:
    for frame in (
        bytes.fromhex("81a161" + head + "7fffffff"),
        b"\x81\xa1a" + b"\x91" * 40 + b"\xc0",
        b"\x81\xa1a" + b"\x91" * 5000 + b"\xc0",
    ):
        with pytest.raises(_codec.BadFrame):
            _codec.decode(frame)


def test_requests_are_built_as_the_vectors_have_them() -> None:
    """What the session writes for a full say is what the golden say holds, byte for byte."""
    golden = next(row for row in json.loads((FOLDER / "requests.json").read_text(encoding="utf-8")) if row["name"] == "say with everything")
    fields = {key: value for key, value in golden["message"].items() if key not in ("type", "id")}
    session = Session("x", None, patience=1.0)
    session._last_id = golden["message"]["id"] - 1
    exchange = session.ask("say", fields, 0.0)
    assert session._held[exchange.id].hex() == golden["hex"]
