"""Calls from asyncio while Redis is unreachable, silent, or slow."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from kombu.exceptions import OperationalError

from celery_lowkiq import StoreFull
from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.store import durability
from tests.chaos.proxy import Proxy
from tests.features.from_asyncio import SILENCE, TICK, add_sync, make_app, stored, ticking
from tests.outages import away, full


@pytest.fixture
def mortal():
    with EmbeddedServer(port=0) as server:
        yield server


def test_an_outage_raises_what_sync_calls_raise(mortal):
    task = add_sync(make_app(mortal.url, task_publish_retry=False))

    async def main():
        await task.adelay("1")
        with away(mortal):
            for call in (task.adelay("2"), task.aperform_async([{"id": "2"}])):
                with pytest.raises(OperationalError, match="Redis is not available") as caught:
                    await call
                assert isinstance(caught.value, StoreUnavailable)
        await task.adelay("3")

    asyncio.run(main())


def test_a_full_redis_raises_what_sync_calls_raise(mortal):
    task = add_sync(make_app(mortal.url))

    async def main():
        await task.adelay("1")
        with full(mortal), pytest.raises(OperationalError) as caught:
            await task.adelay("2")
        assert isinstance(caught.value, StoreFull)

    asyncio.run(main())


def test_a_redis_that_comes_back_has_the_call(mortal):
    policy = {"max_retries": 100, "interval_start": 0.05, "interval_step": 0.0, "interval_max": 0.05}
    task = add_sync(make_app(mortal.url, task_publish_retry_policy=policy))

    async def main():
        await task.adelay("1")
        mortal.kill()
        call = asyncio.create_task(task.adelay("2"))
        _, gap = await ticking(asyncio.to_thread(mortal.restart))
        await call
        return gap

    assert asyncio.run(main()) < SILENCE
    assert "2" in stored(task)


def test_a_push_that_no_replica_confirms(empty_redis, monkeypatch):
    monkeypatch.setattr(durability, "WAIT_MS", 200)
    monkeypatch.setattr(durability, "CONFIRM_SECONDS", 2.0)
    task = add_sync(make_app(empty_redis.url, lowkiq_push_durability="replicated"))
    (error,), gap = asyncio.run(ticking(task.adelay("1")))
    assert isinstance(error, OperationalError)
    assert "stored, but not confirmed as replicated" in str(error)
    assert gap < 1.6
    assert stored(task) == {"1": [""]}


@pytest.fixture
def proxy(mortal):
    proxy = Proxy(mortal.socket_path)
    proxy.start()
    yield proxy
    proxy.stop()


def test_others_go_on_while_redis_is_silent(mortal, proxy):
    task = add_sync(make_app(f"redis://127.0.0.1:{proxy.port}"))

    async def main():
        await task.adelay("1")
        proxy.hold()
        calls = asyncio.gather(*(task.adelay(f"held-{number}") for number in range(20)))
        _, gap = await ticking(asyncio.sleep(0.5))
        assert not calls.done()
        proxy.heal()
        await calls
        return gap

    assert asyncio.run(main()) < SILENCE
    assert len(stored(task)) == 21


def test_a_push_whose_reply_was_lost_is_recognized(proxy):
    """The policy of the queue makes a second one visible: each arrival of a payload moves its score."""
    task = add_sync(make_app(f"redis://127.0.0.1:{proxy.port}"), shards=1, merge="max")

    async def main():
        await task.adelay("1", "a")
        client = context_of(task._get_app()).store.client
        send, lost, sent = client.servers.send, [True], []

        def loses_one(commands):
            replies = send(commands)
            sent.append((commands, replies))
            if lost and lost.pop():
                proxy.cut()
                raise StoreUnavailable("the reply was lost")
            return replies

        client.servers.send = loses_one
        await task.adelay("1", "b")
        client.servers.send = send
        assert client.servers.redis.ping()
        return sent

    (first, (one,)), (second, (repeated,)) = asyncio.run(main())
    assert first == second
    assert (one, repeated) == (1, 0)
    assert stored(task) == {"1": ["a", "b"]}


def test_a_cancelled_call_leaves_no_reply_behind(mortal, proxy):
    task = add_sync(make_app(f"redis://127.0.0.1:{proxy.port}", lowkiq_client_pool_size=1))

    async def main():
        await task.adelay("1")
        proxy.hold()
        cancelled = asyncio.create_task(task.adelay("2", "cancelled"))
        waits = asyncio.create_task(task.adelay("3"))
        waits_and_is_cancelled = asyncio.create_task(task.adelay("4"))
        shared = context_of(task._get_app()).call_threads._shared
        while (shared.open, shared.waiting.qsize()) != (3, 2):
            await asyncio.sleep(TICK)
        for call in (cancelled, waits_and_is_cancelled):
            call.cancel()
        # Before Redis responds: a call that has begun is made.
        results = await asyncio.gather(cancelled, waits_and_is_cancelled, return_exceptions=True)
        proxy.heal()
        await waits
        assert [type(result) for result in results] == [asyncio.CancelledError] * 2
        await task.aperform_async({"id": f"next-{number}"} for number in range(100))

    asyncio.run(main())
    assert {"1", "3", "next-99"} <= set(stored(task))
    assert "4" not in stored(task)


def test_a_call_that_finds_no_connection_free_says_so(proxy):
    settings = {"lowkiq_client_pool_size": 1, "lowkiq_pool_timeout": 0.1, "task_publish_retry": False}
    task = add_sync(make_app(f"redis://127.0.0.1:{proxy.port}", **settings))

    async def main():
        await task.adelay("1")
        proxy.hold()
        first = asyncio.create_task(task.adelay("2"))
        await asyncio.sleep(0)
        with pytest.raises(OperationalError, match=r"no connection was free within 0\.1 s"):
            await task.adelay("3")
        proxy.heal()
        await first

    asyncio.run(main())


def test_a_program_ends_while_a_call_waits_for_redis(mortal, proxy):
    program = f"""if True:
        import asyncio
        from tests.features.from_asyncio import add_sync, make_app
        task = add_sync(make_app("redis://127.0.0.1:{proxy.port}"))
        async def main():
            await task.adelay("1")
            print("stored", flush=True)
            input()
            call = asyncio.create_task(task.adelay("2"))
            await asyncio.sleep(0.1)
            assert not call.done()
        asyncio.run(main())
        print("ended", flush=True)
    """
    ends = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with ends:
        assert ends.stdout.readline() == "stored\n"
        proxy.hold()
        # It would wait for the reply: redis-py has no timeout of its own.
        assert ends.communicate("\n", timeout=60)[0] == "ended\n"
    assert ends.returncode == 0
