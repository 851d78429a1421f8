"""How costs and memory grow with what waits. The store alone, without a worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any

from celery_lowkiq.rules.models import Call, Disposition, Lease, QueueSpec, Settlement

from .. import bare, sidekiq
from ..bench import PAYLOAD, Bench
from ..row import Row, Side, Target
from ..statistics import median, timed
from .process import CELERY, SIDEKIQ

SHARDS = 24
_requests = count(1)


def memory(bench: Bench) -> Iterator[Row]:
    blank, results, plain = (bench.app.tasks[name] for name in ("blank", "results", "plain"))
    jobs, calls = bench.count(50_000, 10_000), bench.count(10_000, 5_000)
    allocator = bench.direct.info("memory")["mem_allocator"]
    short, redis = [{"id": n, "payload": {"v": n}} for n in range(jobs)], bare.BareRedis(bench.url)
    blank.perform_async(short[:1])  # Redis compiles the script: 430 KB once.
    ours = _grown(bench, jobs, lambda: blank.perform_async(short))
    with sidekiq.client(bench) as client:
        others = (
            Side(SIDEKIQ, _grown(bench, jobs, partial(client.call, "bulk", jobs)) if client else None),
            Side(CELERY, _grown(bench, calls, lambda: [plain.delay({"v": n}) for n in range(calls)])),
            Side("Lowkiq", 579),
            Side(bare.NAME, _grown(bench, jobs, lambda: redis.push(jobs))),
        )
    text = f"memory of a waiting job, {jobs} in 5 shards, {allocator}"
    yield Row("memory", text, "bytes", ours, others, (Target(205.0),), yardstick="nothing")
    yield Row(
        "memory-results",
        f"memory of a waiting job, results on, {calls} by delay",
        "bytes",
        _grown(bench, calls, lambda: [results.delay(n, {"v": n}) for n in range(calls)]),
        yardstick="nothing",
    )


def _grown(bench: Bench, jobs: int, push: Callable[[], object]) -> float:
    """Bytes of a job, without the buffers of connections."""
    bench.empty()
    before = _used(bench)
    push()
    return (_used(bench) - before) / jobs


def _used(bench: Bench) -> int:
    memory: Any = bench.direct.info("memory")
    return int(memory["used_memory"] - memory["mem_clients_normal"])


def million(bench: Bench) -> Iterator[Row]:
    curve = bench.curves["length"] = costs_by_length(bench, [10_000, 100_000, 1_000_000])
    small, large = curve[0], curve[-1]
    for name, text in (("claim", "claim"), ("claim-settle", "claim and settle")):
        yield Row(
            f"million-{name}",
            f"1,000,000 waiting ids, 24 shards: {text}",
            "us",
            large[name],
            (Side("1,000 ids", small[name]),),
            (Target(1.3, "1,000 ids"),),
        )


def costs_by_length(bench: Bench, lengths: Sequence[int]) -> list[dict[str, float]]:
    """Median microseconds of a push, a claim, and both ends of a job, in batches of 1: with 1,000 waiting
    ids, then with each of the lengths. Measured in turn with the queue of 1,000, so that noise meets both.
    """
    bench.empty()
    small, large = QueueSpec("small", shards=SHARDS), QueueSpec("large", shards=SHARDS)
    bench.fill(small, 1000)
    small_leases, large_leases = acquire_all(bench, small), acquire_all(bench, large)
    found, base, filled = [], [], 0
    for length in lengths:
        bench.fill(large, length - filled, start=filled)
        filled = length
        for _ in range(20):
            base.append(_cycles(bench, small, small_leases))
            found.append({"length": float(length), **_cycles(bench, large, large_leases)})
    return [
        {"length": 1000.0, **_medians(base)},
        *(_medians([c for c in found if c["length"] == length]) for length in lengths),
    ]


def acquire_all(bench: Bench, queue: QueueSpec) -> list[Lease]:
    shards = queue.shard_refs()
    seen = bench.store.observe(shards)
    return [
        bench.store.acquire(queue, shard, "bench", state, 0)
        for shard, state in zip(shards, seen, strict=True)
    ]


def _medians(cycles: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: median([cycle[name] for cycle in cycles]) for name in cycles[0]}


def _cycles(bench: Bench, queue: QueueSpec, leases: Sequence[Lease]) -> dict[str, float]:
    """One job of each shard is claimed, settled, and pushed again; medians of the shards."""
    costs = []
    for lease in leases:
        began = time.perf_counter()
        claim = bench.store.claim(queue, lease, next(_requests))
        claimed = time.perf_counter()
        bench.store.settle(
            queue, lease, [Settlement(job.id, job.claim, Disposition.DONE) for job in claim.jobs]
        )
        settled = time.perf_counter()
        # Behind all others, so that each cycle meets another id.
        bench.store.push(queue, [Call(job.id, PAYLOAD) for job in claim.jobs])
        pushed = time.perf_counter()
        costs.append({"push": pushed - settled, "claim": claimed - began, "claim-settle": settled - began})
    return {name: median([cost[name] * 1e6 for cost in costs]) for name in costs[0]}


def payloads(bench: Bench) -> Iterator[Row]:
    bench.empty()
    queue = QueueSpec("long", shards=1)
    lengths = (100, 1_000, 10_000, bench.count(100_000, 20_000))
    fresh, filled, costs = count(1), 0, []
    for length in lengths:
        while filled < length:
            part = min(1000, length - filled)
            bench.store.push(queue, [_payload(next(fresh)) for _ in range(part)])
            filled += part
        singles = [timed(lambda: bench.store.push(queue, [_payload(next(fresh))])) for _ in range(200)]
        costs.append(median(singles))
        filled += len(singles)
    shown = ", ".join(f"{cost:.0f} at {length:,}" for length, cost in zip(lengths, costs, strict=True))
    yield Row(
        "payloads-push",
        f"push on an id with {lengths[-1]:,} payloads ({shown})",
        "us",
        costs[-1],
        (Side("100 payloads", costs[0]),),
        (Target(2.0, "100 payloads"),),
    )
    yield _claimed_in_steps(bench, queue, filled)


def _payload(number: int) -> Call:
    return Call("1", b"%d" % number)


def _claimed_in_steps(bench: Bench, queue: QueueSpec, filled: int) -> Row:
    """All payloads of the id, as a worker would take them."""
    (lease,) = acquire_all(bench, queue)
    steps, slowest = [], 0.0
    while True:
        began = time.perf_counter()
        claim = bench.store.claim(queue, lease, next(_requests))
        slowest = max(slowest, (time.perf_counter() - began) * 1000)
        if not claim.jobs:
            break
        steps.append(sum(len(job.payloads) for job in claim.jobs))
        bench.store.settle(
            queue, lease, [Settlement(job.id, job.claim, Disposition.DONE) for job in claim.jobs]
        )
    assert sum(steps) == filled, "payloads were lost"
    return Row(
        "payloads-claim",
        f"most payloads of one claim ({len(steps)} claims, slowest {slowest:.1f} ms)",
        "",
        max(steps),
        targets=(Target(1000.0),),
        yardstick="nothing",
    )
