"""Calls that arrive by the broker, from ``send_task`` or a process without the code: on to the store."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

from celery_lowkiq.rules.errors import InvalidCall

from .calls import single
from .stores import home_of

logger = logging.getLogger("celery_lowkiq")


def arrival_strategy(task: Any, consumer: Any) -> Callable[..., None]:
    """A task message handler that pushes the call, and acknowledges it only then."""

    def on_message(message: Any, body: Any, ack: Any, reject: Any, *_: Any, **__: Any) -> None:
        try:
            args, kwargs, _ = message.payload if body is None else body
            _push(task, args, kwargs, message.headers)
        except (InvalidCall, TypeError, ValueError, KeyError) as error:
            logger.error("a message for %s is rejected: %s", task.name, error)
            reject(logger, consumer.connection_errors)
        except Exception:
            logger.exception("a message for %s goes back to its queue", task.name)
            message.reject_log_error(logger, consumer.connection_errors, requeue=True)
        else:
            ack(logger, consumer.connection_errors)

    return on_message


def _push(task: Any, args: Any, kwargs: Any, headers: Any) -> None:
    app = task.app
    home = home_of(app)
    job_id, payload = task.__header__(*(args or ()), **(kwargs or {}))
    eta = headers.get("eta")
    entry = single(job_id, payload, eta=None if eta is None else _moment(eta), tz=app.timezone)
    home.store.push(task.queue_spec, [entry.job(home.codec)])


def _moment(eta: Any) -> Any:
    """Celery's header holds text; 3.10 reads no Z."""
    return datetime.fromisoformat(eta.replace("Z", "+00:00")) if isinstance(eta, str) else eta
