"""The request of a plain run, which is made when something asks for it."""

from __future__ import annotations

import logging
import threading
import time
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.app import trace
from celery.app.task import Context
from celery.app.trace import build_tracer
from celery.worker import state

from celery_lowkiq import ordered_task
from celery_lowkiq.integration import light_run
from celery_lowkiq.integration import request as requests
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.run_logs import BatchFilter
from celery_lowkiq.integration.runner import CeleryRunner
from celery_lowkiq.rules.models import Batch, Disposition, Job, Lease, Payload, ShardRef

# Celery warns of each error from outside a function.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

CALL_ID = "3f0d4f52-7f10-4c27-8ea8-1a6ac4f2c0de"


@pytest.fixture
def run():
    """Run a bound function on one payload, as a lane does. Returns the settlement."""

    def run(function, data=b'"x"', **options):
        state.reset_state()
        app = Celery("unit", broker="redis://localhost:1/0", set_as_current=False)
        options = {"retry_in": lambda retry_count: 1, **options}
        ordered_task(app=app, shared=False, bind=True, name="t", **options)(function)
        app.finalize()
        task = app.tasks["t"]
        task.__trace__ = build_tracer("t", task, app.loader, "host", app=app)
        consumer = SimpleNamespace(app=app, hostname="host", event_dispatcher=None)
        runner = CeleryRunner({"t": task}, consumer, context_of(app), reader=None, tracker_store=None)
        jobs = (Job("1", (Payload(data, 1.0),), perform_in=0.0, claim=1),)
        lease, began_at = Lease(ShardRef("t", 0), "me", 1), time.monotonic()
        batch = Batch(task.queue_spec, lease, 1, jobs, threading.Event(), began_at)
        (settlement,) = runner.run(batch)
        return settlement

    return run


def test_it_is_celerys_own_once_it_was_read(run):
    seen = []

    def function(self, payloads_by_id):
        seen.extend([type(self.request), self.request.id, type(self.request)])
        seen.extend([self.request.hostname, type(self.request)])

    run(function)
    assert seen == [
        light_run.PlainContext,
        seen[1],
        light_run.PlainContext,
        "host",
        Context,
    ]


def test_it_can_be_read_after_the_run(run):
    kept = []

    def function(self, payloads_by_id):
        payloads_by_id.clear()
        kept.append(self.request)

    run(function)
    (request,) = kept
    assert request.argsrepr == "'1' (1): ['x']"
    assert request.lowkiq.jobs[0].payloads == ("x",)
    assert (request.retries, request.id in state.requests) == (0, False)


def test_another_thread_may_read_it_first(run):
    """An attribute whose look-up had begun when another thread completed the request raised."""
    kept = []

    def function(self, payloads_by_id):
        kept.append(self.request)

    run(function)
    (request,) = kept
    begun = light_run.PlainContext.__getattribute__
    assert request.hostname == "host"
    assert (type(request), begun(request, "timelimit")) == (Context, (None, None))
    assert begun(request, "lang") == "py"
    with pytest.raises(AttributeError, match="'Context' object has no attribute 'nothing'"):
        begun(request, "nothing")
    assert begun(request, "__dict__") == vars(request)


def test_a_worker_finds_a_call_in_place_by_its_id(run):
    found = []

    def function(self, order_id):
        found.append(state.requests[CALL_ID].info()["args"])

    run(function, b'{"args":["1"],"kwargs":{},"task_id":"%s"}' % CALL_ID.encode(), by="order_id")
    assert (found, state.requests) == ([("1",)], {})


def test_inspect_shows_the_unix_time_at_which_a_run_began(run):
    """It showed the monotonic time."""
    found = []

    def function(self, payloads_by_id):
        (active,) = state.active_requests
        found.append(active.info()["time_start"])

    before = time.time()
    run(function)
    assert before - 1 < found[0] < time.time() + 1


def test_an_id_that_is_read_in_another_thread_is_the_runs(run):
    ids = []

    def function(self, payloads_by_id):
        (active,) = state.active_requests
        threads = [threading.Thread(target=lambda: ids.append(active.id)) for _ in range(8)]
        for thread in threads:
            thread.start()
        ids.append(self.request.id)
        for thread in threads:
            thread.join()
        assert list(state.requests) == [self.request.id]

    assert run(function).disposition is Disposition.DONE
    assert len(ids) == 9
    assert len(set(ids)) == 1
    assert state.requests == {}


def test_a_run_that_ends_while_its_id_is_registered_is_forgotten(run, monkeypatch):
    """By another thread, such as that of ``inspect active``."""
    kept = []

    def function(self, payloads_by_id):
        kept.extend(state.active_requests)

    class Requests(dict):
        def __setitem__(self, task_id, request):
            request.ends()
            super().__setitem__(task_id, request)

    run(function)
    (request,) = kept
    request.begins()
    monkeypatch.setattr(state, "requests", Requests())
    assert request.id
    assert state.requests == {}


def test_a_failure_whose_request_cannot_be_made_does_not_end_the_lane(run, monkeypatch, caplog):
    def away(*_, **__):
        raise RuntimeError("no request")

    def function(self, payloads_by_id):
        raise ValueError("boom")

    monkeypatch.setattr(requests, "_headers", away)
    settlement = run(function)
    assert settlement.disposition is Disposition.RETRY
    assert "a run of t failed outside its function" in caplog.messages
    assert list(state.active_requests) == []


def test_a_line_that_cannot_be_written_does_not_fail_the_run(run, monkeypatch, caplog):
    def away(*_, **__):
        raise RuntimeError("no arguments")

    def function(self, payloads_by_id):
        pass

    monkeypatch.setattr(light_run, "show_arguments", away)
    caplog.set_level(logging.INFO, "celery.app.trace")
    assert run(function).disposition is Disposition.DONE
    assert "a run could not be reported" in caplog.messages


def test_a_success_is_logged_by_celerys_line_of_the_moment(run, monkeypatch, caplog):
    """A plain run logged the result though the program had replaced the line, to keep results out of it."""

    def function(self, payloads_by_id):
        return "secret"

    monkeypatch.setattr(trace, "LOG_SUCCESS", "%(name)s is done")
    monkeypatch.setattr(trace.logger, "filters", [BatchFilter()])
    caplog.set_level(logging.INFO, "celery.app.trace")
    run(function)
    assert caplog.messages == ["t is done queue=t shard=0 jobs=1 ids='1'"]
