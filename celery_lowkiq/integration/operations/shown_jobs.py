"""Jobs as a queue shows them: with decoded payloads, or with the stored bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from celery_lowkiq.integration.app.context import AppContext
from celery_lowkiq.integration.app.error_text import load_error, with_frames
from celery_lowkiq.rules.errors import UndecodablePayload
from celery_lowkiq.rules.fingerprints import read_mark
from celery_lowkiq.rules.models import Job, Payload
from celery_lowkiq.rules.priorities import MOST_URGENT
from celery_lowkiq.rules.views import DeadJob, Found


@dataclass(frozen=True)
class ShownPayload:
    """A payload and its score. ``readable`` is False when ``value`` is the stored bytes, not decoded."""

    value: Any
    score: float
    readable: bool = True
    #: Size of the payload in bytes when ``value`` is only its beginning.
    cut_from: int | None = None


@dataclass(frozen=True)
class ShownJob:
    """A waiting job, or one in processing.

    ``perform_in`` is the Unix time (s) at which it is due. ``retry_count`` is -1 before its first failure.
    ``paused``: its id is paused. ``priority`` is from 0, the most urgent, to 9.
    """

    id: str
    payloads: tuple[ShownPayload, ...]
    payload_count: int
    perform_in: float
    retry_count: int
    error: str | None
    paused: bool = False
    priority: int = MOST_URGENT


@dataclass(frozen=True)
class ShownDeadJob:
    """A job in the morgue. ``updated_at`` is the Unix time (s) of its last death."""

    id: str
    payloads: tuple[ShownPayload, ...]
    payload_count: int
    updated_at: float
    error: str | None


@dataclass(frozen=True)
class ShownPlaces:
    """The places of an id. It can be in several at once: waiting, in processing, and in the morgue."""

    waiting: ShownJob | None
    processing: ShownJob | None
    dead: ShownDeadJob | None


J = TypeVar("J", ShownJob, ShownDeadJob)


class JobDecoder:
    """Decodes payloads and errors of stored jobs. ``raw``: payloads are the stored bytes."""

    def __init__(self, context: AppContext, raw: bool) -> None:
        self._context = context
        self._raw = raw

    def job(self, job: Job) -> ShownJob:
        """Decode a waiting job, or one in processing."""
        error = load_error(self._context.settings, job.error)
        state = (job.perform_in, job.retry_count, error, job.paused, job.priority)
        return ShownJob(job.id, tuple(map(self._payload, job.payloads)), job.payload_count, *state)

    def dead_job(self, job: DeadJob) -> ShownDeadJob:
        """Decode a dead job."""
        payloads = tuple(map(self._payload, job.payloads))
        error = load_error(self._context.settings, job.error)
        return ShownDeadJob(job.id, payloads, job.payload_count, job.updated_at, error)

    def places(self, found: Found, frames_of: Callable[[str], str]) -> ShownPlaces:
        """Decode the jobs of an id, with tracebacks; ``frames_of`` returns the frames of a fingerprint."""
        waiting, processing, dead = found.waiting, found.processing, found.dead

        def whole(shown: J, data: bytes | None) -> J:
            fingerprint, _ = read_mark(data or b"")
            text = shown.error and with_frames(shown.error, fingerprint, frames_of(fingerprint))
            return replace(shown, error=text) if fingerprint else shown

        return ShownPlaces(
            waiting=whole(self.job(waiting), waiting.error) if waiting else None,
            processing=whole(self.job(processing), processing.error) if processing else None,
            dead=whole(self.dead_job(dead), dead.error) if dead else None,
        )

    def _payload(self, payload: Payload) -> ShownPayload:
        if self._raw or payload.cut_from:
            return ShownPayload(payload.data, payload.score, readable=False, cut_from=payload.cut_from)
        try:
            return ShownPayload(self._context.codec.load(payload.data), payload.score)
        except UndecodablePayload:
            return ShownPayload(payload.data, payload.score, readable=False)
