"""Blank jobs through real workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..bench import Bench
from ..row import Row, Target
from ..statistics import median
from ..worker import celery_microseconds_a_job, microseconds_a_job


def _plain(bench: Bench) -> float:
    """Batch 1 is what other rows are held against, too."""
    return bench.once("blank", lambda: microseconds_a_job(bench, "blank", bench.count(20_000, 4_000)))


def batch_1(bench: Bench) -> Iterator[Row]:
    ours = [_plain(bench)]
    celery = [celery_microseconds_a_job(bench, bench.count(5_000, 1_000))]
    for _ in range(bench.count(2, 0)):
        ours.append(microseconds_a_job(bench, "blank", 20_000))
        celery.append(celery_microseconds_a_job(bench, 5_000))
    yield Row(
        "batch1",
        "process, batch 1, 5 lanes",
        "us/job",
        median(ours),
        median(celery),
        "Celery",
        (Target(40.0), Target(20.0, at_least=True, of_ratio=True)),
        speedup=True,
        yardstick="other",
        repeats=tuple(ours),
    )


def batch_100(bench: Bench) -> Iterator[Row]:
    ours = _several(bench, lambda: microseconds_a_job(bench, "hundreds", bench.count(100_000, 30_000)))
    yield Row(
        "batch100",
        "process, batch 100, 5 lanes",
        "us/job",
        median(ours),
        targets=(Target(8.0),),
        repeats=tuple(ours),
    )


def events(bench: Bench) -> Iterator[Row]:
    off = _plain(bench)
    on = _several(bench, lambda: microseconds_a_job(bench, "blank", bench.count(10_000, 3_000), "-E"))
    yield Row(
        "events",
        "process, batch 1, events on (-E)",
        "us/job",
        median(on),
        off,
        "events off",
        (Target(3.0, of_ratio=True),),
        repeats=tuple(on),
    )


def _several(bench: Bench, measure: Callable[[], float]) -> list[float]:
    return [measure() for _ in range(bench.count(3, 1))]
