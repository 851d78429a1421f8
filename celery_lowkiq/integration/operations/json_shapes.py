"""The JSON of stats, jobs, nodes and the rest: one record for each, and one encoder.

The command line, the JSON API, Flower and remote control all write these records. The API's description is
made from them, too. A record of another module that holds plain values is used as it is.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from celery_lowkiq.integration.app.codec import refuse_constant
from celery_lowkiq.rules.diagnosis import Reason, Why
from celery_lowkiq.rules.errors import UndecodablePayload
from celery_lowkiq.rules.health_checks import Finding
from celery_lowkiq.rules.history import Rates, Sample
from celery_lowkiq.rules.reports import NodeReport, ShardReport
from celery_lowkiq.rules.text import nested_in_lists
from celery_lowkiq.rules.tracking import Message, State, TrackedCall
from celery_lowkiq.rules.views import Stats, Try

from .json_encoder import AS_IS, writable
from .queue import ShownDeadJob, ShownJob, ShownPayload, ShownPlaces


@dataclass(frozen=True)
class Reading:
    """How payloads are read: ``load`` decodes what is not JSON; ``longest`` is the most bytes of one."""

    load: Callable[[bytes], Any] | None = None
    longest: int = sys.maxsize


AS_JSON = Reading()


@dataclass(frozen=True)
class PayloadJson:
    """A payload. ``value`` is null when it is not JSON; ``base64`` then has its bytes."""

    score: float
    value: Any = field(metadata=AS_IS)
    base64: str | None
    #: Bytes of the whole payload, and whether ``base64`` holds only the beginning of them.
    size: int
    cut: bool
    #: Names the payload in a change; null when it was cut.
    mark: str | None


@dataclass(frozen=True)
class JobJson:
    """A waiting or processing job. ``paused``: its id is paused."""

    id: str
    payloads: tuple[PayloadJson, ...]
    payload_count: int
    perform_in: float
    retry_count: int
    error: str | None
    paused: bool
    priority: int


@dataclass(frozen=True)
class DeadJobJson:
    """A job in the morgue; ``updated_at`` is the Unix time (s) of its last death."""

    id: str
    payloads: tuple[PayloadJson, ...]
    payload_count: int
    updated_at: float
    error: str | None


@dataclass(frozen=True)
class WhyJson:
    """Why an id is not running: the reasons, the main one first."""

    id: str
    queue: str
    kind: str
    text: str
    reasons: tuple[Reason, ...]


@dataclass(frozen=True)
class PlacesJson:
    """Everything about one id; an id may wait while it is processed, and be dead as well."""

    id: str
    queue: str
    shard: int
    owner: str | None
    waiting: JobJson | None
    processing: JobJson | None
    dead: DeadJobJson | None
    why: WhyJson
    tries: tuple[Try, ...]


@dataclass(frozen=True)
class QueueJson:
    """A queue with its counts, and jobs a second over the last minute (null: unknown)."""

    name: str
    shards: int
    stats: Stats
    rates: Rates | None


@dataclass(frozen=True)
class OverviewJson:
    """All queues; a damaged one is in ``damaged`` with its error. Nodes and lanes: those that are alive."""

    queues: tuple[QueueJson, ...]
    total: Stats
    rates: Rates | None
    damaged: Mapping[str, str]
    nodes: int
    lanes: int
    lanes_busy: int


@dataclass(frozen=True)
class LowkiqCounts:
    """Counts of a queue in Lowkiq's form."""

    length: int
    morgue_length: int
    lag: float


@dataclass(frozen=True)
class LowkiqStats:
    """Counts of all queues in Lowkiq's form."""

    total: LowkiqCounts
    by_worker: Mapping[str, LowkiqCounts]


@dataclass(frozen=True)
class ShardsJson:
    """The shards of a queue; since when (Unix s) the queue is paused, and how many ids are."""

    shards: tuple[ShardReport, ...]
    paused: float | None
    paused_ids: int


@dataclass(frozen=True)
class SamplesJson:
    """Counters of the last hour, oldest first."""

    samples: tuple[Sample, ...]


@dataclass(frozen=True)
class NodesJson:
    """All nodes that reported within the last hour."""

    nodes: tuple[NodeReport, ...]


@dataclass(frozen=True)
class FindingsJson:
    """The results of all health checks."""

    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class CallJson:
    """A tracked call. ``payload`` is its text when it is not JSON."""

    task_id: str
    queue: str
    id: str
    payload: Any = field(metadata=AS_IS)
    state: State
    updated_at: float
    current: float | None
    total: float | None
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class OperationJson:
    """A change: how far it is, and who began it."""

    id: str
    action: str
    queue: str
    user: str
    state: str
    count: int
    total: int
    began_at: float
    ended_at: float | None
    error: str


@dataclass(frozen=True)
class OperationsJson:
    """The changes of this process, newest first."""

    operations: tuple[OperationJson, ...]


@dataclass(frozen=True)
class ErrorJson:
    """What went wrong, in one sentence."""

    error: str


# -- records of what a queue shows


def mark_of(payload: ShownPayload) -> str | None:
    """A name of a raw payload, made from all of its bytes; None when it was cut."""
    if payload.cut_from:
        return None
    return f"{hashlib.blake2b(payload.value, digest_size=16).hexdigest()}-{len(payload.value)}"


def payload_json(found: ShownPayload, reading: Reading = AS_JSON) -> PayloadJson:
    """Of a raw payload."""
    data, size = found.value[: reading.longest], found.cut_from or len(found.value)
    cut = len(data) < size
    readable, value = (False, None) if cut else _read(data, reading)
    text = None if readable else base64.b64encode(data).decode()
    return PayloadJson(found.score, value, text, size, cut, mark_of(found))


def _read(data: bytes, reading: Reading) -> tuple[bool, Any]:
    """Whether it can be read, and the value."""
    try:
        value = json.loads(data, parse_constant=refuse_constant)
        json.dumps(nested_in_lists(value))
    except (ValueError, RecursionError):
        pass
    else:
        return True, value
    try:
        return (True, writable(reading.load(data))) if reading.load else (False, None)
    except UndecodablePayload:
        return False, None


def job_json(found: ShownJob, reading: Reading = AS_JSON) -> JobJson:
    """Of a job of a raw queue."""
    return JobJson(
        found.id,
        tuple(payload_json(one, reading) for one in found.payloads),
        found.payload_count,
        found.perform_in,
        found.retry_count,
        found.error,
        found.paused,
        found.priority,
    )


def dead_job_json(found: ShownDeadJob, reading: Reading = AS_JSON) -> DeadJobJson:
    """Of a dead job of a raw queue."""
    payloads = tuple(payload_json(one, reading) for one in found.payloads)
    return DeadJobJson(found.id, payloads, found.payload_count, found.updated_at, found.error)


def why_json(found: Why) -> WhyJson:
    """Of the answer to why an id does not run."""
    shard = found.facts.shard
    return WhyJson(found.facts.id, shard.queue, found.kind, found.text, found.reasons)


def places_json(
    places: ShownPlaces, why: Why, tries: tuple[Try, ...], reading: Reading = AS_JSON
) -> PlacesJson:
    """Of all that a raw queue has of one id."""
    shard, owner = why.facts.shard, why.facts.owner
    return PlacesJson(
        id=why.facts.id,
        queue=shard.queue,
        shard=shard.index,
        owner=owner.name if owner else None,
        waiting=job_json(places.waiting, reading) if places.waiting else None,
        processing=job_json(places.processing, reading) if places.processing else None,
        dead=dead_job_json(places.dead, reading) if places.dead else None,
        why=why_json(why),
        tries=tries,
    )


def call_json(found: TrackedCall, reading: Reading = AS_JSON) -> CallJson:
    """Of a call of a raw tracker."""
    readable, value = _read(found.payload, reading)
    return CallJson(
        found.task_id,
        found.queue,
        found.id,
        value if readable else found.payload.decode("utf-8", "backslashreplace"),
        found.state,
        found.updated_at,
        found.current,
        found.total,
        found.messages,
    )


def lowkiq_stats(total: Stats, by_queue: Mapping[str, Stats]) -> LowkiqStats:
    """Counts in Lowkiq's form."""
    return LowkiqStats(_lowkiq(total), {name: _lowkiq(stats) for name, stats in by_queue.items()})


def _lowkiq(found: Stats) -> LowkiqCounts:
    return LowkiqCounts(found.length, found.morgue_length, found.lag)
