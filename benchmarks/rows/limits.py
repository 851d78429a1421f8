"""The physical limit: the same Redis calls and the same tracer, in bare loops without a worker."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from celery.app.trace import build_tracer
from kombu.utils.uuid import uuid

from celery_lowkiq.rules.models import Disposition, Settlement

from ..bench import Bench
from ..row import Row
from ..statistics import median, timed
from .size import acquire_all


def limits(bench: Bench) -> Iterator[Row]:
    bench.empty()
    jobs = bench.count(3_000, 1_000)
    queue = bench.spec("blank")
    bench.fill(queue, 4 * jobs)
    (lease, *_) = acquire_all(bench, queue)
    request = count(1)

    def turn() -> None:
        claim = bench.store.claim(queue, lease, next(request))
        bench.store.settle(
            queue, lease, [Settlement(job.id, job.claim, Disposition.DONE) for job in claim.jobs]
        )

    jobs = min(jobs, 4 * jobs // queue.shards)
    bench.direct.config_resetstat()
    whole = timed(lambda: [turn() for _ in range(jobs)], jobs)
    scripts = bench.direct.info("commandstats")["cmdstat_evalsha"]
    yield Row("limit-redis", "a claim and a settle, one thread, no worker", "us/job", whole)
    yield Row("limit-scripts", "of this, the scripts in Redis", "us/job", scripts["usec"] / jobs)
    ping = median([timed(bench.store.client.servers.redis.ping) for _ in range(1000)])
    yield Row("limit-ping", "a round trip with PING, redis-py", "us", ping)
    yield Row("limit-tracer", "a bare task.__trace__", "us/job", _tracer(bench.app))


def _tracer(app: Any) -> float:
    task = app.tasks["plain"]
    task.__trace__ = build_tracer(task.name, task, app=app)
    rounds = 3000

    def turn() -> None:
        task_id = uuid()
        request = {"id": task_id, "task": task.name, "is_eager": False, "ignore_result": True}
        task.__trace__(task_id, (1,), {}, request)

    return median([timed(lambda: [turn() for _ in range(rounds)], rounds) for _ in range(3)])
