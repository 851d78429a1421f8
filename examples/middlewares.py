"""Middlewares to copy: each is around the runs of ordered tasks, and ``call()`` is the run.

    app.conf.lowkiq_server_middlewares = [
        "examples.middlewares.log_runs",  # the first is outermost
        "examples.middlewares.report_errors",
        closing(Session.remove),
    ]

A middleware gets the task, and the jobs of the batch: each with ``id``, ``payloads``, ``scores``,
``retry_count``, ``perform_in`` and ``error``. It returns what ``call()`` returns, and lets through what that
raises. What a middleware raises itself is the run's error.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from celery.exceptions import TaskPredicate

from celery_lowkiq import Again, BusinessFailure, JobsFailed

logger = logging.getLogger(__name__)

Middleware = Callable[[Any, Sequence[Any], Callable[[], Any]], Any]

#: Raised to decide about jobs, and not reported; a TaskPredicate is Retry, Ignore or Reject.
NO_ERRORS = (TaskPredicate, Again, BusinessFailure)


def log_runs(task: Any, batch: Sequence[Any], call: Callable[[], Any]) -> Any:
    """Log one line for each run: its ids, the number of their payloads, and its duration."""
    began = time.monotonic()
    outcome = "done"
    try:
        return call()
    except BaseException as error:
        outcome = f"raised {type(error).__name__}"
        raise
    finally:
        sizes = {job.id: len(job.payloads) for job in batch}
        logger.info("%s of %s %s in %.3f s", task.name, sizes, outcome, time.monotonic() - began)


def report_errors(task: Any, batch: Sequence[Any], call: Callable[[], Any]) -> Any:
    """Report each error to an error reporting service, with its jobs."""
    try:
        return call()
    except NO_ERRORS:
        raise
    except JobsFailed as failed:
        for job in batch:
            error = failed.errors.get(job.id)
            if error is not None and not isinstance(error, NO_ERRORS):
                report(error, task=task.name, job=job.id, retry_count=job.retry_count)
        raise
    except Exception as error:
        for job in batch:
            report(error, task=task.name, job=job.id, retry_count=job.retry_count)
        raise


def report(error: Exception, **about: Any) -> None:
    """Stands for your service's client."""
    logger.error("%r %s", error, about)


def closing(*closes: Callable[[], Any]) -> Middleware:
    """Call functions after each run, whatever its outcome, such as ``Session.remove`` of SQLAlchemy.

    A lane is a thread that lives as long as its worker, and so does a connection that it does not close.
    """

    def close_connections(task: Any, _batch: Sequence[Any], call: Callable[[], Any]) -> Any:
        try:
            return call()
        finally:
            for close in closes:
                try:
                    close()
                except Exception:
                    # The work is done, and an error here must not repeat it.
                    logger.exception("%s: a connection could not be closed", task.name)

    return close_connections
