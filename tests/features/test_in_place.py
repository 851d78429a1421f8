"""``by=``: the function and its callers stay as they are."""

from __future__ import annotations

import json
import time
from uuid import uuid4

import pytest
from celery import Task, chain, chord
from celery.exceptions import TaskRevokedError
from celery.states import REVOKED

from tests.features.proj import Order
from tests.waiting import eventually

WAIT = 30


@pytest.fixture
def save(features):
    return features.app.tasks["save"]


@pytest.fixture
def newest(features):
    return features.app.tasks["newest"]


def runs(features, job_id):
    return [run["what"] for run in features.noted("save", id=job_id)]


def waiting_behind(features, task, job_id, gate):
    """A call that runs until the gate opens."""
    result = task.delay(job_id, {"gate": gate})
    features.wait_for("held", gate=gate)
    return result


def test_each_call_runs_alone_in_order_with_its_own_id(features, save, job_id, gate):
    results = [waiting_behind(features, save, job_id, gate)]
    results += [save.delay(job_id, "paid"), save.delay(order_id=job_id, what="hold", label="x")]
    results += [save.apply_async((job_id,), {"what": "paid"}), save.delay(job_id, "paid")]
    features.open(gate)
    assert [result.get(WAIT)[1:] for result in results[1:]] == [
        ["paid", ""],
        ["hold", "x"],
        ["paid", ""],
        ["paid", ""],
    ]
    noted = features.noted("save", id=job_id)
    assert [run["task_id"] for run in noted] == [result.id for result in results]
    assert [run["what"] for run in noted[1:]] == ["paid", "hold", "paid", "paid"]
    assert (noted[2]["args"], noted[2]["kwargs"]) == (
        [],
        {"order_id": job_id, "what": "hold", "label": "x"},
    )


ORDER = {"name": "n", "age": 7, "city": {"zip": 1, "area": 2}}


@pytest.mark.parametrize("form", ["look", "look in place"])
@pytest.mark.parametrize("linked", [False, True])
def test_arguments_keep_the_order_of_their_keys(features, new_id, form, linked):
    """As those of a plain task, also where they wait in the record of another call."""
    look = features.app.tasks[form]
    if linked:
        called = chain(features.app.tasks["save"].si(new_id()), look.si(new_id(), ORDER, z=1, a=2))()
    else:
        called = look.delay(new_id(), ORDER, z=1, a=2)
    assert called.get(WAIT) == json.dumps([ORDER, {"z": 1, "a": 2}])


@pytest.mark.parametrize("way", ["first", "behind a job that is due"])
@pytest.mark.parametrize("form", ["save", "work"])
def test_a_countdown_does_not_count_on_the_clock_of_the_caller(
    features, monkeypatch, job_id, gate, form, way
):
    """That of Redis decides, also for a call that meets a job which is due."""
    task, clock = features.app.tasks[form], time.time
    if way != "first":
        waiting_behind(features, task, job_id, gate)
        task.delay(job_id, "due")
    with monkeypatch.context() as caller:
        caller.setattr(time, "time", lambda: clock() + 3600)
        late = task.apply_async((job_id, "late"), countdown=0.1)
    features.open(gate)
    assert late.get(WAIT)[:2] in ([job_id, "late"], [job_id, ["late"]], [job_id, ["due", "late"]])


def test_a_call_that_fails_stops_those_behind_it(features, save, job_id, gate):
    before = waiting_behind(features, save, job_id, gate)
    failing = save.delay(job_id, {"fail": "away"})
    behind = save.delay(job_id, {"retry": 1})
    last = save.delay(job_id, "last")
    features.open(gate)
    assert last.get(WAIT)[1] == "last"
    assert (before.state, failing.state, behind.state) == ("SUCCESS", "FAILURE", "SUCCESS")
    noted = features.noted("save", id=job_id)
    ids = [before.id, *[failing.id] * 3, *[behind.id] * 2, last.id]
    assert [run["task_id"] for run in noted] == ids
    assert [run["retries"] for run in noted] == [0, 0, 1, 2, 0, 1, 0]


def test_a_call_does_not_run_before_its_eta(features, save, job_id, gate):
    waiting_behind(features, save, job_id, gate)
    save.delay(job_id, "due")
    late = save.apply_async((job_id, "late"), countdown=1.5)
    behind = save.delay(job_id, "behind")
    features.open(gate)
    features.wait_for("save", 2, id=job_id)
    assert behind.get(WAIT)[1] == "behind"
    assert late.state == "SUCCESS"
    assert runs(features, job_id)[1:] == ["due", "late", "behind"]


def test_only_the_newest_call_runs(features, newest, job_id, gate):
    first = waiting_behind(features, newest, job_id, gate)
    older = [newest.delay(job_id, n) for n in range(3)]
    last = newest.delay(job_id, "last")
    features.open(gate)
    assert last.get(WAIT)[1] == "last"
    assert first.get(WAIT)
    for result in older:
        with pytest.raises(TaskRevokedError, match="superseded by a newer call"):
            result.get(WAIT)
        assert result.state == REVOKED
    assert runs(features, job_id)[1:] == ["last"]


def test_the_newest_call_does_not_wait_for_the_retry_of_a_failed_one(features, newest, job_id):
    failed = newest.delay(job_id, {"fail": "away"})
    features.wait_for("save", id=job_id)
    eventually(lambda: failed.state == "RETRY", WAIT)
    assert newest.delay(job_id, "newer").get(WAIT)[1] == "newer"
    with pytest.raises(TaskRevokedError):
        failed.get(WAIT)


def test_with_merge_equal_calls_run_once_and_all_get_the_result(features, job_id, gate):
    equal = features.app.tasks["equal"]
    waiting_behind(features, equal, job_id, gate)
    results = [equal.delay(job_id, what) for what in ("a", "b", "a")]
    features.open(gate)
    assert [result.get(WAIT)[1] for result in results] == ["a", "b", "a"]
    assert runs(features, job_id)[1:] == ["b", "a"]


def test_a_canvas_stays_as_it_is(features, save, job_id):
    add = features.app.tasks["add"]
    number = uuid4().int % 10**9
    assert chain(add.s(number, 1), save.s("chained"))().get(WAIT) == [number + 1, "chained", ""]
    joined = chord([save.si(job_id, 1), save.si(job_id, 2)], features.app.tasks["give"].s())()
    assert joined.get(WAIT) == [[job_id, 1, ""], [job_id, 2, ""]]


def test_a_call_by_name_and_one_in_a_group(features, save, job_id):
    result = features.app.send_task("save", (job_id,), {"what": "by name"})
    assert result.get(WAIT) == [job_id, "by name", ""]
    assert features.noted("save", id=job_id)[0]["task_id"] == result.id


def test_models_of_pydantic(features):
    path = features.app.tasks["path"]
    order = {"id": 7, "lines": ["a"]}
    assert path.delay(order).get(WAIT) == {"id": 7, "lines": ["a", "saved"]}
    if hasattr(Task, "_dump_pydantic_arguments"):  # since Celery 5.6
        assert path.delay(order=Order(id=8)).get(WAIT) == {"id": 8, "lines": ["saved"]}


@pytest.mark.parametrize("name", ["flask", "flask-in-place", "flask-in-a-process"])
def test_the_task_class_of_flasks_documentation_runs_the_function_once(features, job_id, name):
    """Its ``__call__`` calls ``self.run`` in a context; the first one is that of a plain task."""
    task = features.app.tasks[name]
    assert task.delay(job_id).get(WAIT) == [job_id, "the app"]
    with pytest.raises(ValueError, match=r"^no$"):
        task.delay(f"{job_id}-2", fail="no").get(WAIT)
    assert [len(features.noted("flask", id=each)) for each in (job_id, f"{job_id}-2")] == [1, 1]
