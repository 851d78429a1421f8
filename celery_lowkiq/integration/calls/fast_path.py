"""Calls of which nobody but the store hears: stored without making Celery's message first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from celery import Celery, signals
from celery._state import get_current_worker_task

from celery_lowkiq.integration.app.context import Home
from celery_lowkiq.integration.records.call_record import stores_error

from .producer import pauses_of
from .send_task_overrides import stand_in


def is_heard(app: Celery) -> bool:
    """Whether anybody hears of a message on its way: by a publish signal or an event, or in the place of a
    method of Celery's.
    """
    return bool(
        signals.before_task_publish.receivers
        or signals.after_task_publish.receivers
        or app.conf.task_send_sent_event
        or stand_in(app)
    )


def is_unheard(of: Any, app: Celery, home: Home) -> bool:
    """Whether a call without options would be seen by nobody: neither on its way nor by a record or a calling
    task.
    """
    return not (
        is_heard(app)
        or home.settings.track_calls
        or of.expires is not None
        or of.job_ttl is not None
        or stores_error(of)
        or get_current_worker_task() is not None
    )


def publish_pauses(app: Celery) -> Iterator[float]:
    """Seconds before each repetition while Redis is away, of a call without a policy of its own. The settings
    are read when it is.
    """
    yield from pauses_of(app.conf.task_publish_retry, app.conf.task_publish_retry_policy)
