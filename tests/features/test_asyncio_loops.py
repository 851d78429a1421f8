"""Event loops share the threads and connections of their app."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import threading
import weakref
from collections import Counter

import pytest
import redis

from celery_lowkiq.integration.app import context_of
from tests.features.from_asyncio import add_sync, make_app, stored


@pytest.fixture
def task(empty_redis):
    return add_sync(make_app(empty_redis.url))


def named(server):
    with redis.Redis(unix_socket_path=server.socket_path) as client:
        return [entry for entry in client.client_list() if entry["name"] == "of-loop"]


@pytest.fixture
def of_loop(empty_redis):
    """A task whose shard is registered: all connections with the name are those of calls from asyncio."""
    add_sync(make_app(empty_redis.url), shards=1).delay("0")
    app = make_app(empty_redis.url, lowkiq_redis_options={"client_name": "of-loop"})
    yield add_sync(app, shards=1)
    context_of(app).store.close()


def test_a_thousand_calls_at_once(empty_redis, of_loop):
    size = context_of(of_loop._get_app()).settings.client_pool_size

    async def main():
        await asyncio.gather(*(of_loop.adelay(number % 500, {"v": number}) for number in range(1, 1001)))
        assert 1 <= len(named(empty_redis)) <= size

    asyncio.run(main())
    assert Counter(map(len, stored(of_loop).values())) == {2: 499, 3: 1}
    with redis.Redis(unix_socket_path=empty_redis.socket_path) as client:
        senders = {name for key in client.keys("*:senders") for name in client.hkeys(key)}
    assert 2 <= len(senders) <= size + 1


def test_loops_in_two_threads(task):
    begin, errors = threading.Barrier(2), []

    def calls(first):
        async def main():
            begin.wait(30)
            await asyncio.gather(*(task.adelay(first + number) for number in range(200)))

        try:
            asyncio.run(main())
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=calls, args=(first,)) for first in (0, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (errors, len(stored(task))) == ([], 400)


def test_loops_share_connections_and_are_forgotten(empty_redis, of_loop, recwarn):
    loops, size = [], context_of(of_loop._get_app()).settings.client_pool_size

    async def main():
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await asyncio.gather(*(of_loop.adelay(number) for number in range(50)))

    for _ in range(3):
        asyncio.run(main())
    assert 1 <= len(named(empty_redis)) <= size
    gc.collect()
    assert [loop() for loop in loops] == [None] * 3
    assert not [warning for warning in recwarn if issubclass(warning.category, ResourceWarning)]


def test_a_loop_that_was_only_closed(task):
    loop = asyncio.new_event_loop()
    loop.run_until_complete(task.adelay("1"))
    loop.close()
    asyncio.run(task.adelay("2"))
    assert len(stored(task)) == 2


def _in_child(task, parent_loop_number, done):
    asyncio.run(task.adelay(f"child-{parent_loop_number}"))
    gc.collect()
    done.set()


def test_a_forked_process_has_connections_of_its_own(task):
    context = multiprocessing.get_context("fork")

    async def main():
        done = context.Event()
        await asyncio.gather(*(task.adelay(number) for number in range(10)))
        child = context.Process(target=_in_child, args=(task, 1, done))
        child.start()
        assert await asyncio.to_thread(done.wait, 60)
        await asyncio.gather(*(task.adelay(number) for number in range(10, 20)))
        await asyncio.to_thread(child.join, 60)
        await asyncio.wait_for(asyncio.gather(*(task.adelay(n) for n in range(20, 30))), 30)

    asyncio.run(main())
    assert len(stored(task)) == 31
