"""The store of calls as an event loop uses it: pushes that do not block it."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, TypeVar

import redis.asyncio
from redis import exceptions

from celery_lowkiq.rules.models import NewJob, QueueSpec
from celery_lowkiq.store.jobs.sender_queue import SenderQueue
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.scripts.client import store_error
from celery_lowkiq.store.scripts.steps import Pause, Send, Step, execute_async

T = TypeVar("T")


class LoopStore:
    """Executes the steps of pushes on one event loop, with connections and threads of its own.

    What would block the loop is done in a thread with the blocking store.
    """

    def __init__(
        self,
        store: Callable[[], RedisStore],
        connect: Callable[[], redis.asyncio.Redis],
        connections: int,
        timeout: float,
    ) -> None:
        """``timeout``: how long a push waits for one of the connections, in s. Both functions are called at
        the first push.
        """
        self._store = store
        self._connect = connect
        self._senders = SenderQueue(connections, timeout)
        self._threads = ThreadPoolExecutor(connections, "lowkiq-calls")
        self._end: AsyncGenerator[None, None] | None = None

    async def push(self, queue: QueueSpec, jobs: Sequence[NewJob], pauses: Iterable[float] = ()) -> None:
        """Merge jobs into the queue, as :meth:`RedisStore.push` does. Raises what that raises."""
        steps = self._store().push_steps
        sender = await self._senders.take()
        try:
            await execute_async(steps.push(sender, queue, jobs, pauses), self._act)
        finally:
            self._senders.give_back(sender)

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Call a function that may block, in a thread and in the caller's context."""
        call = contextvars.copy_context().run
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, function)

    async def close_with_loop(self, closed: Callable[[], object]) -> None:
        """Have the event loop close this store before it ends, and call ``closed``.

        A loop does so that ``asyncio.run``, or whatever else runs it, shuts down.
        """
        self._end = self._until_the_end(closed)
        await anext(self._end)

    async def _until_the_end(self, closed: Callable[[], object]) -> AsyncGenerator[None, None]:
        # A loop that ends closes the asynchronous generators that it has begun.
        try:
            yield
        finally:
            closed()
            self._threads.shutdown(wait=False)
            if "_redis" in self.__dict__:
                await self._redis.connection_pool.disconnect()

    @cached_property
    def _redis(self) -> redis.asyncio.Redis:
        return self._connect()

    async def _act(self, step: Step) -> Any:
        if isinstance(step, Send):
            return await self._send(step.commands)
        if isinstance(step, Pause):
            return await asyncio.sleep(step.seconds)
        return await self.in_thread(step.function)

    async def _send(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        try:
            if len(commands) == 1:
                return [await self._one(commands[0])]
            async with self._redis.pipeline(transaction=False) as pipe:
                for command in commands:
                    pipe.execute_command(*command)
                return list(await pipe.execute(raise_on_error=False))
        except (exceptions.RedisError, OSError) as error:
            raise store_error(error) from error

    async def _one(self, command: tuple[Any, ...]) -> Any:
        try:
            return await self._redis.execute_command(*command)  # type: ignore[no-untyped-call]
        except exceptions.ResponseError as error:
            return error
