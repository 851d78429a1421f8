"""A whole migration of a queue, from the first step to the last."""

from __future__ import annotations

import threading

from celery_lowkiq.rules.errors import InvalidCall, QueueMigrating
from celery_lowkiq.rules.layout import MAX_SHARDS, Layout
from celery_lowkiq.rules.models import QueueSpec
from celery_lowkiq.rules.validators import invalid, is_whole
from celery_lowkiq.store.jobs.registry import Registry
from celery_lowkiq.store.scripts.progress import Progress, Tally

from .migrations import Migrations
from .mover import Mover

#: Seconds between two looks at jobs in processing, which move when they have ended.
LOOK = 0.05


def reshard(mover: Mover, queue: QueueSpec, shards: int, progress: Progress | None = None) -> int:
    """Move a queue to another number of shards; return the number of jobs that were sorted here.

    Continues a migration to the same number that another process has begun. ``progress`` gets the number of
    jobs sorted so far, and may raise Stop: then the workers of the queue go on. Raises InvalidCall,
    QueueMigrating, FormatMismatch, StoreError.
    """
    if not is_whole(shards, 1, MAX_SHARDS):
        raise InvalidCall(invalid("shards", shards, f"a whole number from 1 to {MAX_SHARDS}"))
    migrations = Migrations(mover.client, queue.name)
    registry = Registry(mover.client)
    tally = Tally(progress)
    while (migration := migrations.read()) or registry.registered(queue).layout != Layout(shards):
        if migration is None:
            migrations.begin(shards)
            continue
        if migration.layout.shards != shards:
            raise QueueMigrating(queue.name, migration.layout)
        tally.begin()
        before = mover.sorted_jobs
        if not mover.turn():
            threading.Event().wait(LOOK)
        tally.add(mover.sorted_jobs - before)
    return tally.count
