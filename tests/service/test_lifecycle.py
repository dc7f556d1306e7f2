"""How a service begins and ends, within one process. Its life as a process of its own: tests/cli/test_serve.py."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from personae.config import ServiceConfig
from personae.engine.settings import EngineSettings
from personae.errors import AskedWrong, WorldFailed
from personae.scheduler.events import TurnAsked
from personae.service import sealed
from personae.service.app import Service
from personae.service.engine_thread import EngineThread
from personae.service.memory import resident_bytes
from personae.service.parent import watch_parent
from personae.service.recorder import Record
from tests.service.house import PATIENCE_MS, Peer


def test_ready_and_warm_are_two_lines(serve) -> None:
    lines = serve().lines
    ready, warm = lines.get(timeout=10), lines.get(timeout=10)
    assert ready.keys() == {"event", "endpoint", "pid", "protocol", "model", "mode"}
    assert (ready["event"], ready["protocol"], ready["model"], ready["mode"]) == ("ready", 1, "fake", "mixed")
    assert ready["endpoint"].startswith("tcp://127.0.0.1:")
    assert warm["event"] == "warm"


def test_second_service_on_a_port_is_told_before_anything_is_loaded(serve) -> None:
    port = int(serve().endpoint.rpartition(":")[2])
    with pytest.raises(WorldFailed) as failure:
        Service(ServiceConfig(EngineSettings(model="fake"), port=port))
    assert failure.value.code == "endpoint_taken"


def test_a_stop_that_is_asked_while_the_service_begins_is_not_forgotten() -> None:
    settings = EngineSettings(model="fake")

    def stop_and_lose_the_wake_up(line: dict[str, Any]) -> None:
        if line["event"] == "ready":
            service.stop()
            service._transport.wait(0)

    service = Service(ServiceConfig(settings), announce=stop_and_lose_the_wake_up, start_engine=lambda post: EngineThread(settings, post))
    thread = threading.Thread(target=service.run, daemon=True)
    thread.start()
    thread.join(PATIENCE_MS / 1000)
    assert not thread.is_alive()


def test_shutdown_lets_open_turns_end_and_takes_nothing_new(serve, connect) -> None:
    running = serve(engine={"fake_step_ms": 2}, drain_ms=10_000)
    peer, other = connect(running), connect(running)
    peer.ask("spawn", character="guard")
    say = peer.send("say", npc="guard", text="fake:long", max_tokens=150)
    peer.until(lambda message: message["type"] == "delta")
    assert other.ask("shutdown")["type"] == "done"
    assert other.until(lambda message: message["type"] == "event")["event"] == "closing"
    assert other.ask("spawn", character="guard")["code"] == "shutting_down"
    assert other.ask("say", npc="guard", text="Wait!")["code"] == "shutting_down"
    assert other.ask("ping")["type"] == "done"
    assert peer.end_of(say)["finish"] == "length"
    running.thread.join(10)
    assert not running.thread.is_alive()


def test_turns_that_outlast_the_drain_are_cancelled_and_their_clients_told(serve, connect) -> None:
    running = serve(engine={"fake_step_ms": 2}, drain_ms=50)
    peer = connect(running)
    peer.ask("spawn", character="guard")
    say = peer.send("say", npc="guard", text="fake:long", max_tokens=2000)
    peer.until(lambda message: message["type"] == "delta")
    peer.send("shutdown")
    assert peer.end_of(say)["finish"] == "cancelled"
    running.thread.join(10)
    assert not running.thread.is_alive()


def test_second_stop_does_not_wait_for_the_drain(serve, connect) -> None:
    running = serve(engine={"fake_step_ms": 2}, drain_ms=600_000)
    peer = connect(running)
    peer.ask("spawn", character="guard")
    say = peer.send("say", npc="guard", text="fake:long", max_tokens=2000)
    peer.until(lambda message: message["type"] == "delta")
    running.service.stop()
    peer.until(lambda message: message.get("event") == "closing")
    running.stop()
    assert peer.end_of(say)["finish"] == "cancelled"


def test_service_without_characters_says_so_in_its_log(serve, caplog: pytest.LogCaptureFixture) -> None:
    serve(characters=None).lines.get(timeout=10)
    assert "no character could be loaded from anywhere (--characters)" in caplog.text


def test_stop_before_ready_ends_it(characters) -> None:
    service = Service(ServiceConfig(EngineSettings(model="fake"), characters))
    service.stop()
    service.run()


def test_engine_that_cannot_start_ends_the_service_with_its_reason() -> None:
    def refuse(post):
        raise OSError("no such program")

    service = Service(ServiceConfig(EngineSettings(model="fake")), start_engine=refuse)
    with pytest.raises(WorldFailed, match="no such program") as failure:
        service.run()
    assert failure.value.code == "engine_failed"


# --- with a state folder ----------------------------------------------------------------------------------------------


def told(peer: Peer, npc: str) -> list[str]:
    return [line["text"] for line in peer.ask("history", npc=npc)["lines"]]


def test_npcs_of_a_state_folder_are_there_before_the_first_client(serve, connect, tmp_path) -> None:
    first = serve(state=tmp_path / "state")
    assert first.lines.get(timeout=10)["npcs"] == 0
    peer = connect(first)
    for npc in ("one", "two", "three"):
        peer.ask("spawn", character="guard", npc=npc)
    peer.ask("say", npc="one", text="fake:say:Halt.")
    peer.ask("observe", npcs=["two"], text="A door slams.")
    peer.ask("despawn", npc="three")
    first.stop()
    second = serve(state=tmp_path / "state")
    assert second.lines.get(timeout=10)["npcs"] == 2
    peer = connect(second)
    assert told(peer, "one") == ["fake:say:Halt.", "Halt."]
    assert told(peer, "two") == ["A door slams."]
    assert peer.ask("say", npc="one", text="fake:say:As I said.")["text"] == "As I said."
    state = peer.ask("stats")["state"]
    assert (state["npcs"], state["shelved"], state["last_failure"]) == (2, [], "")


def test_what_is_said_while_the_service_drains_is_kept(serve, connect, tmp_path) -> None:
    running = serve(state=tmp_path / "state", engine={"fake_step_ms": 2}, drain_ms=10_000)
    peer = connect(running)
    peer.ask("spawn", character="guard", npc="drained")
    peer.ask("spawn", character="guard", npc="cancelled")
    drained = peer.send("say", npc="drained", text="fake:long", max_tokens=30)
    cancelled = peer.send("say", npc="cancelled", text="fake:long", max_tokens=2000)
    peer.until(lambda message: message["type"] == "delta" and message["id"] == cancelled)
    running.service.stop()
    peer.until(lambda message: message.get("event") == "closing")
    texts = {"drained": peer.end_of(drained)["text"]}
    running.service.stop()
    texts["cancelled"] = peer.end_of(cancelled)["text"]
    running.thread.join(10)
    peer = connect(serve(state=tmp_path / "state"))
    for npc, text in texts.items():
        assert told(peer, npc) == ["fake:long", text]


def test_npc_whose_pack_is_gone_waits_for_it_on_disk(serve, connect, characters, tmp_path) -> None:
    running = serve(state=tmp_path / "state")
    peer = connect(running)
    peer.ask("spawn", character="innkeeper", npc="keeper")
    peer.ask("spawn", character="guard", npc="guard")
    running.stop()
    (characters / "innkeeper").rename(tmp_path / "away")
    running = serve(state=tmp_path / "state")
    peer = connect(running)
    assert peer.ask("history", npc="keeper")["code"] == "unknown_npc"
    (shelved,) = peer.ask("stats")["state"]["shelved"]
    assert "innkeeper" in shelved["reason"]
    running.stop()
    (tmp_path / "away").rename(characters / "innkeeper")
    assert told(connect(serve(state=tmp_path / "state")), "keeper") == ["Come in, come in."]


def test_full_disk_silences_nobody_and_is_made_up_for_later(serve, connect, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = serve(state=tmp_path / "state")
    peer = connect(running)
    for npc in ("one", "two"):
        peer.ask("spawn", character="guard", npc=npc)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(sealed, "_put", full)
        assert peer.ask("say", npc="one", text="fake:say:Still here.")["text"] == "Still here."
        assert "No space left" in peer.ask("stats")["state"]["last_failure"]
    peer.ask("say", npc="two", text="fake:say:Me too.")
    running.stop()
    peer = connect(serve(state=tmp_path / "state"))
    assert told(peer, "one") == ["fake:say:Still here.", "Still here."]


def test_second_service_on_a_state_folder_is_told_before_anything_is_loaded_and_gives_its_port_back(serve, tmp_path) -> None:
    serve(state=tmp_path / "state").lines.get(timeout=10)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for _ in range(2):
        with pytest.raises(AskedWrong) as refusal:
            Service(ServiceConfig(EngineSettings(model="fake"), port=port, state=tmp_path / "state"))
        assert refusal.value.code == "state_in_use"


def test_witness_and_record_see_what_the_scheduler_sees(connect, characters, tmp_path) -> None:
    class Listed:
        def __init__(self) -> None:
            self.events: list[Any] = []

        def saw(self, event: Any, actions: Any) -> None:
            self.events.append(event)

    witness, settings = Listed(), EngineSettings(model="fake")
    config = ServiceConfig(settings, characters, record=tmp_path / "record")
    service = Service(config, start_engine=lambda post: EngineThread(settings, post), witness=witness)
    thread = threading.Thread(target=service.run)
    thread.start()
    peer = connect(service.endpoint)
    peer.ask("spawn", character="guard")
    peer.ask("say", npc="guard", text="fake:say:Halt.")
    service.stop()
    thread.join(PATIENCE_MS / 1000)
    assert [moment.event for moment in Record(tmp_path / "record").moments()] == witness.events
    assert any(isinstance(event, TurnAsked) for event in witness.events)


def test_record_holds_the_event_over_which_the_scheduler_failed(serve, connect, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = serve(record=tmp_path / "record", restart_backoff_ms=(10, 20))
    peer = connect(running)
    peer.ask("spawn", character="guard")
    monkeypatch.setattr(running.service._conductor._scheduler, "handle", lambda event: 1 / 0)
    assert peer.ask("say", npc="guard", text="fake:say:Halt.")["code"] == "internal"
    running.stop()
    events = [moment.event for moment in Record(tmp_path / "record").moments()]
    assert any(isinstance(event, TurnAsked) for event in events)


def test_witness_that_fails_is_nobody_s_affair(serve, connect, caplog: pytest.LogCaptureFixture) -> None:
    class Careless:
        def saw(self, event: Any, actions: Any) -> None:
            raise ValueError("not seen")

    running = serve()
    peer = connect(running)
    running.service._conductor._witness = Careless()
    peer.ask("spawn", character="guard")
    assert peer.ask("say", npc="guard", text="fake:say:Halt.")["text"] == "Halt."
    assert "a witness failed over a TurnAsked" in caplog.text
    assert peer.ask("stats")["engine"]["restarts"] == 0


# --- with its parent ----------------------------------------------------------------------------------------------------


def test_service_ends_when_its_parent_is_gone(serve) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as parent:
        running = serve(parent=parent.pid)
        running.lines.get(timeout=10)
        parent.kill()
        running.thread.join(10)
        assert not running.thread.is_alive()


def test_dead_parent_is_told_from_a_living_one() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as parent:
        is_gone = watch_parent(parent.pid)
        assert not is_gone()
        parent.kill()
        parent.wait()
        assert is_gone()
        with pytest.raises(AskedWrong, match=str(parent.pid)):
            watch_parent(parent.pid)


def test_memory_is_told_where_the_system_tells_it() -> None:
    if Path("/proc/self/statm").exists():
        assert (resident_bytes() or 0) > 1 << 20
    assert resident_bytes(2**22 + 1) is None
