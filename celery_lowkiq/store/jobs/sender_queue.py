"""Limits the pushes of an event loop: each has a sender of its own, for which later ones wait."""

from __future__ import annotations

import asyncio
from collections import deque

from celery_lowkiq.rules.errors import StoreUnavailable

from .push import Sender


class SenderQueue:
    """At most ``size`` senders, each used by one push at a time. For one event loop."""

    def __init__(self, size: int, timeout: float) -> None:
        self._left = size
        self._timeout = timeout
        self._free: list[Sender] = []
        self._waiting: deque[asyncio.Future[Sender]] = deque()

    async def take(self) -> Sender:
        """Return a sender that no other push uses. Raises StoreUnavailable after the timeout."""
        # The last used one first: each sender takes memory in the shards to which it has pushed.
        if self._free:
            return self._free.pop()
        if self._left:
            self._left -= 1
            return Sender()
        return await self._wait()

    def give_back(self, sender: Sender) -> None:
        """Let another push use the sender."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(sender)
                return
        self._free.append(sender)

    async def _wait(self) -> Sender:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Sender] = loop.create_future()
        self._waiting.append(waiter)
        timer = loop.call_later(self._timeout, self._expire, waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.give_back(waiter.result())
            raise
        finally:
            timer.cancel()

    def _expire(self, waiter: asyncio.Future[Sender]) -> None:
        if not waiter.done():
            waiter.set_exception(
                StoreUnavailable(
                    f"Redis is not available: no connection was free within {self._timeout:g} s "
                    "(lowkiq_pool_timeout, lowkiq_client_pool_size)"
                )
            )
