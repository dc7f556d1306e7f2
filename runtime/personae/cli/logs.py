"""Decides where log lines go: to standard error, through a queue that never blocks whoever logs.

A game that starts the service and does not read its standard error fills the pipe sooner or later; written directly, the next line would
then stop the service for good. Lines that find the queue full are dropped.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import sys
import threading

QUEUE_LINES = 1_000
FAREWELL_S = 0.5  # what the end of the program waits for last lines


class PatientHandler(logging.Handler):
    """Formats where the line was written, writes on a thread of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: queue.Queue[str | None] = queue.Queue(QUEUE_LINES)
        self._writer = threading.Thread(target=self._write, name="personae-log", daemon=True)
        self._writer.start()

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(self.format(record))

    def close(self) -> None:
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=FAREWELL_S)
        self._writer.join(FAREWELL_S)
        super().close()

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(line + "\n")
                sys.stderr.flush()


def log_to_stderr(level: str) -> PatientHandler:
    """Close the handler at the end of the program."""
    handler = PatientHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    return handler
