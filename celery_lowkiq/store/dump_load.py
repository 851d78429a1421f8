"""Reads whole queues as the entries of a dump, and writes such entries, in bounded steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from celery_lowkiq.rules.dump_format import DumpedCall, Entry, Header, State
from celery_lowkiq.rules.models import Payload, QueueSpec, Recorded, ShardRef
from celery_lowkiq.store.call_records import PAGE_CALLS, parse_calls
from celery_lowkiq.store.claims import scan
from celery_lowkiq.store.client import Client
from celery_lowkiq.store.keys import MORGUE_KEYS, WAITING_KEYS, KeyAliases, announcement, shard_keys
from celery_lowkiq.store.listings import WAITING_INDEXES
from celery_lowkiq.store.records import (
    id_bytes,
    number_text,
    parse_id,
    parse_mark,
    parse_pause,
    parse_processing,
    parse_retry_count,
    reads_replies,
)
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.script import Value, load

#: Maximum number of ids and payloads that one script reads, and of bytes.
STEP_IDS = 100
STEP = 500
STEP_BYTES = 256 * 1024
#: Jobs in processing that are read at once; each may have 1 MiB.
STEP_PROCESSING = 10
#: The indexes that list the jobs of a state, and the names of their other keys.
_INDEXES = (
    # First what may hold others, so that no load hands these out before.
    (State.DEAD, "dead_ids", MORGUE_KEYS),
    *((State.WAITING, index, WAITING_KEYS) for index in WAITING_INDEXES),
)
#: Names of the states in ``load.lua``.
_KINDS = {State.WAITING: "waiting", State.PROCESSING: "waiting", State.DEAD: "dead", State.CALLS: "calls"}


@reads_replies
def last_score(store: RedisStore, queue: QueueSpec) -> int:
    """Return the largest score (us) that a shard of the queue has generated. Raises StoreError."""
    scores = store.client.commands(
        [("HGET", shard_keys(shard)["meta"], "score") for shard in queue.shard_refs()]
    )
    return max(int(score) if score and score.isdigit() else 0 for score in scores)


@reads_replies
def dump_entries(store: RedisStore, queue: QueueSpec) -> Iterator[Entry]:
    """Yield the jobs of a queue as it is stored; calls come before their payloads. Raises StoreError.

    A job that stays in one state is there once, or again when its shard has moved to another server. A job
    that changes its state meanwhile may be missing, or come twice.
    """
    for shard in queue.shard_refs():
        for state, index, names in _INDEXES:
            for page in scan(store.client, shard_keys(shard)[index], STEP_IDS):
                yield from _jobs(store.client, shard, state, names, [job_id for job_id, _ in page])
        for page in scan(store.client, shard_keys(shard)["claimed"], STEP_PROCESSING):
            yield from _processing(store.client, shard, [job_id for job_id, _ in page])


def _processing(client: Client, shard: ShardRef, ids: Sequence[bytes]) -> Iterator[Entry]:
    (records,) = client.commands([("HMGET", shard_keys(shard)["processing"], *ids)])
    for job_id, record in zip(ids, records, strict=True):
        if record:
            job = parse_processing(job_id, record)
            if job.recorded:
                yield from _calls(client, shard, job_id)
            yield Entry(
                State.PROCESSING,
                job.id,
                job.perform_in,
                job.retry_count,
                job.error,
                job.payloads,
                priority=job.priority,
            )


def _jobs(
    client: Client, shard: ShardRef, state: State, names: dict[str, str], ids: Sequence[bytes]
) -> Iterator[Entry]:
    keys, cursor, with_calls = KeyAliases(shard_keys(shard), names), b"", b""
    while ids:
        call = load("dump").call(keys, ids, cursor=cursor, limit=STEP, max_bytes=STEP_BYTES)
        dealt, cursor, *jobs = client.call(call)
        ids = ids[dealt:]
        for job_id, when, tried, error, priority, pause, *items in jobs:
            payloads = tuple(
                _payload(data, score, mark)
                for score, data, mark in zip(items[::3], items[1::3], items[2::3], strict=True)
            )
            if with_calls != job_id and any(payload.recorded is not Recorded.NONE for payload in payloads):
                yield from _calls(client, shard, job_id)
                with_calls = job_id
            count = -1 if state is State.DEAD else parse_retry_count(tried)[0]
            yield Entry(
                state,
                parse_id(job_id),
                float(when),
                count,
                error or None,
                payloads,
                priority=priority,
                held=state is State.DEAD and parse_pause(pause)[0] is not None,
            )


def _payload(data: bytes, score: bytes, mark: bytes) -> Payload:
    recorded, signature = parse_mark(mark)
    return Payload(data, float(score), recorded, None, signature)


def _calls(client: Client, shard: ShardRef, job_id: bytes) -> Iterator[Entry]:
    start, stop = b"[" + job_id + b"\0", b"(" + job_id + b"\1"
    while start:
        command = ("ZRANGEBYLEX", shard_keys(shard)["calls"], start, stop, "LIMIT", 0, PAGE_CALLS)
        (members,) = client.commands([command])
        if members:
            calls = parse_calls(members)
            found = tuple(DumpedCall(call.digest, call.data) for call in calls)
            yield Entry(State.CALLS, parse_id(job_id), calls=found)
        start = b"(" + members[-1] if len(members) == PAGE_CALLS else b""


@reads_replies
def load_entries(
    store: RedisStore, queue: QueueSpec, header: Header, lines: Sequence[tuple[int, Entry]]
) -> int:
    """Load numbered lines of a dump, one script per shard. Return the number of lines that were new.

    For a week, loading the same lines again changes nothing, even if their jobs have run meanwhile. Raises
    QueueResharded, StoreError.
    """
    by_shard: dict[ShardRef, list[Value]] = {}
    for number, entry in lines:
        shard = queue.shard_of(entry.id)
        by_shard.setdefault(shard, []).extend(_values(number, entry))
    args: dict[str, Value] = {
        "shards": queue.layout.route,
        "merge": queue.merge.value,
        "policy": queue.policy,
        "sender": f"load-{header.dump}",
        "last_score": header.last_score,
    }
    script = load("load")
    calls = [
        (shard, script.call(shard_keys(shard), rest, **args, **announcement(shard)))
        for shard, rest in by_shard.items()
    ]
    return sum(store.run_registered(queue, calls))


def _values(number: int, entry: Entry) -> Iterator[Value]:
    kind = "held" if entry.held else _KINDS[entry.state]
    yield from (number, kind, id_bytes(entry.id), number_text(entry.when), entry.retry_count)
    yield from (entry.error or b"", entry.priority, len(entry.payloads) + len(entry.calls))
    for payload in entry.payloads:
        mark = payload.recorded.value.encode() + payload.signature
        yield from (number_text(payload.score), payload.data, mark)
    for call in entry.calls:
        yield from (call.digest, call.record, "")
