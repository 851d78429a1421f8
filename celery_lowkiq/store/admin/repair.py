"""Repairs a whole queue for an operator: lists its damage, then repairs shard after shard."""

from __future__ import annotations

from dataclasses import replace

from celery_lowkiq.rules.models import QueueSpec
from celery_lowkiq.rules.repairs import Condition, Damage, Repaired, damages, said_count
from celery_lowkiq.store.jobs.registry import Registry
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.repairs.repairs import Repairs
from celery_lowkiq.store.scripts.progress import Progress, Tally
from celery_lowkiq.store.scripts.replies import reads_replies


@reads_replies
class QueueRepairs:
    """Repairs queues beside living workers.

    Every method may be repeated, and may raise StoreError.
    """

    def __init__(self, store: RedisStore) -> None:
        self._registry = Registry(store.client)
        self._repairs = Repairs(store.client)

    def damages(self, queue: QueueSpec) -> list[Damage]:
        """Return the damages of a queue. Changes nothing."""
        registered, found, conditions = self._examine(queue)
        listed = [damage for condition in conditions for damage in damages(condition, found.layout)]
        if registered != found.shards:
            text = f"the registry says {registered} shards, the shards themselves say {found.shards}"
            listed.insert(0, Damage(None, text))
        return listed

    def repair(self, queue: QueueSpec, progress: Progress | None = None) -> list[Repaired]:
        """Repair all damages. Return a report for each damaged shard.

        ``progress`` gets the number of repaired shards, and may raise Stop.
        """
        # What the queue's own key has lost of its last migration is known to the shards.
        self._registry.registered(queue)
        count, queue, conditions = self._examine(queue)
        registered = self._registry.register(queue, expected=str(count))
        tally, done = Tally(progress), []
        for condition in conditions:
            if damages(condition, queue.layout):
                tally.begin()
                done.append(self._repairs.repair(queue, condition, registered))
                tally.add(1)
        return done

    def _examine(self, queue: QueueSpec) -> tuple[int, QueueSpec, list[Condition]]:
        """Return the registered number of shards, the queue with its true number, and their conditions.

        The registry is wrong only when all shards that have jobs contradict it.
        """
        (stored,) = self._registry.as_stored([queue])
        conditions = self._repairs.conditions(stored.shard_refs())
        said = said_count(conditions)
        if said and said != stored.shards:
            every = replace(queue, shards=max(stored.shards, said)).shard_refs()
            conditions += self._repairs.conditions(every[stored.shards :])
            if said_count(conditions) == said and not any(c.used for c in conditions[said:]):
                return stored.shards, replace(queue, shards=said), conditions[:said]
        return stored.shards, stored, conditions[: stored.shards]
