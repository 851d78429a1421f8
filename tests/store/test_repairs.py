"""O6: a shard that has lost a key is repaired from its other keys, and what is lost is counted."""

from __future__ import annotations

import logging
import threading

import pytest

from celery_lowkiq.rules.errors import NotOwner, ShardDamaged, ShardRepairing
from celery_lowkiq.rules.leases import LeaseWatch
from celery_lowkiq.rules.models import Call, Disposition, Lease, QueueSpec, ShardRef, shard_of
from celery_lowkiq.rules.policies import Policies
from celery_lowkiq.store.actions import DEAD, queue_damages, repair_queue
from celery_lowkiq.store.keys import SHARD_KEYS, queue_key, shard_keys
from celery_lowkiq.store.listings import Listing
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.repairs import Repairs
from tests.bound import Actions, Pausing, Queries
from tests.store.helpers import ONE, SHARD, claim, end, push, take
from tests.waiting import eventually

KEYS = shard_keys(SHARD)
FAR = 9e9
LONG = [(f"{n:03} " + "x" * 60, float(n)) for n in range(60)]
#: By the key that is lost: ids whose payloads are lost with it.
LOST = {
    "jobs": {"plain", "later", "ranked", "held", "recorded", "failed"},
    "processing": {"runs"},
    "dead_jobs": {"dead"},
}
ALL = {"plain", "later", "ranked", "held", "recorded", "failed", "long", "runs", "dead", "long-dead"}


def everywhere(store):
    """Jobs of all kinds; the owner of the one in processing has died."""
    lease = take(store, owner="dies")
    for job_id, payloads, disposition in (
        ("dead", [("a", 1.0)], Disposition.BURY),
        ("long-dead", LONG, Disposition.BURY),
        ("failed", [("a", 1.0)], Disposition.RETRY),
    ):
        push(store, job_id, *payloads, perform_in=1.0)
        end(store, lease, claim(store, lease, 1), disposition, retry_count=3, delay=1000.0, error=b"boom")
    push(store, "runs", ("a", 1.0), perform_in=1.0)
    claim(store, lease, 1)
    Pausing(store.client).switch_ids(ONE, ["held"], paused=True)
    push(store, "plain", ("a", 1.0))
    push(store, "later", ("a", 1.0), perform_in=FAR)
    push(store, "held", ("a", 1.0))
    push(store, "long", *LONG)
    store.push(ONE, [Call("ranked", b"a", 1.0, priority=5), Call("recorded", b"a", 1.0, record=b"call")])
    return lease


def took_over(store):
    """The next owner; without a lease it first leaves the one that had the last claim time to come back."""
    try:
        return take(store, owner="next")
    except NotOwner:
        return take(store, owner="next")


def run_all(store, lease):
    """Run all that is due: payloads by id."""
    ran = {}
    for _ in range(100):
        claimed = claim(store, lease)
        for job in claimed.jobs:
            ran.setdefault(job.id, []).extend(payload.data.decode() for payload in job.payloads)
        end(store, lease, claimed)
        if not claimed.jobs and (claimed.next_due is None or claimed.next_due > claimed.now):
            return ran
    raise AssertionError("there is no end to it")


def drained(store, lease):
    """What runs when everything is let go, also what was dead."""
    Pausing(store.client).switch_ids(ONE, ["held"], paused=False)
    actions = Actions(store.client)
    actions.run_now_all(ONE)
    actions.requeue(ONE, DEAD)
    return run_all(store, lease)


@pytest.mark.parametrize("key", SHARD_KEYS)
def test_no_key_but_the_one_that_holds_a_job_loses_it(store, client, caplog, key):
    """O6: each key of a shard is deleted in turn; a worker and an operator's repair come afterwards."""
    everywhere(store)
    client.delete(KEYS[key])
    lease = took_over(store)
    ran = run_all(store, lease)
    for job_id in ("later", "failed", "held"):
        assert job_id not in ran or key in {"due"}
    repair_queue(store.client, ONE)
    assert queue_damages(store.client, ONE) == []
    ran.update(drained(store, lease))
    lost = LOST.get(key, set())
    assert ran.keys() == ALL - lost
    assert sorted(ran["long"]) == sorted(text for text, _ in LONG) == sorted(ran["long-dead"])
    told = [record for record in caplog.records if "LOST" in record.getMessage()]
    assert [record.levelno for record in told] == [logging.ERROR] * bool(lost)
    if lost:
        assert f"{len(lost)} " in told[0].getMessage()
        assert "orders/0" in told[0].getMessage()


@pytest.mark.parametrize("key", sorted(SHARD_KEYS))
@pytest.mark.parametrize("planted", ["string", "list"])
def test_a_key_of_another_type_stops_its_shard_and_the_message_says_what_mends_it(
    store, client, key, planted
):
    """O6: meta is repaired by itself; for another key the message names the command that does it."""
    everywhere(store)
    client.delete(KEYS[key])
    client.set(KEYS[key], "x") if planted == "string" else client.rpush(KEYS[key], "x")
    if key != "meta":
        (damage, *_) = queue_damages(store.client, ONE)
        assert f"the key {key} has the wrong type" in damage.text
    if key in {"lease", "due", "jobs", "claimed", "spill_order", "processing"}:
        with pytest.raises(ShardDamaged, match=r"shard orders/0 .* lowkiq repair orders"):
            run_all(store, took_over(store))
    repair_queue(store.client, ONE)
    # What is claimed of an owner is given up by its next claim, or by the next owner.
    assert len(queue_damages(store.client, ONE)) == (key == "processing")
    lease = took_over(store)
    ran = run_all(store, lease)
    ran.update(drained(store, lease))
    assert ran.keys() == ALL - LOST.get(key, set())
    assert queue_damages(store.client, ONE) == []


def test_a_lost_meta_is_written_again_above_all_that_is_stored(store, client, caplog):
    """O6: scores, arrivals, calls and claims go on above what is stored; the queue's pause holds."""
    lease = everywhere(store)
    push(store, "ahead", ("a", 5e9))
    before = claim(store, lease, 1)
    Pausing(store.client).switch_queue(ONE, paused=True)
    known = client.hgetall(KEYS["meta"])
    client.delete(KEYS["meta"])
    store.push(ONE, [Call("ahead", b"made")])
    assert caplog.text.count("shard orders/0 was repaired: meta was rewritten") == 1
    meta = client.hgetall(KEYS["meta"])
    assert int(meta[b"score"]) == 5_000_000_000 * 1_000_000 + 1
    for field in (b"last_arrival", b"last_call"):
        assert int(meta[field]) >= int(known[field]) > 0, field
    assert int(meta[b"claim"]) == before.number
    assert (meta[b"queue_paused"], meta[b"queue_pause"]) == (known[b"queue_paused"], known[b"queue_pause"])
    assert claim(store, took_over(store)).jobs == ()
    Pausing(store.client).switch_queue(ONE, paused=False)
    assert "plain" in run_all(store, took_over(store))


def test_a_meta_that_says_no_number_is_repaired_too(store, client):
    everywhere(store)
    client.hset(KEYS["meta"], "shards", "x")
    push(store, "new", ("a", 1.0))
    assert client.hget(KEYS["meta"], "shards") == b"1"


def test_a_meta_of_another_type_is_repaired_by_a_push_and_logged(store, client, caplog):
    client.set(KEYS["meta"], "x")
    push(store, "new", ("a", 1.0))
    assert client.hget(KEYS["meta"], "shards") == b"1"
    assert "shard orders/0 was repaired: the key meta had the wrong type and was deleted" in caplog.text


FOUR = QueueSpec("orders", shards=4, batch_size=10)


def ids_in(index, count=3, shards=4):
    return [str(n) for n in range(200) if shard_of(str(n), shards) == index][:count]


def test_ids_that_belong_elsewhere_keep_a_shard_from_being_repaired(store, client):
    """O6: what cannot be told is refused, with the command that shows it; the other shards go on."""
    store.push(FOUR, [Call(str(n), b"x", 1.0) for n in range(40)])
    keys = shard_keys(ShardRef("orders", 3))
    client.delete(keys["meta"])
    (stranger,) = ids_in(2, 1)
    client.hset(keys["jobs"], stranger, "1 1 x")
    client.zadd(keys["due"], {stranger: 1})
    with pytest.raises(
        ShardDamaged, match=r"shard orders/3 .*`celery -A proj lowkiq repair orders`"
    ) as error:
        store.push(FOUR, [Call(ids_in(3)[0], b"y", 1.0)])
    assert "4 shards, but the code declares 4" not in str(error.value)
    store.push(FOUR, [Call(ids_in(1)[0], b"y", 1.0)])


def test_a_registry_that_was_lost_and_written_by_other_code_is_put_right(store, client):
    """O6, a twin: shards that all say another number tell that the registry is wrong."""
    store.push(FOUR, [Call(str(n), b"x", 1.0) for n in range(40)])
    client.hset(queue_key("orders"), "shards", "7")
    (damage,) = queue_damages(store.client, FOUR)
    assert damage.shard is None
    assert "7 shards" in damage.text
    repair_queue(store.client, FOUR)
    assert client.hget(queue_key("orders"), "shards") == b"4"
    assert queue_damages(store.client, QueueSpec("orders", shards=5)) == []


def test_a_lost_registry_is_written_again_with_the_number_of_the_shards(store, client):
    """The number in the code may be another one for a long time."""
    store.push(FOUR, [Call(str(n), b"x", 1.0) for n in range(40)])
    client.delete(queue_key("orders"))
    other = RedisStore(client)
    other.push(QueueSpec("orders", shards=7), [Call(str(n), b"y", 2.0) for n in range(40)])
    assert client.hget(queue_key("orders"), "shards") == b"4"
    assert Queries(store.client).stats(FOUR).length == 40
    assert queue_damages(store.client, FOUR) == []


def test_the_owner_of_the_last_claim_writes_a_lost_lease_again(store, client):
    """O6: another node that comes to take the shard waits, as for a silent owner."""
    push(store, "1", ("a", 1.0), perform_in=1.0)
    lease = take(store)
    claimed = claim(store, lease)
    client.delete(KEYS["lease"])
    with pytest.raises(NotOwner):
        take(store, owner="other")
    (seen,) = store.observe([SHARD])
    assert (seen.owner, seen.epoch, seen.given_on) == ("", lease.epoch, "lost")
    assert store.renew([lease]) == [lease]
    assert end(store, lease, claimed).accepted == {"1"}
    (seen,) = store.observe([SHARD])
    assert (seen.owner, seen.epoch, seen.given_on) == ("me", lease.epoch, "lost")
    assert store.release(lease)
    (seen,) = store.observe([SHARD])
    assert (seen.owner, seen.epoch, seen.given_on) == ("", lease.epoch, seen.server)


def test_an_owner_that_has_lost_the_shard_does_not_write_the_lease_again(store, client):
    push(store, "1", ("a", 1.0), perform_in=1.0)
    old = take(store)
    claimed = claim(store, old)
    new = take(store, owner="other")
    claim(store, new)
    client.delete(KEYS["lease"])
    assert store.renew([old]) == [False]
    with pytest.raises(NotOwner):
        end(store, old, claimed)
    assert store.renew([new]) == [new]


@pytest.mark.parametrize("disposition", [Disposition.DONE, Disposition.RETRY, Disposition.RETURN])
def test_a_run_whose_claim_was_forgotten_is_settled(store, client, disposition):
    """O6: what is in processing names its claim."""
    push(store, "1", ("a", 1.0), perform_in=1.0)
    lease = take(store)
    claimed = claim(store, lease)
    client.delete(KEYS["claimed"])
    assert end(store, lease, claimed, disposition).accepted == {"1"}
    assert not client.exists(KEYS["processing"])
    assert end(store, lease, claimed, disposition).accepted == set()


def test_what_was_pushed_while_long_jobs_had_lost_their_record_is_united_with_them(store, client):
    push(store, "long", *LONG)
    push(store, "short", ("a", 1.0))
    client.delete(KEYS["jobs"])
    push(store, "long", ("new", 999.0))
    assert run_all(store, take(store)) == {"long": [text for text, _ in LONG] + ["new"]}


def test_times_priorities_and_pauses_come_back_from_the_keys_beside(store, client):
    everywhere(store)
    Pausing(store.client).switch_ids(ONE, ["ranked"], paused=True)
    client.delete(KEYS["due_paused"], KEYS["failed"])
    repair_queue(store.client, ONE)
    (failed,) = Queries(store.client).jobs(ONE, Listing("retry_count")).items
    assert (failed.id, failed.error) == ("failed", b"boom")
    job = Queries(store.client).job(ONE, "ranked").waiting
    assert (job.priority, job.paused) == (5, True)


def test_a_lost_priority_becomes_that_of_the_queue(store, client):
    queue = QueueSpec("orders", shards=1, policies=Policies(priority=3))
    store.push(queue, [Call("urgent", b"a", 1.0, priority=7)])
    client.delete(KEYS["by_priority"])
    repair_queue(store.client, queue)
    assert Queries(store.client).job(queue, "urgent").waiting.priority == 3


def test_beside_a_living_owner_a_repair_gives_nothing_up_that_runs(store, client):
    """Its payloads are lost to Redis, not to the worker that runs them."""
    push(store, "1", ("a", 1.0), perform_in=1.0)
    lease = take(store)
    claimed = claim(store, lease)
    client.delete(KEYS["processing"])
    (repaired,) = repair_queue(store.client, ONE)
    assert repaired.lost == 0
    assert end(store, lease, claimed).accepted == {"1"}


def test_a_lost_order_lets_nothing_overtake(store, client):
    """O6: a claim repairs the order of a long job before it hands out what came since."""
    lease = take(store)
    for turn in range(2):
        push(store, "long", *LONG, perform_in=1.0)
        client.delete(KEYS["spill_order"])
        push(store, "long", (f"newest {turn}", 100.0))
        ran = run_all(store, lease)["long"]
        assert ran == [payload for payload, _ in LONG] + [f"newest {turn}"]


def test_payloads_of_a_long_job_come_back_with_its_id(store, client):
    """O6: its record was lost, and written anew by a push before any claim looked."""
    lease = take(store)
    push(store, "long", *LONG, perform_in=1.0)
    client.delete(KEYS["jobs"])
    push(store, "long", ("newest", 100.0))
    assert run_all(store, lease)["long"] == [payload for payload, _ in LONG] + ["newest"]


def test_an_id_whose_pause_was_lost_is_paused_again(store, client, caplog):
    """O6: also when a push has laid its job where it is not paused; nothing of it is taken for lost."""
    lease = take(store)
    Pausing(store.client).switch_ids(ONE, ["held"], paused=True)
    push(store, "held", ("a", 1.0))
    client.delete(KEYS["paused"])
    push(store, "held", ("b", 2.0))
    assert run_all(store, lease) == {}
    assert "LOST" not in caplog.text
    Pausing(store.client).switch_ids(ONE, ["held"], paused=False)
    assert run_all(store, lease) == {"held": ["a", "b"]}


def test_an_idle_shard_without_meta_is_looked_at(store, client):
    """O6: the worker's next question finds it, though nothing is due."""
    take(store)
    push(store, "later", ("a", 1.0), perform_in=FAR)
    client.delete(KEYS["meta"])
    (due,) = store.next_due([SHARD])
    assert due.next_due == due.now


def test_a_claim_repairs_several_keys(store, client):
    """O6: meta and the times of the jobs are lost at once."""
    lease = take(store)
    push(store, "a", ("1", 1.0), perform_in=1.0)
    client.delete(KEYS["meta"], KEYS["due"])
    assert [job.id for job in store.claim(ONE, lease, 1).jobs] == ["a"]


def test_a_claim_that_finds_nothing_due_repairs_lost_times(store, client, caplog):
    """O6: one that takes plain jobs does not look, and leaves it to the claim after the last of them."""
    lease = take(store)
    for job_id in ("lost", "kept"):
        push(store, job_id, ("1", 1.0), perform_in=1.0)
    client.zrem(KEYS["due"], "lost")
    claimed = claim(store, lease)
    assert [job.id for job in claimed.jobs] == ["kept"]
    assert "was repaired" not in caplog.text
    end(store, lease, claimed)
    assert [job.id for job in claim(store, lease).jobs] == ["lost"]
    assert "shard orders/0 was repaired" in caplog.text


@pytest.mark.parametrize("key", ["due", "jobs", "due_prioritized", "due_paused", "by_priority", "paused"])
def test_a_shard_that_has_lost_a_key_of_its_waiting_jobs_is_repaired_before_it_has_another_owner(
    store, client, caplog, key
):
    everywhere(store)
    client.delete(KEYS[key])
    (due,) = store.next_due([SHARD])
    assert due.next_due == due.now
    took_over(store)
    assert caplog.text.count("shard orders/0 was repaired") == 1
    assert [damage.text for damage in queue_damages(store.client, ONE)] == []


def test_a_claim_repairs_what_does_not_hinder_it_once_a_minute(store, client):
    """Foreign data that says so at each claim must not cost each claim a repair."""
    lease = everywhere(store)
    for is_repaired in (True, False):
        client.delete(KEYS["failed"])
        claim(store, lease)
        assert bool(client.exists(KEYS["failed"])) is is_repaired


def repairing_threads():
    return [thread.name for thread in threading.enumerate()].count("lowkiq-repairs")


def test_taking_shards_does_not_wait_for_a_repair(store, client, monkeypatch):
    """O6: it goes on in a thread of its own, while the shards beside are taken and leases are renewed."""
    queue = QueueSpec("orders", shards=2)
    first, second = queue.shard_refs()
    ids = {
        ref: next(str(n) for n in range(99) if shard_of(str(n), 2) == ref.index) for ref in (first, second)
    }
    store.push(queue, [Call(ids[first], b"x"), Call(ids[second], b"x")])
    client.delete(shard_keys(first)["meta"])
    begun, may_go_on = threading.Event(), threading.Event()
    whole = Repairs.rewrite_meta

    def slow(self, *args):
        begun.set()
        assert may_go_on.wait(60)
        return whole(self, *args)

    monkeypatch.setattr(Repairs, "rewrite_meta", slow)
    before = repairing_threads()
    wanted = [
        LeaseWatch(queue, shard, seen)
        for shard, seen in zip((first, second), store.observe([first, second]), strict=True)
    ]
    for _ in range(2):
        refused, taken = store.acquire_all(wanted, "me")
        assert isinstance(refused, ShardRepairing)
        assert isinstance(taken, Lease)
        assert begun.wait(60)
    assert repairing_threads() == before + 1
    may_go_on.set()
    eventually(lambda: isinstance(store.acquire_all(wanted[:1], "me")[0], Lease))


def test_a_repair_waits_when_no_thread_can_start(store, client, monkeypatch):
    """Ownership ended with the error, and the worker with it."""

    def no_thread(thread):
        raise RuntimeError("can't start new thread")

    push(store, "a", ("1", 1.0))
    client.delete(KEYS["meta"])
    wanted = [LeaseWatch(ONE, SHARD, *store.observe([SHARD]))]
    with monkeypatch.context() as at_limit:
        at_limit.setattr(threading.Thread, "start", no_thread)
        (refused,) = store.acquire_all(wanted, "me")
    assert isinstance(refused, ShardRepairing)
    eventually(lambda: isinstance(store.acquire_all(wanted, "me")[0], Lease))


def test_a_long_job_that_is_deleted_was_not_lost(store, caplog):
    """O6: between two steps of its end, a claim finds no mark without payloads."""
    lease = take(store)
    store.push(ONE, [Call("long", b"%03d" % n, float(n), 1.0) for n in range(512)])
    step, claims = store.client.call, []

    def between(call):
        reply = step(call)
        if not claims:
            claims.append(None)
            claims[0] = claim(store, lease).jobs
        return reply

    store.client.call = between
    assert Actions(store.client).delete(ONE, ["long"]) == 1
    assert claims == [()]
    assert "LOST" not in caplog.text
