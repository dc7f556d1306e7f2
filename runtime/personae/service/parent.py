"""Decides one thing: whether the process that started us is gone. Knows nothing of what follows from it.

A pid alone may come to mean another process. Where the system gives a handle to a process (Linux, Windows) the handle is watched; elsewhere
(macOS) our own parent's pid changes when it dies, and a parent that is not ours is asked after with signal 0.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable

from personae.errors import AskedWrong

POLL_MS = 1_000


def watch_parent(pid: int) -> Callable[[], bool]:
    """A question to be asked now and then: is it gone? AskedWrong when there is no such process to begin with."""
    try:
        if sys.platform == "win32":
            return _watch_windows(pid)
        if hasattr(os, "pidfd_open"):
            return _watch_pidfd(pid)
        return _watch_pid(pid)
    except OSError as error:
        raise AskedWrong(
            "bad_arguments", f"There is no process {pid} to live as long as.", "--parent takes the pid of the running game."
        ) from error


def _watch_pidfd(pid: int) -> Callable[[], bool]:
    """Readable once the process has ended, even while nobody has waited for it yet."""
    poller = select.poll()
    poller.register(os.pidfd_open(pid), select.POLLIN)
    return lambda: bool(poller.poll(0))


def _watch_pid(pid: int) -> Callable[[], bool]:
    os.kill(pid, 0)
    if os.getppid() == pid:
        return lambda: os.getppid() != pid
    return lambda: not _is_there(pid)


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def _watch_windows(pid: int) -> Callable[[], bool]:
    """os.kill(pid, 0) would send Ctrl+C there. An open handle keeps the pid from being given to another process."""
    import ctypes

    synchronize, timed_out = 0x0010_0000, 0x102
    kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined, unused-ignore]
    kernel32.OpenProcess.restype = ctypes.c_void_p
    handle = kernel32.OpenProcess(synchronize, False, pid)
    if not handle:
        raise OSError(f"no process {pid}")
    return lambda: kernel32.WaitForSingleObject(ctypes.c_void_p(handle), 0) != timed_out
