"""Ctrl-C as a question that is asked now and then, while something goes on that it should end in good order. Knows not what that is."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class Interruption:
    """In a `with`, the first Ctrl-C sets `is_asked`; a second is KeyboardInterrupt, as everywhere else.

    The handler only sets a flag: it may run while the main thread holds any lock, that of a queue or an event included.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True
