"""Event loops for async def tasks: a lane waits while coroutines run."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import ContextVar
from enum import Enum
from types import FrameType
from typing import Any

from celery_lowkiq.integration.current import running_task
from celery_lowkiq.integration.settings import Settings
from celery_lowkiq.rules.basics import package_logger as logger
from celery_lowkiq.rules.errors import InvalidCall, LowkiqError
from celery_lowkiq.rules.models import Batch
from celery_lowkiq.rules.validators import first_limit
from celery_lowkiq.worker.forks import staying
from celery_lowkiq.worker.ports import EXIT_CRASHED

# A coroutine of a task's function, as the event loop runs it.


class Body(Coroutine[Any, Any, None]):
    """Runs a coroutine with its task as Celery's current one, and keeps what it returns or raises.

    Celery's stack of running tasks belongs to a thread, which many coroutines share, so the task is pushed
    around each step. An exception is kept also because a SystemExit would end the event loop.
    """

    __slots__ = ("_coroutine", "_owner", "_pid", "_task", "error", "value")

    def __init__(self, task: Any, coroutine: Coroutine[Any, Any, Any], owner: Bodies) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self._task = task
        self._coroutine = coroutine
        self._owner = owner
        self._pid = os.getpid()

    def send(self, value: Any) -> Any:
        """Run the coroutine up to where it waits next."""
        return self._step(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        """Raise an exception where the coroutine waits."""
        return self._step(self._coroutine.throw, *error)

    def _step(self, step: Callable[..., Any], *given: Any) -> Any:
        before = running_task.replace(self._task)
        self._owner.stepping = True
        try:
            return staying(self._pid, step, *given)
        except StopIteration as end:
            self.value = end.value
        except BaseException as error:  # noqa: BLE001 - the lane raises it
            self.error = error
        finally:
            self._owner.stepping = False
            running_task.restore(before)
        self._owner.one_ended()
        raise StopIteration

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Any:
        raise NotImplementedError("only an event loop runs it")

    @property
    def cr_frame(self) -> FrameType | None:
        """The frame of the function; for ``asyncio.Task.get_stack``."""
        frame: FrameType | None = getattr(self._coroutine, "cr_frame", None)
        return frame

    def format_stack(self) -> str:
        """Where the coroutine waits, as text."""
        frames, waiting = [], self._coroutine
        while (frame := getattr(waiting, "cr_frame", None)) is not None:
            frames.append((frame, frame.f_lineno))
            waiting = waiting.cr_await  # type: ignore[attr-defined]
        return "".join(traceback.StackSummary.extract(iter(frames)).format())


# The coroutines of one run: one for a batch, or one for each id of it.

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
        self.by_id: dict[str, Body] = {
            key: Body(task, coroutine, self) for key, coroutine in coroutines.items()
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
        #: True if one of them is on the thread of the event loop now.
        self.stepping: bool = False
        self._left = len(self.by_id)
        self._tasks: list[asyncio.Task[Any]] = []
        self.limit: float | None = first_limit(limit, task.soft_time_limit)
        #: Monotonic time when their time is up. A busy loop may begin them long after they were given to it.
        self._deadline = math.inf
        self._cancelled_at = 0.0

    @property
    def over(self) -> bool:
        """True if all bodies have ended."""
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
        """Record that a body has ended."""
        self._left -= 1
        if not self._left:
            self.when_ended()

    def _log_stubborn(self, reason: Cancelled) -> None:
        for (key, body), task in zip(self.by_id.items(), self._tasks, strict=True):
            if not task.done():
                logger.error(
                    "%s: a body was cancelled %.0f s ago because %s, and goes on. Its ids %s stay taken "
                    "until it ends. It waits at:\n%s",
                    self.name,
                    PATIENCE,
                    reason.value,
                    [key] if key else [job.id for job in self.batch.jobs] if self.batch else "",
                    body.format_stack(),
                )


# A stack of requests that coroutines inherit from the lane whose batch they run.


class ContextStack:
    """Celery's ``LocalStack`` in a context variable, in place of one for each thread.

    Many coroutines share the thread of an event loop; each has a context of its own, as each thread has.
    """

    def __init__(self) -> None:
        self._items: ContextVar[tuple[Any, ...]] = ContextVar("lowkiq_requests", default=())

    def push(self, item: Any) -> None:
        self._items.set((*self._items.get(), item))

    def pop(self) -> Any:
        """Take the last item from the stack of this context; None when it is empty."""
        items = self._items.get()
        if not items:
            return None
        self._items.set(items[:-1])
        return items[-1]

    @property
    def top(self) -> Any:
        items = self._items.get()
        return items[-1] if items else None

    @property
    def stack(self) -> list[Any]:
        return list(self._items.get())

    def __len__(self) -> int:
        return len(self._items.get())


# An event loop on which bodies run while their lane waits.

#: Seconds between looks at lost leases and time limits, while bodies run.
LOOK = 0.05

Meter = Callable[[float], Any]


class NoLoop(LowkiqError):
    """There is no event loop for a batch now: ``lowkiq_loop_start`` failed, or the worker ends."""


class EventLoop:
    """Runs bodies: base of the loop of a node and of a loop outside a worker."""

    def __init__(self, settings: Settings, meter: Meter) -> None:
        """``meter`` is called with the seconds by which the loop is late, about 20 times a second."""
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
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


class OwnLoop(EventLoop):
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
        threading.Thread(target=_watch, args=(self,), name="lowkiq-loop-watchdog", daemon=True).start()

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


# Names what blocks the event loop of a node.

#: Seconds after which a loop that runs nothing else is blocked.
BLOCKED = 1.0
#: Seconds between looks.
INTERVAL = 0.5


def _watch(loop: NodeLoop) -> None:
    """Log once, with the stack of the loop's thread, that a body blocks it; until the thread ends."""
    logged: float | None = None
    while loop.thread.is_alive():
        look_at = loop.look_at
        late = 0.0 if look_at is None else time.monotonic() - look_at
        if late >= BLOCKED and look_at != logged:
            logged = look_at
            _log_blocked(loop, late)
        loop.thread.join(INTERVAL)


def _log_blocked(loop: NodeLoop, seconds: float) -> None:
    frame = _frame_of(loop.thread)
    names = ", ".join(bodies.name for bodies in loop.running if bodies.stepping)
    logger.warning(
        "the event loop has been blocked for %.1f s by %s, and with it all other runs. Await in an "
        "async def task, or use asyncio.to_thread. It is at:\n%s",
        seconds,
        names or "what is no body of a run",
        "".join(traceback.format_stack(frame)),
    )


def _frame_of(thread: threading.Thread) -> FrameType | None:
    """Return what a thread executes now.

    Python 3.11 holds a lock while it makes the dict of frames. A garbage collection that begins there waits
    for that lock, and with it all threads, for ever.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames().get(thread.ident or 0)
    finally:
        if enabled:
            gc.enable()


# The event loops of a worker, each made for the first batch that needs it.

#: Seconds that bodies and ``lowkiq_loop_stop`` may take when the worker ends.
CLOSE_TIMEOUT = 2.0


def _ignore(about: Any) -> None: ...


class Loops:
    """The loop of a node, made for its first bodies."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._closed = False
        self._node: NodeLoop | None = None
        #: Called with the seconds by which the loop of the node is late.
        self.meter: Callable[[float], Any] = _ignore
        #: Called when the loop of the node ends before it is closed.
        self.died: Callable[[BaseException | None], Any] = _ignore

    def run(self, bodies: Bodies) -> None:
        """Run bodies to their end, while this thread waits. Raises NoLoop."""
        self._current().run(bodies)

    def cancel(self, batch: Batch, reason: Cancelled) -> bool:
        """Cancel the bodies of a batch. Returns whether any runs."""
        loop = self._node
        if loop is None:
            return False
        found = [bodies for bodies in loop.running if bodies.batch is batch]
        for bodies in found:
            loop.cancel(bodies, reason)
        return bool(found)

    def close(self) -> bool:
        """Cancel what runs, and close the loops. Returns whether anything ran."""
        was_closed, self._closed, loop = self._closed, True, self._node
        if was_closed or loop is None:
            return False
        had_bodies = bool(loop.running)
        loop.cancel_all(time.monotonic() + CLOSE_TIMEOUT)
        loop.close(CLOSE_TIMEOUT)
        return had_bodies

    def _current(self) -> NodeLoop:
        if self._closed:
            raise NoLoop("the worker ends")
        try:
            with self._lock:
                if self._node is None:
                    self._node = NodeLoop(self._settings, self.meter, self.died)
                return self._node
        except Exception as error:
            logger.exception("lowkiq_loop_start failed: the batch waits")
            raise NoLoop("lowkiq_loop_start failed") from error


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
    loop = OwnLoop(settings, _ignore)
    try:
        loop.run(bodies)
    finally:
        loop.close()
