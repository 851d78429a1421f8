"""Changes to many jobs, in bounded steps. A payload that arrives between two steps is never lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from celery_lowkiq.rules.models import QueueSpec, ShardRef, StoredRecord
from celery_lowkiq.store.inspect.pages import WAITING_INDEXES, IndexReader, Listing
from celery_lowkiq.store.jobs.call_records import digest, orphaned_records
from celery_lowkiq.store.leases.heartbeats import seconds
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.keys import announcement, shard_keys
from celery_lowkiq.store.scripts.progress import Progress as Progress
from celery_lowkiq.store.scripts.progress import Tally, by_shard
from celery_lowkiq.store.scripts.records import id_bytes, number_text, parse_id
from celery_lowkiq.store.scripts.replies import reads_replies
from celery_lowkiq.store.scripts.script import ScriptCall, Value, load

#: Called with the calls of removed jobs, and whether these are in the morgue.
Left = Callable[[Sequence[StoredRecord], bool], None]
Pages = Iterable[Iterable[str]]


class Signed(NamedTuple):
    """The signature of a payload that replaces another one."""

    #: One for any score and one for ``score``, which counts if the old payload's bound it; empty: none.
    texts: bytes = b""
    score: float = 0.0
    #: Each record of a call that becomes one of the new payload, and what replaces it.
    records: Sequence[bytes] = ()


UNSIGNED = Signed()
#: Maximum number of jobs and payloads that one script changes: about 10 ms of Redis's time.
STEP = 500
STEP_IDS = 50
STEP_BYTES = 1024 * 1024
#: Ids that are read from the caller before scripts are sent.
PORTION = 10_000


def for_each_id(
    client: Client,
    queue: QueueSpec,
    ids: Iterable[str],
    progress: Progress | None,
    call: Callable[[ShardRef, list[Value]], ScriptCall],
) -> int:
    """Run a script, which returns a count, over parts of the ids. Return the sum of the counts."""
    tally, left = Tally(progress), iter(ids)
    while portion := list(islice(left, PORTION)):
        for shard, part in by_shard(queue, portion).items():
            for start in range(0, len(part), STEP):
                tally.begin()
                tally.add(client.call(call(shard, part[start : start + STEP])))
    return tally.count


@reads_replies
class Actions:
    """Changes to waiting and dead jobs.

    Every method returns a count of jobs, and may raise StoreError or the Stop of ``progress``. Completed
    steps stay; repeating the call is safe.
    """

    def __init__(self, store: RedisStore, left: Left | None = None) -> None:
        """``left`` gets the calls of jobs that are removed without a run, before their records go."""
        self._client = store.client
        self._index = IndexReader(store.client)
        self._left = left

    def run_now_all(self, queue: QueueSpec, progress: Progress | None = None) -> int:
        """Make all waiting jobs due now; those of paused ids run when the ids are resumed."""
        tally = Tally(progress)
        for shard in queue.shard_refs():
            keys = shard_keys(shard)
            lengths = [("ZCARD", keys[index]) for index in WAITING_INDEXES]
            # As many steps as the shard has jobs now: pushes must not keep this going.
            for _ in range(sum(self._client.commands(lengths)) // STEP + 1):
                tally.begin()
                moved = self._client.call(load("run_now").call(keys, limit=STEP, **announcement(shard)))
                tally.add(moved)
                if moved < STEP:
                    break
        return tally.count

    def run_now(self, queue: QueueSpec, ids: Iterable[str], progress: Progress | None = None) -> int:
        """Make waiting jobs due now. Return the number of those that were due later."""

        def call(shard: ShardRef, part: list[Value]) -> ScriptCall:
            return load("run_now").call(shard_keys(shard), part, limit=0, **announcement(shard))

        return for_each_id(self._client, queue, ids, progress, call)

    def edit(
        self,
        queue: QueueSpec,
        job_id: str,
        payload: bytes,
        other: bytes | None,
        signed: Signed = UNSIGNED,
        *,
        keep_calls: bool = False,
    ) -> bool:
        """Replace a waiting job's payload by ``other``, which gets its score, or (None) delete it.

        Its calls end, or become (``keep_calls``) those of ``other``. Return whether the job had the payload.
        """
        kept = keep_calls and other is not None
        shard = queue.shard_of(job_id)
        call = load("edit").call(
            shard_keys(shard),
            signed.records,
            **_edit(queue, job_id, payload, other, signed),
            digest=digest(payload) if kept else b"",
            other_digest=digest(other or b"") if kept else b"",
        )
        changed, orphans = self._client.call(call)
        self._end_calls(shard, orphans, dead=False, of=payload)
        return bool(changed)

    def edit_dead(
        self, queue: QueueSpec, job_id: str, payload: bytes, other: bytes | None, signed: Signed = UNSIGNED
    ) -> bool:
        """Replace a dead job's payload by ``other``, which gets its score, or (None) delete it.

        Return whether the job had the payload.
        """
        shard = queue.shard_of(job_id)
        edited = _edit(queue, job_id, payload, other, signed)
        call = load("edit_dead").call(shard_keys(shard), (), **edited, **announcement(shard))
        return bool(self._client.call(call))

    def delete(
        self,
        queue: QueueSpec,
        ids: Iterable[str],
        progress: Progress | None = None,
        only_failed: bool = False,
    ) -> int:
        """Delete waiting jobs; jobs in processing go on."""
        return self._delete(queue, [ids], progress, only_failed=int(only_failed))

    def delete_failed(self, queue: QueueSpec, progress: Progress | None = None) -> int:
        """Delete waiting jobs that failed before."""
        return self._delete(queue, self._pages(queue, "failed"), progress, only_failed=1)

    def delete_dead(self, queue: QueueSpec, ids: Iterable[str], progress: Progress | None = None) -> int:
        """Delete dead jobs."""
        return self._move("delete_dead", queue, [ids], progress, maximum=self._now())

    def delete_dead_all(self, queue: QueueSpec, progress: Progress | None = None) -> int:
        """Delete the jobs that are dead now; jobs that die meanwhile stay."""
        pages = self._pages(queue, "dead_ids")
        return self._move("delete_dead", queue, pages, progress, maximum=self._now())

    def bury_failed(self, queue: QueueSpec, progress: Progress | None = None) -> int:
        """Move waiting jobs that failed before to the morgue."""
        pages = self._pages(queue, "failed")
        return self._move("bury", queue, pages, progress, only_failed=1, reason=b"")

    def bury(
        self,
        queue: QueueSpec,
        ids: Iterable[str],
        reason: bytes,
        progress: Progress | None = None,
        only_failed: bool = False,
    ) -> int:
        """Move waiting jobs to the morgue; ``reason`` is the error of those that have not failed."""
        return self._move("bury", queue, [ids], progress, only_failed=int(only_failed), reason=reason)

    def requeue(
        self, queue: QueueSpec, ids: Iterable[str], progress: Progress | None = None, force: bool = False
    ) -> int:
        """Move dead jobs back to the queue, due now (rule 4). Stale payloads move only with ``force``."""
        return self._move("requeue", queue, [ids], progress, force=int(force), maximum="+inf")

    def requeue_all(self, queue: QueueSpec, progress: Progress | None = None, force: bool = False) -> int:
        """Move the jobs that are dead now back to the queue; one that dies again meanwhile stays dead."""
        now = self._now()
        pages = self._pages(queue, "dead_ids")
        return self._move("requeue", queue, pages, progress, force=int(force), maximum=now)

    # -- steps

    def _pages(self, queue: QueueSpec, index: str) -> Iterator[list[str]]:
        after: str | None = None
        while True:
            found, after = self._index.page(queue, (index,), Listing(limit=STEP, after=after))
            yield [parse_id(entry.id) for entry in found]
            if after is None:
                return

    def _now(self) -> str:
        (time,) = self._client.commands([("TIME",)])
        return number_text(seconds(time))

    def _move(
        self, name: str, queue: QueueSpec, pages: Pages, progress: Progress | None, **condition: Value
    ) -> int:
        tally = Tally(progress)
        bounds = {"merge": queue.merge.value, "policy": queue.policy, "limit": STEP, "max_bytes": STEP_BYTES}
        for shard, ids in _parts(queue, pages):
            where = announcement(shard) if name != "bury" else {}
            while ids:
                tally.begin()
                call = load(name).call(shard_keys(shard), ids[:STEP_IDS], **bounds, **condition, **where)
                dealt, moved, *orphans = self._client.call(call)
                ids = ids[dealt:]
                for buried in orphans:
                    self._end_calls(shard, buried, dead=True)
                tally.add(moved)
        return tally.count

    def _delete(self, queue: QueueSpec, pages: Pages, progress: Progress | None, only_failed: int = 0) -> int:
        tally = Tally(progress)
        for shard, ids in _parts(queue, pages):
            upto, cursor = b"", b""
            while ids:
                tally.begin()
                call = load("delete").call(
                    shard_keys(shard),
                    ids[:STEP_IDS],
                    policy=queue.policy,
                    only_failed=only_failed,
                    upto=upto,
                    cursor=cursor,
                    limit=STEP,
                )
                dealt, deleted, upto, cursor, orphans = self._client.call(call)
                ids = ids[dealt:]
                self._end_calls(shard, orphans, dead=False)
                tally.add(deleted)
                if not cursor:
                    upto = b""
        return tally.count

    def _end_calls(self, shard: ShardRef, orphans: list[Any], dead: bool, of: bytes | None = None) -> None:
        if self._left is None:
            return
        for calls in orphaned_records(self._client, shard, orphans, of):
            self._left(calls, dead)
            self._client.commands([("ZREM", shard_keys(shard)["calls"], *(c.key + c.data for c in calls))])


def _edit(
    queue: QueueSpec, job_id: str, payload: bytes, other: bytes | None, signed: Signed
) -> dict[str, Value]:
    """Arguments of scripts that edit a payload."""
    words: dict[str, Value] = {"merge": queue.merge.value, "policy": queue.policy, "id": id_bytes(job_id)}
    added: dict[str, Value] = {"signatures": signed.texts, "signed_score": number_text(signed.score)}
    return {**words, **added, "payload": payload, "replaced": int(other is not None), "other": other or b""}


def _parts(queue: QueueSpec, pages: Pages) -> Iterator[tuple[ShardRef, list[Value]]]:
    for ids in pages:
        yield from by_shard(queue, ids).items()
