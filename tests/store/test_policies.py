"""Tests of ``rules/policies.py``."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from celery_lowkiq.rules.models import Call, Disposition, PayloadRemoval, RemovalReason, Settlement
from celery_lowkiq.rules.policies import NOT_ISOLATED, AfterFailure, Isolation, Policies
from celery_lowkiq.store.actions import DEAD
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.listings import Listing
from tests.bound import Actions, Pausing
from tests.store.helpers import take
from tests.store.shard import Shard

# Policies of a queue: what of an id runs, and when its job is due.


def reads(store):
    """How often payloads of long jobs were looked at."""
    (info,) = store.client.commands([("INFO", "commandstats")])
    return info.get("cmdstat_zrangebylex", {"calls": 0})["calls"]


def hasten(shard):
    """Its time has come."""
    Actions(shard.store.client).run_now(shard.spec, ["1"])


class TestDebounce:
    def test_each_call_puts_the_job_off(self, store):
        shard = Shard(store, debounce=100.0)
        shard.push("1", b"a")
        first = shard.waiting().perform_in
        shard.push("1", b"b")
        assert 0 < shard.waiting().perform_in - first < 50
        assert shard.claim() == ()

    def test_at_most_so_long_after_the_first_call(self, store):
        shard = Shard(store, debounce=100.0, debounce_max=100.0)
        shard.push("1", b"a")
        first = shard.waiting().perform_in
        shard.push("1", b"b")
        assert shard.waiting().perform_in == first

    def test_never_before_a_given_time(self, store):
        shard = Shard(store, debounce=1.0, debounce_max=2.0)
        shard.push("1", b"a", perform_in=4e9)
        shard.push("1", b"b")
        assert shard.waiting().perform_in == 4e9

    def test_the_first_call_after_a_claim_is_a_first_one(self, store, client):
        shard = Shard(store, debounce=0.001, debounce_max=0.002)
        shard.push("1", b"a", perform_in=1.0)
        client.hset("lowkiq:1:{orders:0}:debounce", "1", "1000000 1.0")
        client.zadd("lowkiq:1:{orders:0}:due", {"1": 1.0})
        assert [job.id for job in shard.claim()] == ["1"]
        shard.push("1", b"b")
        assert shard.waiting().perform_in > 1e9

    @pytest.mark.parametrize("portion", [{}, {"per_run": 2}], ids=["1,000 payloads", "max_payloads_per_run"])
    def test_what_a_claim_leaves_is_not_put_off_anew(self, store, portion):
        shard = Shard(store, debounce=100.0, **portion)
        calls = [Call("1", b"%d" % n, n) for n in range(1001)]
        store.push(shard.spec, calls)
        hasten(shard)
        assert len(shard.claim()[0].payloads) == portion.get("per_run", 1000)
        before = shard.waiting().perform_in
        store.push(shard.spec, [Call("1", b"new", 2000)])
        assert shard.waiting().perform_in == before <= time.time()

    def test_what_a_run_leaves_runs_when_it_said(self, store):
        shard = Shard(store, debounce=1.0, debounce_max=1.0)
        shard.push("1", b"a")
        hasten(shard)
        (job,) = shard.claim()
        shard.push("1", b"meanwhile")
        shard.end(job, Disposition.RETURN, delay=1000.0)
        before = shard.waiting().perform_in
        shard.push("1", b"b")
        assert shard.waiting().perform_in == before > time.time() + 500

    def test_a_job_that_failed_is_not_put_off(self, store):
        shard = Shard(store, debounce=0.000001)
        shard.push("1", b"a", perform_in=1.0)
        shard.run(Disposition.RETRY, retry_count=0, delay=1000.0)
        before = shard.waiting().perform_in
        shard.push("1", b"b")
        assert shard.waiting().perform_in == before


class TestStale:
    def test_a_payload_below_one_that_was_processed_is_dropped(self, store):
        shard = Shard(store, drop_stale=1000.0)
        shard.push("1", b"5", 5)
        shard.run()
        shard.push("1", b"3", 3)
        assert (shard.waiting(), shard.dropped) == (None, 1)

    def test_an_equal_score_passes(self, store):
        shard = Shard(store, drop_stale=1000.0)
        shard.push("1", b"5", 5)
        shard.run()
        shard.push("1", b"other", 5)
        (job,) = shard.claim()
        assert job.unwanted == 0

    def test_what_came_while_a_newer_one_ran_is_dropped_by_its_run(self, store):
        shard = Shard(store, drop_stale=1000.0)
        shard.push("1", b"5", 5)
        (running,) = shard.claim()
        shard.push("1", b"3", 3)
        shard.push("1", b"6", 6)
        store.settle(shard.spec, shard.lease, [Settlement("1", running.claim, Disposition.DONE)])
        (job,) = shard.claim()
        assert ([p.data for p in job.payloads], job.unwanted) == ([b"3", b"6"], 1)

    def test_a_failure_leaves_no_mark(self, store):
        shard = Shard(store, drop_stale=1000.0)
        shard.push("1", b"5", 5)
        shard.run(Disposition.BURY, error=b"boom")
        shard.push("1", b"3", 3)
        assert shard.payloads() == [b"3"]

    @pytest.mark.parametrize("size", [1, 100])
    def test_a_dead_payload_comes_back_by_force_only(self, store, size):
        shard = Shard(store, drop_stale=1000.0)
        shard.push("1", b"3" * size, 3)
        shard.push("1", b"9" * size, 9)
        shard.run(Disposition.BURY, error=b"boom")
        shard.push("1", b"5", 5)
        shard.run()
        actions = Actions(store.client)
        assert actions.requeue(shard.spec, DEAD) == 1
        assert shard.payloads() == [b"9" * size]
        assert [p.data for p in shard.queries.job(shard.spec, "1").dead.payloads] == [b"3" * size]
        assert actions.requeue(shard.spec, DEAD) == 0
        assert actions.requeue(shard.spec, DEAD, force=True) == 1
        assert shard.queries.job(shard.spec, "1").dead is None
        (job,) = shard.claim()
        assert ([p.data for p in job.payloads], job.unwanted) == ([b"3" * size, b"9" * size], 0)

    def test_many_dead_payloads_come_back_in_steps(self, store):
        shard = Shard(store, drop_stale=1000.0)
        for n in range(2500):
            shard.push("1", b"%04d" % n, n)
        while shard.run(Disposition.BURY, error=b"boom"):
            pass
        shard.push("1", b"now", 1200)
        shard.run()
        assert Actions(store.client).requeue(shard.spec, DEAD) == 1
        assert shard.waiting().payload_count == 1300
        assert shard.queries.job(shard.spec, "1").dead.payload_count == 1200

    def test_what_again_leaves_is_not_stale(self, store):
        shard = Shard(store, drop_stale=1000.0)
        for score in (1, 2, 3, 4):
            shard.push("1", b"%d" % score, score)
        done = tuple(PayloadRemoval(position, None, RemovalReason.DONE) for position in (0, 2, 3))
        shard.run(Disposition.RETURN, bad=done)
        (job,) = shard.claim()
        assert ([p.data for p in job.payloads], job.unwanted, shard.dropped) == ([b"2"], 0, 0)
        shard.push("1", b"early", 0.5)
        assert shard.dropped == 1

    def test_an_empty_queue_with_marks_takes_another_number_of_shards(self, store):
        shard = Shard(store, drop_stale=1000.0, debounce=1e-6)
        shard.push("1", b"5", 5)
        shard.run()
        store.release(shard.lease)
        wider = replace(shard.spec, shards=4)
        store.push(wider, [Call(str(n), b"x") for n in range(9)])
        assert shard.queries.stats(wider).length == 9

    def test_marks_vanish_where_nothing_is_processed_any_more(self, store, client):
        shard = Shard(store, drop_stale=1000.0)
        shard.push("1", b"5", 5)
        shard.run()
        assert 900 < client.ttl("lowkiq:1:{orders:0}:done_scores") <= 1000

    def test_old_marks_are_swept(self, store, client):
        shard = Shard(store, drop_stale=1000.0)
        client.hset("lowkiq:1:{orders:0}:done_scores", "gone", "5 1000")
        shard.push("1", b"5", 5)
        shard.run()
        assert client.hkeys("lowkiq:1:{orders:0}:done_scores") == [b"1"]


class TestAfterFailure:
    def failed(self, store):
        shard = Shard(store, when_pushed_after_failure=AfterFailure.NOW)
        shard.push("1", b"a", 1)
        shard.run(Disposition.RETRY, retry_count=2, delay=1000.0, error=b"boom")
        return shard, shard.waiting().perform_in

    def test_a_call_makes_the_job_due(self, store):
        shard, own = self.failed(store)
        shard.push("1", b"b", 2)
        (job,) = shard.claim()
        assert (job.early, job.perform_in, job.retry_count) == (True, own, 2)

    def test_a_failure_puts_its_time_back(self, store):
        shard, own = self.failed(store)
        shard.push("1", b"b", 2)
        shard.run(Disposition.RETRY, retry_count=2, perform_in=own, error=b"again")
        assert (shard.waiting().perform_in, shard.waiting().retry_count) == (own, 2)
        assert shard.claim() == ()

    def test_what_was_returned_is_due_again_and_still_early(self, store):
        shard, own = self.failed(store)
        shard.push("1", b"b", 2)
        shard.run(Disposition.RETURN)
        (job,) = shard.claim()
        assert (job.early, job.perform_in) == (True, own)

    def test_what_its_owner_left_is_due_again_and_still_early(self, store):
        shard, own = self.failed(store)
        shard.push("1", b"b", 2)
        (job,) = shard.claim()
        store.release(shard.lease, unsettled=True)
        shard.lease = take(store, shard.spec)
        (again,) = shard.claim()
        assert (again.early, again.perform_in, again.retry_count) == (True, own, job.retry_count)

    def test_a_paused_id_is_due_when_it_is_resumed(self, store):
        shard, own = self.failed(store)
        pausing = Pausing(store.client)
        pausing.switch_ids(shard.spec, ["1"], paused=True)
        shard.push("1", b"b", 2)
        assert shard.claim() == ()
        pausing.switch_ids(shard.spec, ["1"], paused=False)
        (job,) = shard.claim()
        assert (job.early, job.perform_in) == (True, own)

    def test_a_deleted_job_leaves_nothing_behind(self, store, client):
        shard, _ = self.failed(store)
        shard.push("1", b"b", 2)
        Actions(store.client).delete(shard.spec, ["1"])
        assert not client.exists("lowkiq:1:{orders:0}:early_due")


class TestPortions:
    """``max_payloads_per_run``: a claim takes no more of an id than its run gets."""

    @pytest.fixture
    def shard(self, store):
        shard = Shard(store, per_run=2)
        for score in (3, 1, 2):
            shard.push("1", b"%d" % score, score, perform_in=1.0)
        return shard

    def test_the_lowest_scores_run_and_the_rest_waits_behind_what_is_due(self, shard):
        shard.push("2", b"x", perform_in=2.0)
        (job, _) = shard.claim()
        assert ([payload.data for payload in job.payloads], shard.payloads()) == ([b"1", b"2"], [b"3"])
        assert shard.waiting().perform_in > 2.0
        assert shard.claim() == ()
        shard.end(job)
        (rest,) = shard.claim()
        assert [payload.data for payload in rest.payloads] == [b"3"]

    def test_what_is_left_alone_is_not_even_read(self, store):
        """A claim of two of very many payloads costs as much as one of two of few."""
        shard = Shard(store, per_run=2)
        for score in range(300):
            shard.push("1", b"%03d" % score * 20, score)
        read = reads(store)
        (job,) = shard.claim()
        assert len(job.payloads) == 2
        # One payload, three more, and the rest of a step.
        assert reads(store) - read == 3
        assert shard.waiting().payload_count == 298

    def test_a_failure_is_the_whole_jobs(self, shard):
        (job,) = shard.claim()
        shard.end(job, Disposition.RETRY, retry_count=0, delay=60.0, error=b"boom")
        waiting = shard.waiting()
        assert (shard.payloads(), waiting.retry_count, waiting.error) == ([b"1", b"2", b"3"], 0, b"boom")
        assert shard.claim() == ()

    def test_parts_that_are_done_leave_the_count_as_it_is(self, shard):
        (job,) = shard.claim()
        shard.end(job, Disposition.RETRY, retry_count=4, error=b"boom")
        (job,) = shard.claim()
        assert (job.retry_count, job.error) == (4, b"boom")
        shard.end(job)
        (rest,) = shard.claim()
        assert ([payload.data for payload in rest.payloads], rest.retry_count) == ([b"3"], 4)
        shard.end(rest)
        assert shard.waiting() is None

    def test_a_payload_that_runs_alone_has_failed_alone(self, store, client):
        shard = Shard(store, per_run=1, when_pushed_after_failure=AfterFailure.NOW)
        for score in (1, 2, 3):
            shard.push("1", b"%d" % score, score, perform_in=1.0)
        shard.run(Disposition.RETRY, retry_count=4, error=b"boom")
        (job,) = shard.claim()
        assert (job.payloads[0].data, job.retry_count, job.error) == (b"1", 4, b"boom")
        waiting = shard.waiting()
        assert (shard.payloads(), waiting.retry_count, waiting.error) == ([b"2", b"3"], -1, None)
        shard.end(job, Disposition.RETRY, retry_count=5, error=b"bang")
        assert (shard.waiting().retry_count, shard.payloads()) == (5, [b"1", b"2", b"3"])

    @pytest.mark.parametrize("size", [1, 600])
    @pytest.mark.parametrize("policies", [{}, {"when_pushed_after_failure": AfterFailure.NOW}])
    def test_a_failure_does_not_pass_to_a_payload_that_gets_in_front(self, store, size, policies):
        shard = Shard(store, per_run=1, **policies)
        shard.push("1", b"5" * size, 5, perform_in=1.0)
        shard.run(Disposition.RETRY, retry_count=4, delay=-1.0, error=b"boom")
        shard.push("1", b"7" * size, 7, perform_in=1.0)
        assert shard.waiting().retry_count == 4
        shard.push("1", b"3" * size, 3, perform_in=1.0)
        (job,) = shard.claim()
        assert (job.payloads[0].data, job.retry_count, job.early) == (b"3" * size, -1, False)
        assert (shard.waiting().retry_count, shard.waiting().error) == (-1, None)
        shard.push("1", b"2" * size, 2, perform_in=1.0)
        shard.end(job, Disposition.RETRY, retry_count=0, delay=-1.0, error=b"bang")
        assert (shard.waiting().retry_count, shard.waiting().error) == (-1, None)

    def test_nor_to_the_one_behind_an_edited_payload(self, store):
        shard = Shard(store, per_run=1)
        for score in (1, 2):
            shard.push("1", b"%d" % score, score, perform_in=1.0)
        shard.run(Disposition.RETRY, retry_count=4, error=b"boom")
        actions = Actions(store.client)
        actions.edit(shard.spec, "1", b"2", b"3")
        assert shard.waiting().retry_count == 4
        actions.edit(shard.spec, "1", b"1", None)
        assert (shard.payloads(), shard.waiting().retry_count) == ([b"3"], -1)

    def test_a_call_that_supersedes_a_failed_one_has_retries_of_its_own(self, store):
        shard = Shard(store, keep=1, anew_on_push=True, when_pushed_after_failure=AfterFailure.NOW)
        shard.push("1", b"1", 1, perform_in=1.0)
        shard.run(Disposition.RETRY, retry_count=4, delay=1000.0, error=b"boom")
        shard.push("1", b"2", 2, perform_in=1.0)
        (job,) = shard.claim()
        assert (job.payloads[0].data, job.retry_count, job.error, job.early) == (b"2", -1, None, False)

    def test_a_death_takes_the_first_payload_and_the_others_start_anew(self, shard):
        (job,) = shard.claim()
        shard.end(job, Disposition.DIE, error=b"boom")
        assert (shard.payloads(), shard.waiting().retry_count) == ([b"2", b"3"], -1)

    def test_also_when_the_run_got_no_other(self, store, client):
        shard = Shard(store, per_run=1, when_pushed_after_failure=AfterFailure.NOW)
        for score in (1, 2, 3):
            shard.push("1", b"%d" % score, score, perform_in=1.0)
        shard.run(Disposition.RETRY, retry_count=0, delay=1000.0, error=b"boom")
        shard.push("1", b"4", 4, perform_in=1.0)
        (job,) = shard.claim()
        shard.end(job, Disposition.DIE, error=b"boom")
        waiting = shard.waiting()
        assert (shard.payloads(), waiting.retry_count, waiting.error) == ([b"2", b"3", b"4"], -1, None)
        assert not client.exists("lowkiq:1:{orders:0}:early_due")
        (job,) = shard.claim()
        assert (job.retry_count, job.early) == (-1, False)

    def test_they_take_the_priority_of_their_task(self, store):
        shard = Shard(store, per_run=1, priority=4, retry_priority=9)
        for score in (1, 2):
            shard.push("1", b"%d" % score, score, perform_in=1.0)
        shard.run(Disposition.RETRY, retry_count=0, error=b"boom")
        shard.run(Disposition.DIE, error=b"boom")
        (job,) = shard.claim()
        assert (job.priority, job.retry_count) == (4, -1)


def test_a_first_call_that_was_forgotten_puts_nothing_forward(store):
    """Debounced calls were claimed by a worker that did not know of that policy yet."""
    shard = Shard(store, debounce=100.0, debounce_max=100.0)
    shard.push("1")
    store.client.commands([("HSET", shard_keys(shard.lease.shard)["debounce"], "1", "1000000 0")])
    store.client.commands([("ZADD", shard_keys(shard.lease.shard)["due"], 1, "1")])
    plain = replace(shard.spec, policies=Policies())
    shard.requests += 1
    (job,) = store.claim(plain, shard.lease, shard.requests).jobs
    shard.end(job)
    before = time.time()
    shard.push("1")
    assert shard.waiting().perform_in > before + 90


# O7: a claim takes isolated jobs apart from others, in batches as small as each of them asks for.

PAIRS = Isolation(2, 2)
ALONE = Isolation(1, 4)


@pytest.fixture
def shard(store):
    return Shard(store)


def ids(jobs):
    return [job.id for job in jobs]


def fail_as(shard, outcomes):
    """Jobs that have failed in one run, and are due again: retry_count and isolation by id."""
    shard.store.push(shard.spec, [Call(job_id, b"x") for job_id in outcomes])
    jobs = shard.claim()
    assert ids(jobs) == sorted(outcomes)
    for job in jobs:
        retry_count, isolation = outcomes[job.id]
        shard.end(job, Disposition.RETRY, retry_count=retry_count, isolation=isolation)


def fail(shard, job_ids, isolation=PAIRS, retry_count=0):
    """The same for all."""
    fail_as(shard, dict.fromkeys(job_ids, (retry_count, isolation)))


def test_a_batch_is_as_small_as_each_of_its_jobs_asks_for(shard):
    fail(shard, ["a", "b", "c"])
    assert [ids(shard.claim()) for _ in range(3)] == [["a", "b"], ["c"], []]


def test_one_that_runs_alone_lets_others_pass(shard):
    fail_as(shard, {"a": (0, PAIRS), "b": (0, ALONE), "c": (0, PAIRS)})
    assert [ids(shard.claim()) for _ in range(3)] == [["a", "c"], ["b"], []]


def test_isolated_jobs_do_not_run_with_others(shard):
    fail(shard, ["a", "b"])
    for job_id in ("c", "d", "e"):
        shard.push(job_id, perform_in=0.5)
    assert [ids(shard.claim()) for _ in range(2)] == [["c", "d", "e"], ["a", "b"]]


def test_a_job_that_failed_by_itself_runs_with_others(shard):
    fail(shard, ["a"], NOT_ISOLATED)
    shard.push("b")
    assert set(ids(shard.claim())) == {"a", "b"}


def test_a_claim_returns_the_isolation_also_when_repeated(shard):
    fail(shard, ["a", "b"])
    jobs = shard.claim()
    assert [(job.retry_count, job.isolation) for job in jobs] == [(0, PAIRS)] * 2
    again = shard.store.claim(shard.spec, shard.lease, shard.requests).jobs
    assert again == jobs


@pytest.mark.parametrize("how", ["returned", "taken over", "paused", "made due", "merged"])
def test_isolation_stays_until_the_job_has_run(shard, how):
    fail(shard, ["a"], ALONE, retry_count=3)
    if how == "returned":
        shard.run(Disposition.RETURN)
    elif how == "taken over":
        shard.claim()
        shard.store.renew([shard.lease], stopping=True)
        shard.lease = take(shard.store, shard.spec, owner="another")
    elif how == "paused":
        Pausing(shard.store.client).switch_ids(shard.spec, ["a"], paused=True)
        Pausing(shard.store.client).switch_ids(shard.spec, ["a"], paused=False)
    elif how == "made due":
        Actions(shard.store.client).run_now_all(shard.spec)
    else:
        shard.push("a", b"newer")
    assert (shard.waiting("a").retry_count, shard.waiting("a").isolation) == (3, ALONE)


def test_isolation_is_the_failed_jobs_when_a_newer_one_waits(shard):
    fail(shard, ["a"], PAIRS)
    (job,) = shard.claim()
    shard.push("a", b"newer")
    shard.end(job, Disposition.RETRY, retry_count=1, isolation=ALONE)
    assert shard.waiting("a").isolation == ALONE


@pytest.mark.parametrize("disposition", [Disposition.DONE, Disposition.DIE])
def test_isolation_ends_with_a_success_and_with_a_death(shard, disposition):
    fail(shard, ["a"], ALONE)
    shard.push("a", b"second", score=9e15)
    (job,) = shard.claim()
    assert len(job.payloads) == 2
    shard.end(job, disposition, error=b"boom")
    shard.push("a", b"third")
    assert shard.waiting("a").isolation == NOT_ISOLATED


def test_isolation_ends_when_the_job_comes_back_from_the_morgue(shard):
    shard.push("a")
    shard.run(Disposition.DIE, error=b"boom")
    fail(shard, ["a"], ALONE)
    Actions(shard.store.client).requeue(shard.spec, ["a"])
    assert shard.waiting("a").isolation == NOT_ISOLATED


def test_a_listing_by_retry_count_is_by_the_whole_number(shard):
    fail_as(shard, {"a": (1, PAIRS), "b": (2, NOT_ISOLATED), "c": (2, Isolation(500, 999)), "d": (3, ALONE)})
    page = shard.queries.jobs(shard.spec, Listing(by="retry_count", minimum=2, maximum=2))
    assert [(job.id, job.retry_count) for job in page.items] == [("b", 2), ("c", 2)]


def test_the_log_of_tries_has_the_whole_number(shard):
    shard.push("a")
    shard.run(Disposition.RETRY, retry_count=4, isolation=PAIRS, try_text=b"boom")
    (tried,) = shard.queries.tries(shard.spec, "a")
    assert tried.retry_count == 4


def test_nothing_is_asked_of_redis_for_it_while_nothing_has_failed(shard, redis_server):
    """The jobs of a window are claimed by the same commands as ever."""
    shard.store.push(shard.spec, [Call(job_id, b"x") for job_id in "abc"])
    client = shard.store.client.servers.redis
    client.config_resetstat()
    shard.claim()
    calls = {name: stat["calls"] for name, stat in client.info("commandstats").items()}
    assert calls["cmdstat_hmget"]
    assert not {"cmdstat_zscore", "cmdstat_zmscore"} & calls.keys()
