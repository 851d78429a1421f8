"""Changes to many jobs, in bounded steps. A payload that arrives between two steps is never lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from celery_lowkiq.rules.models import QueueSpec, ShardRef, StoredRecord, shard_of
from celery_lowkiq.store.inspect.queries import Queries
from celery_lowkiq.store.jobs.call_records import orphaned_records
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.scripts.keys import MORGUE_KEYS, WAITING_KEYS, KeyAliases, channel, shard_keys
from celery_lowkiq.store.scripts.progress import Progress as Progress
from celery_lowkiq.store.scripts.progress import Tally, by_shard
from celery_lowkiq.store.scripts.records import id_bytes
from celery_lowkiq.store.scripts.script import ScriptCall, Value, load

#: Called with the calls of removed jobs, and whether these are in the morgue.
Left = Callable[[Sequence[StoredRecord], bool], None]

#: Most jobs and payloads of one script: about 10 ms of Redis's time.
STEP = 500
STEP_IDS = 100
STEP_BYTES = 1024 * 1024


class Actions:
    """Changes to waiting and dead jobs. Every method returns a count of jobs and may raise StoreError, or
    the Stop of ``progress``; what was done until then stays done, and doing it again is safe.
    """

    def __init__(self, store: RedisStore, left: Left | None = None) -> None:
        """``left`` gets the calls of jobs that are removed without a run, before their records go."""
        self._client = store.client
        self._queries = Queries(store)
        self._left = left

    def run_now_all(self, queue: QueueSpec, progress: Progress | None = None) -> int:
        """Make all waiting jobs due now; those of paused ids run when these are resumed."""
        tally = Tally(progress)
        for shard in queue.shard_refs():
            # As many steps as the shard has jobs now: pushes must not keep this going.
            indexes = [
                ("ZCARD", shard_keys(shard)[index]) for index in ("due", "due_prioritized", "due_paused")
            ]
            for _ in range(sum(self._client.commands(indexes)) // STEP + 1):
                call = load("run_now").call(
                    shard_keys(shard), channel=channel(queue.name), index=shard.index, limit=STEP
                )
                tally.begin()
                moved = self._client.call(call)
                tally.add(moved)
                if moved < STEP:
                    break
        return tally.count

    def run_now(self, queue: QueueSpec, ids: Iterable[str], progress: Progress | None = None) -> int:
        """Make waiting jobs due now; counts those that were due later."""
        tally = Tally(progress)
        for shard, part in by_shard(queue, ids).items():
            for at in range(0, len(part), STEP):
                call = load("run_now_ids").call(
                    shard_keys(shard), part[at : at + STEP], channel=channel(queue.name), index=shard.index
                )
                tally.begin()
                tally.add(self._client.call(call))
        return tally.count

    def edit(self, queue: QueueSpec, job_id: str, payload: bytes, other: bytes | None) -> bool:
        """Replace a waiting job's payload by ``other``, which gets its score, or (None) delete it; its calls
        end. Returns whether the job had the payload.
        """
        shard = ShardRef(queue.name, shard_of(job_id, queue.shards))
        call = load("edit").call(
            shard_keys(shard),
            merge=queue.merge.value,
            policy=queue.policy,
            id=id_bytes(job_id),
            payload=payload,
            replaced=int(other is not None),
            other=other or b"",
        )
        changed, orphans = self._client.call(call)
        self._end_calls(shard, orphans, dead=False, of=payload)
        return bool(changed)

    def delete(self, queue: QueueSpec, ids: Iterable[str], progress: Progress | None = None) -> int:
        """Delete waiting jobs; what is in processing goes on."""
        tally = Tally(progress)
        self._remove(queue, ids, WAITING_KEYS | {"marks": "failed"}, tally, only_marked=0, maximum="+inf")
        return tally.count

    def delete_failed(self, queue: QueueSpec, progress: Progress | None = None) -> int:
        """Delete waiting jobs that failed before."""
        tally = Tally(progress)
        for ids in self._pages(queue, "failed"):
            self._remove(queue, ids, WAITING_KEYS | {"marks": "failed"}, tally, only_marked=1, maximum="+inf")
        return tally.count

    def bury_failed(self, queue: QueueSpec, progress: Progress | None = None) -> int:
        """Move waiting jobs that failed before to the morgue."""
        tally = Tally(progress)
        for ids in self._pages(queue, "failed"):
            self._bury(queue, ids, tally, None)
        return tally.count

    def bury(
        self, queue: QueueSpec, ids: Iterable[str], reason: bytes, progress: Progress | None = None
    ) -> int:
        """Move waiting jobs to the morgue; ``reason`` is the error of those that have not failed."""
        tally = Tally(progress)
        self._bury(queue, ids, tally, reason)
        return tally.count

    def delete_dead(self, queue: QueueSpec, ids: Iterable[str], progress: Progress | None = None) -> int:
        """Delete dead jobs."""
        tally = Tally(progress)
        self._remove(queue, ids, MORGUE_KEYS | {"marks": "dead_ids"}, tally, only_marked=0, maximum="+inf")
        return tally.count

    def delete_dead_all(self, queue: QueueSpec, progress: Progress | None = None) -> int:
        """Delete the jobs that are dead now; jobs that die meanwhile stay."""
        tally, now = Tally(progress), self._now()
        for ids in self._pages(queue, "dead_ids"):
            names = MORGUE_KEYS | {"marks": "dead_ids"}
            self._remove(queue, ids, names, tally, only_marked=0, maximum=now)
        return tally.count

    def requeue(
        self, queue: QueueSpec, ids: Iterable[str], progress: Progress | None = None, force: bool = False
    ) -> int:
        """Move dead jobs back to the queue, due now (rule 4). Stale payloads only with ``force``."""
        tally = Tally(progress)
        self._requeue(queue, ids, tally, "+inf", force)
        return tally.count

    def requeue_all(self, queue: QueueSpec, progress: Progress | None = None, force: bool = False) -> int:
        """Move the jobs that are dead now back to the queue; one that dies again meanwhile stays dead."""
        tally, now = Tally(progress), self._now()
        for ids in self._pages(queue, "dead_ids"):
            self._requeue(queue, ids, tally, now, force)
        return tally.count

    # -- steps

    def _pages(self, queue: QueueSpec, index: str) -> Iterator[list[str]]:
        after: str | None = None
        while True:
            ids, after = self._queries.members(queue, index, STEP, after)
            yield ids
            if after is None:
                return

    def _now(self) -> str:
        ((seconds, micros),) = self._client.commands([("TIME",)])
        return f"{int(seconds)}.{int(micros):06d}"

    def _requeue(self, queue: QueueSpec, ids: Iterable[str], tally: Tally, maximum: str, force: bool) -> None:
        for shard, part in by_shard(queue, ids).items():
            self._steps(part, tally, self._requeue_call(queue, shard, maximum, force))

    def _steps(
        self,
        ids: list[Value],
        tally: Tally,
        call: Callable[[list[Value]], ScriptCall],
        buried_in: ShardRef | None = None,
    ) -> None:
        """Run a script, which returns how many of its ids are done, until none is left."""
        while ids:
            tally.begin()
            dealt, moved, *orphans = self._client.call(call(ids[:STEP_IDS]))
            ids = ids[dealt:]
            if buried_in is not None:
                self._end_calls(buried_in, orphans[0], dead=True)
            tally.add(moved)

    def _end_calls(self, shard: ShardRef, orphans: list[Any], dead: bool, of: bytes | None = None) -> None:
        if self._left is None:
            return
        for calls in orphaned_records(self._client, shard, orphans, of):
            self._left(calls, dead)
            self._client.commands([("ZREM", shard_keys(shard)["calls"], *(c.key + c.data for c in calls))])

    def _bury(self, queue: QueueSpec, ids: Iterable[str], tally: Tally, reason: bytes | None) -> None:
        bounds: dict[str, Value] = {
            "merge": queue.merge.value,
            "policy": queue.policy,
            "limit": STEP,
            "max_bytes": STEP_BYTES,
        }
        bounds |= {"only_failed": int(reason is None), "reason": reason or b""}
        for shard, part in by_shard(queue, ids).items():
            self._steps(part, tally, partial(_bury_call, shard, bounds), shard)

    def _requeue_call(
        self, queue: QueueSpec, shard: ShardRef, maximum: str, force: bool
    ) -> Callable[[list[Value]], ScriptCall]:
        return lambda ids: load("requeue").call(
            shard_keys(shard),
            ids,
            merge=queue.merge.value,
            policy=queue.policy,
            channel=channel(queue.name),
            index=shard.index,
            maximum=maximum,
            force=int(force),
            limit=STEP,
            max_bytes=STEP_BYTES,
        )

    def _remove(
        self, queue: QueueSpec, ids: Iterable[str], names: dict[str, str], tally: Tally, **condition: Any
    ) -> None:
        for shard, part in by_shard(queue, ids).items():
            keys = KeyAliases(shard_keys(shard), names)
            upto, cursor = b"", b""
            of_waiting = names["records"] == WAITING_KEYS["records"]
            condition["policy"] = queue.policy if of_waiting else ""
            while part:
                call = load("delete").call(
                    keys, part[:STEP_IDS], upto=upto, cursor=cursor, limit=STEP, **condition
                )
                tally.begin()
                dealt, deleted, upto, cursor, orphans = self._client.call(call)
                part = part[dealt:]
                if of_waiting:
                    self._end_calls(shard, orphans, dead=False)
                tally.add(deleted)
                if not cursor:
                    upto = b""


def _bury_call(shard: ShardRef, bounds: Mapping[str, Value], ids: list[Value]) -> ScriptCall:
    return load("bury").call(shard_keys(shard), ids, **bounds)
