"""What a cluster costs those who use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import redis

from celery_lowkiq.rules.claims import ClaimRequest, SettleRequest
from celery_lowkiq.rules.leases import LeaseWatch
from celery_lowkiq.rules.models import Call, Disposition, Lease, QueueSpec, Settlement
from celery_lowkiq.store.connect import connect_cluster
from celery_lowkiq.store.redis_store import RedisStore
from tests.clusters import running_cluster

from ..bench import PAYLOAD, Bench
from ..cost import Cost, called, interleaved
from ..row import OURS, Row, Target

ONE = "one server"


def cluster(bench: Bench) -> Iterator[Row]:
    bench.empty()
    with running_cluster() as servers:
        there = connect_cluster({"cluster": servers.addresses}, pool_size=4, pool_timeout=5.0)
        stores = {OURS: RedisStore(there), ONE: bench.store}
        used = {OURS: lambda: list(map(_cpu, servers.clients())), ONE: lambda: [_cpu(bench.direct)]}
        for batch, jobs in ((100, bench.count(20_000, 5_000)), (1, bench.count(2_000, 500))):
            queue = QueueSpec(f"batch-{batch}", shards=48, batch_size=batch)
            sides = {
                name: partial(_work, bench, _Owner(store, queue), jobs, used[name])
                for name, store in stores.items()
            }
            # A third would be as good as it gets: chance deals the shards.
            targets = [Target(1.15, ONE, cpu="client"), Target(0.5, ONE, cpu="redis")] if batch > 1 else []
            yield Row.of_costs(
                f"cluster-{batch}",
                f"claim and settle, batch {batch}, 48 shards on three masters (redis: the busiest)",
                interleaved(bench.count(9, 3), sides),
                *targets,
            )
        stores[OURS].close()


class _Owner:
    """Has all shards of a queue."""

    def __init__(self, store: RedisStore, queue: QueueSpec) -> None:
        self.store = store
        self.queue = queue
        self.requests = count(1)
        shards = queue.shard_refs()
        seen = zip(shards, store.observe(shards), strict=True)
        taken = store.acquire_all([LeaseWatch(queue, *each) for each in seen], "bench")
        self.leases = [lease for lease in taken if isinstance(lease, Lease)]

    def fill(self, jobs: int) -> None:
        self.store.push(self.queue, [Call(str(n), PAYLOAD) for n in range(jobs)])

    def work(self) -> None:
        """Claim and settle until nothing waits; a settle goes with the next claim."""
        for lease in self.leases:
            settle = None
            while True:
                wish = ClaimRequest(self.queue, lease, next(self.requests), None, suspects=False)
                _, claimed = self.store.exchange(settle, wish)
                jobs = getattr(claimed, "jobs", ())
                if not jobs:
                    break
                number = getattr(claimed, "number", 0)
                done = (Settlement(job.id, number, Disposition.DONE) for job in jobs)
                settle = SettleRequest(self.queue, lease, tuple(done))


def _cpu(client: redis.Redis) -> float:
    used: Any = client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])


def _work(bench: Bench, owner: _Owner, jobs: int, used: Callable[[], list[float]]) -> Cost:
    owner.fill(jobs)
    before = used()
    cost = called(bench, owner.work, jobs)
    busiest = max(after - first for first, after in zip(before, used(), strict=True))
    return replace(cost, redis=busiest / jobs * 1e6)
