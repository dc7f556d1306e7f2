"""A real engine process with the fake model, over real pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO, cast

import pytest

import personae
from personae.engine.batch import (
    AdapterLoaded,
    EngineFailed,
    EngineReady,
    EngineWarm,
    FetchStash,
    KvRead,
    KvWritten,
    LoadAdapter,
    Order,
    Quit,
    ReadKv,
    Result,
    RunStep,
    SlotStashed,
    StashSlot,
    StepDone,
    WriteKv,
)
from personae.engine.factory import make_backend, make_vocabulary
from personae.engine.fake import FakeBackend, FakeVocabulary
from personae.engine.pipe import read_result, write_orders
from personae.engine.settings import EngineSettings
from personae.types import FinishReason, Slot, Stash, TurnId
from tests.engine.stage import ADAPTER, VOICE, begin_turn, chunk, prompt

FAKE = EngineSettings(model="fake", n_slots=2)
SOURCE = str(Path(personae.__file__).parents[1])


class Child:
    def __init__(self, settings: str, program: Sequence[str] = ("-m", "personae.engine.process")) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *program, settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": SOURCE},
        )

    def send(self, orders: Sequence[Order]) -> None:
        write_orders(cast(BinaryIO, self.process.stdin), orders)

    def result(self) -> Result:
        return read_result(cast(BinaryIO, self.process.stdout))

    def hang_up(self) -> None:
        cast(BinaryIO, self.process.stdin).close()

    def wait(self) -> int:
        return self.process.wait(20)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            cast(BinaryIO, stream).close()


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child(json.dumps(asdict(FAKE)))
    yield child
    child.end()


def started(child: Child) -> Child:
    ready, warm = child.result(), child.result()
    assert isinstance(ready, EngineReady)
    assert (ready.card.name, ready.card.n_slots) == ("fake", 2)
    assert isinstance(warm, EngineWarm)
    return child


def say(child: Child, line: str) -> tuple[str, FinishReason]:
    child.send([begin_turn(1, slot=0), RunStep(prefill=(chunk(1, line),))])
    text = ""
    while True:
        done = child.result()
        assert isinstance(done, StepDone)
        (row,) = done.rows
        text += "".join(piece.text for piece in row.pieces)
        if row.finish:
            return text, row.finish
        child.send([RunStep((TurnId(1),))])


def test_child_speaks_and_ends_when_told(child: Child) -> None:
    assert say(started(child), "Grüß Gott 🐉") == ("[base] I heard: Grüß Gott 🐉.", FinishReason.END)
    child.send([Quit()])
    assert child.wait() == 0
    with pytest.raises(EOFError):
        child.result()


def test_finished_adapter_load_wakes_a_sleeping_child(child: Child, tmp_path: Path) -> None:
    (tmp_path / "voice").write_bytes(b"GGUF")
    started(child).send([LoadAdapter(ADAPTER, str(tmp_path / "voice"))])
    assert isinstance(child.result(), AdapterLoaded)


def test_child_ends_when_its_parent_has_gone(child: Child) -> None:
    started(child).hang_up()
    assert child.wait() == 0


def test_orders_before_the_end_of_input_are_still_done(child: Child) -> None:
    child.send([begin_turn(1, slot=0), RunStep(prefill=(chunk(1, "fake:silent"),))])
    child.hang_up()
    done = started(child).result()
    assert isinstance(done, StepDone)
    assert done.rows[0].finish is FinishReason.END
    assert child.wait() == 0


def test_crash_in_a_step_is_seen_as_the_end_of_the_results(child: Child) -> None:
    with pytest.raises(EOFError):
        say(started(child), "fake:crash")
    assert child.wait() == 70


def test_bug_of_ours_is_told_before_the_child_ends(child: Child) -> None:
    with pytest.raises(AssertionError):
        say(started(child), "fake:bug")  # its last result is no StepDone
    assert child.wait() == 5
    with pytest.raises(EOFError):
        child.result()
    assert b"Traceback" in cast(BinaryIO, child.process.stderr).read()


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT to another process")
def test_ctrl_c_does_not_end_the_child(child: Child) -> None:
    os.kill(started(child).process.pid, signal.SIGINT)
    assert say(child, "Still there?")[1] is FinishReason.END


def test_prints_do_not_get_into_the_results() -> None:
    program = (
        "import os, sys; from personae.engine import fake, process\n"
        "fake.FakeBackend.warm_up = lambda self: (print('from Python', flush=True), os.write(1, b'from native code'))\n"
        "sys.exit(process.main())"
    )
    child = Child(json.dumps(asdict(FAKE)), ("-c", program))
    try:
        started(child).send([Quit()])
        assert child.wait() == 0
        assert cast(BinaryIO, child.process.stderr).read().split(b"\n") == [b"from Python", b"from native code"]
    finally:
        child.end()


@pytest.mark.parametrize("settings", ["", "[]", '{"model": "fake", "colour": 1}'])
def test_settings_that_cannot_be_read_are_told(settings: str) -> None:
    child = Child(settings)
    try:
        failed = child.result()
        assert isinstance(failed, EngineFailed)
        assert failed.code == "engine_failed"
        assert child.wait() == 5
    finally:
        child.end()


def test_fake_is_a_model_name_of_its_own() -> None:
    assert isinstance(make_backend(FAKE), FakeBackend)
    assert isinstance(make_vocabulary("fake"), FakeVocabulary)


@pytest.mark.parametrize("call", ["make_backend(EngineSettings('some.gguf'))", "make_vocabulary('some.gguf')"])
def test_missing_llama_cpp_is_told_with_the_remedy(call: str) -> None:
    program = f"""
import sys
sys.modules["llama_cpp"] = None  # as if it were not installed
from personae.engine.factory import EngineSettings, WorldFailed, make_backend, make_vocabulary
try:
    {call}
except WorldFailed as error:
    print(error.code, error.hint)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": SOURCE}, capture_output=True, timeout=60, check=True
    )
    assert ended.stdout.decode().strip() == "engine_failed Run `pip install personae[engine]`."


@pytest.mark.parametrize(("content", "answers_load"), [(b"KILL-LOAD", False), (b"KILL-STEP", True)])
def test_an_adapter_that_kills_takes_the_process_and_no_result_comes_back(
    content: bytes, answers_load: bool, child: Child, tmp_path: Path
) -> None:
    (tmp_path / "voice").write_bytes(content)
    started(child).send([LoadAdapter(ADAPTER, str(tmp_path / "voice"))])
    if answers_load:
        assert isinstance(child.result(), AdapterLoaded)
        child.send([begin_turn(1, slot=0, voice=VOICE), RunStep(prefill=(chunk(1, "Hello"),))])
    assert child.wait() == 70
    with pytest.raises(EOFError):
        child.result()


def test_kv_that_one_process_wrote_is_read_by_the_next(child: Child, tmp_path: Path) -> None:
    said, _ = say(started(child), "Hello")
    held, path = (*prompt("Hello"), *said.encode()), str(tmp_path / "npc.kv")
    child.send([WriteKv(path, Slot(0), None, held, ())])
    assert isinstance(written := child.result(), KvWritten)
    assert (written.n_tokens, written.reason) == (len(held), "")
    child.send([Quit()])
    assert child.wait() == 0
    later = Child(json.dumps(asdict(FAKE)))
    try:
        started(later).send([ReadKv(path, Stash(1))])
        assert isinstance(kv := later.result(), KvRead)
        assert (kv.tokens, kv.reason) == (held, "")
        later.send([FetchStash(Stash(1), Slot(1)), StashSlot(Slot(1), Stash(2))])
        assert isinstance(stashed := later.result(), SlotStashed)
        assert stashed.n_tokens == len(held)
    finally:
        later.end()
