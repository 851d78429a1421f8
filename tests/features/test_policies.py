"""Policies, through a real worker."""

from __future__ import annotations

import pytest

from celery_lowkiq import BusinessFailure
from celery_lowkiq.rules.text import last_error_line
from tests.waiting import eventually

WAIT = 30


def runs(features, job_id):
    return [run["retries"] for run in features.noted("run", id=job_id)]


def portions(features, job_id):
    """What each run of an id was handed, but for the run that held it."""
    return [run["payloads"] for run in features.wait_for("run", 3, id=job_id)[1:]]


def test_of_again_some_are_done_and_the_rest_runs_again_in_order(features, work, job_id):
    with features.holding(work, job_id):
        calls = [work.apply_async((job_id, n), score=n) for n in (3, 1, 2)]
        last = work.apply_async((job_id, {"take": 2, "return": "all"}), score=4)
    assert last.get(WAIT) == "all"
    assert [call.get(WAIT) for call in calls] == ["all", ["taken", [1, 2]], ["taken", [1, 2]]]
    payload = {"take": 2, "return": "all"}
    assert portions(features, job_id) == [[1, 2, 3, payload], [3, payload]]
    assert set(runs(features, job_id)) == {0}
    assert work.ordered_queue.job(job_id).waiting is None


def test_at_most_so_many_payloads_a_run_lowest_scores_first(features, job_id):
    task = features.app.tasks["portions"]
    with features.holding(task, job_id):
        calls = [task.apply_async((job_id, n), score=n) for n in (3, 1, 2)]
    results = [call.get(WAIT) for call in calls]
    assert results == [[job_id, [3]], [job_id, [1, 2]], [job_id, [1, 2]]]
    assert portions(features, job_id) == [[1, 2], [3]]


@pytest.mark.parametrize("merged", [False, True], ids=["alone", "merged"])
def test_a_business_failure_ends_the_calls_without_retry_and_morgue(features, work, job_id, merged):
    before = work.ordered_queue.stats()
    with features.holding(work, job_id) if merged else features.nothing():
        first = work.delay(job_id, "first") if merged else None
        result = work.delay(job_id, {"business": f"not eligible {job_id}"})
    with pytest.raises(BusinessFailure, match=f"^not eligible {job_id}$"):
        result.get(WAIT)
    assert first is None or str(first.get(WAIT, propagate=False)) == f"not eligible {job_id}"
    eventually(lambda: work.ordered_queue.stats().failed == before.failed + 1)
    job = work.ordered_queue.job(job_id)
    assert (job.waiting, job.processing, job.dead) == (None, None, None)
    lines = [line for line in features.node.logs().splitlines() if f"not eligible {job_id}" in line]
    assert lines
    assert all("INFO" in line for line in lines)


def test_a_list_of_pauses_says_how_often(features, job_id):
    listed = features.app.tasks["listed"]
    with pytest.raises(ValueError, match="always"):
        listed.delay(job_id, {"fail": "always"}).get(WAIT)
    assert runs(features, job_id) == [0, 1, 2]
    dead = eventually(lambda: listed.ordered_queue.job(job_id).dead)
    assert last_error_line(dead.error) == "ValueError: always"


@pytest.mark.parametrize("what, tried", [({"io": "down"}, 4), ({"fail": "deleted"}, 1)])
def test_a_function_decides_by_the_exception(features, job_id, what, tried):
    """Of an error that it gives up on only one payload goes to the morgue; the other has its own turn."""
    decides = features.app.tasks["decides"]
    with features.holding(decides, job_id):
        first = decides.apply_async((job_id, "first"), score=1)
        decides.apply_async((job_id, what), score=2)
    error = first.get(WAIT, propagate=False)
    assert isinstance(error, OSError if "io" in what else ValueError)
    assert runs(features, job_id)[1 : 1 + tried] == list(range(tried))
    dead = eventually(
        lambda: (job := decides.ordered_queue.job(job_id).dead) and job.payload_count == 2 and job
    )
    assert [payload.value for payload in dead.payloads] == ["first", what]
