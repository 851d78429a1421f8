"""Broker messages of an ordered task, from other processes or by name: pushes their calls."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from kombu.exceptions import KombuError
from kombu.utils.uuid import uuid

from celery_lowkiq.integration.app import AppContext, context_of
from celery_lowkiq.integration.calls import priority_of
from celery_lowkiq.integration.messages import (
    SENT,
    MessagedCall,
    read_call,
    read_header,
    record_of,
    shown_by_sender,
)
from celery_lowkiq.integration.options import LIMITS, check_message, warn_of_limits
from celery_lowkiq.integration.publish import publish
from celery_lowkiq.integration.records import CallRecord, fail, usable
from celery_lowkiq.rules.basics import package_logger as logger
from celery_lowkiq.rules.errors import (
    ConfigurationError,
    InvalidCall,
    QueueFull,
    StoreError,
    StoreUnavailable,
)
from celery_lowkiq.rules.links import links_fault
from celery_lowkiq.rules.models import Call
from celery_lowkiq.rules.text import in_line
from celery_lowkiq.store.counts import has_job

#: Delay in s before a message is tried again, while the store is unreachable or the queue is full.
RETRY_DELAY = 1.0
SCORE_NEEDED = (
    "score=None is invalid: expected a number for a call of {task} by name, because drop_stale= would take a "
    "message that comes late for stale with lowkiq_message_score='sent'. Write "
    "headers={{'lowkiq': {{'score': ...}}}}"
)


class BrokerMessageHandler:
    """Celery's handler of task messages: pushes the call, then acknowledges the message."""

    def __init__(self, task: Any, consumer: Any, plain: Callable[..., None] | None = None) -> None:
        """``plain``: handles the messages of a task with ``by=`` while it is a plain one."""
        self._task = task
        self._consumer = consumer
        self._plain = plain
        self._waits = False
        #: Messages in the order of their arrival; the first one is being handled, or waits for the store.
        self._waiting: deque[tuple[Any, Any, Any, Any]] = deque()
        self._lock = threading.RLock()

    def __call__(self, message: Any, body: Any, ack: Any, reject: Any, *rest: Any, **options: Any) -> None:
        """Handle a message. An ordered call raises nothing, because Celery would end the worker."""
        if self._plain is not None and self._runs_plain(message, body):
            self._plain(message, body, ack, reject, *rest, **options)
            return
        # Celery's timer may be a thread of its own.
        with self._lock:
            self._waiting.append((message, body, ack, reject))
            if len(self._waiting) == 1:
                self._handle_waiting()

    def _handle_waiting(self) -> None:
        with self._lock:
            while self._waiting:
                done = True
                try:
                    done = self._handle(*self._waiting[0])
                finally:
                    # Also after an error of the broker: else the messages behind it would wait for ever.
                    if done:
                        self._waiting.popleft()
                if not done:
                    # The broker would deliver a rejected message again at once. Later ones wait behind it.
                    self._consumer.timer.call_after(RETRY_DELAY, self._handle_waiting, ())
                    return

    def _handle(self, message: Any, body: Any, ack: Any, reject: Any) -> bool:
        """Return False while the store is unreachable or the queue is full: the message waits."""
        errors = self._consumer.connection_errors
        call = MessagedCall((), {}, {}, message.headers or {})
        try:
            properties = getattr(message, "properties", None) or {}
            call = read_call(message.payload if body is None else body, message.headers, properties)
            context = context_of(self._task.app)
            publish(context, self._task, (self._checked(context, call, _priority(message)),))
        except (StoreUnavailable, QueueFull, ConfigurationError) as error:
            self._log_outage(error)
            return False
        except (InvalidCall, TypeError, ValueError, KeyError, KombuError) as error:
            about = self._task.name, in_line(call.headers.get("id")), in_line(error)
            logger.error("a message for %s, call %s, is rejected: %s", *about)
            self._fail(call, error)
            reject(logger, errors)
        except Exception:
            logger.exception("a message for %s goes back to its queue", self._task.name)
            message.reject_log_error(logger, errors, requeue=True)
        else:
            self._log_outage(None)
            ack(logger, errors)
        return True

    def _checked(self, context: AppContext, message: MessagedCall, priority: int | None) -> Call:
        """The call of a message. Raises TypeError, InvalidCall, PayloadError."""
        task = self._task
        check_message(task.name, message.properties)
        header = read_header(message.headers, task.app.timezone)
        task_id = message.headers.get("id")
        call: Call = task.call_of(
            context,
            message.args,
            message.kwargs,
            str(task_id or uuid()),
            header,
            eta=message.headers.get("eta"),
            # A virtual transport gives a priority to each message.
            priority=None if "priority" in header else priority,
        )
        if context.settings.message_score != "arrival" and call.score is None:
            if task.queue_spec.policies.drop_stale is not None:
                raise InvalidCall(SCORE_NEEDED.format(task=task.name))
            call = call._replace(sent=header.get(SENT))
        if not task_id:
            return call
        warn_of_limits(task, dict(zip(LIMITS, message.headers.get("timelimit") or (), strict=False)))
        return call._replace(record=record_of(task, message, "", shown_by_sender(task, message)))

    def _fail(self, call: MessagedCall, error: Exception) -> None:
        """Store the failure of a call. An error of the result backend must not stop other messages."""
        task_id = call.headers.get("id")
        if task_id:
            try:
                embed = {} if links_fault(call.embed) else call.embed
                fail(self._task, CallRecord(str(task_id), usable(call.headers), embed), error)
            except Exception:
                about = in_line(task_id), self._task.name
                logger.exception("could not record the failure of call %s of %s", *about)

    def _log_outage(self, error: Exception | None) -> None:
        """Log an outage once at its start, and once at its end."""
        waited, self._waits = self._waits, error is not None
        if error is not None and not waited:
            logger.error("messages for %s wait in the worker: %s", self._task.name, error)
        elif error is None and waited:
            logger.info("messages for %s reach their queue again", self._task.name)

    def _runs_plain(self, message: Any, body: Any) -> bool:
        """Test that the task is a plain one, and the store has no call of the message's id left."""
        task = self._task
        try:
            if not task.is_plain:
                return False
            call = read_call(message.payload if body is None else body, message.headers or {})
            job_id = task.checked_call(call.args, call.kwargs, None).id
            store = context_of(task.app).store
            return not has_job(store.client, task.ordered_queue.stored_spec(), job_id)
        except (InvalidCall, TypeError):
            # It fails as a plain call does.
            return True
        except StoreError:
            # The ordered queue takes it when the store is back, and logs the outage.
            return False


def _priority(message: Any) -> int | None:
    """The priority of a message; virtual transports have it as delivery information, with 0 as default."""
    places = (getattr(message, "properties", None), getattr(message, "delivery_info", None))
    return next((found for each in places if each and (found := priority_of(each))), None)
