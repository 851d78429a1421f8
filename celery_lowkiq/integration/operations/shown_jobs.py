"""Jobs as a queue shows them: with decoded payloads, or with the stored bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from celery_lowkiq.integration.app.codec import MARK
from celery_lowkiq.integration.app.context import AppContext
from celery_lowkiq.integration.app.error_text import load_error, with_frames
from celery_lowkiq.integration.app.gate import Gate
from celery_lowkiq.rules.errors import UndecodablePayload
from celery_lowkiq.rules.fingerprints import read_mark
from celery_lowkiq.rules.models import Job, Payload
from celery_lowkiq.rules.priorities import MOST_URGENT
from celery_lowkiq.rules.views import DeadJob, Found

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
        """Decode a dead job."""
        payloads = self._payloads(job.id, job.payloads)
        state = job.updated_at, self._error(job.error), job.held_since, self._failure(job.error)
        return ShownDeadJob(job.id, payloads, job.payload_count, *state)

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
