"""A run as a request of the worker: what inspect, Flower and signals see."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from celery import signals
from celery.utils.saferepr import saferepr
from celery.worker import state
from celery.worker.request import Request
from kombu.utils.uuid import uuid

from .call_records import CallNote
from .run import Run

logger = logging.getLogger("celery_lowkiq")

#: Longest text of a batch in events and listings, as Celery's own limit of arguments.
ARGUMENTS_SHOWN = 1024
NO_EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


class _NoMessage:
    """Stands where a request has its broker message."""

    content_type = content_encoding = None
    body = None

    def __init__(self, headers: dict[str, Any], queue: str) -> None:
        self.headers = headers
        self.properties = {"correlation_id": headers["id"], "reply_to": headers.get("reply_to")}
        self.delivery_info = {"exchange": "", "routing_key": queue, "redelivered": False, "priority": 0}
        self.payload: Any = None


class LaneRequest(Request):
    """A request that runs in a lane, and that no pool can stop."""

    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:
        """A lane's run cannot be cancelled; a cold shutdown leaves it to be recovered."""

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """A thread cannot be ended from outside; the log says so to who wrote ``terminate=True``."""
        logger.warning(
            "%s[%s] goes on: a lane is a thread, which nothing can end from outside (max_run= raises an "
            "alarm)",
            self.name,
            self.id,
        )

    def received(self, consumer: Any) -> None:
        """Tell that the run is known; Celery's own strategy does so for broker messages."""
        if signals.task_received.receivers:
            signals.task_received.send(sender=consumer, request=self)
        self.send_event(
            "task-received",
            name=self.name,
            args=self.argsrepr,
            kwargs=self.kwargsrepr,
            root_id=self.root_id,
            parent_id=self.parent_id,
            retries=self.request_dict["retries"],
            eta=None,
            expires=None,
        )

    def begins(self) -> None:
        """It is active from now on."""
        pid: Any = os.getpid()
        self.on_accepted(pid, time.monotonic())

    def vanishes(self) -> None:
        """It ended in a way that has no event."""
        state.task_ready(self)


def shown(payloads_by_id: Mapping[str, Sequence[Any]], longest: int = ARGUMENTS_SHOWN) -> str:
    """A batch in events and logs: each id, the number of its payloads, and the payloads, cut short."""
    parts: list[str] = []
    left = longest
    for job_id, payloads in payloads_by_id.items():
        if left <= 0:
            parts.append(f"... ({len(payloads_by_id)} ids)")
            break
        parts.append(f"{job_id!r} ({len(payloads)}): {saferepr(payloads, left)}")
        left -= len(parts[-1])
    return ", ".join(parts)


def lane_request(run: Run, task: Any, consumer: Any) -> LaneRequest:
    """The request of a run: under the id and headers of its call, or with an id of its own for several."""
    own = {"lowkiq": run.info, "lowkiq_run": run}
    note = run.call or CallNote(uuid(), {"ignore_result": True})
    return _request(note, task, consumer, (run.payloads_by_id,), run.retries, own)


def call_request(
    note: CallNote, task: Any, consumer: Any, arguments: tuple[Any, ...], retries: int, ending: Any = None
) -> LaneRequest:
    """The request of one call of a merged job; ``ending`` is what its function does."""
    return _request(note, task, consumer, arguments, retries, {"lowkiq_ending": ending})


def _request(
    note: CallNote, task: Any, consumer: Any, arguments: tuple[Any, ...], retries: int, own: dict[str, Any]
) -> LaneRequest:
    embed = {**NO_EMBED, **note.embed}
    body: tuple[Any, ...] = (arguments, {}, embed)
    headers = {
        "lang": "py",
        "task": task.name,
        "id": note.id,
        "root_id": note.id,
        "parent_id": None,
        "retries": retries,
        "argsrepr": shown(*arguments),
        "kwargsrepr": "{}",
        "origin": "lowkiq",
        "ignore_result": bool(task.ignore_result),
        "timelimit": (None, None),
        "is_eager": False,
        **note.headers,
        **embed,
        **own,
    }
    return LaneRequest(
        _NoMessage(headers, task.queue_spec.name),
        app=consumer.app,
        hostname=consumer.hostname,
        eventer=consumer.event_dispatcher,
        task=task,
        body=body,
        decoded=True,
        headers=headers,
    )
