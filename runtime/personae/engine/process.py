"""The engine process: settings as JSON in argv[1], orders on stdin, results on stdout, log on stderr. Decides only when to end.

    EngineReady, EngineWarm, then results as orders are handled         the service closes stdin, or sends Quit: exit 0
    EngineFailed, before EngineReady: no engine; after it: our own bug  exit 3 (the model cannot be used) or 5 (anything else)

It ends with its parent, however that ended: end of file on stdin, or nobody to read its results. At the next order, that is, and ten
seconds later at the most, should it be loading a model or be stuck in native code. Ctrl-C at the terminal reaches the whole process
group; it is for the service to decide what that means, so it is ignored here.

File descriptor 1 is taken away from everybody else first: native code that prints must not get into the frames.
"""

from __future__ import annotations

import faulthandler
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import BinaryIO, cast

from personae.engine.backend import Backend
from personae.engine.batch import EngineFailed, EngineReady, EngineWarm, Order, Result
from personae.engine.factory import make_backend
from personae.engine.loop import EngineLoop
from personae.engine.pipe import read_orders, write_result
from personae.engine.settings import EngineSettings
from personae.errors import OurBug, PersonaeError, WorldFailed

EXIT_DONE = 0
EXIT_MODEL = 3
EXIT_FAILED = 5
_GRACE_S = 10.0  # between the parent's end and ours
_MODEL_CODES = ("model_missing", "model_unreadable")

_Inbox = queue.SimpleQueue[list[Order] | None]  # None: no more orders will come
_WAKE: list[Order] = []


def main() -> int:
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    orders, results = _take_pipes()
    inbox: _Inbox = queue.SimpleQueue()
    threading.Thread(target=_read_into, args=(orders, inbox), name="orders", daemon=True).start()
    emit = partial(write_result, results)
    try:
        settings = _settings(sys.argv[1:])
        backend = _start(settings, emit)
        _serve(EngineLoop(backend, emit, partial(inbox.put, _WAKE), settings.prefill_chunk), inbox)
    except BrokenPipeError:
        return EXIT_DONE
    except PersonaeError as error:
        if isinstance(error, OurBug):
            traceback.print_exc()
        return _fail(error, emit)
    except Exception as error:
        traceback.print_exc()
        return _fail(WorldFailed("engine_failed", f"The engine failed: {error!r}.", "The engine's log has the traceback."), emit)
    return EXIT_DONE


def _start(settings: EngineSettings, emit: Callable[[Result], None]) -> Backend:
    backend = make_backend(settings)
    emit(EngineReady(backend.card))
    started = time.perf_counter()
    backend.warm_up()
    emit(EngineWarm((time.perf_counter() - started) * 1e3))
    return backend


def _settings(arguments: list[str]) -> EngineSettings:
    try:
        (text,) = arguments
        return EngineSettings(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise WorldFailed(
            "engine_failed", f"The engine's settings cannot be read: {error}.", "They are one argument, a JSON object."
        ) from error


def _serve(loop: EngineLoop, inbox: _Inbox) -> None:
    while not loop.quitting and (orders := inbox.get()) is not None:
        loop.settle()
        for order in orders:
            loop.handle(order)
            loop.settle()
    loop.close()


def _read_into(orders: BinaryIO, inbox: _Inbox) -> None:
    """The reader thread. When stdin ends it tells the main thread, and after a while stops asking."""
    try:
        while True:
            inbox.put(read_orders(orders))
    except EOFError:
        pass
    except (WorldFailed, OSError) as error:
        print(f"engine: {error}", file=sys.stderr, flush=True)
    inbox.put(None)
    time.sleep(_GRACE_S)
    os._exit(EXIT_DONE)


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """(orders, results) as descriptors of our own; 0 reads nothing and 1 writes to the log from here on."""
    orders, results = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    # orders unbuffered: a thread that waits inside a BufferedReader can abort the interpreter's shutdown
    return cast(BinaryIO, os.fdopen(orders, "rb", buffering=0)), os.fdopen(results, "wb")


def _fail(error: PersonaeError, emit: Callable[[Result], None]) -> int:
    print(f"engine: {error}", file=sys.stderr, flush=True)
    try:
        emit(EngineFailed(error.code, error.message, error.hint))
    except BrokenPipeError:
        return EXIT_DONE
    return EXIT_MODEL if error.code in _MODEL_CODES else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
