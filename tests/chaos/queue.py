"""The run's queue, as an operator sees it: its leases, whether it is empty, and the keys that it has."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import redis

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.rules.errors import QueueMigrating, StoreUnavailable
from celery_lowkiq.rules.models import MAX_SHARDS, LeaseState, QueueSpec, ShardRef
from celery_lowkiq.rules.views import SPANS
from celery_lowkiq.store import registry
from celery_lowkiq.store.errors import ShardCountDiffers, store_error
from celery_lowkiq.store.keys import (
    failure_ranks_key,
    failures_key,
    history_key,
    nodes_key,
    queue_key,
    shard_keys,
)
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.resharding import Migrations

#: Seconds between two looks.
LOOK = 0.02
#: Keys of a shard that stay when it is empty: who has it, its counters, and who pushed lately.
STAYING = ("lease", "meta", "senders")


class Queue:
    """Asks Redis through the proxy, like everybody else in the run."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self._name = task.queue_spec.name
        self._store: RedisStore = context_of(task.app).store
        self._migrations = Migrations(self._store.client, self._name)

    def leases(self) -> list[LeaseState]:
        """Of all shards, in order."""
        return [lease or LeaseState() for lease in self._store.observe(self._spec().shard_refs())]

    def _spec(self) -> QueueSpec:
        """With the number of shards that it has now."""
        (stored,) = registry.as_stored(self._store.client, [self._task.queue_spec])
        return stored

    def reshard(self, shards: int) -> bool:
        """Begin a migration. False where that is not possible now; True also for the number that it has."""
        try:
            return shards == self._spec().shards or self._migrations.begin(shards)
        except StoreUnavailable:
            return False

    def is_moving(self, unknown: bool = False) -> bool:
        """Whether a migration is going on; ``unknown`` when Redis does not answer."""
        try:
            return self._migrations.read() is not None
        except StoreUnavailable:
            return unknown

    def empty(self) -> bool:
        """Whether nothing waits and nothing is in processing."""
        stats = self._task.ordered_queue.stats()
        return bool(stats.length == stats.busy == stats.morgue_length == 0)

    def requeue_held(self, mend: Callable[[int], object]) -> int:
        """Mend the payloads that hold ids, and requeue them; how many ids. 0 where that is not possible."""
        queue = self._task.ordered_queue
        try:
            ids = [one.id for one in queue.held_ids().items]
            for job_id in ids:
                dead = queue.job(job_id).dead
                for payload in dead.payloads if dead else ():
                    mend(payload.value)
            return int(queue.requeue(ids))
        except (StoreUnavailable, QueueMigrating, ShardCountDiffers):
            return 0

    def at_rest(self) -> bool:
        """Whether it is empty, and no job is moved."""
        return self.empty() and self._migrations.read() is None

    def make_due(self) -> int:
        """Make due what waits for a time that the clock of Redis had jumped to; how many jobs waited."""
        return int(self._task.ordered_queue.run_now_all())

    def shared_by(self, nodes: int, seconds: float) -> Callable[[], bool]:
        """A condition: ``nodes`` nodes have all the shards, and each has renewed each of its leases for
        ``seconds`` s of being looked at.
        """
        first: list[LeaseState] = []
        since = time.monotonic()

        def settled() -> bool:
            nonlocal first, since
            now = self.leases()
            owners = [lease.owner for lease in now]
            if owners != [lease.owner for lease in first] or not all(owners) or len(set(owners)) != nodes:
                first, since = now, time.monotonic()
                return False
            moved = all(a.counter != b.counter for a, b in zip(first, now, strict=True))
            return moved and time.monotonic() - since > seconds

        return settled

    def keys(self) -> set[str]:
        """Every key of the queue. The name in the pattern is of our own making."""
        client: Any = self._store.client
        if client.cluster is not None:
            nodes = [client.cluster.map.apart(address) for address in client.cluster.map.masters()]
        else:
            nodes = [client.servers.apart()]
        found: set[str] = set()
        try:
            for node in nodes:
                with node:
                    found |= {key.decode() for key in node.scan_iter(f"*{self._name}*", count=1000)}
        except redis.RedisError as error:
            raise store_error(error) from error
        return found

    def leftover(self) -> tuple[str, ...]:
        """Keys that an empty queue does not need."""
        of_queues = (queue_key, nodes_key, failures_key, failure_ranks_key)
        staying = {key_of(self._name) for key_of in of_queues}
        staying |= {history_key(self._name, span) for span in SPANS.values()}
        for index in range(MAX_SHARDS):
            keys = shard_keys(ShardRef(self._name, index))
            staying |= {keys[name] for name in STAYING}
        ours = {key for key in self.keys() if f"{{{self._name}" in key}
        return tuple(sorted(ours - staying))

    def delete(self) -> None:
        """Remove every key of the queue."""
        if keys := self.keys():
            self._store.client.commands([("DEL", key) for key in keys])


def wait_for(condition: Callable[[], bool], seconds: float) -> float | None:
    """Seconds until it became true while Redis answered; None when it did not within the time."""
    began_at = time.monotonic()
    while time.monotonic() - began_at < seconds:
        try:
            if condition():
                return time.monotonic() - began_at
        except StoreUnavailable:
            pass
        threading.Event().wait(LOOK)
    return None
