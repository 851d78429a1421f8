"""Converts jobs to scripts that push them."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from celery_lowkiq.rules.errors import LowkiqError, StoreUnavailable
from celery_lowkiq.rules.layout import shard_of
from celery_lowkiq.rules.models import NewJob, QueueSpec, ShardRef
from celery_lowkiq.rules.priorities import MOST_URGENT
from celery_lowkiq.store.scripts.keys import channel, shard_keys
from celery_lowkiq.store.scripts.records import id_bytes, number_text
from celery_lowkiq.store.scripts.script import ScriptCall, Value, load

from .call_records import digest

T = TypeVar("T")


class Signer(Protocol):
    """Signs what a push stores: see ``rules/signatures.py``."""

    def sign_payload(self, queue: str, job_id: bytes, payload: bytes, score: float | None) -> bytes:
        """Return the signature of a payload; ``score``: None when Redis makes it."""

    def sign_record(self, queue: str, job_id: bytes, digest: bytes, record: bytes) -> bytes:
        """Return the signature of a call record."""


#: Called with jobs that their shards have stored; again when their push is repeated.
Stored = Callable[[Sequence[NewJob]], None]

#: Limits of one push script; the last payload may exceed the bytes.
CHUNK_JOBS = 500
CHUNK_BYTES = 1024 * 1024


class Sender:
    """Numbers the pushes of one caller at a time, so that shards recognise a repeated one."""

    def __init__(self) -> None:
        self.id: str = uuid.uuid4().hex
        self.numbers: Iterator[int] = itertools.count(1)


def chunked(jobs: Sequence[NewJob]) -> Iterator[list[NewJob]]:
    """Split jobs into parts within the limits of one script, in order."""
    chunk: list[NewJob] = []
    size = 0
    for job in jobs:
        chunk.append(job)
        size += len(job.payload) + len(job.record or b"")
        if len(chunk) == CHUNK_JOBS or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


#: Returns the same object each time, which a look-up finds without a comparison.
_shard = lru_cache(maxsize=8192)(ShardRef)


def turns(queue: QueueSpec, jobs: Sequence[NewJob]) -> Iterable[Mapping[ShardRef, Sequence[NewJob]]]:
    """Split jobs into parts by shard, in order: one chunk of a shard at a time, so that none overtakes a
    refused one.
    """
    if len(jobs) > 1:
        return _turns(queue, jobs)
    return [{_shard(queue.name, shard_of(job.id, queue.shards)): jobs} for job in jobs]


def _turns(queue: QueueSpec, jobs: Sequence[NewJob]) -> Iterator[Mapping[ShardRef, Sequence[NewJob]]]:
    by_index: defaultdict[int, list[NewJob]] = defaultdict(list)
    shards = queue.shards
    for job in jobs:
        by_index[shard_of(job.id, shards)].append(job)
    waiting = {_shard(queue.name, index): chunked(part) for index, part in by_index.items()}
    turn: Mapping[ShardRef, Sequence[NewJob]]
    while turn := {shard: chunk for shard, chunks in waiting.items() if (chunk := next(chunks, None))}:
        yield turn


def push_call(
    queue: QueueSpec, shard: ShardRef, sender: Sender, jobs: Sequence[NewJob], signer: Signer | None = None
) -> ScriptCall:
    """Return the script call that pushes jobs to their shard with the sender's next number."""
    rest: list[Value] = []
    records: list[Value] = []
    signatures = b""
    usual = queue.policies.priority
    prioritized = usual != MOST_URGENT or any(job.priority for job in jobs)
    for position, job in enumerate(jobs):
        # Most calls have no times: a call of the functions costs more than to look.
        job_id = id_bytes(job.id)
        score = "" if job.score is None and job.sent is None else _score(job)
        when = "" if job.perform_in is None and job.delay is None else _when(job)
        if prioritized:
            when = f"{usual if job.priority is None else job.priority} {when}"
        rest += (job_id, job.payload, score, when)
        if signer is not None:
            signatures += signer.sign_payload(queue.name, job_id, job.payload, job.score)
        if job.record is not None:
            of = digest(job.payload)
            signature = b"" if signer is None else signer.sign_record(queue.name, job_id, of, job.record)
            records += (position, of, signature + job.record)
    return load("push").call(
        shard_keys(shard),
        rest + records,
        shards=queue.layout.route,
        merge=queue.merge.value,
        policy=queue.policy + (" prioritized=1" if prioritized else "") + _arriving(queue, jobs),
        sender=sender.id,
        n=next(sender.numbers),
        channel=channel(queue.name),
        index=shard.index,
        signatures=signatures,
        records=len(records) // 3,
    )


def _score(job: NewJob) -> str:
    if job.score is not None:
        return number_text(job.score)
    return "" if job.sent is None else f"~{number_text(job.sent)}"


def _when(job: NewJob) -> str:
    if job.perform_in is not None:
        return number_text(job.perform_in)
    return "" if job.delay is None else f"+{number_text(job.delay)}"


def _arriving(queue: QueueSpec, jobs: Sequence[NewJob]) -> str:
    """Return the word of a policy that names the jobs that may have more in their former shards."""
    if queue.former_shards is None:
        return ""
    layout = queue.layout
    found = [str(n) for n, job in enumerate(jobs) if layout.former_home(job.id) is not None]
    return f" arriving={','.join(found)}" if found else ""


def taken(turn: Mapping[ShardRef, Sequence[NewJob]], replies: Sequence[Any]) -> list[NewJob]:
    """Return the jobs of the shards that have accepted them."""
    answers = zip(turn.values(), replies, strict=True)
    return [job for jobs, reply in answers if not isinstance(reply, LowkiqError) for job in jobs]


def refused(turn: Mapping[ShardRef, Sequence[NewJob]], replies: Sequence[Any]) -> list[NewJob]:
    """Return the jobs of the shards that have refused them."""
    answers = zip(turn.values(), replies, strict=True)
    return [job for jobs, reply in answers if isinstance(reply, LowkiqError) for job in jobs]


def retried(pauses: Iterator[float], attempt: Callable[[], T]) -> T:
    """Repeat an attempt after each interval (s) while Redis is unavailable. Raises StoreUnavailable after the
    last.
    """
    while True:
        try:
            return attempt()
        except StoreUnavailable:
            pause = next(pauses, None)
            if pause is None:
                raise
        threading.Event().wait(pause)
