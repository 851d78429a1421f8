"""The store of an event loop: pushes that do not block it."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import redis.asyncio
from redis import exceptions

from celery_lowkiq.rules.cached_property import cached_property
from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.rules.models import NewJob, QueueSpec
from celery_lowkiq.store.jobs.sender_queue import SenderQueue
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.scripts.redis_errors import store_error
from celery_lowkiq.store.scripts.steps import Pause, Send, Step, execute_async

T = TypeVar("T")


class LoopStore:
    """Executes the steps of pushes on one event loop, with connections and threads of its own.

    What would block the loop is done in a thread with the blocking store.
    """

    def __init__(
        self,
        store: Callable[[], RedisStore],
        connect: Callable[[], redis.asyncio.Redis | None],
        connections: int,
        timeout: float,
    ) -> None:
        """``timeout``: how long a push waits for a connection while Redis does not answer, in s.

        Both functions are called at the first push. When ``connect`` returns None, as for a cluster, threads
        send what is to be sent.
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
        answered = True
        try:
            await execute_async(steps.push(sender, queue, jobs, pauses), self._act)
        except (StoreUnavailable, asyncio.CancelledError):
            answered = False
            raise
        finally:
            self._senders.give_back(sender, answered)

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Call a function that may block, in a thread and in the caller's context."""
        call = contextvars.copy_context().run
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, function)

    async def close_with_loop(self, closed: Callable[[], object]) -> None:
        """Have the running event loop close this store and call ``closed`` when it shuts down.

        ``asyncio.run`` shuts its loop down, and so do web servers; ``loop.close()`` alone does not.
        """
        self._end = self._until_the_end(closed)
        await anext(self._end)

    async def _until_the_end(self, closed: Callable[[], object]) -> AsyncGenerator[None, None]:
        # A loop that shuts down closes the asynchronous generators that were begun on it.
        try:
            yield
        finally:
            closed()
            self._threads.shutdown(wait=False)
            if self.__dict__.get("_redis") is not None:
                await self.__dict__["_redis"].connection_pool.disconnect()

    @cached_property
    def _redis(self) -> redis.asyncio.Redis | None:
        return self._connect()

    async def _act(self, step: Step) -> Any:
        if isinstance(step, Send):
            return await self._send(step.commands)
        if isinstance(step, Pause):
            return await asyncio.sleep(step.seconds)
        return await self.in_thread(step.function)

    async def _send(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        client = self._redis
        if client is None:
            return await self.in_thread(partial(self._store().client.act, Send(commands)))
        try:
            if len(commands) == 1:
                return [await self._one(client, commands[0])]
            async with client.pipeline(transaction=False) as pipe:
                for command in commands:
                    pipe.execute_command(*command)
                return list(await pipe.execute(raise_on_error=False))
        except (exceptions.RedisError, OSError) as error:
            raise store_error(error) from error

    async def _one(self, client: redis.asyncio.Redis, command: tuple[Any, ...]) -> Any:
        try:
            return await client.execute_command(*command)  # type: ignore[no-untyped-call]
        except exceptions.ResponseError as error:
            return error
