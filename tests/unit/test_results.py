"""Tests of the results in ``integration/results.py``."""

from __future__ import annotations

import copy
import gc
import pickle
from unittest import mock

import pytest
from celery import Celery, _state
from celery.app.task import Task
from celery.result import AsyncResult

from celery_lowkiq import ordered_task
from celery_lowkiq.integration.results import lazy_result


@pytest.fixture
def app():
    app = Celery("lazy", broker="memory://", backend="cache+memory://", set_as_current=False)
    yield app
    app.close()


@pytest.fixture
def task(app):
    @ordered_task(app=app, name="sync", shared=False)
    def sync(payloads_by_id):
        """Never runs."""

    return app.tasks["sync"]


def test_it_is_an_async_result_of_the_app(app, task):
    result = lazy_result(task, "an-id")
    assert isinstance(result, app.AsyncResult)
    assert result == AsyncResult("an-id", app=app)
    assert hash(result) == hash(AsyncResult("an-id", app=app))
    assert (result.id, result.task_id, str(result)) == ("an-id",) * 3
    assert repr(result) == "<AsyncResult: an-id>"
    assert result.backend is task.backend
    assert (result.parent, result.children, result.as_tuple()) == (None, None, (("an-id", None), None))


def test_its_id_is_given_once(task):
    result = lazy_result(task, None)
    assert result.id == result.id == result.as_tuple()[0][0]
    assert len(result.id) == 36
    assert result.id != lazy_result(task, None).id


def test_it_reads_what_the_backend_has(task):
    result = lazy_result(task, None)
    assert result.state == "PENDING"
    done = []
    result.then(done.append)
    task.backend.mark_as_done(result.id, 7)
    assert (result.get(timeout=1), result.state) == (7, "SUCCESS")
    assert done == [result]


@pytest.mark.parametrize("ignored", [True, False])
def test_get_of_an_ignored_result_does_not_block(task, ignored):
    task.ignore_result = ignored
    assert lazy_result(task, None).ignored is ignored


@pytest.mark.parametrize("copied", [copy.copy, lambda result: pickle.loads(pickle.dumps(result))])
def test_a_copy_has_the_same_id(app, task, copied):
    result = lazy_result(task, None)
    before = _state.get_current_app()
    app.set_current()
    try:
        assert copied(result).id == result.id
    finally:
        before.set_current()


def test_the_backend_is_left_alone_until_it_is_asked_for(task):
    with mock.patch.object(type(task), "backend", new_callable=mock.PropertyMock) as backend:
        result = lazy_result(task, None)
        assert result.id
        del result
        gc.collect()
        assert not backend.called
        result = lazy_result(task, None)
        asked = result.backend
        del result
        gc.collect()
        assert asked.remove_pending_result.called


def test_an_async_result_of_the_apps_own(app, task):
    class Own(AsyncResult):
        """With a method of its own."""

    app.AsyncResult = app.subclass_with_self(Own)
    assert isinstance(lazy_result(task, "an-id"), Own)


def test_an_async_result_of_the_tasks_own(app):
    made = []

    class Noted(Task):
        def AsyncResult(self, task_id, **options):  # noqa: N802 - Celery's name
            made.append(task_id)
            return super().AsyncResult(task_id, **options)

    @ordered_task(app=app, name="noted", shared=False, base=Noted)
    def noted(payloads_by_id):
        """Never runs."""

    assert lazy_result(app.tasks["noted"], "an-id").id == "an-id"
    assert made == ["an-id"]
