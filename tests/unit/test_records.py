"""Tests of ``integration/records.py``."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.worker import state

from celery_lowkiq import InvalidCall, ordered_task
from celery_lowkiq.integration.broker_messages import BrokerMessageHandler
from celery_lowkiq.integration.records import KNOWN
from celery_lowkiq.rules.links import FIELDS
from celery_lowkiq.rules.models import Disposition
from tests.marks import first_often
from tests.unit.lanes import Lane, job

#: Also headers that the job has taken over, fields that every request has, and methods of a request.
NAMES = sorted(
    KNOWN.keys() - {"expires"}
    | {"headers", "ignore_result", "priority", "is_eager", "called_directly", "utc", "lang", "origin"}
    | {
        "eta",
        "loglevel",
        "logfile",
        "time_limit",
        "soft_time_limit",
        "lowkiq_batch",
        "compression",
        "tracker",
    }
)
WRONG = (5, "x", [1], {"a": 1}, True)
#: The test command gives each header one of the values, in turn; ``nox -s full`` gives each of them all.
TURNS = first_often(range(len(WRONG)))
ran = []


def wrong_headers(turn):
    return {name: WRONG[(n + turn) % len(WRONG)] for n, name in enumerate(NAMES)}


@pytest.fixture
def lowkiq_app(lowkiq_server):
    ran.clear()
    return Celery("headers", broker=lowkiq_server.url, backend="cache+memory://", set_as_current=False)


def in_place(key, name):
    ran.append(name)


def merged(payloads_by_id):
    ran.extend(name for names in payloads_by_id.values() for name in names)


def returns(self, payloads_by_id):
    return 1


@pytest.fixture(params=[in_place, merged])
def task(request, lowkiq_app):
    options = {"by": 0} if request.param is in_place else {}
    return ordered_task(app=lowkiq_app, shared=False, **options)(request.param)


@pytest.fixture
def stamps(monkeypatch):
    """Each call with stamps is compared with a revoked one."""
    monkeypatch.setitem(state.revoked_stamps, "s", ["t"])


@pytest.fixture
def send(lowkiq_app, task):
    """Sends a call with headers of its own by name."""
    lowkiq_app.finalize()
    handler = BrokerMessageHandler(task, SimpleNamespace(connection_errors=(), timer=None))

    def send(*args, **own):
        headers, properties, body, _ = lowkiq_app.amqp.as_task_v2("-".join(args), task.name, args)
        message = SimpleNamespace(headers={**headers, **own}, properties=properties, payload=body)
        handler(message, None, lambda *_: None, lambda *_: None)
        return lowkiq_app.AsyncResult(headers["id"])

    return send


@pytest.mark.parametrize("turn", TURNS)
def test_a_call_with_a_wrong_header_runs_and_so_do_its_neighbours(lowkiq, task, stamps, turn):
    """Alone, and in a merged job."""
    headers = wrong_headers(turn).items()
    calls = [(key, f"{name} {key}", {name: value}) for name, value in headers for key in (name, "merged")]
    results = [task.apply_async(args, headers=headers) for *args, headers in calls]
    results.append(task.delay("merged", "neighbour"))
    lowkiq.drain()
    assert sorted(ran) == sorted([*(name for _, name, _ in calls), "neighbour"])
    # Of any value but a false one, the result is ignored.
    assert Counter(result.state for result in results) == {"SUCCESS": len(calls) - 1, "PENDING": 2}


@pytest.mark.parametrize("turn", TURNS)
def test_so_does_a_call_by_name(lowkiq, send, stamps, turn):
    headers = wrong_headers(turn)
    del headers["eta"]
    calls = [
        (key, f"{name} {key}", {name: value}) for name, value in headers.items() for key in (name, "merged")
    ]
    results = [send(*args, **headers) for *args, headers in calls]
    lowkiq.drain()
    assert sorted(ran) == sorted(name for _, name, _ in calls)
    assert Counter(result.state for result in results) == {"SUCCESS": len(calls) - 2, "PENDING": 2}


@pytest.mark.parametrize("value", ["x", [1], {"a": 1}, True], ids=str)
def test_a_call_by_name_for_no_time_is_refused(lowkiq, send, value):
    result = send("1", "x", eta=value)
    lowkiq.drain()
    assert (ran, result.state, type(result.result)) == ([], "FAILURE", InvalidCall)


@pytest.mark.parametrize("value", WRONG, ids=str)
def test_an_expiry_that_is_no_time_is_refused(lowkiq, task, send, value):
    """As by a worker that gets the message of a plain task: without it, the call would run at any time."""
    with pytest.raises(
        InvalidCall, match=r"^expires=.* is invalid: expected a time of ISO 8601 in the headers"
    ):
        task.apply_async(("1", "x"), headers={"expires": value})
    result = send("2", "y", expires=value)
    lowkiq.drain()
    assert (ran, result.state, type(result.result)) == ([], "FAILURE", InvalidCall)


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_a_link_that_is_no_signature_is_refused(lowkiq, task, name):
    """Celery could never send it: the call would run again for ever to send it."""
    for value in (5, "x", [1], ["x"], [[{"task": "x"}]], True):
        if name == "errbacks" and value in ("x", ["x"]):
            # In Celery, an errback may be named.
            continue
        option = {"callbacks": "link", "errbacks": "link_error"}.get(name, name)
        with pytest.raises(InvalidCall, match=f"^{name}=.* is invalid: expected signatures"):
            task.apply_async(("1", "x"), **{option: value})
    lowkiq.drain()
    assert ran == []


class TestStoredByAnOlderRelease:
    """A record may have any header; its lane goes on."""

    @pytest.mark.parametrize("turn", TURNS)
    def test_wrong_headers(self, stamps, turn):
        lane = Lane(returns)
        for n, (name, value) in enumerate(wrong_headers(turn).items()):
            calls = [(0, f"{n} single", {name: value})]
            (settlement,) = lane.run(job(b"7", calls=calls))
            assert settlement.disposition is Disposition.DONE, name
            lane.run(job(b"7", b"8", calls=[(0, f"{n} first", {name: value}), (1, f"{n} next")]))
            states = {lane.state(f"{n} {call}") for call in ("single", "first", "next")}
            assert states == ({"PENDING", "SUCCESS"} if name == "ignore_result" else {"SUCCESS"}), name

    @pytest.mark.parametrize("name", sorted(FIELDS))
    def test_wrong_links(self, name):
        lane = Lane(returns)
        (settlement,) = lane.run(job(b"7", calls=[(0, "a", {}, {name: 5})]))
        assert settlement.disposition is Disposition.DONE
        assert lane.state("a") == "FAILURE"
        assert f"{name}=5 is invalid: expected signatures" in str(lane.result("a"))

    def test_a_request_that_cannot_be_built(self):
        """Known headers have their types. Another cause: what the request of a later Celery needs."""
        lane = Lane(returns)
        del lane.runner._consumer.hostname
        (settlement,) = lane.run(job(b"7", b"8", calls=[(0, "a"), (1, "b")]))
        assert settlement.disposition is Disposition.RETRY
        assert settlement.ended == ((b"key 0", b"key 0"), (b"key 1", b"key 1"))
        assert [lane.state(call) for call in "ab"] == ["FAILURE", "FAILURE"]
        assert "no attribute 'hostname'" in str(lane.result("a"))
