"""Counts the cores a program may compute on. Knows no thread policy."""

from __future__ import annotations

import os
from pathlib import Path

TOPOLOGY = Path("/sys/devices/system/cpu")


def physical_cores() -> int:
    """Cores this process may use, two threads of one core counted once. Where the system does not tell: half the logical ones."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    try:
        siblings = {(TOPOLOGY / f"cpu{cpu}/topology/thread_siblings_list").read_text("ascii").strip() for cpu in usable}
    except OSError:
        return max(1, len(usable) // 2)
    return max(1, len(siblings))


def spare_cores() -> int:
    """All but one: the game needs it more than we do."""
    return max(1, physical_cores() - 1)
