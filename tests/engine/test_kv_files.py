"""KV files: what was written is read; what is damaged, foreign or hostile is refused with a reason, and nobody is disturbed."""

from __future__ import annotations

import errno
import os
import struct
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from personae.engine import kv_files
from personae.engine.batch import DropStash, FetchStash, KvRead, KvWritten, Quit, ReadKv, StashSlot, WriteKv
from personae.engine.kv_files import KvHead
from personae.engine.packing import Shapes
from personae.errors import OurBug
from personae.types import AdapterKey, AdapterUse, FinishReason, Slot, Stash
from tests.engine.stage import ADAPTER, OTHER_ADAPTER, SETTINGS, Stage, WatchedBackend

S1, S2 = Slot(1), Slot(2)
STASH, OTHER = Stash(5), Stash(6)
FRONT_BYTES = 36


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "inn" / "keeper.kv"  # in a folder that is not there yet


def parked(stage: Stage) -> tuple[int, ...]:
    stage.talk(1, stage.begin(1, "Hello"))
    return stage.backend.tokens(S1)


def write(stage: Stage, path: Path, *, slot: Slot | None = S1, stash: Stash | None = None, tokens: tuple[int, ...] = ()) -> KvWritten:
    stage.do(WriteKv(str(path), slot, stash, tokens or stage.backend.tokens(S1), ()))
    stage.loop.settle(block=True)
    done = stage.results.pop()
    assert isinstance(done, KvWritten)
    return done


def read(stage: Stage, path: Path, stash: Stash = STASH) -> KvRead:
    stage.do(ReadKv(str(path), stash))
    stage.loop.settle(block=True)
    done = stage.results.pop()
    assert isinstance(done, KvRead)
    return done


def refused(stage: Stage, path: Path) -> str:
    """Why; and that nothing came of it."""
    kv = read(stage, path)
    assert kv == KvRead(str(path), STASH, reason=kv.reason)
    stage.do(FetchStash(STASH, S2))
    assert stage.backend.n_tokens(S2) == 0
    return kv.reason


@pytest.fixture
def content(stage: Stage, path: Path) -> bytes:
    """Of a good file. The slot it was made of is still there."""
    parked(stage)
    assert write(stage, path).reason == ""
    return path.read_bytes()


def resealed(stage: Stage, content: bytes, **changes: Any) -> bytes:
    """A file with another head, and the seal that fits: whoever can read this can make one."""
    shapes = Shapes({1: KvHead})
    *_, length, _seal = struct.unpack_from("<12sII16s", content)
    head = replace(shapes.unpack(content[FRONT_BYTES : FRONT_BYTES + length]), **changes)
    packed, blob = shapes.pack(head), content[FRONT_BYTES + length :]
    return struct.pack("<12sII16s", content[:12], 2, len(packed), stage.backend.seal(packed, blob)) + packed + blob


# --- there and back -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["slot", "stash"])
def test_what_was_written_is_a_stash_in_the_next_engine(way: str, stage: Stage, path: Path) -> None:
    held = parked(stage)
    stage.do(StashSlot(S1, OTHER))
    stage.results.clear()
    written = write(stage, path, slot=S1 if way == "slot" else None, stash=None if way == "slot" else OTHER, tokens=held)
    assert written == KvWritten(str(path), len(held), path.stat().st_size)
    assert os.listdir(path.parent) == [path.name]
    later = Stage(WatchedBackend())
    kv = read(later, path)
    assert kv == KvRead(str(path), STASH, held, (), kv.n_bytes)
    assert kv.n_bytes > len(held)
    later.do(FetchStash(STASH, S2))
    assert later.backend.tokens(S2) == held


def test_the_voice_comes_back_with_its_scales(stage: Stage, path: Path, tmp_path: Path) -> None:
    stage.install(ADAPTER, tmp_path / "a")
    stage.install(OTHER_ADAPTER, tmp_path / "b")
    voice = (AdapterUse(ADAPTER, 0.1), AdapterUse(OTHER_ADAPTER, -2.5))
    stage.talk(1, stage.begin(1, "Hello", voice=voice))
    stage.do(WriteKv(str(path), S1, None, stage.backend.tokens(S1), voice))
    stage.loop.settle(block=True)
    assert read(Stage(WatchedBackend()), path).voice == voice


def test_a_file_is_replaced_as_a_whole(stage: Stage, content: bytes, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def disk_full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(kv_files.os, "fsync", disk_full)
    assert write(stage, path) == KvWritten(str(path), 0, 0, "the file cannot be written: No space left on device")
    assert path.read_bytes() == content
    assert os.listdir(path.parent) == [path.name]


def test_steps_go_on_while_a_file_is_written(stage: Stage, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, gate = parked(stage), threading.Event()
    seal = stage.backend.seal

    def slow(*parts: bytes) -> bytes:
        assert gate.wait(10)
        return seal(*parts)

    monkeypatch.setattr(stage.backend, "seal", slow)
    stage.do(WriteKv(str(path), S1, None, held, ()))
    assert stage.talk(2, stage.begin(2, "Hello", slot=1))[1] is FinishReason.END
    stage.loop.settle()
    assert stage.results == []
    gate.set()
    stage.loop.settle(block=True)
    assert stage.results == [KvWritten(str(path), len(held), path.stat().st_size)]


def test_a_file_that_is_ready_wakes_the_loop(stage: Stage, path: Path) -> None:
    parked(stage)
    woken = threading.Event()
    stage._wake = woken.set  # type: ignore[method-assign]
    stage.__post_init__()
    stage.do(ReadKv(str(path), STASH))
    assert woken.wait(10)
    stage.loop.settle()
    assert isinstance(stage.results.pop(), KvRead)
    stage.loop.close()


def test_what_was_ordered_before_the_end_is_on_the_disk_after_it(stage: Stage, path: Path) -> None:
    held = parked(stage)
    stage.do(WriteKv(str(path), S1, None, held, ()), Quit())
    assert stage.results == [KvWritten(str(path), len(held), path.stat().st_size)]


# --- nothing to write, nothing to read ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slot", "stash", "tokens", "reason"),
    [
        (Slot(3), None, (1,), "nothing is held of it"),
        (None, Stash(99), (1,), "nothing is held of it"),
        (None, None, (1,), "nothing is held of it"),
        (S1, None, (1, 2), " tokens are held of it, not 2"),
    ],
)
def test_what_is_not_held_is_not_written(
    slot: Slot | None, stash: Stash | None, tokens: tuple[int, ...], reason: str, stage: Stage, path: Path
) -> None:
    parked(stage)
    done = write(stage, path, slot=slot, stash=stash, tokens=tokens)
    assert reason in done.reason
    assert done == KvWritten(str(path), 0, 0, done.reason)
    assert not path.exists()


def test_a_place_where_no_file_can_be_is_a_reason(stage: Stage, tmp_path: Path) -> None:
    parked(stage)
    (tmp_path / "file").write_bytes(b"")
    assert write(stage, tmp_path / "file" / "npc.kv").reason.startswith("the file cannot be written: ")
    assert write(stage, tmp_path).reason.startswith("the file cannot be written: ")
    assert write(stage, Path("\0")).reason.startswith("it could not be written: ")


def test_a_stash_dropped_while_its_file_is_read_is_none(stage: Stage, content: bytes, path: Path) -> None:
    stage.do(ReadKv(str(path), STASH), DropStash(STASH))
    stage.loop.settle(block=True)
    assert stage.results.pop() == KvRead(str(path), STASH, reason="it was dropped while it was read")
    stage.do(FetchStash(STASH, S1))
    assert stage.backend.n_tokens(S1) == 0


def test_a_name_that_is_taken_is_our_bug(stage: Stage, content: bytes, path: Path) -> None:
    stage.do(StashSlot(S1, STASH))
    with pytest.raises(OurBug):
        stage.do(ReadKv(str(path), STASH))


# --- what is not taken --------------------------------------------------------------------------------------------


def test_another_model_and_context_are_told_by_name(stage: Stage, content: bytes, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wider = Stage(WatchedBackend(replace(SETTINGS, n_ctx=1024)))
    assert refused(wider, path) == "it was made with another context size: 512 tokens"
    monkeypatch.setattr(stage.backend, "card", replace(stage.backend.card, content_hash="f" * 64))
    assert refused(stage, path) == "it was made with another model"


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda content: b"", "it is cut short"),
        (lambda content: content[:FRONT_BYTES], "it is cut short"),
        (lambda content: content[:60], "it is cut short"),
        (lambda content: content[:-1], "it is damaged"),
        (lambda content: content + b"\0", "it is damaged"),
        (lambda content: b"GGUF" + content[4:], "it is no file of ours"),
        (lambda content: content[:12] + b"\1" + content[13:], "it was written by another version of Personae"),
        (lambda content: content[:12] + b"\3" + content[13:], "it was written by another version of Personae"),
        (lambda content: content[:16] + b"\xff" * 4 + content[20:], "it is damaged, or of a far larger context"),
        (
            lambda content: content[:-9] + bytes((content[-9] ^ 1,)) + content[-8:],
            "it is damaged, or was made by another build of the engine",
        ),
        (lambda content: content[:30] + bytes(6) + content[36:], "it is damaged, or was made by another build of the engine"),
        (lambda content: content[:40] + b"\xc1" * 9 + content[49:], "it is damaged"),
    ],
)
def test_a_damaged_file_is_refused_and_the_talk_goes_on(spoil: Any, reason: str, stage: Stage, content: bytes, path: Path) -> None:
    path.write_bytes(spoil(content))
    first = stage.begin(2, "Hello")
    stage.do(ReadKv(str(path), STASH))
    assert stage.talk(2, first)[1] is FinishReason.END
    stage.loop.settle(block=True)
    assert stage.results.pop() == KvRead(str(path), STASH, reason=reason)


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": ()},
        {"tokens": (1,) * 513},
        {"tokens": (-1,)},
        {"n_bytes": 1 << 60},
        {"n_bytes": -1},
        {"voice": (AdapterUse(ADAPTER, float("nan")),)},
        {"voice": (AdapterUse(OTHER_ADAPTER), AdapterUse(ADAPTER))},  # not in order
        {"voice": (AdapterUse(ADAPTER), AdapterUse(ADAPTER))},
        {"voice": tuple(AdapterUse(AdapterKey(f"{i}")) for i in range(5))},
    ],
)
def test_a_forged_head_is_refused_before_its_blob_is_read(changes: dict[str, Any], stage: Stage, content: bytes, path: Path) -> None:
    path.write_bytes(resealed(stage, content, **changes))
    assert refused(stage, path) == "it is damaged"


def test_a_file_far_larger_than_its_tokens_is_not_read_into_memory(stage: Stage, content: bytes, path: Path) -> None:
    n_bytes = 1 << 30
    forged = resealed(stage, content, tokens=(1, 2, 3), n_bytes=n_bytes)
    path.write_bytes(forged)
    _, _, length, _ = struct.unpack_from("<12sII16s", forged)
    os.truncate(path, FRONT_BYTES + length + n_bytes)  # holes: it takes no room on the disk
    assert refused(stage, path) == "it is damaged"


def test_a_sealed_file_whose_blob_holds_another_number_of_tokens_leaves_the_slot_empty(stage: Stage, content: bytes, path: Path) -> None:
    path.write_bytes(resealed(stage, content, tokens=(1, 2, 3)))
    assert read(stage, path).reason == ""
    stage.do(FetchStash(STASH, S2))
    assert stage.backend.n_tokens(S2) == 0


def test_what_is_no_regular_file_is_refused(stage: Stage, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refused(stage, tmp_path / "pipe") == "it is no file"
    assert refused(stage, tmp_path) == "it is no file"
    assert refused(stage, tmp_path / "nothing") == "there is no such file"
    assert refused(stage, Path("\0")).startswith("it could not be read: ")


def test_a_file_that_memory_does_not_hold_is_refused(stage: Stage, content: bytes, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*parts: bytes) -> bytes:
        raise MemoryError

    monkeypatch.setattr(stage.backend, "seal", no_memory)
    assert refused(stage, path) == "there is not enough memory for it"


@settings(derandomize=True, max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=4))
def test_whatever_bytes_are_changed_the_file_is_refused(stage: Stage, content: bytes, path: Path, changes: list[tuple[int, int]]) -> None:
    spoilt = bytearray(content)
    for at, byte in changes:
        spoilt[at % len(spoilt)] = byte
    path.write_bytes(spoilt)
    if bytes(spoilt) != content:
        assert refused(stage, path)
