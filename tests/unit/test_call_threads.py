"""Calls from asyncio wait for a thread as long as Redis answers, and run where they were made."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import subprocess
import sys
import threading

import pytest

from celery_lowkiq.integration import call_threads
from celery_lowkiq.integration.call_threads import CallThreads, NoThreadFree
from celery_lowkiq.rules.errors import StoreUnavailable
from tests.waiting import eventually


class Held:
    """Calls that end when the test says so."""

    def __init__(self, threads):
        self.threads = threads
        self.begun, self._goes_on, self.names = [], {}, set()

    def call(self, number, error=None):
        """The task of a call."""
        goes_on = self._goes_on[number] = threading.Event()

        def act():
            self.begun.append(number)
            self.names.add(threading.current_thread().name)
            assert goes_on.wait(30)
            if error is not None:
                raise error
            return number

        return asyncio.create_task(self.threads.run(act))

    async def begins(self, *numbers):
        while self.begun != list(numbers):
            await asyncio.sleep(0.001)

    def end(self, number):
        self._goes_on[number].set()


@pytest.fixture
def now(monkeypatch):
    """The time, which the test moves; a call that waits looks at it when the timeout ends."""
    times = [1000.0]
    monkeypatch.setattr(call_threads, "monotonic", lambda: times[0])
    return times


def held(test):
    def run(now):
        async def main():
            await test(Held(CallThreads(1, 0.2)), now)

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


@held
async def test_the_first_that_waits_is_the_first_to_get_a_thread(calls, now):
    waiting = [calls.call(number) for number in range(4)]
    for number, each in enumerate(waiting):
        await calls.begins(*range(number + 1))
        calls.end(number)
        assert await each == number
    assert calls.names == {"lowkiq-calls-0"}


@held
async def test_they_wait_as_long_as_redis_answers(calls, now):
    waiting = [calls.call(number) for number in range(5)]
    for number, each in enumerate(waiting):
        await calls.begins(*range(number + 1))
        now[0] += 0.15
        calls.end(number)
        assert await each == number


@held
async def test_they_do_not_wait_while_it_does_not(calls, now):
    first, second, late = calls.call(0), calls.call(1), None
    await calls.begins(0)
    now[0] += 0.15
    late = calls.call(2)
    calls.end(0)
    assert await first == 0
    await calls.begins(0, 1)
    now[0] += 0.25
    with pytest.raises(NoThreadFree, match=r"no connection was free within 0\.2 s"):
        await late
    calls.end(1)
    assert await second == 1


@held
async def test_a_call_without_an_answer_gives_the_others_no_more_time(calls, now):
    lost, waits, late = calls.call(0, StoreUnavailable("lost")), calls.call(1), calls.call(2)
    await calls.begins(0)
    now[0] += 0.25
    calls.end(0)
    with pytest.raises(StoreUnavailable, match="lost"):
        await lost
    with pytest.raises(NoThreadFree):
        await late
    calls.end(1)
    done, _ = await asyncio.wait({waits})
    assert done


@held
async def test_one_that_is_cancelled_while_it_waits_is_not_made(calls, now):
    first, cancelled, last = (calls.call(number) for number in range(3))
    await calls.begins(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    calls.end(0)
    calls.end(2)
    assert (await first, await last, calls.begun) == (0, 2, [0, 2])


@held
async def test_one_that_is_cancelled_in_its_thread_goes_on_there(calls, now):
    cancelled = calls.call(0)
    await calls.begins(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    next_one = calls.call(1)
    calls.end(1)
    assert not next_one.done()
    calls.end(0)
    assert (await next_one, calls.begun) == (1, [0, 1])


def test_a_call_that_makes_another_one_needs_no_second_thread():
    threads, where = CallThreads(1, 0.2), []

    def outer():
        where.append(threading.current_thread())
        return asyncio.run(threads.run(lambda: where.append(threading.current_thread()) or 7))

    assert asyncio.run(threads.run(outer)) == 7
    assert where[0] is where[1] is not threading.current_thread()


def test_a_call_has_the_context_of_its_caller_and_its_errors():
    threads, seen = CallThreads(2, 0.2), contextvars.ContextVar("seen", default="none")

    async def main():
        seen.set("caller's")
        assert await threads.run(seen.get) == "caller's"
        error = KeyError("x")

        def fails():
            raise error

        with pytest.raises(KeyError) as caught:
            await threads.run(fails)
        assert caught.value is error

    asyncio.run(main())


def test_threads_are_started_as_needed_and_end_with_the_app():
    threads = CallThreads(50, 1.0)
    made = asyncio.run(_both(threads))
    assert made[0].name == "lowkiq-calls-0"
    assert all(each.daemon for each in made)
    del threads
    gc.collect()
    eventually(lambda: not any(each.is_alive() for each in made))


async def _both(threads):
    both = threading.Barrier(2)

    def call():
        both.wait(30)
        return threading.current_thread()

    return sorted(await asyncio.gather(threads.run(call), threads.run(call)), key=lambda thread: thread.name)


def test_a_process_that_may_start_no_more_threads_makes_calls_in_those_that_it_has(monkeypatch):
    start, allowed = threading.Thread.start, [False]

    def limited(thread):
        if thread.name.startswith("lowkiq-calls") and not allowed.pop():
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)

    async def main():
        threads = CallThreads(2, 5.0)
        with pytest.raises(RuntimeError, match="start new thread"):
            await threads.run(lambda: 1)
        allowed.append(True)
        assert await threads.run(lambda: 2) == 2
        allowed.extend([False] * 2)
        names = await asyncio.gather(
            *(threads.run(lambda: threading.current_thread().name) for _ in range(2))
        )
        assert set(names) == {"lowkiq-calls-0"}

    asyncio.run(main())


def test_a_call_that_raises_stop_iteration_fails_as_in_a_coroutine():
    async def main():
        with pytest.raises(RuntimeError, match="StopIteration"):
            await asyncio.wait_for(CallThreads(1, 5.0).run(lambda: next(iter(()))), 30)

    asyncio.run(main())


AT_EXIT = """
import asyncio, atexit
atexit.register(lambda: asyncio.run(call("at exit")))
from celery_lowkiq.integration.call_threads import CallThreads
threads = CallThreads(1, 5.0)

async def call(text):
    print(await threads.run(lambda: text))

asyncio.run(call("before"))
"""


def test_a_handler_of_the_exit_may_make_calls():
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\n") == ["before", "at exit", ""], done.stderr
