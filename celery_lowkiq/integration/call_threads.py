"""Threads in which calls from asyncio are made, so that they do not block the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic
from typing import Any, TypeAlias, TypeVar

from celery_lowkiq.rules.basics import try_start
from celery_lowkiq.rules.errors import StoreUnavailable

T = TypeVar("T")


class NoThreadFree(StoreUnavailable):
    """A call found no free thread within ``lowkiq_pool_timeout``, and was not made."""


class CallThreads:
    """Makes the calls of all event loops of an app in at most ``size`` threads.

    The timeout (s) counts from the last answer of Redis, so that many calls do not fail because they are
    many.
    """

    def __init__(self, size: int, timeout: float) -> None:
        self._size = size
        self._started = 0
        self._shared = _Shared()
        ends = weakref.finalize(self, self._shared.waiting.put, None)
        # At the exit of the process, handlers that were registered earlier may still make calls.
        ends.atexit = False
        self._timeout = timeout

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """Make a call with the context variables of the caller. Raises what the call raises, NoThreadFree.

        If the awaiting task is cancelled, a call that has begun goes on in its thread; one that waits is not
        made.
        """
        if hasattr(self._shared.thread, "is_ours"):
            # A call made by another one, as in a client middleware, does not wait for a thread: each may be
            # in use by one that waits, too.
            return call(*args)
        made: Future[T] = self._submit(call, args)
        result = asyncio.wrap_future(made)
        if self._shared.open > self._size:
            await self._until_begun(made, result)
        return await result

    def _submit(self, call: Callable[..., T], args: tuple[Any, ...]) -> Future[T]:
        """Make a call in a daemon thread, which does not hold up the end of the process."""
        future: Future[T] = Future()
        shared = self._shared
        with shared.lock:
            shared.open += 1
            number = self._started
            starts = number < min(shared.open, self._size)
            self._started += starts
        if starts:
            thread = threading.Thread(target=shared.work, name=f"lowkiq-calls-{number}", daemon=True)
            if error := try_start(thread):
                # The other threads make the call.
                with shared.lock:
                    self._started -= 1
                    shared.open -= not number
                if not number:
                    raise error
        shared.waiting.put((future, contextvars.copy_context(), call, args))
        return future

    async def _until_begun(self, made: Future[T], result: asyncio.Future[T]) -> None:
        """Wait until a thread has taken the call. Raises NoThreadFree."""
        since = monotonic()
        try:
            while not (made.running() or made.done()):
                left = max(since, self._shared.answered_at) + self._timeout - monotonic()
                if left <= 0 and made.cancel():
                    raise NoThreadFree(
                        f"Redis is not available: no connection was free within {self._timeout:g} s "
                        "(lowkiq_pool_timeout, lowkiq_client_pool_size)"
                    )
                await asyncio.wait((result,), timeout=max(0.0, left))
        except asyncio.CancelledError:
            made.cancel()
            raise


#: What a thread takes: the future of a call, its context, and the call with its arguments.
_Submitted: TypeAlias = tuple[Future[Any], contextvars.Context, Callable[..., Any], tuple[Any, ...]]


class _Shared:
    """State that the threads use: no thread keeps the CallThreads itself, whose end ends them."""

    def __init__(self) -> None:
        self.waiting: queue.SimpleQueue[_Submitted | None] = queue.SimpleQueue()
        self.lock = threading.Lock()
        #: Calls that were submitted and have not ended.
        self.open = 0
        self.thread = threading.local()
        #: When Redis has answered a call last (monotonic s).
        self.answered_at = 0.0

    def work(self) -> None:
        """Make calls until the executor is deleted."""
        self.thread.is_ours = True
        while (submitted := self.waiting.get()) is not None:
            self._make(submitted)
            del submitted
            with self.lock:
                self.open -= 1
        self.waiting.put(None)

    def _make(self, submitted: _Submitted) -> None:
        future, context, call, args = submitted
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = context.run(call, *args)
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            if not isinstance(error, StoreUnavailable):
                self.answered_at = monotonic()
            future.set_exception(_for_a_future(error))
        else:
            self.answered_at = monotonic()
            future.set_result(result)


def _for_a_future(error: BaseException) -> BaseException:
    """The error, but for StopIteration another one: a future of asyncio cannot have it."""
    if not isinstance(error, StopIteration):
        return error
    # Nor can a coroutine raise it.
    stopped = RuntimeError("the call raised StopIteration")
    stopped.__cause__ = error
    return stopped
