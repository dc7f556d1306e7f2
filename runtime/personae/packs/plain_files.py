"""Opens files of strangers for reading. Decides what may be opened at all: regular files. Knows neither packs nor codes of errors.

Reading a pipe may never come back, and merely opening a device may do something. What a file was a moment ago is no proof, since whoever
owns the folder can put another in its place: so it is looked at before, opened without waiting, and looked at again.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

_NO_WAITING = getattr(os, "O_NONBLOCK", 0)  # Windows has no pipes among its files


def open_plain(path: Path) -> BinaryIO | None:
    """None when it is no regular file. OSError; ValueError when there is a NUL in the path."""
    if not stat.S_ISREG(path.stat().st_mode):
        return None
    stream = open(path, "rb", opener=_without_waiting)  # noqa: SIM115  the caller closes it
    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        return stream
    stream.close()
    return None


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | _NO_WAITING)
