"""The retry policy of a task, as ``rules.retry`` applies it."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from celery_lowkiq.integration.app.safe_logging import safe_logger as logger
from celery_lowkiq.rules.retry import RetryPolicy
from celery_lowkiq.rules.retry_delays import DelayFunction, default_delay, is_list, read_delay_function

from .aborts import failing


def policy_of(task: Any) -> RetryPolicy:
    """The policy that a task's options describe. Raises ConfigurationError."""
    retry_in = task.retry_in
    max_retries = len(retry_in) if is_list(retry_in) else task.max_retries
    hopeless = (*(task.dont_retry or ()), *getattr(task, "dont_autoretry_for", ()))
    isolate = task.isolate_failures and task.batch_size > 1
    return RetryPolicy(max_retries, guarded(read_delay_function(retry_in)), hopeless, isolate)


def guarded(pauses: DelayFunction) -> DelayFunction:
    """The user's delay function; the default delay where that fails or returns no number."""

    def pause(error: Any, retry_count: int) -> float | Literal[False]:
        try:
            return failing(partial(pauses, error, retry_count))
        except Exception:
            logger.exception("retry_in failed for retry_count %d: the default is used", retry_count)
        return default_delay(retry_count)

    return pause
