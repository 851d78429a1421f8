"""What a node asks each beat goes in few scripts, each over many shards or queues."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_lowkiq.rules.claims import OpenClaims
from celery_lowkiq.rules.errors import StoreError
from celery_lowkiq.rules.leases import LeaseWatch
from celery_lowkiq.rules.models import LeaseState, QueueSpec, ShardRef, shard_of
from celery_lowkiq.rules.views import Counters, NodeReport, NodeUpdate, Sample
from celery_lowkiq.store import node_reports
from celery_lowkiq.store.keys import nodes_key, shard_keys
from celery_lowkiq.store.node_reports import beat_calls
from tests.bound import Pausing
from tests.store.helpers import claim, push, take

MANY = QueueSpec("orders", shards=250)
SHARDS = MANY.shard_refs()
QUEUES = [f"queue-{number}" for number in range(250)]
REPORT = NodeReport("me", "me-1", 1, 10.0, False, False, (), ())


@pytest.fixture
def leases(store):
    wanted = [
        LeaseWatch(MANY, shard, seen) for shard, seen in zip(SHARDS, store.observe(SHARDS), strict=True)
    ]
    return store.acquire_all(wanted, "me")


@pytest.fixture
def scripts(client, store, leases):
    """Returns how many scripts have run; those that are counted here were loaded before."""
    store.observe(SHARDS[:1])
    store.renew(leases[:1])
    store.next_due(SHARDS[:1])
    store.next_due(SHARDS[:1], (), [True])
    sample = ("loaded", Counters(1.0, (0,)))
    store.beat(["loaded"], "me", 1, 1, NodeUpdate(REPORT, 1.0, (sample,), (QueueSpec("loaded"),)))

    def run():
        return client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]

    return run


def counters(store):
    return [state.counter for state in store.observe(SHARDS)]


def lease_key(shard):
    return shard_keys(shard)["lease"]


def id_of(shard):
    return next(job_id for job_id in map(str, range(100_000)) if shard_of(job_id, 250) == shard.index)


@pytest.mark.one_server
def test_one_script_renews_a_hundred_leases(store, leases, scripts):
    before, calls = counters(store), scripts()
    assert store.renew(leases) == leases
    assert scripts() - calls == 3
    assert counters(store) == [counter + 1 for counter in before]


@pytest.mark.one_server
def test_one_script_reads_two_hundred_leases_each_as_it_is(store, client, leases, scripts):
    """Holders are sent once; no field of a lease is taken from another one."""
    released, leaving, taken, damaged, missing, foreign, alike = range(7)
    store.release(leases[released])
    store.release(leases[leaving], unsettled=True)
    other = take(store, MANY, taken, owner="other")
    client.set(lease_key(SHARDS[damaged]), "planted")
    client.delete(lease_key(SHARDS[missing]))
    client.hset(lease_key(SHARDS[foreign]), mapping={"owner": "a b\n\xff", "epoch": "1 2", "counter": "-5"})
    client.hset(lease_key(SHARDS[alike]), mapping={"owner": "me ", "server": "x"})
    calls = scripts()
    found = store.observe(SHARDS)
    assert scripts() - calls == 2
    server = leases[0].server
    expected = [LeaseState("me", lease.epoch, 1, server, server) for lease in leases]
    expected[released] = LeaseState("", leases[released].epoch, 3, server, server)
    expected[leaving] = LeaseState("", leases[leaving].epoch, 2, server, server, leaving=True)
    expected[taken] = LeaseState("other", other.epoch, 2, server, server)
    expected[damaged] = expected[missing] = LeaseState(server=server)
    expected[foreign] = LeaseState("a b\n\xff", 0, 0, server, server)
    expected[alike] = LeaseState("me ", leases[alike].epoch, 1, server, "x")
    assert found == expected
    assert store.observe([]) == []


def test_each_lease_is_renewed_or_refused_by_itself(store, client, leases):
    """The lost and the damaged do not end up with those that are plainly ours."""
    lost, damaged, without_epoch, foreign = range(4)
    take(store, MANY, lost, owner="other")
    client.set(lease_key(SHARDS[damaged]), "planted")
    client.hset(lease_key(SHARDS[without_epoch]), "epoch", "")
    client.hset(lease_key(SHARDS[foreign]), "owner", "planted")
    before = counters(store)
    ours = [n not in (lost, damaged, without_epoch, foreign) for n in range(250)]
    assert store.renew(leases) == [mine and lease for mine, lease in zip(ours, leases, strict=True)]
    assert counters(store) == [counter + mine for counter, mine in zip(before, ours, strict=True)]


def test_an_epoch_of_a_former_lease_renews_nothing(store, leases):
    take(store, MANY, 7, owner="other")
    store.release(take_back := take(store, MANY, 7))
    again = take(store, MANY, 7)
    before = counters(store)
    assert store.renew([leases[7], take_back]) == [False, False]
    assert counters(store) == before
    assert store.renew([again]) == [again]


def test_a_lost_lease_among_many_is_written_again(store, client, leases):
    shard = SHARDS[3]
    push(store, id_of(shard), ("a", 1.0), perform_in=1.0, queue=MANY)
    claim(store, leases[3])
    client.delete(lease_key(shard))
    assert store.renew(leases) == leases
    (seen,) = store.observe([shard])
    assert (seen.owner, seen.epoch) == ("me", leases[3].epoch)


def test_a_stopping_node_says_so_in_each_lease_and_takes_it_back(store, client, leases):
    assert store.renew(leases[:3], stopping=True) == leases[:3]
    assert client.hget(lease_key(SHARDS[0]), "stopping") == b"1"
    assert store.renew(leases[:3]) == leases[:3]
    assert client.hget(lease_key(SHARDS[0]), "stopping") == b"0"


def turns(store):
    return [state.turn for state in store.observe(SHARDS)]


def test_a_lease_shows_the_turn_in_which_it_was_last_renewed(store, client, leases):
    assert turns(store) == [0] * 250
    store.renew(leases, turn=9)
    # One by itself.
    client.hset(lease_key(SHARDS[0]), "stopping", "1")
    store.renew(leases[:2], turn=10)
    assert turns(store) == [10, 10, *[9] * 248]


@pytest.mark.parametrize("stopping", [True, False])
def test_a_renewal_that_arrives_late_sets_no_turn_back(store, leases, stopping):
    store.renew(leases[:1], turn=9)
    store.renew(leases[:1], turn=10)
    (before,) = store.observe(SHARDS[:1])
    store.renew(leases[:1], stopping, turn=9)
    assert store.observe(SHARDS[:1]) == [replace(before, counter=before.counter + 1)]


def test_a_turn_is_the_owners_and_of_its_epoch(store, client, leases):
    store.renew(leases[:3], turn=9)
    again, taken, foreign = range(3)
    # The reply to an acquire was lost: it is trusted from its repetition on.
    take(store, MANY, again)
    take(store, MANY, taken, owner="other")
    client.hset(lease_key(SHARDS[foreign]), "turn", "9")
    assert turns(store)[:3] == [0, 0, 0]
    store.renew(leases[:1], turn=10)
    assert turns(store)[:2] == [10, 0]


@pytest.mark.one_server
def test_one_script_looks_into_hundreds_of_empty_shards(store, leases, scripts):
    dues = store.next_due(SHARDS)
    calls = scripts()
    found = store.next_due(SHARDS, [OpenClaims()] * 250, [True] * 250)
    assert scripts() - calls == 1
    assert [due.next_due for due in found] == [due.next_due for due in dues] == [None] * 250
    assert all(0 <= due.now - dues[0].now < 60 for due in found)


@pytest.mark.one_server
def test_what_waits_in_a_shard_that_was_empty_is_found(store, leases, scripts):
    later, urgent, paused = SHARDS[3], SHARDS[77], SHARDS[249]
    push(store, id_of(later), ("a", 1.0), perform_in=4e9, queue=MANY)
    push(store, id_of(urgent), ("a", 1.0), perform_in=5.0, priority=2, queue=MANY)
    push(store, id_of(paused), ("a", 1.0), perform_in=5.0, queue=MANY)
    Pausing(store.client).switch_shard(MANY, paused.index, paused=True)
    calls = scripts()
    found = store.next_due(SHARDS, (), [True] * 250)
    assert scripts() - calls == 1 + 3
    assert {shard: due.next_due for shard, due in zip(SHARDS, found, strict=True) if due.next_due} == {
        later: 4e9,
        urgent: 5.0,
    }


def test_shards_that_were_empty_and_others_are_answered_in_order(store, leases):
    for index in range(0, 250, 10):
        push(store, id_of(SHARDS[index]), ("a", 1.0), perform_in=1.0 + index, queue=MANY)
    were_empty = [index % 3 > 0 for index in range(250)]
    found = store.next_due(SHARDS, [OpenClaims()] * 250, were_empty)
    assert [due.next_due for due in found] == [None if n % 10 else 1.0 + n for n in range(250)]


@pytest.mark.one_server
def test_a_heartbeat_of_many_queues_is_a_few_scripts(store, client, scripts):
    store.beat(QUEUES, "other", 2, 1)
    calls = scripts()
    found = store.beat(QUEUES, "me", 4, 1).members
    assert scripts() - calls == 3
    assert found == [{"other": (2, 1), "me": (4, 1)}] * 250
    assert store.beat(QUEUES[:1], "me", 4, 2).members == [{"other": (2, 1), "me": (4, 2)}]
    assert client.hgetall(nodes_key(QUEUES[249])) == {b"other 2": b"1", b"me 4": b"1"}


@pytest.mark.one_server
def test_equal_heartbeats_of_queues_are_sent_once(store, client):
    """No queue gets the nodes of another one, however their names and numbers are written."""
    alike, later, foreign, joined = QUEUES[:50], QUEUES[50], QUEUES[51], QUEUES[52]
    store.beat(alike, "a", 2, 7)
    store.beat([later], "a", 2, 8)
    client.hset(nodes_key(foreign), mapping={"a 2": "7\0b 2\0007"})
    client.hset(nodes_key(joined), "a 2\0007\0b 2", "7")
    asked = [*alike, later, foreign, joined]
    me, others = {"me": (4, 1)}, [*[{"a": (2, 7)}] * 50, {"a": (2, 8)}, {}, {"a 2\x007\0b": (2, 7)}]
    assert store.beat(asked, "me", 4, 1).members == [found | me for found in others]
    (reply,) = store.client.all(beat_calls(store.client, asked, "me 4", 1))
    assert len(reply[0]) == 4


@pytest.mark.one_server
def test_samples_of_many_queues_are_a_few_scripts(store, client, scripts):
    specs = [QueueSpec("large", shards=1200), *(QueueSpec(name, shards=2) for name in QUEUES)]
    for spec in specs:
        for shard in (0, spec.shards - 1):
            client.hset(shard_keys(ShardRef(spec.name, shard))["meta"], mapping={"processed": 3, "failed": 1})
    calls = scripts()
    told = store.beat([], "me", 4, 1, NodeUpdate(REPORT, 1.0, counted=tuple(specs))).reply
    assert scripts() - calls == 1 + 3 + 250
    by_shard = [(3, *(0,) * (spec.shards - 2), 3) for spec in specs]
    counters = [Counters(told.now, processed, 2) for processed in by_shard]
    assert told.samples == tuple(zip((spec.name for spec in specs), counters, strict=True))
    calls = scripts()
    store.beat([], "me", 4, 1, NodeUpdate(REPORT, 1.0, samples=told.samples))
    assert scripts() - calls == 1 + 3
    histories, _ = node_reports.histories(store.client, specs)
    assert [*histories.values()] == [(Sample(told.now, 6, 2),)] * 251
    # A slot that has a sample keeps it, whatever comes with it.
    repeated = tuple((name, replace(sample, processed=(9,))) for name, sample in told.samples[:2])
    newer = ("other", Counters(told.now, (1,), 1))
    store.beat([], "me", 4, 1, NodeUpdate(REPORT, 1.0, samples=(*repeated, newer)))
    histories, _ = node_reports.histories(store.client, [*specs[:1], QueueSpec("other")])
    assert [*histories.values()] == [(Sample(told.now, 6, 2),), (Sample(told.now, 1, 1),)]


def test_a_damaged_key_of_one_queue_stops_no_heartbeat_of_the_others(store, client):
    client.set(nodes_key("queue-1"), "planted")
    with pytest.raises(StoreError, match="WRONGTYPE"):
        store.beat(QUEUES[:3], "me", 1, 1)
    assert [client.hget(nodes_key(queue), "me 1") for queue in ("queue-0", "queue-2")] == [b"1", b"1"]
