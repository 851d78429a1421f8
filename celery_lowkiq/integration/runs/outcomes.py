"""Outcomes of a run: what a task function may raise beside errors, and how a call ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from numbers import Real
from typing import Any

from celery.exceptions import Retry
from celery.utils.saferepr import saferepr

from celery_lowkiq.integration.calls.validation import read_delay
from celery_lowkiq.rules.errors import LowkiqError

from .aborts import as_failure
from .batch_results import JobsFailed
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
        self,
        payloads_left: Sequence[Any] | None = None,
        after: float | timedelta = 0.0,
        result: Any = None,
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


class NotHanded(LowkiqError):
    """An Again names a payload that the run was not called with."""


@dataclass(frozen=True)
class Part:
    """The payloads that an Again leaves of a job, by their places."""

    left: frozenset[int]
    again: Again


@dataclass(frozen=True)
class CallOutcome:
    """How a call ends: with the value of ``give()``, or with an error. Not final: the call runs again."""

    final: bool
    error: BaseException | None = None
    give: Callable[[], Any] = lambda: None
    #: Whether its job is done. If the result cannot be written, the job runs again.
    success: bool = False


def outcomes(
    error: Exception, jobs: Sequence[RunJob], dump: Callable[[Any], bytes]
) -> dict[str, Exception | Part]:
    """What becomes of the jobs of a run that raised, by id; jobs without an entry are done.

    Raises NotHanded, and PayloadError for an object that cannot be a payload.
    """
    error = unwrap(error)
    by_id = {job.id: job for job in jobs}
    named = _named(error, by_id.keys()) or dict.fromkeys(by_id, error)
    found: dict[str, Exception | Part] = {job_id: unwrap(one) for job_id, one in named.items()}
    for again in {id(one): one for one in found.values() if isinstance(one, Again)}.values():
        found |= _parts(again, [by_id[job_id] for job_id, one in found.items() if one is again], dump)
    return found


def names_jobs(error: Exception, jobs: Sequence[RunJob]) -> bool:
    """Whether the error names the jobs that failed; else the run failed as a whole."""
    return bool(_named(unwrap(error), {job.id for job in jobs}))


def _named(error: Exception, ids: Set[str]) -> dict[str, Exception]:
    """The errors by id; empty when an id is not in the run."""
    errors = error.errors if isinstance(error, JobsFailed) else {}
    return dict(errors) if errors.keys() <= ids else {}


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
    """The payloads that an Again leaves of each of its jobs."""
    if again.payloads_left is None:
        return {job.id: Part(frozenset(range(len(job.payloads))), again) for job in jobs}
    finders = {job.id: _Finder(job.payloads, dump) for job in jobs}
    left: dict[str, set[int]] = {job.id: set() for job in jobs}
    for payload in again.payloads_left:
        found = _found(finders, _Finder.same, payload) or _found(finders, _Finder.equal, payload)
        if not found:
            raise NotHanded(
                f"Again: {saferepr(payload, SHOWN)} was not handed to {', '.join(map(repr, left))}; allowed "
                "are payloads that the run was called with: enqueue new ones with delay()"
            )
        for job_id, place in found.items():
            left[job_id].add(place)
    return {job_id: Part(frozenset(places), again) for job_id, places in left.items()}


class _Finder:
    """Finds the places of payloads in a job."""

    def __init__(self, payloads: Sequence[Any], dump: Callable[[Any], bytes]) -> None:
        self._payloads = payloads
        self._dump = dump
        self._by_identity = {id(payload): place for place, payload in enumerate(payloads)}

    def same(self, payload: Any) -> int | None:
        """The place of this object."""
        return self._by_identity.get(id(payload))

    def equal(self, payload: Any) -> int | None:
        """The place of a payload with equal bytes. Raises PayloadError when it has none."""
        return self._by_data.get(self._dump(payload))

    @cached_property
    def _by_data(self) -> dict[bytes, int]:
        return {self._dump(payload): place for place, payload in enumerate(self._payloads)}


def _found(
    finders: Mapping[str, _Finder], find: Callable[[_Finder, Any], int | None], payload: Any
) -> dict[str, int]:
    """The places of a payload, by id of the jobs that have it."""
    places = {job_id: find(finder, payload) for job_id, finder in finders.items()}
    return {job_id: place for job_id, place in places.items() if place is not None}
