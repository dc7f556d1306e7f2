"""A service of one's own: started as a process, spoken of by its endpoint, and ended whatever happens. Knows no client and no terminal.

- It does not get our Ctrl-C: whoever owns it decides what that means, and a service that drained by itself would take the replies along.
- It cannot outlive us: it watches our process (`--parent`), should we be killed before `close`.
- When it dies, its exit code and the last lines of its log say why.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from personae.errors import AskedWrong, PersonaeError, WorldFailed

READY_S = 180.0  # to load a model; a few gigabytes from a slow disk
WARM_S = 120.0  # to compute the first decode
DRAIN_S, INSISTED_S = 1.0, 3.0  # after the first and the second request to end; then it is killed
POST_MORTEM_S = 2.0  # how long a process that hung up may take to be gone, and its last lines to arrive
LAST_LINES = 12
OWN_GROUP: dict[str, Any] = (
    {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)} if os.name == "nt" else {"start_new_session": True}
)


class PrivateService:
    """`personae serve` as our child, on a port of its own choice. Use it in a `with`, or call `close`."""

    def __init__(self, arguments: Sequence[str] = ()) -> None:
        """Starts it and returns at once. `arguments`: more for `personae serve`."""
        usual = ["serve", "--port", "0", "--parent", str(os.getpid()), "--log-level", "warning"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "personae.cli.main", *usual, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            **OWN_GROUP,
        )
        self._announced: queue.Queue[dict[str, Any] | None] = queue.Queue()  # None: nothing more will come
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read_announcements, self._read_log)]
        for reader in self._readers:
            reader.start()
        self.endpoint = ""  # known once it is ready

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self, patience_s: float = READY_S) -> dict[str, Any]:
        """What it announced: model, mode, endpoint. Raises what kept it from starting."""
        ready = self._wait_for("ready", patience_s)
        self.endpoint = str(ready["endpoint"])
        return ready

    def wait_until_warm(self, patience_s: float = WARM_S) -> None:
        """From now on the first word comes as fast as any other."""
        self._wait_for("warm", patience_s)

    def check(self, patience_s: float = 0.0) -> None:
        """Raise when it has died. `patience_s`: how long to wait for that, for who has reason to believe it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
            raise self._cause_of_death()

    def close(self) -> None:
        """End it and wait for its end, a few seconds at the most. A second call is harmless."""
        try:
            for patience_s in (DRAIN_S, INSISTED_S):
                if self._process.poll() is None:
                    self._process.terminate()
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._process.wait(patience_s)
        finally:  # a second Ctrl-C, too
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()
            self._close_pipes()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # --- what it says -------------------------------------------------------------------------------------------------

    def _read_announcements(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):  # a library that prints is no announcement
                self._announced.put(json.loads(line))
        self._announced.put(None)

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._last_lines.append(line.rstrip())

    def _wait_for(self, event: str, patience_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + patience_s
        while True:
            try:
                line = self._announced.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise WorldFailed(
                    "service_lost", f"The service was not {event} within {patience_s:g} s.", "A smaller model, or another machine?"
                ) from None
            if line is None:
                self._announced.put(None)  # for whoever waits for the next event
                self._process.wait(POST_MORTEM_S)
                raise self._cause_of_death()
            if line.get("event") == event:
                return line

    def _close_pipes(self) -> None:
        """Closing a pipe that somebody reads would wait for him; an engine that is about to end may hold the log open a moment longer."""
        for reader, pipe in zip(self._readers, (self._process.stdout, self._process.stderr), strict=True):
            reader.join(POST_MORTEM_S)
            if pipe is not None and not reader.is_alive():
                pipe.close()

    # --- how it ended -------------------------------------------------------------------------------------------------

    def _cause_of_death(self) -> PersonaeError:
        """Its own words where it had any: its last line says what was wrong (PROTOCOL.md, section 10)."""
        self._readers[1].join(POST_MORTEM_S)
        code, lines = self._process.returncode, list(self._last_lines)
        complaint = next((line for line in reversed(lines) if line.startswith("personae")), None)
        if complaint is None or code in (0, 1) or code < 0:
            return WorldFailed("service_lost", f"The service ended unasked ({_exit_text(code)}).{_quoted(lines)}")
        return _refusal(code, complaint.partition(": ")[2])


def _refusal(code: int, complaint: str) -> PersonaeError:
    """The failure that gives us the exit code the service had."""
    if code == 3:
        return WorldFailed("model_unreadable", complaint)
    if code == 4:
        return AskedWrong("bad_arguments", complaint)
    if code == 5:
        return WorldFailed("engine_failed", complaint)
    return WorldFailed("service_lost", complaint)


def _exit_text(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _quoted(lines: list[str]) -> str:
    return " The last it wrote:" + "".join(f"\n  {line}" for line in lines) if lines else " It left no word."
