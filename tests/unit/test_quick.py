"""A call of which nobody hears skips Celery's message; whatever listens to one brings it back."""

from __future__ import annotations

import functools

import pytest
from celery import Celery, signals
from celery.app.task import Task

from celery_lowkiq import ordered_task
from celery_lowkiq.integration import task as task_module
from celery_lowkiq.integration.producer import StoreProducer
from celery_lowkiq.store.store import RedisStore


class Listening(Celery):
    def send_task(self, *args, **kwargs):
        return super().send_task(*args, **kwargs)


@pytest.fixture
def messages(monkeypatch):
    """Messages that Celery made, and jobs that were stored."""
    made, stored = [], []

    class Noted(StoreProducer):
        def publish(self, *args, **kwargs):
            made.append(kwargs)
            super().publish(*args, **kwargs)

    monkeypatch.setattr(task_module, "StoreProducer", Noted)
    monkeypatch.setattr(RedisStore, "push", lambda self, queue, jobs, pauses=(): stored.append(jobs))
    yield made
    assert len(stored) == 1


def make_task(app_class=Celery, options=None, **settings):
    app = app_class("quick", broker="redis://localhost:1/0", set_as_current=False)
    app.conf.update({"task_ignore_result": True, **settings})

    @ordered_task(app=app, shared=False, name="orders", **(options or {}))
    def orders(payloads_by_id):
        return None

    return app.tasks["orders"]


def test_nobody_listens(messages):
    result = make_task().delay("1", {"n": 1})
    assert messages == []
    assert (len(result.id), result.ignored) == (36, True)


def test_the_id_of_a_call_may_be_given(messages):
    assert make_task().apply_async(("1",), task_id="mine", countdown=3).id == "mine"
    assert messages == []


def test_a_result_backend_alone_is_no_listener_of_a_task_that_ignores_it(messages):
    make_task(result_backend="redis://localhost:1/0").delay("1")
    assert messages == []


@pytest.mark.parametrize("signal", [signals.before_task_publish, signals.after_task_publish])
def test_a_receiver_hears_of_it(messages, signal):
    heard = []

    def receiver(sender, **_):
        heard.append(sender)

    signal.connect(receiver)
    try:
        make_task().delay("1")
    finally:
        signal.disconnect(receiver)
    assert heard == ["orders"]
    assert len(messages) == 1


@pytest.mark.parametrize(
    "app_class, settings, call",
    [
        (Celery, {"task_send_sent_event": True}, {}),
        (Celery, {"lowkiq_track_calls": True}, {}),
        (Celery, {"result_backend": "cache+memory://", "task_ignore_result": False}, {}),
        (Listening, {}, {}),
        (Celery, {}, {"headers": {"tenant": "7"}}),
        (Celery, {}, {"expires": 60}),
    ],
)
def test_whatever_needs_the_message_gets_it(messages, monkeypatch, app_class, settings, call):
    task = make_task(app_class, **settings)
    monkeypatch.setattr(task.app.amqp, "_event_dispatcher", NoEvents(), raising=False)
    task.apply_async(("1", "x"), **call)
    assert len(messages) == 1


class NoEvents:
    def publish(self, *args, **kwargs):
        """To nobody."""


@pytest.mark.parametrize("owner, name", [(Celery, "send_task"), (Task, "apply_async")])
def test_what_instruments_celery_sees_the_call(messages, monkeypatch, owner, name):
    original, seen = getattr(owner, name), []

    @functools.wraps(original)
    def instrumented(self, *args, **kwargs):
        seen.append(name)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(owner, name, instrumented)
    make_task().delay("1")
    assert seen == [name]
    assert len(messages) == 1
