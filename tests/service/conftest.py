"""A whole service on a real socket, over the fake engine, and peers to talk to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from personae.config import ServiceConfig
from personae.engine.settings import EngineSettings
from personae.service.watch import Pace
from tests.service.house import SWIFT, Peer, Running, write_pack

Serve = Callable[..., Running]


@pytest.fixture
def characters(tmp_path: Path) -> Path:
    folder = tmp_path / "characters"
    write_pack(folder, "innkeeper", greeting='"Come in, come in."')
    write_pack(folder, "guard")
    return folder


@pytest.fixture
def serve(characters: Path) -> Iterator[Serve]:
    """Start services: keyword arguments are ServiceConfig's and, as `engine`, EngineSettings'. `in_child`: with a real engine process;
    `pace`: how packs are watched."""
    running: list[Running] = []

    def start(*, in_child: bool = False, engine: dict[str, Any] | None = None, pace: Pace = SWIFT, **config: Any) -> Running:
        settings = EngineSettings(model="fake", **(engine or {}))
        merged = {"characters": characters, "drain_ms": 0, **config}
        running.append(Running(ServiceConfig(engine=settings, **merged), in_child=in_child, pace=pace))
        return running[-1]

    yield start
    for one in running:
        one.stop()
        assert one.failure is None, one.failure


@pytest.fixture
def connect() -> Iterator[Callable[..., Peer]]:
    """Peers that are closed when the test ends. `hello=False`: they have not introduced themselves."""
    peers: list[Peer] = []

    def make(running: Running | str, *, hello: bool = True, **options: Any) -> Peer:
        peers.append(Peer(running if isinstance(running, str) else running.endpoint, **options))
        if hello:
            assert peers[-1].hello()["type"] == "done"
        return peers[-1]

    yield make
    for peer in peers:
        peer.close()
