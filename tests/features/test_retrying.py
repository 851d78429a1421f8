"""Celery's words for retries."""

from __future__ import annotations

import pytest
from celery.exceptions import Reject

from celery_lowkiq.rules.text import last_error_line
from tests.waiting import eventually

WAIT = 30


def runs(features, job_id):
    return [run["retries"] for run in features.noted("run", id=job_id)]


@pytest.mark.parametrize("merged", [False, True], ids=["alone", "merged"])
def test_retry(features, work, job_id, merged):
    with features.holding(work, job_id) if merged else features.nothing():
        first = work.delay(job_id, "first") if merged else None
        result = work.delay(job_id, {"retry": 2, "return": "third time"})
    assert result.get(WAIT) == "third time"
    assert runs(features, job_id)[-3:] == [0, 1, 2]
    assert first is None or first.get(WAIT) == "third time"


@pytest.mark.parametrize("task", ["step", "step-in-a-process", "async-step"])
def test_a_retry_carries_arguments_and_says_when_it_was_the_last(features, job_id, task):
    assert features.app.tasks[task].delay(job_id, 1).get(WAIT) == 3


def test_a_retried_job_keeps_its_payloads_and_merges_what_came_meanwhile(features, work, job_id, gate):
    old = work.delay(job_id, {"gate": gate, "once": f"once-{job_id}"})
    features.wait_for("held", gate=gate)
    new = work.delay(job_id, {"return": "both"})
    features.open(gate)
    assert (old.get(WAIT), new.get(WAIT)) == ("both", "both")
    assert [len(run["payloads"]) for run in features.noted("run", id=job_id)] == [1, 2]
    assert runs(features, job_id) == [0, 1]


def test_autoretry_for_has_retry_backoff(features, job_id):
    result = features.app.tasks["backoff"].delay(job_id, {"io": "away"})
    with pytest.raises(OSError, match="away"):
        result.get(WAIT)
    assert runs(features, job_id) == [0, 1]
    assert len(features.wait_for("signal", signal="task_retry", task_id=result.id)) == 1


def test_dont_retry_kills_at_once(features, job_id):
    hopeless = features.app.tasks["hopeless"]
    with pytest.raises(ValueError, match="no retry mends"):
        hopeless.delay(job_id, {"fail": "no retry mends"}).get(WAIT)
    assert runs(features, job_id) == [0]
    dead = eventually(lambda: hopeless.ordered_queue.job(job_id).dead)
    assert last_error_line(dead.error) == "ValueError: no retry mends"


def test_throws_is_logged_without_a_traceback(features, job_id):
    quick = features.app.tasks["expects"]
    error = quick.delay(job_id, {"expected": f"expected {job_id}"}).get(WAIT, propagate=False)
    assert f"expected {job_id}" in str(error)
    lines = eventually(
        lambda: [line for line in features.node.logs().splitlines() if f"expected {job_id}" in line]
    )
    assert len(lines) == 1
    assert "INFO" in lines[0]


@pytest.mark.parametrize("merged", [False, True], ids=["alone", "merged"])
def test_a_rejected_call_is_a_failure(features, work, job_id, merged):
    with features.holding(work, job_id) if merged else features.nothing():
        first = work.delay(job_id, "first") if merged else None
        result = work.delay(job_id, {"reject": "not mine"})
    for each in filter(None, (first, result)):
        with pytest.raises(Reject, match="not mine"):
            each.get(WAIT)
    assert result.state == "FAILURE"
    dead = eventually(lambda: work.ordered_queue.job(job_id).dead)
    assert dead.payload_count == (2 if merged else 1)


@pytest.mark.parametrize("merged", [False, True], ids=["alone", "merged"])
def test_an_ignored_call_has_no_result(features, work, job_id, merged):
    with features.holding(work, job_id) if merged else features.nothing():
        first = work.delay(job_id, "first") if merged else None
        result = work.delay(job_id, {"ignore": True})
    features.wait_for("run", 1 + merged, id=job_id)
    after = work.delay(job_id, "after")
    assert after.get(WAIT) == [job_id, ["after"]]
    assert result.state in ("STARTED", "PENDING")
    assert first is None or first.state in ("STARTED", "PENDING")
