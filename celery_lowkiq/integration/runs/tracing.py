"""Runs a request through its task's tracer, and tells events and worker state of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.states import IGNORED

from celery_lowkiq.integration.app.safe_logging import careful_logger
from celery_lowkiq.rules.errors import LowkiqError

from .aborts import failing

logger = careful_logger("celery_lowkiq")


class NotTold(LowkiqError):
    """Celery's tracer met an error of its own: a result backend or a broker that is away, a broken link."""


def traced(task: Any, request: Any, consumer: Any, runtime: float | None = None) -> Any:
    """The tracer's info: None for a success. ``runtime`` (s) replaces the measured one in events.

    Raises NotTold, or another Exception, when links or the result did not go out; Reject when
    ``on_success`` does; and what ends a worker.
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
        raise NotTold(f"{result.exception!r}" if result is not None else "the tracer gave up")
    took = measured if runtime is None else runtime
    report(_ends, request, info, (0, text, took) if info is None else (1, result, took))
    return info


def report(tell: Callable[..., Any], *about: Any) -> None:
    """Reporting must not change what becomes of a job."""
    try:
        tell(*about)
    except Exception:
        logger.exception("a run could not be reported")


def _begins(request: Any, consumer: Any) -> None:
    request.received(consumer)
    request.begins()


def _ends(request: Any, info: Any, outcome: tuple[Any, ...]) -> None:
    """Celery logs, counts and sends the event of the outcome."""
    if info is not None and info.state == IGNORED:
        request.vanishes()
    else:
        request.on_success(outcome)
