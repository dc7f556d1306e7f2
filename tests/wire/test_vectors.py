"""The golden messages are what their script writes, and the service's codec reads and writes exactly them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from personae.errors import PersonaeError
from personae.wire.codec import REPLY_LIMITS, decode, encode
from personae.wire.messages import REQUESTS, parse

FOLDER = Path(__file__).parents[2] / "bindings" / "vectors"


def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("vectors_make", FOLDER / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(name: str) -> list[Any]:
    listed: list[Any] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return [pytest.param(row, id=row["name"]) for row in listed]


def frame_of(row: dict[str, Any]) -> bytes:
    if isinstance(row["hex"], str):
        return bytes.fromhex(row["hex"])
    return bytes.fromhex(row["hex"]["head"]) + bytes.fromhex(row["hex"]["repeat"]) * row["hex"]["times"]


def meant(value: Any) -> Any:
    """The value a readable twin stands for."""
    if isinstance(value, list):
        return [meant(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"$bin": hex_}:
            return bytes.fromhex(hex_)
        case {"$float": name}:
            return float(name)
        case {"$repeat": str(unit), "times": times}:
            return unit * times
        case {"$repeat": unit, "times": times}:
            return [unit] * times
    return {key: meant(inner) for key, inner in value.items()}


def test_committed_files_are_what_the_script_writes() -> None:
    make = maker()
    for name, listed in make.files().items():
        assert (FOLDER / name).read_text(encoding="utf-8") == make.written(listed), f"run bindings/vectors/make.py: {name} is old"


@pytest.mark.parametrize("name", ["requests.json", "replies.json", "values.json", "refused.json"])
def test_names_of_a_file_differ(name: str) -> None:
    names = [row["name"] for row in json.loads((FOLDER / name).read_text(encoding="utf-8"))]
    assert len(set(names)) == len(names)


def test_every_request_of_the_protocol_is_there() -> None:
    assert {row["message"]["type"] for row in json.loads((FOLDER / "requests.json").read_text(encoding="utf-8"))} == set(REQUESTS)


@pytest.mark.parametrize("row", rows("requests.json"))
def test_request_is_read_and_understood(row: dict[str, Any]) -> None:
    message = decode(frame_of(row))
    assert message == row["message"]
    assert encode(message).hex() == row["hex"]
    assert parse(message).id == row["message"]["id"]


@pytest.mark.parametrize("row", rows("replies.json"))
def test_reply_is_written_in_these_bytes(row: dict[str, Any]) -> None:
    assert encode(row["message"]).hex() == row["hex"]
    assert decode(frame_of(row), REPLY_LIMITS) == row["message"]


@pytest.mark.parametrize("row", rows("values.json"))
def test_value_is_read_and_written_in_these_bytes(row: dict[str, Any]) -> None:
    frame = frame_of(row)
    message = decode(frame, REPLY_LIMITS)
    assert repr(message) == repr(meant(row["message"]))  # repr tells 1 from 1.0 and -0.0 from 0.0, and nan is nan
    if row.get("canonical", True):
        assert encode(message) == frame


@pytest.mark.parametrize("row", rows("refused.json"))
def test_frame_is_refused_with_the_stated_code(row: dict[str, Any]) -> None:
    with pytest.raises(PersonaeError) as caught:
        parse(decode(frame_of(row)))
    assert caught.value.code == row["code"]
    assert row.get("names", "") in caught.value.message
