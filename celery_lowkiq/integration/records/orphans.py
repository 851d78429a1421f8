"""Calls that nobody runs, since an operator has deleted or killed their jobs, or since they cannot be stored:
here they get their results.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from celery import Celery, signals
from celery.app.task import Context

from celery_lowkiq.integration.app.context import home_of, on_dropped_calls
from celery_lowkiq.integration.app.registry import ordered_tasks
from celery_lowkiq.rules.errors import LowkiqError, ResultsUnavailable, UndecodablePayload
from celery_lowkiq.rules.models import CallRecord, QueueSpec
from celery_lowkiq.rules.tracking import State, ends_without_run

from .call_record import CallNote, stores_error

logger = logging.getLogger("celery_lowkiq")

KILLED = "the job had failed, and was moved to the morgue"
DELETED = "the job was deleted"
DROPPED = "the payload was dropped by a policy of the task"


class KilledByOperator(LowkiqError):
    """A failed job was moved to the morgue by hand."""


def end_leftovers(task: Any, calls: Sequence[CallRecord], dead: bool, reason: str = DELETED) -> None:
    """Give calls their final state: FAILURE when their payloads are in the morgue, else REVOKED for a reason.
    Their chords fail. Raises ResultsUnavailable.
    """
    home = home_of(task._get_app())
    news = []
    for call in calls:
        try:
            note = CallNote.load(call.data, home.record_codec)
            how, text = (State.ERROR, KILLED) if dead else (State.FAILED, reason)
        except UndecodablePayload as error:
            unread = fail_unread(task, call, error)
            if unread is None:
                continue
            note, how, text = unread, State.FAILED, unread_text(error)
        else:
            if dead:
                fail(task, note, KilledByOperator(KILLED))
            else:
                _revoke(task, note, reason)
        if note.tracker:
            news.append(ends_without_run(note.tracker, note.id, how, text))
    if news:
        home.tracks.tell(news)


@on_dropped_calls
def _end_dropped(app: Celery, queue: QueueSpec, calls: Sequence[CallRecord]) -> None:
    end_leftovers(ordered_tasks(app)[queue.name], calls, dead=False, reason=DROPPED)


def unread_text(reason: UndecodablePayload) -> str:
    """What is said of a call whose record cannot be read."""
    return f"the record of the call cannot be read: {reason}"


def fail_unread(task: Any, call: CallRecord, reason: UndecodablePayload) -> CallNote | None:
    """End a call whose record cannot be read: FAILURE, without links and chord, which are not verified.

    Returns the call as far as it is known; None, and a line in the log, when the record does not name it.
    Raises what the result backend raises.
    """
    note = CallNote.named(call.data)
    if note is None:
        logger.error("a call of %s ends, and nobody can be told: %s", task.name, unread_text(reason))
        return None
    logger.error("call %s of %s ends as FAILURE: %s", note.id, task.name, unread_text(reason))
    fail(task, note, UndecodablePayload(unread_text(reason)))
    return note


def fail(task: Any, note: CallNote, error: Exception) -> None:
    """End a call that nobody runs: FAILURE, also of its chord, and errbacks are called.

    Raises ResultsUnavailable.
    """
    request, stored = _request(task, note)
    with _storing():
        task.backend.mark_as_failure(note.id, error, request=request, store_result=stored)


def _revoke(task: Any, note: CallNote, reason: str) -> None:
    request, stored = _request(task, note)
    with _storing():
        task.backend.mark_as_revoked(note.id, reason, request=request, store_result=stored)
    signals.task_revoked.send(sender=task, request=request, terminated=False, signum=None, expired=False)


@contextlib.contextmanager
def _storing() -> Iterator[None]:
    """Each result backend has errors of its own: one name for all of them."""
    try:
        yield
    except Exception as error:
        raise ResultsUnavailable(
            f"the result backend is not available: {type(error).__name__}: {error}"
        ) from error


def _request(task: Any, note: CallNote) -> tuple[Context, bool]:
    """What Celery is to know of the call, and whether its result is stored."""
    headers = {"id": note.id, "root_id": note.id, "task": task.name, "delivery_info": {}}
    stored = stores_error(task, note.headers.get("ignore_result"))
    return Context({**headers, **note.headers, **note.embed}), stored
