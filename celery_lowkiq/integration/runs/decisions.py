"""Decides what becomes of each job of a run, and of each of its calls. Nothing here acts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

from celery.exceptions import MaxRetriesExceededError, Reject, Retry

from celery_lowkiq.integration.app.error_text import (
    ErrorText,
    dump_error,
    dump_error_text,
    error_text,
    load_error,
)
from celery_lowkiq.integration.app.gate import Gate
from celery_lowkiq.integration.app.settings import Settings
from celery_lowkiq.integration.calls.masking import payload_secrets
from celery_lowkiq.integration.loops.loops import Loops
from celery_lowkiq.integration.records.call_record import CallRecord
from celery_lowkiq.rules.cached_property import cached_property
from celery_lowkiq.rules.errors import UndecodablePayload
from celery_lowkiq.rules.models import (
    Batch,
    Disposition,
    Job,
    PayloadRemoval,
    RemovalReason,
    Settlement,
    StoredRecord,
)
from celery_lowkiq.rules.retry import RetryPolicy, after_failure
from celery_lowkiq.store.scripts.records import try_text

from .base_exceptions import original_error
from .decode import NO_POSITIONS, DecodedBatch, DecodedJob, Positions, RunJob, decode_batch
from .outcomes import (
    Again,
    BusinessFailure,
    CallOutcome,
    Part,
    PoisonPill,
    cause_of,
    delay_of,
    outcomes,
    unwrap,
)

#: Delay in s before a job that goes back without a result may run again.
RETURN_DELAY = 1.0
#: Delay in s before the rest of a job runs again at once. At its own time it would stay the oldest job of the
#: lane, and no other would run.
AT_ONCE = 1e-6


@dataclass(frozen=True)
class RunRules:
    """What all runs of a task have in common."""

    task: Any
    policy: RetryPolicy
    gate: Gate
    settings: Settings
    #: Where the bodies of an ``async def`` task run.
    loops: Loops | None = None

    def with_max_retries(self, max_retries: int) -> RunRules:
        """The rules with another number of retries."""
        return replace(self, policy=replace(self.policy, max_retries=max_retries))

    def decode(self, batch: Batch, dropped: Positions = NO_POSITIONS) -> DecodedBatch:
        """Decode the payloads of a batch that the task can take, except those at ``dropped`` positions."""
        return decode_batch(batch, self.gate, self.settings, dropped, self.task.call_form.check)

    def read_record(self, stored: StoredRecord) -> CallRecord:
        """The call of a stored record. Raises UndecodablePayload."""
        return CallRecord.verified(stored, self.gate)

    def dump_record(self, stored: StoredRecord, record: CallRecord, signs: bool) -> bytes:
        """The bytes of a record at the place of a stored one. ``signs``: what it replaces was signed, because
        otherwise a worker would sign what no caller has. Raises PayloadError.
        """
        data = record.dump(self.gate.record_codec)
        return self.gate.sign_record(stored, data) if signs else data


#: Of a job whose run did not fail.
NO_TEXT = ErrorText(b"", "", "")


class JobDecision(NamedTuple):
    """What becomes of one job."""

    job: Job
    #: For the settle.
    settlement: Settlement
    #: The settlement of the payloads that are done with; another one where Again leaves some.
    ran: Settlement
    error: Exception | None = None
    #: The stored and logged forms of the error, of a job whose run failed.
    text: ErrorText = NO_TEXT
    #: What the function raised, if it is not done with the job.
    again: Again | None = None
    #: Positions of the payloads that stay for a later run.
    left: Collection[int] = ()

    @property
    def dies(self) -> bool:
        """Whether a payload of it goes to the morgue."""
        return self.settlement.disposition in (Disposition.DIE, Disposition.BURY)

    @property
    def is_requested(self) -> bool:
        """Whether the function requested the retry, and named no error."""
        return isinstance(self.error, Retry) and not self.dies


class Decision(NamedTuple):
    """What becomes of a batch."""

    batch: DecodedBatch
    #: By id, in the order of the batch; empty when all jobs are done.
    jobs: Mapping[str, JobDecision] = {}

    @property
    def settlements(self) -> tuple[Settlement, ...]:
        """The settlements for the settle, in the order of the batch."""
        if not self.jobs:
            return tuple([_with_left(job, _done(job), ()) for job in self.batch.jobs_by_id.values()])
        return tuple(decided.settlement for decided in self.jobs.values())

    @property
    def failures(self) -> list[JobDecision]:
        """The jobs that failed, in the order of the batch."""
        return [decided for decided in self.jobs.values() if decided.text is not NO_TEXT]

    def dead_jobs(self, accepted: Collection[str]) -> list[RunJob]:
        """The jobs that died and whose settle was accepted, each with its first payload, error and count."""
        return [
            job._replace(
                payloads=job.payloads[:1],
                scores=job.scores[:1],
                retry_count=decided.settlement.retry_count,
                error=decided.text.text,
            )
            for job in self.batch.jobs
            if (decided := self.jobs.get(job.id)) is not None
            and decided.settlement.disposition is Disposition.DIE
            and job.id in accepted
        ]

    def describe(self, error: Exception, now: float) -> Exception | None:
        """What Celery is to record of a run that raised ``error``: a Retry while any job runs again, else the
        error; None when all jobs are done. ``now``: Unix time in s.
        """
        decided = self.jobs.values()
        delays = [
            _delay(each.settlement, now)
            for each in decided
            if each.settlement.disposition is Disposition.RETRY
        ]
        delays += [each.again.after for each in decided if each.again is not None and each.left]
        errors = [each.error for each in decided if each.error is not None]
        if not delays and not errors:
            return None
        shown = errors[0] if len(self.batch.jobs) == 1 and errors else cause_of(unwrap(error))
        # As Celery's: a Retry that the function asked for has no other cause.
        cause = None if isinstance(shown, Retry) and shown.exc is None else shown
        if isinstance(shown, Again):
            cause = shown = Retry(str(shown))
        if delays:
            return Retry(exc=cause, when=min(delays))  # type: ignore[arg-type]
        if all(isinstance(each, BusinessFailure) for each in errors):
            return shown if isinstance(shown, BusinessFailure) else BusinessFailure(str(shown))
        return MaxRetriesExceededError(str(shown)) if isinstance(shown, Retry) else shown

    def call_outcome(
        self, job_id: str, position: int, success: CallOutcome, settings: Settings, now: float
    ) -> CallOutcome | None:
        """How the calls of a payload end, ``success`` if they do; None when nothing has happened to them.

        ``now``: Unix time in s.
        """
        job, decided = self.batch.jobs_by_id[job_id], self.jobs.get(job_id)
        disposition = Disposition.DONE if decided is None else decided.ran.disposition
        if disposition is Disposition.RETURN or (decided is not None and position in decided.left):
            return None
        if position in job.left:
            return None
        place = job.place_of(position)
        if place is None:
            data = next(bad.error for bad in job.bad if bad.position == position)
            return CallOutcome(True, error=UndecodablePayload(load_error(settings, data) or ""))
        if disposition is Disposition.DONE:
            return success
        assert decided is not None
        error = decided.error
        assert error is not None
        if disposition is Disposition.BURY or (disposition is Disposition.DIE and place == 0):
            dead = MaxRetriesExceededError(str(error)) if isinstance(error, Retry) else error
            return CallOutcome(True, error=dead)
        delay = _delay(decided.ran, now) if disposition is Disposition.RETRY else 0.0
        return CallOutcome(False, error=Retry(exc=error, when=delay))  # type: ignore[arg-type]


def decide_failure(error: Exception, batch: DecodedBatch, rules: RunRules) -> Decision:
    """What becomes of the jobs of a run that raised ``error``.

    Raises InvalidCall when the error is an Again with wrong payloads.
    """
    found, together = outcomes(error, batch.jobs, rules.gate.codec.dump)
    texts = _ErrorTexts(batch, rules)

    def decide(job: DecodedJob) -> JobDecision:
        outcome = found.get(job.claimed.id)
        if outcome is None:
            return _decision(job, _done(job))
        if isinstance(outcome, Part):
            left = {job.positions[place] for place in outcome.left}
            ran = _done(job)._replace(delay=outcome.again.after)
            return _decision(job, ran, again=outcome.again, left=left)
        if isinstance(outcome, BusinessFailure):
            over = (PayloadRemoval(position, None, RemovalReason.OVER) for position in job.positions)
            ran = _done(job)._replace(disposition=Disposition.BURY, bad=(*job.bad, *over))
            return _decision(job, ran, outcome)
        return _failed(job, outcome, together, rules, texts)

    return _decide_each(batch, decide)


def decide_rejection(error: Exception, requeue: bool, before: Decision, rules: RunRules) -> Decision:
    """What becomes of the jobs of a run that raised Reject: back unchanged, or to the morgue.

    ``before``: what was decided before a handler of the task raised Reject.
    """
    reason = getattr(error, "reason", error)
    data = dump_error_text(rules.settings, f"Reject: {reason}")
    rejected = Reject(reason, requeue=False)
    disposition, delay = (Disposition.RETURN, RETURN_DELAY) if requeue else (Disposition.BURY, 0.0)

    def decide(job: DecodedJob) -> JobDecision:
        ran = _done(job)._replace(disposition=disposition, delay=delay, error=data)
        decided = before.jobs.get(job.claimed.id) or _decision(job, ran)
        return decided._replace(settlement=_with_left(job, ran, decided.left), ran=ran, error=rejected)

    return _decide_each(before.batch, decide)


def decide_poison_pill(batch: DecodedBatch, rules: RunRules) -> Decision:
    """Bury the jobs without a run: their payloads took workers down too often."""
    data = batch.batch.queue.poison_error
    text = load_error(rules.settings, data) or ""
    kept = ErrorText(data, text, text)
    return _decide_each(
        batch,
        lambda job: _decision(
            job, _done(job)._replace(disposition=Disposition.BURY, error=data), PoisonPill(text), kept
        ),
    )


def return_batch(batch: Batch, delay: float = RETURN_DELAY) -> tuple[Settlement, ...]:
    """The settlements of a batch that did not run: all jobs go back, for ``delay`` seconds."""
    return tuple(Settlement(job.id, job.claim, Disposition.RETURN, delay=delay) for job in batch.jobs)


def crash_batch(batch: Batch) -> tuple[Settlement, ...]:
    """The settlements of a batch whose process died: it may be a poison pill."""
    queue = batch.queue
    return tuple(
        Settlement(job.id, job.claim, Disposition.CRASH, queue.max_crashes, error=queue.poison_error)
        for job in batch.jobs
    )


def retry_for_results(job: DecodedJob, error: Exception, settings: Settings) -> Settlement:
    """Return the settlement of a job that is done, but some of whose calls have no result.

    It runs again, and never dies of that.
    """
    policy = RetryPolicy(max_retries=None)
    return after_failure(job.claimed, policy, dump_error(settings, error), None, job.bad)


# -- helpers


def _decide_each(batch: DecodedBatch, decide: Callable[[DecodedJob], JobDecision]) -> Decision:
    """Decide about each job that has run; one without a readable payload is done with."""
    jobs = {
        job_id: _decision(job, _done(job)) if job.job is None else decide(job)
        for job_id, job in batch.jobs_by_id.items()
    }
    return Decision(batch, jobs)


def _decision(
    job: DecodedJob,
    ran: Settlement,
    error: Exception | None = None,
    text: ErrorText = NO_TEXT,
    again: Again | None = None,
    left: Collection[int] = (),
) -> JobDecision:
    return JobDecision(job.claimed, _with_left(job, ran, left), ran, error, text, again, left)


def _done(job: DecodedJob) -> Settlement:
    return Settlement(job.claimed.id, job.claimed.claim, Disposition.DONE, bad=job.bad)


class _ErrorTexts:
    """Texts of the errors of a batch. Many of its jobs may have failed by one error."""

    def __init__(self, batch: DecodedBatch, rules: RunRules) -> None:
        self._batch = batch
        self._rules = rules
        self._made: dict[int, ErrorText] = {}

    def of(self, error: BaseException) -> ErrorText:
        if id(error) not in self._made:
            self._made[id(error)] = error_text(self._rules.settings, error, self._secrets)
        return self._made[id(error)]

    @cached_property
    def _secrets(self) -> set[str]:
        form, redactor = self._rules.task.call_form, self._rules.settings.redactor
        return payload_secrets(form, chain(*self._batch.payloads_by_id.values()), redactor)


def _failed(
    job: DecodedJob, failure: Exception, together: int, rules: RunRules, texts: _ErrorTexts
) -> JobDecision:
    error = cause_of(failure)
    raised = original_error(error)
    delay, policy, asked = None, rules.policy, failure if isinstance(failure, Retry) else None
    if asked is not None:
        delay = delay_of(asked)
        policy = replace(policy, max_retries=getattr(asked, "max_retries", policy.max_retries))
    if isinstance(raised, TypeError) and not _fits(job, rules.task):
        # No retry mends it.
        policy = replace(policy, dont_retry=(TypeError,))
    text = texts.of(raised)
    settlement = after_failure(job.claimed, policy, text.data, delay, job.bad, raised, together)
    if asked is not None and settlement.disposition is Disposition.RETRY:
        change, priority = getattr(asked, "change", None), getattr(asked, "priority", None)
        settlement = settlement._replace(change=change, priority=priority)
    return _decision(
        job, settlement._replace(try_text=try_text(text.text), failure=text.failure), error, text
    )


def _fits(job: DecodedJob, task: Any) -> bool:
    """Whether the function takes the arguments of a job: with typing=False calls store any."""
    return task.typing or job.job is None or all(map(task.call_form.fits, job.job.payloads))


def _with_left(job: DecodedJob, settlement: Settlement, left: Collection[int]) -> Settlement:
    """The settlement when some payloads of a job are left: these stay queued, the others go."""
    left = {*left, *job.left} if job.left else left
    if not left or settlement.disposition not in (Disposition.DONE, Disposition.BURY):
        return settlement
    gone = {*left, *(bad.position for bad in settlement.bad)}
    error = settlement.error if settlement.disposition is Disposition.BURY else None
    over = (PayloadRemoval(p, error, RemovalReason.DONE) for p in job.positions if p not in gone)
    delay = max(settlement.delay, AT_ONCE)
    return Settlement(
        settlement.id, settlement.claim, Disposition.RETURN, delay=delay, bad=(*settlement.bad, *over)
    )


def _delay(settlement: Settlement, now: float) -> float:
    return max(0.0, settlement.perform_in - now) if settlement.perform_in else settlement.delay
