"""The rules of a job, by number, on a real server. Rules 5, 6 and 10 also have pure tests in tests/unit."""

from __future__ import annotations

import zlib

import pytest

from celery_lowkiq.rules.claims import OpenClaims
from celery_lowkiq.rules.errors import NotOwner
from celery_lowkiq.rules.models import Call, Disposition, Merge, QueueSpec, Settlement, ShardRef, shard_of
from celery_lowkiq.rules.retry import RetryPolicy, after_failure
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.redis_store import RedisStore
from tests.bound import Actions, Queries
from tests.store.helpers import ONE, SHARD, claim, contents, dead, end, push, take, waiting

PAST = 1000.0


def job(store: RedisStore, job_id: str, queue: QueueSpec = ONE):
    return Queries(store.client).job(queue, job_id).waiting


def test_rule_1_an_id_lies_in_shard_crc32_modulo_shards(store):
    queue = QueueSpec("orders", shards=7)
    for job_id in ("1", "42", "é😀", "a:b{c}"):
        assert shard_of(job_id, 7) == zlib.crc32(job_id.encode()) % 7
        push(store, job_id, ("x", 1), queue=queue)
        stats = Queries(store.client).shard_stats(queue)
        assert stats[shard_of(job_id, 7)].length > 0
    assert sum(one.length for one in stats) == 4


def test_rule_2_a_push_on_a_waiting_job_merges(store):
    push(store, "1", ("v1", 1), ("v2", 2), perform_in=PAST)
    push(store, "1", ("v2", 3), ("v3", 4), perform_in=PAST + 50)
    assert waiting(store, "1") == [("v1", 1), ("v2", 2), ("v3", 4)]
    assert job(store, "1").perform_in == PAST


def test_rule_2_of_equal_payloads_the_smaller_score_stays(store):
    push(store, "1", ("v", 5))
    push(store, "1", ("v", 3))
    push(store, "1", ("v", 4))
    assert waiting(store, "1") == [("v", 3)]


def test_rule_2_lowkiqs_example_is_merge_max(store):
    queue = QueueSpec("largest", shards=1, merge=Merge.MAX)
    push(store, "1", ("v1", 1), ("v2", 2), queue=queue)
    push(store, "1", ("v2", 3), ("v3", 4), queue=queue)
    assert waiting(store, "1", queue) == [("v1", 1), ("v2", 3), ("v3", 4)]


def test_rule_2_a_merge_keeps_the_retry_count_of_the_queue(store):
    lease = take(store)
    push(store, "1", ("a", 1), perform_in=PAST)
    end(store, lease, claim(store, lease), Disposition.RETRY, retry_count=4, delay=3600)
    push(store, "1", ("b", 2), perform_in=PAST)
    assert job(store, "1").retry_count == 4
    assert claim(store, lease).jobs == ()


@pytest.mark.parametrize("merge, score", [(Merge.MIN, 1), (Merge.MAX, 7)])
def test_rule_3_a_failed_job_meets_a_newer_one(store, merge, score):
    queue = QueueSpec("orders", shards=1, batch_size=10, merge=merge)
    lease = take(store, queue)
    push(store, "1", ("old", 2), ("both", 1), queue=queue, perform_in=PAST)
    claimed = claim(store, lease)
    push(store, "1", ("both", 7), ("new", 3), queue=queue, perform_in=PAST)
    settled = end(
        store, lease, claimed, Disposition.RETRY, queue=queue, retry_count=2, delay=60, error=b"boom"
    )
    met = job(store, "1", queue)
    assert sorted(waiting(store, "1", queue)) == sorted([("both", score), ("old", 2), ("new", 3)])
    assert (met.retry_count, met.error) == (2, b"boom")
    assert met.perform_in == pytest.approx(settled.now + 60, abs=1e-5)


def test_rule_3_nothing_left_of_the_failed_job_leaves_the_waiting_one_alone(store):
    lease = take(store)
    push(store, "1", ("only", 1), perform_in=PAST)
    claimed = claim(store, lease)
    push(store, "1", ("new", 2), perform_in=9e9)
    end(store, lease, claimed, Disposition.DIE, error=b"boom")
    assert (job(store, "1").perform_in, job(store, "1").retry_count) == (9e9, -1)
    assert dead(store, "1") == [("only", 1)]


def test_rule_4_back_from_the_morgue(store):
    lease = take(store)
    push(store, "1", ("dead", 1), perform_in=PAST)
    end(store, lease, claim(store, lease), Disposition.BURY, error=b"boom")
    push(store, "1", ("new", 2), perform_in=9e9)
    assert Actions(store.client).requeue(ONE, ["1"]) == 1
    back = claim(store, lease).jobs[0]
    assert [(p.data, p.score) for p in back.payloads] == [(b"dead", 1), (b"new", 2)]
    assert back.retry_count == -1
    assert dead(store, "1") is None


def test_rule_5_max_retries_1_means_two_runs(store):
    policy = RetryPolicy(max_retries=1, retry_in=lambda error, n: 0.0)
    lease = take(store)
    push(store, "1", ("small", 1), ("large", 2), perform_in=PAST)
    runs = 0
    while not dead(store, "1"):
        claimed = claim(store, lease)
        assert contents(claimed) == {"1": [("small", 1), ("large", 2)]}
        store.settle(ONE, lease, [after_failure(one, policy, b"boom") for one in claimed.jobs])
        runs += 1
    assert runs == 2
    assert dead(store, "1") == [("small", 1)]
    rest = claim(store, lease).jobs[0]
    assert (rest.retry_count, [p.data for p in rest.payloads]) == (-1, [b"large"])


@pytest.mark.one_server
def test_rule_7_a_failure_is_one_change(store, client):
    """Watched from outside, there is no moment in which a payload is in two places, or in none."""
    lease = take(store)
    push(store, "1", ("a", 1), ("b", 2), perform_in=PAST)
    claimed = claim(store, lease)
    with client.monitor() as monitor:
        end(store, lease, claimed, Disposition.DIE, error=b"boom")
        client.echo("end")
        commands = []
        for command in monitor.listen():
            if command["command"].startswith("ECHO"):
                break
            name = command["command"].split()[0]
            # What a new connection says of itself changes nothing.
            if command.get("client_type") != "lua" and name not in ("CLIENT", "HELLO"):
                commands.append(name)
    assert commands in (["EVALSHA"], ["EVALSHA", "SCRIPT", "EVALSHA"])
    stats = Queries(store.client).stats(ONE)
    assert (stats.busy, stats.length, stats.morgue_length, stats.failed) == (0, 1, 1, 1)


def test_rule_8_a_new_owner_recovers_before_it_claims(store):
    lease = take(store, owner="first")
    push(store, "1", ("a", 1), perform_in=PAST)
    end(store, lease, claim(store, lease), Disposition.RETRY, retry_count=3, delay=0, error=b"boom")
    claim(store, lease)
    push(store, "1", ("b", 2), perform_in=9e9)
    heir = take(store, owner="second")
    recovered = claim(store, heir).jobs[0]
    assert [p.data for p in recovered.payloads] == [b"a", b"b"]
    assert (recovered.retry_count, recovered.error) == (3, b"boom")


def test_rule_8_a_job_that_kills_its_owners_goes_to_the_morgue(store):
    """Once in whatever batch, once alone, and then three times as a single payload."""
    push(store, "1", ("killer", 1), ("innocent", 2), perform_in=PAST)
    for owner in ("a", "b", "c", "d", "e"):
        assert dead(store, "1") is None
        claim(store, take(store, owner=owner))
    lease = take(store, owner="f")
    assert dead(store, "1") == [("killer", 1)]
    assert Queries(store.client).job(ONE, "1").dead.error == ONE.poison_error
    assert contents(claim(store, lease)) == {"1": [("innocent", 2)]}


def test_rule_8_an_owner_that_said_it_was_stopping_never_counts(store):
    push(store, "1", ("a", 1), perform_in=PAST)
    for owner in "abcdef":
        lease = take(store, owner=owner)
        claim(store, lease)
        store.renew([lease], stopping=True)
    assert contents(claim(store, take(store, owner="last"))) == {"1": [("a", 1)]}


def test_rule_8_a_success_clears_the_count(store):
    for _ in range(3):
        push(store, "1", ("a", 1), perform_in=PAST)
        for owner in ("a", "b"):
            claim(store, take(store, owner=owner))
        lease = take(store, owner="c")
        end(store, lease, claim(store, lease))
    assert dead(store, "1") is None


@pytest.mark.parametrize(
    "disposition", [Disposition.DONE, Disposition.RETRY, Disposition.DIE, Disposition.RETURN]
)
def test_rule_9_a_push_during_processing_waits_for_the_settle(store, disposition):
    lease = take(store)
    push(store, "1", ("a", 1), perform_in=PAST)
    claimed = claim(store, lease)
    push(store, "1", ("b", 2), perform_in=PAST)
    assert claim(store, lease).jobs == ()
    assert store.next_due([ShardRef("orders", 0)])[0].next_due is None
    settled = end(store, lease, claimed, disposition)
    assert settled.next_due is not None
    after = [("b", 2)] if disposition in (Disposition.DONE, Disposition.DIE) else [("a", 1), ("b", 2)]
    assert contents(claim(store, lease)) == {"1": after}


def test_rule_10_equality_is_equality_of_bytes(store):
    store.push(ONE, [Call("1", b'{"a":1}', 1), Call("1", b'{"a": 1}', 2), Call("1", b'{"a":1}', 3)])
    assert waiting(store, "1") == [('{"a":1}', 1), ('{"a": 1}', 2)]


def test_rule_11_an_accepted_job_is_handed_out_until_it_is_settled(store):
    push(store, "1", ("a", 1), perform_in=PAST)
    for owner in ("a", "b"):
        assert contents(claim(store, take(store, owner=owner))) == {"1": [("a", 1)]}


def test_an_acquire_whose_reply_was_lost_begins_the_lease_anew(store):
    """Others have watched its counter meanwhile, and would take the shard before its owner expects it."""
    lease = take(store, owner="me")
    (watched,) = store.observe([lease.shard])
    assert take(store, owner="me") == lease
    with pytest.raises(NotOwner):
        store.acquire(ONE, lease.shard, "other", watched, 0)


def test_rule_11_a_former_owner_changes_nothing(store):
    push(store, "1", ("a", 1), perform_in=PAST)
    former = take(store, owner="former")
    claimed = claim(store, former)
    take(store, owner="heir")
    with pytest.raises(NotOwner):
        end(store, former, claimed)
    with pytest.raises(NotOwner):
        store.claim(ONE, former, 99)
    assert waiting(store, "1") == [("a", 1)]


def test_rule_11_scores_ascend_within_a_batch_whatever_the_order_of_arrival(store):
    scores = [3.5, -2, 1e300, 0, 7, -1e300, 5e-324, 2.0**53, 1e-7]
    for position, score in enumerate(scores):
        push(store, "1", (f"p{position}", score), perform_in=PAST)
    handed = [p.score for p in claim(store, take(store)).jobs[0].payloads]
    assert handed == sorted(scores)


def test_default_scores_keep_arrival_order_whatever_clients_clocks_say(store):
    store.push(ONE, [Call("1", b"%d" % number) for number in range(50)])
    store.push(ONE, [Call("1", b"%d" % number) for number in range(50, 100)])
    payloads = claim(store, take(store)).jobs[0].payloads
    assert [p.data for p in payloads] == [b"%d" % number for number in range(100)]
    assert len({p.score for p in payloads}) == 100


def test_a_time_of_sending_is_the_score_unless_it_lies_ahead_of_redis(store):
    """O3: the score of a sender whose clock is ahead is made as any other: above those of the calls before,
    below those of the calls to come.
    """
    store.push(ONE, [Call("1", b"first")])
    store.push(ONE, [Call("1", b"sent", sent=1700000000.123456)])
    store.push(ONE, [Call("1", b"ahead", sent=9e9), Call("1", b"also", sent=8e9)])
    store.push(ONE, [Call("1", b"last")])
    payloads = claim(store, take(store)).jobs[0].payloads
    assert [p.data for p in payloads] == [b"sent", b"first", b"ahead", b"also", b"last"]
    assert payloads[0].score == 1700000000.123456
    assert len({p.score for p in payloads}) == 5


def test_equal_scores_keep_arrival_order_also_after_a_spill_and_a_failure(store):
    names = [f"{number:03d}" + "x" * 40 for number in range(60)]
    push(store, "1", *((name, 1.0) for name in names), perform_in=PAST)
    lease = take(store)
    claimed = claim(store, lease)
    push(store, "1", ("later", 1.0), perform_in=PAST)
    end(store, lease, claimed, Disposition.RETRY)
    assert [p.data.decode() for p in claim(store, lease).jobs[0].payloads] == [*names, "later"]


def test_settlements_of_a_late_settle_touch_nothing_else(store):
    lease = take(store)
    push(store, "1", ("a", 1), perform_in=PAST)
    first = claim(store, lease)
    end(store, lease, first, Disposition.RETURN)
    second = claim(store, lease)
    assert store.settle(ONE, lease, [Settlement("1", first.number, Disposition.DONE)]).accepted == frozenset()
    assert end(store, lease, second).accepted == {"1"}


def test_jobs_of_two_claims_are_settled_together(store):
    lease, claims = None, []
    for job_id in ("1", "2"):
        push(store, job_id, ("a", 1), perform_in=PAST)
        lease = lease or take(store)
        claims.append(claim(store, lease, in_hand=None))
    settlements = [Settlement(job.id, each.number, Disposition.DONE) for each in claims for job in each.jobs]
    assert store.settle(ONE, lease, settlements).accepted == {"1", "2"}
    assert Queries(store.client).stats(ONE).busy == 0


@pytest.mark.parametrize("number", [10**14, 2**53 - 10_000])
def test_payloads_of_a_claim_with_a_large_number_are_whole(store, client, number):
    """The record began with 1e+14, and was read as one other payload."""
    lease = take(store)
    client.hset(shard_keys(SHARD)["meta"], "claim", number)
    push(store, "1", ("a", 1), ("b", 2), perform_in=PAST)
    store.push(ONE, [Call("2", b"c", 3.0, perform_in=PAST, record=b"record of its call")])
    claimed = claim(store, lease)
    assert claimed.number > number
    assert contents(claimed) == {"1": [("a", 1), ("b", 2)], "2": [("c", 3)]}
    end(store, lease, claimed)
    assert claim(store, take(store)).jobs == ()


def test_a_settle_that_redis_lost_does_not_block_its_id(store):
    """After a failover without the last writes: the owner is done with the claim, Redis is not."""
    lease = take(store)
    push(store, "1", ("run before", 1), perform_in=PAST)
    lost = claim(store, lease)
    push(store, "1", ("newer", 2), perform_in=PAST)
    assert claim(store, lease).jobs == ()
    again = claim(store, lease, in_hand=OpenClaims(lost.number))
    assert contents(again) == {"1": [("run before", 1), ("newer", 2)]}
    assert end(store, lease, again).accepted == {"1"}


@pytest.mark.parametrize("delay", [1e19, 1e303, float("inf"), float("nan")])
def test_a_delay_beyond_all_numbers_loses_nothing(store, delay):
    push(store, "1", ("a", 1), perform_in=1.0)
    lease = take(store)
    settled = end(store, lease, claim(store, lease), Disposition.RETRY, delay=delay)
    job = Queries(store.client).job(ONE, "1").waiting
    assert settled.now + 9e8 < job.perform_in < settled.now + 2e9


def test_the_rest_of_a_claim_that_is_not_open_any_more_is_due(store):
    push(store, "1", ("a", 1), perform_in=1.0)
    claimed = claim(store, take(store))
    assert store.next_due([SHARD])[0].next_due is None
    (due,) = store.next_due([SHARD], [OpenClaims(claimed.number)])
    assert due.next_due == due.now
    assert store.next_due([SHARD], [OpenClaims(claimed.number, (claimed.number,))])[0].next_due is None


def test_a_returned_job_may_have_a_delay(store):
    push(store, "1", ("a", 1), perform_in=1.0)
    lease = take(store)
    claimed = claim(store, lease)
    assert end(store, lease, claimed, Disposition.RETURN, delay=60).next_due > 1e9
    assert waiting(store, "1") == [("a", 1)]


def test_a_second_owner_destroys_nothing_that_is_in_flight(store):
    """Lowkiq's fault L1."""
    push(store, "1", ("in flight", 1), perform_in=1.0)
    claim(store, take(store, owner="first"))
    push(store, "1", ("newer", 2), perform_in=1.0)
    assert contents(claim(store, take(store, owner="second"))) == {"1": [("in flight", 1), ("newer", 2)]}


def test_a_former_owners_settle_deletes_nothing_of_the_new_one(store):
    """Lowkiq's fault L2."""
    push(store, "1", ("a", 1), perform_in=1.0)
    former = take(store, owner="former")
    claimed = claim(store, former)
    heir = take(store, owner="heir")
    again = claim(store, heir)
    with pytest.raises(NotOwner):
        end(store, former, claimed)
    assert Queries(store.client).stats(ONE).busy == 1
    assert end(store, heir, again).accepted == {"1"}


@pytest.mark.parametrize("perform_in", [-1.0, 0.0, 1.0])
def test_a_job_due_in_the_past_is_claimed(store, perform_in):
    """Lowkiq's fault L5."""
    push(store, "1", ("a", 1), perform_in=perform_in)
    assert contents(claim(store, take(store))) == {"1": [("a", 1)]}


def test_the_smaller_score_stays_also_when_it_comes_second(store):
    """Lowkiq's fault L8."""
    push(store, "1", ("v", 5))
    push(store, "1", ("v", 3))
    assert waiting(store, "1") == [("v", 3)]


def test_a_failure_repeated_after_a_lost_reply_leaves_one_copy(store):
    """Lowkiq's fault L9."""
    push(store, "1", ("a", 1), ("b", 2), perform_in=1.0)
    lease = take(store)
    claimed = claim(store, lease)
    for _ in range(3):
        end(store, lease, claimed, Disposition.DIE, error=b"boom")
    assert dead(store, "1") == [("a", 1)]
    assert waiting(store, "1") == [("b", 2)]
    assert Queries(store.client).stats(ONE).failed == 1
