"""An event loop on which bodies run while their lane waits."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from celery_lowkiq.integration.app.settings import Settings
from celery_lowkiq.rules.errors import LowkiqError
from celery_lowkiq.rules.loggers import package_logger as logger
from celery_lowkiq.worker.ports import EXIT_CRASHED

from .bodies import Bodies, Cancelled

#: Seconds between looks at lost leases and time limits, while bodies run.
LOOK = 0.05

Meter = Callable[[float], Any]


class NoLoop(LowkiqError):
    """There is no event loop for a batch now: ``lowkiq_loop_start`` failed, or the worker ends."""


class EventLoop:
    """What the loop of a node and that of a lane have in common."""

    def __init__(self, settings: Settings, meter: Meter) -> None:
        """``meter`` is called with the seconds by which the loop is late, about 20 times a second."""
        factory = settings.loop_factory or asyncio.new_event_loop
        self.loop: asyncio.AbstractEventLoop = factory()
        #: Monotonic time of the next look; None while no body runs.
        self.look_at: float | None = None
        self.running: frozenset[Bodies] = frozenset()
        self._settings = settings
        self._meter = meter
        self._changed = threading.Condition()

    def run(self, bodies: Bodies) -> None:
        """Run the bodies to their end. An exception that the caller gets meanwhile cancels them first."""
        self._add(bodies)
        try:
            self._submit(bodies)
            try:
                self._wait(bodies)
            except BaseException:
                self.cancel(bodies, Cancelled.STOPPING)
                self._wait(bodies)
                raise
        finally:
            with self._changed:
                self.running -= {bodies}
                self._changed.notify_all()

    def cancel(self, bodies: Bodies, reason: Cancelled) -> None:
        """Cancel bodies, from any thread."""
        with contextlib.suppress(RuntimeError):  # The loop is closed.
            self.loop.call_soon_threadsafe(bodies.cancel, reason)

    def cancel_all(self, deadline: float) -> None:
        """Cancel all bodies, and wait for them until ``deadline`` (monotonic)."""
        for bodies in self.running:
            self.cancel(bodies, Cancelled.STOPPING)
        with self._changed:
            self._changed.wait_for(lambda: not self.running, max(0.0, deadline - time.monotonic()))

    def _add(self, bodies: Bodies) -> None:
        with self._changed:
            self.running |= {bodies}

    def _submit(self, bodies: Bodies) -> None:
        """Let the loop begin the bodies, in a copy of the caller's context."""
        raise NotImplementedError

    def _wait(self, bodies: Bodies) -> None:
        """Wait until all bodies have ended."""
        raise NotImplementedError

    # -- in the thread of the loop

    def _begin(self, bodies: Bodies) -> None:
        if self.look_at is None:
            self._look_later()
        bodies.begin(self.loop)

    def _look_later(self) -> None:
        self.look_at = time.monotonic() + LOOK
        self.loop.call_later(LOOK, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        self._meter(max(0.0, now - (self.look_at or now)))
        self.look_at = None
        for bodies in self.running:
            bodies.check(now)
        if self.running:
            self._look_later()

    def _open(self) -> None:
        self.loop.run_until_complete(_call(self._settings.loop_start))

    def _close(self) -> None:
        """End what the bodies have left."""
        try:
            self.loop.run_until_complete(self._end())
        finally:
            self.loop.close()

    async def _end(self) -> None:
        await _call(self._settings.loop_stop)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self.loop.shutdown_asyncgens()


async def _call(hook: Callable[[], Awaitable[Any]] | None) -> None:
    if hook is not None:
        await hook()


class LaneLoop(EventLoop):
    """Runs in the thread that waits for the bodies."""

    def __init__(self, settings: Settings, meter: Meter) -> None:
        """Raises what ``lowkiq_loop_start`` does."""
        super().__init__(settings, meter)
        self._open()

    def _submit(self, bodies: Bodies) -> None:
        bodies.when_ended = self.loop.stop
        self.loop.call_soon(self._begin, bodies)

    def _wait(self, bodies: Bodies) -> None:
        if not bodies.over:
            self.loop.run_forever()

    def close(self) -> None:
        """Call ``lowkiq_loop_stop`` and close the loop."""
        self._close()


class NodeLoop(EventLoop):
    """Runs in a thread of its own, for all lanes."""

    def __init__(self, settings: Settings, meter: Meter, died: Callable[[BaseException | None], Any]) -> None:
        """``died`` is called when the loop ends before it is closed. Raises what ``lowkiq_loop_start``
        does.
        """
        super().__init__(settings, meter)
        self._died = died
        self._closing = self._dead = False
        self._opened = threading.Event()
        self._error: BaseException | None = None
        self.thread: threading.Thread = threading.Thread(target=self._main, name="lowkiq-loop", daemon=True)
        self.thread.start()
        self._opened.wait()
        if self._error is not None:
            raise self._error

    def close(self, timeout: float) -> None:
        """Call ``lowkiq_loop_stop`` and end the thread, within ``timeout`` s."""
        with self._changed:
            self._closing = True
            if not self._dead:
                self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(timeout)

    def _add(self, bodies: Bodies) -> None:
        with self._changed:
            if self._closing:
                raise NoLoop("the event loop is closed")
            if self._dead:
                raise SystemExit(EXIT_CRASHED)
            super()._add(bodies)

    def _submit(self, bodies: Bodies) -> None:
        bodies.when_ended = bodies.ended.release
        self.loop.call_soon_threadsafe(self._begin, bodies, context=contextvars.copy_context())

    def _wait(self, bodies: Bodies) -> None:
        if not (bodies.over or self._dead):
            bodies.ended.acquire()
        if not bodies.over:
            raise SystemExit(EXIT_CRASHED)

    def _main(self) -> None:
        try:
            self._open()
        except BaseException as error:  # noqa: BLE001 - the lane that waits for the loop raises it
            self._error = error
            self.loop.close()
            return
        finally:
            self._opened.set()
        died: BaseException | None = None
        try:
            self._run_forever()
        except BaseException as error:  # noqa: BLE001 - whatever it is, lanes wait for this thread
            died = error
        if self._closing:
            self._close()
        else:
            self._die(died)

    def _run_forever(self) -> None:
        """Run until the loop is stopped. What ends other loops in a task that a body has made does not."""
        while True:
            try:
                self.loop.run_forever()
                return
            except (SystemExit, KeyboardInterrupt) as error:
                logger.error("a task that a body of a run has made raised %r: the event loop goes on", error)

    def _die(self, error: BaseException | None) -> None:
        with self._changed:
            self._dead = True
        for bodies in self.running:
            if not bodies.over:
                bodies.ended.release()
        self._died(error)
