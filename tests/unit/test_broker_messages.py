"""Calls that come by the broker are stored before they are acknowledged. No Redis."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
from celery import Celery
from kombu.exceptions import ContentDisallowed

from celery_lowkiq import ordered_task
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.broker_messages import BrokerMessageHandler
from celery_lowkiq.integration.messages import MessagedCall, read_call
from celery_lowkiq.integration.records import CallRecord
from celery_lowkiq.rules.errors import InvalidCall, PayloadError, QueueFull, StoreUnavailable


class Store:
    """Takes pushes, unless there is an error that keeps it from that."""

    def __init__(self):
        self.error = None
        self.pushed = []
        self.records = []
        self.jobs = []

    def push(self, spec, jobs, pauses=()):
        if self.error is not None:
            raise self.error
        self.jobs += jobs
        self.pushed += [(job.id, job.data, job.perform_in) for job in jobs]
        self.records += [job.record for job in jobs if job.record is not None]


class Timer:
    """Keeps what is to happen later until the test lets it happen."""

    def __init__(self):
        self.later = []

    def call_after(self, seconds, action, arguments):
        self.later.append((action, arguments))

    def fire(self):
        due, self.later = self.later, []
        for action, arguments in due:
            action(*arguments)


class Message:
    """A message of Celery's protocol 2, and what was told the broker about it."""

    def __init__(self, *args, eta=None, **kwargs):
        self.headers = {"eta": eta}
        self.payload = (args, kwargs, {})
        self.answers = []

    def sent_to(self, handler):
        handler(self, None, lambda *_: self.answers.append("ack"), lambda *_: self.answers.append("reject"))
        return self.answers


@pytest.fixture
def timer():
    return Timer()


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def make_handler(store, timer):
    def make(drop_stale=None, **settings):
        app = Celery("unit", broker="redis://localhost:1/0", set_as_current=False)
        app.conf.update(settings)
        options = {} if drop_stale is None else {"drop_stale": drop_stale}

        @ordered_task(app=app, shared=False, **options)
        def task(payloads_by_id):
            """Never run here."""

        context_of(app).store.pusher = store
        return task.Strategy(task, app, SimpleNamespace(connection_errors=(), timer=timer))

    return make


@pytest.fixture
def handler(make_handler):
    return make_handler()


def test_a_call_is_stored_and_acknowledged(handler, store):
    assert Message("1", {"b": 1, "a": 2}).sent_to(handler) == ["ack"]
    assert Message(id=2, eta="2026-01-01T00:00:00Z").sent_to(handler) == ["ack"]
    assert store.pushed == [("1", b'{"a":2,"b":1}', None), ("2", b'""', 1767225600.0)]


@pytest.mark.parametrize("args", [(), (1, 2, 3), (None,), (1, object())])
def test_a_call_that_is_wrong_is_rejected(handler, store, args):
    assert Message(*args).sent_to(handler) == ["reject"]
    assert store.pushed == []


@pytest.mark.parametrize(
    "body, says",
    [
        (("ab", {}, {}), "args='ab' is invalid: expected a list or a tuple"),
        ((5, {}, {}), "args=5 is invalid: expected a list or a tuple"),
        ((["1"], ["2"], {}), "kwargs=['2'] is invalid: expected a mapping with names as keys"),
        ((["1"], {2: 3}, {}), "kwargs={2: 3} is invalid: expected a mapping with names as keys"),
        ((["1"], {}, [1]), "embed=[1] is invalid: expected a mapping or null"),
        ((["1"], {}), "body=(['1'], {}) is invalid: expected [args, kwargs, embed], as Celery sends it"),
        (5, "body=5 is invalid: expected [args, kwargs, embed], as Celery sends it"),
        ({"args": 5, "kwargs": {}}, "args=5 is invalid: expected a list or a tuple"),
        (((), {}, {}), "task() missing 1 required positional argument: 'id'"),
    ],
)
def test_a_rejection_names_what_is_wrong(handler, store, caplog, body, says):
    """P3: Python's words for wrong arguments quote a ``functools.partial``, or name nothing at all."""
    message = Message()
    message.payload = body
    message.headers = {"id": "known"}
    assert message.sent_to(handler) == ["reject"]
    assert caplog.messages[0].endswith(f"is rejected: {says}")
    assert store.pushed == []


@pytest.mark.parametrize("args, kwargs", [(5, None), (["1"], [2]), (["1"], {3: 4})])
def test_the_error_of_a_call_names_what_is_wrong(handler, args, kwargs):
    """P3"""
    with pytest.raises(TypeError, match="is invalid: expected a"):
        handler._task.apply_async(args, kwargs)


@pytest.fixture
def told(handler, monkeypatch):
    """What the result backend is told of calls that failed."""
    heard = []

    def mark_as_failure(task_id, error, request, store_result):
        heard.append((task_id, error, request, store_result))

    monkeypatch.setattr(handler._task.app.backend, "mark_as_failure", mark_as_failure)
    return heard


@pytest.mark.parametrize(
    "args, error",
    [((), TypeError), ((1, 2, 3), TypeError), (("",), InvalidCall), ((1, "x" * 70000), PayloadError)],
)
def test_whoever_waits_for_a_call_that_is_wrong_is_told(handler, store, told, args, error):
    message = Message(*args)
    message.headers |= {"id": "known", "ignore_result": False, "group": "g"}
    message.payload = (args, {}, {"chord": {"task": "body"}, "errbacks": [{"task": "mourn"}]})
    assert message.sent_to(handler) == ["reject"]
    ((task_id, failure, request, _),) = told
    assert (task_id, type(failure)) == ("known", error)
    assert (request.id, request.group, request.chord) == ("known", "g", {"task": "body"})
    assert request.errbacks == [{"task": "mourn"}]


@pytest.mark.parametrize("protocol", [1, 2])
def test_time_limits_that_no_run_can_keep_are_kept_for_its_request(handler, store, caplog, protocol):
    for _ in range(2):
        message = Message("1")
        message.headers |= {"id": "known", "timelimit": [9, 8.5]}
        if protocol == 1:
            message.payload = {"args": ["1"], "kwargs": {}, **message.headers}
            message.headers = {}
        assert message.sent_to(handler) == ["ack"]
    assert json.loads(store.jobs[0].record) == ["known", {"timelimit": [9, 8.5]}]
    warned = [text.partition(" has no effect")[0] for text in caplog.messages]
    assert warned == [f"{handler._task.name}: {limit}" for limit in ("time_limit=9", "soft_time_limit=8.5")]


@pytest.mark.parametrize(
    "limits", [[1], 5, {"a": 1}, {"a": 1, "b": 2}, True, ["a", "b"], ["60", None], [0, 0]]
)
def test_a_message_runs_without_wrong_time_limits(handler, store, limits):
    message = Message("1")
    message.headers |= {"id": "known", "tenant": "acme", "timelimit": limits}
    assert message.sent_to(handler) == ["ack"]
    assert json.loads(store.jobs[0].record) == ["known", {"tenant": "acme"}]


@pytest.mark.parametrize("shown, kept", [("('1', (2,))", {}), ("hidden", {"argsrepr": "hidden"})])
def test_arguments_that_the_sender_shows_in_another_way_are_kept(handler, store, shown, kept):
    """Their own form is none: tuples become lists on their way."""
    message = Message("1", [2])
    message.headers |= {"id": "known", "argsrepr": shown, "kwargsrepr": "{}", "tenant": "acme"}
    assert message.sent_to(handler) == ["ack"]
    assert json.loads(store.jobs[0].record) == ["known", {"tenant": "acme", **kept}]


SCORED = {"score": 9, "perform_in": 12.5, "priority": 3}


def test_a_call_by_name_says_score_time_and_priority(handler, store):
    """O3: in its header; a record keeps the user's headers alone."""
    message = Message("1")
    message.headers |= {"id": "known", "lowkiq": SCORED, "tenant": "acme"}
    message.properties = {"priority": 0}
    assert message.sent_to(handler) == ["ack"]
    (job,) = store.jobs
    assert (job.score, job.perform_in, job.priority) == (9.0, 12.5, 3)
    assert json.loads(job.record) == ["known", {"tenant": "acme"}]


@pytest.mark.parametrize(
    "said, word",
    [
        ({"score": "9"}, "score='9' is invalid: expected a number"),
        ({"score": float("nan")}, "score=nan is invalid"),
        ({"perform_in": -1}, "perform_in=-1 is invalid"),
        ({"perform_in": "soon"}, "perform_in='soon' is invalid"),
        ({"priority": 10}, "priority=10 is invalid"),
        ({"scores": 9}, "{'scores': 9}} is invalid: expected a mapping with the keys score, perform_in"),
        ([9], "[9]} is invalid: expected a mapping"),
        ({"perform_in": 5, "eta": True}, "is invalid: expected a mapping"),
    ],
)
def test_what_is_wrong_in_the_header_ends_the_call(handler, store, told, said, word):
    """O3: as FAILURE, with the reason."""
    message = Message("1")
    message.headers |= {"id": "known", "lowkiq": said}
    assert message.sent_to(handler) == ["reject"]
    ((task_id, failure, _, _),) = told
    assert (task_id, type(failure)) == ("known", InvalidCall)
    assert word in str(failure)
    assert store.pushed == []


def test_a_time_is_given_once(handler, store, told):
    message = Message("1", eta="2026-01-01T00:00:00Z")
    message.headers |= {"id": "known", "lowkiq": {"perform_in": 5}}
    assert message.sent_to(handler) == ["reject"]
    assert "expected no perform_in beside that of the call, 1767225600.0" in str(told[0][1])


@pytest.mark.parametrize("properties", [{"score": 9}, {"perform_in": 5}])
def test_options_of_send_task_that_have_no_effect_are_refused(handler, store, told, properties):
    """O3: a virtual transport keeps ``send_task(..., score=9)`` as a property of the message."""
    ((name, value),) = properties.items()
    message = Message("1")
    message.headers["id"] = "known"
    message.properties = properties
    assert message.sent_to(handler) == ["reject"]
    assert f"{name}={value} is invalid: expected no {name}= in a call of" in str(told[0][1])
    assert f"headers={{'lowkiq': {{'{name}': ...}}}}" in str(told[0][1])


class TestTimeOfSending:
    """O3: ``lowkiq_message_score``."""

    def test_it_is_the_score_where_the_app_says_so(self, make_handler, store):
        for setting, said, score, sent in [
            ("arrival", {"sent": 7.5}, None, None),
            ("sent", {"sent": 7.5}, None, 7.5),
            ("sent", {"sent": 7.5, "score": 9}, 9, None),
            ("sent", {}, None, None),
        ]:
            message = Message("1")
            message.headers["lowkiq"] = said
            assert message.sent_to(make_handler(lowkiq_message_score=setting)) == ["ack"]
            assert (store.jobs[-1].score, store.jobs[-1].sent) == (score, sent)

    def test_a_stale_call_is_not_told_by_it(self, make_handler, store):
        handler = make_handler(lowkiq_message_score="sent", drop_stale=True)
        assert Message("1").sent_to(handler) == ["reject"]
        message = Message("1")
        message.headers["lowkiq"] = {"score": 1}
        assert message.sent_to(handler) == ["ack"]
        assert Message("1").sent_to(make_handler(drop_stale=True)) == ["ack"]


def test_the_call_of_an_unreadable_message_fails(handler, told):
    message = Message("1")
    message.headers["id"] = "known"
    message.payload = "no call"
    assert message.sent_to(handler) == ["reject"]
    assert [task_id for task_id, *_ in told] == ["known"]


def test_a_result_backend_that_is_away_holds_up_no_message(handler, monkeypatch, caplog):
    def away(*args, **options):
        raise OSError("away")

    monkeypatch.setattr(handler._task.app.backend, "mark_as_failure", away)
    message = Message()
    message.headers["id"] = "known"
    assert message.sent_to(handler) == ["reject"]
    assert "could not record the failure of call known of" in caplog.text


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), QueueFull("full")])
def test_a_store_that_takes_nothing_is_waited_for_and_logged_twice(handler, store, timer, caplog, error):
    caplog.set_level(logging.INFO, "celery_lowkiq")
    store.error = error
    messages = [Message(str(number)) for number in range(3)]
    assert [message.sent_to(handler) for message in messages] == [[], [], []]
    timer.fire()
    assert len(timer.later) == 1
    store.error = None
    timer.fire()
    assert [message.answers for message in messages] == [["ack"]] * 3
    assert [job_id for job_id, _, _ in store.pushed] == ["0", "1", "2"]
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


def test_no_message_overtakes_one_that_waits_for_the_store(handler, store, timer):
    store.error = StoreUnavailable("away")
    first = Message("1")
    assert first.sent_to(handler) == []
    store.error = None
    second = Message("1", "later")
    assert second.sent_to(handler) == []
    timer.fire()
    assert (first.answers, second.answers) == (["ack"], ["ack"])
    assert [payload for _, payload, _ in store.pushed] == [b'""', b'"later"']
    assert Message("2").sent_to(handler) == ["ack"]


def test_an_error_of_the_broker_holds_up_no_other_message(handler, store):
    first, second = Message("1"), Message("2")

    def fails(*_):
        raise OSError("the channel is closed")

    with pytest.raises(OSError, match="the channel is closed"):
        handler(first, None, fails, fails)
    assert second.sent_to(handler) == ["ack"]


def test_both_protocols_are_read():
    two = read_call((["1"], {"payload": 2}, {"chord": None}), {"eta": "soon"})
    assert two == MessagedCall(["1"], {"payload": 2}, {"chord": None}, {"eta": "soon"})
    body = {"args": ["1"], "kwargs": {}, "eta": None, "task": "x", "id": "known", "callbacks": [1]}
    one = read_call(body, {"lang": "js"})
    assert (one.args, one.kwargs, one.embed["callbacks"]) == (["1"], {}, [1])
    assert (one.headers["id"], one.headers["eta"], one.headers["lang"]) == ("known", None, "js")


#: As other versions of Celery sent them: one call with eta, expiry and link, and one with a header.
MESSAGES = json.loads((Path(__file__).parent / "messages.json").read_text())


@pytest.mark.parametrize("sender", MESSAGES)
def test_messages_of_other_versions_are_read(handler, store, sender):
    for sent in MESSAGES[sender]:
        message = Message()
        message.headers, message.payload = sent["headers"], sent["body"]
        message.properties = sent["properties"]
        assert message.sent_to(handler) == ["ack"]
    assert store.pushed == [("42", b'{"v":1}', 1893456000.0), ("7", b'"x"', None)]
    one, two = (CallRecord(*json.loads(record)) for record in store.records)
    assert (one.id, one.headers["expires"]) == ("one", "2030-01-02T00:00:00+00:00")
    (link,) = one.embed["callbacks"]
    assert (link["task"], link["args"]) == ("tell", [1])
    assert (two.id, two.headers) == ("two", {"tenant": "acme"})


def test_what_was_asked_of_a_call_comes_with_it(handler, store):
    message = Message("1")
    message.headers |= {"id": "known", "expires": "2030-01-01T00:00:00+00:00", "shadow": None}
    message.payload = (("1",), {}, {"callbacks": [{"task": "next"}], "chord": None})
    assert message.sent_to(handler) == ["ack"]
    assert store.records == [
        b'["known",{"expires":"2030-01-01T00:00:00+00:00"},{"callbacks":[{"task":"next"}]}]'
    ]


def test_a_message_that_cannot_be_read_is_rejected_and_not_sent_round_for_ever():
    @ordered_task(app=Celery("unit", broker="redis://localhost:1/0", set_as_current=False), name="record")
    def record(payloads_by_id):
        pass

    class Forbidden:
        headers: dict = {}

        @property
        def payload(self):
            raise ContentDisallowed("pickle")

        def reject_log_error(self, *args, **kwargs):
            raise AssertionError("sent round")

    rejected = []
    arrivals = BrokerMessageHandler(record, SimpleNamespace(connection_errors=(), timer=None))
    arrivals(Forbidden(), None, None, lambda *args: rejected.append(1))
    assert rejected == [1]
