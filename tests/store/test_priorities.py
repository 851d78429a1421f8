"""Priorities of calls: which due job of a shard has its turn first, and where such jobs lie meanwhile."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from celery_lowkiq.rules.models import Call, Disposition, Settlement
from celery_lowkiq.rules.policies import WhenFull
from celery_lowkiq.store.listings import Listing
from tests.bound import Actions, Diagnosis, Pausing
from tests.store.helpers import ONE, SHARD, listening, take
from tests.store.test_policies import Shard

PRIORITIZED, BY_PRIORITY = "lowkiq:1:{orders:0}:due_prioritized", "lowkiq:1:{orders:0}:by_priority"
#: Nothing is overdue.
EVER = 1e10


def shard_of(store, **policies):
    return Shard(store, **{"priority_max_wait": EVER, **policies})


def push(shard, *priorities, at=1.0):
    """Jobs with the ids '0', '1', ..., due one s after the other."""
    jobs = [Call(f"{n}", b"x", perform_in=at + n, priority=p) for n, p in enumerate(priorities)]
    shard.store.push(shard.spec, jobs)


def claim(shard, most=100):
    """Claimed ids, in the order of their turns."""
    shard.requests += 1
    limited = replace(shard.spec, batch_size=most)
    return [job.id for job in shard.store.claim(limited, shard.lease, shard.requests).jobs]


def priorities(shard, *ids):
    return [shard.waiting(job_id).priority for job_id in ids]


class TestTurns:
    @pytest.mark.parametrize("most", [1, 2, 100])
    def test_the_more_urgent_run_first_and_of_one_priority_the_oldest(self, store, most):
        shard = shard_of(store)
        push(shard, 9, 0, 3, 9, None, 3)
        found = []
        while some := claim(shard, most):
            found += some
        assert found == ["1", "4", "2", "5", "0", "3"]

    @pytest.mark.parametrize("most", [1, 2, 100])
    def test_what_is_due_for_too_long_comes_first(self, store, most):
        shard = shard_of(store, priority_max_wait=60.0)
        now = time.time()
        for job_id, priority, ago in (("a", 0, 10), ("b", 9, 90), ("c", 5, 99), ("d", 1, 20), ("e", 0, 80)):
            store.push(shard.spec, [Call(job_id, b"x", perform_in=now - ago, priority=priority)])
        found = []
        while some := claim(shard, most):
            found += some
        assert found == ["c", "b", "e", "a", "d"]

    def test_what_is_not_due_waits_whatever_its_priority(self, store):
        shard = shard_of(store)
        push(shard, 0, 1, at=4e9)
        store.push(shard.spec, [Call("due", b"x", perform_in=1.0, priority=9)])
        assert claim(shard) == ["due"]
        assert shard.queries.stats(shard.spec).lag == 0

    def test_what_is_claimed_is_passed_by_in_every_class(self, store):
        shard = shard_of(store)
        push(shard, 3, 3, 5)
        assert claim(shard, 1) == ["0"]
        push(shard, 3)
        assert claim(shard, 1) == ["1"]
        assert claim(shard) == ["2"]

    def test_without_priorities_there_are_no_keys_for_them(self, store, client):
        shard = shard_of(store)
        push(shard, None, 0)
        assert not client.exists(PRIORITIZED, BY_PRIORITY)

    def test_a_task_with_other_policies_as_well(self, store):
        shard = shard_of(store, keep=1, rate_per_id=0.001)
        push(shard, 4, 2)
        assert claim(shard) == ["1", "0"]
        take(store, shard.spec, owner="next")
        shard.lease = take(store, shard.spec, owner="one more")
        assert claim(shard) == []
        assert priorities(shard, "0", "1") == [4, 2]
        assert shard.waiting("1").perform_in > 1e9


class TestMerging:
    def test_a_merged_job_takes_the_more_urgent_one_and_keeps_its_time(self, store):
        shard = shard_of(store)
        for time_, priority in ((1.0, 5), (2.0, 2), (3.0, 9)):
            store.push(shard.spec, [Call("1", b"%d" % priority, perform_in=time_, priority=priority)])
        job = shard.waiting()
        assert (job.priority, job.perform_in, job.payload_count) == (2, 1.0, 3)

    def test_a_call_without_a_priority_is_the_most_urgent(self, store, client):
        shard = shard_of(store)
        push(shard, 5, at=7.0)
        shard.push("0", b"other", perform_in=9.0)
        assert (shard.waiting("0").priority, shard.waiting("0").perform_in) == (0, 7.0)
        assert not client.exists(PRIORITIZED, BY_PRIORITY)

    def test_calls_of_one_push_are_merged_as_well(self, store):
        shard = shard_of(store)
        store.push(shard.spec, [Call("1", b"a", priority=5), Call("1", b"b", priority=3)])
        assert priorities(shard, "1") == [3]

    def test_the_tasks_priority_is_that_of_calls_without_one(self, store):
        shard = shard_of(store, priority=4)
        push(shard, None, 0, 9)
        assert priorities(shard, "0", "1", "2") == [4, 0, 9]

    def test_what_a_claim_leaves_of_a_long_job_keeps_its_priority(self, store):
        shard = shard_of(store)
        jobs = [Call("1", b"%d" % n, float(n), perform_in=1.0, priority=6) for n in range(1005)]
        store.push(shard.spec, jobs)
        (job,) = shard.run()
        assert (len(job.payloads), job.priority) == (1000, 6)
        assert (shard.waiting().payload_count, shard.waiting().priority) == (5, 6)

    def test_a_job_that_failed_meets_a_more_urgent_one(self, store):
        shard = shard_of(store)
        push(shard, 5)
        (job,) = shard.claim()
        store.push(shard.spec, [Call("0", b"y", priority=1)])
        settlement = Settlement("0", job.claim, Disposition.RETRY, 0, 1000.0, b"boom")
        store.settle(shard.spec, shard.lease, [settlement])
        assert (shard.waiting("0").priority, shard.waiting("0").retry_count) == (1, 0)

    def test_a_less_urgent_retry_meets_an_urgent_one(self, store):
        shard = shard_of(store, retry_priority=9)
        push(shard, None)
        (job,) = shard.claim()
        push(shard, None)
        store.settle(
            shard.spec, shard.lease, [Settlement("0", job.claim, Disposition.RETRY, 0, 1000.0, b"boom")]
        )
        assert (shard.waiting("0").priority, shard.waiting("0").retry_count) == (0, 0)


class TestAfterARun:
    @pytest.mark.parametrize("before", [None, 5])
    @pytest.mark.parametrize("retry_priority", [None, 0, 9])
    def test_a_retry_has_its_own_priority_or_that_of_retries(self, store, before, retry_priority):
        shard = shard_of(store, retry_priority=retry_priority)
        push(shard, before)
        shard.run(Disposition.RETRY, retry_count=0, delay=1000.0)
        assert priorities(shard, "0") == [(before or 0) if retry_priority is None else retry_priority]

    def test_a_returned_one_keeps_its_own(self, store):
        shard = shard_of(store, retry_priority=9)
        push(shard, 5)
        shard.run(Disposition.RETURN)
        assert (shard.waiting("0").priority, shard.waiting("0").perform_in) == (5, 1.0)

    def test_what_is_left_of_a_job_that_died_is_new(self, store):
        shard = shard_of(store, priority=2, retry_priority=9)
        store.push(shard.spec, [Call("0", b"a", 1.0), Call("0", b"b", 2.0)])
        shard.run(Disposition.RETRY, retry_count=0)
        assert priorities(shard, "0") == [9]
        shard.run(Disposition.DIE)
        assert priorities(shard, "0") == [2]

    def test_a_recovered_one_keeps_its_own(self, store):
        shard = shard_of(store)
        push(shard, 5)
        assert [job.priority for job in shard.claim()] == [5]
        take(store, shard.spec, owner="next")
        assert priorities(shard, "0") == [5]

    def test_out_of_the_morgue_it_has_the_tasks(self, store):
        shard = shard_of(store, priority=4)
        push(shard, 9)
        shard.run(Disposition.BURY)
        Actions(store.client).requeue(shard.spec, ["0"])
        assert priorities(shard, "0") == [4]


class TestElsewhere:
    """Whatever knows waiting jobs knows these."""

    def test_they_are_counted_and_listed(self, store):
        shard = shard_of(store)
        push(shard, None, 5, 3)
        stats = shard.queries.stats(shard.spec)
        assert (stats.length, stats.fresh) == (3, 3)
        assert stats.lag > 1e9
        assert stats.oldest > 1e9
        by_time = shard.queries.jobs(shard.spec, Listing("perform_in")).items
        assert [(job.id, job.perform_in, job.priority) for job in by_time] == [
            ("0", 1.0, 0),
            ("1", 2.0, 5),
            ("2", 3.0, 3),
        ]
        assert {job.id for job in shard.queries.jobs(shard.spec).items} == {"0", "1", "2"}

    def test_when_there_is_work_next(self, store):
        shard = shard_of(store)
        push(shard, 5, None, at=5.0)
        (due,) = store.next_due([SHARD])
        assert due.next_due == 5.0

    def test_workers_hear_of_them(self, store):
        shard = shard_of(store)
        with listening(store) as heard:
            push(shard, 5, at=6e9)
            assert heard() == (SHARD, 6e9)
            push(shard, 5, 5, at=7e9)
            store.push(ONE, [Call("sooner", b"x", perform_in=5e9, priority=9)])
            assert heard() == (SHARD, 5e9)

    def test_a_paused_id_keeps_its_priority(self, store, client):
        shard, pausing = shard_of(store), Pausing(store.client)
        push(shard, 5, 7, None)
        assert pausing.switch_ids(shard.spec, ["0", "2", "new"], paused=True) == 3
        store.push(shard.spec, [Call("new", b"x", perform_in=4.0, priority=6)])
        store.push(shard.spec, [Call("0", b"y", priority=3)])
        assert [job.paused for job in map(shard.waiting, ["0", "1", "2", "new"])] == [True, False, True, True]
        assert priorities(shard, "0", "1", "2", "new") == [3, 7, 0, 6]
        assert claim(shard) == ["1"]
        pausing.switch_ids(shard.spec, ["0", "2", "new"], paused=False)
        assert priorities(shard, "0", "2", "new") == [3, 0, 6]
        assert claim(shard) == ["2", "0", "new"]
        assert not client.exists(PRIORITIZED, BY_PRIORITY)

    def test_a_paused_id_is_not_claimed(self, store):
        shard = shard_of(store)
        push(shard, 5, 7)
        Pausing(store.client).switch_ids(shard.spec, ["0"], paused=True)
        assert claim(shard) == ["1"]

    def test_they_are_made_due(self, store):
        shard = shard_of(store)
        push(shard, 5, 3, 4, at=4e9)
        assert Actions(store.client).run_now(shard.spec, ["0"]) == 1
        assert claim(shard) == ["0"]
        assert Actions(store.client).run_now_all(shard.spec) == 2
        assert claim(shard) == ["1", "2"]

    def test_deleted_and_killed_ones_leave_nothing_behind(self, store, client):
        shard = shard_of(store)
        push(shard, 5, 3, 4)
        actions = Actions(store.client)
        assert actions.delete(shard.spec, ["0"]) == 1
        assert actions.bury(shard.spec, ["1"], b"by hand") == 1
        assert actions.edit(shard.spec, "2", b"x", None)
        assert not client.exists(PRIORITIZED, BY_PRIORITY)
        assert actions.delete_dead(shard.spec, ["1"]) == 1

    def test_the_morgue_of_an_id_leaves_its_waiting_job_alone(self, store):
        shard = shard_of(store)
        push(shard, 5)
        shard.run(Disposition.BURY)
        push(shard, 5)
        assert Actions(store.client).delete_dead(shard.spec, ["0"]) == 1
        assert claim(shard) == ["0"]

    def test_a_full_queue_counts_them_and_drops_them_first(self, store):
        shard = shard_of(store, max_length=2, when_full=WhenFull.DROP_OLDEST)
        push(shard, None, 5)
        store.push(shard.spec, [Call("2", b"x")])
        assert (shard.waiting("1"), shard.queries.stats(shard.spec).length) == (None, 2)

    def test_why_counts_who_comes_before(self, store):
        shard = shard_of(store)
        push(shard, 5, 0, 3, 5, 9)
        store.push(shard.spec, [Call("later", b"x", perform_in=4e9)])
        look = Diagnosis(store.client)
        ahead = [
            look.facts(shard.spec, f"{n}", rate=None, max_retries=None, read=lambda _: None).waiting.ahead
            for n in range(5)
        ]
        assert ahead == [2, 0, 1, 3, 4]

    def test_a_debounced_and_an_early_one_keep_theirs(self, store):
        shard = shard_of(store, debounce=100.0)
        push(shard, 5)
        push(shard, 7)
        assert priorities(shard, "0") == [5]
        assert shard.waiting("0").perform_in > 1e9


def test_an_urgent_call_behind_thousands_is_the_next(store):
    shard = shard_of(store)
    push(shard, *[9] * 5000)
    store.push(shard.spec, [Call("urgent", b"x", priority=1)])
    assert claim(shard, 2) == ["urgent", "0"]


@pytest.mark.parametrize("priority", [1, 5, 9])
def test_what_a_dead_owner_left_runs_in_the_order_of_its_claims(store, priority):
    shard = shard_of(store)
    order = [f"{n}" for n in range(8, -1, -1)]
    for job_id in order:
        store.push(shard.spec, [Call(job_id, b"x", perform_in=1.0, priority=priority)])
        assert claim(shard) == [job_id]
    shard.lease = take(store, shard.spec, owner="next")
    found = []
    while some := claim(shard, 1):
        found += some
        shard.store.settle(
            shard.spec, shard.lease, [Settlement(some[0], len(order) + len(found), Disposition.DONE)]
        )
    assert found == order


@pytest.mark.parametrize("when", [2e10, 1e11, 1e300])
def test_a_time_beyond_all_others_changes_no_priority(store, when):
    shard = shard_of(store)
    store.push(shard.spec, [Call("1", b"x", perform_in=when, priority=5)])
    assert (shard.waiting().priority, shard.waiting().perform_in) == (5, when)
    Actions(store.client).run_now_all(shard.spec)
    assert claim(shard) == ["1"]


def test_a_full_queue_drops_what_is_urgent_when_nothing_else_can_go(store):
    """Long jobs cannot be dropped at once."""
    shard = shard_of(store, max_length=20, when_full=WhenFull.DROP_OLDEST)
    for n in range(16):
        long = [Call(f"long {n}", b"%d" % m + b"x" * 500, perform_in=1.0, priority=5) for m in range(20)]
        store.push(shard.spec, long)
    for n in range(5):
        store.push(shard.spec, [Call(f"{n}", b"x", perform_in=2.0 + n)])
    assert (shard.waiting("0"), shard.waiting("4") is None) == (None, False)
