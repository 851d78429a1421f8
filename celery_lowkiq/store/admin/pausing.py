"""Pause and resume queues, shards and ids. Running jobs finish, new calls wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.validators import is_whole
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.keys import channel, queue_key, shard_keys
from celery_lowkiq.store.scripts.progress import Progress, Tally, by_shard
from celery_lowkiq.store.scripts.script import ScriptCall, Value, load

#: Most ids of one script.
STEP = 1000
#: Ids that are read from the caller before the scripts are sent.
PORTION = 10_000


class Pausing:
    """Pauses and resumes. Every method may raise StoreError, or the Stop of ``progress``; repeating it is
    safe and completes what was half done. A job runs when its queue, its shard and its id are not paused.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    # -- a queue

    def pause(self, queue: QueueSpec) -> bool:
        """Pause all shards of a queue, also those that it gets later. Whether this changed anything."""
        return self._switch(queue, wanted=True)

    def resume(self, queue: QueueSpec) -> bool:
        """Resume a queue; shards and ids that were paused by themselves stay so."""
        return self._switch(queue, wanted=False)

    def _switch(self, queue: QueueSpec, wanted: bool) -> bool:
        call = load("pause_queue").call({"queue": queue_key(queue.name)}, wanted=int(wanted))
        pause, since, changed, stored = self._client.call(call)
        told = self._client.all(
            [
                load("apply_queue_pause").call(
                    shard_keys(shard), pause=pause, since=since, **_announced(shard)
                )
                for shard in _shards(queue.name, max(queue.shards, int(stored)))
            ]
        )
        return bool(changed or any(told))

    # -- a shard

    def pause_shard(self, queue: QueueSpec, index: int) -> bool:
        """Pause one shard. Returns whether this changed anything. Raises InvalidCall."""
        return bool(self._client.call(load("pause_shard").call(shard_keys(_shard(queue, index)))))

    def resume_shard(self, queue: QueueSpec, index: int) -> bool:
        """Resume one shard; it stays paused while its queue is. Raises InvalidCall."""
        shard = _shard(queue, index)
        return bool(self._client.call(load("resume_shard").call(shard_keys(shard), **_announced(shard))))

    # -- ids

    def pause_ids(self, queue: QueueSpec, ids: Iterable[str], progress: Progress | None = None) -> int:
        """Pause ids, with or without jobs. Returns how many were not paused."""
        return self._each(
            queue, ids, lambda shard, part: load("pause_ids").call(shard_keys(shard), part), progress
        )

    def resume_ids(self, queue: QueueSpec, ids: Iterable[str], progress: Progress | None = None) -> int:
        """Resume ids: their jobs are due at their own time. Returns how many were paused."""
        return self._each(
            queue,
            ids,
            lambda shard, part: load("resume_ids").call(shard_keys(shard), part, **_announced(shard)),
            progress,
        )

    def _each(
        self,
        queue: QueueSpec,
        ids: Iterable[str],
        call: Callable[[ShardRef, list[Value]], ScriptCall],
        progress: Progress | None,
    ) -> int:
        tally, left = Tally(progress), iter(ids)
        while portion := list(islice(left, PORTION)):
            for shard, part in by_shard(queue, portion).items():
                for start in range(0, len(part), STEP):
                    tally.begin()
                    tally.add(self._client.call(call(shard, part[start : start + STEP])))
        return tally.count


def _shards(name: str, count: int) -> list[ShardRef]:
    return [ShardRef(name, index) for index in range(count)]


def _shard(queue: QueueSpec, index: int) -> ShardRef:
    if not is_whole(index, 0, queue.shards - 1):
        last = queue.shards - 1
        raise InvalidCall(f"shard={index!r} is invalid: expected 0 to {last}, the shards of {queue.name!r}")
    return ShardRef(queue.name, index)


def _announced(shard: ShardRef) -> dict[str, Any]:
    return {"channel": channel(shard.queue), "index": shard.index}
