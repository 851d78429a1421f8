"""``lowkiq_links``: the tasks that a stored call may link, in each form that a call record carries."""

from __future__ import annotations

import pytest
from celery import Signature, chain, chord, group

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.gate import Unverified
from celery_lowkiq.integration.records import CallRecord
from celery_lowkiq.rules.links import refused_task
from celery_lowkiq.rules.models import StoredRecord
from celery_lowkiq.store.keys import shard_keys
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
    members = [member for key in keys for member in client.servers.redis.zrange(key, 0, -1)]
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


def test_headers_carry_no_link_past_the_setting(app):
    """They become fields of a request, too."""
    links = {"callbacks": [{"task": "refund", "args": (), "kwargs": {}, "options": {}}]}
    data = CallRecord("id", {**links, "tenant": "acme"}).dump(context_of(app).record_codec)
    assert CallRecord.verified(StoredRecord(b"", 0, data), gate(app, ())).headers == {"tenant": "acme"}


def signed(task, /, *args, options=None, kind=None, **kwargs):
    """A signature as it is stored."""
    fields = {"task": task, "args": args, "kwargs": kwargs, "options": options or {}, "subtask_type": kind}
    return {**fields, "immutable": True}


OK = signed("ok")
#: Links for which Celery calls a task that a text names, or that the result of the call names.
TEXTS = {
    "map": signed("celery.map", "evil", ["x"]),
    "map by name": signed("celery.map", task="evil", it=["x"]),
    "map of a result": signed("celery.map", ["x"]),
    "starmap": signed("celery.starmap", "evil", [["x"]]),
    "chunks": signed("celery.chunks", "evil", [["x"]], 1),
    "map by its type": signed("ok", kind="xmap", task="evil", it=["x"]),
    "starmap by its type": signed("ok", kind="xstarmap", task="evil", it=["x"]),
    "chunks by its type": signed("ok", kind="chunks", task="evil", it=["x"], n=1),
    "a type alone": {"subtask_type": "xmap", "kwargs": {"task": "evil", "it": ["x"]}, "options": {}},
    "a type of the app's": signed("ok", kind="mine", task="evil"),
    "no type": signed("ok", kind=["chord"]),
    "chord": signed("celery.chord", kind="chord", header=["evil"], body=OK),
    "chord by its type": signed("ok", kind="chord", header=["evil"], body=OK),
    "chord by its type alone": {"subtask_type": "chord", "kwargs": {"header": ["evil"], "body": OK}},
    "body": signed("celery.chord", kind="chord", header=[OK], body="evil"),
    "group": signed("celery.group", kind="group", tasks=[OK, "evil"]),
    "group of groups": signed("celery.group", kind="group", tasks=[[OK, ["evil"]]]),
    "group of keys": signed("celery.group", kind="group", tasks={"evil": 1}),
    "group of one text": signed("celery.group", kind="group", tasks="evil"),
    "group in a chord": signed(
        "celery.chord", kind="chord", header=signed("celery.group", kind="group", tasks=["evil"]), body=OK
    ),
    "chain": signed("celery.chain", kind="chain", tasks=[OK, "evil"]),
    "task of a group": signed("celery.group", ["evil"], [], "id", []),
    "task of a chord": signed("celery.chord", ["evil"], OK),
    "task that ends a chord": signed("celery.chord_unlock", "id", OK),
    "errback": signed("ok", options={"link_error": ["evil"]}),
    "errback alone": signed("ok", options={"link_error": "evil"}),
    "errback of a chord": {**signed("ok", kind="chord", header=[OK], body=OK), "link_error": ["evil"]},
    "link": signed("ok", options={"link": ["evil"]}),
    "in arguments": signed("ok", signed("celery.map", "evil", ["x"])),
}


@pytest.mark.parametrize("form", TEXTS)
def test_a_text_is_no_way_around_the_setting(form):
    assert refused_task({"callbacks": [TEXTS[form]]}, ["ok", "evil"]) is not None
    assert refused_task({"chord": TEXTS[form]}, ["ok"]) is not None
    assert refused_task({"callbacks": [signed("ok", options={"link": [TEXTS[form]]})]}, ["ok"]) is not None


@pytest.mark.parametrize("field", ["callbacks", "errbacks", "chain", "chord"])
def test_a_text_is_no_link(field):
    for value in ("evil", ["evil"], [["evil"]], [OK, "evil"]):
        assert refused_task({field: value}, ["ok"]) == "evil"


def test_other_texts_are_arguments():
    canvas = signed("celery.chain", kind="chain", tasks=[signed("ok", "text", body="text", link="text")])
    assert refused_task({"callbacks": [canvas], "errbacks": None, "chain": []}, ["ok"]) is None
    assert refused_task({"callbacks": [signed("celery.accumulate", "text")]}, []) is None


def test_a_map_is_allowed_by_its_name(app):
    pay, refund = app.tasks["pay"], app.tasks["refund"]
    called(pay, link=Signature("celery.map", (), {"task": refund.si("1", "text"), "it": [1]}))
    (stored,) = records(app)
    assert CallRecord.verified(stored, gate(app, ("celery.map", "refund")))
    with pytest.raises(Unverified, match=r"task 'celery\.map'"):
        CallRecord.verified(stored, gate(app, ("refund",)))


def test_a_deep_or_odd_link_is_read_whole():
    deep = {"task": "refund"}
    for _ in range(100_000):
        deep = [deep]
    assert refused_task({"callbacks": deep}, ["receipt"]) == "refund"
    assert refused_task({"chord": {"task": 7, "callbacks": None, "a": {"b": ({"task": "x"},)}}}, []) == "x"
    assert refused_task({"chord": signed("celery.chain", kind="chain", tasks=[])}, []) is None
    assert refused_task({"chord": signed("celery.backend_cleanup")}, []) == "celery.backend_cleanup"
