"""Publishing: pushes the checked calls of an ordered task, from all ways of calling it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

from celery import Celery, Task, signals
from celery._state import _task_stack, get_current_worker_task  # type: ignore[attr-defined]
from celery.app import base, task
from kombu.exceptions import OperationalError
from kombu.utils.functional import fxrange

from celery_lowkiq.integration.app import AppContext
from celery_lowkiq.integration.codec import MARK
from celery_lowkiq.integration.current import storage_of
from celery_lowkiq.integration.results import stores_error
from celery_lowkiq.integration.settings import celery_setting
from celery_lowkiq.rules.basics import Middleware, compose, is_defined_in
from celery_lowkiq.rules.basics import package_logger as logger
from celery_lowkiq.rules.errors import InvalidCall, StoreError, StoreFull, StoreUnavailable
from celery_lowkiq.rules.models import Call, QueueSpec
from celery_lowkiq.rules.tracking import NewCall, State, ended_without_run
from celery_lowkiq.store.trackers import latest_due

# Observers of a call, for which Celery has to make its message first.

#: Tasks that run, by thread or greenlet; None: see ``storage_of``.
_running = storage_of(_task_stack)
#: Asked for each call.
_is_defined_in = lru_cache(maxsize=64)(is_defined_in)


def override_of(app: Celery) -> str:
    """Name of a method of Celery's for sending calls that is overridden; "" for none."""
    if "send_task" in app.__dict__:
        return "app.send_task"
    if not _is_defined_in(type(app).send_task, base):
        return f"{type(app).__name__}.send_task"
    return "" if _is_defined_in(Task.apply_async, task) else "Task.apply_async"


def has_publish_listeners(app: Celery) -> bool:
    """Test whether anything observes messages: a publish signal, an event, or an override of sending."""
    return bool(
        signals.before_task_publish.receivers
        or signals.after_task_publish.receivers
        or celery_setting(app, "task_send_sent_event")
        or override_of(app)
    )


def may_skip_message(task: Any, app: Celery, track_calls: bool) -> bool:
    """Test whether a call without options needs no message: nothing observes it, it needs no record, and no
    running task makes it.
    """
    return not (
        track_calls
        or task.expires is not None
        or task.job_ttl is not None
        or has_publish_listeners(app)
        or stores_error(task)
        # Celery's function takes ten times as long where nothing runs.
        or (
            (_running is None or _task_stack.__ident_func__() in _running)
            and get_current_worker_task() is not None
        )
    )


# Retries and errors of a push, as Celery's callers know them.


class CallUnavailable(StoreUnavailable, OperationalError):
    """Redis cannot be reached. Also the error that any call of Celery's raises then."""


class CallRefused(StoreFull, OperationalError):
    """Redis is full: nothing was stored."""


def as_celery_error(error: StoreFull | StoreUnavailable) -> CallRefused | CallUnavailable:
    """Return the error that a call raises in place of the store's."""
    return CallRefused(*error.args) if isinstance(error, StoreFull) else CallUnavailable(*error.args)


def retry_intervals(retry: Any, policy: Mapping[str, Any] | None) -> Iterator[float]:
    """Intervals in s before the retries of a publish, by Celery's ``retry`` and ``retry_policy``."""
    if not retry:
        return iter(())
    given = {
        "max_retries": 3,
        "interval_start": 0,
        "interval_step": 0.2,
        "interval_max": 0.2,
        **(policy or {}),
    }
    start, most = given["interval_start"], given["interval_max"]
    intervals = fxrange(start, most + start, given["interval_step"], repeatlast=True)
    return islice(intervals, given["max_retries"])


def app_retry_intervals(app: Celery) -> Iterator[float]:
    """The retry intervals of a call without a policy of its own. Reads the settings at the first failure."""
    yield from retry_intervals(app.conf.task_publish_retry, app.conf.task_publish_retry_policy)


# The push of all calls.


def publish(
    context: AppContext,
    task: Any,
    calls: Sequence[Call],
    intervals: Iterable[float] = (),
    middlewares: Sequence[Middleware] = (),
    tracker: str = "",
    refuse: bool = False,
) -> None:
    """Push calls, the only way to their queue. The client ``middlewares`` are around it and see the calls.

    ``intervals``: before retries (s). ``tracker``: id of the tracker of the calls, "" for none; when it is
    cancelled, ``refuse`` has the calls raise InvalidCall; else they end as REVOKED. Raises QueueFull, and
    what callers of Celery catch: CallUnavailable, CallRefused.
    """
    if not calls:
        return
    spec = task.queue_spec
    try:
        if middlewares:
            compose(
                middlewares,
                task,
                tuple(calls),
                lambda: _push(context, spec, calls, intervals, tracker, refuse),
            )
        else:
            _push(context, spec, calls, intervals, tracker, refuse)
    except (StoreFull, StoreUnavailable) as error:
        raise as_celery_error(error) from error


def _push(
    context: AppContext,
    spec: QueueSpec,
    calls: Sequence[Call],
    intervals: Iterable[float],
    tracker: str,
    refuse: bool,
) -> None:
    if not tracker:
        context.store.pusher.push(spec, calls, intervals)
        return
    left = iter(intervals)
    # In parts, so that a push which ends half-way leaves few calls that were added in vain.
    for start in range(0, len(calls), CHUNK):
        part = calls[start : start + CHUNK]
        stored: list[Call] = []
        try:
            added = [
                NewCall(str(call.task_id), spec.name, call.id, shown_payload(context, call.data))
                for call in part
            ]
            if not context.tracker_store.add(tracker, added, latest_due(part), left) and refuse:
                raise InvalidCall(f"tracker {tracker} was cancelled, and takes no more calls")
            context.store.pusher.push(spec, part, left, stored.extend)
        except InvalidCall:
            raise
        except BaseException as error:
            _note_not_pushed(context, tracker, part, stored, error)
            raise


# Adds calls to their tracker before they are pushed, so that it has every call that was accepted.

#: A payload of more bytes is shown cut.
SHOWN_BYTES = 1024
#: Ends a text that is cut.
CUT = "..."
#: Number of calls that are added to a tracker, and then pushed, at a time.
CHUNK = 1000


def _note_not_pushed(
    context: AppContext, tracker: str, calls: Sequence[Call], stored: Iterable[Call], error: BaseException
) -> None:
    # A call's record names it, and so tells it from equal ones.
    records = {call.record for call in stored}
    # If all were stored, and yet the push failed, none is confirmed.
    ids = [call.task_id for call in calls if call.record not in records] or [call.task_id for call in calls]
    # When Redis did not answer, they may be stored: then their runs correct this.
    text = f"not pushed: {type(error).__name__}: {error}"
    try:
        context.tracker_store.update(
            ended_without_run(tracker, str(task_id), State.FAILED, text) for task_id in ids
        )
    except StoreError as unreachable:
        logger.warning("tracker %s does not show calls that were not pushed: %s", tracker, unreachable)


def shown_payload(context: AppContext, data: bytes) -> bytes:
    """The part of a payload that a tracker keeps."""
    if len(data) <= SHOWN_BYTES:
        return data
    if data.startswith(MARK):
        return context.record_codec.dump(f"({len(data)} bytes)")
    return context.record_codec.dump(data[: SHOWN_BYTES // 2].decode("utf-8", "ignore") + CUT)
