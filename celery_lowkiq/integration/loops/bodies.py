"""The coroutines of one run: one for a batch, or one for each id of it."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from enum import Enum
from typing import Any

from celery_lowkiq.integration.app import current_task
from celery_lowkiq.rules.loggers import package_logger as logger
from celery_lowkiq.rules.models import Batch
from celery_lowkiq.rules.validators import first_limit

from .body import Body

#: Seconds that a cancelled body may take to end before it is logged.
PATIENCE = 5.0


class Cancelled(Enum):
    """Why the bodies of a run are cancelled."""

    LOST = "another worker may own its shard"
    TIMEOUT = "its soft_time_limit is over"
    REVOKED = "it is revoked"
    STOPPING = "the worker ends"


class Bodies:
    """The bodies of a run. Its methods belong to the thread of the event loop."""

    def __init__(
        self,
        task: Any,
        coroutines: Mapping[str, Coroutine[Any, Any, Any]],
        name: str,
        batch: Batch | None = None,
        limit: float | None = None,
    ) -> None:
        """``name``: that of the lane, for the log. ``batch``: None for a run outside a worker. ``limit``: the
        soft time limit of the call in s, in place of the task's.
        """
        running = current_task.running(task)
        self.by_id: dict[str, Body] = {
            key: Body(running, coroutine, self) for key, coroutine in coroutines.items()
        }
        self.batch: Batch | None = batch
        self.name: str = f"{task.name} on {name}"
        #: Why they were cancelled, if they were.
        self.reason: Cancelled | None = None
        #: Called in the loop's thread when the last one has ended.
        self.when_ended: Callable[[], Any]
        #: Released when they have ended, or never will.
        self.ended: threading.Lock = threading.Lock()
        self.ended.acquire()
        self.stepping: bool = False
        self._left = len(self.by_id)
        self._tasks: list[asyncio.Task[Any]] = []
        self.limit: float | None = first_limit(limit, task.soft_time_limit)
        #: Monotonic time when their time is up. A busy loop may begin them long after they were given to it.
        self._deadline = math.inf
        self._cancelled_at = 0.0

    @property
    def over(self) -> bool:
        """Whether all have ended."""
        return not self._left

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make a task of each body, in the current context."""
        self._tasks = [loop.create_task(body) for body in self.by_id.values()]
        if self.reason is not None:
            self._cancel_tasks()
        elif self.limit:
            # Called after the first step of the last one.
            loop.call_soon(self._limit_time, self.limit)

    def _limit_time(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds

    def check(self, now: float) -> None:
        """Cancel them if their time is up, or log one that was cancelled and goes on. ``now``: monotonic."""
        if self.reason is None:
            if self.batch is not None and self.batch.lost.is_set():
                self.cancel(Cancelled.LOST)
            elif now >= self._deadline:
                self.cancel(Cancelled.TIMEOUT)
        elif self._cancelled_at and now - self._cancelled_at >= PATIENCE:
            self._cancelled_at = 0.0
            self._log_stubborn(self.reason)

    def cancel(self, reason: Cancelled) -> None:
        """Raise CancelledError where each of them waits; the first reason counts."""
        if self.reason is None:
            self.reason = reason
            if self._tasks:
                self._cancel_tasks()

    def _cancel_tasks(self) -> None:
        self._cancelled_at = time.monotonic()
        for task in self._tasks:
            task.cancel()

    def one_ended(self) -> None:
        """A body has ended."""
        self._left -= 1
        if not self._left:
            self.when_ended()

    def _log_stubborn(self, reason: Cancelled) -> None:
        for (key, body), task in zip(self.by_id.items(), self._tasks, strict=True):
            if not task.done():
                logger.error(
                    "%s: a body was cancelled %.0f s ago, since %s, and goes on. Its ids %s stay taken until "
                    "it ends. It waits at:\n%s",
                    self.name,
                    PATIENCE,
                    reason.value,
                    [key] if key else [job.id for job in self.batch.jobs] if self.batch else "",
                    body.format_stack(),
                )
