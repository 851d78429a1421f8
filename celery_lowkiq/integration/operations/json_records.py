"""Records as JSON: the one encoder of the command line, the JSON API, Flower and remote control.

Dataclasses and named tuples are written with their fields. :func:`record_of` replaces a value whose JSON has
other fields, and the API's description is made from its return types.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import singledispatch
from typing import Any, NamedTuple

from kombu.utils.json import JSONEncoder

from celery_lowkiq.integration.app.codec import plain_json
from celery_lowkiq.rules.diagnosis import Reason, Why
from celery_lowkiq.rules.history import Rates
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.reports import NodeReport, ShardReport
from celery_lowkiq.rules.text import nested_in_lists, shortened
from celery_lowkiq.rules.topology import Master, Topology
from celery_lowkiq.rules.tracking import Counts, TrackedCall, TrackerView
from celery_lowkiq.rules.views import Stats, Try

from .shown_jobs import NOT_DECODED, ShownDeadJob, ShownJob, ShownPayload, ShownPlaces

#: Longest ``repr`` of a value that JSON cannot hold, in characters.
LONGEST_REPR = 10_000
#: What an encoder raises for keys that JSON lacks, for circles, for numbers as NaN, and for depth.
UNWRITABLE = (TypeError, ValueError, RecursionError)
#: Properties that belong to the JSON of a record.
COMPUTED: dict[type, tuple[str, ...]] = {
    NodeReport: ("alive",),
    TrackerView: ("done",),
    Counts: ("total",),
    Master: ("shard_count",),
    Topology: ("skew", "clock_skew", "unassigned"),
}


class PlainValue(NamedTuple):
    """A value that is written as it is: no record in it is replaced."""

    value: Any


@dataclass(frozen=True)
class PayloadJson:
    """A payload. ``value`` is null when it is not JSON; ``base64`` then has its bytes."""

    score: float
    value: Any
    base64: str | None
    #: Bytes of the whole payload, and whether ``base64`` holds only the beginning of them.
    size: int
    cut: bool
    #: Names the payload in a change; null when it was cut.
    mark: str | None
    #: Whether secrets in it are masked.
    redacted: bool


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
    waiting: ShownJob | None
    processing: ShownJob | None
    dead: ShownDeadJob | None
    why: Why
    tries: tuple[Try, ...]


@dataclass(frozen=True)
class QueueJson:
    """A queue with its counts, and jobs a second over the last minute (null: unknown).

    ``former_shards``: the number of shards from which its jobs move to ``shards``.
    """

    name: str
    shards: int
    former_shards: int | None
    stats: Stats
    rates: Rates | None


@dataclass(frozen=True)
class OverviewJson:
    """All queues; a damaged one is in ``damaged`` with its error. Nodes and lanes: those that are alive.

    On a cluster, ``away`` has the shards that are not counted, by the address of their master. Nodes and
    lanes are null while the master with their reports is away. A master that denies a right of the user
    counts as away, and is in ``denied`` with its error.
    """

    queues: tuple[QueueJson, ...]
    total: Stats
    rates: Rates | None
    damaged: Mapping[str, str]
    away: Mapping[str, str]
    nodes: int | None
    lanes: int | None
    lanes_busy: int | None
    denied: Mapping[str, str]


@dataclass(frozen=True)
class QueueShardsJson:
    """The shards of a queue, those with the most load first."""

    name: str
    shards: Sequence[ShardReport]


@dataclass(frozen=True)
class ShardsJson:
    """The shards of all queues; a queue that cannot be read is in ``damaged`` with its error.

    On a cluster, ``away`` has the shards of masters that are away, by their address; ``denied`` the errors of
    those that deny a right of the user.
    """

    queues: Sequence[QueueShardsJson]
    damaged: Mapping[str, str]
    away: Mapping[str, str]
    denied: Mapping[str, str]


@singledispatch
def record_of(value: Any, _: int) -> Any:
    """The record that is written for a value: the value itself, unless a type has a record of its own.

    The second argument is the maximum number of bytes of a payload.
    """
    return value


@record_of.register
def _payload(found: ShownPayload, longest: int) -> PayloadJson:
    size = found.masked.size if found.masked else found.cut_from or len(found.value)
    data = found.value[:longest]
    cut = len(data) < (found.cut_from or len(found.value))
    readable, value = (False, None) if cut else _read(data, found.decoded)
    text = None if readable else base64.b64encode(data).decode()
    redacted = found.masked is not None and found.masked.hides
    return PayloadJson(found.score, PlainValue(value), text, size, cut, mark_of(found), redacted)


@record_of.register
def _call(found: TrackedCall, _: int) -> TrackedCall:
    if not isinstance(found.payload, bytes):
        return replace(found, payload=PlainValue(writable(found.payload)))
    readable, value = _read(found.payload)
    return replace(
        found, payload=PlainValue(value if readable else found.payload.decode("utf-8", "backslashreplace"))
    )


@record_of.register
def _why(found: Why, _: int) -> WhyJson:
    shard = found.facts.shard
    return WhyJson(found.facts.id, shard.queue, found.kind, found.text, found.reasons)


def mark_of(payload: ShownPayload) -> str | None:
    """A name of a raw payload, made from all of its stored bytes; None when it was cut."""
    if payload.masked is not None:
        return payload.masked.mark
    return None if payload.cut_from else mark_of_bytes(payload.value)


def mark_of_bytes(data: bytes) -> str:
    """A name of a stored payload."""
    return f"{hashlib.blake2b(data, digest_size=16).hexdigest()}-{len(data)}"


def places_json(places: ShownPlaces, why: Why, tries: tuple[Try, ...]) -> PlacesJson:
    """The record of one id."""
    shard, owner = why.facts.shard, why.facts.owner
    name = owner.name if owner else None
    return PlacesJson(why.facts.id, shard.queue, shard.index, name, **vars(places), why=why, tries=tries)


def _read(data: bytes, decoded: Any = NOT_DECODED) -> tuple[bool, Any]:
    """Whether a payload can be read, and its value."""
    try:
        value = plain_json(data)
        json.dumps(nested_in_lists(value))
    except (ValueError, RecursionError):
        return (False, None) if decoded is NOT_DECODED else (True, writable(decoded))
    return True, value


# -- the encoder


class _Encoder(JSONEncoder):
    """Writes values of unknown types as their ``repr``."""

    def default(self, o: Any) -> Any:
        try:
            return super().default(o)
        except TypeError:
            return _repr(o)


def encode(value: Any, longest: int = sys.maxsize) -> str:
    """A record as one line of JSON, with at most ``longest`` bytes of each payload.

    Characters that are not printable are escaped, so no text can forge a line or control a terminal.
    """
    return _line(plain(value, longest))


def value_text(value: Any) -> str:
    """Any value as one line of JSON, or its ``repr`` when JSON cannot hold it."""
    try:
        return _line(value)
    except UNWRITABLE:
        return _repr(value)


def _line(value: Any) -> str:
    text = _Encoder(ensure_ascii=False, allow_nan=False).encode(value)
    return (
        text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
    )


def plain(value: Any, longest: int = sys.maxsize) -> Any:
    """A record in JSON's own types: a shard as ``queue/index``, numbers that JSON lacks as null."""
    if isinstance(value, PlainValue):
        return value.value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, ShardRef):
        return str(value)
    value = record_of(value, longest)
    if is_dataclass(value):
        found = {one.name: getattr(value, one.name) for one in fields(value)}
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        found = value._asdict()
    elif isinstance(value, Mapping):
        found = dict(value)
    else:
        return [plain(one, longest) for one in value] if isinstance(value, (list, tuple)) else value
    found |= {name: getattr(value, name) for name in COMPUTED.get(type(value), ())}
    return {name: plain(one, longest) for name, one in found.items()}


def writable(value: Any) -> Any:
    """The value, or its ``repr`` when JSON cannot hold it."""
    try:
        _Encoder(ensure_ascii=False, allow_nan=False).encode(nested_in_lists(value))
    except UNWRITABLE:
        return _repr(value)
    return value


def _repr(value: Any) -> str:
    try:
        return shortened(repr(value), LONGEST_REPR)
    except Exception as error:  # noqa: BLE001 - the class is the user's
        return f"<{type(value).__name__} without a repr: {type(error).__name__}>"
