"""Reads whole queues, in bounded steps: what a dump is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from celery_lowkiq.rules.dumps import DumpedCall, Entry, State
from celery_lowkiq.rules.models import Payload, QueueSpec, Recorded, ShardRef
from celery_lowkiq.store.jobs.call_records import PAGE_CALLS, parse_call
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.scripts.client import member_scores
from celery_lowkiq.store.scripts.keys import MORGUE_KEYS, WAITING_KEYS, KeyAliases, shard_keys
from celery_lowkiq.store.scripts.records import parse_id, parse_processing, parse_retry_count
from celery_lowkiq.store.scripts.script import load

#: What one script reads: ids, payloads, and their size in bytes.
STEP_IDS = 100
STEP = 500
STEP_BYTES = 256 * 1024
#: Jobs in processing that are read at once; each may have 1 MiB.
STEP_PROCESSING = 10
#: Where the jobs of a state are found, and what they have.
_PLACES = (
    (State.WAITING, "due", WAITING_KEYS),
    (State.WAITING, "due_prioritized", WAITING_KEYS),
    (State.WAITING, "due_paused", WAITING_KEYS),
    (State.DEAD, "dead_ids", MORGUE_KEYS),
)


class Dumping:
    """Reads for a dump, of queues as they are stored. Every method may raise StoreError."""

    def __init__(self, store: RedisStore) -> None:
        self._client = store.client

    def last_score(self, queue: QueueSpec) -> int:
        """The largest score (us) that a shard of the queue has made."""
        commands = [("HGET", shard_keys(shard)["meta"], "score") for shard in queue.shard_refs()]
        return max(
            int(found) if found and found.isdigit() else 0 for found in self._client.commands(commands)
        )

    def entries(self, queue: QueueSpec) -> Iterator[Entry]:
        """All that is of a job in one state from beginning to end; what changes meanwhile may be missed, or
        come twice. Calls come before their payloads.
        """
        for shard in queue.shard_refs():
            for ids in self._ids(shard, "claimed", STEP_PROCESSING):
                yield from self._processing(shard, ids)
            for state, index, names in _PLACES:
                for ids in self._ids(shard, index, STEP_IDS):
                    yield from self._jobs(shard, state, names, ids)

    def _ids(self, shard: ShardRef, index: str, step: int) -> Iterator[list[bytes]]:
        """Ids of a sorted set, so many at a time: a scan finds all that are there throughout."""
        cursor = 0
        while True:
            (reply,) = self._client.commands([("ZSCAN", shard_keys(shard)[index], cursor, "COUNT", step)])
            cursor, ids = int(reply[0]), [job_id for job_id, _ in member_scores(reply[1])]
            for start in range(0, len(ids), step):
                yield ids[start : start + step]
            if cursor == 0:
                return

    def _processing(self, shard: ShardRef, ids: Sequence[bytes]) -> Iterator[Entry]:
        (records,) = self._client.commands([("HMGET", shard_keys(shard)["processing"], *ids)])
        for job_id, record in zip(ids, records, strict=True):
            if record:
                job = parse_processing(job_id, record)
                if job.recorded:
                    yield from self._calls(shard, job_id)
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
        self, shard: ShardRef, state: State, names: dict[str, str], ids: Sequence[bytes]
    ) -> Iterator[Entry]:
        keys, cursor, told = KeyAliases(shard_keys(shard), names), b"", b""
        while ids:
            call = load("dump").call(keys, ids, cursor=cursor, limit=STEP, max_bytes=STEP_BYTES)
            dealt, cursor, *jobs = self._client.call(call)
            ids = ids[dealt:]
            for job_id, when, tried, error, priority, *items in jobs:
                payloads = _payloads(items)
                if told != job_id and any(payload.recorded is not Recorded.NONE for payload in payloads):
                    yield from self._calls(shard, job_id)
                    told = job_id
                count = -1 if state is State.DEAD else parse_retry_count(tried)[0]
                yield Entry(
                    state, parse_id(job_id), float(when), count, error or None, payloads, priority=priority
                )

    def _calls(self, shard: ShardRef, job_id: bytes) -> Iterator[Entry]:
        start, stop = b"[" + job_id + b"\0", b"(" + job_id + b"\1"
        while start:
            command = ("ZRANGEBYLEX", shard_keys(shard)["calls"], start, stop, "LIMIT", 0, PAGE_CALLS)
            (members,) = self._client.commands([command])
            calls = [parse_call(member) for member in members]
            if calls:
                found = tuple(DumpedCall(call.digest, call.data) for call in calls)
                yield Entry(State.CALLS, parse_id(job_id), calls=found)
            start = b"(" + members[-1] if len(members) == PAGE_CALLS else b""


def _payloads(items: Sequence[Any]) -> tuple[Payload, ...]:
    return tuple(
        Payload(items[i + 1], float(items[i]), Recorded(items[i + 2].decode()))
        for i in range(0, len(items), 3)
    )
