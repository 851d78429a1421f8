"""A queue with waiting jobs gets more shards, while calls go on. One command moves it; no worker runs."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from celery_lowkiq.rules.models import NewJob, QueueSpec, ShardRef
from celery_lowkiq.rules.resharding import Phase
from celery_lowkiq.store.resharding.migrations import Migrations
from celery_lowkiq.store.scripts.keys import shard_keys

from ..bench import PAYLOAD, Bench
from ..process import Process
from ..row import Row, Target

#: Seconds until the jobs are due, so that none leaves meanwhile.
LATER = 1e6
#: Seconds between two looks at the shards.
LOOK = 0.002
#: Calls a second of new ids, and the share of Redis's time that other work takes.
RATE, SHARE = 400.0, 0.4
#: Jobs of a call of other work, and seconds in which its cost is measured.
CHUNK, CALIBRATION = 10, 3.0


class Mover(Process):
    """``lowkiq reshard`` of one queue."""

    def __init__(self, bench: Bench, queue: QueueSpec, shards: int) -> None:
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.proj", "lowkiq", "reshard"]
        env = {"BENCH_SETTINGS": json.dumps(bench.settings), "PYTHONWARNINGS": "ignore"}
        super().__init__(bench, f"{queue.name}-mover", [*command, queue.name, str(shards)], env)


class Caller(threading.Thread):
    """Makes ``rate`` calls a second with new ids until it is stopped. Late calls are made at once."""

    def __init__(self, bench: Bench, queue: QueueSpec, rate: float, chunk: int = 1) -> None:
        super().__init__()
        self._bench, self._queue, self._rate, self._chunk = bench, queue, rate, chunk
        self._stopped = threading.Event()
        self._seconds = 0.0
        #: Seconds that each call took.
        self.took: list[float] = []

    def run(self) -> None:
        """Make the calls."""
        at = began = time.perf_counter()
        while not self._stopped.wait(max(0.0, at - time.perf_counter())):
            at += 1 / self._rate
            self.call()
        self._seconds = time.perf_counter() - began

    def call(self) -> None:
        """Make one call."""
        first, began = len(self.took) * self._chunk, time.perf_counter()
        names = (f"new {number}" for number in range(first, first + self._chunk))
        due = time.time() + LATER
        self._bench.store.push(self._queue, [NewJob(name, PAYLOAD, perform_in=due) for name in names])
        self.took.append(time.perf_counter() - began)

    def stop(self) -> float:
        """End the calls. Return the part of them that was made in time."""
        self._stopped.set()
        self.join()
        return len(self.took) / (self._seconds * self._rate)


def resharding(bench: Bench) -> Iterator[Row]:
    jobs = bench.count(50_000, 10_000)
    queue = _filled(bench, jobs)
    caller = Caller(bench, queue, RATE)
    caller.start()
    try:
        claimable, whole = _moved(bench, queue, 48)
    finally:
        caller.stop()
    text = f"{jobs:,} waiting jobs, 24 to 48 shards"
    common: dict[str, Any] = {"yardstick": "machine"}
    slowest = max(caller.took) * 1000
    yield Row("reshard-push", f"{text}: longest call", "ms", slowest, targets=(Target(50.0),), **common)
    yield Row(
        "reshard-claim", f"{text}: all shards", "ms", claimable * 1000, targets=(Target(250.0),), **common
    )
    yield Row("reshard", f"{text}: all jobs", "s", whole, targets=(Target(3.0),), **common)


def many(bench: Bench) -> Iterator[Row]:
    queue, other = _filled(bench, 1_000_000), bench.spec("idle-01")
    caller = Caller(bench, other, _paced(bench, bench.spec("idle-02")), CHUNK)
    caller.start()
    try:
        _, whole = _moved(bench, queue, 96)
    finally:
        kept = caller.stop()
    text = "1,000,000 waiting jobs, 24 to 96 shards, beside other work"
    common: dict[str, Any] = {"yardstick": "machine"}
    yield Row("reshard-million", text, "s", whole, targets=(Target(120.0),), **common)
    target = Target(95.0, at_least=True)
    yield Row(
        "reshard-load", "of that work", "%", kept * 100, targets=(target,), more_is_better=True, **common
    )
    bench.empty()
    queue = QueueSpec("idle", shards=512)
    bench.fill(queue, 1)
    _, whole = _moved(bench, queue, 1024)
    text = "an idle queue, 512 to 1,024 shards"
    yield Row("reshard-idle", text, "s", whole, targets=(Target(5.0),), yardstick="machine")


def _paced(bench: Bench, queue: QueueSpec) -> float:
    """Calls a second that take their share of Redis's time."""
    caller = Caller(bench, queue, 1.0, CHUNK)
    began, used = time.perf_counter(), bench.redis_cpu()
    while time.perf_counter() - began < CALIBRATION:
        caller.call()
    return SHARE * len(caller.took) / (bench.redis_cpu() - used)


def _filled(bench: Bench, jobs: int) -> QueueSpec:
    bench.empty()
    queue = bench.spec("idle-00")
    bench.fill(queue, jobs, perform_in=time.time() + LATER)
    return queue


def _moved(bench: Bench, queue: QueueSpec, shards: int) -> tuple[float, float]:
    """Seconds from the first closed shard until each has a job that can be claimed when it is due, and until
    the end.
    """
    migrations = Migrations(bench.store.client, queue.name)
    dues = [shard_keys(ShardRef(queue.name, index))["due"] for index in range(shards)]
    with Mover(bench, queue, shards) as mover:
        mover.until(lambda: (found := migrations.read()) is not None and found.phase is not Phase.PREPARE)
        began = time.perf_counter()
        claimable = None
        while migrations.read() is not None:
            if claimable is None and all(_lengths(bench, dues)):
                claimable = time.perf_counter() - began
            time.sleep(LOOK)
        whole = time.perf_counter() - began
    return claimable or whole, whole


def _lengths(bench: Bench, keys: Sequence[str]) -> list[int]:
    pipe = bench.direct.pipeline(transaction=False)
    for key in keys:
        pipe.zcard(key)
    return [int(length) for length in pipe.execute()]
