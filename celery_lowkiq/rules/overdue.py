"""Overdue runs: those that take longer than ``max_run``, or without it, far longer than is usual."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median_low

from .reports import Running
from .text import count_of, duration, format_job_ids

#: Without ``max_run``, a run is overdue after this many times the usual, and after SHORTEST s at least.
TIMES_USUAL = 10.0
SHORTEST = 60.0


def overdue_after(max_run: float | None, usual: float | None) -> float:
    """Return the seconds after which a run is overdue; ``usual``: of the queue's runs, None: not known."""
    return max(SHORTEST, TIMES_USUAL * (usual or 0.0)) if max_run is None else max_run


def usual_run(means: Iterable[float | None]) -> float | None:
    """Return the usual seconds of a queue's runs from the mean of each lane; None while no lane has one.

    The median: one lane that has just had a run that hung must not make the next one look usual.
    """
    return median_low(known) if (known := [mean for mean in means if mean is not None]) else None


def overdue_line(lane: str, run: Running, waiting: int | None, seconds: float | None = None) -> str:
    """Return the line about an overdue run; ``waiting``: due jobs that wait behind it, None: not known.

    ``seconds``: its duration by now, if that is not the one in the report.
    """
    jobs = f"{format_job_ids(run.ids, run.count)} of {run.shard.queue}"
    took = duration(run.seconds if seconds is None else seconds)
    behind = (
        f", {count_of(waiting, 'job')} {'waits' if waiting == 1 else 'wait'} behind it" if waiting else ""
    )
    return f"{lane} has run {jobs} for {took}, {expected(run)}{behind}"


def expected(run: Running) -> str:
    """Return what was expected of an overdue run: ``usual is 0.2 s``."""
    if run.max_run is not None:
        return f"max_run is {duration(run.max_run)}"
    if run.usual is None:
        return "no other run of its queue has ended on this node"
    short = f"{1000 * run.usual:.0f} ms" if run.usual < 0.1 else duration(run.usual)
    return f"usual is {short}"
