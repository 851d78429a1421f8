"""Calls from asyncio: what sync calls do, without blocking the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import multiprocessing
import threading
import time
import weakref
from collections import Counter
from datetime import datetime, timezone

import pytest
import redis
from celery import Celery, signals
from celery.result import EagerResult
from kombu.exceptions import OperationalError

from celery_lowkiq import InvalidCall, OrderedTask, PayloadError, StoreFull, ordered_task, track
from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.integration.app.context import context_of
from celery_lowkiq.rules.errors import ConfigurationError, QueueFull, ShardCountMismatch, StoreUnavailable
from tests.chaos.proxy import Proxy
from tests.outages import away, full
from tests.waiting import eventually

TICK = 0.01


def make_app(url, **settings):
    app = Celery("from-asyncio", broker="memory://", set_as_current=False)
    app.conf.update({"lowkiq_url": url, "task_ignore_result": True, **settings})
    return app


def add_sync(app, **options):
    @ordered_task(app=app, shared=False, name="sync", **options)
    def sync(payloads_by_id):
        """Never runs."""

    return app.tasks["sync"]


@pytest.fixture
def app(empty_redis):
    return make_app(empty_redis.url)


@pytest.fixture
def task(app):
    return add_sync(app)


def stored(task):
    """Payloads by id, in order."""
    queue = task.ordered_queue
    return {job.id: [payload.value for payload in job.payloads] for job in queue.jobs(limit=1000).items}


async def ticking(work):
    """The result of ``work``, and how long the event loop stood still at most (s)."""
    gaps = [0.0]

    async def tick():
        last = time.monotonic()
        while True:
            await asyncio.sleep(TICK)
            now = time.monotonic()
            gaps.append(now - last - TICK)
            last = now

    ticker = asyncio.create_task(tick())
    try:
        return await asyncio.gather(work, return_exceptions=True), max(gaps)
    finally:
        ticker.cancel()


# -- what a call does


def test_calls_are_stored_and_merged_as_those_of_delay(task):
    async def main():
        await task.adelay("1", {"v": 1})
        await task.adelay("1", {"v": 1})
        await task.aapply_async(("1", {"v": 0}), score=-5)
        await task.aapply_async(
            kwargs={"id": 2, "payload": "late"}, eta=datetime(2100, 1, 1, tzinfo=timezone.utc)
        )
        return await task.aperform_async([{"id": "3"}, {"id": "4", "payload": 7}], results=True)

    results = asyncio.run(main())
    assert stored(task) == {"1": [{"v": 0}, {"v": 1}], "2": ["late"], "3": [""], "4": [7]}
    assert len({result.id for result in results}) == 2


def test_the_result_is_that_of_delay(task):
    result = asyncio.run(task.adelay("1"))
    assert isinstance(result, task._get_app().AsyncResult)
    assert (len(result.id), result.ignored) == (36, True)
    assert asyncio.run(task.aapply_async(("1",), task_id="mine")).id == "mine"
    assert asyncio.run(task.aperform_async([])) is None


@pytest.mark.parametrize(
    "call, error",
    [
        (lambda task: task.adelay(), TypeError),
        (lambda task: task.adelay("1", wrong=2), TypeError),
        (lambda task: task.adelay(1.5), InvalidCall),
        (lambda task: task.adelay("1", {1, 2}), PayloadError),
        (lambda task: task.aapply_async(("1",), scores=3), InvalidCall),
        (lambda task: task.aapply_async(("1",), queue="other"), InvalidCall),
        (lambda task: task.aapply_async(("1",), countdown=1, eta=2), InvalidCall),
        (lambda task: task.aapply_async(("1",), link="x", time_limit=3), InvalidCall),
        (lambda task: task.aperform_async([{"id": "1"}, {"idd": "2"}]), InvalidCall),
        (lambda task: task.aperform_async([{"id": "1"}], tracker="none"), InvalidCall),
    ],
)
def test_a_wrong_call_is_refused_as_in_sync(task, call, error):
    with pytest.raises(error):
        asyncio.run(call(task))
    assert stored(task) == {}


def test_a_task_of_calls_with_arguments(app):
    @ordered_task(app=app, shared=False, name="save", by="order_id")
    def save(order_id, status="new"):
        """Never runs."""

    result = asyncio.run(app.tasks["save"].adelay(42, status="paid"))
    (payload,) = stored(app.tasks["save"])["42"]
    assert payload == {"args": [42], "kwargs": {"status": "paid"}, "task_id": result.id}
    with pytest.raises(TypeError, match="missing 1 required"):
        asyncio.run(app.tasks["save"].adelay(status="paid"))


def test_another_number_of_shards_is_taken_over_or_refused(empty_redis, task):
    asyncio.run(task.adelay("1"))
    other = add_sync(make_app(empty_redis.url), shards=7)
    with pytest.raises(ShardCountMismatch):
        asyncio.run(other.adelay("1"))
    task.ordered_queue.delete(["1"])
    asyncio.run(other.adelay("1"))
    assert list(stored(other)) == ["1"]


def test_a_script_that_the_server_forgot_is_loaded_again(empty_redis, task):
    async def main():
        await task.adelay("1")
        with redis.Redis(unix_socket_path=empty_redis.socket_path) as client:
            client.script_flush()
        await task.adelay("2")
        await task.aperform_async({"id": str(number)} for number in range(3, 20))

    asyncio.run(main())
    assert len(stored(task)) == 19


def test_a_full_queue_refuses(app):
    task = add_sync(app, shards=1, max_length=2)
    with pytest.raises(QueueFull):
        asyncio.run(task.aperform_async({"id": number} for number in range(9)))


def test_dropped_calls_end_as_revoked(empty_redis, tmp_path):
    app = make_app(empty_redis.url, result_backend=f"file://{tmp_path}", task_ignore_result=False)
    task = add_sync(app, shards=1, max_length=1, when_full="drop_newest")

    async def main():
        await task.adelay("1")
        return await task.adelay("2")

    assert asyncio.run(main()).state == "REVOKED"
    assert list(stored(task)) == ["1"]


# -- signals, middlewares, records, trackers


def test_receivers_of_signals_see_a_call_in_its_order(task):
    heard, request_id = [], contextvars.ContextVar("request_id", default="")

    def before(sender, **_):
        heard.append(("before", sender, request_id.get(), len(stored(task))))

    def after(sender, **_):
        heard.append(("after", sender, request_id.get(), len(stored(task))))

    async def main():
        request_id.set("r1")
        return await task.adelay("1")

    signals.before_task_publish.connect(before)
    signals.after_task_publish.connect(after)
    try:
        result = asyncio.run(main())
    finally:
        signals.before_task_publish.disconnect(before)
        signals.after_task_publish.disconnect(after)
    assert heard == [("before", "sync", "r1", 0), ("after", "sync", "r1", 1)]
    assert result.ignored


def test_a_slow_client_middleware_does_not_block_the_loop(empty_redis):
    seen, goes_on = [], threading.Event()

    def slow(task, entries, call):
        seen.append([entry.id for entry in entries])
        assert goes_on.wait(30)
        call()
        seen.append(sorted(stored(task)))

    task = add_sync(make_app(empty_redis.url, lowkiq_client_middlewares=[slow]))

    async def main():
        call = asyncio.create_task(task.adelay("1"))
        while not seen:
            await asyncio.sleep(TICK)
        goes_on.set()
        await call

    asyncio.run(main())
    assert seen == [["1"], ["1"]]


def test_a_call_from_a_running_task_names_its_parent(features, work, job_id):
    result = work.delay(job_id, {"calls": f"{job_id}-child"})
    (child,) = features.wait_for("run", id=f"{job_id}-child")
    assert result.get(timeout=30) == child["task_id"]
    assert child["headers"]["parent_id"] == result.id
    assert [each.id for each in result.children] == [child["task_id"]]


def test_the_result_of_a_call_can_be_awaited_in_a_thread(features, work, job_id):
    async def main():
        result = await work.adelay(job_id, {"return": 7})
        return await asyncio.to_thread(result.get, timeout=30)

    assert asyncio.run(main()) == 7


def test_tracked_calls(app, task):
    async def main():
        with track("import", app) as tracker:
            await task.aperform_async([{"id": "1"}, {"id": "2"}], tracker=tracker)
            await task.aapply_async(("3",), tracker=tracker)
        return tracker

    assert asyncio.run(main()).counts().pending == 3
    assert len(stored(task)) == 3


def test_eager_calls_run_in_a_thread(empty_redis):
    app, ran = Celery("eager", broker="memory://", set_as_current=False), []
    app.conf.task_always_eager = True

    @ordered_task(app=app, shared=False, name="sync")
    def sync(payloads_by_id):
        ran.append(payloads_by_id)
        return asyncio.run(asyncio.sleep(0, "from a loop of its own"))

    result = asyncio.run(app.tasks["sync"].adelay("1", "x"))
    assert isinstance(result, EagerResult)
    assert (result.get(), ran) == ("from a loop of its own", [{"1": ["x"]}])


def test_methods_of_the_users_own_are_called(app):
    class Versioned(OrderedTask):
        name = "versioned"

        def apply_async(self, args=None, kwargs=None, task_id=None, **options):
            return super().apply_async((f"own-{args[0]}", *args[1:]), kwargs, task_id, **options)

        def perform_async(self, jobs, results=False, tracker=None):
            return super().perform_async([{"id": f"own-{job['id']}"} for job in jobs], results, tracker)

        def run(self, payloads_by_id):
            """Never runs."""

    task = app.register_task(Versioned())

    async def main():
        await task.adelay("1")
        await task.aapply_async(("2",))
        await task.aperform_async([{"id": "3"}])

    asyncio.run(main())
    assert set(stored(task)) == {"own-1", "own-2", "own-3"}


# -- many at once, and one after the other


def named(server):
    with redis.Redis(unix_socket_path=server.socket_path) as client:
        return [entry for entry in client.client_list() if entry["name"] == "of-loop"]


@pytest.fixture
def of_loop(empty_redis):
    """A task whose shard is registered: all connections with the name are those of event loops."""
    add_sync(make_app(empty_redis.url), shards=1).delay("0")
    app = make_app(empty_redis.url, lowkiq_redis_options={"client_name": "of-loop"})
    yield add_sync(app, shards=1)
    context_of(app).store.close()


def test_a_thousand_calls_at_once(empty_redis, of_loop):
    size = context_of(of_loop._get_app()).settings.client_pool_size

    async def main():
        await asyncio.gather(*(of_loop.adelay(number % 500, {"v": number}) for number in range(1, 1001)))
        assert len(named(empty_redis)) == size

    asyncio.run(main())
    assert Counter(map(len, stored(of_loop).values())) == {2: 499, 3: 1}
    with redis.Redis(unix_socket_path=empty_redis.socket_path) as client:
        senders = {name for key in client.keys("*:senders") for name in client.hkeys(key)}
    assert len(senders) == size + 1


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


@pytest.mark.parametrize("runs", [1, 3])
def test_connections_end_with_their_loop(empty_redis, of_loop, runs, recwarn):
    loops = []

    async def main():
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await asyncio.gather(*(of_loop.adelay(number) for number in range(50)))
        assert named(empty_redis)

    for _ in range(runs):
        asyncio.run(main())
        eventually(lambda: not named(empty_redis))
    gc.collect()
    assert [loop() for loop in loops] == [None] * runs
    assert not [warning for warning in recwarn if issubclass(warning.category, ResourceWarning)]


def test_a_loop_that_was_only_closed_is_forgotten_by_the_next(app, task):
    loop = asyncio.new_event_loop()
    loop.run_until_complete(task.adelay("1"))
    loop.close()
    asyncio.run(task.adelay("2"))
    assert not context_of(app).loop_stores._stores
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


# -- a store that is away


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

    assert asyncio.run(main()) < 1.0
    assert "2" in stored(task)


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

    assert asyncio.run(main()) < 0.4
    assert len(stored(task)) == 21


def test_a_push_whose_reply_was_lost_is_recognized(proxy):
    """The policy of the queue makes a second one visible: each arrival of a payload moves its score."""
    task = add_sync(make_app(f"redis://127.0.0.1:{proxy.port}"), shards=1, merge="max")

    async def main():
        await task.adelay("1", "a")
        client = context_of(task._get_app()).store.client
        store = await context_of(task._get_app()).loop_stores.current()
        send, lost, sent = store._send, [True], []

        async def loses_one(commands):
            replies = await send(commands)
            sent.append((commands, replies))
            if lost and lost.pop():
                proxy.cut()
                raise StoreUnavailable("the reply was lost")
            return replies

        store._send = loses_one
        await task.adelay("1", "b")
        assert client.redis.ping()
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
        await asyncio.sleep(0.2)
        for call in (cancelled, waits_and_is_cancelled):
            call.cancel()
        proxy.heal()
        await waits
        results = await asyncio.gather(cancelled, waits_and_is_cancelled, return_exceptions=True)
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


def test_arguments_that_redis_py_does_not_know_are_refused(empty_redis):
    class Own(redis.UnixDomainSocketConnection):
        """Not known to asyncio."""

    task = add_sync(make_app(empty_redis.url, lowkiq_redis_options={"connection_class": Own}))
    with pytest.raises(
        ConfigurationError, match=r"connection_class=.*is invalid: expected one of Connection"
    ):
        asyncio.run(task.adelay("1"))
