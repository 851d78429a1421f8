"""Tests of ``rules/health.py``."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.rules.health import (
    check_runs,
    is_late,
    lateness,
    overdue_after,
    overdue_line,
    usual_lag,
    usual_run,
)
from celery_lowkiq.rules.models import Batch, Job, Lease, QueueSpec, ShardRef
from celery_lowkiq.rules.views import WARNING, LaneReport, NodeReport, Running, Sample, ShardReport, Stats
from celery_lowkiq.worker.members import LaneLoads, OverdueMonitor, running
from tests.unit.fakes import FakeHost, FakeStore

# Overdue runs, and the load of lanes, by the clock of a test.


@dataclass
class Clock:
    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now


@dataclass
class Context:
    clock: Clock
    host: FakeHost = field(default_factory=FakeHost)
    store: FakeStore = field(default_factory=FakeStore)


@dataclass
class Lane:
    """What a lane shows of itself."""

    name: str
    batch: Batch | None = None
    means: dict[str, float] = field(default_factory=dict)
    ran: float = 0.0

    def mean_run(self, queue):
        return self.means.get(queue)

    def seconds_run(self, now):
        return self.ran

    def shards(self):
        return [ShardRef("orders", 0), ShardRef("orders", 1)]


def batch(began_at, max_run=None, job_id="1", shard=0):
    lease = Lease(ShardRef("orders", shard), "w-1", 1)
    jobs = (Job(job_id, (), 0.0),)
    return Batch(QueueSpec("orders", max_run=max_run), lease, 1, jobs, None, began_at)


@pytest.mark.parametrize(
    "max_run, usual, seconds",
    [
        (None, None, 60.0),
        (None, 0.2, 60.0),
        (None, 6.0, 60.0),
        (None, 6.1, 61.0),
        (None, 300.0, 3000.0),
        (30.0, 300.0, 30.0),
        (0.5, None, 0.5),
    ],
)
def test_when_a_run_is_overdue(max_run, usual, seconds):
    assert overdue_after(max_run, usual) == pytest.approx(seconds)


def test_what_is_usual_is_the_median_of_lanes():
    """A lane that had a run of 20 min does not make the next one usual."""
    assert usual_run([0.2, 1200.0, 0.3, None]) == 0.3
    assert usual_run([None, None]) is usual_run([]) is None


def test_a_run_whose_process_is_being_started_is_not_overdue():
    starting = batch(900.0, max_run=5.0)
    starting.is_starting = True
    assert not running(starting, [], 1000.0).overdue
    starting.began_at, starting.is_starting = 994.0, False
    assert running(starting, [], 1000.0).overdue


@pytest.mark.parametrize(
    "run, waiting, line",
    [
        (
            {"usual": 0.2},
            12,
            "lane-7 has run job 1 of orders for 1 min 35 s, usual is 0.2 s, 12 jobs wait behind it",
        ),
        (
            {"usual": 0.004},
            1,
            "lane-7 has run job 1 of orders for 1 min 35 s, usual is 4 ms, 1 job waits behind it",
        ),
        (
            {"max_run": 30.0, "usual": 1.0},
            0,
            "lane-7 has run job 1 of orders for 1 min 35 s, max_run is 30 s",
        ),
        (
            {},
            None,
            "lane-7 has run job 1 of orders for 1 min 35 s, no other run of its queue has ended on this node",
        ),
    ],
)
def test_the_line_about_a_run(run, waiting, line):
    assert (
        overdue_line("lane-7", Running(ShardRef("orders", 0), ("1",), 1, 95.0, True, **run), waiting) == line
    )


def test_each_overdue_run_is_told_once():
    clock, lanes = Clock(), [Lane("lane-0", means={"orders": 0.2}), Lane("lane-1")]
    context = Context(clock)
    context.store.push(ShardRef("orders", 1), "2")
    monitor = OverdueMonitor(context, lanes)
    lanes[0].batch = batch(clock.now)
    clock.now += 60.0
    monitor.check()
    assert context.host.alarms == []
    clock.now += 0.1
    monitor.check()
    clock.now += 100.0
    monitor.check()
    ((run, waiting),) = context.host.alarms
    assert (run.seconds, run.usual, run.overdue, waiting) == (60.1, 0.2, True, 1)
    # No declared limit: strict exclusion leaves it alone.
    assert monitor.leases == frozenset()
    # The next run of the same shard is another one, though no check has come between.
    lanes[0].batch = batch(clock.now - 90.0)
    monitor.check()
    assert len(context.host.alarms) == 2


def test_a_run_over_its_max_run_loses_its_lease_in_strict_mode():
    clock, lane = Clock(), Lane("lane-0")
    lane.batch = batch(clock.now - 2.0, max_run=1.0)
    monitor = OverdueMonitor(Context(clock), [lane])
    monitor.check()
    assert monitor.leases == {lane.batch.lease}
    lane.batch = None
    monitor.check()
    assert monitor.leases == frozenset()


def test_a_run_is_told_though_redis_does_not_answer():
    context = Context(Clock())

    def fail(after):
        raise StoreUnavailable("gone")

    context.store.fail["count_due"] = fail
    OverdueMonitor(context, [Lane("lane-0", batch(0.0))]).check()
    ((_, waiting),) = context.host.alarms
    assert waiting is None


def test_the_load_of_a_lane_is_that_of_ten_minutes():
    lanes = [Lane("lane-0"), Lane("lane-1")]
    loads = LaneLoads(lanes)
    for second in range(0, 600, 2):
        lanes[0].ran, lanes[1].ran = float(second), second / 4
        assert loads.read(float(second)) == [None, None]
    lanes[0].ran, lanes[1].ran = 600.0, 150.0
    assert loads.read(600.0) == [1.0, 0.25]
    for second in range(602, 1300, 2):
        loads.read(float(second))
    assert loads.read(1300.0) == [0.0, 0.0]


def test_doctor_begins_with_the_runs_that_are_overdue():
    shards = (ShardRef("orders", 0), ShardRef("orders", 1))
    hangs = Running(shards[0], ("1",), 1, 94.0, True, None, 0.2)
    quick = Running(shards[1], ("2",), 1, 3.0)
    lanes = (LaneReport("lane-0", shards, 2, hangs), LaneReport("lane-1", (), 0, quick))
    node = NodeReport("w@a", "w@a-1", 4242, 10.0, False, False, ("orders",), lanes, silent=1.0)
    (found,) = check_runs([node], {shards[0]: 5, shards[1]: 7, ShardRef("orders", 2): 1})
    assert (found.level, found.subject) == (WARNING, "node w@a")
    assert found.text == (
        "lane-0 has run job 1 of orders for 1 min 35 s, usual is 0.2 s, 12 jobs wait behind it."
    )
    assert "kill -TTIN 4242" in found.advice
    assert running(batch(0.0), [], 61.0).overdue


# Lag beyond what is usual, its cause, and the time to drain.

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
