"""Calls: many at once, and one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

from celery import signals

from .. import bare, sidekiq
from ..bench import Bench
from ..cost import Cost, called, interleaved
from ..row import OURS, Row, Target
from .process import CELERY, SIDEKIQ

#: Single calls of one round, and calls of one bulk.
CALLS = 100
BULK = 1000
PUBLISH = (signals.before_task_publish, signals.after_task_publish)


def bulk(bench: Bench) -> Iterator[Row]:
    bench.empty()
    blank, plain = bench.app.tasks["blank"], bench.app.tasks["plain"]
    fresh, redis = count(), bare.BareRedis(bench.url)

    def ours() -> Cost:
        jobs = [[{"id": next(fresh), "payload": {"v": 1}} for _ in range(BULK)] for _ in range(5)]
        return called(bench, lambda: [blank.perform_async(part) for part in jobs], 5 * BULK)

    with sidekiq.client(bench) as client:
        sides = {
            OURS: ours,
            SIDEKIQ: partial(client.cost, "bulk", 5 * BULK) if client else None,
            CELERY: lambda: called(bench, lambda: [plain.apply_async((n,)) for n in range(CALLS)], CALLS),
            bare.NAME: lambda: bare.pushed(bench, redis, 5 * BULK, at_once=BULK),
        }
        costs = interleaved(bench.count(15, 5), sides)
    yield Row.of_costs(
        "bulk",
        "enqueue, perform_async of 1,000 (push_bulk, apply_async)",
        costs,
        Target(0.85, SIDEKIQ),
        Target(0.6, SIDEKIQ, cpu="client"),
        Target(1 / 40, CELERY),
    )


def delay(bench: Bench) -> Iterator[Row]:
    bench.empty()
    blank, plain, redis = bench.app.tasks["blank"], bench.app.tasks["plain"], bare.BareRedis(bench.url)
    fresh = count()
    with sidekiq.client(bench) as client:
        sides = {
            OURS: _calls(bench, lambda: blank.delay(next(fresh), {"v": 1})),
            "perform_async": _calls(
                bench, lambda: blank.perform_async([{"id": next(fresh), "payload": {"v": 1}}])
            ),
            SIDEKIQ: partial(client.cost, "single", CALLS) if client else None,
            CELERY: _calls(bench, lambda: plain.delay({"v": 1})),
            bare.NAME: lambda: bare.pushed(bench, redis, CALLS),
        }
        costs = interleaved(bench.count(30, 10), sides)
    targets = (Target(1.05, "perform_async"), Target(1.05, SIDEKIQ), Target(0.5, CELERY))
    yield Row.of_costs("delay", "enqueue, delay (one perform_async, delay)", costs, *targets)


def delay_with_receivers(bench: Bench) -> Iterator[Row]:
    bench.empty()
    blank, plain, fresh = bench.app.tasks["blank"], bench.app.tasks["plain"], count()
    sides = {
        OURS: _calls(bench, lambda: blank.delay(next(fresh), {"v": 1})),
        CELERY: _calls(bench, lambda: plain.delay({"v": 1})),
    }
    for signal in PUBLISH:
        signal.connect(_receiver)
    try:
        costs = interleaved(bench.count(30, 10), sides)
    finally:
        for signal in PUBLISH:
            signal.disconnect(_receiver)
    text = "enqueue, delay, receivers of publish signals"
    yield Row.of_costs("delay-signals", text, costs, Target(0.85, CELERY))


def _receiver(**_: Any) -> None:
    """An instrumentation of another package."""


def _calls(bench: Bench, call: Callable[[], object]) -> Callable[[], Cost]:
    return lambda: called(bench, lambda: [call() for _ in range(CALLS)], CALLS)


def from_asyncio(bench: Bench) -> Iterator[Row]:
    bench.empty()
    blank, plain, fresh = bench.app.tasks["blank"], bench.app.tasks["plain"], count()
    loop = asyncio.new_event_loop()

    async def one_by_one() -> None:
        for _ in range(CALLS):
            await blank.adelay(next(fresh), {"v": 1})

    async def together() -> None:
        await asyncio.gather(*(blank.adelay(next(fresh), {"v": 1}) for _ in range(CALLS)))

    async def in_threads() -> None:
        for _ in range(CALLS):
            await asyncio.to_thread(plain.delay, {"v": 1})

    def awaited(calls: Callable[[], Any]) -> Callable[[], Cost]:
        return lambda: called(bench, lambda: loop.run_until_complete(calls()), CALLS)

    sides = {
        OURS: awaited(one_by_one),
        "100 at once": awaited(together),
        "delay": _calls(bench, lambda: blank.delay(next(fresh), {"v": 1})),
        "Celery in threads": awaited(in_threads),
    }
    costs = interleaved(bench.count(30, 10), sides)
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    yield Row.of_costs("adelay", "enqueue from asyncio, adelay one after the other", costs)
