"""Results of ordered calls: of each id of a batch, and of many calls at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from numbers import Real
from typing import Any, overload

from celery._state import get_current_worker_task
from celery.result import AsyncResult
from kombu.utils.uuid import uuid

from celery_lowkiq.integration.app.context import Home
from celery_lowkiq.integration.calls.validation import Entry, priority_of
from celery_lowkiq.integration.records.call_record import note_of
from celery_lowkiq.integration.task.broker_messages import read_call
from celery_lowkiq.rules.errors import LowkiqError
from celery_lowkiq.rules.models import NewJob

from .aborts import as_failure, may_fail


class ById(dict[str, Any]):
    """Returned by a task function: ``ById({id: value})`` gives each id its own result, None to the others."""


class JobsFailed(LowkiqError):
    """Raised by a task function: ``JobsFailed({id: exception})`` fails these jobs; the others are done. Among
    the exceptions may be Again, BusinessFailure, and Celery's Retry.

    An empty mapping, or an id that is not in the batch, fails the whole batch. Raises TypeError for what is
    no mapping of exceptions; a text is what a result backend has kept of it.
    """

    def __init__(self, errors: Mapping[str, BaseException] | str) -> None:
        given = {} if isinstance(errors, str) else dict(errors)
        for job_id, error in given.items():
            if not (isinstance(error, BaseException) and may_fail(type(error))):
                raise TypeError(f"JobsFailed({{{job_id!r}: {error!r}}}): an exception for each id is allowed")
        self.errors = {job_id: as_failure(error) for job_id, error in given.items()}
        told = ", ".join(f"{job_id!r}: {error!r}" for job_id, error in self.errors.items())
        super().__init__(errors if isinstance(errors, str) else f"failed jobs: {told or 'none was named'}")

    def __reduce__(self) -> tuple[type[JobsFailed], tuple[dict[str, Exception] | str]]:
        return type(self), (self.errors or str(self),)


class CallResults(Sequence["AsyncResult[Any]"]):
    """Results of a bulk call, in its order. Each AsyncResult is made when it is asked for."""

    def __init__(self, task: Any, ids: Sequence[str]) -> None:
        self._task = task
        self.ids = ids

    @overload
    def __getitem__(self, index: int) -> AsyncResult[Any]: ...

    @overload
    def __getitem__(self, index: slice) -> CallResults: ...

    def __getitem__(self, index: int | slice) -> AsyncResult[Any] | CallResults:
        if isinstance(index, slice):
            return CallResults(self._task, self.ids[index])
        result: AsyncResult[Any] = self._task.AsyncResult(self.ids[index])
        # As of a single call: who asks for it is not kept waiting.
        result.ignored = bool(self._task.ignore_result)
        return result

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"<CallResults of {len(self)} calls>"


@dataclass(frozen=True)
class BulkCalls:
    """Jobs with the records that they need, and the results of their calls."""

    jobs: list[NewJob]
    results: CallResults


def bulk_calls(task: Any, home: Home, jobs: list[NewJob], results: bool, tracker: str = "") -> BulkCalls:
    """Task ids for a bulk call, where anyone may ask for them. Raises PayloadError."""
    track = home.settings.track_calls
    if not (results or track or tracker or task.expires or task.job_ttl):
        return BulkCalls(jobs, CallResults(task, ()))
    app = task._get_app()
    headers = {
        **_parents(),
        "expires": _expiry(task.expires, app.now()),
        "ignore_result": task.ignore_result or not results,
    }
    properties = {"reply_to": app.thread_oid}
    ids = [uuid() for _ in jobs]
    note = note_of(task, {"id": "", **headers}, None, properties, track, tracker)
    if note is not None:
        notes = (replace(note, id=task_id) for task_id in ids)
        records = (each.dump(home.record_codec) for each in notes)
        jobs = [replace(job, record=record) for job, record in zip(jobs, records, strict=True)]
    return BulkCalls(jobs, CallResults(task, ids))


def heard_calls(
    task: Any, home: Home, entries: list[Entry], jobs: list[NewJob], results: bool, tracker: str = ""
) -> BulkCalls:
    """As bulk_calls, with a message of each call for whoever listens to messages; none is stored yet.

    Raises PayloadError.
    """
    kept: list[NewJob] = []
    ids = [uuid() for _ in jobs]
    options = {"ignore_result": task.ignore_result or not results, "add_to_parent": results}
    for task_id, entry, job in zip(ids, entries, jobs, strict=True):

        def keep(body: Any, headers: Any, properties: Any, _: Any, job: NewJob = job) -> None:
            record = task.record_of(home, read_call(body, headers), properties, tracker)
            kept.append(replace(job, record=record, priority=priority_of(properties)))

        args = (entry.id, entry.payload) if task.key is None else (entry.payload,)
        said = {**entry.beyond_message(), **({"tracker": tracker} if tracker else {})}
        task.make_message(args, {}, task_id, keep, said, **options, **entry.for_message())
    return BulkCalls(kept, CallResults(task, ids))


def _parents() -> dict[str, Any]:
    """Headers of calls that are made within a run."""
    caller = get_current_worker_task()
    if caller is None:
        return {}
    return {"root_id": caller.request.root_id or caller.request.id, "parent_id": caller.request.id}


def _expiry(expires: Any, now: datetime) -> str | None:
    """As Celery's header has it."""
    if isinstance(expires, Real):
        expires = now + timedelta(seconds=float(expires))
    return expires.isoformat() if isinstance(expires, datetime) else expires
