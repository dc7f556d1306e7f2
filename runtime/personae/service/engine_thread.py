"""An engine in a thread of the service's own process: the same loop as the child's, without a pipe. For tests, and for hosts that embed us.

What it gives up is the reason for the child: an abort in native code takes the service with it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence

from personae.engine.batch import EngineReady, EngineWarm, Order
from personae.engine.factory import make_backend
from personae.engine.loop import EngineLoop
from personae.engine.settings import EngineSettings
from personae.errors import PersonaeError
from personae.service.engine_host import EngineDied, Post


class EngineThread:
    pid = None

    def __init__(self, settings: EngineSettings, post: Post) -> None:
        self._settings = settings
        self._post = post
        self._orders: queue.SimpleQueue[Sequence[Order] | None] = queue.SimpleQueue()  # None: end
        self._thread = threading.Thread(target=self._run, name="personae-engine", daemon=True)
        self._thread.start()

    def send(self, orders: Sequence[Order]) -> None:
        self._orders.put(orders)

    def close(self, grace_s: float) -> None:
        """A thread cannot be ended by force: a step that is under way is waited for."""
        self._orders.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        death = EngineDied("it was told to end")
        try:
            self._work()
        except PersonaeError as error:
            death = EngineDied(error.message, error.code, error.hint)
        except Exception as error:  # as the child's process would end
            death = EngineDied(f"{type(error).__name__}: {error}")
        self._post(death)

    def _work(self) -> None:
        backend = make_backend(self._settings)
        loop = EngineLoop(backend, self._post, lambda: self._orders.put(()), self._settings.prefill_chunk)
        self._post(EngineReady(backend.card))
        started = time.perf_counter()
        backend.warm_up()
        self._post(EngineWarm((time.perf_counter() - started) * 1e3))
        while not loop.quitting and (orders := self._orders.get()) is not None:
            for order in orders:
                loop.handle(order)
            loop.settle()
        loop.close()
