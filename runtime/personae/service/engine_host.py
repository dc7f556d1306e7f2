"""Decides how an engine comes to life, how its death is noticed, and when it is started again. Knows nothing of turns or clients.

The engine is a child process because native code aborts: that must cost the turns in flight and nothing else. Three threads stand around
its pipes, so that the service's loop never blocks on them: one writes orders, one reads results, one keeps the last lines it logged.
All that they learn is put into the inbox with the number of the life it came from; what a dead engine still said is thus told apart.

    starting -> ready -> warm           as the engine reports
       \\________\\________\\-> resting -> starting      it died: again after a pause that doubles
                              \\-> failed              it died too often too soon, or twice in a row of its model: given up

An engine hears the end of its standard input when the service dies, however that came about, and ends itself: no orphan.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import BinaryIO, Protocol, cast

from personae.engine.batch import EngineFailed, EngineReady, EngineWarm, Order, Result, RunStep, StepDone
from personae.engine.pipe import read_result, write_orders
from personae.engine.settings import EngineSettings

log = logging.getLogger("personae.engine")

STEADY_MS = 20_000  # an engine that lived this long since it was ready did not die of how it was started
HANG_MS = 120_000  # one step: the longest prefill chunk on the slowest machine takes seconds
GRACE_S = 2.0  # for an engine that was told to quit
LAST_LINES = 20
MOST_STILLBORN = 2  # in a row, while the model was being loaded: the next one would load the same file


@dataclass(frozen=True, slots=True)
class EngineDied:
    """The engine is gone. `reason` is one line for people: what it reported itself, or how it ended and the last it logged."""

    reason: str
    code: str = "engine_failed"  # of errors.py: `model_missing` and the like where the engine could tell
    hint: str = ""


Post = Callable[[Result | EngineDied], None]


class Engine(Protocol):
    """One life of an engine. It posts results from its own threads, and EngineDied exactly once, last."""

    @property
    def pid(self) -> int | None: ...

    def send(self, orders: Sequence[Order]) -> None:
        """Never blocks; orders to a dead engine go nowhere."""
        ...

    def close(self, grace_s: float) -> None:
        """End it: politely, then by force. Returns when it is gone; it still posts its death."""
        ...


StartEngine = Callable[[Post], Engine]


class EngineState(Enum):
    STARTING = "starting"
    READY = "ready"
    WARM = "warm"
    RESTING = "resting"
    FAILED = "failed"


class EngineHost:
    """Keeps an engine alive. Belongs to one thread; only the posts of its engines come from others, by way of the inbox.

    `wake` is called after each post. `take` hands out what came from the engine that lives now, and sees to its restart.
    """

    def __init__(
        self, start: StartEngine, wake: Callable[[], None], *, backoff_ms: tuple[int, int], restarts: int, model: str = ""
    ) -> None:
        """`restarts`: quick deaths in a row that are forgiven. `model`: the file, for people."""
        self._start = start
        self._wake = wake
        self._first_pause_ms, self._longest_pause_ms = backoff_ms
        self._most_quick_deaths = restarts
        self._model = os.path.basename(model)
        self._inbox: queue.SimpleQueue[tuple[int, Result | EngineDied]] = queue.SimpleQueue()
        self._engine: Engine | None = None
        self._life = 0
        self._quick_deaths = 0
        self._stillborn = 0  # in a row
        self._ready_ms: float | None = None
        self._restart_ms: float | None = None
        self._step_sent_ms: float | None = None
        self._condemned = False
        self.state = EngineState.STARTING
        self.last_reason = ""

    @property
    def restarts(self) -> int:
        """How many engines there were after the first."""
        return max(0, self._life - 1)

    @property
    def pid(self) -> int | None:
        return self._engine.pid if self._engine else None

    @property
    def can_speak(self) -> bool:
        return self.state in (EngineState.READY, EngineState.WARM)

    def start(self) -> None:
        self._life += 1
        self.state, self._restart_ms, self._ready_ms, self._step_sent_ms = EngineState.STARTING, None, None, None
        self._condemned = False
        life = self._life

        def post(result: Result | EngineDied) -> None:
            self._inbox.put((life, result))
            self._wake()

        try:
            self._engine = self._start(post)
        except OSError as error:  # no such interpreter, no memory to fork
            post(EngineDied(f"it could not be started: {error}"))

    def send(self, orders: Sequence[Order], at_ms: float) -> None:
        if not orders or self._engine is None:
            return
        self._engine.send(orders)
        if any(isinstance(order, RunStep) for order in orders):
            self._step_sent_ms = at_ms

    def take(self, at_ms: float) -> Iterator[Result | EngineDied]:
        """What the living engine reported since the last call."""
        while True:
            try:
                life, result = self._inbox.get_nowait()
            except queue.Empty:
                return
            if self._is_heard(life, result):
                self._note(result, at_ms)
                yield result

    def tick(self, at_ms: float) -> None:
        """Start the engine whose pause is over; end one that hangs."""
        if self._restart_ms is not None and at_ms >= self._restart_ms:
            log.info("starting the engine again")
            self.start()
        if self._step_sent_ms is not None and at_ms - self._step_sent_ms >= HANG_MS:
            log.error("the engine has not answered a step for %d s: ending it", HANG_MS // 1000)
            self.restart()

    def restart(self) -> None:
        """End the engine by force. Its death arrives like any other, and another is started."""
        self._step_sent_ms = None
        self._condemned = True
        if self._engine is not None:
            self._engine.close(0.0)

    def next_deadline_ms(self) -> float | None:
        if self._restart_ms is not None:
            return self._restart_ms
        return None if self._step_sent_ms is None else self._step_sent_ms + HANG_MS

    def close(self) -> None:
        engine, self._engine = self._engine, None
        self._restart_ms = None
        if engine is not None:
            engine.close(GRACE_S)

    def _is_heard(self, life: int, result: Result | EngineDied) -> bool:
        """Of an engine that was condemned only its death counts: its last results answer orders of books that are gone."""
        if life != self._life or self.state in (EngineState.RESTING, EngineState.FAILED):
            return False
        return not self._condemned or isinstance(result, EngineDied)

    def _note(self, result: Result | EngineDied, at_ms: float) -> None:
        match result:
            case StepDone():
                self._step_sent_ms = None
            case EngineReady():
                self.state, self._ready_ms, self._stillborn = EngineState.READY, at_ms, 0
            case EngineWarm():
                self.state = EngineState.WARM
            case EngineDied():
                self._bury(result, at_ms)

    def _bury(self, death: EngineDied, at_ms: float) -> None:
        log.error("the engine is gone: %s", death.reason)
        self._stillborn += self._died_of_its_model
        engine, self._engine, self._step_sent_ms = self._engine, None, None
        if engine is not None:
            engine.close(0.0)  # gone already: lets go of its pipes
        self.last_reason = death.reason
        was_steady = self._ready_ms is not None and at_ms - self._ready_ms >= STEADY_MS
        self._quick_deaths = 0 if was_steady else self._quick_deaths + 1
        if self._stillborn >= MOST_STILLBORN:
            self.last_reason = (
                f"the model {self._model!r} has ended the engine twice while it was being loaded; the last time {death.reason}"
            )
            self._give_up()
        elif self._quick_deaths > self._most_quick_deaths:
            self._give_up()
        else:
            self._rest(at_ms)

    @property
    def _died_of_its_model(self) -> bool:
        """It began to live and was never ready, and it was not we who ended it."""
        return self._engine is not None and self._ready_ms is None and not self._condemned

    def _give_up(self) -> None:
        log.error("the engine is given up: %s", self.last_reason)
        self.state = EngineState.FAILED

    def _rest(self, at_ms: float) -> None:
        self.state = EngineState.RESTING
        pause_ms = self._first_pause_ms * 2 ** max(0, self._quick_deaths - 1)
        self._restart_ms = at_ms + min(pause_ms, self._longest_pause_ms)


class EngineProcess:
    """An engine in a child process, on the other end of two pipes."""

    def __init__(self, settings: EngineSettings, environment: Mapping[str, str], post: Post) -> None:
        self._post = post
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "personae.engine.process", json.dumps(asdict(settings))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=engine_environment(settings.threads, {**os.environ, **environment}),
            # Ctrl+C in a terminal goes to the whole group: the service drains, and its engine must live until it has.
            start_new_session=sys.platform != "win32",
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        self._orders: queue.SimpleQueue[Sequence[Order] | None] = queue.SimpleQueue()
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._writer = _thread("personae-orders", self._write, cast(BinaryIO, self._process.stdin))
        self._logger = _thread("personae-engine-log", self._keep_log, cast(BinaryIO, self._process.stderr))
        self._reader = _thread("personae-results", self._read, cast(BinaryIO, self._process.stdout))

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, orders: Sequence[Order]) -> None:
        self._orders.put(orders)

    def close(self, grace_s: float) -> None:
        self._orders.put(None)  # closes its standard input, which ends it
        with contextlib.suppress(subprocess.TimeoutExpired):
            if grace_s > 0:
                self._process.wait(grace_s)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for thread in (self._writer, self._reader, self._logger):
            thread.join(GRACE_S)

    def _write(self, stdin: BinaryIO) -> None:
        """Blocks where the engine does not read; a dead one breaks the pipe, which its reader reports."""
        with contextlib.suppress(OSError, ValueError), stdin:
            while (orders := self._orders.get()) is not None:
                write_orders(stdin, orders)

    def _read(self, stdout: BinaryIO) -> None:
        last_word: EngineFailed | None = None
        try:
            with stdout:
                while True:
                    result = read_result(stdout)
                    if isinstance(result, EngineFailed):
                        last_word = result
                    else:
                        self._post(result)
        except (EOFError, ValueError):  # ValueError: closed from our side
            fault = ""
        except Exception as error:  # whatever stands in the pipe: this engine can no longer be understood
            fault = f"its results cannot be read ({type(error).__name__}: {error})"
            self._process.kill()
        ending = self._ending(fault)
        self._post(EngineDied(last_word.message.rstrip("."), last_word.code, last_word.hint) if last_word else EngineDied(ending))

    def _ending(self, fault: str) -> str:
        """Its output has ended: give it a moment to end too, and to say why."""
        try:
            code = self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._orders.put(None)
        self._logger.join(GRACE_S)
        said = self._last_lines[-1] if self._last_lines else ""
        return "; ".join(part for part in (fault, _ended_with(code), said) if part)

    def _keep_log(self, stderr: BinaryIO) -> None:
        with contextlib.suppress(OSError, ValueError), stderr:
            for line in stderr:
                text = line.decode("utf-8", "replace").rstrip()
                if text:
                    self._last_lines.append(text)
                    log.info("%s", text)


def engine_environment(threads: int, environment: Mapping[str, str]) -> dict[str, str]:
    """What must stand in the environment before libgomp is loaded.

    GOMP_SPINCOUNT=1000: threads that wait spin for a moment, then sleep. The default spins for as long as it takes, and beside a busy game
    a step of 90 ms then takes seconds; OMP_WAIT_POLICY=PASSIVE never spins and pays a wake-up for each graph node. Measured for eight
    rows, quiet / beside one busy process: default 53 / 263 ms, passive 71 / 199, 1000 61 / 161. Whoever set either knows better.
    """
    ours = dict(environment)
    if "OMP_WAIT_POLICY" not in ours and "GOMP_SPINCOUNT" not in ours:
        ours["GOMP_SPINCOUNT"] = "1000"
    if threads:
        ours.setdefault("OMP_NUM_THREADS", str(threads))
    ours["PYTHONUTF8"] = "1"  # paths and logs are UTF-8 whatever the locale
    return ours


def _ended_with(code: int) -> str:
    if code < 0:
        return f"it was ended by signal {-code}"
    return f"it ended with code {code}"


def _thread(name: str, work: Callable[[BinaryIO], None], stream: BinaryIO) -> threading.Thread:
    thread = threading.Thread(target=work, args=(stream,), name=name, daemon=True)
    thread.start()
    return thread
