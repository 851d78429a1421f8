"""Outcomes of a run: what a task function may return or raise beside errors, and how a call ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from numbers import Real
from typing import Any, NamedTuple

from celery.exceptions import Retry
from celery.utils.saferepr import saferepr

from celery_lowkiq.integration.calls.validation import read_delay
from celery_lowkiq.rules.errors import InvalidCall, LowkiqError

from .base_exceptions import as_failure, may_fail
from .decode import RunJob

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
    unless ``errors`` maps ids to exceptions; a str is accepted, since a result backend stores the error as
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
    #: Whether its job is done. If the result cannot be written, the job runs again.
    success: bool = False


def outcomes(
    error: Exception, jobs: Sequence[RunJob], dump: Callable[[Any], bytes]
) -> tuple[dict[str, Exception | Part], int]:
    """What becomes of the jobs of a run that raised, by id; jobs without an entry are done.

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
