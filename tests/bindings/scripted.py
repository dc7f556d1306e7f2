"""A service that says what the test wants: a real ROUTER in a thread, with one answer a request type. Knows nothing of personae."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import msgpack
import zmq

PATIENCE_S = 5.0  # a test that waits this long for something has failed
Message = dict[str, Any]
Answer = Callable[[Message], list[Any]]

WELCOME = {
    "v": 1, "server": "personae 0.1.0", "session": "s1", "mode": "mixed", "mode_reason": "", "slots": 8, "state": "ready",
    "heartbeat_ms": 60_000, "model": {"name": "base.gguf", "architecture": "llama", "hash": "ab", "n_ctx": 2048},
    "limits": {"frame_bytes": 1 << 20},
}  # fmt: skip


def done(request: Message, **fields: Any) -> Message:
    return {"type": "done", "id": request["id"], **fields}


def error(request: Message, code: str, **more: Any) -> Message:
    return {"type": "error", "id": request["id"], "code": code, "message": f"It is {code}.", "hint": "Do better.", **more}


def delta(request: Message, text: str, kind: str = "speech") -> Message:
    return {"type": "delta", "id": request["id"], "npc": request["npc"], "text": text, "kind": kind}


def said(request: Message, text: str, finish: str = "end") -> Message:
    return done(
        request, npc=request["npc"], text=text, speech=text, finish=finish, adapter="cd", seed=7,
        usage={"prompt": 9, "reused": 4, "prefilled": 5, "reply": 2, "source": "slot"}, fallback=None, receipt={"cut": []},
        timing={"queued_ms": 0.5, "ttft_ms": 2.0, "total_ms": 8.0, "paused_ms": 1.5, "pauses": 2},
    )  # fmt: skip


def spawned(request: Message) -> Message:
    npc = request.get("npc") or request["character"]
    return done(request, npc=npc, character=request["character"], name=npc.title(), greeting="Come in.", adapter=None)


class ScriptedService:
    """`answers[type]` gives the replies to a request; bytes among them go out as they are. What came in waits in `heard`."""

    def __init__(self, token: str | None = None) -> None:
        self.welcome = dict(WELCOME)
        self.heard: queue.Queue[Message] = queue.Queue()
        self.route = b""
        self.answers: dict[str, Answer] = {
            "hello": lambda request: [done(request, **self.welcome)],
            "spawn": lambda request: [spawned(request)],
            "say": lambda request: [delta(request, "Good "), delta(request, "evening."), said(request, "Good evening.")],
            "cancel": lambda request: [done(request, cancelled=True, cut=0)],
            "ping": lambda request: [done(request, at_ms=12.5)],
            "despawn": lambda request: [done(request, npc=request["npc"])],
        }
        self._token = token
        self._orders: queue.Queue[Callable[[], None]] = queue.Queue()
        self._waker, self._woken = socket.socketpair()
        self._context = zmq.Context()
        self._router: zmq.Socket[bytes] | None = None
        self._ends = False
        self._bind("tcp://127.0.0.1:*")
        assert self._router is not None
        self.endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._zap = self._context.socket(zmq.REP)
        if token is not None:
            self._zap.bind("inproc://zeromq.zap.01")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    # --- from the test's thread ---

    def hear(self, kind: str) -> Message:
        """The next request of a kind; those of other kinds before it are thrown away."""
        while True:
            message = self.heard.get(timeout=PATIENCE_S)
            if message["type"] == kind:
                return message

    def send(self, *messages: Message | bytes) -> None:
        self._do(lambda: self._reply(self.route, list(messages)))

    def vanish(self) -> None:
        """As if the process had been killed: every connection breaks, nobody listens."""
        self._do(self._unbind)

    def come_back(self) -> None:
        self._do(lambda: self._bind(self.endpoint))

    def fall_silent(self) -> None:
        """The connection stays, nobody answers."""
        self.answers.clear()

    def close(self) -> None:
        self._do(lambda: setattr(self, "_ends", True))
        self._thread.join(PATIENCE_S)

    def _do(self, order: Callable[[], None]) -> None:
        carried_out: Future[None] = Future()

        def carry_out() -> None:
            order()
            carried_out.set_result(None)

        self._orders.put(carry_out)
        self._waker.send(b"\0")
        carried_out.result(PATIENCE_S)

    # --- the thread ---

    def _run(self) -> None:
        while not self._ends:
            poller = zmq.Poller()
            poller.register(self._woken.fileno(), zmq.POLLIN)
            for one in (self._router, self._zap):
                if one is not None:
                    poller.register(one, zmq.POLLIN)
            ready = dict(poller.poll())
            if self._woken.fileno() in ready:
                self._woken.recv(1)
                self._orders.get()()
            if self._zap in ready:
                self._judge()
            if self._router is not None and self._router in ready:
                self._take()
        self._unbind()
        self._zap.close(linger=0)
        self._context.term()
        self._waker.close()
        self._woken.close()

    def _take(self) -> None:
        assert self._router is not None
        self.route, frame = self._router.recv_multipart()
        request = msgpack.unpackb(frame)
        self.heard.put(request)
        answer = self.answers.get(request["type"])
        self._reply(self.route, answer(request) if answer else [])

    def _reply(self, route: bytes, messages: list[Any]) -> None:
        assert self._router is not None
        for message in messages:
            self._router.send_multipart([route, message if isinstance(message, bytes) else msgpack.packb(message)])

    def _judge(self) -> None:
        version, request_id, *_, password = self._zap.recv_multipart()
        status = b"200" if password == (self._token or "").encode() else b"400"
        self._zap.send_multipart([version, request_id, status, b"", b"", b""])

    def _bind(self, endpoint: str) -> None:
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 0)
        if self._token is not None:
            self._router.setsockopt(zmq.ZAP_DOMAIN, b"test")
            self._router.setsockopt(zmq.PLAIN_SERVER, 1)
        self._router.bind(endpoint)

    def _unbind(self) -> None:
        if self._router is not None:
            self._router.close(linger=0)
        self._router = None
