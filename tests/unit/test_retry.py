"""Rules 5 and 6: when a failed job runs again, and when it dies. Lowkiq's tables are golden."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.models import Disposition, Job, Payload, PayloadRemoval, Settlement
from celery_lowkiq.rules.retry import RetryPolicy, after_failure, default_delay


def job(retry_count: int = -1) -> Job:
    return Job("1", (Payload(b"a", 1.0),), 5.0, retry_count, None, claim=7)


def test_rule_6_the_default_pauses_are_lowkiqs():
    assert [default_delay(n, lambda low, high: low) for n in range(5)] == [15, 16, 31, 96, 271]
    assert [default_delay(n, lambda low, high: high) for n in range(3)] == [15 + 29, 16 + 58, 31 + 87]


@pytest.mark.parametrize(
    "max_retries, days",
    [(14, 1), (16, 2), (18, 3), (19, 5), (20, 6), (21, 8), (22, 10), (23, 13), (24, 16), (25, 20)],
)
def test_rule_6_lowkiqs_table_of_days(max_retries, days):
    """Its integer sum of pauses; the random part at its mean."""
    seconds = sum(default_delay(n, lambda low, high: (low + high) / 2) for n in range(max_retries))
    assert int(seconds / 60 / 60 / 24) == days


def test_the_random_part_is_drawn_from_0_to_29():
    drawn = []
    default_delay(3, lambda low, high: drawn.append((low, high)) or 0)
    assert drawn == [(0, 29)]


def test_rule_5_lowkiqs_table_of_failures():
    policy = RetryPolicy(max_retries=25, retry_in=lambda error, n: 100.0 + n)
    assert after_failure(job(-1), policy, b"e") == Settlement("1", 7, Disposition.RETRY, 0, 100.0, b"e")
    assert after_failure(job(0), policy, b"e") == Settlement("1", 7, Disposition.RETRY, 1, 101.0, b"e")


@pytest.mark.parametrize(
    "max_retries, retry_count, disposition",
    [
        (1, -1, Disposition.RETRY),
        (1, 0, Disposition.DIE),
        (0, -1, Disposition.DIE),
        (25, 23, Disposition.RETRY),
        (25, 24, Disposition.DIE),
        (None, 10**6, Disposition.RETRY),
    ],
)
def test_rule_5_the_last_failure(max_retries, retry_count, disposition):
    policy = RetryPolicy(max_retries, retry_in=lambda error, n: 0.0)
    assert after_failure(job(retry_count), policy, b"e").disposition is disposition
    assert policy.dies(job(retry_count)) == (disposition is Disposition.DIE)


def test_a_delay_of_the_task_replaces_the_pause():
    assert after_failure(job(), RetryPolicy(), b"e", delay=3.5).delay == 3.5
    assert after_failure(job(), RetryPolicy(), b"e", delay=-1).delay == 0


def test_bad_payloads_travel_with_the_settlement():
    bad = (PayloadRemoval(0, b"undecodable"),)
    assert after_failure(job(), RetryPolicy(), b"e", bad=bad).bad == bad
    assert after_failure(job(), RetryPolicy(max_retries=0), b"e", bad=bad).bad == bad
