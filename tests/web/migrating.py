"""Migrations whose mover stands still, and the counts of Redis that the page must show."""

from __future__ import annotations

import re
from typing import NamedTuple

from celery import Celery

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.queue import OrderedQueue
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.resharding import Phase
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.resharding import Migrations, Mover

#: A row of the picture: its shards, and its jobs.
ROW = re.compile(r"Shards? </span>([\d-]+)</span>.*?<span class=\"num[^>]*>([\d,]+)</span></li>")


class Counts(NamedTuple):
    """Jobs to sort by former shard, and jobs by new shard."""

    left: dict[str, int]
    right: dict[str, int]


def begun(app: Celery, queue: OrderedQueue, shards: int) -> Mover:
    """Begin a migration; nobody else moves the queue."""
    store = context_of(app).store
    assert Migrations(store.client, queue.name).begin(shards)
    return store.mover(queue.spec)


def flipped(app: Celery, queue: OrderedQueue, shards: int) -> Mover:
    """Begin a migration whose mover stops when all shards are open."""
    mover = begun(app, queue, shards)
    while (state := queue.migration()) and state.phase is not Phase.MOVE:
        mover.turn()
    return mover


def in_redis(app: Celery, queue: OrderedQueue) -> Counts:
    """The counts after the flip, read key by key."""
    client, state = context_of(app).store.client.servers.redis, queue.migration()
    assert state

    def count(index: int, *names: str) -> int:
        keys = shard_keys(ShardRef(queue.name, index))
        return sum(client.zcard(keys[name]) for name in names)

    placed = ("due", "due_prioritized", "due_paused")
    left = {str(index): count(index, "moving") for index in range(state.former)}
    right = {
        str(index): count(index, *placed, *(() if index < state.former else ("moving",)))
        for index in range(state.shards)
    }
    return Counts(left, right)


def on_page(text: str) -> Counts:
    """The counts of a queue's page."""
    left, _, right = text.partition('id="moves-new"')
    return Counts(*(_rows(part) for part in (left, right)))


def _rows(text: str) -> dict[str, int]:
    return {shards: int(count.replace(",", "")) for shards, count in ROW.findall(text)}
