"""Counts and jobs of queues, and failures that belong together."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, repeat
from typing import Any, Generic, TypeVar

from celery_lowkiq.rules.errors import InvalidCall, ShardDamaged
from celery_lowkiq.rules.models import Job, LeaseState, QueueSpec, ShardRef
from celery_lowkiq.rules.views import (
    COUNTS,
    DeadJob,
    FailedJob,
    Found,
    HeldId,
    IdCalls,
    Paused,
    PausedId,
    SearchPage,
    ShardsPage,
    ShardState,
    Stats,
    StoredGroup,
    Try,
)
from celery_lowkiq.store.claims import scan
from celery_lowkiq.store.client import Client, raise_refused
from celery_lowkiq.store.keys import (
    MORGUE_KEYS,
    WAITING_KEYS,
    KeyAliases,
    failures_key,
    queue_key,
    shard_keys,
)
from celery_lowkiq.store.listings import (
    FREE_INDEXES,
    LARGEST,
    WAITING_INDEXES,
    FingerprintOf,
    IndexEntry,
    Listing,
    ListingReader,
    ShardReads,
    stored_fingerprint,
)
from celery_lowkiq.store.records import (
    HELD_AND_PAUSED,
    id_bytes,
    number_text,
    pairs,
    parse_id,
    parse_moment,
    parse_pause,
    parse_payloads,
    parse_processing,
    parse_retry_count,
    parse_whole,
    reads_replies,
    shortened,
)
from celery_lowkiq.store.script import ScriptCall, load

# Reads for operators: pages of jobs, one job, counts. Pushes and runs do not use it. Every function may raise
# StoreError; listings name the shards that they lack because their masters are unreachable.

T = TypeVar("T")

#: Maximum bytes that a listing reads of one job's payloads (at least one payload).
PEEK_BYTES = 256 * 1024
WHOLE = 2**31 - 1
#: Largest fraction of a stored retry_count, which encodes the isolation of the job.
FRACTION = 0.999999
BY_ID = Listing()
#: Indexes of waiting jobs whose ids are paused or held.
PAUSED_INDEXES: tuple[str, ...] = ("due_paused",)
#: Scores in `paused` of ids that are paused: those that no death holds, and those that one holds, too.
PAUSED_ALONE_OR_HELD = (("0", "+inf"), ("-inf", f"(-{HELD_AND_PAUSED}"))

#: Bytes of the longest log of tries: a longer one is foreign.
LONGEST_LOG = 65536
#: A line of ``store/lua/settle.lua``.
_TRY = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\t(-?\d{1,9})\t([^\t]*)\t(.*)")


@reads_replies
def jobs(
    client: Client,
    queue: QueueSpec,
    listing: Listing = BY_ID,
    fingerprint_of: FingerprintOf = stored_fingerprint,
) -> SearchPage[Job]:
    """Return a page of waiting jobs.

    ``by="perform_in"`` and ``by="retry_count"`` (failed jobs only) are sorted, between ``minimum``
    and ``maximum``; ``by="id"`` finds ids that begin with ``prefix``, in no order, and a page may be a
    little longer than ``limit``. ``fingerprint_of``: that of a stored error. Raises InvalidCall.
    """
    if listing.by == "id":
        if listing.reverse or listing.is_filtered or listing.is_bounded:
            raise InvalidCall(
                "by='id' has no order: reverse, minimum, maximum, state, age and failure go with "
                "perform_in or retry_count"
            )
        return _page_of(client, WAITING, queue, listing, ())
    if listing.by == "retry_count" and listing.maximum is not None and math.isfinite(listing.maximum):
        listing = replace(listing, maximum=math.floor(listing.maximum) + FRACTION)
    indexes = _indexes(WAITING, listing)
    if listing.by == "perform_in" and listing.pause:
        indexes = FREE_INDEXES if listing.pause == "free" else PAUSED_INDEXES
        indexes += ("moving",) if queue.former_shards is not None else ()
    return _page_of(client, WAITING, queue, listing, indexes, fingerprint_of)


@reads_replies
def waiting_of(client: Client, shard: ShardRef, payload_limit: int) -> Iterator[Job]:
    """Yield the waiting jobs of one shard, in no order; one may come twice."""
    listing = Listing(payload_limit=payload_limit)
    for index in WAITING_INDEXES:
        for page in scan(client, shard_keys(shard)[index], listing.limit):
            entries = [IndexEntry(float(score), job_id, shard) for job_id, score in page]
            calls = _peeks(entries, WAITING_KEYS, listing)
            found = (_job(e, reply) for e, (reply,) in zip(entries, client.all(calls), strict=True))
            yield from (job for job in found if job)


@reads_replies
def has_job(client: Client, queue: QueueSpec, job_id: str) -> bool:
    """Return whether a job of the id waits or runs."""
    keys = [shard_keys(shard) for shard in queue.shards_of(job_id)]
    exists = [("HEXISTS", key[name], id_bytes(job_id)) for key in keys for name in ("jobs", "processing")]
    return any(client.commands(exists))


@reads_replies
def morgue(
    client: Client,
    queue: QueueSpec,
    listing: Listing = BY_ID,
    fingerprint_of: FingerprintOf = stored_fingerprint,
) -> SearchPage[DeadJob]:
    """Return a page of dead jobs, sorted by id, or by ``updated_at`` between ``minimum`` and ``maximum``.

    ``pause="held"``: those that hold their ids. Raises InvalidCall.
    """
    if listing.by == "id" and listing.is_bounded:
        raise InvalidCall("minimum and maximum go with by='updated_at'")
    return _page_of(client, DEAD, queue, listing, _indexes(DEAD, listing), fingerprint_of)


@reads_replies
def processing(
    client: Client,
    queue: QueueSpec,
    *,
    limit: int = 100,
    after: str | None = None,
    payload_limit: int = 10,
    payload_bytes: int = LARGEST,
) -> SearchPage[Job]:
    """Return a page of the jobs in processing, oldest claim of a shard first. Raises InvalidCall."""
    listing = Listing(limit=limit, after=after, payload_limit=payload_limit, payload_bytes=payload_bytes)
    return _page_of(client, RUNNING, queue, listing, RUNNING.indexes["id"])


def _page_of(
    client: Client,
    kind: Kind[T],
    queue: QueueSpec,
    listing: Listing,
    indexes: tuple[str, ...],
    fingerprint_of: FingerprintOf = stored_fingerprint,
) -> SearchPage[T]:
    """Return a page of the indexes; without indexes, of a scan."""
    reads = ShardReads(client, queue, listing.after)
    reader = ListingReader(reads, kind.dead, fingerprint_of)
    found = reader.page(indexes, listing) if indexes else reader.scan(listing)
    items = tuple(kind.read(reads, found.entries, listing))
    return SearchPage(items, reads.cursor(found.next), reads.unreachable, found.searched, found.total)


@reads_replies
def job(
    client: Client, queue: QueueSpec, job_id: str, payload_limit: int = 100, payload_bytes: int = WHOLE
) -> Found:
    """Return where an id is: waiting, processing, dead, or nowhere. Raises InvalidCall."""
    listing = Listing(payload_limit=payload_limit, payload_bytes=payload_bytes)
    found = Found()
    for shard in queue.shards_of(job_id):
        found = found.joined(_places_in(client, IndexEntry(0.0, id_bytes(job_id), shard), listing))
    return found


def _places_in(client: Client, entry: IndexEntry, listing: Listing) -> Found:
    places = [*_peeks([entry], WAITING_KEYS, listing), *_peeks([entry], MORGUE_KEYS, listing)]
    (waiting,), (dead,) = client.all(places)
    (record,) = client.commands([("HGET", shard_keys(entry.shard)["processing"], entry.id)])
    running = parse_processing(entry.id, record) if record else None
    processing = shortened(running, listing.payload_limit, listing.payload_bytes) if running else None
    return Found(_job(entry, waiting), processing, _dead_job(entry, dead))


@reads_replies
def tries(client: Client, queue: QueueSpec, job_id: str) -> tuple[Try, ...]:
    """Return the last tries of a job, oldest first; foreign lines are skipped."""
    keys = [shard_keys(shard)["tries"] for shard in reversed(queue.shards_of(job_id))]
    logs = client.commands([("HGET", key, id_bytes(job_id)) for key in keys])
    text = b"\n".join((log or b"")[-LONGEST_LOG:] for log in logs).decode("utf-8", "replace")
    lines = map(_TRY.fullmatch, text.split("\n"))
    return tuple(Try(float(line[1]), int(line[2]), line[3], line[4]) for line in lines if line)


@reads_replies
def stats(client: Client, queue: QueueSpec) -> Stats:
    """Return the counts of a queue, as far as masters answer; its lag is the largest."""
    return sum(shard_stats(client, queue), Stats())


@reads_replies
def shard_stats(client: Client, queue: QueueSpec) -> list[Stats]:
    """Return the counts of each shard, in one round trip. Raises ShardDamaged."""
    return [state.stats for state in raise_refused([e.damage or e for e in shard_states(client, [queue])])]


@reads_replies
def shard_states(client: Client, queues: Iterable[QueueSpec]) -> list[ShardState]:
    """Return the state of each shard of the queues, in one round trip. That of a damaged shard has the
    damage, that of an unreachable one its master. Raises StoreUnavailable when no master responds.
    """
    calls = {shard: load("stats").call(shard_keys(shard)) for queue in queues for shard in queue.shard_refs()}
    found, errors = client.each(calls, ShardDamaged)
    damaged = {shard: error for shard, error in errors.items() if isinstance(error, ShardDamaged)}
    if not found and not damaged:
        raise_refused(list(errors.values()))
    return [
        _state(shard, found[shard])
        if shard in found
        else ShardState(shard, Stats(), LeaseState(), damaged[shard])
        if shard in damaged
        else ShardState(shard, Stats(missing=1), LeaseState(), unreachable=client.servers.master_of(shard))
        for shard in calls
    ]


@reads_replies
def paused(client: Client, queue: QueueSpec) -> Paused:
    """Return what is paused, in one round trip.

    The queue's pause is read of its shards when its own master is unreachable.
    """
    reads = ShardReads(client, queue)
    keys = [shard_keys(shard) for shard in reads.shards]
    commands = [
        *(("HMGET", key["meta"], "paused", "queue_paused") for key in keys),
        *(("ZCOUNT", key["paused"], *bounds) for key in keys for bounds in PAUSED_ALONE_OR_HELD),
    ]
    shards = [*reads.shards, *(shard for shard in reads.shards for _ in PAUSED_ALONE_OR_HELD)]
    own = ("HMGET", queue_key(queue.name), "paused")
    *rest, of_queue = reads.commands([*shards, None], [*commands, own])
    times = [told or (None, None) for told in rest[: len(keys)]]
    (queue_since,) = of_queue or [min((since for _, since in times if since), key=float, default=None)]
    return Paused(
        queue=float(queue_since) if queue_since else None,
        shards={index: float(since) for index, (since, _) in enumerate(times) if since},
        ids=sum(count or 0 for count in rest[len(keys) :]),
        unreachable=reads.unreachable,
    )


@reads_replies
def paused_ids(
    client: Client, queue: QueueSpec, *, limit: int = 100, after: str | None = None
) -> ShardsPage[PausedId]:
    """Return a page of the paused ids, the longest paused first. Raises InvalidCall."""
    listing = Listing(limit=limit, after=after, minimum=0.0)
    return _page_of_ids(client, PAUSED, queue, listing)


@reads_replies
def held_ids(
    client: Client, queue: QueueSpec, *, limit: int = 100, after: str | None = None
) -> ShardsPage[HeldId]:
    """Return a page of the ids that a death holds: the longest held first, then the ones that are paused,
    too. Raises InvalidCall.
    """
    listing = Listing(limit=limit, after=after, maximum=-1.0, reverse=True)
    return _page_of_ids(client, HELD, queue, listing)


def _page_of_ids(client: Client, kind: Kind[T], queue: QueueSpec, listing: Listing) -> ShardsPage[T]:
    page = _page_of(client, kind, queue, listing, kind.indexes["id"])
    return ShardsPage(page.items, page.next, page.unreachable)


def _peeks(entries: Sequence[IndexEntry], names: dict[str, str], listing: Listing) -> list[ScriptCall]:
    return [
        load("peek").call(
            KeyAliases(shard_keys(entry.shard), names),
            [entry.id],
            limit=listing.payload_limit,
            max_bytes=PEEK_BYTES,
            cut=listing.payload_bytes,
        )
        for entry in entries
    ]


def _peek(
    reads: ShardReads, entries: Sequence[IndexEntry], names: dict[str, str], listing: Listing
) -> Iterator[tuple[IndexEntry, list[Any]]]:
    """Yield entries with their stored values, without entries of unreachable masters."""
    replies = reads.calls([entry.shard for entry in entries], _peeks(entries, names, listing))
    return ((entry, reply[0]) for entry, reply in zip(entries, replies, strict=True) if reply is not None)


def _waiting_jobs(reads: ShardReads, entries: Sequence[IndexEntry], listing: Listing) -> Iterator[Job]:
    found = _peek(reads, entries, WAITING_KEYS, listing)
    return (job for entry, reply in found if (job := _job(entry, reply)))


def _dead_jobs(reads: ShardReads, entries: Sequence[IndexEntry], listing: Listing) -> Iterator[DeadJob]:
    found = _peek(reads, entries, MORGUE_KEYS, listing)
    return (job for entry, reply in found if (job := _dead_job(entry, reply)))


def _running_jobs(reads: ShardReads, entries: Sequence[IndexEntry], listing: Listing) -> Iterator[Job]:
    commands = [("HGET", shard_keys(entry.shard)["processing"], entry.id) for entry in entries]
    records = reads.commands([entry.shard for entry in entries], commands)
    return (
        shortened(parse_processing(entry.id, record), listing.payload_limit, listing.payload_bytes)
        for entry, record in zip(entries, records, strict=True)
        if record
    )


def _paused_ids(_: ShardReads, entries: Sequence[IndexEntry], __: Listing) -> Iterator[PausedId]:
    return (PausedId(parse_id(entry.id), entry.score) for entry in entries)


def _held_ids(_: ShardReads, entries: Sequence[IndexEntry], __: Listing) -> Iterator[HeldId]:
    for entry in entries:
        since, paused = parse_pause(number_text(entry.score).encode())
        assert since is not None
        yield HeldId(parse_id(entry.id), since, paused is not None)


@dataclass(frozen=True)
class Kind(Generic[T]):
    """Kind of listing: the indexes of each of its sorts, and the read of the items of entries."""

    indexes: Mapping[str, tuple[str, ...]]
    read: Callable[[ShardReads, Sequence[IndexEntry], Listing], Iterator[T]]
    dead: bool = False


#: A scan finds waiting jobs by id.
WAITING = Kind({"perform_in": WAITING_INDEXES, "retry_count": ("failed",)}, _waiting_jobs)
DEAD = Kind({"updated_at": ("dead",), "id": ("dead_ids",)}, _dead_jobs, dead=True)
RUNNING = Kind({"id": ("claimed",)}, _running_jobs)
PAUSED = Kind({"id": ("paused",)}, _paused_ids)
HELD = Kind({"id": ("paused",)}, _held_ids)


def _indexes(kind: Kind[Any], listing: Listing) -> tuple[str, ...]:
    by = listing.by
    if by not in kind.indexes:
        allowed = ", ".join(sorted({"id", *kind.indexes}))
        raise InvalidCall(f"by={by!r} is not a listing: allowed are {allowed}")
    return kind.indexes[by]


def _job(entry: IndexEntry, reply: list[Any]) -> Job | None:
    perform_in, tried, error, count, pause, priority, *payloads = reply
    if not perform_in:
        return None
    retry_count, isolation = parse_retry_count(tried)
    held, paused = parse_pause(pause)
    return Job(
        id=parse_id(entry.id),
        payloads=parse_payloads(payloads),
        perform_in=float(perform_in),
        retry_count=retry_count,
        error=error or None,
        payload_count=count,
        paused=paused is not None,
        held=held is not None,
        priority=priority,
        isolation=isolation,
    )


def _dead_job(entry: IndexEntry, reply: list[Any]) -> DeadJob | None:
    updated_at, _, error, count, pause, _, *payloads = reply
    if not updated_at:
        return None
    held, _ = parse_pause(pause)
    shown = parse_payloads(payloads)
    return DeadJob(parse_id(entry.id), shown, float(updated_at), error or None, count, held)


def _state(shard: ShardRef, reply: Any) -> ShardState:
    now, next_due, oldest, held_since, (owner, epoch, counter), busiest, *values = reply
    counts = dict(zip(COUNTS, values, strict=True))
    moments = next_due, held_since, oldest, *busiest[2::3]
    lag, held_for, *ages = [max(0.0, float(now) - float(moment)) if moment else 0.0 for moment in moments]
    ids = map(parse_id, busiest[::3])
    stats = Stats(
        **counts,
        fresh=counts["length"] - counts["retries"],
        lag=lag,
        oldest=ages[0],
        held_for=held_for,
        oldest_call=max(ages),
        busiest=tuple(map(IdCalls, repeat(shard.queue), ids, busiest[1::3])),
    )
    lease = LeaseState(parse_id(owner or b""), parse_whole(epoch or b""), parse_whole(counter or b""))
    return ShardState(shard, stats, lease)


# Reads of failures: their groups, and the errors of failing and dead jobs without payloads.

ABOUT = b"about:"
#: Jobs that are read together.
PAGE = 500
#: A listing without filters.
ANY = Listing()


@reads_replies
def failure_groups(client: Client, queue: QueueSpec) -> list[StoredGroup] | None:
    """Return the groups of failures, in no order, in one round trip; foreign data is skipped.

    None while the queue's own master is unreachable and others respond.
    """
    replies, _ = client.each_command({queue.name: ("HGETALL", failures_key(queue.name))})
    if not replies:
        return None
    reply, found = replies[queue.name], []
    stored = dict(reply.items() if isinstance(reply, dict) else pairs(reply))
    for field, value in stored.items():
        about = stored.get(ABOUT + field)
        count, first, last = (*map(parse_moment, value.split(b" ")), None, None, None)[:3]
        if about is not None and count is not None and first is not None and last is not None:
            found.append(StoredGroup(parse_id(field), int(count), first, last, about))
    return found


@reads_replies
def about_failure(client: Client, queue: QueueSpec, fingerprint: str) -> bytes | None:
    """Return the description of a group; None while the queue's own master is unreachable and others
    respond.
    """
    field = ABOUT + fingerprint.encode()
    found, _ = client.each_command({field: ("HGET", failures_key(queue.name), field)})
    return None if found.get(field) is None else bytes(found[field])


@reads_replies
def count_failures(reads: ShardReads, *, dead: bool) -> int:
    """Return the number of dead jobs, or of waiting ones that failed."""
    return sum(_counts(reads, _keys(dead)[0]))


@reads_replies
def failed_jobs(
    reads: ShardReads, *, dead: bool, since: float | None = None, wanted: Listing = ANY
) -> Iterator[Sequence[FailedJob]]:
    """Yield the waiting jobs that failed, or the dead ones that died from ``since`` (Unix s) until now.

    They come shard by shard, in parts of at most PAGE, and tell whether the filters of ``wanted`` have
    them.
    """
    index, _ = _keys(dead)
    counts = _counts(reads, index)
    clocks = reads.clocks() if dead else {}
    minimum = since if dead else None
    for shard, count in zip(reads.shards, counts, strict=True):
        if count:
            listing = Listing(limit=PAGE, minimum=minimum, maximum=clocks.get(shard))
            yield from _failed_jobs_of(reads, shard, listing, dead, wanted)


def _failed_jobs_of(
    reads: ShardReads, shard: ShardRef, listing: Listing, dead: bool, wanted: Listing
) -> Iterator[Sequence[FailedJob]]:
    reader = ListingReader(reads, dead)
    index, errors = _keys(dead)
    names = (errors,) if dead else (errors, "tries")
    entries = reader.merged([(shard, index)], listing, PAGE)
    while part := list(islice(entries, PAGE)):
        ids = [entry.id for entry in part]
        stored = reads.commands(
            [shard] * len(names), [("HMGET", shard_keys(shard)[name], *ids) for name in names]
        )
        if None in stored:
            return
        times = [entry.score for entry in part]
        if not dead:
            last_lines = [(log or b"").rpartition(b"\n")[2] for log in stored[1]]
            times = [parse_moment(line.partition(b"\t")[0]) or 0.0 for line in last_lines]
        fitting = {entry.id for entry in reader.fitting(part, wanted)}
        jobs = zip(ids, times, stored[0], strict=True)
        yield [FailedJob(parse_id(job_id), at, error or b"", job_id in fitting) for job_id, at, error in jobs]


def _counts(reads: ShardReads, index: str) -> list[int]:
    counts = reads.commands(reads.shards, [("ZCARD", shard_keys(one)[index]) for one in reads.shards])
    return [count or 0 for count in counts]


def _keys(dead: bool) -> tuple[str, str]:
    """The index and the errors of failing or dead jobs."""
    return ("dead", "dead_errors") if dead else ("failed", "errors")
