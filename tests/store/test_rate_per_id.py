"""A limit of each id: a claim skips ids without a token, and no other id waits for them."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.models import Call, Disposition, PayloadRemoval, RemovalReason, Settlement
from celery_lowkiq.rules.policies import AfterFailure
from celery_lowkiq.store.client import FakeClockClient
from celery_lowkiq.store.listings import Listing
from celery_lowkiq.store.redis_store import RedisStore
from tests.bound import Diagnosis, Pausing
from tests.store.helpers import take
from tests.store.test_policies import Shard

#: The clock of tests is a key, which is not in the slot of the scripts.
pytestmark = pytest.mark.one_server

#: Seconds until an id has its next token. A pause of a test is less than a tenth of them.
NEXT = 1000
RATE = 1 / NEXT
BUCKETS = "lowkiq:1:{orders:0}:buckets"


@pytest.fixture
def clocked(client):
    return RedisStore(client, sending=FakeClockClient)


def limited(clocked, rate=RATE, **policies):
    return Shard(clocked, rate_per_id=rate, **policies)


def ids(jobs):
    return [job.id for job in jobs]


def now(shard):
    return shard.store.client.now()


def due_in(shard, job_id="1"):
    return pytest.approx(shard.waiting(job_id).perform_in - now(shard), abs=0.1 * NEXT)


def test_an_id_runs_once_and_again_when_it_has_a_token(clocked):
    shard = limited(clocked)
    shard.push("1")
    assert ids(shard.run()) == ["1"]
    shard.push("1")
    assert shard.run() == ()
    assert due_in(shard) == NEXT
    clocked.client.move(0.9 * NEXT)
    assert shard.run() == ()
    clocked.client.move(0.15 * NEXT)
    assert ids(shard.run()) == ["1"]


def test_its_diagnosis_has_the_time_of_its_next_token(clocked):
    shard = limited(clocked)
    shard.push("1")
    shard.run()
    shard.push("1")
    found = Diagnosis(clocked.client).facts(shard.spec, "1", rate=None, max_retries=None, read=lambda _: None)
    assert found.id_token_at - found.now == pytest.approx(NEXT, abs=0.1 * NEXT)


def test_other_ids_do_not_wait_for_it(clocked):
    shard = limited(clocked)
    shard.push("1")
    shard.run()
    shard.push("1", perform_in=1.0)
    shard.push("2", perform_in=2.0)
    assert ids(shard.run()) == ["2"]


def test_what_is_limited_is_not_due(clocked):
    """A scheduler would pick its shard again and again."""
    shard = limited(clocked)
    shard.push("1")
    shard.run()
    shard.push("1", perform_in=1.0)
    shard.claim()
    stats = shard.queries.stats(shard.spec)
    assert (stats.lag, stats.length) == (0, 1)


def test_a_tenth_of_a_second_gathers(clocked):
    rate = 30.0
    shard = limited(clocked, rate=rate)
    for _ in range(2):
        began = now(shard)
        for _ in range(3):
            shard.push("1", perform_in=1.0)
            assert shard.run()
        shard.push("1", perform_in=1.0)
        fourth = shard.run()
        # On a slow machine, the next token comes before the fourth run.
        assert not fourth or now(shard) - began >= 1 / rate
        clocked.client.move(60)
        assert bool(shard.run()) is not bool(fourth)
        clocked.client.move(60)


def test_a_claim_looks_at_a_bounded_number(clocked):
    """Its limit of 100, and 100 more; the next one goes on from there."""
    shard = limited(clocked)
    names = [f"{n}" for n in range(300)]
    clocked.push(shard.spec, [Call(name, b"x", perform_in=1.0) for name in names])
    assert [len(shard.run()) for _ in range(3)] == [100] * 3
    clocked.push(shard.spec, [Call(name, b"x", perform_in=1.0) for name in names])
    shard.push("free")
    now = clocked.client.now()
    assert shard.claim() == ()
    assert len(shard.queries.jobs(shard.spec, Listing("perform_in", maximum=now, limit=1000)).items) == 101
    assert ids(shard.claim()) == ["free"]


@pytest.mark.parametrize("delay, left", [(1000.0 * NEXT, 1000 * NEXT), (0.2 * NEXT, NEXT)])
def test_a_retry_costs_a_token_too_and_its_own_later_time_wins(clocked, delay, left):
    shard = limited(clocked)
    shard.push("1")
    shard.run(Disposition.RETRY, retry_count=0, delay=delay)
    clocked.client.move(min(delay, 0.5 * NEXT))
    shard.claim()
    clocked.client.move(-min(delay, 0.5 * NEXT))
    assert due_in(shard) == left
    assert shard.waiting().retry_count == 0


def test_what_is_returned_unstarted_gets_its_token_back(clocked):
    shard = limited(clocked)
    shard.push("1")
    assert shard.run(Disposition.RETURN)
    assert shard.run()
    shard.push("1")
    assert shard.run() == ()


@pytest.mark.parametrize("reason", [None, b"undecodable"])
@pytest.mark.parametrize("disposition", [Disposition.DONE, Disposition.RETURN])
def test_neither_does_a_claim_that_leaves_nothing_to_run(clocked, disposition, reason):
    shard = limited(clocked)
    shard.push("1")
    assert shard.run(disposition, bad=(PayloadRemoval(0, reason),))
    shard.push("1")
    assert shard.run()
    shard.push("1")
    assert shard.run() == ()


@pytest.mark.parametrize(
    "settlement",
    [
        {"bad": (PayloadRemoval(0, None),)},
        {
            "bad": (PayloadRemoval(0, None), PayloadRemoval(1, None, RemovalReason.OVER)),
            "disposition": Disposition.BURY,
        },
        {
            "bad": (PayloadRemoval(0, None), PayloadRemoval(1, None, RemovalReason.DONE)),
            "disposition": Disposition.RETURN,
            "delay": 0.001,
        },
    ],
)
def test_a_run_of_some_payloads_costs_one(clocked, settlement):
    shard = limited(clocked)
    shard.push("1", b"dropped", 1)
    shard.push("1", b"runs", 2)
    assert shard.run(**settlement)
    shard.push("1")
    assert shard.run() == ()


def test_what_began_and_was_put_off_does_not(clocked):
    shard = limited(clocked)
    shard.push("1")
    assert shard.run(Disposition.RETURN, delay=0.001)
    clocked.client.move(1)
    assert shard.run() == ()


def test_a_repeated_claim_costs_nothing(clocked):
    shard = limited(clocked)
    shard.push("1")
    first = shard.claim()
    shard.requests -= 1
    assert shard.claim() == first
    shard.store.settle(shard.spec, shard.lease, [Settlement("1", first[0].claim, Disposition.DONE)])
    shard.push("1")
    clocked.client.move(1.05 * NEXT)
    assert shard.run()


def test_a_call_merges_into_a_job_that_is_put_off(clocked):
    shard = limited(clocked)
    shard.push("1")
    shard.run()
    shard.push("1", b"a", 1)
    shard.claim()
    shard.push("1", b"b", 2)
    assert due_in(shard) == NEXT
    clocked.client.move(1.05 * NEXT)
    (job,) = shard.run()
    assert [payload.data for payload in job.payloads] == [b"a", b"b"]


def test_a_paused_id_waits_for_its_token_when_it_is_resumed(clocked):
    shard = limited(clocked)
    pausing = Pausing(clocked.client)
    shard.push("1")
    shard.run()
    pausing.switch_ids(shard.spec, ["1"], paused=True)
    shard.push("1")
    assert shard.claim() == ()
    pausing.switch_ids(shard.spec, ["1"], paused=False)
    assert shard.claim() == ()
    assert due_in(shard) == NEXT


def test_a_debounced_job_waits_for_the_later_of_both(clocked):
    shard = limited(clocked, debounce=0.2 * NEXT)
    shard.push("1")
    clocked.client.move(0.25 * NEXT)
    assert shard.run()
    shard.push("1")
    assert due_in(shard) == 0.2 * NEXT
    clocked.client.move(0.25 * NEXT)
    assert shard.run() == ()
    assert due_in(shard) == 0.75 * NEXT
    shard.push("1", b"later")
    clocked.client.move(0.25 * NEXT)
    assert shard.run() == ()
    assert due_in(shard) == 0.5 * NEXT
    clocked.client.move(0.55 * NEXT)
    assert shard.run()


def test_an_early_run_waits_for_its_token_and_is_one_still(clocked):
    shard = limited(clocked, when_pushed_after_failure=AfterFailure.NOW)
    shard.push("1")
    shard.run(Disposition.RETRY, retry_count=2, delay=100.0 * NEXT)
    shard.push("1", b"new")
    assert shard.claim() == ()
    assert due_in(shard) == NEXT
    shard.push("1", b"newer")
    assert shard.claim() == ()
    clocked.client.move(1.05 * NEXT)
    (job,) = shard.claim()
    assert (job.early, job.retry_count) == (True, 2)
    assert job.perform_in - now(shard) == pytest.approx(99 * NEXT, abs=0.2 * NEXT)


def test_a_suspect_without_a_token_does_not_hold_back_the_next(clocked):
    shard = limited(clocked)
    shard.push("1")
    shard.push("2")
    assert len(shard.claim()) == 2
    shard.lease = take(clocked, shard.spec, owner="next")
    assert shard.claim() == ()
    clocked.client.move(1.05 * NEXT)
    assert ids(shard.run()) == ["1"]
    assert ids(shard.run()) == ["2"]


def test_full_buckets_are_forgotten(clocked, client):
    shard = limited(clocked)
    shard.push("1")
    shard.run()
    assert client.zcard(BUCKETS) == 1
    assert 900 * NEXT <= client.pttl(BUCKETS) <= 1000 * NEXT + 1000
    clocked.client.move(1.1 * NEXT)
    shard.push("2")
    shard.run()
    assert client.zrange(BUCKETS, 0, -1) == [b"2"]


def test_without_a_limit_there_are_no_buckets(clocked, client):
    shard = Shard(clocked)
    shard.push("1")
    shard.run()
    assert not client.exists(BUCKETS)
