"""How a service begins and ends, within one process. Its life as a process of its own: tests/cli/test_serve.py."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from personae.config import ServiceConfig
from personae.engine.settings import EngineSettings
from personae.errors import AskedWrong, WorldFailed
from personae.service.app import Service
from personae.service.engine_thread import EngineThread
from personae.service.memory import resident_bytes
from personae.service.parent import watch_parent
from tests.service.house import PATIENCE_MS


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
