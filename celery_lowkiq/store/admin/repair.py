"""The repair of a whole queue, as an operator asks for it: what is wrong, and then each shard in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from celery_lowkiq.rules.errors import ShardCountMismatch
from celery_lowkiq.rules.models import QueueSpec
from celery_lowkiq.rules.repairs import Condition, Damage, Repaired, counted, damages
from celery_lowkiq.store.jobs.registry import Registry
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.repairs.repairs import Repairs
from celery_lowkiq.store.scripts.progress import Progress, Tally


class QueueRepairs:
    """Beside living workers, and safe to repeat. Every method may raise StoreError and ShardCountMismatch."""

    def __init__(self, store: RedisStore) -> None:
        self._registry = Registry(store.client)
        self._repairs = Repairs(store.client)

    def damages(self, queue: QueueSpec) -> list[Damage]:
        """What is wrong with a queue. Changes nothing."""
        (stored,) = self._registry.as_stored([queue])
        conditions = self._repairs.conditions(queue.shard_refs())
        found = [damage for condition in conditions for damage in damages(condition, queue.shards)]
        if stored.shards != queue.shards:
            self._check(queue, stored, conditions)
            text = f"the registry says {stored.shards} shards, the shards themselves say {queue.shards}"
            found.insert(0, Damage(None, text))
        return found

    def repair(self, queue: QueueSpec, progress: Progress | None = None) -> list[Repaired]:
        """Repair all that is wrong, and say what was done of each shard. ``progress`` counts shards, and may
        raise Stop.
        """
        (stored,) = self._registry.as_stored([queue])
        conditions = self._repairs.conditions(queue.shard_refs())
        if stored.shards != queue.shards:
            self._check(queue, stored, conditions)
            known = self._registry.register(queue, expected=str(stored.shards))
        else:
            known = self._registry.register(queue)
        tally, done = Tally(progress), []
        for condition in conditions:
            if damages(condition, queue.shards):
                tally.begin()
                done.append(self._repairs.repair(queue, condition, known))
                tally.add(1)
        return done

    def _check(self, queue: QueueSpec, stored: QueueSpec, conditions: Sequence[Condition]) -> None:
        """The registry may be wrong only when all shards that say anything contradict it."""
        others = self._repairs.conditions(
            replace(queue, shards=max(stored.shards, queue.shards)).shard_refs()
        )
        if not counted(conditions, others[queue.shards :], queue.shards):
            raise ShardCountMismatch(queue.name, stored.shards, queue.shards)
