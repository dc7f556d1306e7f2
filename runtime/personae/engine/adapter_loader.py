"""Which adapters are in memory, and the thread that reads the files. Knows no turn: who may free what is the loop's to say.

Reading, checking and converting happen beside a decode; installing happens between two, when the loop calls `settle`. One answer,
AdapterLoaded or AdapterRefused, may serve several orders for the same key. Whatever a file does to the reader, it gets its answer and
the thread lives.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from personae.engine.backend import Backend, PreparedAdapter
from personae.engine.batch import AdapterLoaded, AdapterRefused, LoadAdapter, Result
from personae.errors import AskedWrong, PersonaeError, WorldFailed
from personae.types import AdapterKey

_LOADER_NICE = 10  # the share of a core that a decode's thread leaves it is about a tenth


@dataclass(frozen=True, slots=True)
class _Read:
    """What the loader thread has ready."""

    key: AdapterKey
    adapter: PreparedAdapter | PersonaeError
    ms: float


class AdapterLoader:
    """`wake` is called on the reading thread when something is ready for `settle`."""

    def __init__(self, backend: Backend, emit: Callable[[Result], None], wake: Callable[[], None]) -> None:
        self._backend = backend
        self._emit = emit
        self._wake = wake
        self._resident: dict[AdapterKey, AdapterLoaded] = {}
        self._loading: set[AdapterKey] = set()
        self._to_read: queue.SimpleQueue[LoadAdapter | None] = queue.SimpleQueue()
        self._read: queue.SimpleQueue[_Read] = queue.SimpleQueue()
        self._loader: threading.Thread | None = None

    def settle(self, block: bool) -> None:
        """Install what has been read meanwhile. `block`: wait for all that is still being read."""
        while self._loading and (block or not self._read.empty()):
            self._install(self._read.get())

    def close(self) -> None:
        """A file that is still being read is not waited for."""
        self._to_read.put(None)

    def load(self, order: LoadAdapter) -> None:
        if order.key in self._resident:
            self._emit(self._resident[order.key])
        elif order.key not in self._loading:
            self._loading.add(order.key)
            self._start_loader()
            self._to_read.put(order)

    def free(self, key: AdapterKey) -> None:
        """A load that is still under way is not recalled: its AdapterLoaded, later than this, tells the truth."""
        if self._resident.pop(key, None):
            self._backend.free_adapter(key)

    def _install(self, read: _Read) -> None:
        self._loading.discard(read.key)
        if isinstance(read.adapter, PersonaeError):
            self._refuse(read.key, read.adapter)
            return
        try:
            self._backend.install_adapter(read.key, read.adapter)
        except (AskedWrong, WorldFailed) as error:
            self._refuse(read.key, error)
            return
        loaded = AdapterLoaded(read.key, read.adapter.bytes_resident, read.adapter.rank, read.ms, read.adapter.warnings)
        self._resident[read.key] = loaded
        self._emit(loaded)

    def _refuse(self, key: AdapterKey, error: PersonaeError) -> None:
        self._emit(AdapterRefused(key, error.code, error.message, error.hint))

    def _start_loader(self) -> None:
        if self._loader is None:
            self._loader = threading.Thread(target=self._read_adapters, name="adapter-loader", daemon=True)
            self._loader.start()

    def _read_adapters(self) -> None:
        """The loader thread. It touches nothing of the loop but the two queues, and stands back for the decode beside it."""
        if sys.platform == "linux":  # where a thread has a priority of its own; a step must not wait for a file
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOADER_NICE)
        while order := self._to_read.get():
            started = time.perf_counter()
            adapter = self._prepared(order)
            self._read.put(_Read(order.key, adapter, (time.perf_counter() - started) * 1e3))
            self._wake()

    def _prepared(self, order: LoadAdapter) -> PreparedAdapter | PersonaeError:
        try:
            return self._backend.prepare_adapter(order.key, order.path)
        except PersonaeError as error:
            return error
        except FileNotFoundError:
            return AskedWrong("adapter_missing", f"Adapter '{order.path}' is not there.", "Check the path in the pack's manifest.")
        except OSError as error:
            return WorldFailed("adapter_unreadable", f"Adapter '{order.path}' cannot be read: {error.strerror or error}.")
        except Exception as error:  # a file must never end the loader, and every order gets an answer
            return WorldFailed("internal", f"Adapter '{order.path}' could not be prepared: {error!r}.", "Please report this with the file.")
