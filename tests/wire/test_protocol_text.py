"""PROTOCOL.md speaks of everything that can be asked, with its limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from personae.types import FinishReason, KvSource, Priority
from personae.wire.codec import REPLY_LIMITS, REQUEST_LIMITS
from personae.wire.fields import MAX_SAY_BYTES, Form
from personae.wire.messages import LIMITS, REQUESTS, Deadline, Edit, Heard, HistoryLine, MidReply
from personae.wire.sampling import SamplingRequest

TEXT = (Path(__file__).parents[2] / "bindings" / "PROTOCOL.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", REQUESTS)
def test_every_request_and_field_is_described(kind: str) -> None:
    section = TEXT.split("\n## 3. ")[1].split("\n## 4. ")[0]
    assert kind in section
    assert [name for name in REQUESTS[kind].model_fields if f"`{name}`" not in section] == []


def test_every_sampling_field_is_described() -> None:
    assert [name for name in SamplingRequest.model_fields if f"`{name}`" not in TEXT and f"`sampling.{name}`" not in TEXT] == []


@pytest.mark.parametrize("part", [Heard, Deadline, Edit])
def test_every_field_of_a_part_is_described(part: type[Form]) -> None:
    assert [name for name in part.model_fields if f"`{name}`" not in TEXT] == []


def test_a_line_of_history_is_described() -> None:
    assert f"{{{', '.join(HistoryLine.model_fields)}}}" in TEXT


@pytest.mark.parametrize("word", [*FinishReason, *KvSource, *(f'"{word}"' for word in (*Priority, *MidReply)), *LIMITS])
def test_every_word_of_the_wire_is_described(word: str) -> None:
    assert f"`{word}`" in TEXT


def test_limits_are_the_codec_s() -> None:
    rows = [line for line in TEXT.split("\n## 2. ")[1].split("\n## 3. ")[0].splitlines() if line.startswith("| ")]
    said = {row.split("|")[1].strip(): (row.split("|")[2].strip(), row.split("|")[3].strip()) for row in rows[1:]}
    assert said["bytes of a frame"] == (f"1 MiB ({REQUEST_LIMITS.frame_bytes:,})", f"{REPLY_LIMITS.frame_bytes >> 20} MiB")
    assert said["maps and arrays inside one another"] == (str(REQUEST_LIMITS.depth), str(REPLY_LIMITS.depth))
    assert said["keys of one map"] == (f"{REQUEST_LIMITS.keys:,}", f"{REPLY_LIMITS.keys:,}")
    assert said["values in a frame, keys counted"] == (f"{REQUEST_LIMITS.values:,}", f"{REPLY_LIMITS.values:,}")
    assert said["bytes of one string"] == (f"{REQUEST_LIMITS.text_bytes >> 10} KiB", f"{REPLY_LIMITS.text_bytes >> 20} MiB")
    assert f"({MAX_SAY_BYTES:,} bytes)" in TEXT
