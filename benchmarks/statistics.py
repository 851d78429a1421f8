"""Figures from samples."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import TypeAlias

__all__ = ["median", "middle_part", "percentile", "rate", "timed", "timings"]


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least ``percent`` percent of the values do not exceed (nearest rank)."""
    if not values:
        raise ValueError("no values")
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


#: A moment of a run: the time in s, the jobs done by then, and other figures that grow.
Sample: TypeAlias = Sequence[float]


def middle_part(progress: Sequence[Sample], low: float = 0.1, high: float = 0.9) -> list[float]:
    """The growth of each figure between the first sample with ``low`` of all jobs done and the first with
    ``high``, so that neither start nor end counts. Raises ValueError.
    """
    total = progress[-1][1] if progress else 0
    begin = next(sample for sample in progress if sample[1] >= low * total)
    end = next(sample for sample in progress if sample[1] >= high * total)
    if end[0] <= begin[0] or end[1] <= begin[1]:
        raise ValueError(f"too few jobs: all of {total:.0f} were done between two looks")
    return [after - before for before, after in zip(begin, end, strict=True)]


def rate(progress: Sequence[Sample], low: float = 0.1, high: float = 0.9) -> float:
    """Jobs a second in the middle part. Raises ValueError."""
    seconds, jobs, *_ = middle_part(progress, low, high)
    return jobs / seconds


def timed(action: Callable[[], object], jobs: int = 1) -> float:
    """Microseconds a job."""
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) / jobs * 1e6


def timings(actions: Sequence[Callable[[], object]]) -> list[float]:
    """Microseconds of each action."""
    return [timed(action) for action in actions]
