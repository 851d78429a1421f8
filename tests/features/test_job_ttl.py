"""What has been handed to a run is never ended by ``job_ttl``, whatever became of that run."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from celery.worker import request

from celery_lowkiq import Again, ordered_task

TTL = timedelta(hours=1)


@pytest.fixture
def outlive(lowkiq, monkeypatch):
    """The time to live of all calls until now ends. By Redis's clock nothing is due sooner."""

    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + 2 * TTL

    return lambda: monkeypatch.setattr(request, "datetime", Later)


class Short:
    """A task whose n-th run does what the n-th of its ``plans`` says."""

    def __init__(self, app, *plans, **options):
        self.runs = []

        @ordered_task(app=app, shared=False, name="short", shards=1, job_ttl=TTL, **options)
        def short(payloads_by_id):
            self.runs.append(payloads_by_id["1"])
            if len(self.runs) <= len(plans):
                plans[len(self.runs) - 1](payloads_by_id["1"])

        self.task = short

    @property
    def dropped(self):
        return self.task.ordered_queue.stats().dropped


def boom(payloads):
    raise ValueError("boom")


def dies(payloads):
    raise SystemExit(1)


def first_only(payloads):
    raise Again(payloads[1:], after=5)


def test_what_again_left_runs(lowkiq, lowkiq_app, outlive):
    short = Short(lowkiq_app, first_only)
    short.task.perform_async([{"id": "1", "payload": n} for n in (1, 2, 3)])
    lowkiq.drain()
    outlive()
    lowkiq.clock.move(5)
    lowkiq.drain()
    assert (short.runs, short.dropped) == ([[1, 2, 3], [2, 3]], 0)


def test_what_a_death_left_runs(lowkiq, lowkiq_app, outlive):
    short = Short(lowkiq_app, boom, lambda payloads: (outlive(), boom(payloads)), max_retries=1, retry_in=5)
    short.task.perform_async([{"id": "1", "payload": n} for n in (1, 2)])
    lowkiq.drain(propagate=False)
    short.task.delay("1", 3)
    lowkiq.clock.move(5)
    lowkiq.drain(propagate=False)
    assert (short.runs, short.dropped) == ([[1, 2], [1, 2, 3], [2, 3]], 0)


def test_what_a_dead_worker_ran_runs_again(lowkiq, lowkiq_app, outlive):
    short = Short(lowkiq_app, dies)
    short.task.delay("1", 1)
    with pytest.raises(SystemExit):
        lowkiq.drain()
    outlive()
    lowkiq.drain()
    assert (short.runs, short.dropped) == ([[1], [1]], 0)


def test_a_started_job_with_more_calls_than_a_claim_returns_does_not_expire(lowkiq, lowkiq_app, outlive):
    short = Short(lowkiq_app, dies)
    short.task.perform_async([{"id": "1", "payload": n % 3} for n in range(600)])
    with pytest.raises(SystemExit):
        lowkiq.drain()
    outlive()
    lowkiq.drain()
    assert (short.runs, short.dropped) == ([[0, 1, 2]] * 2, 0)


def test_what_came_meanwhile_has_not_started(lowkiq, lowkiq_app, outlive):
    short = Short(lowkiq_app, lambda payloads: (short.task.delay("1", "meanwhile"), first_only(payloads)))
    short.task.perform_async([{"id": "1", "payload": n} for n in (1, 2)])
    lowkiq.drain()
    outlive()
    lowkiq.clock.move(5)
    lowkiq.drain()
    assert (short.runs, short.dropped) == ([[1, 2], [2]], 1)


def test_what_expires_holds_no_id(lowkiq, lowkiq_app, outlive):
    short = Short(lowkiq_app, when_dead="hold")
    short.task.delay("1", 1)
    outlive()
    lowkiq.drain()
    assert (short.runs, short.dropped) == ([], 1)
    assert short.task.ordered_queue.held_ids().items == ()


def test_time_behind_a_dead_payload_counts(lowkiq, lowkiq_app, outlive):
    """The dead payload was handed to a run, and what waits behind it was not."""
    short = Short(lowkiq_app, boom, when_dead="hold", max_retries=0)
    short.task.delay("1", 1)
    lowkiq.drain(propagate=False)
    short.task.delay("1", 2)
    outlive()
    short.task.ordered_queue.requeue(["1"])
    lowkiq.drain(propagate=False)
    assert (short.runs, short.dropped) == ([[1], [1]], 1)
