"""Policies, through a real worker."""

from __future__ import annotations

import pytest

from tests.waiting import eventually

WAIT = 30


def runs(features, job_id):
    return [run["retries"] for run in features.noted("run", id=job_id)]


def test_a_list_of_pauses_says_how_often(features, job_id):
    listed = features.app.tasks["listed"]
    with pytest.raises(ValueError, match="always"):
        listed.delay(job_id, {"fail": "always"}).get(WAIT)
    assert runs(features, job_id) == [0, 1, 2]
    assert eventually(lambda: listed.ordered_queue.job(job_id).dead).error == "ValueError: always"


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
