"""Handles broker messages of an ordered task, from ``send_task`` or other processes: pushes the calls."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from kombu.exceptions import KombuError
from kombu.utils.uuid import uuid

from celery_lowkiq.integration.app.context import context_of
from celery_lowkiq.integration.calls.arguments import check_arguments
from celery_lowkiq.integration.calls.message import MessagedCall, read_call, read_header
from celery_lowkiq.integration.calls.published import shown_by_sender
from celery_lowkiq.integration.calls.validation import Entry, priority_of
from celery_lowkiq.integration.records.call_record import CallRecord
from celery_lowkiq.integration.records.known_headers import usable
from celery_lowkiq.integration.records.orphans import fail
from celery_lowkiq.rules.errors import (
    ConfigurationError,
    InvalidCall,
    QueueFull,
    StoreError,
    StoreUnavailable,
)
from celery_lowkiq.rules.links import links_fault
from celery_lowkiq.rules.loggers import package_logger as logger
from celery_lowkiq.rules.text import in_line
from celery_lowkiq.store.inspect.queries import Queries

from .call_options import LIMITS, check_message, warn_of_limits

#: Delay in s before a message is tried again, while the store is unreachable or the queue is full.
RETRY_DELAY = 1.0
SCORE_NEEDED = (
    "score=None is invalid: expected a number for a call of {task} by name, since drop_stale= would take a "
    "message that comes late for stale with lowkiq_message_score='sent'. Write "
    "headers={{'lowkiq': {{'score': ...}}}}"
)


class BrokerMessageHandler:
    """Celery's handler of task messages: pushes the call, then acknowledges the message."""

    def __init__(self, task: Any, consumer: Any) -> None:
        self._task = task
        self._consumer = consumer
        self._away = False
        #: Messages in the order of their arrival; the first one is being handled, or waits for the store.
        self._waiting: deque[tuple[Any, Any, Any, Any]] = deque()
        self._lock = threading.RLock()

    def __call__(self, message: Any, body: Any, ack: Any, reject: Any, *_: Any, **__: Any) -> None:
        """Handle a message. Raises nothing, since Celery would end the worker."""
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
        """Whether the message is done with: False while the store is unreachable or the queue is full."""
        errors = self._consumer.connection_errors
        call = MessagedCall((), {}, {}, message.headers or {})
        try:
            properties = getattr(message, "properties", None) or {}
            call = read_call(message.payload if body is None else body, message.headers, properties)
            self._push(call, _priority(message))
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

    def _push(self, call: MessagedCall, priority: int | None) -> None:
        context = context_of(self._task.app)
        check_message(self._task.name, call.properties)
        check_arguments(call.args, call.kwargs)
        codec = context.codec_for(self._task.call_form.merges)
        job = self._entry(call, priority, context.settings.message_score).job(codec)
        if call.headers.get("id"):
            warn_of_limits(self._task, dict(zip(LIMITS, call.headers.get("timelimit") or (), strict=False)))
            job = job._replace(record=self._task.record_of(call, "", shown_by_sender(self._task, call)))
        context.store.push(self._task.queue_spec, [job])

    def _entry(self, call: MessagedCall, priority: int | None, message_score: str) -> Entry:
        """Raises InvalidCall, and TypeError for wrong arguments."""
        task, header = self._task, read_header(call.headers, self._task.app.timezone)
        # A virtual transport gives a priority to each message.
        priority = priority if header.priority is None else None
        task_id = str(call.headers.get("id") or uuid())
        entry: Entry = task.entry_of(
            call.args, call.kwargs, task_id, header, eta=call.headers.get("eta"), priority=priority
        )
        if message_score == "arrival" or entry.score is not None:
            return entry
        if task.queue_spec.policies.drop_stale is not None:
            raise InvalidCall(SCORE_NEEDED.format(task=task.name))
        return entry._replace(sent=header.sent)

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
        away, self._away = self._away, error is not None
        if error is not None and not away:
            logger.error("messages for %s wait in the worker: %s", self._task.name, error)
        elif error is None and away:
            logger.info("messages for %s reach their queue again", self._task.name)


class SwitchingHandler:
    """Celery's handler of task messages of a task with ``by=``, which may be a plain one for a while.

    A message of an id runs as a plain call only when the store has no call of the id left.
    """

    def __init__(self, task: Any, ordered: BrokerMessageHandler, plain: Any) -> None:
        self._task = task
        self._ordered = ordered
        self._plain = plain

    def __call__(self, message: Any, body: Any, *args: Any, **kwargs: Any) -> Any:
        """Handle a message."""
        handler = self._plain if self._runs_plain(message, body) else self._ordered
        return handler(message, body, *args, **kwargs)

    def _runs_plain(self, message: Any, body: Any) -> bool:
        try:
            return self._task.is_plain and not self._is_stored(message, body)
        except (InvalidCall, TypeError):
            # It fails as a plain call does.
            return True
        except StoreError:
            # The ordered queue takes it when the store is back, and logs the outage.
            return False
        except Exception:
            logger.exception("enabled= of %s failed: a message goes to its ordered queue", self._task.name)
            return False

    def _is_stored(self, message: Any, body: Any) -> bool:
        """Whether the store has calls of the message's id."""
        task = self._task
        call = read_call(message.payload if body is None else body, message.headers or {})
        job_id = task.entry_of(call.args, call.kwargs, None).id
        return Queries(context_of(task.app).store).has_job(task.ordered_queue.stored_spec(), job_id)


def _priority(message: Any) -> int | None:
    """The priority of a message; virtual transports have it as delivery information, with 0 as default."""
    places = (getattr(message, "properties", None), getattr(message, "delivery_info", None))
    return next((found for each in places if each and (found := priority_of(each))), None)
