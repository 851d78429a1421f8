"""Decisions: outcomes of a run, and what becomes of each job."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from numbers import Real
from typing import Any, Literal, NamedTuple, TypeVar

from celery.app.task import Task
from celery.exceptions import MaxRetriesExceededError, Reject, Retry
from celery.utils.saferepr import saferepr
from kombu.utils.encoding import safe_repr

from celery_lowkiq.integration.calls import read_delay
from celery_lowkiq.integration.decode import (
    NO_POSITIONS,
    DecodedBatch,
    DecodedJob,
    Positions,
    RunJob,
    decode_batch,
)
from celery_lowkiq.integration.error_text import (
    ErrorText,
    dump_error,
    dump_error_text,
    error_text,
    load_error,
)
from celery_lowkiq.integration.gate import Gate
from celery_lowkiq.integration.loops import Loops
from celery_lowkiq.integration.messages import payload_secrets
from celery_lowkiq.integration.records import CallRecord
from celery_lowkiq.integration.safe_logging import safe_logger as logger
from celery_lowkiq.integration.settings import Settings
from celery_lowkiq.rules.basics import cached_property
from celery_lowkiq.rules.errors import InvalidCall, LowkiqError, UndecodablePayload
from celery_lowkiq.rules.models import (
    Batch,
    Disposition,
    Job,
    PayloadRemoval,
    RemovalReason,
    Settlement,
    StoredRecord,
)
from celery_lowkiq.rules.retry import (
    DelayFunction,
    RetryPolicy,
    after_failure,
    default_delay,
    is_list,
    read_delay_function,
)
from celery_lowkiq.store.records import try_text

# Exceptions of a task's code that are no ``Exception``: they end the worker, or fail the run.

T = TypeVar("T")

#: These end the worker; all others fail the run.
ENDS_WORKER = (SystemExit, KeyboardInterrupt, GeneratorExit)


class RunAborted(LowkiqError):
    """The run has failed by a ``BaseException`` such as ``asyncio.CancelledError``, its ``__cause__``.

    Celery takes only an ``Exception`` for a failure.
    """


_cause: Any = vars(BaseException)["__cause__"]
_context: Any = vars(BaseException)["__context__"]


def may_fail(kind: type[BaseException]) -> bool:
    """True if an exception of this class fails a run."""
    return not issubclass(kind, ENDS_WORKER)


def as_failure(raised: BaseException) -> Exception:
    """The exception itself, or a RunAborted with it as cause."""
    if isinstance(raised, Exception):
        return raised
    failure = RunAborted(safe_repr(raised))
    failure.__cause__ = raised
    return failure


def original_error(failure: BaseException) -> BaseException:
    """The exception that the task's code raised."""
    cause = failure.__cause__ if isinstance(failure, RunAborted) else None
    return failure if cause is None else cause


def forget_tracebacks(errors: Iterable[BaseException]) -> None:
    """Drop the tracebacks of exceptions, and of those that led to them."""
    found = list(errors)
    for error in found:
        # An exception that is a frozen dataclass refuses assignments.
        BaseException.with_traceback(error, None)
        # Read as the interpreter does: the class may have a property of this name, or a __getattribute__.
        for earlier in (_cause.__get__(error), _context.__get__(error)):
            if earlier is not None and not any(earlier is known for known in found):
                found.append(earlier)


def call_user_code(function: Callable[[], T]) -> T:
    """Call the function. Raises RunAborted for a ``BaseException`` that fails the run."""
    try:
        return function()
    except (Exception, *ENDS_WORKER):
        raise
    except BaseException as raised:
        raise as_failure(raised) from raised


# Outcomes of a run: what a task function may return or raise beside errors, and how a call ends.

#: Maximum length of a payload in an error.
SHOWN = 200


class Again(LowkiqError):
    """Raised by a task function that is not done: the job runs again with the payloads that are left.

    ``payloads_left``: some of the payloads that the function was called with, by default all. The others are
    done, and their calls get the ``result``. It is not a failure: ``retry_count`` and scores stay. The job
    runs again ``after`` this many seconds, or a timedelta. Raises TypeError and InvalidCall.
    """

    def __init__(
        self, payloads_left: Sequence[Any] | None = None, after: float | timedelta = 0.0, result: Any = None
    ) -> None:
        if not isinstance(payloads_left, (list, tuple, type(None))):
            raise TypeError(
                f"Again({payloads_left!r}) is invalid: expected a list of payloads, or None for all"
            )
        self.payloads_left = payloads_left
        self.after: float = read_delay(after, "after")
        self.result = result
        left = "all" if payloads_left is None else len(payloads_left)
        super().__init__(f"payloads left: {left}; again after {self.after:g} s")

    def __reduce__(self) -> tuple[type[Again], tuple[Any, float, Any]]:
        return type(self), (self.payloads_left, self.after, self.result)


class BusinessFailure(LowkiqError):
    """Raised by a task function: the job has failed for a reason that a retry does not change.

    Its payloads are dropped, without a retry or the morgue. Its calls end as FAILURE with this error.
    """


class ById(dict[str, Any]):
    """Returned by a task function: ``ById({id: value})`` gives each id its own result; other ids get None."""


class JobsFailed(LowkiqError):
    """Raised by a task function: ``JobsFailed({id: exception})`` fails these jobs; the others are done.

    The exceptions may include Again, BusinessFailure, and Celery's Retry. An empty mapping, or an id that is
    not in the batch, fails the whole batch. ``results`` are those of the others, by id. Raises TypeError
    unless ``errors`` maps ids to exceptions; a str is accepted, because a result backend stores the error as
    text.
    """

    def __init__(
        self, errors: Mapping[str, BaseException] | str, results: Mapping[str, Any] | None = None
    ) -> None:
        given = {} if isinstance(errors, str) else dict(errors)
        for job_id, error in given.items():
            if not (isinstance(error, BaseException) and may_fail(type(error))):
                raise TypeError(
                    f"JobsFailed({{{job_id!r}: {error!r}}}) is invalid: expected an exception for each id"
                )
        self.errors: dict[str, Exception] = {job_id: as_failure(error) for job_id, error in given.items()}
        self.results: ById = ById(results or {})
        named = ", ".join(f"{job_id!r}: {error!r}" for job_id, error in self.errors.items())
        super().__init__(errors if isinstance(errors, str) else f"failed jobs: {named or 'none was named'}")

    def __reduce__(self) -> tuple[type[JobsFailed], tuple[dict[str, Exception] | str, ById]]:
        return type(self), (self.errors or str(self), self.results)


class PoisonPill(LowkiqError):
    """The payload of the call crashed its worker or process too often, and is in the morgue."""


class Part(NamedTuple):
    """The payloads that an Again leaves of a job, by their places."""

    left: frozenset[int]
    again: Again


class CallOutcome(NamedTuple):
    """How a call ends: with the value of ``give()``, or with an error. Not final: the call runs again."""

    final: bool
    error: BaseException | None = None
    give: Callable[[], Any] = lambda: None
    #: True if its job is done. If the result cannot be written, the job runs again.
    success: bool = False


def outcomes(
    error: Exception, jobs: Sequence[RunJob], dump: Callable[[Any], bytes]
) -> tuple[dict[str, Exception | Part], int]:
    """Return the outcome of each job of a run that raised, by id; jobs without an entry are done.

    Also returns how many jobs failed as a whole; 0 when the error names those that failed. Raises InvalidCall
    for an Again with other payloads than the run was called with.
    """
    error = unwrap(error)
    by_id = {job.id: job for job in jobs}
    errors = error.errors if isinstance(error, JobsFailed) and error.errors.keys() <= by_id.keys() else {}
    named = errors or dict.fromkeys(by_id, error)
    found: dict[str, Exception | Part] = {job_id: unwrap(one) for job_id, one in named.items()}
    for again in {id(one): one for one in found.values() if isinstance(one, Again)}.values():
        found |= _parts(again, [by_id[job_id] for job_id, one in found.items() if one is again], dump)
    return found, 0 if errors else len(jobs)


def unwrap(error: Exception) -> Exception:
    """The error; of a Retry by ``autoretry_for=``, the Again, BusinessFailure or JobsFailed in it."""
    cause = error.exc if isinstance(error, Retry) else None
    return cause if isinstance(cause, (Again, BusinessFailure, JobsFailed)) else error


def cause_of(error: Exception) -> Exception:
    """The error that a Retry was raised for, if any; else the error itself."""
    cause: Any = error.exc if isinstance(error, Retry) else None
    return as_failure(cause) if isinstance(cause, BaseException) else error


def delay_of(retry: Retry) -> float | None:
    """The delay of a Retry in s, which gives a number or a time; None for none."""
    when: Any = retry.when
    if isinstance(when, datetime):
        return (when - datetime.now(when.tzinfo)).total_seconds()
    return float(when) if isinstance(when, Real) else None


def _parts(again: Again, jobs: Sequence[RunJob], dump: Callable[[Any], bytes]) -> dict[str, Part]:
    """The payloads that an Again leaves of each of its jobs: by identity, or else by equal bytes."""
    if again.payloads_left is None:
        return {job.id: Part(frozenset(range(len(job.payloads))), again) for job in jobs}
    left: dict[str, set[int]] = {job.id: set() for job in jobs}
    by_identity = _places(jobs, id)
    by_data: dict[Any, list[tuple[str, int]]] = {}
    for payload in again.payloads_left:
        found = by_identity.get(id(payload))
        if found is None:
            by_data = by_data or _places(jobs, dump)
            found = by_data.get(dump(payload))
        if found is None:
            raise InvalidCall(
                f"Again: {saferepr(payload, SHOWN)} was not handed to {', '.join(map(repr, left))}; allowed "
                "are payloads that the run was called with: enqueue new ones with delay()"
            )
        for job_id, place in found:
            left[job_id].add(place)
    return {job_id: Part(frozenset(places), again) for job_id, places in left.items()}


def _places(jobs: Sequence[RunJob], key: Callable[[Any], Any]) -> dict[Any, list[tuple[str, int]]]:
    """Jobs and places of payloads, by the ``key`` of each payload."""
    places: dict[Any, list[tuple[str, int]]] = {}
    for job in jobs:
        for place, payload in enumerate(job.payloads):
            places.setdefault(key(payload), []).append((job.id, place))
    return places


# The retry policy of a task, as ``rules.retry`` applies it.


def policy_of(task: Any) -> RetryPolicy:
    """The options of a task that RetryPolicy has, too. Raises ConfigurationError."""
    options = {field.name: getattr(task, field.name) for field in fields(RetryPolicy)}
    retry_in = options["retry_in"]
    if retry_in is None and task.default_retry_delay != Task.default_retry_delay:
        # The delay of a task with by=; other tasks refuse it.
        retry_in = task.default_retry_delay
    if is_list(retry_in):
        options["max_retries"] = len(retry_in)
    options["retry_in"] = guarded(read_delay_function(retry_in))
    options["dont_retry"] = (*(task.dont_retry or ()), *getattr(task, "dont_autoretry_for", ()))
    options["isolate_failures"] = task.isolate_failures and task.batch_size > 1
    return RetryPolicy(**options)


def guarded(retry_in: DelayFunction) -> DelayFunction:
    """The user's delay function; the default delay where that fails or returns no number."""

    def delay(error: Any, retry_count: int) -> float | Literal[False]:
        try:
            return call_user_code(partial(retry_in, error, retry_count))
        except Exception:
            logger.exception("retry_in failed for retry_count %d: the default is used", retry_count)
        return default_delay(retry_count)

    return delay


# Decides what becomes of each job of a run, and of each of its calls. Nothing here acts.

#: Delay in s before a job that goes back without a result may run again.
RETURN_DELAY = 1.0
#: Delay in s before the rest of a job runs again at once. At its own time it would stay the oldest job of the
#: lane, and no other would run.
AT_ONCE = 1e-6


@dataclass(frozen=True)
class RunRules:
    """Task and policy, which all runs of a task share."""

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


#: Error text of a job whose run did not fail.
NO_TEXT = ErrorText(b"", "", "")


class JobDecision(NamedTuple):
    """Outcome of one job: its settlement and error."""

    job: Job
    #: For the settle.
    settlement: Settlement
    #: The settlement of the payloads that are done with; another one where Again leaves some.
    ran: Settlement
    error: Exception | None = None
    #: The stored and logged forms of the error, of a job whose run failed.
    text: ErrorText = NO_TEXT
    #: The exception of a function that is not done with the job.
    again: Again | None = None
    #: Positions of the payloads that stay for a later run.
    left: Collection[int] = ()

    @property
    def dies(self) -> bool:
        """True if a payload of the job goes to the morgue."""
        return self.settlement.disposition in (Disposition.DIE, Disposition.BURY)

    @property
    def is_requested(self) -> bool:
        """True if the function requested the retry, and named no error."""
        return isinstance(self.error, Retry) and not self.dies


class Decision(NamedTuple):
    """Outcome of a batch, by job."""

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
        """Return the error that Celery records of a run that raised: a Retry while any job runs again, else
        ``error``; None when all jobs are done. ``now``: Unix time in s.
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
        # Like in Celery, a Retry that the function asked for has no other cause.
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
        if disposition is Disposition.RETRY:
            again = Retry(exc=error, when=_delay(decided.ran, now))  # type: ignore[arg-type]
        elif self.batch.batch.queue.policies.hold is not None:
            again = Retry(f"waits behind a dead payload: {error!r}", exc=error)
        else:
            again = Retry(exc=error, when=0.0)  # type: ignore[arg-type]
        return CallOutcome(False, error=again)


def decide_failure(error: Exception, batch: DecodedBatch, rules: RunRules) -> Decision:
    """Return the outcome of a batch whose run raised ``error``.

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
    """Return the outcome of a batch whose run raised Reject: back unchanged, or to the morgue.

    ``before``: the decision before a handler of the task raised Reject.
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
    """True if the function takes the arguments of a job: with typing=False calls store any."""
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
