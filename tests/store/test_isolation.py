"""O7: a claim takes isolated jobs apart from others, in batches as small as each of them asks for."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.models import Disposition, NewJob
from celery_lowkiq.rules.policies import NOT_ISOLATED, Isolation
from celery_lowkiq.store.actions import Actions, Pausing
from celery_lowkiq.store.listings import Listing

from .helpers import take
from .shard import Shard

PAIRS = Isolation(2, 2)
ALONE = Isolation(1, 4)


@pytest.fixture
def shard(store):
    return Shard(store)


def ids(jobs):
    return [job.id for job in jobs]


def fail_as(shard, outcomes):
    """Jobs that have failed in one run, and are due again: retry_count and isolation by id."""
    shard.store.push(shard.spec, [NewJob(job_id, b"x") for job_id in outcomes])
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
        Pausing(shard.store.client).pause_ids(shard.spec, ["a"])
        Pausing(shard.store.client).resume_ids(shard.spec, ["a"])
    elif how == "made due":
        Actions(shard.store).run_now_all(shard.spec)
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
    Actions(shard.store).requeue(shard.spec, ["a"])
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
    shard.store.push(shard.spec, [NewJob(job_id, b"x") for job_id in "abc"])
    client = shard.store.client.redis
    client.config_resetstat()
    shard.claim()
    calls = {name: stat["calls"] for name, stat in client.info("commandstats").items()}
    assert calls["cmdstat_hmget"]
    assert not {"cmdstat_zscore", "cmdstat_zmscore"} & calls.keys()
