"""``when_dead="hold"``, through a real worker: what holds an id, and each way to end that."""

from __future__ import annotations

import time

import pytest

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.store.keys import shard_keys
from tests.waiting import eventually

WAIT = 30
DEATHS = {"failure": {"fail": "boom"}, "Reject": {"reject": "no"}}


@pytest.fixture
def task(features):
    return features.app.tasks["ledger"]


@pytest.fixture
def queue(task):
    return task.ordered_queue


def payloads(features, job_id):
    return [run["payloads"] for run in features.noted("run", id=job_id)]


def is_dead(queue, job_id):
    return eventually(lambda: queue.job(job_id).dead, WAIT)


@pytest.fixture
def held(task, queue, job_id):
    """An id with a dead payload, and one behind it."""
    task.delay(job_id, {"fail": "boom", "n": 1})
    assert is_dead(queue, job_id).held_since
    return task.delay(job_id, "newer")


def others_run(features, task, job_id):
    """A later call of another id has run: whatever may be claimed of this one was claimed before."""
    task.delay(f"{job_id}-other", "x").get(WAIT)


@pytest.mark.parametrize("death", DEATHS)
def test_a_death_holds_its_id(features, task, queue, job_id, death):
    dead = task.delay(job_id, DEATHS[death])
    assert is_dead(queue, job_id)
    behind = task.delay(job_id, "newer")
    others_run(features, task, job_id)
    assert (len(payloads(features, job_id)), behind.state) == (1, "PENDING")
    assert queue.why(job_id).kind == "behind_dead"
    assert dead.state in ("FAILURE", "REJECTED")
    queue.go_on([job_id])
    assert behind.get(WAIT) == [job_id, ["newer"]]


@pytest.mark.parametrize("what", [{"business": "not eligible"}, {"ignore": True}])
def test_what_the_function_is_done_with_holds_nothing(features, task, queue, job_id, what):
    task.delay(job_id, what)
    features.wait_for("run", id=job_id)
    assert task.delay(job_id, "newer").get(WAIT) == [job_id, ["newer"]]


def test_an_expired_call_holds_nothing(features, task, queue, job_id):
    with features.holding(task, job_id):
        expired = task.apply_async((job_id, "expired"), expires=0.01)
        over = time.time() + 0.1
        newer = task.apply_async((job_id, "newer"))
        eventually(lambda: time.time() > over)
    assert newer.get(WAIT) == [job_id, ["newer"]]
    assert expired.state == "REVOKED"


def test_a_revoked_call_holds_nothing(features, task, queue, job_id):
    with features.holding(task, job_id):
        revoked = task.apply_async((job_id, "revoked"))
        newer = task.apply_async((job_id, "newer"))
        revoked.revoke()
        features.app.control.ping(timeout=5, limit=1)
    newer.get(WAIT)
    assert job_id not in {one.id for one in queue.held_ids(1000).items}


def test_undecodable_bytes_hold_what_is_behind_them_and_not_what_is_before(features, task, queue, job_id):
    store = context_of(features.app).store
    with features.holding(task, job_id):
        before = task.apply_async((job_id, "before"), score=1)
        behind = task.apply_async((job_id, "behind"), score=9)
        shard = task.queue_spec.shard_of(job_id)
        jobs = shard_keys(shard)["jobs"]
        (record,) = store.client.commands([("HGET", jobs, job_id)])
        first, _, rest = record.partition(b'"before"')
        store.client.commands([("HSET", jobs, job_id, first + b'"before"' + b"5 2 \xff\xfe" + rest)])
    assert before.get(WAIT) == [job_id, ["before"]]
    dead = is_dead(queue, job_id)
    assert [payload.value for payload in dead.payloads] == [b"\xff\xfe"]
    others_run(features, task, job_id)
    assert behind.state == "PENDING"
    assert queue.delete_dead([job_id]) == 1
    assert behind.get(WAIT) == [job_id, ["behind"]]


def test_a_requeue_runs_the_dead_payload_and_what_is_behind_it_in_one_batch(features, queue, held, job_id):
    assert queue.edit_dead_payload(job_id, {"fail": "boom", "n": 1}, "mended")
    assert queue.requeue([job_id]) == 1
    assert held.get(WAIT) == [job_id, ["mended", "newer"]]


def test_a_requeued_payload_that_dies_again_holds_again(features, task, queue, held, job_id):
    task.delay(job_id, {"fail": "boom"})
    queue.requeue([job_id])
    features.wait_for("run", 2, id=job_id)
    assert eventually(lambda: queue.why(job_id).kind == "behind_dead", WAIT)
    assert queue.job(job_id).waiting.payload_count == 2


def test_an_id_goes_on_without_its_dead_payload(queue, held, job_id):
    assert queue.go_on([job_id]) == 1
    assert held.get(WAIT) == [job_id, ["newer"]]
    assert queue.job(job_id).dead is not None


def test_an_id_goes_on_when_its_dead_payload_is_deleted(queue, held, job_id):
    assert queue.delete_dead_payload(job_id, {"fail": "boom", "n": 1})
    assert held.get(WAIT) == [job_id, ["newer"]]


def test_nothing_is_left_when_all_is_deleted(features, queue, held, job_id):
    assert (queue.delete([job_id]), queue.delete_dead([job_id])) == (1, 1)
    assert eventually(lambda: held.state == "REVOKED", WAIT)
    assert queue.why(job_id).kind == "nowhere"


def test_an_operator_holds_an_id_of_a_task_that_goes_on(features, job_id):
    task = features.app.tasks["quiet"]
    queue = task.ordered_queue
    task.delay(job_id, {"fail": "boom"})
    assert is_dead(queue, job_id)
    assert queue.hold([job_id]) == 1
    task.delay(job_id, "newer")
    others_run(features, features.app.tasks["ledger"], job_id)
    assert queue.why(job_id).kind == "behind_dead"
    assert len(payloads(features, job_id)) == 1
    assert queue.go_on([job_id]) == 1
    features.wait_for("run", 2, id=job_id)
