"""Pause and resume queues, shards and ids. Running jobs finish, new calls wait."""

from __future__ import annotations

from collections.abc import Iterable

from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.validators import is_whole
from celery_lowkiq.store.jobs.registry import parse_layout
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.keys import announcement, queue_key, shard_keys
from celery_lowkiq.store.scripts.progress import Progress
from celery_lowkiq.store.scripts.replies import reads_replies
from celery_lowkiq.store.scripts.script import Script, ScriptCall, Value, load

from .actions import for_each_id


@reads_replies
class Pausing:
    """Pauses and resumes. A job runs when its queue, its shard and its id are not paused.

    Every method may raise StoreError, or the Stop of ``progress``; repeating it is safe and completes what
    was interrupted.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    # -- a queue

    def pause(self, queue: QueueSpec) -> bool:
        """Pause all shards of a queue, also later ones. Return whether this changed anything."""
        return self._switch(queue, wanted=True)

    def resume(self, queue: QueueSpec) -> bool:
        """Resume a queue; its shards and ids stay paused if they were paused by themselves."""
        return self._switch(queue, wanted=False)

    def _switch(self, queue: QueueSpec, wanted: bool) -> bool:
        call = load("pause_queue").call({"queue": queue_key(queue.name)}, wanted=int(wanted))
        pause, since, changed, stored = self._client.call(call)
        layout = parse_layout(stored)
        count = max(queue.shards, layout.count if layout else 0)
        script = load("apply_queue_pause")
        applied = self._client.all(
            [
                script.call(shard_keys(shard), pause=pause, since=since, **announcement(shard))
                for shard in (ShardRef(queue.name, index) for index in range(count))
            ]
        )
        return bool(changed or any(applied))

    # -- a shard

    def pause_shard(self, queue: QueueSpec, index: int) -> bool:
        """Pause one shard. Return whether this changed anything. Raises InvalidCall."""
        return self._switch_shard(queue, index, wanted=True)

    def resume_shard(self, queue: QueueSpec, index: int) -> bool:
        """Resume one shard; it stays paused while its queue is. Raises InvalidCall."""
        return self._switch_shard(queue, index, wanted=False)

    def _switch_shard(self, queue: QueueSpec, index: int, wanted: bool) -> bool:
        last = queue.shards - 1
        if not is_whole(index, 0, last):
            raise InvalidCall(
                f"shard={index!r} is invalid: expected 0 to {last}, the shards of {queue.name!r}"
            )
        shard = ShardRef(queue.name, index)
        call = load("pause_shard").call(shard_keys(shard), wanted=int(wanted), **announcement(shard))
        return bool(self._client.call(call))

    # -- ids

    def pause_ids(self, queue: QueueSpec, ids: Iterable[str], progress: Progress | None = None) -> int:
        """Pause ids, with or without jobs. Return the number of those that were not paused."""
        return self._switch_ids(load("pause_ids"), queue, ids, progress, wanted=True)

    def resume_ids(self, queue: QueueSpec, ids: Iterable[str], progress: Progress | None = None) -> int:
        """Resume ids: their jobs are due at their own time. Return the number of those that were paused."""
        return self._switch_ids(load("pause_ids"), queue, ids, progress, wanted=False)

    def hold(self, queue: QueueSpec, ids: Iterable[str], progress: Progress | None = None) -> int:
        """Let dead payloads hold their ids. Return the number of ids that have some and were not held."""
        return self._switch_ids(load("hold_ids"), queue, ids, progress, wanted=True)

    def go_on(self, queue: QueueSpec, ids: Iterable[str], progress: Progress | None = None) -> int:
        """Let held ids go on; what is dead stays in the morgue. Return the number of those that were held."""
        return self._switch_ids(load("hold_ids"), queue, ids, progress, wanted=False)

    def _switch_ids(
        self,
        script: Script,
        queue: QueueSpec,
        ids: Iterable[str],
        progress: Progress | None,
        wanted: bool,
    ) -> int:
        def call(shard: ShardRef, part: list[Value]) -> ScriptCall:
            return script.call(shard_keys(shard), part, wanted=int(wanted), **announcement(shard))

        return for_each_id(self._client, queue, ids, progress, call)
