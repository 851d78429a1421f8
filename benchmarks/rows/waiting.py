"""An idle worker: how soon it starts what is pushed, and what becomes due."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

from celery_lowkiq.rules.models import NewJob

from ..bench import PAYLOAD, Bench
from ..row import Row, Target
from ..statistics import percentile
from ..worker import Worker


def latency(bench: Bench) -> Iterator[Row]:
    count = bench.count(500, 100)
    stamped, plain = bench.app.tasks["stamped"], bench.app.tasks["plain-stamp"]
    ours = _delays(bench, "stamped", lambda n: stamped.delay(n), count)
    celery = _delays(bench, "celery", lambda n: plain.delay(n), count)
    for name, percent, limit in (("latency-p50", 50, 2.0), ("latency-p99", 99, 10.0)):
        yield Row(
            name,
            f"idle worker, push to start, p{percent}",
            "ms",
            percentile(ours, percent),
            percentile(celery, percent),
            "Celery",
            (Target(limit),),
        )


def _delays(bench: Bench, queue: str, call: Callable[[int], object], count: int) -> list[float]:
    """Milliseconds from before the call to the start of the function, one call at a time."""
    bench.empty()
    pauses = random.Random(1)
    called = {}
    with Worker(bench, queue) as worker:
        call(-1)
        worker.until(lambda: "-1" in worker.started())
        for n in range(count):
            time.sleep(pauses.uniform(0.01, 0.03))
            called[str(n)] = time.monotonic()
            call(n)
        worker.until(lambda: len(worker.started()) > count)
        return [(worker.started()[n][0] - at) * 1000 for n, at in called.items()]


def lateness(bench: Bench) -> Iterator[Row]:
    count, seconds = bench.count(1000, 300), bench.count(10, 3)
    bench.empty()
    queue = bench.spec("stamped")
    with Worker(bench, "stamped") as worker:
        worker.until(lambda: all(bench.owned(queue)))
        begin = time.time() + 1.0
        due = {str(n): begin + n * seconds / count for n in range(count)}
        bench.store.push(queue, [NewJob(job, PAYLOAD, perform_in=at) for job, at in due.items()])
        worker.until(lambda: len(worker.started()) >= count)
        late = [(worker.started()[job][1] - at) * 1000 for job, at in due.items()]
    yield Row(
        "lateness",
        f"due to start, {count} jobs over {seconds} s, p99 (p50 {percentile(late, 50):.1f})",
        "ms",
        percentile(late, 99),
        targets=(Target(20.0),),
    )
