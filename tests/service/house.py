"""A service in a thread, the packs it plays, and a peer that speaks raw frames to it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import zmq

from personae.config import ServiceConfig
from personae.service.app import Service
from personae.service.engine_thread import EngineThread
from personae.service.settling import Patience
from personae.service.watch import Pace

PATIENCE_MS = 10_000  # for what must come; nothing waits that long unless the test fails
SWIFT = Pace(Patience(settle_ms=60.0, grace_ms=500.0, gone_ms=250.0), rescan_ms=60_000.0)  # packs; all by events, nothing by chance


class Peer:
    """A DEALER and nothing more: what it sends and gets are messages as dicts."""

    def __init__(self, endpoint: str, *, token: str | None = None, options: dict[int, int] | None = None) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.linger = 0
        if token is not None:
            self.socket.plain_username, self.socket.plain_password = b"personae", token.encode()
        for option, value in (options or {}).items():
            self.socket.setsockopt(option, value)
        self.socket.connect(endpoint)
        self._last_id = 0
        self.heard: list[dict[str, Any]] = []  # everything, in order

    def close(self) -> None:
        self._context.destroy(linger=0)

    def send(self, type: str, **fields: Any) -> int:
        """Send a request; returns its id."""
        self._last_id += 1
        message = {"type": type, "id": self._last_id, **fields}
        self.socket.send(msgpack.packb(message))
        return int(message["id"])

    def next(self, timeout_ms: int = PATIENCE_MS) -> dict[str, Any]:
        assert self.socket.poll(timeout_ms), f"nothing came; heard so far: {self.heard[-5:]}"
        message = msgpack.unpackb(self.socket.recv())
        self.heard.append(message)
        return dict(message)

    def until(self, matches: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while time.monotonic() < deadline:
            if matches(message := self.next()):
                return message
        raise AssertionError(f"it never came; heard so far: {self.heard[-5:]}")

    def end_of(self, request: int) -> dict[str, Any]:
        """The terminal message of a request, also when it came while another was waited for."""

        def ends(message: dict[str, Any]) -> bool:
            return message.get("id") == request and message["type"] in ("done", "error")

        return next(filter(ends, self.heard), None) or self.until(ends)

    def ask(self, type: str, **fields: Any) -> dict[str, Any]:
        """A request and its terminal message."""
        return self.end_of(self.send(type, **fields))

    def hello(self, **fields: Any) -> dict[str, Any]:
        return self.ask("hello", **{"v": 1, "client": "test", **fields})

    def deltas(self, request: int) -> str:
        return "".join(message["text"] for message in self.heard if message["type"] == "delta" and message["id"] == request)


class Running:
    """A service in a thread."""

    def __init__(self, config: ServiceConfig, *, in_child: bool, pace: Pace = SWIFT) -> None:
        self.lines: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.failure: BaseException | None = None
        start = None if in_child else lambda post: EngineThread(config.engine, post)
        self.service = Service(config, announce=self.lines.put, start_engine=start, pace=pace)
        self.thread = threading.Thread(target=self._run, name="service")
        self.thread.start()

    @property
    def endpoint(self) -> str:
        return self.service.endpoint

    def stop(self) -> None:
        self.service.stop()
        self.thread.join(PATIENCE_MS / 1000)
        assert not self.thread.is_alive()

    def _run(self) -> None:
        try:
            self.service.run()
        except BaseException as failure:
            self.failure = failure


def write_pack(folder: Path, name: str, **fields: str) -> Path:
    pack = folder / name
    pack.mkdir(parents=True)
    write_manifest(pack, **fields)
    return pack


def write_manifest(pack: Path, **fields: str) -> None:
    """`fields`: as they stand in TOML."""
    name = pack.name.title()
    values = {"name": f'"{name}"', "persona": f'"You are {name}."', **fields}
    (pack / "character.toml").write_text("".join(f"{key} = {value}\n" for key, value in values.items()), encoding="utf-8")
