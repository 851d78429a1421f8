"""``lowkiq_links``: the tasks that a stored call may link, in each form that a call record carries."""

from __future__ import annotations

import pytest
from celery import Signature, chain, chord, group

from celery_lowkiq.integration.app.context import context_of
from celery_lowkiq.integration.app.signing import Unverified
from celery_lowkiq.integration.records.call_record import CallRecord
from celery_lowkiq.rules.links import refused_task, tasks_of
from celery_lowkiq.rules.models import StoredRecord
from celery_lowkiq.store.scripts.keys import shard_keys
from tests.worker.signing_proj import make_app

#: Calls of ``pay`` that link ``refund`` directly, or behind what is allowed.
FORMS = {
    "link": lambda pay, one, other: called(pay, link=[one, other]),
    "link_error": lambda pay, one, other: called(pay, link_error=other),
    "link of a link": lambda pay, one, other: called(pay, link=linking(one, other)),
    "errback of a link": lambda pay, one, other: called(pay, link=failing(one, other)),
    "chain": lambda pay, one, other: chain(pay.si("1", 1), one, other).apply_async(),
    "chain as a link": lambda pay, one, other: called(pay, link=chain(one, other)),
    "group as a link": lambda pay, one, other: called(pay, link=group(one, other)),
    "chord": lambda pay, one, other: chord([pay.si("1", 1), one])(other),
    "chord as a link": lambda pay, one, other: called(pay, link=chord([one], other)),
    "group in a chain": lambda pay, one, other: chain(pay.si("1", 1), group(one, other)).apply_async(),
    "map": lambda pay, one, other: called(pay, link=Signature("celery.map", (), {"task": other, "it": [1]})),
}


def called(task, **links):
    task.apply_async(("1", 1), **links)


def linking(one, other):
    one.link(other)
    return one


def failing(one, other):
    one.link_error(other)
    return one


@pytest.fixture
def app(empty_redis):
    made = make_app(empty_redis.url, lowkiq_signing="off", lowkiq_signing_keys=None)
    made.backend.remove_pending_result = lambda result: None
    yield made
    context_of(made).store.close()
    made.close()


def records(app):
    """What is stored of the calls of ``pay``, as a worker reads it from their claim."""
    task, client = app.tasks["pay"], context_of(app).store.client
    keys = [shard_keys(shard)["calls"] for shard in task.queue_spec.shard_refs()]
    members = [member for key in keys for member in client.redis.zrange(key, 0, -1)]
    # Id, digest and number of the call stand before its record.
    start = len(b"1\0") + 10 + 12
    return [StoredRecord(member[:start], 0, member[start:]) for member in members]


@pytest.mark.parametrize("form", FORMS)
def test_a_worker_refuses_the_record_of_a_call_with_another_link(app, form):
    pay, receipt, refund = (app.tasks[name] for name in ("pay", "receipt", "refund"))
    FORMS[form](pay, receipt.si("1", "text"), refund.si("1", "text"))
    (stored,) = records(app)
    for allowed in (None, ("*",), ("refund", "receipt"), ("re*",)):
        assert CallRecord.verified(stored, gate(app, allowed))
    for allowed in ((), ("receipt",), ("pay", "receipt", "REFUND", "efund", "refund ")):
        with pytest.raises(Unverified, match=r"not allow its link to task 're(fund|ceipt)'"):
            CallRecord.verified(stored, gate(app, allowed))


def gate(app, allowed):
    found = context_of(app).gate("pay")
    found.links = allowed
    return found


def test_headers_carry_no_link_past_the_setting():
    """They become fields of a request, too."""
    record = CallRecord("id", {"callbacks": [{"task": "refund", "args": (), "kwargs": {}, "options": {}}]})
    assert list(tasks_of([record.embed, record.headers["callbacks"]])) == ["refund"]


def test_a_deep_or_odd_link_is_read_whole():
    deep = {"task": "refund"}
    for _ in range(100_000):
        deep = [deep]
    assert refused_task(deep, ["receipt"]) == "refund"
    assert refused_task({"task": 7, "callbacks": None, "a": {"b": ({"task": "x"},)}}, []) == "x"
    assert refused_task({"task": "celery.chain", "kwargs": {"tasks": []}}, []) is None
    assert refused_task({"task": "celery.backend_cleanup"}, []) == "celery.backend_cleanup"
