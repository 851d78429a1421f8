"""Retries of an ordered task: what its options say, and which of them have no meaning together."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from celery.exceptions import TaskPredicate

from celery_lowkiq.integration.app.safe_logging import careful_logger
from celery_lowkiq.integration.runs.aborts import failing, may_fail
from celery_lowkiq.integration.runs.batch_results import JobsFailed
from celery_lowkiq.integration.runs.outcomes import Again, BusinessFailure
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.rules.retry import RetryPolicy
from celery_lowkiq.rules.retry_delays import Pauses, default_retry_in, is_list, read_pauses

logger = careful_logger("celery_lowkiq")

#: What a task raises to say how a job goes on.
NO_ERRORS = (TaskPredicate, Again, BusinessFailure, JobsFailed)
ERRORS = "a tuple of exception classes, or None"


def policy_of(task: Any) -> RetryPolicy:
    """The policy of a task. Raises ConfigurationError."""
    retry_in = task.retry_in
    max_retries = len(retry_in) if is_list(retry_in) else task.max_retries
    hopeless = (*(task.dont_retry or ()), *getattr(task, "dont_autoretry_for", ()))
    isolate = task.isolate_failures and task.batch_size > 1
    return RetryPolicy(max_retries, guarded(read_pauses(retry_in)), hopeless, isolate)


def guarded(pauses: Pauses) -> Pauses:
    """Where the user's function fails or returns nonsense, the default is used."""

    def pause(error: Any, retry_count: int) -> float | Literal[False]:
        try:
            return failing(partial(pauses, error, retry_count))
        except Exception:
            logger.exception("retry_in failed for retry_count %d: the default is used", retry_count)
        return default_retry_in(retry_count)

    return pause


def are_errors(value: Any) -> bool:
    """Whether it is what ``except`` may name, and what a failure may be."""
    return isinstance(value, tuple) and all(
        isinstance(kind, type)
        and issubclass(kind, BaseException)
        and may_fail(kind)
        and not issubclass(kind, NO_ERRORS)
        for kind in value
    )


def check_policies(options: Mapping[str, Any]) -> None:
    """Raises ConfigurationError for options that contradict each other."""
    hopeless = options.get("dont_retry")
    _check_list(options.get("retry_in"), options)
    if hopeless and options.get("dont_autoretry_for"):
        raise ConfigurationError(
            f"dont_retry={hopeless!r} is not allowed with dont_autoretry_for=, which says the same of an "
            "ordered task: name all of them in dont_retry="
        )
    both = [kind.__name__ for kind in hopeless or () if kind in (options.get("autoretry_for") or ())]
    if both:
        raise ConfigurationError(
            f"{', '.join(both)} is not allowed in both autoretry_for= and dont_retry=: take it out of one"
        )


def _check_list(pauses: Any, options: Mapping[str, Any]) -> None:
    if is_list(pauses) and options.get("max_retries", len(pauses)) != len(pauses):
        raise ConfigurationError(
            f"max_retries={options['max_retries']!r} is not allowed with retry_in={pauses!r}, which says by "
            f"itself that a job is retried {len(pauses)} times: leave max_retries out"
        )
