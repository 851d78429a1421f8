"""O7, rule 5: what a batch that failed as a whole means for each of its jobs."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.models import Disposition, Job, Payload
from celery_lowkiq.rules.policies import (
    MAX_ISOLATION_DELAY,
    MAX_PARTS,
    NOT_ISOLATED,
    Isolation,
    isolated,
    isolation_delay,
)
from celery_lowkiq.rules.retry import RetryPolicy, after_failure
from celery_lowkiq.store.records import parse_processing, parse_retry_count, retry_count_text

ONE_SECOND = RetryPolicy(max_retries=2, retry_in=lambda error, n: 1.0)


def job(retry_count: int = -1, isolation: Isolation = NOT_ISOLATED, early: bool = False) -> Job:
    return Job("1", (Payload(b"a", 1.0),), 5.0, retry_count, claim=7, isolation=isolation, early=early)


def test_a_batch_is_halved_until_its_jobs_run_alone():
    found, size = [isolated(NOT_ISOLATED, 100)], 100
    while (size := found[-1].largest) > 1:
        found.append(isolated(found[-1], size))
    assert [each.largest for each in found] == [50, 25, 12, 6, 3, 1]
    # Each counts the runs that may take the place of the first one: 25 jobs are 12, 12 and one.
    assert [each.parts for each in found] == [2, 4, 12, 24, 48, 144]
    assert isolated(found[-1], 1) == found[-1]


@pytest.mark.parametrize("together, largest", [(1, 1), (2, 1), (3, 1), (5, 2), (1000, 500)])
def test_the_next_batch_has_at_most_half_of_the_jobs(together, largest):
    assert isolated(NOT_ISOLATED, together).largest == largest


def test_parts_have_a_limit():
    assert isolated(Isolation(500, 900), 500) == Isolation(250, MAX_PARTS)


@pytest.mark.parametrize(
    "parts, pause, waits",
    [
        (1, 1.0, 1.0),
        (2, 1.0, 1.0),
        (3, 1.0, 1.5),
        (4, 1.0, 2.0),
        (144, 1.0, MAX_ISOLATION_DELAY),
        (144, 90.0, 90.0),
    ],
)
def test_jobs_of_parts_sit_some_runs_out(parts, pause, waits):
    assert isolation_delay(parts, pause, lambda turn: pause) == waits


def test_what_they_sit_out_is_the_pauses_of_the_next_runs():
    assert isolation_delay(6, 1.0, lambda turn: 10.0 * turn) == 1 + 10 + 20
    assert isolation_delay(6, 1.0, lambda turn: False) == 1
    # Nothing comes after a run that gives up.
    assert isolation_delay(8, 1.0, lambda turn: turn != 2 and 10.0) == 1 + 10


def test_a_job_of_several_is_never_the_last_time_tried():
    settlement = after_failure(job(1), ONE_SECOND, b"e", together=4)
    assert (settlement.disposition, settlement.retry_count, settlement.delay) == (Disposition.RETRY, 2, 1.0)
    assert settlement.isolation == Isolation(2, 2)
    beyond = after_failure(job(2, settlement.isolation), ONE_SECOND, b"e", together=2)
    assert (beyond.disposition, beyond.retry_count, beyond.isolation) == (
        Disposition.RETRY,
        3,
        Isolation(1, 4),
    )


def test_alone_it_dies_when_its_retries_are_used_up():
    settlement = after_failure(job(5, Isolation(1, 4)), ONE_SECOND, b"e", together=1)
    assert (settlement.disposition, settlement.isolation) == (Disposition.DIE, NOT_ISOLATED)
    assert after_failure(job(0, Isolation(1, 4)), ONE_SECOND, b"e", together=1).isolation == Isolation(1, 4)


@pytest.mark.parametrize(
    "policy",
    [RetryPolicy(dont_retry=(ValueError,)), RetryPolicy(retry_in=lambda error, n: False)],
    ids=["dont_retry", "retry_in gives up"],
)
@pytest.mark.parametrize("early", [False, True])
def test_an_error_that_gives_up_is_tried_alone_at_once(policy, early):
    settlement = after_failure(job(early=early), policy, b"e", cause=ValueError(), together=4)
    assert (settlement.disposition, settlement.delay, settlement.isolation) == (
        Disposition.RETRY,
        0.0,
        Isolation(2, 2),
    )
    assert (
        after_failure(job(early=early), policy, b"e", cause=ValueError(), together=1).disposition
        is Disposition.DIE
    )


def test_a_failure_of_its_own_ends_the_isolation():
    settlement = after_failure(job(0, Isolation(5, 2)), ONE_SECOND, b"e", together=0)
    assert (settlement.disposition, settlement.isolation) == (Disposition.RETRY, NOT_ISOLATED)


def test_without_isolation_it_is_lowkiqs_way():
    policy = RetryPolicy(max_retries=2, retry_in=lambda error, n: 1.0, isolate_failures=False)
    assert after_failure(job(0), policy, b"e", together=4).isolation == NOT_ISOLATED
    assert after_failure(job(1), policy, b"e", together=4).disposition is Disposition.DIE


@pytest.mark.parametrize("retry_count", [0, 2, 10**6])
@pytest.mark.parametrize("isolation", [NOT_ISOLATED, Isolation(1, 1), Isolation(1, 999), Isolation(500, 2)])
def test_the_store_keeps_it_with_the_retry_count(retry_count, isolation):
    text = retry_count_text(retry_count, isolation)
    # As Redis before 7.2 writes a number, too.
    for stored in (text, f"{float(text):.17g}"):
        assert parse_retry_count(stored.encode()) == (retry_count, isolation)
        found = parse_processing(b"1", f"7 5 {stored} 1 e1.5 1 x".encode())
        assert (found.retry_count, found.isolation, found.error) == (retry_count, isolation, b"e")


@pytest.mark.parametrize("planted", [b"", b"1.", b"nan", b"inf", b"1e+25", b"0x1", b"-1.5.5"])
def test_planted_counts_are_none(planted):
    assert parse_retry_count(planted) == (-1, NOT_ISOLATED)
