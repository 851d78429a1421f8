"""Calls from asyncio do what sync calls do, without blocking the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from datetime import datetime, timezone

import pytest
import redis
from celery import Celery, signals
from celery.result import EagerResult

from celery_lowkiq import InvalidCall, OrderedTask, PayloadError, ordered_task, track
from celery_lowkiq.rules.errors import QueueFull
from celery_lowkiq.store.push import Pusher
from tests.features.from_asyncio import TICK, add_sync, make_app, stored


@pytest.fixture
def app(empty_redis):
    return make_app(empty_redis.url)


@pytest.fixture
def task(app):
    return add_sync(app)


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
        (lambda task: task.aapply_async(("1",), expiration=3), InvalidCall),
        (lambda task: task.aapply_async(("1",), countdown=1, eta=2), InvalidCall),
        (lambda task: task.aapply_async(("1",), link="x", retries=3), InvalidCall),
        (lambda task: task.aperform_async([{"id": "1"}, {"idd": "2"}]), InvalidCall),
        (lambda task: task.aperform_async([{"id": "1"}], tracker="none"), InvalidCall),
    ],
)
def test_a_wrong_call_is_refused_as_in_sync(task, call, error):
    with pytest.raises(error):
        asyncio.run(call(task))
    assert stored(task) == {}


def test_a_task_of_calls_with_arguments(app):
    @ordered_task(app=app, shared=False, name="paid", by="order_id")
    def paid(order_id, status="new"):
        """Never runs."""

    result = asyncio.run(app.tasks["paid"].adelay(42, status="paid"))
    (payload,) = stored(app.tasks["paid"])["42"]
    assert payload == {"args": [42], "kwargs": {"status": "paid"}, "task_id": result.id}
    with pytest.raises(TypeError, match="missing 1 required"):
        asyncio.run(app.tasks["paid"].adelay(status="paid"))


def test_the_stored_number_of_shards_applies(empty_redis, task):
    asyncio.run(task.adelay("1", 1))
    other = add_sync(make_app(empty_redis.url), shards=7)
    asyncio.run(other.adelay("1", 2))
    assert list(stored(task)) == list(stored(other)) == ["1"]
    assert task.ordered_queue.job("1").waiting.payload_count == 2


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


@pytest.mark.parametrize(
    "options", [{}, {"expires": 3600}, {"job_ttl": 3600}, {"by": "order_id"}, {"ignore_result": True}]
)
@pytest.mark.parametrize("settings", [{}, {"lowkiq_track_calls": True}], ids=["", "all tracked"])
def test_a_call_with_a_record_has_the_one_of_sync_calls(empty_redis, monkeypatch, options, settings):
    app = make_app(empty_redis.url, result_backend="cache+memory://", **settings, task_ignore_result=False)
    monkeypatch.setattr(app, "now", lambda: datetime(2100, 1, 1, tzinfo=timezone.utc))

    @ordered_task(app=app, shared=False, name="recorded", **options)
    def recorded(order_id):
        """Never runs."""

    task, pushed = app.tasks["recorded"], []
    monkeypatch.setattr(Pusher, "push", lambda self, queue, jobs, pauses=(): pushed.append(list(jobs)))
    results = [
        task.apply_async(("1",), task_id="given"),
        asyncio.run(task.aapply_async(("1",), task_id="given")),
    ]
    assert pushed[0] == pushed[1]
    assert results[0].ignored == results[1].ignored
    assert results[1].id == "given"


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


def test_in_tests_a_call_goes_to_the_store_of_the_test(lowkiq, lowkiq_app):
    """It went to the Redis of the app's settings."""
    lowkiq_app.conf.broker_url = "redis://127.0.0.1:1"
    ran = []

    @ordered_task(app=lowkiq_app, shared=False, name="sync")
    def sync(payloads_by_id):
        ran.append(payloads_by_id)

    async def main():
        await lowkiq_app.tasks["sync"].adelay("1", "now")
        await lowkiq_app.tasks["sync"].aapply_async(("2", "later"), countdown=86400)

    asyncio.run(main())
    assert lowkiq.drain() == 1
    lowkiq.assert_enqueued(lowkiq_app.tasks["sync"], "2", "later")
    lowkiq.clock.move(86400)
    assert lowkiq.drain() == 1
    assert ran == [{"1": ["now"]}, {"2": ["later"]}]
