"""Tests of ``rules/views.py``."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.views import DAY, Counters, Rates, Sample, rates, shard_rates, span_of, sum_of

NOW = 1_000_000.0


def minute(*processed, failed=0, until=NOW - 3):
    """Samples ten seconds apart; the last is of ``until``."""
    return tuple(
        Sample(until - 10 * (len(processed) - 1 - n), count, failed * n) for n, count in enumerate(processed)
    )


@pytest.mark.parametrize(
    "samples, found",
    [
        ((), None),
        (minute(5), None),
        (minute(0, 20), Rates(2.0, 0.0)),
        (minute(0, 10, 20, 30, 60, 90, 120, failed=1), Rates(2.0, 0.1)),
        # Nothing was done.
        (minute(20, 20), Rates(0.0, 0.0)),
        # What is older than the last minute does not count.
        (minute(0, 9000, 9000, 9000, 9000, 9000, 9000, 9000, 9010), Rates(1 / 6, 0.0)),
        # A gap is bridged.
        ((Sample(NOW - 63, 100, 0), Sample(NOW - 3, 700, 6)), Rates(10.0, 0.1)),
        # Nobody has written for a while.
        (minute(0, 20, until=NOW - 46), None),
        # The queue was emptied, and counts anew.
        (minute(100, 0), None),
        ((Sample(NOW - 13, 0, 5), Sample(NOW - 3, 10, 0)), None),
    ],
)
def test_rates_over_the_last_minute(samples, found):
    assert rates(samples, NOW) == found


@pytest.mark.parametrize(
    "earlier, found",
    [
        ([], (None, None)),
        ([Counters(NOW - 90, (10, 0))], (60.0, 0.0)),
        # The older ones count, unless nobody has written since.
        ([Counters(NOW - 30, (90, 0)), Counters(NOW - 90, (10, 0))], (60.0, 0.0)),
        ([Counters(NOW - 30, (90, 0)), Counters(NOW - 200, (10, 0))], (20.0, 0.0)),
        ([Counters(NOW - 9, (90, 0))], (None, None)),
        # A shard was added.
        ([Counters(NOW - 90, (10,))], (60.0, 0.0)),
        # One that had processed nothing was removed; the counts of another one went to the first.
        ([Counters(NOW - 90, (10, 0, 0))], (60.0, 0.0)),
        ([Counters(NOW - 90, (10, 0, 5))], (None, None)),
        # Counters were reset.
        ([Counters(NOW - 90, (10, 5))], (None, None)),
    ],
)
def test_jobs_a_minute_by_shard(earlier, found):
    assert shard_rates(earlier, (100, 0), NOW) == found


def test_the_sum_has_the_largest_lag_of_each_slot():
    one = (Sample(600.0, 1, 0, 2.0), Sample(1200.0, 2, 1, 9.0))
    other = (Sample(601.0, 10, 5, 3.0), Sample(1900.0, 30, 5, 1.0))
    assert sum_of([one, other], DAY) == (
        Sample(601.0, 11, 5, 3.0),
        Sample(1200.0, 12, 6, 9.0),
        Sample(1900.0, 32, 6, 1.0),
    )


def test_an_unknown_span_is_said():
    with pytest.raises(InvalidCall, match=r"^span='2h' is invalid: expected one of 1h, 24h$"):
        span_of("2h")


def test_the_sum_of_queues():
    one = (Sample(100.0, 1, 0), Sample(110.0, 2, 1), Sample(120.0, 3, 1))
    # It has a gap, and begins later.
    other = (Sample(112.0, 10, 5), Sample(132.0, 30, 5))
    assert sum_of([one, other, ()]) == (
        Sample(100.0, 11, 5),
        Sample(112.0, 12, 6),
        Sample(120.0, 13, 6),
        Sample(132.0, 33, 6),
    )
    assert sum_of([]) == ()
