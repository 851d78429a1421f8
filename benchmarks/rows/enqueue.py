"""Calls: many at once, and one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from celery import signals

from ..bench import Bench
from ..row import Row, Target
from ..statistics import median, timed

PUBLISH = (signals.before_task_publish, signals.after_task_publish)


def bulk(bench: Bench) -> Iterator[Row]:
    bench.empty()
    blank, plain = bench.app.tasks["blank"], bench.app.tasks["plain"]
    count, singles = bench.count(50_000, 10_000), bench.count(2_000, 500)
    jobs = [{"id": n, "payload": {"v": n}} for n in range(count)]

    def ours() -> None:
        for start in range(0, count, 1000):
            blank.perform_async(jobs[start : start + 1000])

    mine, theirs = _in_turn(
        bench,
        lambda: timed(ours, count),
        lambda: timed(lambda: [plain.apply_async((n,)) for n in range(singles)], singles),
    )
    yield Row(
        "bulk",
        "enqueue, perform_async of 1,000",
        "us/job",
        median(mine),
        median(theirs),
        "Celery apply_async",
        (Target(10.0), Target(40.0, at_least=True, of_ratio=True)),
        speedup=True,
        yardstick="other",
        repeats=tuple(mine),
    )


def delay(bench: Bench) -> Iterator[Row]:
    yield _delay(bench, "delay", "enqueue, delay, nobody listens to publish signals", 0.5)
    for signal in PUBLISH:
        signal.connect(_listener)
    try:
        yield _delay(bench, "delay-signals", "enqueue, delay, receivers of publish signals", 0.85)
    finally:
        for signal in PUBLISH:
            signal.disconnect(_listener)


def _listener(**_: Any) -> None:
    """Somebody's instrumentation."""


def _delay(bench: Bench, name: str, text: str, limit: float) -> Row:
    bench.empty()
    blank, plain = bench.app.tasks["blank"], bench.app.tasks["plain"]
    count = bench.count(3_000, 700)
    mine, theirs = _in_turn(
        bench,
        lambda: timed(lambda: [blank.delay(n, {"v": n}) for n in range(count)], count),
        lambda: timed(lambda: [plain.delay({"v": n}) for n in range(count)], count),
    )
    return Row(
        name,
        text,
        "us/job",
        median(mine),
        median(theirs),
        "Celery delay",
        (Target(limit, of_ratio=True),),
        yardstick="other",
        repeats=tuple(mine),
    )


def _in_turn(
    bench: Bench, ours: Callable[[], float], other: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Both sides after each other, several times, so that a slow moment of the machine meets both."""
    mine, theirs = [], []
    for _ in range(3):
        bench.empty()
        mine.append(ours())
        theirs.append(other())
    return mine, theirs
