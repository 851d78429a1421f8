"""A whole migration of a queue, from the first step to the last."""

from __future__ import annotations

import threading

from celery_lowkiq.rules.errors import InvalidCall, MigrationAborted, MigrationPaused, QueueMigrating
from celery_lowkiq.rules.models import MAX_SHARDS, Layout, QueueSpec
from celery_lowkiq.rules.validators import invalid, is_whole
from celery_lowkiq.store.client import Client
from celery_lowkiq.store.keys import ID_KEYS, shard_keys
from celery_lowkiq.store.mover import Migrations, Mover
from celery_lowkiq.store.progress import Progress, Tally
from celery_lowkiq.store.records import reads_replies
from celery_lowkiq.store.registry import registered

#: Seconds between two looks at jobs in processing, which move when they have ended.
LOOK = 0.05


def check_shards(shards: int) -> None:
    """Raise InvalidCall for an invalid number of shards."""
    if not is_whole(shards, 1, MAX_SHARDS):
        raise InvalidCall(invalid("shards", shards, f"a whole number from 1 to {MAX_SHARDS}"))


@reads_replies
def memory_of(client: Client, queue: QueueSpec) -> int:
    """Return the bytes of memory that Redis estimates for all ids of a queue. Raises StoreError."""
    keys = (shard_keys(shard)[name] for shard in queue.shard_refs() for name in sorted(ID_KEYS))
    return sum(
        size or 0 for size in client.commands([("MEMORY", "USAGE", key) for key in keys], readable=True)
    )


@reads_replies
def reshard(
    mover: Mover, queue: QueueSpec, shards: int, progress: Progress | None = None, movers: int = 1
) -> int:
    """Move a queue to another number of shards; return the number of jobs that were sorted here.

    Continues a migration to the same number that another process has begun. ``progress`` gets the number of
    jobs sorted so far, and may raise Stop: then the workers of the queue go on. ``movers``: the number of
    these workers, and one. Raises InvalidCall, QueueMigrating, MigrationPaused, MigrationAborted,
    FormatMismatch, StoreError.
    """
    check_shards(shards)
    migrations = Migrations(mover.client, queue.name)
    tally = Tally(progress)
    moves = False
    while (stored := migrations.stored()) or registered(mover.client, queue).layout != Layout(shards):
        if stored is None and not moves:
            moves = migrations.begin(shards)
            continue
        if stored is None or (moves and stored.migration.layout.shards != shards):
            raise MigrationAborted(queue.name, shards)
        moves, layout = True, stored.migration.layout
        if layout.shards != shards:
            raise QueueMigrating(queue.name, layout)
        if stored.is_paused:
            raise MigrationPaused(queue.name, layout)
        tally.begin()
        before = mover.sorted_jobs
        threading.Event().wait(mover.pause(movers) if mover.turn() else LOOK)
        tally.add(mover.sorted_jobs - before)
    return tally.count
