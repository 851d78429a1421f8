"""Lag beyond what is usual, its cause, and the time to drain."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.health import is_late, lateness, usual_lag
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.rules.views import LaneReport, NodeReport, Running, Sample, ShardReport, Stats

OURS, OTHER = ShardRef("orders", 0), ShardRef("reindex_search", 2)
NOW = 100_000.0
DAY = tuple(Sample(NOW - 3600 * n, 1, 0, lag) for n, lag in enumerate((0.2, 0.0, 90.0, 0.3, 0.2), 1))


def shard(lag=1134.0, due=340, pace=38.0, index=0, alive=True):
    stats = Stats(lag=lag, due=due, length=due)
    return ShardReport(index, stats, "beta", 1, 1.0, alive, 1.0, jobs_per_minute=pace, lane="lane-4")


def node(running=None):
    lane = LaneReport("lane-4", (OURS, OTHER), 2, running)
    return NodeReport("beta", "beta-1", 1, 10.0, False, False, ("orders",), (lane,))


def late(*shards, running=None, lags=None, limited=False, day=DAY):
    found = shards or (shard(),)
    lags = lags or {OURS: found[0].stats.lag}
    return lateness("orders", found, day, NOW, [node(running)], lags, limited)


@pytest.mark.parametrize(
    "lag, usual, found",
    [
        (59.0, None, False),
        (60.0, None, True),
        (60.0, 0.2, True),
        (500.0, 300.0, False),
        (601.0, 300.0, True),
    ],
)
def test_when_a_queue_is_late(lag, usual, found):
    assert is_late(lag, usual) is found


def test_what_is_usual_is_the_median_of_a_day():
    assert usual_lag(DAY, NOW) == 0.2
    assert usual_lag((), NOW) is usual_lag(DAY, 0.0) is None


def test_what_a_late_job_adds_to_the_samples_is_not_usual():
    """A new queue was ok with a lag of 100 s, since its only sample had the same."""
    assert late(shard(lag=100.0), day=(Sample(NOW - 5, 1, 0, 90.0),)).text.startswith(
        "Jobs are 1 min 40 s late: "
    )
    stands_still = tuple(Sample(NOW - 600 * n, 1, 0, 86_400.0 - 600 * n) for n in range(144))
    assert late(shard(lag=86_400.0), day=stands_still) is not None


@pytest.mark.parametrize(
    "options, cause, advice",
    [
        (
            {"lags": {OURS: 1134.0, OTHER: 1500.0}},
            "lane-4 of beta works reindex_search first, whose jobs are 25 min late",
            "Give reindex_search workers of its own",
        ),
        (
            {"running": Running(OTHER, ("7",), 1, 0.3)},
            "lane-4 of beta works reindex_search first",
            "Give reindex_search workers of its own",
        ),
        (
            {"running": Running(OTHER, ("7",), 1, 900.0, overdue=True)},
            "lane-4 of beta has run job 7 of reindex_search for too long",
            "See the run above",
        ),
        ({"limited": True}, "a rate limit applies", "See how many jobs a second"),
        (
            {"running": Running(OURS, ("7",), 1, 0.3)},
            "lane-4 of beta has 340 due jobs of shard 0",
            "Start another worker",
        ),
    ],
)
def test_the_cause(options, cause, advice):
    found = late(**options)
    assert found.text == (
        f"Jobs are 18 min 54 s late, usual is 0.2 s: {cause}. 340 due jobs drain in about 8 min 57 s at 38 a "
        "minute, if no more arrive."
    )
    assert found.advice.startswith(advice)


def test_the_slowest_shard_tells_when_it_is_over():
    found = late(shard(), shard(70.0, due=100, pace=5.0, index=1))
    assert found.text.endswith("440 due jobs drain in about 20 min at 43 a minute, if no more arrive.")


@pytest.mark.parametrize(
    "pace, text", [(0.0, "wait, and a shard of them had no job done in the last minute."), (None, "wait.")]
)
def test_the_time_to_drain_is_not_guessed(pace, text):
    assert late(shard(pace=pace)).text.endswith(f"340 due jobs {text}")


def test_nothing_is_said_of_shards_without_an_owner_or_in_time():
    assert late(shard(alive=False)) is None
    assert late(shard(lag=30.0)) is None
    assert late(shard(lag=150.0), day=(Sample(NOW - 3600, 1, 0, 100.0),)) is None
