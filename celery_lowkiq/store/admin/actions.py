"""Changes to many jobs, in bounded steps. A payload that arrives between two steps is never lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeAlias, cast

from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.rules.models import QueueSpec, ShardRef, StoredRecord
from celery_lowkiq.store.inspect.listings import WAITING_INDEXES, Listing, ListingReader
from celery_lowkiq.store.inspect.shard_reads import ShardReads
from celery_lowkiq.store.jobs.call_records import digest, orphaned_records
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.scripts.client import Client
from celery_lowkiq.store.scripts.keys import announcement, shard_keys
from celery_lowkiq.store.scripts.progress import Progress as Progress
from celery_lowkiq.store.scripts.progress import ShardTally, Tally, by_shard
from celery_lowkiq.store.scripts.records import id_bytes, number_text, parse_id
from celery_lowkiq.store.scripts.replies import reads_replies
from celery_lowkiq.store.scripts.script import ScriptCall, Value, load

#: Called with the calls of removed jobs, and whether these are in the morgue.
Left = Callable[[Sequence[StoredRecord], bool], None]
#: Ids, or the name of the index of a shard that lists them.
Ids: TypeAlias = "Iterable[str] | str"


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
    """Run a script, which returns a count, over parts of the ids. Return the sum of the counts.

    Raises ShardsAway.
    """
    tally, left = ShardTally(client, progress), iter(ids)
    while portion := list(islice(left, PORTION)):
        for shard, part in by_shard(queue, portion).items():
            with tally.of(shard):
                for start in range(0, len(part), STEP):
                    tally.begin()
                    tally.add(client.call(call(shard, part[start : start + STEP])))
    return tally.total()


@reads_replies
class Actions:
    """Changes to waiting and dead jobs.

    Every method returns a count of jobs, and may raise StoreError or the Stop of ``progress``. Completed
    steps stay; repeating the call is safe. On a cluster, changes of several jobs are done in all shards whose
    masters answer; those of the others are left out, and ShardsAway raised at the end.
    """

    def __init__(self, store: RedisStore, left: Left | None = None) -> None:
        """``left`` gets the calls of jobs that are removed without a run, before their records go."""
        self._client = store.client
        self._left = left

    def run_now_all(
        self,
        queue: QueueSpec,
        progress: Progress | None = None,
        before: Callable[[ShardRef], object] | None = None,
    ) -> int:
        """Make all waiting jobs due now; those of paused ids run when the ids are resumed.

        ``before`` is called with each shard, before anything is changed there.
        """
        tally = ShardTally(self._client, progress)
        for shard in queue.shard_refs():
            with tally.of(shard):
                if before is not None:
                    before(shard)
                self._run_shard_now(shard, tally)
        return tally.total()

    def _run_shard_now(self, shard: ShardRef, tally: Tally) -> None:
        keys = shard_keys(shard)
        lengths = [("ZCARD", keys[index]) for index in WAITING_INDEXES]
        # As many steps as the shard has jobs now: pushes must not keep this going.
        for _ in range(sum(self._client.commands(lengths)) // STEP + 1):
            tally.begin()
            moved = self._client.call(load("run_now").call(keys, limit=STEP, **announcement(shard)))
            tally.add(moved)
            if moved < STEP:
                break

    def run_now(
        self,
        queue: QueueSpec,
        ids: Iterable[str],
        progress: Progress | None = None,
        before: Callable[[str], object] | None = None,
    ) -> int:
        """Make waiting jobs due now. Return the number of those that were due later.

        ``before`` is called with each id, before it is due.
        """

        def call(shard: ShardRef, part: list[Value]) -> ScriptCall:
            if before is not None:
                for job_id in part:
                    before(parse_id(cast("bytes", job_id)))
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
        return self._delete(queue, ids, progress, only_failed=int(only_failed))

    def delete_failed(self, queue: QueueSpec, progress: Progress | None = None) -> int:
        """Delete waiting jobs that failed before."""
        return self._delete(queue, "failed", progress, only_failed=1)

    def delete_dead(self, queue: QueueSpec, ids: Iterable[str], progress: Progress | None = None) -> int:
        """Delete dead jobs."""
        return self._move("delete_dead", queue, ids, progress, self._clocks(queue))

    def delete_dead_all(self, queue: QueueSpec, progress: Progress | None = None) -> int:
        """Delete the jobs that are dead now; jobs that die meanwhile stay."""
        return self._move("delete_dead", queue, "dead_ids", progress, self._clocks(queue))

    def bury_failed(self, queue: QueueSpec, progress: Progress | None = None) -> int:
        """Move waiting jobs that failed before to the morgue."""
        return self._move("bury", queue, "failed", progress, only_failed=1, reason=b"")

    def bury(
        self,
        queue: QueueSpec,
        ids: Iterable[str],
        reason: bytes,
        progress: Progress | None = None,
        only_failed: bool = False,
    ) -> int:
        """Move waiting jobs to the morgue; ``reason`` is the error of those that have not failed."""
        return self._move("bury", queue, ids, progress, only_failed=int(only_failed), reason=reason)

    def requeue(
        self, queue: QueueSpec, ids: Iterable[str], progress: Progress | None = None, force: bool = False
    ) -> int:
        """Move dead jobs back to the queue, due now (rule 4). Stale payloads move only with ``force``."""
        return self._move("requeue", queue, ids, progress, force=int(force), maximum="+inf")

    def requeue_all(self, queue: QueueSpec, progress: Progress | None = None, force: bool = False) -> int:
        """Move the jobs that are dead now back to the queue; one that dies again meanwhile stays dead."""
        return self._move("requeue", queue, "dead_ids", progress, self._clocks(queue), force=int(force))

    # -- steps

    def _clocks(self, queue: QueueSpec) -> dict[ShardRef, float]:
        return ShardReads(self._client, queue).clocks()

    def _for_each_part(
        self,
        queue: QueueSpec,
        ids: Ids,
        progress: Progress | None,
        change: Callable[[ShardRef, list[Value], Tally], None],
    ) -> int:
        """Change ids, or those of an index, by parts of a shard. Return the count of the tally."""
        tally = ShardTally(self._client, progress)
        reads = ShardReads(self._client, queue)
        pages = [ids] if not isinstance(ids, str) else _ids_of(reads, ids)
        for page in pages:
            for shard, part in by_shard(queue, page).items():
                with tally.of(shard):
                    change(shard, part, tally)
        tally.left_out |= reads.missing
        return tally.total()

    def _move(
        self,
        name: str,
        queue: QueueSpec,
        ids: Ids,
        progress: Progress | None,
        died_until: Mapping[ShardRef, float] | None = None,
        **condition: Value,
    ) -> int:
        """``died_until``: of each shard, when (Unix s of its master) jobs died at the latest; without one, it
        is left out.
        """
        bounds = {"merge": queue.merge.value, "policy": queue.policy, "limit": STEP, "max_bytes": STEP_BYTES}

        def move(shard: ShardRef, part: list[Value], tally: Tally) -> None:
            where = announcement(shard) if name != "bury" else {}
            if died_until is not None:
                if shard not in died_until:
                    raise StoreUnavailable(f"the master of {shard} was away")
                where |= {"maximum": number_text(died_until[shard])}
            while part:
                tally.begin()
                call = load(name).call(shard_keys(shard), part[:STEP_IDS], **bounds, **condition, **where)
                dealt, moved, *orphans = self._client.call(call)
                part = part[dealt:]
                for buried in orphans:
                    self._end_calls(shard, buried, dead=True)
                tally.add(moved)

        return self._for_each_part(queue, ids, progress, move)

    def _delete(self, queue: QueueSpec, ids: Ids, progress: Progress | None, only_failed: int = 0) -> int:
        def delete(shard: ShardRef, part: list[Value], tally: Tally) -> None:
            upto, cursor = b"", b""
            while part:
                tally.begin()
                call = load("delete").call(
                    shard_keys(shard),
                    part[:STEP_IDS],
                    policy=queue.policy,
                    only_failed=only_failed,
                    upto=upto,
                    cursor=cursor,
                    limit=STEP,
                    max_bytes=STEP_BYTES,
                )
                dealt, deleted, upto, cursor, orphans = self._client.call(call)
                part = part[dealt:]
                self._end_calls(shard, orphans, dead=False)
                tally.add(deleted)
                if not cursor:
                    upto = b""

        return self._for_each_part(queue, ids, progress, delete)

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


def _ids_of(reads: ShardReads, index: str) -> Iterator[list[str]]:
    for page in ListingReader(reads).pages((index,), Listing(limit=STEP)):
        yield [parse_id(entry.id) for entry in page]
