"""Calls that must not run any more: revoked, or expired."""

from __future__ import annotations

import pytest
from celery import chord
from celery.exceptions import ChordError, TaskRevokedError

from tests.waiting import eventually

WAIT = 30


@pytest.fixture
def revoke(features):
    """Revoke a call, and wait until the worker knows."""

    def revoked():
        return (features.app.control.inspect(destination=["features@test"], timeout=10).revoked() or {}).get(
            "features@test", ()
        )

    def revoke_call(result):
        features.app.control.revoke(result.id)
        eventually(lambda: result.id in revoked())

    return revoke_call


def is_revoked(features, result):
    with pytest.raises(TaskRevokedError):
        result.get(WAIT)
    assert result.state == "REVOKED"
    assert features.wait_for("signal", signal="task_revoked", task_id=result.id)


def test_a_revoked_call_does_not_run_and_its_neighbours_do(features, work, job_id, revoke):
    with features.holding(work, job_id):
        gone = work.delay(job_id, "gone")
        stays = work.delay(job_id, "stays")
        revoke(gone)
    assert stays.get(WAIT) == [job_id, ["stays"]]
    is_revoked(features, gone)
    assert [run["payloads"] for run in features.noted("run", id=job_id)][1:] == [["stays"]]


def test_a_payload_runs_while_one_of_its_calls_is_left(features, work, job_id, revoke):
    with features.holding(work, job_id):
        gone, stays = work.delay(job_id, "same"), work.delay(job_id, "same")
        revoke(gone)
    assert stays.get(WAIT) == [job_id, ["same"]]
    is_revoked(features, gone)


def test_a_call_that_nobody_tracks_keeps_its_payload(features, work, job_id, revoke):
    with features.holding(work, job_id):
        gone = work.delay(job_id, "same")
        work.apply_async((job_id, "same"), ignore_result=True)
        revoke(gone)
    assert features.wait_for("run", 2, id=job_id)[1]["payloads"] == ["same"]
    is_revoked(features, gone)


def test_a_job_of_which_nothing_is_left_is_done(features, work, job_id, revoke):
    with features.holding(work, job_id):
        gone = work.delay(job_id, "gone")
        revoke(gone)
    is_revoked(features, gone)
    after = work.delay(job_id, "after")
    assert after.get(WAIT) == [job_id, ["after"]]
    assert [run["payloads"] for run in features.noted("run", id=job_id)][1:] == [["after"]]


def test_a_call_revoked_by_its_stamp(features, work, new_id):
    one, stamp = new_id(), new_id()
    with features.holding(work, one):
        signature = work.s(one, "stamped")
        signature.stamp(customer=stamp)
        gone, stays = signature.apply_async(), work.delay(one, "plain")
        features.app.control.revoke_by_stamped_headers({"customer": [stamp]}, reply=True)
    assert stays.get(WAIT) == [one, ["plain"]]
    is_revoked(features, gone)


@pytest.mark.parametrize("merged", [False, True])
def test_an_expired_call_does_not_run(features, work, job_id, merged):
    with features.holding(work, job_id):
        gone = work.apply_async((job_id, "old"), expires=0.01)
        stays = work.delay(job_id, "fresh") if merged else None
        # Until the header's time has come by the clock that the worker looks at, too.
        began = features.app.now()
        eventually(lambda: (features.app.now() - began).total_seconds() > 0.05)
    is_revoked(features, gone)
    assert stays is None or stays.get(WAIT) == [job_id, ["fresh"]]


def test_a_call_in_time_does_not_expire(work, job_id):
    assert work.apply_async((job_id, "x"), expires=600).get(WAIT) == [job_id, ["x"]]


def test_a_run_cannot_be_terminated_and_the_log_says_so(features, work, job_id, gate):
    result = work.delay(job_id, {"gate": gate, "return": "done"})
    features.wait_for("held", gate=gate)
    features.app.control.revoke(result.id, terminate=True)
    eventually(lambda: f"work[{result.id}] goes on: a lane is a thread" in features.node.logs())
    features.open(gate)
    features.wait_for("run", id=job_id)


def test_the_chord_of_a_dropped_call_fails(features, work, new_id, revoke):
    one, two = new_id(), new_id()
    total = features.app.tasks["total"]
    with features.holding(work, one):
        result = chord([work.s(one, {"return": 1}), work.s(two, {"return": 2})])(total.s())
        revoke(result.parent.results[0])
    error = result.get(WAIT, propagate=False)
    assert isinstance(error, ChordError)
