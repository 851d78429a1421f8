"""Pushes of an event loop wait for a sender as long as Redis answers."""

from __future__ import annotations

import asyncio

import pytest

from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.store.jobs.sender_queue import SenderQueue


class Clock:
    """An event loop's time, which the test moves."""

    def __init__(self, loop):
        self._base, self.offset = loop.time, 0.0
        loop.time = self.time

    def time(self):
        return self._base() + self.offset

    async def move(self, seconds):
        self.offset += seconds
        for _ in range(5):
            await asyncio.sleep(0)


def on_a_loop(test):
    def run():
        async def main():
            await test(Clock(asyncio.get_running_loop()))

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


async def waiting_for_one(clock, number):
    """A queue of one sender, which is in use, and tasks that wait for it."""
    queue = SenderQueue(1, 5.0)
    sender = await queue.take()
    waiting = [asyncio.create_task(queue.take()) for _ in range(number)]
    await clock.move(0)
    return queue, sender, waiting


@on_a_loop
async def test_the_last_used_sender_is_used_first(clock):
    queue = SenderQueue(3, 5.0)
    first, second = await queue.take(), await queue.take()
    queue.give_back(first, answered=True)
    queue.give_back(second, answered=True)
    assert await queue.take() is second
    assert first is not second


@on_a_loop
async def test_the_first_that_waits_is_the_first_to_get_one(clock):
    queue, sender, waiting = await waiting_for_one(clock, 3)
    for each in waiting:
        assert not each.done()
        queue.give_back(sender, answered=True)
        assert await each is sender


@on_a_loop
async def test_they_wait_as_long_as_redis_answers(clock):
    queue, sender, waiting = await waiting_for_one(clock, 10)
    for each in waiting:
        await clock.move(4.0)
        queue.give_back(sender, answered=True)
        assert await each is sender


@on_a_loop
async def test_they_do_not_wait_while_it_does_not(clock):
    queue, sender, waiting = await waiting_for_one(clock, 10)
    await clock.move(4.0)
    queue.give_back(sender, answered=False)
    assert await waiting[0] is sender
    late = asyncio.create_task(queue.take())
    await clock.move(0)
    await clock.move(2.0)
    for each in waiting[1:]:
        assert each.done()
        with pytest.raises(StoreUnavailable, match="no connection was free within 5 s"):
            each.result()
    assert not late.done()
    await clock.move(4.0)
    assert late.done()
    assert isinstance(late.exception(), StoreUnavailable)
    queue.give_back(sender, answered=True)
    assert await queue.take() is sender


@on_a_loop
async def test_one_that_is_cancelled_takes_none_away(clock):
    queue, sender, (waits, gets_one, last) = await waiting_for_one(clock, 3)
    waits.cancel()
    queue.give_back(sender, answered=True)
    gets_one.cancel()
    assert await last is sender
    results = await asyncio.gather(waits, gets_one, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError] * 2
