"""The service that a soak plays with: in a thread of this process, so that it can be watched, with its engine as a process of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from personae.cli.bench.soak.cast import Secrets
from personae.cli.bench.soak.failures import Failures
from personae.cli.bench.soak.playbill import Playbill
from personae.cli.bench.soak.watch import Watcher
from personae.config import ServiceConfig
from personae.engine.backend import Vocabulary
from personae.errors import WorldFailed
from personae.scheduler.actions import Action
from personae.scheduler.events import Event
from personae.service.app import Service
from personae.service.recorder import Record

START_S = 120.0
END_S = 30.0


class Inn:
    """One run of the service. What it records is at `config.record`."""

    def __init__(self, config: ServiceConfig, vocabulary: Vocabulary, secrets: Secrets, playbill: Playbill, failures: Failures) -> None:
        """Returns when it is warm. Raises what kept it from starting."""
        assert config.record is not None
        self.record: Path = config.record
        self._failures = failures
        self._lines: queue.SimpleQueue[dict[str, Any] | BaseException] = queue.SimpleQueue()
        self._watch: Watcher | None = None
        self._service = Service(config, announce=self._lines.put, witness=self)
        # The recorder has written its header: what the scheduler is told stands there.
        self._watch = Watcher(Record(config.record).header.config, vocabulary, secrets, playbill, failures)
        self._thread = threading.Thread(target=self._run, name="personae-service", daemon=True)
        self._thread.start()
        self._await("ready")
        self._await("warm")

    @property
    def endpoint(self) -> str:
        return self._service.endpoint

    @property
    def watcher(self) -> Watcher:
        assert self._watch is not None
        return self._watch

    def saw(self, event: Event, actions: Sequence[Action]) -> None:
        self.watcher.saw(event, actions)

    def stop(self) -> None:
        self._service.stop()
        self._thread.join(END_S)
        if self._thread.is_alive():
            self._failures.note(f"The service did not end within {END_S:.0f} s.")

    def _run(self) -> None:
        try:
            self._service.run()
        except BaseException as failure:
            self._failures.note(f"The service ended with {failure!r}.")
            self._lines.put(failure)

    def _await(self, event: str) -> None:
        try:
            line = self._lines.get(timeout=START_S)
        except queue.Empty:
            raise WorldFailed("engine_failed", f"The service was not {event} within {START_S:.0f} s.") from None
        if isinstance(line, BaseException):
            raise line
        assert line["event"] == event, line
