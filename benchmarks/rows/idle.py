"""What a worker costs that has nothing to do."""

from __future__ import annotations

import time
from collections.abc import Iterator

from ..bench import Bench
from ..proxy import Proxy
from ..row import Row, Side, Target
from ..worker import Worker

SETTLING = 3.0
SECONDS = 20.0


def idle(bench: Bench) -> Iterator[Row]:
    bench.empty()
    queue = bench.spec("idle")
    with (
        Proxy(bench.url) as proxy,
        Worker(bench, "idle", lowkiq_url=proxy.url) as worker,
        Worker(bench, "celery", name="plain") as plain,
    ):
        worker.until(lambda: all(bench.owned(queue)))
        time.sleep(SETTLING)
        workers = (worker, plain)
        trips, before = proxy.round_trips, [each.cpu_seconds() for each in workers]
        time.sleep(SECONDS)
        trips = proxy.round_trips - trips
        ours, celery = ((w.cpu_seconds() - b) / SECONDS * 100 for w, b in zip(workers, before, strict=True))
    yield Row(
        "idle-trips",
        "idle worker, 200 shards, 5 lanes: round trips, by a counting proxy",
        "1/s",
        trips / SECONDS,
        targets=(Target(5.0),),
        yardstick="nothing",
    )
    yield Row(
        "idle-cpu",
        "idle worker, 200 shards, 5 lanes: of a core, whole process",
        "%",
        ours,
        (Side("worker without ordered queues", celery),),
        (Target(2.0),),
        yardstick="machine",
    )
