"""``python -m benchmarks [--quick]``: costs per job, beside plain Celery's in the same run.

Machines differ and are noisy: compare rows of one run, not figures of two.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import redis
from celery import Celery

from celery_lowkiq import ordered_task
from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.integration.stores import home_of
from celery_lowkiq.rules.models import Fate, NewJob, QueueSpec, Verdict
from celery_lowkiq.store.store import RedisStore

PAYLOAD = b'{"v":1}'


def timed(action: Callable[[], object], jobs: int) -> float:
    """Microseconds a job."""
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) / jobs * 1e6


def fill(store: RedisStore, queue: QueueSpec, count: int) -> None:
    for start in range(0, count, 1000):
        store.push(queue, [NewJob(str(n), PAYLOAD, 1.0, 1.0) for n in range(start, min(start + 1000, count))])


def drain(store: RedisStore, queue: QueueSpec, batch: int, tasks: int) -> None:
    """Claim and settle everything, one shard after the other."""
    request = 0
    queue = replace(queue, batch_size=batch)
    for shard in queue.shard_refs():
        (seen,) = store.observe([shard])
        lease = store.acquire(queue, shard, f"bench-{time.monotonic()}", seen, 0)
        while True:
            request += 1
            claim = store.claim(queue, lease, request)
            if not claim.jobs:
                break
            store.settle(queue, lease, [Verdict(job.id, claim.number, Fate.DONE) for job in claim.jobs])
    assert sum(store.next_due([shard])[0].next_due is not None for shard in queue.shard_refs()) == tasks


def memory(client: redis.Redis) -> int:
    return int(client.info("memory")["used_memory"])


def store_rows(store: RedisStore, client: redis.Redis, count: int) -> dict[str, float]:
    """The store alone: no worker, no Celery."""
    rows: dict[str, float] = {}
    queue = QueueSpec("bench", shards=5)
    fill(store, queue, 10)
    drain(store, queue, 100, 0)
    before = memory(client)
    rows["store: push in bulk of 1,000 (us a job)"] = timed(lambda: fill(store, queue, count), count)
    rows["store: memory of a waiting job (bytes)"] = (memory(client) - before) / count
    rows["store: claim and settle 100 at a time (us a job)"] = timed(
        lambda: drain(store, queue, 100, 0), count
    )
    fill(store, queue, count // 10)
    rows["store: claim and settle one at a time (us a job)"] = timed(
        lambda: drain(store, queue, 1, 0), count // 10
    )
    long = [NewJob("long", b"%d" % n, float(n), 1.0) for n in range(1000)]
    store.push(queue, long)
    singles = count // 50
    rows["store: push on an id with 1,000 payloads (us)"] = timed(
        lambda: [store.push(queue, [NewJob("long", b"x%d" % n, float(n))]) for n in range(singles)], singles
    )
    return rows


def task_rows(app: Celery, client: redis.Redis, count: int) -> dict[str, float]:
    """Calls through Celery, and runs on lanes of a worker in this process."""
    rows: dict[str, float] = {}

    @app.task(shared=False, name="plain", ignore_result=True)
    def plain(value: int) -> None:
        done.release()

    @ordered_task(app=app, shared=False, name="ordered", shards=5, ignore_result=True)
    def ordered(payloads_by_id: dict[str, list[int]]) -> None:
        done.release()

    done = threading.Semaphore(0)
    singles = count // 10
    rows["celery: delay (us)"] = timed(lambda: [plain.delay(n) for n in range(singles)], singles)
    rows["ordered: delay (us)"] = timed(lambda: [ordered.delay(n) for n in range(singles)], singles)
    bulk = [{"id": n + singles, "payload": n} for n in range(count)]

    def push_in_bulk() -> None:
        for start in range(0, count, 1000):
            ordered.perform_async(bulk[start : start + 1000])

    rows["ordered: perform_async of 1,000 (us a job)"] = timed(push_in_bulk, count)
    del app.tasks["ordered"]  # a worker for the plain ones first
    rows["celery: process, 5 threads (us a job)"] = process(app, done, singles)
    app.tasks.register(ordered)
    rows["ordered: process, 5 lanes, batch 1 (us a job)"] = process(app, done, singles + count)
    assert home_of(app).queries.stats(ordered.queue_spec).length == 0
    return rows


def process(app: Celery, done: threading.Semaphore, count: int) -> float:
    from celery.contrib.testing.worker import start_worker

    with start_worker(app, pool="threads", concurrency=5, perform_ping_check=False, loglevel="WARNING"):
        done.acquire()  # the first one is running: the worker is up
        return timed(lambda: [done.acquire() for _ in range(count - 1)], count - 1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--quick", action="store_true", help="fewer jobs: under a minute")
    count = 5_000 if parser.parse_args().quick else 50_000
    with EmbeddedServer() as server:
        app = Celery("bench", broker=server.url, set_as_current=False)
        app.conf.worker_hijack_root_logger = False
        with redis.Redis(unix_socket_path=server.socket_path) as client:
            rows = store_rows(home_of(app).store, client, count)
            rows |= task_rows(app, client, count)
    for name, value in rows.items():
        print(f"{name:<55} {value:>10.1f}")
    for what in ("delay (us)", "process"):
        plain = next(value for name, value in rows.items() if name.startswith(f"celery: {what}"))
        ours = next(value for name, value in rows.items() if name.startswith(f"ordered: {what}"))
        print(f"{what.split(' ')[0] + ': plain Celery / ordered':<55} {plain / ours:>10.2f}")


if __name__ == "__main__":
    main()
