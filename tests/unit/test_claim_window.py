"""Claiming ahead: short runs are claimed and settled together, and no other job waits for it."""

from __future__ import annotations

import threading

import pytest

from celery_lowkiq.rules.claims import Claim, OpenClaims
from celery_lowkiq.rules.errors import StoreError, StoreUnavailable
from celery_lowkiq.rules.models import Disposition, Job, Lease, QueueSpec
from celery_lowkiq.worker import lane as claim_window
from celery_lowkiq.worker.lane import ClaimWindow, batches_to_claim, mean_duration
from celery_lowkiq.worker.owned_shard import OwnedShard
from tests.unit.nodes import SHARDS, Node
from tests.waiting import eventually

Q = QueueSpec("q", shards=4)


@pytest.mark.parametrize(
    "mean, most, batches",
    [
        (None, 50, 1),
        (0.001, 50, 30),
        (0.0001, 50, 50),
        (0.0, 50, 50),
        (0.02, 50, 1),
        (3.0, 50, 1),
        (0.001, 1, 1),
    ],
)
def test_what_is_claimed_at_once_runs_within_30_ms(mean, most, batches):
    assert batches_to_claim(mean, most) == batches


def test_the_mean_follows_slow_runs_at_once_and_fast_ones_by_and_by():
    assert mean_duration(None, 0.5) == 0.5
    assert mean_duration(0.001, 0.5) == 0.5
    assert mean_duration(1.0, 0.0) == pytest.approx(0.7)


@pytest.fixture
def node():
    """One lane that knows runs as short, over shards with waiting jobs."""
    made = []

    def make(jobs, act=lambda batch: None, **options):
        one = Node(lanes=1, **options)
        one.runner.act = act
        for shard, ids in jobs.items():
            for number, job_id in enumerate(ids):
                one.store.push(SHARDS[shard], job_id, perform_in=1.0 + number, announce=False)
        one.runtime._lanes[0]._mean_durations["q"] = 0.0001
        made.append(one)
        return one.start()

    yield make
    for one in made:
        one.runtime.abandon()
        one.runtime.join(10)


@pytest.fixture
def patient(monkeypatch):
    """On a busy machine, batches would go back before they start."""
    for name in ("MAX_WINDOW_AGE", "MAX_WAIT_BEHIND_RUN"):
        monkeypatch.setattr(claim_window, name, 60.0)


def settles(one):
    """Ids of each settle."""
    calls = []
    settle = one.store.settle

    def noted(asked):
        calls.append({settlement.id: settlement.disposition for settlement in asked.settlements})
        return settle(asked)

    one.store.settle = noted
    return calls


def numbered(count):
    return [f"{number:02}" for number in range(count)]


def test_short_runs_are_claimed_and_settled_together(node, patient):
    gate = threading.Event()
    one = node({0: numbered(20)}, lambda batch: gate.wait(10) and None)
    eventually(lambda: one.runner.ids)
    calls = settles(one)
    gate.set()
    one.ran(*numbered(20))
    assert one.runner.ids == numbered(20)
    assert len(calls) < 20


def test_a_window_of_one_settles_each_batch_before_the_next(node):
    one = node({0: numbered(5)}, window=1)
    one.ran(*numbered(5))
    assert [request for _, request in one.store.claims][:5] == [1, 2, 3, 4, 5]
    assert one.store.in_hands[1] == OpenClaims(1, (1,))


def test_what_waits_behind_a_slow_run_goes_back_while_it_runs(node):
    gate = threading.Event()
    one = node({0: numbered(5)}, lambda batch: gate.wait(30) and None)
    eventually(lambda: set(one.store.waiting[SHARDS[0]]) == set(numbered(5)[1:]))
    assert one.runner.ids == ["00"]
    assert set(one.store.processing[SHARDS[0]]) == {"00"}
    gate.set()
    # What went back counts as settled, too.
    eventually(lambda: one.runner.ids == numbered(5))


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreError("ERR of its own")])
def test_what_could_not_go_back_meanwhile_goes_with_the_rest(node, error):
    gate, refused = threading.Event(), []
    one = node({0: numbered(3)}, lambda batch: gate.wait(30) and None)
    settle = one.store.settle

    def fails_once(asked):
        if not refused:
            refused.append(asked)
            raise error
        return settle(asked)

    one.store.settle = fails_once
    eventually(lambda: refused)
    gate.set()
    one.ran(*numbered(3))
    assert [settlement.id for settlement in refused[0].settlements] == ["01", "02"]
    returned = [job_id for job_id, disposition in one.store.settled if disposition is Disposition.RETURN]
    assert returned == ["01", "02"]
    # What went back counts as settled, too.
    eventually(lambda: one.runner.ids == numbered(3))


def test_after_a_slow_run_another_shard_is_not_kept_waiting(node):
    """What was claimed behind it goes back as it was, and the older job of another shard comes first."""
    gate, slow = threading.Event(), iter([0.1])

    def act(batch):
        gate.wait(10)
        threading.Event().wait(next(slow, 0))

    one = node({0: ["a", "c"], 1: []}, act)
    eventually(lambda: one.runner.ids)
    one.store.push(SHARDS[1], "b", perform_in=1.5)
    gate.set()
    # What went back counts as settled, too.
    eventually(lambda: one.runner.ids == ["a", "b", "c"])
    assert ("c", Disposition.RETURN) in one.store.settled


def test_a_stop_returns_what_has_not_begun(node):
    gate = threading.Event()
    one = node({0: numbered(5)}, lambda batch: gate.wait(10) and None)
    eventually(lambda: one.runner.ids)
    one.runtime.drain()
    gate.set()
    assert one.runtime.join(10)
    assert one.store.settled == [
        ("00", Disposition.DONE),
        *((i, Disposition.RETURN) for i in numbered(5)[1:]),
    ]
    assert all(state.owner == "" for state in one.store.leases.values())


def test_a_crash_leaves_only_what_was_running(node):
    """What had run is settled, and what had not goes back: none of it becomes a suspect."""

    def act(batch):
        if batch.jobs[0].id == "02":
            raise KeyboardInterrupt

    one = node({0: numbered(5)}, act)
    eventually(lambda: one.host.stops)
    assert set(one.store.processing[SHARDS[0]]) == {"02"}
    done = [job_id for job_id, disposition in one.store.settled if disposition is Disposition.DONE]
    assert done == ["00", "01"]
    assert set(one.store.waiting[SHARDS[0]]) == {"03", "04"}


def test_settlements_that_are_held_back_are_settled_with_their_window(node, patient):
    gate = threading.Event()
    one = node({0: numbered(4)}, lambda batch: gate.wait(10) and None)
    one.runner.holds = lambda batch: batch.jobs[0].id in ("00", "02", "03")
    eventually(lambda: one.runner.ids)
    gate.set()
    one.ran(*numbered(4))
    assert sorted(one.store.settled) == [(i, Disposition.DONE) for i in numbered(4)]
    assert one.runner.ids == numbered(4)


def test_a_crash_settles_settlements_that_are_held_back(node):
    def act(batch):
        if batch.jobs[0].id == "02":
            raise KeyboardInterrupt

    one = node({0: numbered(4)}, act)
    one.runner.holds = lambda batch: True
    eventually(lambda: one.host.stops)
    assert set(one.store.processing[SHARDS[0]]) == {"02"}
    done = [job_id for job_id, disposition in one.store.settled if disposition is Disposition.DONE]
    assert done == ["00", "01"]


def test_nothing_of_a_lost_shard_begins(node):
    gate = threading.Event()
    one = node({0: numbered(5)}, lambda batch: gate.wait(10) and None)
    eventually(lambda: one.runner.ids)
    one.store.steal(SHARDS[0])
    eventually(lambda: SHARDS[0] not in one.runtime._lanes[0].shards())
    gate.set()
    eventually(lambda: not one.runtime._lanes[0].working)
    assert one.runner.ids == ["00"]
    assert one.store.settled == []


def test_results_are_written_while_a_batch_runs(node):
    gate = threading.Event()
    one = node({0: numbered(1)}, lambda batch: gate.wait(20) and None)
    try:
        eventually(lambda: one.runner.ids and one.runner.late_writes)
    finally:
        gate.set()


def test_each_waiting_batch_goes_to_the_lane_or_to_the_reaper():
    """They take them at the same time, without a lock."""
    jobs = tuple(Job(str(n), (), 0.0, claim=1) for n in range(2000))
    owned = OwnedShard(Q, Lease(SHARDS[0], "me", 1), 10.0, 0.0)
    for _ in range(20):
        window = ClaimWindow(owned, Claim(1, jobs, 0.0, None), 0.0)
        ran: list[str] = []
        lane = threading.Thread(target=lambda window=window, ran=ran: ran.extend(_run_all(window)))
        lane.start()
        returned = window.take_unstarted(1.0)
        lane.join()
        ids = ran + [settlement.id for settlement in (returned.settlements if returned else ())]
        assert sorted(ids) == sorted(job.id for job in jobs)


def _run_all(window):
    while (batch := window.next(0.0)) is not None:
        yield from (job.id for job in batch.jobs)
