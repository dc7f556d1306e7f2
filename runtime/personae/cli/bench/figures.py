"""Turns measured times into the few figures that are reported. Knows what none of them means."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def paired_ratio(upper: Sequence[float], lower: Sequence[float]) -> float:
    """Median of upper[i] / lower[i]. The two of a pair were measured next to each other; the longer series is cut."""
    return statistics.median(a / b for a, b in zip(upper, lower, strict=False))


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]


def rounded(value: float, digits: int = 4) -> float:
    """To so many significant digits: what a report shows."""
    return float(f"{value:.{digits}g}")
