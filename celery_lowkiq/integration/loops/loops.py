"""The event loops of a worker, each made for the first batch that needs it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

from celery_lowkiq.integration.app.settings import Settings
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.loggers import package_logger as logger
from celery_lowkiq.rules.models import Batch

from .bodies import Bodies, Cancelled
from .event_loop import EventLoop, LaneLoop, NodeLoop, NoLoop
from .watchdog import Watchdog

#: Seconds that bodies and ``lowkiq_loop_stop`` may take when the worker ends.
CLOSE_TIMEOUT = 2.0


def _ignore(about: Any) -> None: ...


class Loops:
    """One loop for all lanes, or with ``lowkiq_loop = "lane"`` one for each."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._closed = False
        self._node: NodeLoop | None = None
        self._watchdog: Watchdog | None = None
        self._own = threading.local()
        self._lanes: list[LaneLoop] = []
        #: Called with the seconds by which the loop of the node is late.
        self.meter: Callable[[float], Any] = _ignore
        #: Called when the loop of the node ends before it is closed.
        self.died: Callable[[BaseException | None], Any] = _ignore

    def run(self, bodies: Bodies) -> None:
        """Run bodies to their end, while this thread waits. Raises NoLoop."""
        self._current().run(bodies)

    def cancel(self, batch: Batch, reason: Cancelled) -> bool:
        """Cancel the bodies of a batch. Returns whether any runs."""
        found = [(loop, bodies) for loop in self._all() for bodies in loop.running if bodies.batch is batch]
        for loop, bodies in found:
            loop.cancel(bodies, reason)
        return bool(found)

    def close(self) -> bool:
        """Cancel what runs, and close the loops. Returns whether anything ran."""
        if self._closed:
            return False
        self._closed = True
        deadline = time.monotonic() + CLOSE_TIMEOUT
        had_bodies = any(loop.running for loop in self._all())
        for loop in self._all():
            loop.cancel_all(deadline)
        if self._watchdog is not None:
            self._watchdog.stop()
        if self._node is not None:
            self._node.close(CLOSE_TIMEOUT)
        for lane in self._lanes:
            if not lane.running:
                lane.close()
        return had_bodies

    def _all(self) -> list[EventLoop]:
        return [*self._lanes, *([self._node] if self._node is not None else [])]

    def _current(self) -> EventLoop:
        if self._closed:
            raise NoLoop("the worker ends")
        try:
            return self._of_lane() if self._settings.loop == "lane" else self._of_node()
        except Exception as error:
            logger.exception("lowkiq_loop_start failed: the batch waits")
            raise NoLoop("lowkiq_loop_start failed") from error

    def _of_lane(self) -> LaneLoop:
        loop: LaneLoop | None = getattr(self._own, "loop", None)
        if loop is None:
            loop = self._own.loop = LaneLoop(self._settings, _ignore)
            with self._lock:
                self._lanes = [*self._lanes, loop]
        return loop

    def _of_node(self) -> NodeLoop:
        with self._lock:
            if self._node is None:
                self._node = NodeLoop(self._settings, self.meter, self.died)
                self._watchdog = Watchdog(self._node)
            return self._node


def run_alone(settings: Settings, bodies: Bodies) -> None:
    """Run bodies in a loop of their own, outside a worker. Raises InvalidCall in a running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise InvalidCall(
            "an async def task cannot be run to its end in the thread of an event loop: write "
            "await task.run(...), which calls its function"
        )
    loop = LaneLoop(settings, _ignore)
    try:
        loop.run(bodies)
    finally:
        loop.close()
