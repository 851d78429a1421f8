"""Repairs a whole queue for an operator: lists its damage, then repairs shard after shard."""

from __future__ import annotations

from dataclasses import replace

from celery_lowkiq.rules.models import QueueSpec
from celery_lowkiq.rules.repairs import Condition, Damage, Repaired, damages, said_count
from celery_lowkiq.store.jobs.registry import Registry
from celery_lowkiq.store.repairs.repairs import Repairs
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.progress import Progress, Tally
from celery_lowkiq.store.scripts.replies import reads_replies


@reads_replies
def queue_damages(client: Client, queue: QueueSpec) -> list[Damage]:
    """Return the damages of a queue. Changes nothing. Raises StoreError."""
    registered, found, conditions = _examine(client, queue)
    listed = [damage for condition in conditions for damage in damages(condition, found.layout)]
    if registered != found.shards:
        text = f"the registry says {registered} shards, the shards themselves say {found.shards}"
        listed.insert(0, Damage(None, text))
    return listed


@reads_replies
def repair_queue(client: Client, queue: QueueSpec, progress: Progress | None = None) -> list[Repaired]:
    """Repair all damages beside living workers. Return a report for each damaged shard.

    ``progress`` gets the number of repaired shards, and may raise Stop. May be repeated. Raises StoreError.
    """
    # What the queue's own key has lost of its last migration is known to the shards.
    registry = Registry(client)
    registry.registered(queue)
    count, queue, conditions = _examine(client, queue)
    registered = registry.register(queue, expected=str(count))
    tally, done = Tally(progress), []
    for condition in conditions:
        if damages(condition, queue.layout):
            tally.begin()
            done.append(Repairs(client).repair(queue, condition, registered))
            tally.add(1)
    return done


def _examine(client: Client, queue: QueueSpec) -> tuple[int, QueueSpec, list[Condition]]:
    """Return the registered number of shards, the queue with its true number, and their conditions.

    The registry is wrong only when all shards that have jobs contradict it.
    """
    (stored,) = Registry(client).as_stored([queue])
    repairs = Repairs(client)
    conditions = repairs.conditions(stored.shard_refs())
    said = said_count(conditions)
    if said and said != stored.shards:
        every = replace(queue, shards=max(stored.shards, said)).shard_refs()
        conditions += repairs.conditions(every[stored.shards :])
        if said_count(conditions) == said and not any(c.used for c in conditions[said:]):
            return stored.shards, replace(queue, shards=said), conditions[:said]
    return stored.shards, stored, conditions[: stored.shards]
