"""Senders of an event loop's pushes: one for each push that runs; further pushes wait for a free one."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from celery_lowkiq.rules.errors import StoreUnavailable

from .push import Sender


class _Waiter(NamedTuple):
    """A push that waits, and since when (s, by the clock of the loop)."""

    sender: asyncio.Future[Sender]
    since: float


class SenderQueue:
    """At most ``size`` senders, each used by one push at a time. For one event loop.

    The timeout (s) counts from Redis's last answer, so that many pushes do not fail because they are many.
    """

    def __init__(self, size: int, timeout: float) -> None:
        self._left = size
        self._timeout = timeout
        self._free: list[Sender] = []
        self._waiting: deque[_Waiter] = deque()
        self._answered_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def take(self) -> Sender:
        """Return a sender that no other push uses. Raises StoreUnavailable after the timeout."""
        # The last used one first: each sender takes memory in the shards to which it has pushed.
        if self._free:
            return self._free.pop()
        if self._left:
            self._left -= 1
            return Sender()
        return await self._wait(asyncio.get_running_loop())

    def give_back(self, sender: Sender, answered: bool) -> None:
        """Let the next push use the sender. ``answered``: whether Redis has answered this one."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.sender.done():
                if answered:
                    self._answered_at = waiter.sender.get_loop().time()
                waiter.sender.set_result(sender)
                return
        self._free.append(sender)

    async def _wait(self, loop: asyncio.AbstractEventLoop) -> Sender:
        waiter = _Waiter(loop.create_future(), loop.time())
        self._waiting.append(waiter)
        if self._timer is None:
            self._timer = loop.call_later(self._timeout, self._expire, loop)
        try:
            return await waiter.sender
        except asyncio.CancelledError:
            if waiter.sender.done() and not waiter.sender.cancelled():
                self.give_back(waiter.sender.result(), answered=False)
            raise

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        """Fail the pushes that have waited for too long, and set the timer for the next one."""
        self._timer = None
        while self._waiting:
            first = self._waiting[0]
            expires_at = max(first.since, self._answered_at) + self._timeout
            if not first.sender.done() and expires_at > loop.time():
                self._timer = loop.call_at(expires_at, self._expire, loop)
                return
            self._waiting.popleft()
            if not first.sender.done():
                first.sender.set_exception(StoreUnavailable(self._message()))

    def _message(self) -> str:
        return (
            f"Redis is not available: no connection was free within {self._timeout:g} s "
            "(lowkiq_pool_timeout, lowkiq_client_pool_size)"
        )
