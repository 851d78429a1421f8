"""Runs a request through its task's tracer, with events and worker state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.states import IGNORED

from celery_lowkiq.integration.app.safe_logging import safe_logger as logger
from celery_lowkiq.rules.errors import LowkiqError

from .aborts import failing


class ReportingFailed(LowkiqError):
    """Celery's tracer failed itself: the result backend or the broker is unreachable, or a link is broken."""


def traced(task: Any, request: Any, consumer: Any, runtime: float | None = None) -> Any:
    """Run the request. Returns the tracer's info: None for a success.

    ``runtime`` in s replaces the measured one in events. Raises ReportingFailed, or another Exception, when
    links or the result were not sent; Reject when ``on_success`` does; and exceptions that end a worker.
    """
    report(_begins, request, consumer)
    try:
        # Read anew each time: a reconnect to the broker rebuilds it.
        result, info, measured, text = failing(
            lambda: task.__trace__(request.id, request.args, request.kwargs, request.request_dict)
        )
    except BaseException:
        report(request.vanishes)
        raise
    if info is None and measured is None:
        report(request.vanishes)
        raise ReportingFailed(f"{result.exception!r}" if result is not None else "the tracer gave up")
    took = measured if runtime is None else runtime
    report(_ends, request, info, (0, text, took) if info is None else (1, result, took))
    return info


def report(send: Callable[..., Any], *about: Any) -> None:
    """Call ``send``, and log an error in it: reporting must not change what becomes of a job."""
    try:
        send(*about)
    except Exception:
        logger.exception("a run could not be reported")


def _begins(request: Any, consumer: Any) -> None:
    request.received(consumer)
    request.begins()


def _ends(request: Any, info: Any, outcome: tuple[Any, ...]) -> None:
    """Have Celery log and count the outcome, and send its event."""
    if info is not None and info.state == IGNORED:
        request.vanishes()
    else:
        request.on_success(outcome)
