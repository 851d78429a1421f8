"""Options of a call that say how a message travels, which an ordered call does not."""

from __future__ import annotations

from datetime import datetime, timezone
from inspect import signature

import pytest
from celery import Celery, signals
from celery.app.amqp import AMQP
from celery.app.task import Task
from celery.beat import ScheduleEntry, Scheduler
from celery.schedules import schedule
from kombu import Connection, Exchange, Producer, Queue

from celery_lowkiq import InvalidCall, ordered_task
from celery_lowkiq.integration.options import IGNORED_AT_A_CALL, LIMITS, REFUSED_AT_A_CALL
from celery_lowkiq.store.push import Pusher
from tests.features.test_call_options import OPTIONS

VALUES = {
    "queue": "celery",
    "exchange": Exchange("orders"),
    "routing_key": "orders.eu",
    "router": object(),
    "serializer": "yaml",
    "compression": "gzip",
    "delivery_mode": 1,
    "mandatory": True,
    "immediate": True,
    "connection": Connection("redis://:secret@other//"),
}
#: What the functions of Celery and kombu that make and send a message have among themselves.
OF_A_MESSAGE = {
    *("self", "args", "kwargs", "options", "name", "body", "message", "task_id", "task_type", "properties"),
    *(
        "result_cls",
        "callbacks",
        "errbacks",
        "chain",
        "chord",
        "create_sent_event",
        "now",
        "timezone",
        "origin",
    ),
    *("event_dispatcher", "content_type", "content_encoding"),
}
#: What says how a message is sent: there is none, and no harm in it.
OF_SENDING = {"producer", "publisher", "declare", "exchange_type", "timeout", "confirm_timeout"}


@pytest.fixture
def stored(monkeypatch):
    jobs = []
    monkeypatch.setattr(Pusher, "push", lambda self, queue, new, pauses=(): jobs.extend(new))
    return jobs


@pytest.fixture
def app():
    return Celery("options", broker="redis://localhost:1/0", set_as_current=False)


def save(order_id, status="new"): ...


def batch(payloads_by_id): ...


@pytest.fixture(params=["order_id", None])
def task(request, app):
    """One with ``by=``, and one that gets payloads by id."""
    ordered_task(app=app, name="sync", by=request.param)(save if request.param else batch)
    return app.tasks["sync"]


def test_each_option_of_celery_is_known():
    """A new one of Celery's or kombu's needs a decision."""
    takers = (
        *(Task.apply_async, Celery.send_task, AMQP.as_task_v2, Producer.publish),
        AMQP._create_task_sender(Celery("names", set_as_current=False).amqp),
    )
    names = {name for taker in takers for name in signature(taker).parameters}
    decided = {*OPTIONS, *IGNORED_AT_A_CALL, *REFUSED_AT_A_CALL, *LIMITS}
    assert names - decided - OF_SENDING == OF_A_MESSAGE & names


@pytest.mark.parametrize("option", IGNORED_AT_A_CALL)
def test_what_only_routes_is_ignored_with_one_warning(task, stored, caplog, option):
    for number in range(2):
        task.apply_async((str(number), "paid"), **{option: VALUES[option]})
        task.s(str(number), "paid").set(**{option: VALUES[option]}).delay()
    assert [job.id for job in stored] == ["0", "0", "1", "1"]
    (warning,) = caplog.messages
    assert warning.startswith(f"sync: {option}= of a call is ignored, because ")
    assert "secret" not in warning


@pytest.mark.parametrize("queue", ["", None, "sync", Queue("sync")])
def test_its_own_queue_and_none_are_no_other_one(task, stored, caplog, queue):
    task.apply_async(("1",), queue=queue, mandatory=False)
    assert (len(stored), caplog.messages) == (1, [])


@pytest.mark.parametrize("option", REFUSED_AT_A_CALL)
def test_what_would_mean_something_else_is_refused(task, stored, option):
    with pytest.raises(InvalidCall, match=f"{option}=5 is invalid"):
        task.apply_async(("1",), **{option: 5})
    assert stored == []


def test_an_entry_of_beat_has_the_options_of_schedulers(task, stored, caplog):
    options = {
        "queue": "celery",
        "priority": 12,
        "expires": 60.0,
        "headers": {"periodic_task_name": "nightly"},
    }
    entry = ScheduleEntry("nightly", "sync", schedule=schedule(5), args=("1",), options=options, app=task.app)
    scheduler = Scheduler(task.app, lazy=True)
    for _ in range(2):
        scheduler.apply_async(entry, advance=False)
    assert [(job.id, job.priority) for job in stored] == [("1", 9)] * 2
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(("given", "stored_as"), [(255, 9), (10, 9), (-1, 0), (4, 4), (None, None)])
def test_a_priority_beyond_those_of_redis_is_the_nearest_one(task, stored, given, stored_as):
    task.apply_async(("1",), priority=given)
    assert stored[0].priority == stored_as


@pytest.mark.parametrize(
    "eta", ["2030-01-01T00:00:00+00:00", "2030-01-01T00:00:00Z", "2030-01-01 01:00:00+01:00"]
)
def test_a_time_may_be_text(task, stored, eta):
    task.apply_async(("1",), eta=eta)
    assert stored[0].perform_in == 1893456000.0


class TestTimeLimits:
    """A run that is a process, or a coroutine, can keep those of its call."""

    @pytest.mark.parametrize(
        ("options", "function", "kept"),
        [
            ({"run_in": "process"}, save, {"time_limit", "soft_time_limit"}),
            ({}, save, set()),
            ({}, None, {"soft_time_limit"}),
        ],
    )
    def test_only_what_no_run_can_keep_is_warned_of(self, app, stored, caplog, options, function, kept):
        async def awaits(order_id): ...

        task = ordered_task(app=app, name="sync", by="order_id", **options)(function or awaits)
        for _ in range(2):
            task.apply_async(("1",), time_limit=9, soft_time_limit=8)
        warned = {text.split()[1].partition("=")[0] for text in caplog.messages}
        assert (warned, len(caplog.messages)) == ({*LIMITS} - kept, 2 - len(kept))
        assert all(b'"timelimit":[9,8]' in job.record for job in stored)

    @pytest.mark.parametrize("value", ["60", 0, -1, True, float("inf"), float("nan"), [5], {"s": 5}])
    @pytest.mark.parametrize("name", LIMITS)
    def test_a_wrong_one_is_refused(self, task, stored, name, value):
        for call in (task.apply_async, lambda args, **options: task.s(*args).set(**options).delay()):
            with pytest.raises(InvalidCall, match=f"{name}=.* is invalid: expected seconds above 0, or None"):
                call(("1",), **{name: value})
        assert stored == []

    def test_those_of_the_task_need_no_record(self, app, stored):
        limits = {"run_in": "process", "time_limit": 9, "soft_time_limit": 8}
        task = ordered_task(app=app, name="sync", by="order_id", ignore_result=True, **limits)(save)
        task.apply_async(("1",), time_limit=9, soft_time_limit=8)
        assert stored[0].record is None


class TestReceivers:
    """What a receiver of ``before_task_publish`` changes in the message of a call is what the store gets."""

    @pytest.fixture
    def receive(self):
        connected = []

        def receive(change):
            def receiver(headers, body, properties, **_):
                change(headers, body, properties)

            signals.before_task_publish.connect(receiver)
            connected.append(receiver)

        yield receive
        for receiver in connected:
            signals.before_task_publish.disconnect(receiver)

    @pytest.mark.parametrize(
        ("change", "delay", "perform_in"),
        [({}, 60, None), ({"eta": "2030-01-01T00:00:00Z"}, None, 1893456000.0), ({"eta": None}, None, None)],
    )
    def test_it_sees_the_time_and_may_change_it(self, task, stored, receive, change, delay, perform_in):
        def receiver(headers, body, properties):
            assert datetime.fromisoformat(headers["eta"]) > datetime.now(timezone.utc)
            headers.update(change)

        receive(receiver)
        task.apply_async(("1",), countdown=60)
        (job,) = stored
        assert (job.delay, job.perform_in) == (delay, perform_in)
        assert (b"countdown" in job.data) is (task.by is not None and delay is not None)

    def test_it_gives_the_id_of_a_call_its_score_and_its_priority(self, task, stored, receive):
        def change(headers, body, properties):
            headers.update(id="other", lowkiq={"score": 7})
            properties["priority"] = 20
            body[0][:] = ["2", "paid"]

        receive(change)
        task.apply_async(["1"])
        (job,) = stored
        assert (job.id, job.score, job.priority) == ("2", 7, 9)
        assert b"paid" in job.data
        assert task.by is None or b'"task_id":"other"' in job.data

    def test_it_cannot_make_it_a_call_of_another_task(self, task, stored, receive):
        receive(lambda headers, *_: headers.update(task="other"))
        with pytest.raises(InvalidCall, match="task='other' is invalid: expected 'sync' in the headers"):
            task.delay("1")
        assert stored == []

    @pytest.mark.parametrize("limits", [["60", None], [1], 5, {"a": 1, "b": 2}, True])
    def test_a_call_goes_without_the_wrong_time_limits_that_it_gives(self, task, stored, receive, limits):
        receive(lambda headers, *_: headers.update(timelimit=limits))
        task.apply_async(("1",), time_limit=9)
        assert b"timelimit" not in (stored[0].record or b"")

    def test_one_that_makes_a_call_invalid_hears_of_it(self, task, stored, receive):
        receive(lambda headers, body, properties: body[1].update(unknown=1))
        with pytest.raises(TypeError, match="unexpected keyword argument 'unknown'"):
            task.apply_async(("1",), {})
        assert stored == []

    def test_a_bulk_call_is_changed_as_one(self, app, stored, receive):
        def change(headers, body, properties):
            body[0][-1]["tenant"] = "acme"

        receive(change)
        ordered_task(app=app, name="sync")(batch)
        app.tasks["sync"].perform_async([{"id": 1, "payload": {"n": 1}}, {"id": 2, "payload": {}}])
        assert [job.data for job in stored] == [b'{"n":1,"tenant":"acme"}', b'{"tenant":"acme"}']
