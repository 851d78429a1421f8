"""Tests of ``integration/messages.py``."""

from __future__ import annotations

import functools
import json
import pickle
import threading
from datetime import datetime, timezone
from itertools import islice
from types import SimpleNamespace
from typing import ClassVar
from unittest.mock import NonCallableMock

import pytest
from celery import Celery, group, signals
from celery._state import _task_stack
from celery.app.task import Task
from kombu.exceptions import OperationalError

from celery_lowkiq import (
    ConfigurationError,
    InvalidCall,
    PayloadError,
    StoreFull,
    StoreUnavailable,
    ordered_task,
)
from celery_lowkiq.integration import task as call_mixin
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.messages import SendingTimes, StoreProducer
from celery_lowkiq.integration.publish import retry_intervals
from celery_lowkiq.store.push import Pusher

# Calls while Redis is unreachable raise what any call of Celery's raises, by the call's retry policy.


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
    context_of(task.app).store.pusher = Away(error)
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
    pusher = SimpleNamespace(push=lambda spec, jobs, pauses=(): stored.extend(jobs))
    context_of(task.app).store.pusher = pusher
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
    store = context_of(task.app).store.pusher = Away(StoreUnavailable("gone"))
    with pytest.raises(OperationalError):
        task.apply_async(("1",), **options)
    assert len(store.pauses) == pauses


def test_a_bulk_call_is_repeated_by_the_apps_policy(task):
    store = context_of(task.app).store.pusher = Away(StoreUnavailable("gone"))
    task.app.conf.task_publish_retry_policy = {"max_retries": 7}
    with pytest.raises(OperationalError):
        task.perform_async([{"id": 1}])
    assert len(store.pauses) == 7


def test_pauses_grow_as_the_policy_has_it():
    policy = {"max_retries": 5, "interval_start": 1, "interval_step": 2, "interval_max": 4}
    assert list(retry_intervals(True, policy)) == [1, 3, 5, 5, 5]


# Messages are stamped with their time of sending, where the app says so. No broker.


def test_times_of_a_process_grow_whatever_its_clock_does():
    """O3: equal times, and a clock that is set back."""
    clock = iter([5_000_000_000, 5_000_000_000, 5_000_000_999, 4_000_000_000, 6_000_000_000])
    times = SendingTimes(lambda: next(clock))
    assert [times.next() for _ in range(5)] == [5.0, 5.000001, 5.000002, 5.000003, 6.0]


def test_times_of_several_threads_differ():
    times, found = SendingTimes(lambda: 1_795_000_000_000_000_000), []
    threads = [
        threading.Thread(target=lambda: found.extend(times.next() for _ in range(500))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 2000


@pytest.fixture
def headers():
    """Send a message by a setting and headers: those that reach the broker."""

    def send(setting=None, name="elsewhere", **options):
        app = Celery("sender", broker="memory://", set_as_current=False)
        if setting is not None:
            app.conf.lowkiq_message_score = setting

        @app.task(name="plain", shared=False)
        def plain():
            """Never run here."""

        @ordered_task(app=app, name="ordered", shared=False)
        def ordered(payloads_by_id):
            """Never run here."""

        app.finalize()
        app.send_task(name, ("1",), **options)
        with app.connection() as connection, connection.SimpleQueue("celery") as queue:
            message = queue.get(block=True, timeout=5)
            message.ack()
        return message.headers.get("lowkiq")

    return send


@pytest.mark.parametrize("name", ["elsewhere", "ordered"])
def test_a_message_says_when_it_was_sent_where_the_app_asks_for_it(headers, name):
    assert headers(name=name) is None
    assert headers("arrival", name=name) is None
    first, second = (headers("sent", name=name)["sent"] for _ in range(2))
    assert 1.7e9 < first < second


def test_what_needs_no_time_has_none(headers):
    assert headers("sent", name="plain") is None
    assert headers("sent", headers={"lowkiq": {"score": 3}}) == {"score": 3}
    assert headers("sent", headers={"lowkiq": {"sent": 5.5}}) == {"sent": 5.5}
    assert headers("sent", headers={"lowkiq": [1]}) == [1]


def test_the_senders_own_headers_stay_as_they_are(headers):
    given = {"lowkiq": {"priority": 3}, "tenant": "acme"}
    assert headers("sent", headers=given)["priority"] == 3
    assert given == {"lowkiq": {"priority": 3}, "tenant": "acme"}


def test_a_wrong_setting_is_refused(headers):
    with pytest.raises(ConfigurationError, match="lowkiq_message_score='now' is invalid"):
        headers("now")


# A call that nothing observes skips Celery's message; each listener brings it back.


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

    monkeypatch.setattr(call_mixin, "StoreProducer", Noted)
    monkeypatch.setattr(Pusher, "push", lambda self, queue, jobs, pauses=(): stored.append(jobs))
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


def test_a_celery_that_dumps_no_models(messages, monkeypatch):
    """Calls of a task with by= ended in an AttributeError with Celery 5.5."""
    monkeypatch.delattr(Task, "_dump_pydantic_arguments", raising=False)
    make_task(options={"by": "payloads_by_id"}).delay("1")


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


class Outbox(Celery):
    """Keeps calls in a table, as django-celery-outbox does; what it does not know is in the row, too."""

    rows: ClassVar[list] = []
    transient = ("producer", "router", "task_type", "headers", "result_cls", "add_to_parent")

    def send_task(self, name, args=None, kwargs=None, task_id=None, **options):
        kept = {key: value for key, value in options.items() if key not in self.transient}
        self.rows.append(self.row(name, args, kwargs, kept))
        return self.AsyncResult(task_id or "made here")

    def row(self, *parts):
        return json.dumps(parts)


class PicklingOutbox(Outbox):
    def row(self, *parts):
        return pickle.dumps(parts)


class CarelessOutbox(Outbox):
    def row(self, name, args, kwargs, options):
        return name, args, kwargs


@pytest.fixture
def rows(monkeypatch):
    monkeypatch.setattr(Outbox, "rows", [])
    return Outbox.rows


ETA = datetime(2030, 1, 1, tzinfo=timezone.utc)
SAID = [
    ({"score": 9, "countdown": 5}, "score=9.0, countdown=5.0 of a call of orders"),
    ({"eta": ETA}, "eta=1893456000.0 of a call"),
    ({"priority": 3}, "priority=3 of a call"),
    ({"headers": {"lowkiq": {"score": 2, "perform_in": 9}}}, "score=2.0, perform_in=9.0 of a call"),
]


class TestStandIns:
    """P9: what stands in the place of ``send_task`` and keeps calls has no place for a score."""

    @pytest.mark.parametrize("outbox", [Outbox, PicklingOutbox])
    @pytest.mark.parametrize("call, words", SAID)
    def test_what_would_be_lost_is_refused_before_it_is_kept(self, rows, stored, outbox, call, words):
        with pytest.raises(InvalidCall) as refused:
            make_task(outbox).apply_async(("1", "x"), **call)
        assert words in str(refused.value)
        assert f"{outbox.__name__}.send_task" in str(refused.value)
        assert (rows, stored) == ([], [])

    @pytest.mark.parametrize("call, words", SAID)
    def test_also_where_only_name_and_arguments_are_kept(self, rows, stored, call, words):
        with pytest.raises(InvalidCall, match=r"CarelessOutbox.send_task keeps the call"):
            make_task(CarelessOutbox).apply_async(("1", "x"), **call)

    def test_of_a_bulk_call(self, rows, stored):
        with pytest.raises(InvalidCall, match=r"score=7.0 of a call"):
            make_task(Outbox).perform_async(BULK)
        assert (rows, stored) == ([], [])

    def test_a_call_that_says_nothing_else_is_kept(self, rows, stored):
        make_task(Outbox).delay("1", "x")
        assert (len(rows), stored) == (1, [])

    @pytest.mark.parametrize("call, words", SAID)
    def test_who_passes_calls_on_loses_nothing(self, stored, call, words):
        make_task(Listening).apply_async(("1", "x"), **call)
        make_task().apply_async(("1", "x"), **call)
        (one,), (other,) = stored
        # A message names its call.
        assert one._replace(task_id=None) == other._replace(task_id=None)

    def test_an_error_of_another_kind_is_its_own(self, rows, stored, monkeypatch):
        monkeypatch.setattr(Outbox, "row", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            make_task(Outbox).apply_async(("1", "x"), score=9)


BULK = [{"id": "1", "payload": "x", "score": 7}, {"id": "2", "perform_in": 9}]


@pytest.fixture
def stored(monkeypatch):
    """Jobs of each push."""
    pushes = []
    monkeypatch.setattr(Pusher, "push", lambda self, queue, jobs, pauses=(): pushes.append(jobs))
    return pushes


@pytest.fixture
def trace():
    """As OpenTelemetry does it: a header for each call, which the receiver of the run reads."""
    published = []

    def before(sender, headers, body, **_):
        headers["traceparent"] = f"span of {headers['id']}"
        published.append(("before", headers["id"], body[0]))

    def after(sender, headers, **_):
        published.append(("after", headers["id"], None))

    signals.before_task_publish.connect(before)
    signals.after_task_publish.connect(after)
    yield published
    signals.before_task_publish.disconnect(before)
    signals.after_task_publish.disconnect(after)


class TestBulk:
    """``perform_async``: the same, for each of its calls."""

    def test_nobody_listens(self, stored):
        make_task().perform_async(BULK)
        ((one, two),) = stored
        assert (one.record, two.record) == (None, None)

    @pytest.mark.parametrize("options", [{}, {"key": lambda payload: "1"}])
    def test_receivers_hear_of_each_call_and_its_headers_are_kept(self, stored, trace, options):
        make_task(options=options).perform_async(BULK)
        ((one, two),) = stored
        assert [(job.id, job.score, job.perform_in) for job in (one, two)] == [("1", 7, None), ("2", None, 9)]
        arguments = [("x",), ("",)] if options else [("1", "x"), ("2", "")]
        assert [(moment, args) for moment, _, args in trace] == [
            ("before", arguments[0]),
            ("after", None),
            ("before", arguments[1]),
            ("after", None),
        ]
        for job, (_, task_id, _) in zip((one, two), trace[::2], strict=True):
            assert job.record == b'["%b",{"traceparent":"span of %b"}]' % ((task_id.encode(),) * 2)

    def test_the_results_are_those_of_the_messages(self, stored, trace):
        results = make_task(result_backend="cache+memory://").perform_async(BULK, results=True)
        assert [result.id for result in results] == [task_id for _, task_id, _ in trace[::2]]

    @pytest.mark.parametrize("ignored", [True, False])
    def test_nobody_is_kept_waiting_for_a_result_that_is_ignored(self, stored, ignored):
        task = make_task(result_backend="cache+memory://", task_ignore_result=ignored)
        assert [result.ignored for result in task.perform_async(BULK, results=True)] == [ignored] * 2

    def test_a_list_with_a_wrong_job_makes_no_message(self, stored, trace):
        with pytest.raises(PayloadError):
            make_task().perform_async([*BULK, {"id": 3, "payload": {1, 2}}])
        assert (stored, trace) == ([], [])

    @pytest.mark.parametrize("heard", [False, True])
    def test_calls_made_within_a_run_know_their_parents(self, stored, heard, request):
        if heard:
            request.getfixturevalue("trace")
        task = make_task(result_backend="cache+memory://", task_ignore_result=False)
        task.push_request(id="outer", root_id="root", called_directly=False)
        _task_stack.push(task)
        try:
            task.perform_async(BULK, results=True)
        finally:
            _task_stack.pop()
            task.pop_request()
        for job in stored[0]:
            headers = json.loads(job.record)[1]
            assert (headers["root_id"], headers["parent_id"]) == ("root", "outer")

    def test_what_instruments_celery_sees_each_call(self, stored, monkeypatch):
        original, seen = Task.apply_async, []

        @functools.wraps(original)
        def instrumented(self, *args, **kwargs):
            seen.append(args)
            return original(self, *args, **kwargs)

        monkeypatch.setattr(Task, "apply_async", instrumented)
        make_task().perform_async(BULK)
        assert len(seen) == 2


def test_protocol_1_is_read_as_well(stored):
    """Its message has no headers: all is in the body."""
    task = make_task(task_protocol=1, result_backend="cache+memory://", task_ignore_result=False)
    result = task.delay("1", "x")
    ((job,),) = stored
    assert job.record == b'["%b"]' % result.id.encode()
