"""What all rows of a run share: the Redis, the app that calls, and how much is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.rules.models import Call, QueueSpec
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.redis_store import RedisStore

from . import proj

PAYLOAD = b'{"v":1}'
#: Bytes of an allocation for which malloc merges all that was freed.
LARGE_BLOCK = 100_000


class Bench:
    """One run. ``url`` is what clients and workers use; ``direct`` looks at Redis past any proxy."""

    def __init__(self, url: str, direct: redis.Redis, directory: Path, quick: bool) -> None:
        self.url = url
        self.direct = direct
        self.directory = directory
        self.quick = quick
        self.settings: dict[str, Any] = {"broker_url": url, "result_backend": url}
        self.app = proj.make_app(**self.settings)
        #: What the plot shows: points by the name of the curve.
        self.curves: dict[str, list[dict[str, float]]] = {}

    def count(self, full: int, quick: int) -> int:
        """The number of jobs or repeats: the second one for ``--quick``."""
        return quick if self.quick else full

    def empty(self) -> None:
        """Forget all jobs. The database is the bench's own: it refuses to run on one with keys."""
        self.direct.flushdb()

    @property
    def store(self) -> RedisStore:
        """The store that callers use."""
        return context_of(self.app).store

    def spec(self, task: str) -> QueueSpec:
        """The ordered queue of a task."""
        spec: QueueSpec = self.app.tasks[task].queue_spec
        return spec

    def fill(self, queue: QueueSpec, count: int, start: int = 0, perform_in: float | None = None) -> None:
        """Waiting jobs with the ids ``start`` to ``start + count - 1``."""
        jobs = (Call(str(n), PAYLOAD, perform_in=perform_in) for n in range(start, start + count))
        for chunk in _chunks(jobs, 5000):
            self.store.push(queue, chunk)

    def redis_cpu(self) -> float:
        """Processor time of Redis so far, in s."""
        used: Any = self.direct.info("cpu")
        return float(used["used_cpu_user"] + used["used_cpu_sys"])

    def longest_script(self, act: Callable[[], Any]) -> float:
        """Seconds of the longest script while it acts, as Redis counts them."""
        self.direct.config_set("slowlog-log-slower-than", 0)
        self.direct.config_set("slowlog-max-len", 100_000)
        self.direct.slowlog_reset()
        # glibc's malloc merges what the reset has freed when it next allocates a large block, which takes up
        # to 25 ms: in this command, not in the first script.
        self.direct.echo(b" " * LARGE_BLOCK)
        act()
        entries = self.direct.slowlog_get(100_000)
        self.direct.config_set("slowlog-log-slower-than", -1)
        return max(entry["duration"] for entry in entries if entry["command"].startswith(b"EVALSHA")) / 1e6

    def processed(self, queue: QueueSpec) -> int:
        """How many jobs the workers have settled as done."""
        return self._sum(queue, lambda pipe, keys: pipe.hget(keys["meta"], "processed"))

    def owned(self, queue: QueueSpec) -> list[str]:
        """Owners of the shards; a free one has "" for owner."""
        pipe = self.direct.pipeline(transaction=False)
        for shard in queue.shard_refs():
            pipe.hget(shard_keys(shard)["lease"], "owner")
        return [(owner or b"").decode() for owner in pipe.execute()]

    def is_dealt(self, queue: QueueSpec, nodes: int) -> bool:
        """Return whether ``nodes`` nodes share the shards evenly."""
        owners = self.owned(queue)
        counts = [owners.count(owner) for owner in set(owners)]
        return "" not in owners and len(counts) == nodes and min(counts) == queue.shards // nodes

    def _sum(self, queue: QueueSpec, ask: Callable[[Any, Any], Any]) -> int:
        pipe = self.direct.pipeline(transaction=False)
        for shard in queue.shard_refs():
            ask(pipe, shard_keys(shard))
        return sum(int(reply or 0) for reply in pipe.execute())


def _chunks(jobs: Iterator[Call], size: int) -> Iterator[list[Call]]:
    chunk: list[Call] = []
    for job in jobs:
        chunk.append(job)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
