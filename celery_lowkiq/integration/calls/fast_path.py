"""Fast path: decides when a call can be stored without building a Celery message first."""

from __future__ import annotations

from typing import Any

from celery import Celery, signals

from celery_lowkiq.integration.app.celery_settings import celery_setting
from celery_lowkiq.integration.app.current_task import current_worker_task
from celery_lowkiq.integration.records.call_record import stores_error

from .send_task_overrides import override_of


def has_publish_listeners(app: Celery) -> bool:
    """Whether anything observes messages: a publish signal, an event, or an override of Celery's sending."""
    return bool(
        signals.before_task_publish.receivers
        or signals.after_task_publish.receivers
        or celery_setting(app, "task_send_sent_event")
        or override_of(app)
    )


def may_skip_message(task: Any, app: Celery, track_calls: bool) -> bool:
    """Whether a call without options needs no message: it is not observed, needs no record, and is not made
    by a running task.
    """
    return not (
        track_calls
        or task.expires is not None
        or task.job_ttl is not None
        or has_publish_listeners(app)
        or stores_error(task)
        or current_worker_task() is not None
    )
