"""Orphaned calls: their jobs were deleted, buried or refused. Here they get their results."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from celery import Celery, signals
from celery.app.task import Context

from celery_lowkiq.integration.app.context import context_of, on_dropped_calls
from celery_lowkiq.integration.app.registry import ordered_tasks
from celery_lowkiq.rules.errors import LowkiqError, ResultsUnavailable, UndecodablePayload
from celery_lowkiq.rules.loggers import package_logger as logger
from celery_lowkiq.rules.models import QueueSpec, StoredRecord
from celery_lowkiq.rules.tracking import State, ended_without_run

from .call_record import CallRecord, stores_error

BURIED = "an operator moved the job to the morgue"
DELETED = "the job was deleted"
DROPPED = "the payload was dropped by a policy of the task"


class BuriedByOperator(LowkiqError):
    """An operator moved the job to the morgue."""


def finish_orphaned_calls(
    task: Any, calls: Sequence[StoredRecord], dead: bool, reason: str = DELETED
) -> None:
    """Give calls their final state: FAILURE if ``dead``, their payloads being in the morgue, else REVOKED.

    Their chords fail. Raises ResultsUnavailable.
    """
    context = context_of(task._get_app())
    news = []
    for call in calls:
        try:
            record = CallRecord.load(call.data, context.record_codec)
            how, text = (State.ERROR, BURIED) if dead else (State.FAILED, reason)
        except UndecodablePayload as error:
            unread = fail_unread(task, call, error)
            if unread is None:
                continue
            record, how, text = unread, State.FAILED, unread_text(error)
        else:
            if dead:
                fail(task, record, BuriedByOperator(BURIED))
            else:
                _revoke(task, record, reason)
        if record.tracker:
            news.append(ended_without_run(record.tracker, record.id, how, text))
    if news:
        context.tracker_store.tell(news)


@on_dropped_calls
def _finish_dropped(app: Celery, queue: QueueSpec, calls: Sequence[StoredRecord]) -> None:
    finish_orphaned_calls(ordered_tasks(app)[queue.name], calls, dead=False, reason=DROPPED)


def unread_text(reason: UndecodablePayload) -> str:
    """The error of a call whose record cannot be read."""
    return f"the record of the call cannot be read: {reason}"


def fail_unread(task: Any, call: StoredRecord, reason: UndecodablePayload) -> CallRecord | None:
    """End a call whose record cannot be read: FAILURE, without its unverified links and chord.

    Returns the id and tracker of the call; None, and a line in the log, when the record does not name it.
    Raises ResultsUnavailable.
    """
    record = CallRecord.named(call.data)
    if record is None:
        logger.error(
            "a call of %s ends without a result, since its id is unknown: %s", task.name, unread_text(reason)
        )
        return None
    logger.error("call %s of %s ends as FAILURE: %s", record.id, task.name, unread_text(reason))
    fail(task, record, UndecodablePayload(unread_text(reason)))
    return record


def fail(task: Any, record: CallRecord, error: Exception) -> None:
    """End a call that does not run: FAILURE, also of its chord; calls its errbacks.

    Raises ResultsUnavailable.
    """
    request, stored = _request(task, record)
    with _storing():
        task.backend.mark_as_failure(record.id, error, request=request, store_result=stored)


def _revoke(task: Any, record: CallRecord, reason: str) -> None:
    request, stored = _request(task, record)
    with _storing():
        task.backend.mark_as_revoked(record.id, reason, request=request, store_result=stored)
    signals.task_revoked.send(sender=task, request=request, terminated=False, signum=None, expired=False)


@contextlib.contextmanager
def _storing() -> Iterator[None]:
    """Raise any error of a result backend as ResultsUnavailable."""
    try:
        yield
    except Exception as error:
        raise ResultsUnavailable(
            f"the result backend is not available: {type(error).__name__}: {error}"
        ) from error


def _request(task: Any, record: CallRecord) -> tuple[Context, bool]:
    """The request of a call for Celery, and whether its result is stored."""
    headers = {"id": record.id, "root_id": record.id, "task": task.name, "delivery_info": {}}
    stored = stores_error(task, record.headers.get("ignore_result"))
    return Context({**headers, **record.headers, **record.embed}), stored
