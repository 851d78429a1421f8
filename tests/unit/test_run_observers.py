"""What could notice that a run does not go through Celery's tracer."""

from __future__ import annotations

import functools
import threading
from types import SimpleNamespace

import pytest
from celery import Celery, signals
from celery.app.trace import build_tracer
from celery.backends.cache import CacheBackend
from celery.worker import state

from celery_lowkiq import OrderedTask, ordered_task
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.light_run import PlainRequest
from celery_lowkiq.integration.request import RunObservers
from celery_lowkiq.integration.runner import CeleryRunner
from celery_lowkiq.rules.models import Batch, Disposition, Job, Lease, Payload, ShardRef


def nothing(*_, **__):
    return None


@pytest.fixture
def app():
    urls = {"broker": "redis://localhost:1/0", "backend": "cache+memory://"}
    return Celery("observers", **urls, set_as_current=False)


@pytest.fixture
def make(app):
    """A task whose tracer is built."""

    def make(base=OrderedTask, **options):
        app.tasks.pop("t", None)

        @ordered_task(app=app, shared=False, name="t", base=base, **options)
        def function(payloads_by_id): ...

        app.finalize()
        task = app.tasks["t"]
        task.__trace__ = build_tracer("t", task, app.loader, "host", app=app)
        return task

    return make


def observed(app, task, events=None):
    consumer = SimpleNamespace(app=app, hostname="host", event_dispatcher=events)
    return RunObservers(task, consumer).look()


def hooked(**hooks):
    return type("Hooked", (OrderedTask,), {"abstract": True, **hooks})


def test_nothing_notices_a_usual_task(app, make):
    assert not observed(app, make())
    assert not observed(app, make(acks_late=True, track_started=True, max_retries=3, throws=(ValueError,)))
    # The tracer is called for a failure.
    assert not observed(app, make(base=hooked(on_failure=nothing, on_retry=nothing)))


@pytest.mark.parametrize("name", ["task_received", "task_prerun", "task_postrun", "task_success"])
def test_a_receiver_of_a_signal_of_each_run(app, make, name):
    task, signal = make(), getattr(signals, name)
    consumer = SimpleNamespace(app=app, hostname="host", event_dispatcher=None)
    observers = RunObservers(task, consumer)
    assert not observers.look()
    signal.connect(nothing, weak=False)
    try:
        assert observers.look()
    finally:
        signal.disconnect(nothing)
    assert not observers.look()


@pytest.mark.parametrize("name", ["task_failure", "task_retry", "task_revoked", "before_task_publish"])
def test_receivers_of_other_signals_do_not_matter(app, make, name):
    signal = getattr(signals, name)
    signal.connect(nothing, weak=False)
    try:
        assert not observed(app, make())
    finally:
        signal.disconnect(nothing)


def test_events_of_tasks(app, make):
    """As Flower and exporters of metrics enable them, also while the worker runs."""
    events = SimpleNamespace(enabled=False, groups=set())
    task = make()
    consumer = SimpleNamespace(app=app, hostname="host", event_dispatcher=events)
    observers = RunObservers(task, consumer)
    assert not observers.look()
    events.enabled = True
    assert observers.look()
    events.groups = {"worker"}
    assert not observers.look()
    events.groups = {"worker", "task"}
    assert observers.look()
    task.send_events = False
    assert not observers.look()


@pytest.mark.parametrize("hook", ["before_start", "on_success", "after_return"])
def test_a_hook_of_the_task_class(app, make, hook):
    assert observed(app, make(base=hooked(**{hook: nothing})))


def test_a_call_of_the_users(app, make):
    def call(self, *args, **kwargs):
        return super(OrderedTask, self).__call__(*args, **kwargs)

    assert observed(app, make(base=hooked(__call__=call)))


def test_a_call_that_is_replaced_later(app, make):
    """As Sentry does it."""
    task = make()
    type(task).__call__ = functools.wraps(type(task).__call__)(lambda *args, **kwargs: None)
    assert observed(app, task)


@pytest.mark.parametrize("hook", ["on_task_init", "on_process_cleanup"])
def test_a_hook_of_the_loader(app, make, hook):
    task = make()
    setattr(app.loader, hook, nothing)
    assert observed(app, task)


@pytest.mark.parametrize("hook", ["mark_as_done", "process_cleanup"])
def test_a_hook_of_the_result_backend(app, make, hook):
    task = make()
    task.backend = type("Backend", (CacheBackend,), {hook: nothing})(
        app=app, url="memory://", backend="memory"
    )
    assert observed(app, task)


def test_a_result_backend_that_cannot_be_made(app, make, caplog):
    app.conf.result_backend = "none.such:Backend"
    assert observed(app, make())
    assert "runs of t go through Celery's tracer: its hooks cannot be read" in caplog.messages


def test_a_worker_that_knows_successful_tasks_again(app, make):
    app.conf.worker_deduplicate_successful_tasks = True
    assert not observed(app, make())
    assert observed(app, make(acks_late=True))


def test_a_tracer_that_is_wrapped_and_then_is_not(app, make):
    task = make()
    celerys = task.__trace__
    consumer = SimpleNamespace(app=app, hostname="host", event_dispatcher=None)
    observers = RunObservers(task, consumer)
    task.__trace__ = functools.wraps(celerys)(lambda *args: celerys(*args))
    assert observers.look()
    task.__trace__ = celerys
    assert not observers.look()


class Wrapper:
    """A proxy, as those of ``wrapt``."""

    def __init__(self, wrapped):
        self.__dict__["wrapped"] = wrapped

    def __getattr__(self, name):
        return getattr(self.wrapped, name)

    def __call__(self, *args, **kwargs):
        return self.wrapped(*args, **kwargs)

    @property
    def __class__(self):
        return type(self.wrapped)


def test_a_task_that_is_wrapped_in_celerys_tracer(app, make):
    """As New Relic does it."""
    task = make()
    task.__trace__ = build_tracer("t", Wrapper(task), app.loader, "host", app=app)
    assert observed(app, task)
    task.__trace__ = Wrapper(build_tracer("t", task, app.loader, "host", app=app))
    assert observed(app, task)


@pytest.fixture
def traced(app, make, monkeypatch):
    """Run a job; whether it went through the tracer, and its settlement."""

    def run(*payloads, task=None, claimed_at=0.0, **about):
        task, seen = task or make(), []
        monkeypatch.setattr("celery_lowkiq.integration.runner.Run.begin", lambda run, _: seen.append(run))
        consumer = SimpleNamespace(app=app, hostname="host", event_dispatcher=None)
        runner = CeleryRunner({"t": task}, consumer, context_of(app), reader=None, tracker_store=None)
        lease, jobs = Lease(ShardRef("t", 0), "me", 1), (Job("1", payloads, 0.0, claim=1, **about),)
        batch = Batch(task.queue_spec, lease, 1, jobs, threading.Event(), claimed_at=claimed_at)
        (settlement,) = runner.run(batch)
        return bool(seen), settlement

    return run


def test_what_a_batch_may_have_that_needs_the_tracer(traced):
    good, bad = Payload(b'"x"', 1.0), Payload(b"{", 2.0)
    assert not traced(good)[0]
    was_traced, settlement = traced(good, bad)
    assert was_traced
    assert (settlement.disposition, [one.position for one in settlement.bad]) == (Disposition.DONE, [1])
    was_traced, settlement = traced(good, good, unwanted=1)
    assert was_traced
    assert [one.position for one in settlement.bad] == [0]


def test_a_call_with_a_time_of_its_own_waits(traced, app):
    @ordered_task(app=app, shared=False, name="t", by="a")
    def function(a): ...

    app.finalize()
    task = app.tasks["t"]
    task.__trace__ = build_tracer("t", task, app.loader, "host", app=app)
    later = Payload(b'{"args":["1"],"kwargs":{},"eta":50.0}', 1.0)
    was_traced, settlement = traced(later, task=task, claimed_at=20.0)
    assert (was_traced, settlement.disposition, settlement.delay) == (False, Disposition.RETURN, 30.0)
    assert traced(later, task=task, claimed_at=60.0)[1].disposition is Disposition.DONE


def test_a_revoked_call_in_place_is_left_to_the_tracer(traced, app, monkeypatch):
    @ordered_task(app=app, shared=False, name="t", by="a")
    def function(a): ...

    app.finalize()
    task = app.tasks["t"]
    task.__trace__ = build_tracer("t", task, app.loader, "host", app=app)
    begun = []
    monkeypatch.setattr(state, "revoked", {"revoked"})
    monkeypatch.setattr(PlainRequest, "begins", lambda request: begun.append(request.id))
    for task_id in ("other", "revoked"):
        data = b'{"args":["1"],"kwargs":{},"task_id":"%s"}' % task_id.encode()
        traced(Payload(data, 1.0), task=task)
    assert begun == ["other"]
