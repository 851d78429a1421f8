"""Tests of ``rules/policies.py``."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from celery import Celery

from celery_lowkiq import ConfigurationError, OrderedTask, ordered_task
from celery_lowkiq.integration.options import policies_of
from celery_lowkiq.integration.records import TTL_ENDS, CallRecord, make_record
from celery_lowkiq.rules.models import Disposition, Job, Payload, ShardRef
from celery_lowkiq.rules.policies import (
    NONE,
    AfterFailure,
    Policies,
    WhenFull,
    length_of_shard,
    surplus,
    token_at,
    turn,
)
from celery_lowkiq.rules.retry import RetryPolicy
from celery_lowkiq.rules.retry import after_failure as failed
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.script import load
from tests.model.policies import after_failure, debounced, has_place, reached, stale

# Policies of a queue, without Redis: the rules, and which options have no meaning together.


@pytest.mark.parametrize("count, keep, gone", [(3, 2, 1), (2, 2, 0), (1, 2, 0), (1000, None, 0)])
def test_a_job_keeps_so_many_payloads(count, keep, gone):
    assert surplus(count, keep) == gone


@pytest.mark.parametrize("peak, count", [(None, 0), (1.0, 0), (3.0, 2), (9.0, 4)])
def test_below_what_was_done_is_stale_and_equal_passes(peak, count):
    assert stale([1.0, 2.0, 3.0, 5.0], peak) == count


@pytest.mark.parametrize(
    "done, left, peak, mark",
    [
        ([1, 2, 3], [], None, 3),
        ([1, 2], [], 5, 5),
        ([1, 3], [2], None, 1),
        ([3], [2], None, None),
        ([2], [2], 1, 2),
        ([], [], None, None),
    ],
)
def test_what_a_run_leaves_is_not_stale(done, left, peak, mark):
    assert reached(done, left, peak) == mark


@pytest.mark.parametrize(
    "now, first, longest, not_before, due",
    [
        (10, 10, None, 0, 15),
        (14, 10, None, 0, 19),
        (14, 10, 60, 0, 19),
        (68, 10, 60, 0, 70),
        (90, 10, 60, 0, 70),
        (10, 10, 60, 40, 40),
        (10, 10, 60, 99, 99),
    ],
)
def test_a_call_puts_its_job_off_but_not_for_ever(now, first, longest, not_before, due):
    assert debounced(now, first, 5, longest, not_before) == due


@pytest.mark.parametrize(
    "policy, asked, due",
    [(AfterFailure.WAIT, 10, 100), (AfterFailure.NOW, 10, 10), (AfterFailure.NOW, 200, 100)],
)
def test_a_call_for_a_job_that_waits_for_its_retry(policy, asked, due):
    assert after_failure(100, asked, policy) == due


@pytest.mark.parametrize("length, allowed, place", [(9, 10, True), (10, 10, False), (10**6, None, True)])
def test_a_shard_has_so_many_places(length, allowed, place):
    assert has_place(length, allowed) == place


@pytest.mark.parametrize("longest, shards, part", [(10, 5, 2), (11, 5, 3), (1, 5, 1)])
def test_the_length_of_a_queue_is_shared_by_its_shards(longest, shards, part):
    assert length_of_shard(longest, shards) == part


class TestEarlyRuns:
    JOB = Job("1", (Payload(b"a", 1.0),), 500.0, 3, None, claim=7, early=True)

    def test_a_failure_restores_count_and_time(self):
        settlement = failed(self.JOB, RetryPolicy(max_retries=4, retry_in=lambda error, n: 1.0), b"boom")
        assert (settlement.disposition, settlement.retry_count, settlement.perform_in) == (
            Disposition.RETRY,
            3,
            500.0,
        )

    def test_a_failure_that_no_retry_mends_ends_it(self):
        policy = RetryPolicy(dont_retry=(KeyError,))
        assert failed(self.JOB, policy, b"boom", cause=KeyError()).disposition is Disposition.DIE
        policy = RetryPolicy(retry_in=lambda error, n: False)
        assert failed(self.JOB, policy, b"boom").disposition is Disposition.DIE

    def test_the_last_pause_of_a_list_is_waited_for(self):
        policy = RetryPolicy(max_retries=4, retry_in=lambda error, n: [9, 9, 9, 9][n])
        assert failed(self.JOB, policy, b"boom").disposition is Disposition.RETRY


class TestTimeToLive:
    ENDS = "2030-01-01T00:00:00+00:00"

    def test_it_is_an_expiry_until_the_job_fails(self):
        note = CallRecord("1", {TTL_ENDS: self.ENDS})
        assert note.before_its_job_failed().headers["expires"] == self.ENDS
        assert "expires" not in note.headers

    def test_the_expiry_of_a_call_comes_first(self):
        note = CallRecord("1", {TTL_ENDS: self.ENDS, "expires": "2029-01-01T00:00:00+00:00"})
        assert note.before_its_job_failed() is note

    def test_it_is_over_with_the_first_run(self):
        note = CallRecord("1", {TTL_ENDS: self.ENDS, "x": 1})
        assert note.started() == CallRecord("1", {"x": 1})
        assert note.started().started() is None

    def test_it_begins_with_the_call(self, app):
        task = make(app, job_ttl=timedelta(minutes=5))
        note = make_record(task, {"id": "1"}, None, {}, track=False)
        ends = datetime.fromisoformat(note.headers[TTL_ENDS])
        left = ends - datetime.now(timezone.utc)
        assert timedelta(minutes=4) < left <= timedelta(minutes=5)


@pytest.fixture
def app():
    return Celery("policies", broker="redis://localhost:1/0", set_as_current=False)


def nothing(payloads_by_id):
    """A task's function."""


def make(app, **options):
    return ordered_task(nothing, app=app, name="task", **options)


def test_policies_of_a_task(app):
    task = make(
        app,
        keep=3,
        debounce=timedelta(seconds=5),
        debounce_max=60,
        drop_stale=True,
        when_pushed_after_failure="now",
        max_length=10,
        when_full="drop_oldest",
    )
    policies = policies_of(task)
    assert policies == Policies(
        keep=3,
        debounce=5.0,
        debounce_max=60.0,
        drop_stale=7 * 86400.0,
        when_pushed_after_failure=AfterFailure.NOW,
        max_length=10,
        when_full=WhenFull.DROP_OLDEST,
    )
    assert policies.words(shards=5) == (
        "keep=3 debounce=5.0 debounce_max=60.0 drop_stale=604800.0 due_on_push=1 "
        "max_length=2 when_full=drop_oldest"
    )


def test_a_task_without_policies_sends_no_words(app):
    task = make(app, job_ttl=5)
    assert policies_of(task) is NONE
    assert task.queue_spec.policy == ""


WRONG = [
    ({"keep": 0}, "keep=0 is invalid: expected 'all', or a whole number of payloads from 1 to 1000"),
    ({"keep": True}, "keep=True"),
    ({"keep": 1001}, "keep=1001"),
    ({"debounce": 0}, "debounce=0 is invalid: expected seconds above 0"),
    ({"debounce": timedelta(0)}, "debounce="),
    ({"debounce": 1e10}, "up to 1,000,000,000"),
    ({"drop_stale": "yes"}, "drop_stale='yes'"),
    ({"when_pushed_after_failure": "later"}, "'wait' or 'now'"),
    ({"max_length": 0}, "max_length=0"),
    ({"max_length": 9, "when_full": "explode"}, "'refuse', 'drop_newest' or 'drop_oldest'"),
    ({"job_ttl": -1}, "job_ttl=-1"),
]
MEANINGLESS = [
    ({"debounce_max": 60}, "debounce_max=60 is invalid: expected debounce= beside it"),
    ({"debounce": 5, "debounce_max": 4}, "debounce_max=4 is invalid: expected at least debounce=5"),
    ({"debounce": 5, "job_ttl": 5}, "job_ttl=5 is invalid: expected more than debounce=5"),
    ({"job_ttl": 5, "expires": 9}, "job_ttl=5 is invalid: expected no expires= .* expires=9"),
    ({"keep": 5, "max_payloads_per_run": 5}, "max_payloads_per_run=5 is invalid: expected less than keep=5"),
    ({"when_full": "drop_oldest"}, "expected max_length="),
    ({"when_dead": "hold", "keep": 5}, "keep=5 is invalid: expected 'all' beside when_dead='hold'. It drops"),
    ({"when_dead": "hold", "drop_stale": True}, "drop_stale=True is invalid: expected False beside"),
    ({"when_dead": "hold", "drop_stale": 60}, "drop_stale=60 is invalid: expected False beside"),
    (
        {"when_dead": "hold", "when_full": "drop_oldest", "max_length": 5},
        "when_full='drop_oldest' is invalid: expected 'refuse' or 'drop_newest' beside when_dead='hold'",
    ),
    ({"hold_max": 5}, "hold_max=5 is invalid: expected when_dead='hold' beside it"),
    ({"when_pushed_after_failure": "now", "max_retries": 0}, "expected max_retries= above 0"),
]


@pytest.mark.parametrize("options, message", WRONG + MEANINGLESS)
def test_what_has_no_meaning_is_refused_at_decoration(options, message):
    with pytest.raises(ConfigurationError, match=message):
        ordered_task(nothing, **options)


@pytest.mark.parametrize("options, message", WRONG + MEANINGLESS)
def test_what_has_no_meaning_is_refused_in_the_class_of_a_task(app, options, message):
    with pytest.raises(ConfigurationError, match=message):
        app.register_task(
            type("Task", (OrderedTask,), {"run": lambda self, payloads_by_id: None, **options})()
        )


def test_a_class_adds_to_the_policies_of_its_base(app):
    class Base(OrderedTask):
        abstract = True
        debounce = 5

    task = make(app, base=Base, debounce_max=60)
    assert policies_of(task) == Policies(debounce=5.0, debounce_max=60.0)
    with pytest.raises(ConfigurationError, match="job_ttl=5 is invalid: expected more than debounce=5"):
        make(app, base=Base, job_ttl=5)


@pytest.mark.parametrize("own", [{"debounce": 5}, {}])
def test_an_annotation_is_checked_with_the_rest(app, own):
    app.conf.task_annotations = {"task": {"debounce_max": 60}}
    task = make(app, **own)
    if own:
        assert policies_of(task).debounce_max == 60.0
    else:
        with pytest.raises(ConfigurationError, match="expected debounce="):
            task.queue_spec  # noqa: B018 - a task is made when it is used


def test_without_a_store_a_bulk_call_keeps_the_highest(app):
    app.conf.task_always_eager = True
    seen = []

    @ordered_task(app=app, keep=2)
    def task(payloads_by_id):
        seen.append(payloads_by_id)

    task.perform_async([{"id": 1, "payload": n, "score": n} for n in (3, 1, 2)])
    assert seen == [{"1": [2, 3]}]


# Which due job of a shard has its turn first, and when a limited id may run again.


def in_turn(*jobs: tuple[int, float], max_wait: float = 60) -> list[tuple[int, float]]:
    """Jobs, each a priority and when it is due, by their turns at the time 100."""
    return sorted(jobs, key=lambda job: turn(*job, now=100, max_wait=max_wait))


def test_the_more_urgent_come_first_and_of_one_priority_the_oldest():
    assert in_turn((9, 45), (5, 50), (0, 99), (5, 41)) == [(0, 99), (5, 41), (5, 50), (9, 45)]


def test_what_is_due_for_longer_than_it_may_wait_comes_before_all():
    assert in_turn((0, 35), (0, 50), (9, 30), (5, 20), (1, 45)) == [
        (5, 20),
        (9, 30),
        (0, 35),
        (0, 50),
        (1, 45),
    ]


def test_who_may_wait_for_no_time_goes_by_age():
    assert in_turn((0, 99), (9, 98), max_wait=0) == [(9, 98), (0, 99)]


@pytest.mark.parametrize(
    "rate, full_at, at",
    [(0.5, 102, 102), (1 / 60, 160, 160), (30, 100, pytest.approx(100 - 2 / 30)), (100, 100, 99.91)],
)
def test_an_id_has_a_token_when_all_but_one_of_them_are_still_to_come(rate, full_at, at):
    assert token_at(full_at, rate) == at


@pytest.mark.parametrize("policy, sent", [("", False), ("rate=5 burst=1", True)])
def test_keys_of_policies_go_to_those_who_have_one(policy, sent):
    keys = shard_keys(ShardRef("orders", 0))
    call = load("claim").call(
        keys,
        **dict.fromkeys(("owner", "epoch", "merge", "request", "last", "open", "limit"), 1),
        **dict.fromkeys(("max_payloads", "max_bytes", "suspects", "max_wait"), 1),
        policy=policy,
    )
    assert (keys["buckets"] in call.keys) == sent
    assert keys["due_prioritized"] in call.keys
