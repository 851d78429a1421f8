"""An idle worker: how soon it starts what is pushed, and what becomes due."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from celery_lowkiq.rules.models import Call

from .. import bare, sidekiq
from ..bench import PAYLOAD, Bench
from ..process import Process
from ..row import OURS, Row, Side, Target
from ..statistics import percentile
from ..worker import Worker
from .process import CELERY, SIDEKIQ


@dataclass(frozen=True)
class Idle:
    """A worker that waits, and how to call it; the call returns when it began (monotonic, s)."""

    worker: Process
    call: Callable[[int], float]


def latency(bench: Bench) -> Iterator[Row]:
    bench.empty()
    with sidekiq.client(bench) as client, ExitStack() as stack:
        sides = _idle_sides(bench, client)
        for side in sides.values():
            if side:
                stack.enter_context(side.worker)
        delays = _delays({name: side for name, side in sides.items() if side}, bench.count(500, 100))
    for percent, targets in ((50, ()), (99, (Target(2.0),))):
        _, *others = (
            Side(name, percentile(delays[name], percent) if name in delays else None) for name in sides
        )
        yield Row(
            f"latency-p{percent}",
            f"idle worker, push to start, p{percent}",
            "ms",
            percentile(delays[OURS], percent),
            tuple(others),
            targets,
            yardstick="machine",
        )


def _idle_sides(bench: Bench, client: sidekiq.SidekiqClient | None) -> dict[str, Idle | None]:
    stamped, plain, redis = (
        bench.app.tasks["stamped"],
        bench.app.tasks["plain-stamp"],
        bare.BareRedis(bench.url),
    )
    return {
        OURS: Idle(Worker(bench, "stamped"), _timed(stamped.delay)),
        SIDEKIQ: Idle(sidekiq.SidekiqWorker(bench), client.stamped) if client else None,
        CELERY: Idle(Worker(bench, "celery"), _timed(plain.delay)),
        bare.NAME: Idle(bare.popper(bench), _timed(lambda n: redis.ask(("LPUSH", bare.NAME, n)))),
    }


def _timed(call: Callable[[int], object]) -> Callable[[int], float]:
    def made(n: int) -> float:
        began = time.monotonic()
        call(n)
        return began

    return made


def _delays(sides: Mapping[str, Idle], count: int) -> dict[str, list[float]]:
    """Milliseconds from a call to the start of its function, one call at a time, the sides in turn."""
    pauses = random.Random(1)
    called: dict[str, dict[str, float]] = {name: {} for name in sides}
    for side in sides.values():
        side.call(count)
        side.worker.until(lambda worker=side.worker: bool(worker.started()))  # type: ignore[misc]
    for n in range(count):
        for name, side in sides.items():
            time.sleep(pauses.uniform(0.01, 0.03))
            called[name][str(n)] = side.call(n)
    found = {}
    for name, side in sides.items():
        side.worker.until(lambda worker=side.worker: len(worker.started()) > count)  # type: ignore[misc]
        started = side.worker.started()
        found[name] = [(started[n][0] - at) * 1000 for n, at in called[name].items()]
    return found


def lateness(bench: Bench) -> Iterator[Row]:
    count, seconds = bench.count(1000, 300), bench.count(10, 3)
    bench.empty()
    queue = bench.spec("stamped")
    with Worker(bench, "stamped") as worker:
        worker.until(lambda: all(bench.owned(queue)))
        begin = time.time() + 1.0
        due = {str(n): begin + n * seconds / count for n in range(count)}
        bench.store.push(queue, [Call(job, PAYLOAD, perform_in=at) for job, at in due.items()])
        worker.until(lambda: len(worker.started()) >= count)
        late = [(worker.started()[job][1] - at) * 1000 for job, at in due.items()]
    yield Row(
        "lateness",
        f"due to start, {count} jobs over {seconds} s, p99 (p50 {percentile(late, 50):.1f})",
        "ms",
        percentile(late, 99),
        targets=(Target(20.0),),
    )
