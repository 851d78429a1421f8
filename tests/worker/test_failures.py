"""Failures of a real worker, in groups, and all jobs of a group requeued."""

from __future__ import annotations

from celery_lowkiq.rules.job_filter import FailureFilter
from tests.waiting import eventually


def test_failures_are_grouped_and_all_of_a_group_is_requeued(app, start_worker):
    outcome = app.tasks["outcome"]
    queue = outcome.ordered_queue
    start_worker()
    for job_id, what in {"a": "fail", "b": "fail", "c": "fail", "d": "memory", "e": "done"}.items():
        outcome.delay(job_id, what)
    eventually(lambda: (stats := queue.stats()).morgue_length == 4 and stats.length + stats.busy == 0)

    def groups():
        return {one.error: (one.count, one.dead, one.where) for one in queue.failures().groups}

    place = f"{outcome.__module__}.outcome"
    # Two runs of each.
    assert groups() == {"ValueError: as asked": (6, 3, place), "MemoryError: too much": (2, 1, place)}
    assert 'raise ValueError("as asked")' in queue.job("a").dead.error
    queue.pause()
    wanted = FailureFilter(error="ValueError")
    assert queue.change_matching(queue.requeue, wanted, dead=True, rate=100) == 3
    assert groups()["ValueError: as asked"] == (6, 0, place)
    queue.resume()
    eventually(lambda: groups()["ValueError: as asked"] == (12, 3, place))
