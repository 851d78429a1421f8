"""Finishes orphaned calls, whose jobs were deleted, buried or dropped: they get their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from celery import Celery, signals
from celery.app.task import Context

from celery_lowkiq.integration.app.context import context_of, on_dropped_calls
from celery_lowkiq.integration.app.registry import ordered_tasks
from celery_lowkiq.integration.app.signing import Unverified
from celery_lowkiq.rules.errors import LowkiqError, ResultsUnavailable, UndecodablePayload
from celery_lowkiq.rules.loggers import package_logger as logger
from celery_lowkiq.rules.models import QueueSpec, StoredRecord
from celery_lowkiq.rules.tracking import State, TrackerUpdate, ended_without_run

from .call_record import CallRecord, stores_error

BURIED = "an operator moved the job to the morgue"
DELETED = "the job was deleted"
DROPPED = "the payload was dropped by a policy of the task"
SUPERSEDED = "superseded by a newer call of the same id"


class BuriedByOperator(LowkiqError):
    """An operator moved the job to the morgue."""


def finish_orphaned_calls(
    task: Any, calls: Sequence[StoredRecord], dead: bool, reason: str = DELETED
) -> None:
    """Give calls their final state: FAILURE if ``dead``, their payloads being in the morgue, else REVOKED.

    Their chords fail. Raises ResultsUnavailable.
    """
    context = context_of(task._get_app())
    gate = context.gate(task.queue_spec.name)
    news: list[TrackerUpdate] = []
    for call in calls:
        try:
            record = CallRecord.verified(call, gate)
        except UndecodablePayload as error:
            news += fail_unread(task, call, error)
            continue
        if dead:
            fail(task, record, BuriedByOperator(BURIED))
            news += end_of_call(record, BURIED, State.ERROR)
        else:
            _revoke(task, record, reason)
            news += end_of_call(record, reason)
    if news:
        context.tracker_store.update(news)


@on_dropped_calls
def _finish_dropped(app: Celery, queue: QueueSpec, calls: Sequence[StoredRecord]) -> None:
    finish_orphaned_calls(ordered_tasks(app)[queue.name], calls, dead=False, reason=DROPPED)


def end_of_call(record: CallRecord, text: str, state: State = State.FAILED) -> list[TrackerUpdate]:
    """The update for the tracker of a call that does not run, if it has one."""
    return [ended_without_run(record.tracker, record.id, state, text)] if record.tracker else []


def fail_unread(task: Any, call: StoredRecord, reason: UndecodablePayload) -> list[TrackerUpdate]:
    """End a call whose record cannot be read: FAILURE, without its unverified links and chord.

    A call that the record does not name, or not verifiably, ends with a line in the log only. Returns the
    update for its tracker. Raises ResultsUnavailable.
    """
    if isinstance(reason, Unverified):
        logger.error(
            "a record of a call of %s is refused, and its call gets no result: %s", task.name, reason
        )
        return []
    text = f"the record of the call cannot be read: {reason}"
    record = CallRecord.named(call.data)
    if record is None:
        logger.error("a call of %s ends without a result, since its id is unknown: %s", task.name, text)
        return []
    logger.error("call %s of %s ends as FAILURE: %s", record.id, task.name, text)
    fail(task, record, UndecodablePayload(text))
    return end_of_call(record, text)


def fail(task: Any, record: CallRecord, error: Exception) -> None:
    """End a call that does not run: FAILURE, also of its chord; calls its errbacks.

    Raises ResultsUnavailable.
    """
    _end(task, record, task.backend.mark_as_failure, error)


def _revoke(task: Any, record: CallRecord, reason: str) -> None:
    request = _end(task, record, task.backend.mark_as_revoked, reason)
    signals.task_revoked.send(sender=task, request=request, terminated=False, signum=None, expired=False)


def _end(task: Any, record: CallRecord, mark: Callable[..., Any], result: Exception | str) -> Context:
    """Have the result backend ``mark`` a call. Returns the call's request. Raises ResultsUnavailable."""
    headers = {"id": record.id, "root_id": record.id, "task": task.name, "delivery_info": {}}
    request = Context({**headers, **record.headers, **record.embed})
    stored = stores_error(task, record.headers.get("ignore_result"))
    try:
        mark(record.id, result, request=request, store_result=stored)
    except Exception as error:
        raise ResultsUnavailable(
            f"the result backend is not available: {type(error).__name__}: {error}"
        ) from error
    return request
