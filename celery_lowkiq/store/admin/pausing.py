"""Pause and resume queues, shards and ids. Running jobs finish, new calls wait."""

from __future__ import annotations

from collections.abc import Iterable

from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.validators import is_whole
from celery_lowkiq.store.inspect.listings import MAX_LIMIT, Listing, ListingReader
from celery_lowkiq.store.inspect.shard_reads import ShardReads
from celery_lowkiq.store.jobs.registry import parse_layout
from celery_lowkiq.store.scripts.client import Client, raise_refused
from celery_lowkiq.store.scripts.keys import announcement, queue_key, shard_keys
from celery_lowkiq.store.scripts.progress import Progress, ShardTally
from celery_lowkiq.store.scripts.records import number_text, parse_id, parse_pause
from celery_lowkiq.store.scripts.replies import reads_replies
from celery_lowkiq.store.scripts.script import Script, ScriptCall, Value, load

from .actions import for_each_id


def _is_paused(score: float) -> bool:
    """Whether an entry of the index of paused and held ids is one of a paused id."""
    return parse_pause(number_text(score).encode())[1] is not None


@reads_replies
class Pausing:
    """Pauses and resumes. A job runs when its queue, its shard and its id are not paused.

    Every method may raise StoreError, or the Stop of ``progress``; repeating it is safe and completes what
    was interrupted. On a cluster, shards whose masters are away are left out, and ShardsAway raised at the
    end.
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
        shards = [ShardRef(queue.name, index) for index in range(count)]
        applied = self._client.answers(
            [
                script.call(shard_keys(shard), pause=pause, since=since, **announcement(shard))
                for shard in shards
            ]
        )
        tally = ShardTally(self._client, None)
        for shard, answer in zip(shards, applied, strict=True):
            with tally.of(shard):
                tally.add(*raise_refused([answer]))
        return bool(tally.total() or changed)

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

    def resume_all_ids(self, queue: QueueSpec, progress: Progress | None = None) -> int:
        """Resume all paused ids. Return the number of those that were paused."""
        reads, tally = ShardReads(self._client, queue), ShardTally(self._client, progress)
        for page in ListingReader(reads).pages(("paused",), Listing(limit=MAX_LIMIT)):
            ids = [parse_id(entry.id) for entry in page if _is_paused(entry.score)]
            tally.begin()
            tally.add_part(lambda ids=ids: self.resume_ids(queue, ids))  # type: ignore[misc]
        tally.left_out |= reads.missing
        return tally.total()

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
