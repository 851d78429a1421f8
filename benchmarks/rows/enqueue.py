"""Calls: many at once, and one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from celery import signals

from ..bench import Bench
from ..row import Row, Target
from ..statistics import median, timed

#: Single calls of one round.
CALLS = 100
PUBLISH = (signals.before_task_publish, signals.after_task_publish)


def bulk(bench: Bench) -> Iterator[Row]:
    bench.empty()
    blank, plain = bench.app.tasks["blank"], bench.app.tasks["plain"]
    fresh = count()

    def ours() -> float:
        jobs = [{"id": next(fresh), "payload": {"v": 1}} for _ in range(5000)]
        return timed(lambda: [blank.perform_async(jobs[n : n + 1000]) for n in range(0, 5000, 1000)], 5000)

    def celerys() -> float:
        return timed(lambda: [plain.apply_async((n,)) for n in range(CALLS)], CALLS)

    mine, theirs = _in_turn(bench.count(15, 5), ours, celerys)
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
    fresh = count()

    def ours() -> float:
        return timed(lambda: [blank.delay(next(fresh), {"v": 1}) for _ in range(CALLS)], CALLS)

    def celerys() -> float:
        return timed(lambda: [plain.delay({"v": 1}) for _ in range(CALLS)], CALLS)

    mine, theirs = _in_turn(bench.count(30, 10), ours, celerys)
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
    rounds: int, ours: Callable[[], float], other: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Both sides after each other in many short rounds, so that a slow moment of the machine meets both."""
    pairs = [(ours(), other()) for _ in range(rounds)]
    return [mine for mine, _ in pairs], [theirs for _, theirs in pairs]
