"""What an operator takes out of a queue does not leave its callers waiting."""

from __future__ import annotations

import pytest
from celery import chord
from celery.exceptions import ChordError, TaskRevokedError

from tests.waiting import eventually

WAIT = 30
LATER = 3600


def test_the_calls_of_a_deleted_job_are_revoked(features, work, new_id):
    one, two = new_id(), new_id()
    gone = [work.apply_async((one, n), countdown=LATER) for n in (1, 1, 2)]
    stays = work.apply_async((two, "x"), countdown=LATER)
    assert work.ordered_queue.delete([one]) == 1
    for result in gone:
        with pytest.raises(TaskRevokedError):
            result.get(WAIT)
    assert stays.state == "PENDING"
    work.ordered_queue.delete([two])


def test_the_calls_of_many_payloads_too(features, work, job_id):
    jobs = [{"id": job_id, "payload": f"payload {n:090}", "perform_in": 4e9} for n in range(300)]
    results = work.perform_async(jobs, results=True)
    assert work.ordered_queue.delete([job_id]) == 1
    assert {result.state for result in results} == {"REVOKED"}


def test_what_is_processed_meanwhile_keeps_its_calls(features, work, job_id, gate):
    runs = work.delay(job_id, {"gate": gate, "return": "done"})
    features.wait_for("held", gate=gate)
    same = work.delay(job_id, {"gate": gate, "return": "done"})
    other = work.delay(job_id, "other")
    work.ordered_queue.delete([job_id])
    for result in (same, other):
        with pytest.raises(TaskRevokedError):
            result.get(WAIT)
    features.open(gate)
    assert runs.get(WAIT) == "done"


def test_the_chord_of_a_deleted_job_fails(features, work, new_id):
    one, two = new_id(), new_id()
    total = features.app.tasks["total"]
    header = [work.s(one, {"return": 1}), work.s(two, {"return": 1}).set(countdown=LATER)]
    result = chord(header)(total.s())
    work.ordered_queue.delete([two])
    assert isinstance(result.get(WAIT, propagate=False), ChordError)


def test_the_calls_of_a_killed_job_have_failed(features, job_id):
    slow = features.app.tasks["slow to retry"]
    result = slow.delay(job_id, {"fail": "boom"})
    features.wait_for("signal", signal="task_retry", task_id=result.id)
    eventually(lambda: slow.ordered_queue.bury_failed() == 1)
    assert "morgue" in str(result.get(WAIT, propagate=False))
    assert result.state == "FAILURE"
