"""Calls that arrive by the broker, from ``send_task`` or a process without the code: on to the store."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from celery.utils.saferepr import saferepr
from kombu.exceptions import KombuError

from celery_lowkiq.integration.app.context import home_of
from celery_lowkiq.integration.calls.arguments import SHOWN, check_arguments
from celery_lowkiq.integration.calls.message_header import asked_in
from celery_lowkiq.integration.calls.validation import Entry, priority_of
from celery_lowkiq.integration.records.call_record import CallNote
from celery_lowkiq.integration.records.orphans import fail
from celery_lowkiq.rules.errors import ConfigurationError, InvalidCall, QueueFull, StoreUnavailable

from .unsupported import check_message

logger = logging.getLogger("celery_lowkiq")

#: How long a message waits in the worker for a store that is away or not configured, or a queue that is
#: full, in s.
PAUSE = 1.0
SCORE_NEEDED = (
    "score=None is invalid: expected a number for a call of {task} by name, since drop_stale= would take a "
    "message that comes late for stale with lowkiq_message_score='sent'. Write "
    "headers={{'lowkiq': {{'score': ...}}}}"
)


class Arrivals:
    """A task message handler that pushes the call, and acknowledges it only then."""

    def __init__(self, task: Any, consumer: Any) -> None:
        self._task = task
        self._consumer = consumer
        self._away = False

    def __call__(self, message: Any, body: Any, ack: Any, reject: Any, *_: Any, **__: Any) -> None:
        """Celery ends a worker for whatever leaves this method, so nothing does."""
        errors = self._consumer.connection_errors
        call = MessagedCall((), {}, {}, message.headers or {})
        try:
            call = read_call(message.payload if body is None else body, message.headers)
            self._push(call, getattr(message, "properties", None) or {}, _priority(message))
        except (StoreUnavailable, QueueFull, ConfigurationError) as error:
            self._tell(away=True, error=error)
            # Sent back, it would return at once, again and again.
            self._consumer.timer.call_after(PAUSE, self, (message, body, ack, reject))
        except (InvalidCall, TypeError, ValueError, KeyError, KombuError) as error:
            task_id = call.headers.get("id")
            logger.error("a message for %s, call %s, is rejected: %s", self._task.name, task_id, error)
            self._fail(call, error)
            reject(logger, errors)
        except Exception:
            logger.exception("a message for %s goes back to its queue", self._task.name)
            message.reject_log_error(logger, errors, requeue=True)
        else:
            self._tell(away=False)
            ack(logger, errors)

    def _push(self, call: MessagedCall, properties: Mapping[str, Any], priority: int | None) -> None:
        home = home_of(self._task.app)
        check_message(self._task.name, call.headers, properties)
        check_arguments(call.args, call.kwargs)
        job = self._entry(call, priority, home.settings.message_score).job(home.codec)
        if call.headers.get("id"):
            record = self._task.record_of(home, call, properties)
            job = replace(job, record=record)
        home.store.push(self._task.queue_spec, [job])

    def _entry(self, call: MessagedCall, priority: int | None, message_score: str) -> Entry:
        """Raises InvalidCall, and TypeError for wrong arguments."""
        task, asked = self._task, asked_in(call.headers, self._task.app.timezone)
        eta = None if call.headers.get("eta") is None else _moment(call.headers["eta"])
        # A virtual transport gives a priority to each message.
        priority = priority if asked.priority is None else None
        entry: Entry = asked.added_to(task.entry_of(call.args, call.kwargs, eta=eta, priority=priority))
        if message_score == "arrival" or entry.score is not None:
            return entry
        if task.queue_spec.policies.drop_stale is not None:
            raise InvalidCall(SCORE_NEEDED.format(task=task.name))
        return replace(entry, sent=asked.sent)

    def _fail(self, call: MessagedCall, error: Exception) -> None:
        """Whoever waits for the result is told. A backend that is away cannot hold up the other messages."""
        task_id = call.headers.get("id")
        if task_id:
            try:
                fail(self._task, CallNote(task_id, call.headers, call.embed or {}), error)
            except Exception:
                logger.exception("nobody is told that call %s of %s has failed", task_id, self._task.name)

    def _tell(self, away: bool, error: Exception | None = None) -> None:
        """An outage is logged once when it begins, once when it ends."""
        if away != self._away:
            self._away = away
            if away:
                logger.error("messages for %s wait in the worker: %s", self._task.name, error)
            else:
                logger.info("messages for %s reach their queue again", self._task.name)


@dataclass(frozen=True)
class MessagedCall:
    """A call as a message of protocol 2 has it."""

    args: Any
    kwargs: Any
    embed: Mapping[str, Any]
    headers: Mapping[str, Any]


def read_call(body: Any, headers: Any) -> MessagedCall:
    """What protocol 2 sends, or protocol 1 of many other clients: all in the body. Raises InvalidCall for
    what is neither.
    """
    if not isinstance(body, dict):
        if not isinstance(body, (list, tuple)) or len(body) != 3:
            raise InvalidCall(
                f"body={saferepr(body, SHOWN)} is invalid: expected [args, kwargs, embed], as Celery sends it"
            )
        args, kwargs, embedded = body
        if embedded is not None and not isinstance(embedded, Mapping):
            raise InvalidCall(f"embed={saferepr(embedded, SHOWN)} is invalid: expected a mapping or null")
        return MessagedCall(args, kwargs, embedded or {}, headers)
    embed = {name: body.get(name) for name in ("callbacks", "errbacks", "chord")}
    own = {name: body.get(name) for name in ("id", "eta", "expires", "timelimit")} | {
        "group": body.get("taskset")
    }
    return MessagedCall(body.get("args"), body.get("kwargs"), embed, {**headers, **own})


def _priority(message: Any) -> int | None:
    """Virtual transports tell it as delivery information: 0 also of a call that gave none."""
    told = (getattr(message, "properties", None), getattr(message, "delivery_info", None))
    return next((found for each in told if each and (found := priority_of(each))), None)


def _moment(eta: Any) -> Any:
    """Celery's header holds text; 3.10 reads no Z."""
    return datetime.fromisoformat(eta.replace("Z", "+00:00")) if isinstance(eta, str) else eta
