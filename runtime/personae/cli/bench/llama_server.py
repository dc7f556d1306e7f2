"""A llama-server as `peer` needs it: started with a set of adapters, asked by as many threads as there are NPCs. HTTP and nothing else.

It is treated as its documentation advises for one adapter a request: all adapters are loaded at start and applied to nothing, and each
request names its own; a slot for each NPC, named in the request, with its prompt cache on.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from personae.cli.bench.house import SAMPLING
from personae.errors import AskedWrong, WorldFailed

START_S = 120.0
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Answer:
    first_s: float  # from the round's beginning to its first token
    tokens: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Answers:
    seconds: float
    all: tuple[Answer, ...]

    @property
    def n_tokens(self) -> int:
        return sum(len(answer.tokens) for answer in self.all)


class LlamaServer:
    """Use it in a `with`: the process ends with it."""

    def __init__(self, program: Path, model: Path, adapters: Sequence[Path], *, n_ctx: int, threads: int) -> None:
        """Returns when it is ready. AskedWrong when there is no such program, WorldFailed when it does not come up."""
        self._port, n = _free_port(), len(adapters)
        command = [str(program), "--host", "127.0.0.1", "--port", str(self._port), "--model", str(model), "--parallel", str(n)]
        command += ["--ctx-size", str(n * n_ctx), "--threads", str(threads), "--threads-batch", str(threads)]
        command += ["--lora-init-without-apply", *(word for path in adapters for word in ("--lora", str(path)))]
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        self._threads = ThreadPoolExecutor(n)
        try:
            self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        except OSError as error:
            self._log.close()
            raise AskedWrong("bad_arguments", f"{program} cannot be run: {error.strerror}.", "Give the path of a llama-server.") from error
        self._wait_until_ready()

    def ask_all(self, prompts: Sequence[Sequence[int]], n_tokens: int, seed: int = 1) -> Answers:
        """A prompt for each adapter, all at once."""
        started = time.perf_counter()
        asked = [self._threads.submit(self._ask, i, prompt, n_tokens, seed + i, started) for i, prompt in enumerate(prompts)]
        answers = tuple(one.result() for one in asked)
        return Answers(time.perf_counter() - started, answers)

    def _ask(self, npc: int, prompt: Sequence[int], n_tokens: int, seed: int, started: float) -> Answer:
        first_s: float | None = None
        tokens: list[int] = []
        text: list[str] = []
        for event in self._stream(_request(npc, prompt, n_tokens, seed)):
            if event.get("error"):
                raise WorldFailed("engine_failed", f"llama-server answered with an error: {event['error']}.")
            if first_s is None and (event.get("content") or event.get("tokens")):
                first_s = time.perf_counter() - started
            tokens += event.get("tokens") or []
            text.append(event.get("content") or "")
        return Answer(first_s if first_s is not None else time.perf_counter() - started, tuple(tokens), "".join(text))

    def _stream(self, request: dict[str, Any]) -> Any:
        """The events of a streamed completion."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=START_S)
        try:
            connection.request("POST", "/completion", json.dumps(request), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != http.HTTPStatus.OK:
                raise WorldFailed("engine_failed", f"llama-server answered {answer.status}: {answer.read().decode('utf-8', 'replace')}.")
            for line in answer:
                if line.startswith(b"data: {"):
                    yield json.loads(line[len(b"data: ") :])
        finally:
            connection.close()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if self._is_ready():
                return
            time.sleep(POLL_S)
        self._log.seek(0)
        said = self._log.read().decode("utf-8", "replace").strip().splitlines()
        self.close()
        raise WorldFailed("engine_failed", f"llama-server did not come up: {said[-1] if said else 'it said nothing'}.")

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=1.0)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False
        finally:
            connection.close()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._threads.shutdown()
        self._log.close()

    def __enter__(self) -> LlamaServer:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _request(npc: int, prompt: Sequence[int], n_tokens: int, seed: int) -> dict[str, Any]:
    return {
        "prompt": list(prompt),
        "n_predict": n_tokens,
        "lora": [{"id": npc, "scale": 1.0}],
        "id_slot": npc,
        "cache_prompt": True,
        "ignore_eos": True,
        "stream": True,
        "return_tokens": True,
        "seed": seed,
        **SAMPLING,
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
