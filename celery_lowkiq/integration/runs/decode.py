"""What of a claimed batch is handed to the task function, and what is not."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from celery_lowkiq.integration.app.codec import Codec
from celery_lowkiq.integration.app.error_text import dump_error_text, load_error
from celery_lowkiq.integration.app.settings import Settings
from celery_lowkiq.rules.errors import UndecodablePayload
from celery_lowkiq.rules.models import BadPayload, Batch, Flag, Job

logger = logging.getLogger("celery_lowkiq")

#: Positions of payloads by the id of their job.
Positions = Mapping[str, Collection[int]]
NOTHING: dict[str, Collection[int]] = {}


class RunJob(NamedTuple):
    """A job as the task function and its callbacks see it; payloads and scores in the same order."""

    id: str
    payloads: tuple[Any, ...]
    scores: tuple[float, ...]
    #: -1 never failed, 0 failed once, ...
    retry_count: int
    #: Unix time in s.
    perform_in: float
    #: Text of the last failure.
    error: str | None


class RunInfo(NamedTuple):
    """``self.request.lowkiq``: where the batch comes from."""

    queue: str
    shard: int
    #: The epoch of the shard's lease; it only grows, so that a database can refuse an older one.
    fence: int
    jobs: tuple[RunJob, ...]
    #: ``lease_lost.is_set()`` while another worker may have the shard: Redis was silent for too long.
    lease_lost: Flag


class Handed(NamedTuple):
    """Of one claimed job. Positions count all of its payloads, places those that are handed over."""

    #: None when nothing of it can be run.
    job: RunJob | None
    #: What goes to the morgue, or is dropped, whatever becomes of the rest.
    bad: tuple[BadPayload, ...]

    def positions(self, job: Job) -> list[int]:
        """Of the claimed job's payloads that are handed over, by place."""
        others = {payload.position for payload in self.bad}
        return [position for position in range(len(job.payloads)) if position not in others]


def hand(job: Job, codec: Codec, settings: Settings, dropped: Collection[int]) -> Handed:
    """A job without the payloads that are ``dropped``, or that nobody can read."""
    payloads: list[Any] = []
    scores: list[float] = []
    bad: list[BadPayload] = []
    for position, payload in enumerate(job.payloads):
        if position in dropped:
            bad.append(BadPayload(position, None))
        else:
            try:
                payloads.append(codec.load(payload.data))
                scores.append(payload.score)
            except UndecodablePayload as reason:
                logger.error("job %r: payload %d goes to the morgue: %s", job.id, position, reason)
                bad.append(BadPayload(position, dump_error_text(settings, f"undecodable payload: {reason}")))
    if not payloads:
        return Handed(None, tuple(bad))
    error = None if job.error is None else load_error(settings, job.error)
    handed = RunJob(job.id, tuple(payloads), tuple(scores), job.retry_count, job.perform_in, error)
    return Handed(handed, tuple(bad))


def with_unwanted(batch: Batch, dropped: Positions) -> Positions:
    """The dropped payloads, with those that policies of the task drop."""
    unwanted = {job.id: range(job.unwanted) for job in batch.jobs if job.unwanted}
    return {job_id: {*dropped.get(job_id, ()), *unwanted.get(job_id, ())} for job_id in {*dropped, *unwanted}}
