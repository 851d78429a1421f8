"""Each way of calling an ordered task ends in one function, which pushes: ``integration/publish.py``."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from types import SimpleNamespace

import pytest
from celery import group, signals

from celery_lowkiq import ordered_task, track
from celery_lowkiq.integration import publish as publishing
from celery_lowkiq.store.push import Pusher
from tests.features.from_asyncio import add_sync, make_app, stored

IDS = ["1", "2"]
JOBS = [{"id": job_id, "payload": "paid"} for job_id in IDS]


@contextlib.contextmanager
def observed():
    """A receiver of a publish signal, for which Celery makes the message of each call."""

    def receiver(sender, **_):
        """Hears of the message."""

    signals.before_task_publish.connect(receiver)
    try:
        yield
    finally:
        signals.before_task_publish.disconnect(receiver)


def by_message(task, job_id):
    """As Celery's consumer hands a message of the broker to the task."""
    consumer = SimpleNamespace(connection_errors=(), timer=None)
    message = SimpleNamespace(headers={"id": f"call of {job_id}"}, payload=([job_id, "paid"], {}, {}))
    answers = []
    task.Strategy(task, task.app, consumer)(message, None, lambda *_: answers.append("ack"), None)
    assert answers == ["ack"]


def in_a_tracker(task):
    with track("ways", task.app) as tracker:
        for job_id in IDS:
            task.apply_async((job_id, "paid"), tracker=tracker)
    assert tracker.counts().enqueued == len(IDS)


def in_a_tracker_at_once(task):
    assert task.track(JOBS).counts().enqueued == len(IDS)


def while_observed(call):
    def act(task):
        with observed():
            call(task)

    return act


def each(call):
    def act(task):
        for job_id in IDS:
            call(task, job_id)

    return act


single = each(lambda task, job_id: task.delay(job_id, "paid"))


def many(task):
    task.perform_async(JOBS)


WAYS = {
    "single": single,
    "single, with options": each(lambda task, job_id: task.apply_async((job_id, "paid"), score=7)),
    "single, with headers": each(lambda task, job_id: task.apply_async((job_id, "paid"), headers={"a": 1})),
    "single, with a message": while_observed(single),
    "canvas": lambda task: group([task.si(job_id, "paid") for job_id in IDS], app=task.app).delay(),
    "many": many,
    "many, with results": lambda task: task.perform_async(JOBS, results=True),
    "many, with messages": while_observed(many),
    "by the broker": each(by_message),
    "tracked": in_a_tracker,
    "tracked, many": in_a_tracker_at_once,
    "tracked, with messages": while_observed(in_a_tracker_at_once),
    "asyncio": each(lambda task, job_id: asyncio.run(task.adelay(job_id, "paid"))),
    "asyncio, with options": each(
        lambda task, job_id: asyncio.run(task.aapply_async((job_id, "paid"), countdown=5))
    ),
    "asyncio, many": lambda task: asyncio.run(task.aperform_async(JOBS)),
}


@pytest.fixture
def pushed_by(monkeypatch):
    """The modules that have pushed, of the pushes that were made."""
    push, found = Pusher.push, []

    def noted(self, *args):
        found.append(inspect.currentframe().f_back.f_globals["__name__"])
        return push(self, *args)

    monkeypatch.setattr(Pusher, "push", noted)
    return found


@pytest.mark.parametrize("way", WAYS)
def test_a_way_of_calling_pushes_by_publish(empty_redis, pushed_by, way):
    task = add_sync(make_app(empty_redis.url))
    WAYS[way](task)
    assert stored(task) == {"1": ["paid"], "2": ["paid"]}
    assert set(pushed_by) == {publishing.__name__}


def test_an_eager_call_and_one_of_a_plain_task_push_nothing(empty_redis, pushed_by):
    ran = []

    @ordered_task(app=make_app(empty_redis.url, task_always_eager=True), name="eager")
    def eager(payloads_by_id):
        ran.append(payloads_by_id)

    eager.delay("1", "paid")
    eager.perform_async(JOBS[1:])
    assert ran == [{"1": ["paid"]}, {"2": ["paid"]}]
    app = make_app(empty_redis.url, lowkiq_plain=["plain"])

    @ordered_task(app=app, name="plain", by="order_id")
    def plain(order_id):
        """Never runs."""

    plain.delay("1")
    with app.connection() as connection, connection.SimpleQueue("celery") as queue:
        message = queue.get(timeout=5)
        message.ack()
    assert message.headers["task"] == "plain"
    assert pushed_by == []
