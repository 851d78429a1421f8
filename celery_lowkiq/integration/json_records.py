"""JSON records: values that reads return, masked, as JSON."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import cache, singledispatch
from typing import Any, NamedTuple

from kombu.utils.json import JSONEncoder

from celery_lowkiq.integration.app import AppContext
from celery_lowkiq.integration.call_form import CallForm
from celery_lowkiq.integration.codec import MARK, plain_json
from celery_lowkiq.integration.error_text import load_error, with_frames
from celery_lowkiq.integration.gate import Gate
from celery_lowkiq.integration.messages import masked_beginning, masked_payload, may_have_secrets
from celery_lowkiq.rules.diagnosis import Reason, Why
from celery_lowkiq.rules.errors import UndecodablePayload
from celery_lowkiq.rules.fingerprints import read_mark
from celery_lowkiq.rules.models import Job, Payload, ShardRef
from celery_lowkiq.rules.policies import MOST_URGENT
from celery_lowkiq.rules.redaction import MASK, Redactor
from celery_lowkiq.rules.text import nested_in_lists, shortened
from celery_lowkiq.rules.topology import Master, Topology
from celery_lowkiq.rules.tracking import Counts, TrackedCall, TrackerView
from celery_lowkiq.rules.views import DeadJob, Found, NodeReport, Rates, ShardReport, Stats, Try

# Jobs as a queue shows them: with decoded payloads, or with the stored bytes.

#: Stands for the decoded value of bytes that were not decoded.
NOT_DECODED: Any = object()


class Masked(NamedTuple):
    """A stored payload that is not shown: its mark (None: it was cut) and size in bytes.

    ``hides``: whether anything of it is masked.
    """

    mark: str | None
    size: int
    hides: bool


@dataclass(frozen=True)
class ShownPayload:
    """A payload and its score. ``readable`` is False when ``value`` is the stored bytes, not decoded."""

    value: Any
    score: float
    readable: bool = True
    #: Size of the payload in bytes when ``value`` is only its beginning.
    cut_from: int | None = None
    #: The stored payload, when ``value`` is made of it with masks.
    masked: Masked | None = None
    #: The value of stored bytes that are not JSON, where the queue shows both.
    decoded: Any = NOT_DECODED
    #: Why a whole payload is not decoded, so that ``value`` is the stored bytes; "" for none.
    fault: str = ""


Mask = Callable[[ShownPayload], ShownPayload]


@dataclass(frozen=True)
class ShownJob:
    """A waiting job, or one in processing.

    ``perform_in`` is the Unix time (s) at which it is due. ``retry_count`` is -1 before its first failure.
    ``paused``: its id is paused. ``held``: a dead payload holds its id. ``priority`` is from 0, the most
    urgent, to 9. ``failure``: the fingerprint of its error, "" without one.
    """

    id: str
    payloads: tuple[ShownPayload, ...]
    payload_count: int
    perform_in: float
    retry_count: int
    error: str | None
    paused: bool = False
    priority: int = MOST_URGENT
    held: bool = False
    failure: str = ""


@dataclass(frozen=True)
class ShownDeadJob:
    """A job in the morgue. ``updated_at`` is the Unix time (s) of its last death.

    ``held_since``: since when (Unix s) it holds its id; None: newer payloads go on.
    ``failure``: as for a waiting job.
    """

    id: str
    payloads: tuple[ShownPayload, ...]
    payload_count: int
    updated_at: float
    error: str | None
    held_since: float | None = None
    failure: str = ""


@dataclass(frozen=True)
class ShownPlaces:
    """The places of an id. It can be in several at once: waiting, in processing, and in the morgue."""

    waiting: ShownJob | None
    processing: ShownJob | None
    dead: ShownDeadJob | None


class JobDecoder:
    """Decodes payloads and errors of the stored jobs of a queue.

    ``raw``: payloads are the stored bytes; ``decodes``: with the values of those that are not JSON.
    ``mask`` masks what is shown of a payload.
    ``frames_of`` returns the frames that the failures of a fingerprint have in common; called once for each.
    ``fingerprint_of`` returns that of a stored error.
    """

    def __init__(
        self,
        context: AppContext,
        queue: str,
        raw: bool,
        decodes: bool,
        frames_of: Callable[[str], str],
        fingerprint_of: Callable[[bytes], str],
        mask: Mask | None = None,
    ) -> None:
        self._context = context
        self._gate: Gate = context.gate(queue)
        self._raw = raw
        self._decodes = decodes
        self._mask = mask
        self._frames_of = cache(frames_of)
        self._fingerprint_of = fingerprint_of

    def job(self, job: Job) -> ShownJob:
        """Decode a waiting job, or one in processing."""
        return ShownJob(
            id=job.id,
            payloads=self._payloads(job.id, job.payloads),
            payload_count=job.payload_count,
            perform_in=job.perform_in,
            retry_count=job.retry_count,
            error=self._error(job.error),
            paused=job.paused,
            priority=job.priority,
            held=job.held,
            failure=self._failure(job.error),
        )

    def dead_job(self, job: DeadJob) -> ShownDeadJob:
        return ShownDeadJob(
            id=job.id,
            payloads=self._payloads(job.id, job.payloads),
            payload_count=job.payload_count,
            updated_at=job.updated_at,
            error=self._error(job.error),
            held_since=job.held_since,
            failure=self._failure(job.error),
        )

    def places(self, found: Found) -> ShownPlaces:
        """Decode the jobs of an id."""
        return ShownPlaces(
            waiting=self.job(found.waiting) if found.waiting else None,
            processing=self.job(found.processing) if found.processing else None,
            dead=self.dead_job(found.dead) if found.dead else None,
        )

    def _error(self, data: bytes | None) -> str | None:
        text = load_error(self._context.settings, data)
        fingerprint, _ = read_mark(data or b"")
        return with_frames(text, fingerprint, self._frames_of(fingerprint)) if text and fingerprint else text

    def _failure(self, data: bytes | None) -> str:
        return self._fingerprint_of(data) if data else ""

    def _payloads(self, job_id: str, payloads: Iterable[Payload]) -> tuple[ShownPayload, ...]:
        shown = (self._payload(job_id, payload) for payload in payloads)
        return tuple(map(self._mask, shown) if self._mask else shown)

    def _payload(self, job_id: str, payload: Payload) -> ShownPayload:
        stored = ShownPayload(payload.data, payload.score, readable=False, cut_from=payload.cut_from)
        is_stored = self._raw and not (self._decodes and payload.data.startswith(MARK))
        if is_stored or payload.cut_from:
            return stored
        try:
            value = self._gate.load(job_id, payload)
        except UndecodablePayload as error:
            return replace(stored, fault=str(error))
        return replace(stored, decoded=value) if self._raw else ShownPayload(value, payload.score)


# Records as JSON: the one encoder of the command line, the JSON API, Flower and remote control.
#
# Dataclasses and named tuples are written with their fields. :func:`record_of` replaces a value whose JSON
# has other fields, and the API's description is made from its return types.

#: Longest ``repr`` of a value that JSON cannot hold, in characters.
LONGEST_REPR = 10_000
#: Errors of an encoder for keys that JSON lacks, for circles, for numbers as NaN, and for depth.
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
    #: True if secrets in it are masked.
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

    On a cluster, ``unreachable`` has the shards that are not counted, by the address of their master. Nodes
    and lanes are null while the master with their reports is unreachable. A master that denies a right of
    the user counts as unreachable, and is in ``denied`` with its error.
    """

    queues: tuple[QueueJson, ...]
    total: Stats
    rates: Rates | None
    damaged: Mapping[str, str]
    unreachable: Mapping[str, str]
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

    On a cluster, ``unreachable`` has the shards of unreachable masters, by address; ``denied`` the errors of
    masters that deny a right of the user.
    """

    queues: Sequence[QueueShardsJson]
    damaged: Mapping[str, str]
    unreachable: Mapping[str, str]
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
    return WhyJson(found.facts.id, found.facts.shard.queue, found.kind, found.text, found.reasons)


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
    facts = why.facts
    return PlacesJson(
        id=facts.id,
        queue=facts.shard.queue,
        shard=facts.shard.index,
        owner=facts.owner.name if facts.owner else None,
        **vars(places),
        why=why,
        tries=tries,
    )


def _read(data: bytes, decoded: Any = NOT_DECODED) -> tuple[bool, Any]:
    """Return True if a payload can be read, and its value."""
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


# Masks what ``lowkiq_redact`` names in the payloads that pages and the API show.


class PayloadMask:
    """Masks payloads of a queue, whose tasks have ``form``.

    Bytes that are neither JSON nor decoded are masked whole, because they may have a secret. ``marks``:
    whether payloads with masks have their mark, a digest by which a short secret can be guessed.
    """

    def __init__(self, redactor: Redactor, form: CallForm | None = None, marks: bool = True) -> None:
        self._redactor = redactor
        self._form = form
        self._marks = marks

    def __call__(self, payload: ShownPayload) -> ShownPayload:
        """The payload with masks; ``value`` is JSON in bytes, or a decoded value if it was decoded."""
        if not self._redactor:
            return payload
        if payload.readable:
            masked = self.value(payload.value)
            return replace(payload, value=masked, masked=Masked(None, 0, masked != payload.value))
        data = bytes(payload.value)
        text, hides = self._cut(data) if payload.cut_from else self._whole(data, payload.decoded)
        mark = None if payload.cut_from or (hides and not self._marks) else mark_of_bytes(data)
        about = Masked(mark, payload.cut_from or len(data), hides)
        value = data if text is None else text.encode("utf-8", "surrogatepass")
        cut_from = payload.cut_from and max(payload.cut_from, len(value) + 1)
        shown = payload if text is None else replace(payload, decoded=NOT_DECODED)
        return replace(shown, value=value, cut_from=cut_from, masked=about)

    def stored(self, data: bytes) -> bytes:
        """The same of stored bytes alone."""
        found: bytes = self(ShownPayload(data, 0.0, readable=False)).value
        return found

    def value(self, value: Any) -> Any:
        """A decoded payload with masks."""
        return masked_payload(self._form, value, self._redactor)

    def _cut(self, data: bytes) -> tuple[str | None, bool]:
        """Return the shown beginning of a payload, None for all of it; and True if it hides something."""
        if data[:1] == MARK:
            return MASK, True
        try:
            text = data.decode("utf-8", "ignore" if _is_text(data) else "strict")
        except UnicodeDecodeError:
            return MASK, True
        shown = masked_beginning(self._form, text, self._redactor)
        return shown, shown is not None

    def _whole(self, data: bytes, decoded: Any) -> tuple[str | None, bool]:
        """The JSON that is shown of a whole payload, None: the payload; and whether it hides something."""
        try:
            text, value = data.decode("utf-8"), plain_json(data)
        except (ValueError, RecursionError):
            return self._other(decoded), True
        if not may_have_secrets(self._form, text, self._redactor):
            return None, False
        try:
            # The value has only the last of two equal keys.
            masked = self.value(value)
            return json.dumps(masked, ensure_ascii=False), masked != value or self._redactor.may_have(text)
        except (ValueError, RecursionError):
            return json.dumps(MASK), True

    def _other(self, decoded: Any) -> str:
        """The JSON that is shown of a payload that is not JSON."""
        try:
            text = value_text(MASK if decoded is NOT_DECODED else self.value(decoded))
            return text if _is_json(text) else json.dumps(text, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError):
            return json.dumps(MASK)


def _is_json(text: str) -> bool:
    """True if a text is JSON, not the ``repr`` of a value that JSON cannot hold."""
    try:
        plain_json(text)
    except (ValueError, RecursionError):
        return False
    return True


def _is_text(data: bytes) -> bool:
    """True if the bytes are UTF-8 up to a character that is cut."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start >= len(data) - 3
    return True
