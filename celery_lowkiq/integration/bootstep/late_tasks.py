"""Ordered tasks that the app registers while the worker runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any

from celery_lowkiq.integration.app.registry import LATE, ordered_tasks, worker_options
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.rules.loggers import package_logger as logger

from .command_line import chosen

#: Seconds between checks for tasks that the worker does not serve yet.
LOOK = 5.0


class LateTasks:
    """Starts to serve ordered tasks that are registered while the worker runs.

    It does so when Celery does with plain tasks: on ``reload()``, and after a reconnect to the broker. Until
    then a warning names them.
    """

    def __init__(
        self, consumer: Any, known: Collection[str], begin: Callable[[dict[str, Any]], None]
    ) -> None:
        """``known`` are the queues of the start; ``begin(tasks)`` is called with the new tasks by queue."""
        self._app = consumer.app
        self._timer = consumer.timer
        self._known = set(known)
        self._begin = begin
        self._lock = threading.Lock()
        self._entry: Any = None
        #: Number of the app's tasks at the last update; new queues at the last check.
        self._registered = len(self._app.tasks)
        self._seen: frozenset[str] = frozenset()
        self._logged: set[str] = set()
        self._celerys: Callable[[], None] = consumer.update_strategies
        # What reload() and each connection to the broker call: it makes the tracers of the tasks.
        consumer.update_strategies = self.update

    def update(self) -> None:
        """Make the tracers of all tasks, and start to serve the new ordered ones."""
        self._celerys()
        with self._lock:
            self._registered = len(self._app.tasks)
            new = self._new()
            if new:
                self._known.update(new)
                self._begin(new)

    def finds(self, queue: str) -> bool:
        """Whether the app has this ordered queue now. Starts to serve a new one."""
        if queue in self._new():
            self.update()
        return queue in self._known

    def watch(self) -> None:
        """Check at intervals. Call it again after a reconnect to the broker, which clears Celery's timer."""
        if self._entry is not None:
            self._timer.cancel(self._entry)
        self._entry = self._timer.call_repeatedly(LOOK, self.look)

    def look(self) -> None:
        """Warn once about each queue that was new at the previous check: ``reload()`` may still come."""
        if len(self._app.tasks) == self._registered:
            return
        seen, self._seen = self._seen, frozenset(chosen(self._new(), worker_options(self._app)))
        late = sorted((seen & self._seen) - self._logged)
        if late:
            self._logged.update(late)
            logger.warning(LATE, ", ".join(late))

    def _new(self) -> dict[str, Any]:
        try:
            found = ordered_tasks(self._app)
        except ConfigurationError as error:
            if str(error) not in self._logged:
                self._logged.add(str(error))
                logger.error("ordered tasks that were registered after the start are not served: %s", error)
            return {}
        return {queue: task for queue, task in found.items() if queue not in self._known}
