"""Blank jobs through real workers."""

from __future__ import annotations

from collections.abc import Iterator

from ..bench import Bench
from ..row import Row, Target
from ..statistics import median
from ..worker import celery_microseconds_a_job, microseconds_a_job


def batch_1(bench: Bench) -> Iterator[Row]:
    ours, celery = [], []
    for _ in range(bench.count(3, 1)):
        ours.append(_blank(bench, bench.count(20_000, 4_000)))
        celery.append(celery_microseconds_a_job(bench, bench.count(5_000, 1_000)))
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
    count = bench.count(100_000, 30_000)
    ours = [microseconds_a_job(bench, "hundreds", count) for _ in range(bench.count(3, 1))]
    yield Row(
        "batch100",
        "process, batch 100, 5 lanes",
        "us/job",
        median(ours),
        targets=(Target(8.0),),
        repeats=tuple(ours),
    )


def events(bench: Bench) -> Iterator[Row]:
    count = bench.count(10_000, 3_000)
    off, on = [], []
    for _ in range(bench.count(3, 1)):
        off.append(_blank(bench, count))
        on.append(_blank(bench, count, "-E"))
    yield Row(
        "events",
        "process, batch 1, events on (-E)",
        "us/job",
        median(on),
        median(off),
        "events off",
        (Target(3.0, of_ratio=True),),
        repeats=tuple(on),
    )


def _blank(bench: Bench, count: int, *options: str) -> float:
    return microseconds_a_job(bench, "blank", count, *options)
