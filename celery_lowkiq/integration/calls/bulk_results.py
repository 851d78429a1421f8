"""Task ids, records and results of bulk calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from numbers import Real
from typing import Any, overload

from celery.result import AsyncResult
from kombu.utils.uuid import uuid

from celery_lowkiq.integration.app.context import context_of
from celery_lowkiq.integration.app.current_task import current_worker_task
from celery_lowkiq.integration.records.call_record import make_record
from celery_lowkiq.rules.models import NewJob

from .lazy_result import lazy_result
from .message import MessagedCall
from .validation import Entry


class CallResults(Sequence["AsyncResult[Any]"]):
    """Results of a bulk call, in its order. Each AsyncResult is made at its first access."""

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
        return lazy_result(self._task, self.ids[index])

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"<CallResults of {len(self)} calls>"


def bulk_without_messages(
    task: Any, jobs: list[NewJob], results: bool, tracker: str
) -> tuple[list[NewJob], CallResults]:
    """The jobs of a bulk call with their records, and its results, both only where something needs them.

    Raises PayloadError.
    """
    app = task._get_app()
    context = context_of(app)
    track = context.settings.track_calls
    if not (results or track or tracker or task.expires or task.job_ttl):
        return jobs, CallResults(task, ())
    headers = {
        **_parents(),
        "expires": _expiry(task.expires, app.now()),
        "ignore_result": task.ignore_result or not results,
    }
    properties = {"reply_to": app.thread_oid}
    ids = [uuid() for _ in jobs]
    record = make_record(task, {"id": "", **headers}, None, properties, track, tracker)
    if record is not None:
        stored = (replace(record, id=task_id).dump(context.record_codec) for task_id in ids)
        jobs = [job._replace(record=data) for job, data in zip(jobs, stored, strict=True)]
    return jobs, CallResults(task, ids)


def bulk_with_messages(
    task: Any, entries: list[Entry], jobs: list[NewJob], results: bool, tracker: str
) -> tuple[list[NewJob], CallResults]:
    """The same, with a message of each call that Celery makes for signals and events.

    Nothing is stored yet. Receivers may change the calls in ``entries``. Raises InvalidCall, PayloadError.
    """
    kept: list[NewJob] = []
    ids = [uuid() for _ in jobs]
    options = {"ignore_result": task.ignore_result or not results, "add_to_parent": results}
    for at, (task_id, entry, job) in enumerate(zip(ids, tuple(entries), jobs, strict=True)):

        def keep(made: Mapping[str, Any], call: MessagedCall, at: int = at, job: NewJob = job) -> None:
            entries[at], stored = task.stored_call(entries[at], job, made, call, tracker)
            kept.append(stored)

        args = (entry.id, entry.payload) if task.key is None else (entry.payload,)
        task.make_message(args, {}, task_id, entry, keep, entry.beyond_message(tracker), **options)
    return kept, CallResults(task, ids)


def _parents() -> dict[str, Any]:
    caller = current_worker_task()
    if caller is None:
        return {}
    return {"root_id": caller.request.root_id or caller.request.id, "parent_id": caller.request.id}


def _expiry(expires: Any, now: datetime) -> str | None:
    if isinstance(expires, Real):
        expires = now + timedelta(seconds=float(expires))
    return expires.isoformat() if isinstance(expires, datetime) else expires
