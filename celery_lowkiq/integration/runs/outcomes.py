"""What a task function may raise to say how its jobs go on, beside failures."""

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

#: Longest text of a payload in an error.
SHOWN = 200


class Again(LowkiqError):
    """Raised by a task function that is not done: the job runs again with the payloads that are left.

    ``payloads_left`` are some of those that it was called with, by default all; the others are done, and
    their calls get the ``result``. It is no failure: ``retry_count`` stays, and scores stay. The job runs
    again ``after`` some seconds, or a timedelta. Raises TypeError and InvalidCall for what is neither.
    """

    def __init__(
        self,
        payloads_left: Sequence[Any] | None = None,
        after: float | timedelta = 0.0,
        result: Any = None,
    ) -> None:
        if not isinstance(payloads_left, (list, tuple, type(None))):
            raise TypeError(f"Again({payloads_left!r}): a list of payloads is allowed, or None for all")
        self.payloads_left = payloads_left
        self.after = read_delay(after, "after")
        self.result = result
        left = "all" if payloads_left is None else len(payloads_left)
        super().__init__(f"payloads left: {left}; again after {self.after:g} s")

    def __reduce__(self) -> tuple[type[Again], tuple[Any, float, Any]]:
        return type(self), (self.payloads_left, self.after, self.result)


class BusinessFailure(LowkiqError):
    """Raised by a task function: the job has failed for a reason that no repetition changes.

    Its payloads are dropped: no retry, no morgue. Its calls end as FAILURE with this error.
    """


class NotHanded(LowkiqError):
    """Again names a payload that the run was not called with."""


@dataclass(frozen=True)
class Part:
    """A job of which these places among its payloads are left."""

    left: frozenset[int]
    again: Again


def outcomes(
    error: Exception, jobs: Sequence[RunJob], dump: Callable[[Any], bytes]
) -> dict[str, Exception | Part]:
    """What becomes of the jobs of a run that raised, by id; those that are missing are done.

    Raises NotHanded, and PayloadError for what can be no payload.
    """
    error = meant(error)
    by_id = {job.id: job for job in jobs}
    named = _named(error, by_id.keys()) or dict.fromkeys(by_id, error)
    found: dict[str, Exception | Part] = {job_id: meant(one) for job_id, one in named.items()}
    for again in {id(one): one for one in found.values() if isinstance(one, Again)}.values():
        found |= _parts(again, [by_id[job_id] for job_id, one in found.items() if one is again], dump)
    return found


def names_jobs(error: Exception, jobs: Sequence[RunJob]) -> bool:
    """Whether it says which jobs of the run failed; else the run failed as a whole."""
    return bool(_named(meant(error), {job.id for job in jobs}))


def _named(error: Exception, ids: Set[str]) -> dict[str, Exception]:
    """The errors by id; none when any of the ids is not one of the run."""
    errors = error.errors if isinstance(error, JobsFailed) else {}
    return dict(errors) if errors.keys() <= ids else {}


def meant(error: Exception) -> Exception:
    """The error itself; ``autoretry_for=(Exception,)`` makes a Retry also of what says how jobs go on."""
    cause = error.exc if isinstance(error, Retry) else None
    return cause if isinstance(cause, (Again, BusinessFailure, JobsFailed)) else error


def cause_of(error: Exception) -> Exception:
    """What a Retry was raised for, if it says so; else the error itself."""
    cause: Any = error.exc if isinstance(error, Retry) else None
    return as_failure(cause) if isinstance(cause, BaseException) else error


def delay_of(retry: Retry) -> float | None:
    """Delay that a Retry asks for, by a number or a time."""
    when: Any = retry.when
    if isinstance(when, datetime):
        return (when - datetime.now(when.tzinfo)).total_seconds()
    return float(when) if isinstance(when, Real) else None


def _parts(again: Again, jobs: Sequence[RunJob], dump: Callable[[Any], bytes]) -> dict[str, Part]:
    """Of the jobs that one Again is for: each keeps those payloads that are its own."""
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
    """Finds the payloads of a job."""

    def __init__(self, payloads: Sequence[Any], dump: Callable[[Any], bytes]) -> None:
        self._payloads = payloads
        self._dump = dump
        self._by_identity = {id(payload): place for place, payload in enumerate(payloads)}

    def same(self, payload: Any) -> int | None:
        """Where this very object is."""
        return self._by_identity.get(id(payload))

    def equal(self, payload: Any) -> int | None:
        """Where there is what is equal when it is stored. Raises PayloadError for what is no payload."""
        return self._by_data.get(self._dump(payload))

    @cached_property
    def _by_data(self) -> dict[bytes, int]:
        return {self._dump(payload): place for place, payload in enumerate(self._payloads)}


def _found(
    finders: Mapping[str, _Finder], find: Callable[[_Finder, Any], int | None], payload: Any
) -> dict[str, int]:
    """Places of a payload, by id of the jobs that have it."""
    places = {job_id: find(finder, payload) for job_id, finder in finders.items()}
    return {job_id: place for job_id, place in places.items() if place is not None}
