"""Tells how much memory a process holds. For `stats`; decides nothing."""

from __future__ import annotations

import os
from pathlib import Path


def resident_bytes(pid: int | None = None) -> int | None:
    """Resident set of a process, our own by default. None where the system does not tell (no /proc), or the process is gone."""
    try:
        pages = int(Path(f"/proc/{pid or os.getpid()}/statm").read_text("ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")
