"""Actions of operators, in bounded steps, and their audit log."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple, TypeAlias, cast

from celery_lowkiq.rules.errors import InvalidCall, StoreUnavailable
from celery_lowkiq.rules.models import QueueSpec, ShardRef, StoredRecord
from celery_lowkiq.rules.repairs import Condition, Damage, Repaired, damages, said_count
from celery_lowkiq.rules.validators import is_whole
from celery_lowkiq.rules.views import Page
from celery_lowkiq.store.call_records import digest, orphaned_records
from celery_lowkiq.store.client import Client
from celery_lowkiq.store.keys import AUDIT_KEY, announcement, queue_key, shard_keys
from celery_lowkiq.store.listings import MAX_LIMIT, WAITING_INDEXES, Listing, ListingReader, ShardReads
from celery_lowkiq.store.progress import Progress, ShardTally, Tally, by_shard
from celery_lowkiq.store.records import id_bytes, number_text, pairs, parse_id, parse_pause, reads_replies
from celery_lowkiq.store.registry import as_stored, parse_layout, register, registered
from celery_lowkiq.store.repairs import Repairs
from celery_lowkiq.store.script import ScriptCall, Value, load

# The audit log in Redis: the last changes that people made, of all processes.

#: Maximum number of entries, and of bytes of one.
KEPT, MAX_BYTES = 5000, 4096
_ENTRY = re.compile(r"\d{1,18}-\d{1,18}")


def write_entry(client: Client, text: bytes) -> None:
    """Add an entry, and remove the oldest ones. Raises StoreError; ValueError for one that is too long."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"{len(text)} bytes are invalid: expected at most {MAX_BYTES}")
    client.commands([("XADD", AUDIT_KEY, "MAXLEN", "~", KEPT, "*", "text", text)])


def read_entries(client: Client, limit: int, after: str | None) -> Page[tuple[float, bytes]]:
    """Return a page of entries with their Unix time (s), the latest first. Raises InvalidCall, StoreError."""
    if after is not None and not _ENTRY.fullmatch(after):
        raise InvalidCall(f"after={after[:50]!r} is invalid: expected the `next` of a page")
    start = "+" if after is None else f"({after}"
    (reply,) = client.commands([("XREVRANGE", AUDIT_KEY, start, "-", "COUNT", limit + 1)])
    found = [_entry(*entry) for entry in reply]
    page = found[:limit]
    following = page[-1][0] if len(found) > limit else None
    return Page(tuple((int(entry.partition("-")[0]) / 1000, text) for entry, text in page), following)


def _entry(entry: Any, fields: Any) -> tuple[str, bytes]:
    # redis-py decodes the reply for a command that it knows.
    known = fields if isinstance(fields, dict) else dict(pairs(fields))
    return entry.decode("ascii"), known.get(b"text", b"")


# Changes to waiting and dead jobs, in bounded steps. A payload that arrives between two steps is never lost.
#
# Every function may raise StoreError or the Stop of ``progress``. Completed steps stay; repeating the call is
# safe. Changes of several jobs return their count; they are done in all shards whose masters respond, other
# shards are left out, and ShardsUnreachable is raised at the end. ``left`` gets the calls of jobs that are
# removed without a run, before their records go.

#: Called with the calls of removed jobs, and whether these are in the morgue.
Left = Callable[[Sequence[StoredRecord], bool], None]
#: Ids, or an index of a shard that lists them: of the waiting jobs that failed before, or of the dead ones.
Ids: TypeAlias = "Iterable[str] | str"
FAILED, DEAD = "failed", "dead_ids"


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

    Raises ShardsUnreachable.
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
def run_now_all(
    client: Client,
    queue: QueueSpec,
    progress: Progress | None = None,
    before: Callable[[ShardRef], object] | None = None,
) -> int:
    """Make all waiting jobs due now; those of paused ids run when the ids are resumed.

    ``before`` is called with each shard, before anything is changed there.
    """
    tally = ShardTally(client, progress)
    for shard in queue.shard_refs():
        with tally.of(shard):
            if before is not None:
                before(shard)
            _run_shard_now(client, shard, tally)
    return tally.total()


def _run_shard_now(client: Client, shard: ShardRef, tally: Tally) -> None:
    keys = shard_keys(shard)
    lengths = [("ZCARD", keys[index]) for index in WAITING_INDEXES]
    # Bounded by the jobs that the shard has now: pushes must not keep this going.
    for _ in range(sum(client.commands(lengths)) // STEP + 1):
        tally.begin()
        moved = client.call(load("run_now").call(keys, limit=STEP, **announcement(shard)))
        tally.add(moved)
        if moved < STEP:
            break


@reads_replies
def run_now(
    client: Client,
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

    return for_each_id(client, queue, ids, progress, call)


@reads_replies
def edit(
    client: Client,
    queue: QueueSpec,
    job_id: str,
    payload: bytes,
    other: bytes | None,
    signed: Signed = UNSIGNED,
    *,
    keep_calls: bool = False,
    left: Left | None = None,
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
    changed, orphans = client.call(call)
    _end_calls(client, shard, orphans, left, dead=False, of=payload)
    return bool(changed)


@reads_replies
def edit_dead(
    client: Client,
    queue: QueueSpec,
    job_id: str,
    payload: bytes,
    other: bytes | None = None,
    signed: Signed = UNSIGNED,
) -> bool:
    """Replace a dead job's payload by ``other``, which gets its score, or (None) delete it.

    Return whether the job had the payload.
    """
    shard = queue.shard_of(job_id)
    edited = _edit(queue, job_id, payload, other, signed)
    call = load("edit_dead").call(shard_keys(shard), (), **edited, **announcement(shard))
    return bool(client.call(call))


@reads_replies
def delete(
    client: Client,
    queue: QueueSpec,
    ids: Ids,
    progress: Progress | None = None,
    only_failed: bool = False,
    left: Left | None = None,
) -> int:
    """Delete waiting jobs; jobs in processing go on."""

    def change(shard: ShardRef, part: list[Value], tally: Tally) -> None:
        upto, cursor = b"", b""
        while part:
            tally.begin()
            call = load("delete").call(
                shard_keys(shard),
                part[:STEP_IDS],
                policy=queue.policy,
                only_failed=int(only_failed),
                upto=upto,
                cursor=cursor,
                limit=STEP,
                max_bytes=STEP_BYTES,
            )
            dealt, deleted, upto, cursor, orphans = client.call(call)
            part = part[dealt:]
            _end_calls(client, shard, orphans, left, dead=False)
            tally.add(deleted)
            if not cursor:
                upto = b""

    return _for_each_part(client, queue, ids, progress, change)


@reads_replies
def delete_dead(client: Client, queue: QueueSpec, ids: Ids, progress: Progress | None = None) -> int:
    """Delete jobs that are dead now; jobs that die meanwhile stay."""
    return _move(client, "delete_dead", queue, ids, progress, ShardReads(client, queue).clocks())


@reads_replies
def bury(
    client: Client,
    queue: QueueSpec,
    ids: Ids,
    reason: bytes,
    progress: Progress | None = None,
    only_failed: bool = False,
    left: Left | None = None,
) -> int:
    """Move waiting jobs to the morgue; ``reason`` is the error of those that have not failed."""
    return _move(client, "bury", queue, ids, progress, left=left, only_failed=int(only_failed), reason=reason)


@reads_replies
def requeue(
    client: Client, queue: QueueSpec, ids: Ids, progress: Progress | None = None, force: bool = False
) -> int:
    """Move dead jobs back to the queue, due now (rule 4). Stale payloads move only with ``force``.

    Of all that are dead now, a job that dies again meanwhile stays dead.
    """
    clocks = ShardReads(client, queue).clocks() if ids == DEAD else None
    return _move(client, "requeue", queue, ids, progress, clocks, force=int(force), maximum="+inf")


def _for_each_part(
    client: Client,
    queue: QueueSpec,
    ids: Ids,
    progress: Progress | None,
    change: Callable[[ShardRef, list[Value], Tally], None],
) -> int:
    """Change ids, or those of an index, by parts of a shard. Return the count of the tally."""
    tally = ShardTally(client, progress)
    reads = ShardReads(client, queue)
    pages = [ids] if not isinstance(ids, str) else _ids_of(reads, ids)
    for page in pages:
        for shard, part in by_shard(queue, page).items():
            with tally.of(shard):
                change(shard, part, tally)
    tally.left_out |= reads.missing
    return tally.total()


def _move(
    client: Client,
    name: str,
    queue: QueueSpec,
    ids: Ids,
    progress: Progress | None,
    died_until: Mapping[ShardRef, float] | None = None,
    left: Left | None = None,
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
                raise StoreUnavailable(f"the master of {shard} was unreachable")
            where |= {"maximum": number_text(died_until[shard])}
        while part:
            tally.begin()
            given = {**bounds, **condition, **where}
            call = load(name).call(shard_keys(shard), part[:STEP_IDS], **given)
            dealt, moved, *orphans = client.call(call)
            part = part[dealt:]
            for buried in orphans:
                _end_calls(client, shard, buried, left, dead=True)
            tally.add(moved)

    return _for_each_part(client, queue, ids, progress, move)


def _end_calls(
    client: Client,
    shard: ShardRef,
    orphans: list[Any],
    left: Left | None,
    *,
    dead: bool,
    of: bytes | None = None,
) -> None:
    if left is None:
        return
    for calls in orphaned_records(client, shard, orphans, of):
        left(calls, dead)
        client.commands([("ZREM", shard_keys(shard)["calls"], *(c.key + c.data for c in calls))])


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


# Pause and resume queues, shards and ids: a job runs when none of its three is paused. Running jobs finish,
# new calls wait. Every function may raise StoreError, or the Stop of ``progress``; repeating it is safe, and
# completes what was interrupted.


@reads_replies
def switch_queue(client: Client, queue: QueueSpec, *, paused: bool) -> bool:
    """Pause all shards of a queue, also later ones, or resume it. Return whether this changed anything.

    A resumed queue's shards and ids stay paused if they were paused by themselves.
    """
    call = load("pause_queue").call({"queue": queue_key(queue.name)}, wanted=int(paused))
    pause, since, changed, stored = client.call(call)
    layout = parse_layout(stored)
    count = max(queue.shards, layout.count if layout else 0)
    script = load("apply_queue_pause")
    shards = [ShardRef(queue.name, index) for index in range(count)]
    applied, unreachable = client.each(
        {
            shard: script.call(shard_keys(shard), pause=pause, since=since, **announcement(shard))
            for shard in shards
        }
    )
    tally = ShardTally(client, None)
    tally.add(sum(applied.values()))
    for shard, error in unreachable.items():
        tally.leave_out(shard, error)
    return bool(tally.total() or changed)


@reads_replies
def switch_shard(client: Client, queue: QueueSpec, index: int, *, paused: bool) -> bool:
    """Pause or resume one shard. Return whether this changed anything. Raises InvalidCall.

    A resumed shard stays paused while its queue is.
    """
    last = queue.shards - 1
    if not is_whole(index, 0, last):
        raise InvalidCall(f"shard={index!r} is invalid: expected 0 to {last}, the shards of {queue.name!r}")
    shard = ShardRef(queue.name, index)
    call = load("pause_shard").call(shard_keys(shard), wanted=int(paused), **announcement(shard))
    return bool(client.call(call))


@reads_replies
def switch_ids(
    client: Client, queue: QueueSpec, ids: Iterable[str], progress: Progress | None = None, *, paused: bool
) -> int:
    """Pause or resume ids, with or without jobs. Return the number of those that this changed."""
    return _switch(client, "pause_ids", queue, ids, progress, paused)


@reads_replies
def switch_holds(
    client: Client, queue: QueueSpec, ids: Iterable[str], progress: Progress | None = None, *, held: bool
) -> int:
    """Let the dead payloads of ids hold them, or let the ids go on: what is dead stays in the morgue.

    Return the number of ids that this changed.
    """
    return _switch(client, "hold_ids", queue, ids, progress, held)


@reads_replies
def resume_all_ids(client: Client, queue: QueueSpec, progress: Progress | None = None) -> int:
    """Resume all paused ids. Return the number of those that were paused."""
    reads, tally = ShardReads(client, queue), ShardTally(client, progress)
    for page in ListingReader(reads).pages(("paused",), Listing(limit=MAX_LIMIT)):
        # The index has held ids, too, whose pause is empty.
        pauses = [parse_pause(number_text(entry.score).encode())[1] for entry in page]
        ids = [parse_id(one.id) for one, at in zip(page, pauses, strict=True) if at is not None]
        tally.begin()
        tally.add_part(lambda ids=ids: switch_ids(client, queue, ids, paused=False))  # type: ignore[misc]
    tally.left_out |= reads.missing
    return tally.total()


def _switch(
    client: Client, script: str, queue: QueueSpec, ids: Iterable[str], progress: Progress | None, wanted: bool
) -> int:
    def call(shard: ShardRef, part: list[Value]) -> ScriptCall:
        return load(script).call(shard_keys(shard), part, wanted=int(wanted), **announcement(shard))

    return for_each_id(client, queue, ids, progress, call)


# Repairs a whole queue for an operator: lists its damage, then repairs shard after shard.


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
    # The shards know the fields of the last migration that the queue's own key has lost.
    registered(client, queue)
    count, queue, conditions = _examine(client, queue)
    known = register(client, queue, expected=str(count))
    tally, done = Tally(progress), []
    for condition in conditions:
        if damages(condition, queue.layout):
            tally.begin()
            done.append(Repairs(client).repair(queue, condition, known))
            tally.add(1)
    return done


def _examine(client: Client, queue: QueueSpec) -> tuple[int, QueueSpec, list[Condition]]:
    """Return the registered number of shards, the queue with its true number, and their conditions.

    The registry is wrong only when all shards that have jobs contradict it.
    """
    (stored,) = as_stored(client, [queue])
    repairs = Repairs(client)
    conditions = repairs.conditions(stored.shard_refs())
    said = said_count(conditions)
    if said and said != stored.shards:
        every = replace(queue, shards=max(stored.shards, said)).shard_refs()
        conditions += repairs.conditions(every[stored.shards :])
        if said_count(conditions) == said and not any(c.used for c in conditions[said:]):
            return stored.shards, replace(queue, shards=said), conditions[:said]
    return stored.shards, stored, conditions[: stored.shards]
