"""An NPC that cannot be written down is told of, and plays on."""

from __future__ import annotations

from typing import Any

import pytest

from personae.errors import WorldFailed
from personae.service.keeping import Keeping
from personae.service.npcs import Npc
from personae.types import NpcId


class Disk:
    """A keeper whose disk may be full."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.kept: dict[str, int] = {}  # how many lines were kept of whom

    def keep(self, npc: Npc) -> None:
        if self.failure is not None:
            raise self.failure
        self.kept[npc.id] = len(npc.lines)

    def forget(self, npc_id: str) -> None:
        if self.failure is not None:
            raise self.failure
        self.kept.pop(npc_id, None)


class Clients:
    """All of them, as an outbox reaches them."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def broadcast(self, message: dict[str, Any]) -> None:
        self.told.append(message)


FULL = WorldFailed("state_unusable", "NPC 'one' could not be kept: No space left on device.", "Look at the disk.")


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def clients() -> Clients:
    return Clients()


@pytest.fixture
def keeping(disk, clients) -> Keeping:
    return Keeping(disk, clients)  # type: ignore[arg-type]  # it broadcasts, and that is all that is asked of it


def npc(name: str) -> Npc:
    return Npc(NpcId(name), "guard", "Guard", "Tom", 8)


@pytest.mark.parametrize("failure", [FULL, RuntimeError("a bug of ours")])
def test_failure_is_told_once_and_stops_nobody(keeping, disk, clients, failure) -> None:
    disk.failure = failure
    for name in ("one", "two", "one"):
        keeping.keep(npc(name))
    keeping.forget(NpcId("two"))
    assert [(message["event"], str(failure) in message["message"]) for message in clients.told] == [("state_failed", True)]


def test_what_could_not_be_kept_is_kept_with_the_next_that_can(keeping, disk) -> None:
    disk.failure = FULL
    for name in ("one", "two", "three"):
        keeping.keep(npc(name))
    keeping.forget(NpcId("two"))
    disk.failure = None
    keeping.keep(npc("four"))
    assert disk.kept.keys() == {"one", "three", "four"}


def test_disk_that_fails_again_is_told_of_again(keeping, disk, clients) -> None:
    for failure in (FULL, None, FULL):
        disk.failure = failure
        keeping.keep(npc("one"))
    assert len(clients.told) == 2


def test_full_disk_ends_no_turn(serve, connect, tmp_path, monkeypatch) -> None:
    running = serve(state=tmp_path / "state")
    peer = connect(running)
    peer.ask("spawn", character="guard")
    monkeypatch.setattr(running.service._state, "keep", lambda npc: (_ for _ in ()).throw(FULL))
    assert peer.ask("say", npc="guard", text="fake:say:Halt.")["text"] == "Halt."
    assert [message["event"] for message in peer.heard if message["type"] == "event" and message["event"] == "state_failed"]
