"""What was recorded is read again, up to wherever the writing ended; and a disk that is full costs the record and nothing else."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

import msgpack  # type: ignore[import-untyped]
import pytest

from personae.engine.batch import (
    AdapterRefused,
    BeginTurn,
    KvRead,
    PrefillChunk,
    RowDone,
    RunStep,
    SlotStashed,
    StepDone,
    TurnFaulted,
)
from personae.errors import AskedWrong, WorldFailed
from personae.scheduler.actions import Action, Command, EndTurn
from personae.scheduler.events import (
    AdapterReported,
    AdapterRetired,
    EngineGone,
    EngineStarted,
    Event,
    FaultReported,
    KvLoadAsked,
    KvReported,
    KvSaveAsked,
    NpcGone,
    StepReported,
    Tick,
    TurnAsked,
    TurnCancelled,
)
from personae.scheduler.settings import SchedulerConfig
from personae.service.recorder import Record, Recorder, digest
from personae.types import (
    AdapterKey,
    AdapterSource,
    AdapterUse,
    Deadlines,
    FinishReason,
    KvSource,
    Limits,
    MixMode,
    NpcId,
    Piece,
    Priority,
    ReplyRules,
    SamplingParams,
    Slot,
    Stash,
    TurnId,
    Usage,
)

KEY, OTHER = AdapterKey("ab" * 32), AdapterKey("cd" * 32)
CONFIG = SchedulerConfig(step_ms=42.0, kv_ram=7, adapter_ram=9)
ASKED = TurnAsked(
    2.0,
    TurnId(1),
    NpcId("mira"),
    (5, 6, 70_000),
    (AdapterUse(KEY, 0.5), AdapterUse(OTHER)),
    (AdapterSource(KEY, "/a folder/with \udcff.gguf", 1 << 40), AdapterSource(OTHER, "/other.gguf")),
    SamplingParams(seed=9, logit_bias=((3, -1.5),)),
    ReplyRules(("\n",), ("Tom",)),
    Limits(7, 1.5, 300),
    Priority.SCENE,
    (8, 9),
    Deadlines(first_ms=20.0),
    draws=False,
)
EVENTS: list[Event] = [
    EngineStarted(1.0, 4, 512, False, MixMode.GROUPED, 1024),
    ASKED,
    AdapterReported(3.0, AdapterRefused(KEY, "adapter_shape", "No.", "Train it anew.")),
    StepReported(4.0, StepDone((RowDone(TurnId(1), 70, (Piece("ä"),), FinishReason.STOP, True),), ((TurnId(1), 3),), threads=2)),
    FaultReported(5.0, TurnFaulted(TurnId(1), "bad_grammar", "No.")),
    KvReported(6.0, SlotStashed(Stash(1), 3, 99)),
    KvReported(7.0, KvRead("file", Stash(2), (1, 2), (AdapterUse(KEY),), 50)),
    KvSaveAsked(8.0, NpcId("mira"), "file"),
    KvLoadAsked(9.0, NpcId("mira"), "file"),
    TurnCancelled(10.0, TurnId(1), FinishReason.INTERRUPTED),
    AdapterRetired(11.0, KEY),
    NpcGone(12.0, NpcId("mira")),
    Tick(13.0),
    EngineGone(14.0, "exit status -9"),
]
BEGUN = BeginTurn(TurnId(1), Slot(0), 1, (), SamplingParams(), ReplyRules(), Limits(), (5,))
ACTIONS: list[Action] = [Command(BEGUN), Command(RunStep(prefill=(PrefillChunk(TurnId(1), (6,), True),)))]
ENDED = EndTurn(TurnId(1), FinishReason.END, Usage(3, 1, 2, 1, KvSource.COPY), (70,), 1.0, 2.0, 3.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a record"


def record(path: Path, *moments: tuple[Event, list[Action]]) -> None:
    recorder = Recorder(path, CONFIG)
    for event, actions in moments:
        recorder.saw(event, actions)
    recorder.close()


def test_every_event_comes_back_as_it_was(path: Path) -> None:
    record(path, *((event, []) for event in EVENTS))
    read = Record(path)
    assert [moment.event for moment in read.moments()] == EVENTS
    assert read.is_whole
    assert read.header.config == CONFIG


def test_answers_are_told_apart_by_their_digest(path: Path) -> None:
    record(path, (ASKED, ACTIONS), (ASKED, ACTIONS[:1]), (ASKED, []))
    assert [moment.digest for moment in Record(path).moments()] == [digest(ACTIONS), digest(ACTIONS[:1]), 0]
    assert digest(ACTIONS) != digest(ACTIONS[:1]) != digest([ENDED])


@pytest.mark.parametrize("cut", [1, 3, 5, 20])
def test_record_of_a_killed_service_is_read_up_to_its_last_whole_event(path: Path, cut: int) -> None:
    record(path, *((event, []) for event in EVENTS))
    os.truncate(path, path.stat().st_size - cut)
    read = Record(path)
    events = [moment.event for moment in read.moments()]
    assert events == EVENTS[: len(events)]
    assert len(EVENTS) - 2 <= len(events) < len(EVENTS)
    assert not read.is_whole


def test_bytes_go_out_when_a_turn_ends_or_a_second_has_passed(path: Path) -> None:
    recorder = Recorder(path, CONFIG)

    def n_out() -> int:
        return len(list(Record(path).moments()))

    recorder.saw(Tick(100.0), [])
    recorder.saw(Tick(1099.0), [])
    assert n_out() == 0
    recorder.saw(Tick(1100.0), [])
    assert n_out() == 3
    recorder.saw(Tick(1101.0), [ENDED])
    assert n_out() == 4
    recorder.saw(Tick(1102.0), [])
    recorder.close()
    assert n_out() == 5
    recorder.close()


def test_full_disk_ends_the_record_and_nothing_else(path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(path, CONFIG)
    recorder.saw(Tick(1.0), [ENDED])

    def full(_file: int, _bytes: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("personae.service.recorder.os.write", full)
    for _ in range(3):
        recorder.saw(Tick(2.0), [ENDED])
    recorder.close()
    assert [log.getMessage() for log in caplog.records] == [f"{path}: No space left on device; nothing more is recorded"]
    assert len(list(Record(path).moments())) == 1


def test_what_cannot_be_written_down_ends_the_record_and_nothing_else(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(path, CONFIG)
    recorder.saw(Tick(1.0), ["no action of ours"])  # type: ignore[list-item]
    recorder.saw(Tick(2.0), [])
    recorder.close()
    assert "nothing more is recorded" in caplog.text
    assert list(Record(path).moments()) == []


def test_former_record_is_kept_beside_the_new_one(path: Path) -> None:
    record(path, (Tick(1.0), []))
    record(path, (Tick(2.0), []))
    former = path.with_name("a record.before")
    assert [moment.event for file in (former, path) for moment in Record(file).moments()] == [Tick(1.0), Tick(2.0)]


def test_place_where_nothing_can_be_written_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(AskedWrong, match=r"nowhere\.record") as refused:
        Recorder(tmp_path / "missing" / "nowhere.record", CONFIG)
    assert refused.value.code == "bad_arguments"


@pytest.mark.parametrize("content", [b"", b"\x00", b"no record at all, by its first bytes", b"\x03\x00\x00\x00abc", b"\xff\xff\xff\xff"])
def test_file_that_is_no_record_is_refused_by_name(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(WorldFailed, match="a record: ") as refused:
        Record(path)
    assert refused.value.code == "record_unreadable"


def test_record_of_another_version_is_refused_by_that_version_whatever_else_its_header_has(path: Path) -> None:
    for version in (1, 3):
        frame = msgpack.packb([0, [version, "0.1.0", [100.0, 200.0]]])
        path.write_bytes(struct.pack("<I", len(frame)) + frame)
        with pytest.raises(WorldFailed, match=f"it is a record of version {version}, and 2 is read here") as refused:
            Record(path)
        assert refused.value.code == "record_unreadable"


def test_event_that_is_none_is_named(path: Path) -> None:
    record(path, (Tick(1.0), []), (Tick(2.0), []))
    content = bytearray(path.read_bytes())
    content[-12:-11] = b"\xc1"
    path.write_bytes(content)
    with pytest.raises(WorldFailed, match="event 1 in it is none"):
        list(Record(path).moments())
