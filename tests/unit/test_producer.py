"""Calls while Redis is away raise what any call of Celery's raises, by the call's retry policy."""

from __future__ import annotations

from itertools import islice
from types import SimpleNamespace
from unittest.mock import NonCallableMock

import pytest
from celery import Celery, group
from kombu.exceptions import OperationalError

from celery_lowkiq import StoreFull, StoreUnavailable, ordered_task
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.messages import retry_intervals


@pytest.fixture
def task():
    app = Celery("unit", broker="redis://localhost:1/0", set_as_current=False)

    @ordered_task(app=app, shared=False)
    def record(payloads_by_id):
        """Never run here."""

    return record


class Away:
    """A store that refuses, and knows how often it would have been asked."""

    def __init__(self, error):
        self.error = error
        self.pauses = []

    def push(self, spec, jobs, pauses=()):
        self.pauses += islice(pauses, 100)
        raise self.error


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), StoreFull("full")])
@pytest.mark.parametrize(
    "call", [lambda task: task.delay("1"), lambda task: task.perform_async([{"id": 1}])], ids=["one", "many"]
)
def test_an_absent_store_is_an_operational_error(task, call, error):
    context_of(task.app)._store = Away(error)
    with pytest.raises(OperationalError) as raised:
        call(task)
    assert isinstance(raised.value, type(error))
    assert str(raised.value) == str(error)


@pytest.mark.parametrize(
    "call",
    [
        lambda task, given: task.apply_async(("1",), producer=given),
        lambda task, given: task.s("1").apply_async(producer=given, retries=0),
        lambda task, given: group(task.s("1"), app=task.app).apply_async(producer=given),
        lambda task, given: (task.s("1") | task.s("2")).apply_async(producer=given),
    ],
    ids=["call", "signature", "group", "chain"],
)
def test_a_producer_of_the_broker_is_left_alone(task, call):
    """Beat gives one with each call, and so does a group."""
    stored = []
    context_of(task.app)._store = SimpleNamespace(push=lambda spec, jobs, pauses=(): stored.extend(jobs))
    call(task, NonCallableMock(spec=["connection"]))
    assert [job.id for job in stored] == ["1"]


@pytest.mark.parametrize(
    "options, pauses",
    [
        ({}, 3),
        ({"retry": False}, 0),
        ({"retry_policy": {"max_retries": 7}}, 7),
        ({"retry_policy": {"max_retries": None}}, 100),
    ],
)
def test_the_policy_says_how_often_it_is_asked(task, options, pauses):
    store = context_of(task.app)._store = Away(StoreUnavailable("gone"))
    with pytest.raises(OperationalError):
        task.apply_async(("1",), **options)
    assert len(store.pauses) == pauses


def test_a_bulk_call_is_repeated_by_the_apps_policy(task):
    store = context_of(task.app)._store = Away(StoreUnavailable("gone"))
    task.app.conf.task_publish_retry_policy = {"max_retries": 7}
    with pytest.raises(OperationalError):
        task.perform_async([{"id": 1}])
    assert len(store.pauses) == 7


def test_pauses_grow_as_the_policy_has_it():
    policy = {"max_retries": 5, "interval_start": 1, "interval_step": 2, "interval_max": 4}
    assert list(retry_intervals(True, policy)) == [1, 3, 5, 5, 5]
