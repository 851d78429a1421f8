"""Repairs a whole queue for an operator: lists its damage, then repairs shard after shard."""

from __future__ import annotations

from dataclasses import replace

from celery_lowkiq.rules.errors import ShardCountMismatch
from celery_lowkiq.rules.models import QueueSpec
from celery_lowkiq.rules.repairs import Condition, Damage, Repaired, counted, damages
from celery_lowkiq.store.jobs.registry import Registry
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.repairs.repairs import Repairs
from celery_lowkiq.store.scripts.progress import Progress, Tally


class QueueRepairs:
    """Repairs queues beside living workers.

    Every method may be repeated, and may raise StoreError and ShardCountMismatch.
    """

    def __init__(self, store: RedisStore) -> None:
        self._registry = Registry(store.client)
        self._repairs = Repairs(store.client)

    def damages(self, queue: QueueSpec) -> list[Damage]:
        """Return the damages of a queue. Changes nothing."""
        stored, conditions = self._examine(queue)
        found = [damage for condition in conditions for damage in damages(condition, queue.shards)]
        if stored != queue.shards:
            text = f"the registry says {stored} shards, the shards themselves say {queue.shards}"
            found.insert(0, Damage(None, text))
        return found

    def repair(self, queue: QueueSpec, progress: Progress | None = None) -> list[Repaired]:
        """Repair all damages. Return a report for each damaged shard.

        ``progress`` gets the number of repaired shards, and may raise Stop.
        """
        stored, conditions = self._examine(queue)
        registered = self._registry.register(queue, expected=str(stored))
        tally, done = Tally(progress), []
        for condition in conditions:
            if damages(condition, queue.shards):
                tally.begin()
                done.append(self._repairs.repair(queue, condition, registered))
                tally.add(1)
        return done

    def _examine(self, queue: QueueSpec) -> tuple[int, list[Condition]]:
        """Return the registered number of shards, and the shards' conditions.

        The registry may be wrong only when all shards that have a number contradict it.
        """
        (stored,) = self._registry.as_stored([queue])
        conditions = self._repairs.conditions(queue.shard_refs())
        if stored.shards != queue.shards:
            every = replace(queue, shards=max(stored.shards, queue.shards)).shard_refs()
            others = self._repairs.conditions(every[queue.shards :])
            if not counted(conditions, others, queue.shards):
                raise ShardCountMismatch(queue.name, stored.shards, queue.shards)
        return stored.shards, conditions
