"""The soak: a minute of it on a real llama.cpp, and that it would notice."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("llama_cpp")

from personae.cli import main as cli
from personae.cli.bench import soak
from personae.cli.bench.soak import watch
from personae.cli.bench.soak.cast import Secrets
from personae.cli.bench.soak.line import GREETING, READY, Line
from personae.cli.bench.soak.players import Asked, Crowd, Player
from personae.cli.bench.soak.watch import MB, Failures, Scales, Watcher
from personae.engine.batch import FreeAdapter
from personae.engine.fake import FakeVocabulary
from personae.scheduler.actions import Command
from personae.scheduler.events import EngineStarted, Tick, TurnAsked
from personae.scheduler.settings import SchedulerConfig
from personae.types import AdapterKey, Limits, NpcId, ReplyRules, SamplingParams, TurnId
from tests.cli.processes import command
from tests.tiny import write_model

NPCS = ["npc-0000", "npc-0001"]
LONGEST_S = 300


def test_a_minute_on_a_tiny_model_passes(tmp_path: Path) -> None:
    """A process of its own: what it weighs is its own memory."""
    model = write_model(tmp_path / "tiny.gguf", "llama-tied")
    asked = command("bench", "soak", "--model", str(model.path), "--minutes", "1", "--json", "--keep", str(tmp_path / "kept"))
    ran = subprocess.run(asked, capture_output=True, text=True, encoding="utf-8", timeout=LONGEST_S)
    assert ran.stdout, ran.stderr[-4000:]
    report: dict[str, Any] = json.loads(ran.stdout)
    assert report["failures"] == [], ran.stderr[-4000:]
    assert ran.returncode == 0
    assert report["passed"]
    assert report["events"] == report["validated_events"] == report["refereed_events"] > 0
    assert report["engine_kills"] >= 1
    assert (report["npcs"], report["slots"]) == (1000, 16)
    assert {"interrupted", "cancelled", "length", "warm"} <= report["finishes"].keys()
    assert {"busy", "npc_busy"} <= report["errors"].keys()


@pytest.fixture
def failures() -> Failures:
    return Failures()


@pytest.fixture
def secrets() -> Secrets:
    return Secrets(NPCS, Random(1))


@pytest.fixture
def watcher(secrets: Secrets, failures: Failures) -> Watcher:
    return Watcher(SchedulerConfig(), FakeVocabulary(), secrets, failures)


def asked(prompt: str) -> TurnAsked:
    return TurnAsked(1.0, TurnId(1), NpcId(NPCS[0]), tuple(prompt.encode()), None, "", SamplingParams(), ReplyRules(), Limits())


def test_what_another_was_told_is_found_in_a_prompt(watcher: Watcher, secrets: Secrets, failures: Failures) -> None:
    watcher.saw(asked(f"The word is {secrets.of(NPCS[0])}, not zqaaaaaaaaaa."), [])
    assert failures.told == []
    watcher.saw(asked(f"The word is {secrets.of(NPCS[1])}."), [])
    assert failures.told == [
        "The prompt of turn 1 of NPC 'npc-0000' holds what NPC 'npc-0001' was told.",
        "After event 2 (TurnAsked): turn 1 was asked twice.",
    ]


def test_order_that_cannot_be_obeyed_is_found_and_the_rest_not_judged(watcher: Watcher, failures: Failures) -> None:
    watcher.saw(EngineStarted(0.0, 1, 64), [])
    wrong = [Command(FreeAdapter(AdapterKey("nobody's")))]
    for _ in range(3):
        watcher.saw(Tick(1.0), wrong)
    assert failures.told == ["After event 2 (Tick): adapter nobody's is freed and not there."]


@pytest.mark.parametrize(("last_mb", "grows"), [(100, False), (125, False), (140, True)])
def test_memory_that_grows_past_the_bound_is_found(last_mb: int, grows: bool, failures: Failures, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(watch.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(watch, "resident_bytes", lambda pid=None: None if pid else (100 if now_s < 60 else last_mb) * MB)
    scales = Scales()
    for _ in range(100):
        now_s += 1.0
        scales.weigh(7)
    report = scales.report(failures)
    assert (report["service"], report["engine"]) == (
        {"first_third_mb": 100.0, "last_third_mb": float(last_mb), "growth_mb": float(last_mb - 100)},
        None,
    )
    assert (failures.n == 1) == grows


@pytest.fixture
def crowd(secrets: Secrets, failures: Failures) -> Crowd:
    crowd = Crowd(1, secrets, failures)
    crowd.players[0].asked[1] = Asked("say", NPCS[0])
    return crowd


def hear(crowd: Crowd, **message: Any) -> None:
    crowd._take(crowd.players[0], message)


def test_answer_that_comes_twice_is_found(crowd: Crowd, failures: Failures) -> None:
    hear(crowd, type="delta", id=1, text="Well. ")
    hear(crowd, type="done", id=1, text="Well. ", finish="end")
    assert failures.told == []
    hear(crowd, type="error", id=1, code="busy", message="No.")
    hear(crowd, type="delta", id=1, text="And")
    assert [sentence[:31] for sentence in failures.told] == ["player 0 gets a error for reque", "player 0 gets a delta for reque"]


def test_reply_that_is_not_its_deltas_is_found(crowd: Crowd, failures: Failures) -> None:
    hear(crowd, type="delta", id=1, text="Well")
    hear(crowd, type="done", id=1, text="Well. ", finish="end")
    assert "are not its text" in failures.told[0]


def test_reply_with_another_s_secret_is_found(crowd: Crowd, secrets: Secrets, failures: Failures) -> None:
    hear(crowd, type="delta", id=1, text=secrets.of(NPCS[1]))
    hear(crowd, type="done", id=1, text=secrets.of(NPCS[1]), finish="end")
    assert failures.told == ["NPC 'npc-0000' says what NPC 'npc-0001' was told."]


def test_fault_of_the_service_is_found_and_a_refusal_is_none(crowd: Crowd, failures: Failures) -> None:
    hear(crowd, type="error", id=1, code="npc_busy", message="Busy.")
    assert failures.told == []
    crowd.players[0].asked[2] = Asked("warm", NPCS[0])
    hear(crowd, type="error", id=2, code="internal", message="Oh.")
    assert failures.told == ["A warm is answered internal: Oh."]


def test_first_failures_are_told_and_the_rest_counted(failures: Failures) -> None:
    for number in range(100):
        failures.note(f"Failure {number}.")
    assert (len(failures.told), failures.n) == (Failures.MOST, 100)


def test_a_soak_that_fails_ends_with_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_NUM_THREADS", "PYTHONUTF8"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr(soak, "run", lambda _: {"passed": False})
    assert cli.main(["bench", "soak", "--model", "fake", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"passed": False}


def test_nobody_who_hung_up_is_owed_anything() -> None:
    player = Player("player")
    player.asked[1], player.session = Asked("say", NPCS[0]), "a session"
    player.forget()
    assert (player.asked, player.session, player.former) == ({}, None, "a session")


def test_line_waits_for_the_other_side_and_answers_its_pings() -> None:
    """The other side of a handshake, written out too."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        line = Line(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        line.say({"id": 1})
        peer, _ = server.accept()
        with peer:
            greeting = peer.recv(len(GREETING) + len(READY), socket.MSG_WAITALL)
            assert greeting == GREETING + READY  # and no message yet
            peer.sendall(GREETING + READY + b"\x04\x09\x04PING\x00\x00xy" + b"\x00\x05\x81\xa2id")
            while line._held is not None:
                assert list(line.hear()) == []
            assert peer.recv(16, socket.MSG_WAITALL) == b"\x00\x05\x81\xa2id\x01" + b"\x04\x07\x04PONGxy"
            peer.sendall(b"\x01")
        while line.is_open:
            heard = list(line.hear())
            assert heard in ([], [{"id": 1}])
        line.close()
