"""Decodes a claimed batch: payloads for the task function, and payloads to drop or bury."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from celery_lowkiq.integration.codec import MARK
from celery_lowkiq.integration.error_text import dump_error_text, load_error
from celery_lowkiq.integration.gate import Gate, Unverified
from celery_lowkiq.integration.settings import Settings
from celery_lowkiq.rules.basics import cached_property
from celery_lowkiq.rules.basics import package_logger as logger
from celery_lowkiq.rules.errors import UndecodablePayload
from celery_lowkiq.rules.models import Batch, Flag, Job, Payload, PayloadRemoval, QueueSpec, Recorded
from celery_lowkiq.rules.signatures import Fault, binds_score

#: Positions of payloads by the id of their job.
Positions = Mapping[str, Collection[int]]
#: Check of a decoded payload. Raises UndecodablePayload for one that the task cannot take.
Check = Callable[[Any], None]
NO_POSITIONS: Positions = {}
#: Up to this size in bytes, the payloads of a job are shown whole in logs and events.
SMALL_BYTES = 256


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
    #: ``lease_lost.is_set()`` while another worker may own the shard, because Redis did not answer in time.
    lease_lost: Flag


class DecodedJob(NamedTuple):
    """A claimed job and its decoded payloads.

    A position counts all payloads of the claimed job; a place counts those that run.
    """

    claimed: Job
    #: None when no payload can run.
    job: RunJob | None
    #: Payloads that are dropped or go to the morgue, whatever becomes of the others.
    bad: tuple[PayloadRemoval, ...]
    #: Positions of the payloads that run.
    positions: Sequence[int]
    #: Positions of the payloads that wait for a later run, because one before them cannot be decoded.
    left: Sequence[int] = ()

    def place_of(self, position: int) -> int | None:
        """The place of a payload; None for one that does not run."""
        if not (self.bad or self.left):
            return position
        place = bisect_left(self.positions, position)
        runs = place < len(self.positions) and self.positions[place] == position
        return place if runs else None


class DecodedBatch:
    """A claimed batch with decoded payloads."""

    def __init__(self, batch: Batch, jobs_by_id: Mapping[str, DecodedJob]) -> None:
        self.batch = batch
        #: All jobs of the batch in its order, by id.
        self.jobs_by_id = jobs_by_id
        #: The jobs that run.
        self.jobs: tuple[RunJob, ...] = tuple(
            [each.job for each in jobs_by_id.values() if each.job is not None]
        )

    def includes(self, job_id: str, position: int) -> bool:
        """True if the task function gets this payload of a claimed job."""
        return self.jobs_by_id[job_id].place_of(position) is not None

    @cached_property
    def payloads_by_id(self) -> dict[str, list[Any]]:
        """The argument of the task function."""
        return {job.id: list(job.payloads) for job in self.jobs}

    def payloads_of(self, job_id: str, position: int) -> dict[str, list[Any]]:
        """The payloads of a run of this payload alone: none when it cannot run."""
        job, place = self.jobs_by_id[job_id].job, self.jobs_by_id[job_id].place_of(position)
        return {job_id: [] if job is None or place is None else [job.payloads[place]]}

    @property
    def retries(self) -> int:
        """Celery's ``request.retries``: the largest number of failures of any job."""
        return max((job.retry_count + 1 for job in self.jobs), default=0)

    @property
    def info(self) -> RunInfo:
        lease = self.batch.lease
        return RunInfo(lease.shard.queue, lease.shard.index, lease.epoch, self.jobs, self.batch.lost)


def is_small(batch: Batch) -> bool:
    """True if the payloads of each job are JSON of at most SMALL_BYTES bytes."""
    for job in batch.jobs:
        size = 0
        for payload in job.payloads:
            size += len(payload.data)
            if size > SMALL_BYTES or payload.data.startswith(MARK):
                return False
    return True


def decode_batch(
    batch: Batch,
    gate: Gate,
    settings: Settings,
    dropped: Positions = NO_POSITIONS,
    check: Check | None = None,
) -> DecodedBatch:
    """Decode the payloads of a batch, except those that a policy of the queue drops, and those at ``dropped``
    positions, by id of the job. What passes neither the gate nor the check goes to the morgue.

    With ``when_dead="hold"``, payloads behind one that cannot be decoded are left for a later run, and that
    one, too, when others before it run.
    """
    decoded = (
        _decode_job(batch.queue, job, gate, settings, dropped.get(job.id, ()), check) for job in batch.jobs
    )
    return DecodedBatch(batch, {job.claimed.id: job for job in decoded})


def decode_plain(
    batch: Batch, gate: Gate, check: Check | None = None, recorded: bool = False
) -> dict[str, list[Any]] | None:
    """Return the payloads by id; None if one of them cannot run, or, unless ``recorded``, has a record."""
    load, signs = gate.load, gate.verifies
    payloads_by_id: dict[str, list[Any]] = {}
    try:
        for job in batch.jobs:
            payloads_by_id[job.id] = payloads = []
            if job.unwanted or not job.payloads or (signs and gate.is_reordered(job)):
                return None
            for payload in job.payloads:
                if payload.recorded is not Recorded.NONE and not recorded:
                    return None
                decoded = load(job.id, payload)
                if check is not None:
                    check(decoded)
                payloads.append(decoded)
    except UndecodablePayload:
        return None
    return payloads_by_id


def plain_batch(batch: Batch, payloads_by_id: Mapping[str, list[Any]], settings: Settings) -> DecodedBatch:
    """The batch that ``decode_plain`` decoded."""
    decoded: dict[str, DecodedJob] = {}
    for job in batch.jobs:
        scores = [payload.score for payload in job.payloads]
        runs = _run_job(job, payloads_by_id[job.id], scores, settings)
        decoded[job.id] = DecodedJob(job, runs, (), range(len(scores)))
    return DecodedBatch(batch, decoded)


def _run_job(job: Job, payloads: list[Any], scores: list[float], settings: Settings) -> RunJob:
    error = None if job.error is None else load_error(settings, job.error)
    return RunJob(job.id, tuple(payloads), tuple(scores), job.retry_count, job.perform_in, error)


def _decode_job(
    queue: QueueSpec,
    job: Job,
    gate: Gate,
    settings: Settings,
    dropped: Collection[int],
    check: Check | None,
) -> DecodedJob:
    holds = queue.policies.hold is not None
    payloads: list[Any] = []
    bad: list[PayloadRemoval] = []
    positions: list[int] = []
    stop, reordered = len(job.payloads), gate.is_reordered(job)
    for position, payload in enumerate(job.payloads):
        if position < job.unwanted or position in dropped:
            bad.append(PayloadRemoval(position, None))
            continue
        decoded, reason = _decoded(job.id, payload, gate, check)
        if reordered and binds_score(payload.signature):
            reason = reason or Unverified(Fault.REORDERED.value)
        if reason is None:
            payloads.append(decoded)
            positions.append(position)
        elif holds and payloads:
            stop = position
            break
        else:
            said = "queue %s, job %r: payload %d goes to the morgue: %s"
            logger.error(said, queue.name, job.id, position, reason)
            unverified = isinstance(reason, Unverified)
            text = f"{'unverified' if unverified else 'undecodable'} payload: {reason}"
            bad.append(PayloadRemoval(position, dump_error_text(settings, text), unverified=unverified))
            if holds:
                stop = position + 1
                break
    scores = [job.payloads[position].score for position in positions]
    runs = _run_job(job, payloads, scores, settings) if payloads else None
    return DecodedJob(job, runs, tuple(bad), positions, range(stop, len(job.payloads)))


def _decoded(
    job_id: str, payload: Payload, gate: Gate, check: Check | None
) -> tuple[Any, UndecodablePayload | None]:
    """A decoded payload, or why the task cannot take it."""
    try:
        decoded = gate.load(job_id, payload)
        if check is not None:
            check(decoded)
    except UndecodablePayload as reason:
        return None, reason
    return decoded, None
