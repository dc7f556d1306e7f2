"""How many threads the engine may use now: as many as the machine has cores that nobody else is using.

A decode is as slow as its slowest thread, and on a core shared with a busy game that thread gets its turn late: two threads beside one
busy process on two cores are slower than one thread that has a core to itself, and they take more from the game. So what others use is
measured, and left to them. Knows no engine: the caller sets the number it is told.

Measured from the system's own accounts (/proc/stat: time not idle, less our own). Where there are none the number stays as it began.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_REVIEW_S = 0.5  # /proc/stat counts in ticks of 10 ms: 2 % of this
_SMOOTHING = 0.5  # of a new measurement; a game's load changes within a second or two
_STICKY = 0.1  # cores of others by which the load must pass the middle between two numbers before the number changes

TOPOLOGY = Path("/sys/devices/system/cpu")


def physical_cores() -> int:
    """Cores this process may use, two threads of one core counted once. Where the system does not tell: half the logical ones."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    try:
        siblings = {(TOPOLOGY / f"cpu{cpu}/topology/thread_siblings_list").read_text("ascii").strip() for cpu in usable}
    except OSError:
        return max(1, len(usable) // 2)
    return max(1, len(siblings))


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds of processor time since some beginning."""

    at_s: float
    all_s: float  # everybody's, this process included
    own_s: float


def read_usage(stat: Path = Path("/proc/stat")) -> Usage | None:
    """None where the system keeps no such account."""
    try:
        fields = stat.read_text("ascii").split("\n", 1)[0].split()[1:9]
    except (OSError, UnicodeDecodeError):
        return None
    if len(fields) < 8:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields)
    ticks = user + nice + system + irq + softirq + steal
    return Usage(time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), time.process_time())


class Team:
    """`size` is how many threads to use. `review` looks again, at most twice a second, and says when that has changed."""

    def __init__(self, fixed: int, cores: int, read: Callable[[], Usage | None] = read_usage) -> None:
        """`fixed` above 0: that many, always. Else between 1 and `cores`, beginning with all but one."""
        self.size = fixed or max(1, cores - 1)
        self.others = 0.0  # cores that others use, smoothed
        self._cores = cores
        self._read = read
        self._last = None if fixed else read()

    @property
    def follows_load(self) -> bool:
        return self._last is not None

    def review(self, now_s: float) -> bool:
        """True when `size` is another than before."""
        if self._last is None or now_s - self._last.at_s < _REVIEW_S:
            return False
        usage = self._read()
        if usage is None:
            return False
        others = max(0.0, (usage.all_s - self._last.all_s) - (usage.own_s - self._last.own_s)) / (usage.at_s - self._last.at_s)
        self._last = usage
        self.others += (others - self.others) * _SMOOTHING
        return self._resize()

    def _resize(self) -> bool:
        free = self._cores - self.others
        wanted = min(self._cores, max(1, round(free)))
        if wanted == self.size or abs(free - (wanted + self.size) / 2) < _STICKY:
            return False
        self.size = wanted
        return True
