"""Processes of other processes, and terminals for them: what tests of the command line look at. Linux tells it in /proc."""

from __future__ import annotations

import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE_S = 30.0


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "personae.cli.main", *arguments]


def run(*arguments: str, stdin: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    """`personae ...` to its end, with text on standard input."""
    return subprocess.run(command(*arguments), input=stdin, capture_output=True, text=True, encoding="utf-8", timeout=PATIENCE_S, **options)


def children(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").glob("*") for child in (task / "children").read_text().split()]


def family(pid: int) -> list[int]:
    """All that descend from it, those of its children included."""
    return [one for child in children(pid) for one in (child, *family(child))]


def wait_until_gone(pid: int) -> None:
    """By the system's own notice. One that has ended and that nobody has waited for counts as gone."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        assert poller.poll(PATIENCE_S * 1000), f"process {pid} is still there"
    finally:
        os.close(handle)


@contextmanager
def heard_interrupts() -> Iterator[None]:
    """What is started meanwhile does not inherit that SIGINT is ignored, as it is in whatever a shell has put into the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, arguments: list[str], *, columns: int, lines: int) -> None:
        import fcntl
        import pty
        import termios

        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        with heard_interrupts():
            self.process = subprocess.Popen(
                arguments, stdin=theirs, stdout=theirs, stderr=theirs, env={**environment, "TERM": "xterm-256color"}
            )
        os.close(theirs)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def read_until(self, text: str) -> str:
        """What has been shown since the last time, up to and with the text."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.shown:
            assert select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))[0], f"no {text!r} in {self.shown!r}"
            if not self._read():
                raise AssertionError(f"ended without {text!r}: {self.shown!r}")
        head, _text, self.shown = self.shown.partition(text)
        return head + text

    def interrupt_until(self, text: str) -> str:
        """Ctrl-C, as often as it takes: one that comes between a prompt and the read behind it is noticed with the next key only."""
        for _ in range(int(PATIENCE_S)):
            os.kill(self.process.pid, signal.SIGINT)
            while text not in self.shown and select.select([self._ours], [], [], 1.0)[0] and self._read():
                pass
            if text in self.shown:
                break
        return self.read_until(text)

    def wait(self) -> tuple[int, str]:
        """Exit code, and what was shown until the end."""
        while self._read():
            pass
        return self.process.wait(PATIENCE_S), self.shown

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def _read(self) -> bool:
        try:
            read = os.read(self._ours, 65_536)
        except OSError:  # the other end is closed
            return False
        self.shown += read.decode(errors="replace")
        return bool(read)


@contextmanager
def on_terminal(*arguments: str, columns: int = 80, lines: int = 24) -> Iterator[Terminal]:
    terminal = Terminal(command(*arguments), columns=columns, lines=lines)
    try:
        yield terminal
    finally:
        terminal.close()
