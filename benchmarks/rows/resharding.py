"""A queue with waiting jobs gets more shards, while calls go on. One command moves it; no worker runs."""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from celery_lowkiq.rules.models import Call, QueueSpec, ShardRef
from celery_lowkiq.rules.resharding import Phase
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.resharding import Migrations

from ..bench import PAYLOAD, Bench
from ..paced import CHUNK, LATER, new_jobs
from ..process import Process
from ..row import Row, Side, Target

#: Seconds between two looks at the shards, and once all can be claimed.
LOOK, LATE_LOOK = 0.002, 0.05
#: Calls a second of new ids, and the share of Redis's time that other work takes.
RATE, SHARE = 400.0, 0.4
#: Seconds in which the cost of other work is measured, and those in which it is alone.
CALIBRATION, ALONE = 3.0, 10.0


class Mover(Process):
    """``lowkiq reshard`` of one queue."""

    def __init__(self, bench: Bench, queue: QueueSpec, shards: int) -> None:
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.proj", "lowkiq", "reshard"]
        env = {"BENCH_SETTINGS": json.dumps(bench.settings), "PYTHONWARNINGS": "ignore"}
        super().__init__(bench, f"{queue.name}-mover", [*command, queue.name, str(shards)], env)


def lengths(bench: Bench, keys: Sequence[str]) -> list[int]:
    """The number of members of each sorted set."""
    pipe = bench.direct.pipeline(transaction=False)
    for key in keys:
        pipe.zcard(key)
    return [int(length) for length in pipe.execute()]


class OtherWork(Process):
    """Calls of another queue, at a steady rate."""

    def __init__(self, bench: Bench, queue: QueueSpec, rate: float) -> None:
        command = [sys.executable, "-m", "benchmarks.paced", queue.name, str(rate)]
        env = {"BENCH_SETTINGS": json.dumps(bench.settings), "PYTHONWARNINGS": "ignore"}
        super().__init__(bench, f"{queue.name}-paced", command, env)
        self._queue, self._rate = queue, rate
        self._begun_at, self._called = 0.0, 0

    def begin(self) -> None:
        """Look at the calls from now on."""
        self.until(lambda: self._calls() > 0)
        self._begun_at, self._called = time.perf_counter(), self._calls()

    def kept(self) -> float:
        """The part of the calls that was made since then, in %."""
        seconds = time.perf_counter() - self._begun_at
        return 100 * (self._calls() - self._called) / (seconds * self._rate * CHUNK)

    def _calls(self) -> int:
        return sum(lengths(self._bench, [shard_keys(shard)["due"] for shard in self._queue.shard_refs()]))


class Caller(threading.Thread):
    """Makes calls with new ids until it is stopped. Late calls are made at once."""

    def __init__(self, bench: Bench, queue: QueueSpec) -> None:
        super().__init__()
        self._bench, self._queue = bench, queue
        self._stopped = threading.Event()
        #: Seconds that each call took.
        self.took: list[float] = []

    def run(self) -> None:
        """Make the calls."""
        at = time.perf_counter()
        while not self._stopped.wait(max(0.0, at - time.perf_counter())):
            at += 1 / RATE
            began, due = time.perf_counter(), time.time() + LATER
            self._bench.store.push(self._queue, [Call(f"new {len(self.took)}", PAYLOAD, perform_in=due)])
            self.took.append(time.perf_counter() - began)

    def stop(self) -> None:
        """End the calls."""
        self._stopped.set()
        self.join()


def resharding(bench: Bench) -> Iterator[Row]:
    jobs = bench.count(50_000, 10_000)
    queue = _filled(bench, jobs)
    caller = Caller(bench, queue)
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
    with OtherWork(bench, other, _rate(bench, bench.spec("idle-02"))) as work:
        work.begin()
        time.sleep(ALONE)
        alone = work.kept()
        work.begin()
        _, whole = _moved(bench, queue, 96)
        kept = work.kept()
    text = "1,000,000 waiting jobs, 24 to 96 shards, beside other work"
    common: dict[str, Any] = {"yardstick": "machine"}
    yield Row("reshard-million", text, "s", whole, targets=(Target(120.0),), **common)
    target = Target(95.0, at_least=True)
    others = (Side("without a migration", alone),)
    yield Row("reshard-load", "of that work", "%", kept, others, (target,), more_is_better=True, **common)
    bench.empty()
    queue = QueueSpec("idle", shards=512)
    bench.fill(queue, 1)
    _, whole = _moved(bench, queue, 1024)
    text = "an idle queue, 512 to 1,024 shards"
    yield Row("reshard-idle", text, "s", whole, targets=(Target(5.0),), yardstick="machine")


def _rate(bench: Bench, queue: QueueSpec) -> float:
    """Calls a second that take their share of Redis's time."""
    numbers, calls = itertools.count(), 0
    began, used = time.perf_counter(), bench.redis_cpu()
    while time.perf_counter() - began < CALIBRATION:
        bench.store.push(queue, new_jobs(numbers))
        calls += 1
    return SHARE * calls / (bench.redis_cpu() - used)


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
            if claimable is None and all(lengths(bench, dues)):
                claimable = time.perf_counter() - began
            time.sleep(LATE_LOOK if claimable else LOOK)
        whole = time.perf_counter() - began
    return claimable or whole, whole
