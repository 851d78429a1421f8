"""Runs a request through its task's tracer, with events and worker state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.states import IGNORED

from celery_lowkiq.integration.app.safe_logging import safe_logger as logger
from celery_lowkiq.rules.errors import LowkiqError

from .base_exceptions import call_user_code


class ReportingFailed(LowkiqError):
    """Celery's tracer failed itself: the result backend or the broker is unreachable, or a link is broken."""


def traced(
    task: Any, request: Any, consumer: Any, runtime: float | None = None, has_begun: bool = False
) -> Any:
    """Run the request. Returns the tracer's info: None for a success.

    ``runtime`` in s replaces the measured one in events. ``has_begun``: its beginning was reported. Raises
    ReportingFailed, or another Exception, when links or the result were not sent; Reject when ``on_success``
    does; and exceptions that end a worker.
    """
    if not has_begun:
        report(request.begins, consumer)
    try:
        # Read anew each time: a reconnect to the broker rebuilds it.
        result, info, measured, text = call_user_code(
            lambda: task.__trace__(request.id, request.args, request.kwargs, request.request_dict)
        )
    except BaseException:
        report(request.vanishes)
        raise
    if info is None and measured is None:
        report(request.vanishes)
        if result is None:
            raise ReportingFailed("the tracer gave up")
        # Celery wraps the exception for pickle.
        cause = getattr(result.exception, "exc", result.exception)
        raise ReportingFailed(f"{result.exception!r}") from cause
    took = measured if runtime is None else runtime
    if info is None:
        report(request.on_success, (0, text, took))
    elif info.state == IGNORED:
        report(request.vanishes)
    else:
        report(request.on_success, (1, result, took))
    return info


def report(send: Callable[..., Any], *about: Any) -> None:
    """Call ``send``, and log an error in it: reporting must not change what becomes of a job."""
    try:
        send(*about)
    except Exception:
        logger.exception("a run could not be reported")
