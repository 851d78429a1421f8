"""The retry policy of a task, as ``rules.retry`` applies it."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import Any, Literal

from celery.app.task import Task

from celery_lowkiq.integration.app.safe_logging import safe_logger as logger
from celery_lowkiq.rules.retry import RetryPolicy
from celery_lowkiq.rules.retry_delays import DelayFunction, default_delay, is_list, read_delay_function

from .base_exceptions import call_user_code


def policy_of(task: Any) -> RetryPolicy:
    """The options of a task that RetryPolicy has, too. Raises ConfigurationError."""
    options = {field.name: getattr(task, field.name) for field in fields(RetryPolicy)}
    retry_in = options["retry_in"]
    if retry_in is None and task.default_retry_delay != Task.default_retry_delay:
        # Of a task with by=; others refuse it.
        retry_in = task.default_retry_delay
    if is_list(retry_in):
        options["max_retries"] = len(retry_in)
    options["retry_in"] = guarded(read_delay_function(retry_in))
    options["dont_retry"] = (*(task.dont_retry or ()), *getattr(task, "dont_autoretry_for", ()))
    options["isolate_failures"] = task.isolate_failures and task.batch_size > 1
    return RetryPolicy(**options)


def guarded(retry_in: DelayFunction) -> DelayFunction:
    """The user's delay function; the default delay where that fails or returns no number."""

    def delay(error: Any, retry_count: int) -> float | Literal[False]:
        try:
            return call_user_code(partial(retry_in, error, retry_count))
        except Exception:
            logger.exception("retry_in failed for retry_count %d: the default is used", retry_count)
        return default_delay(retry_count)

    return delay
