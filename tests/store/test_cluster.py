"""One queue over the masters of a real cluster."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import replace

import pytest

from celery_lowkiq.rules.claims import Claim, ClaimRequest, SettleRequest
from celery_lowkiq.rules.errors import ConfigurationError, StoreUnavailable, SubscriptionLost
from celery_lowkiq.rules.leases import NEVER_SEEN, LeaseWatch
from celery_lowkiq.rules.models import Call, Disposition, QueueSpec, Settlement, ShardRef
from celery_lowkiq.rules.resharding import Phase
from celery_lowkiq.rules.text import shard_names
from celery_lowkiq.store import durability, listener
from celery_lowkiq.store.client import read_server
from celery_lowkiq.store.cluster_map import slot_of
from celery_lowkiq.store.connect import connect_cluster
from celery_lowkiq.store.durability import Durability, Level
from celery_lowkiq.store.keys import queue_key, shard_keys
from celery_lowkiq.store.listings import WAITING_INDEXES, Listing
from celery_lowkiq.store.records import load_place
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.resharding import Migrations, reshard
from tests.bound import Queries
from tests.clusters import running_cluster
from tests.store.helpers import claim, end, take
from tests.waiting import eventually

QUEUE = QueueSpec("orders", shards=12, batch_size=10)
SHARDS = QUEUE.shard_refs()


def slot(shard):
    return slot_of(shard_keys(shard)["meta"])


def opened(cluster, **options):
    return RedisStore(connect_cluster({"cluster": cluster.addresses, **options}, pool_size=4, pool_timeout=5))


@pytest.fixture
def store(cluster):
    cluster.flush()
    store = opened(cluster)
    yield store
    store.close()


def jobs(count, start=0):
    return [Call(str(n), b"x", None) for n in range(start, start + count)]


def acquired(store):
    watches = [LeaseWatch(QUEUE, *each) for each in zip(SHARDS, store.observe(SHARDS), strict=True)]
    return store.acquire_all(watches, "me")


def run_all(store, leases):
    """Claim and settle until nothing is due; the ids in the order of their runs."""
    done = []
    for lease in leases:
        while (claimed := claim(store, lease)).jobs:
            done += [job.id for job in claimed.jobs]
            end(store, lease, claimed, queue=QUEUE)
    return done


def test_the_shards_of_a_queue_lie_on_all_masters(cluster, store):
    store.push(QUEUE, jobs(600))
    assert {cluster.owner(slot(shard)) for shard in SHARDS} == {0, 1, 2}
    leases = acquired(store)
    assert store.renew(leases) == leases
    assert len(store.next_due(SHARDS)) == len(store.next_due(SHARDS, (), [True] * 12)) == 12
    assert store.beat(["orders", "others"], "me", 1, 1).routes == ["12", ""]
    assert sorted(run_all(store, leases), key=int) == [str(n) for n in range(600)]
    assert Queries(store.client).stats(QUEUE).processed == 600
    assert all(store.release(lease) for lease in leases)
    assert read_server(store.client).address == f"cluster {store.client.cluster.map.text}"


def test_what_is_pushed_on_any_master_is_heard(store):
    with store.subscribe([QUEUE]) as subscription:
        for number, shard in enumerate(SHARDS):
            job = next(job for job in jobs(500, 500 * number) if QUEUE.shard_of(job.id) == shard)
            store.push(QUEUE, [job])
        heard = set()
        eventually(lambda: heard.add((subscription.wait_pushed(1) or [None])[0]) or heard >= {*SHARDS}, 20)


def test_scripts_that_one_master_has_lost_are_loaded_there(cluster, store):
    store.push(QUEUE, jobs(100))
    with cluster.node(1) as node:
        node.script_flush()
    store.push(QUEUE, jobs(100, 100))
    assert Queries(store.client).stats(QUEUE).length == 200


def test_the_masters_without_a_replica_are_named(cluster, store, monkeypatch):
    monkeypatch.setattr(durability, "WAIT_MS", 50)
    monkeypatch.setattr(durability, "CONFIRM_SECONDS", 0.2)
    careful = RedisStore(store.client.cluster.map, Durability(Level.REPLICATED))
    with pytest.raises(StoreUnavailable) as raised:
        careful.push(QUEUE, jobs(100))
    places = ", ".join(sorted(f"{host}:{port}" for host, port in cluster.addresses))
    assert (
        f"not confirmed as replicated within 0 s in shards orders/0-11 (12 of 12): Redis {places} has no "
        "replica, start one or connect it again"
    ) in str(raised.value)


@pytest.mark.full
def test_the_master_without_a_replica_is_named_with_its_shards(monkeypatch):
    """The two others have one each, and have confirmed theirs."""
    monkeypatch.setattr(durability, "CONFIRM_SECONDS", 0.5)
    with running_cluster(replicas=2) as cluster:
        store = opened(cluster)
        careful = RedisStore(store.client.cluster.map, Durability(Level.REPLICATED))
        alone = [shard for shard in SHARDS if cluster.owner(slot(shard)) == 2]
        replicated = [job for job in jobs(300) if QUEUE.shard_of(job.id) not in alone]
        eventually(lambda: is_confirmed(careful, replicated))
        with pytest.raises(StoreUnavailable) as raised:
            careful.push(QUEUE, jobs(300, 1000))
        host, port = cluster.addresses[2]
        assert (
            f"in shards {shard_names(alone)} ({len(alone)} of 12): Redis {host}:{port} has no replica, start"
        ) in str(raised.value)
        store.close()


def test_masters_that_cannot_confirm_store_nothing(cluster, store):
    found = connect_cluster({"cluster": cluster.addresses}, pool_size=4, pool_timeout=5)
    careful = RedisStore(found, Durability(Level.FSYNCED))
    with pytest.raises(ConfigurationError, match="needs WAITAOF"):
        careful.push(QUEUE, jobs(100))
    careful.close()
    assert [client.dbsize() for client in cluster.clients()] == [0] * 3


def is_confirmed(store, pushed):
    try:
        store.push(QUEUE, pushed)
    except StoreUnavailable:
        return False
    return True


def test_a_slot_that_is_held_half_moved_stops_its_shard_only(cluster, store):
    """Every half of its keys lies elsewhere: the shard waits, the others go on, and nothing is lost."""
    store.push(QUEUE, jobs(300))
    (lease, *_) = acquired(store)
    shard = lease.shard
    target = (cluster.owner(slot(shard)) + 1) % 3
    source = cluster.begin_move(slot(shard), target)
    cluster.move_keys(slot(shard), source, target, most=3)
    there = next(job for job in jobs(500, 1000) if QUEUE.shard_of(job.id) == shard)
    elsewhere = next(job for job in jobs(500, 1000) if QUEUE.shard_of(job.id) == SHARDS[5])
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        store.push(QUEUE, [there, elsewhere])
    assert time.monotonic() - began < 5
    assert Queries(store.client).has_job(QUEUE, elsewhere.id)
    ended = threading.Timer(0.2, lambda: finish(cluster, shard, source, target))
    ended.start()
    # The patience of a batch covers the rest of the move.
    store.push(QUEUE, [there], pauses=[0.5, 0.5, 0.5])
    ended.join()
    done = run_all(store, [lease])
    assert there.id in done
    assert Queries(store.client).shard_stats(QUEUE)[shard.index].length == 0


def finish(cluster, shard, source, target):
    cluster.move_keys(slot(shard), source, target)
    cluster.end_move(slot(shard), target)


def test_a_listing_by_id_misses_nothing_of_a_slot_that_moves(cluster, store):
    """The other master has another hash table: it does not know the cursor."""
    store.push(QUEUE, jobs(6000))
    found, after = set(), None
    for number in range(500):
        page = Queries(store.client).jobs(QUEUE, Listing(limit=100, after=after))
        found |= {job.id for job in page.items}
        after = page.next
        if after is None:
            break
        if number in (1, 8):
            moving = SHARDS[load_place(after)[0] // len(WAITING_INDEXES)]
            cluster.move(slot(moving), (cluster.owner(slot(moving)) + 1) % 3)
    assert found == {str(number) for number in range(6000)}


def test_a_slot_that_moves_between_claim_and_settle_loses_nothing(cluster, store):
    store.push(QUEUE, jobs(200))
    leases = acquired(store)
    claims = [claim(store, lease) for lease in leases]
    for shard in SHARDS[:4]:
        cluster.move(slot(shard), (cluster.owner(slot(shard)) + 1) % 3)
    for lease, claimed in zip(leases, claims, strict=True):
        end(store, lease, claimed, queue=QUEUE)
    ran = [job.id for claimed in claims for job in claimed.jobs] + run_all(store, leases)
    assert sorted(ran, key=int) == [str(n) for n in range(200)]


@pytest.mark.full
def test_a_dead_master_takes_its_own_shards_only():
    with running_cluster() as cluster:
        store = opened(cluster, socket_timeout=5.0)
        store.push(QUEUE, jobs(300))
        registry = cluster.owner(slot_of(queue_key("orders")))
        dead = (registry + 1) % 3
        cluster.servers[dead].kill()
        lost = [shard for shard in SHARDS if slot(shard) * 3 // 16384 == dead]
        living = [shard for shard in SHARDS if shard not in lost]
        assert [state is None for state in store.observe(SHARDS)] == [shard in lost for shard in SHARDS]
        leases = [take(store, QUEUE, shard.index) for shard in living]
        run_all(store, leases)
        away = replace(leases[0], shard=lost[0])
        assert store.renew([leases[0], away, leases[1]]) == [leases[0], None, leases[1]]
        assert store.release(away) is None
        assert [due is None for due in store.next_due([living[0], lost[0]])] == [False, True]
        assert [due is None for due in store.next_due([living[0], lost[0]], (), [True, True])] == [
            False,
            True,
        ]
        watch = LeaseWatch(QUEUE, lost[0], NEVER_SEEN)
        (refused,) = store.acquire_all([watch], "me")
        assert isinstance(refused, StoreUnavailable)
        settle = SettleRequest(QUEUE, away, (Settlement("1", 1, Disposition.DONE),))
        settled, claimed = store.exchange(settle, ClaimRequest(QUEUE, leases[0], 1000))
        assert isinstance(settled, StoreUnavailable)
        assert isinstance(claimed, Claim)
        beat = store.beat(["orders", *map(str, range(20))], "me", 1, 2)
        assert beat.routes[0] == "12"
        assert None in beat.members
        cluster.servers[dead].restart()
        # It kept nothing on disk: its shards are empty, and are served again.
        store.push(QUEUE, jobs(100, 1000), pauses=[0.2] * 50)
        assert take(store, QUEUE, lost[0].index).shard == ShardRef("orders", lost[0].index)
        store.close()


@pytest.mark.full
def test_a_master_that_is_frozen_costs_one_timeout_and_its_own_shards_only():
    """As one whose host has died: connections stay, or open, and nothing answers."""
    with running_cluster() as cluster:
        timeout = 4.0
        store = opened(cluster, socket_timeout=timeout, socket_connect_timeout=timeout)
        store.push(QUEUE, jobs(300))
        leases = acquired(store)
        frozen = cluster.owner(slot(SHARDS[0]))
        lost = [shard for shard in SHARDS if cluster.owner(slot(shard)) == frozen]
        living = [lease for lease in leases if lease.shard not in lost]
        cluster.freeze(frozen)
        began = time.monotonic()
        assert [due is None for due in store.next_due(SHARDS)] == [shard in lost for shard in SHARDS]
        assert time.monotonic() - began < 2 * timeout
        for _ in range(5):
            began = time.monotonic()
            assert store.renew(leases) == [None if x.shard in lost else x for x in leases]
            assert None in store.next_due(SHARDS)
            assert len(store.masters(SHARDS)) == 2
            run_all(store, living[:1])
            assert time.monotonic() - began < timeout
        store.subscribe([QUEUE]).close()
        cluster.thaw(frozen)
        eventually(lambda: store.renew(leases) == leases)
        store.close()


def listened_to(cluster, subscription):
    """The number of the master of a subscription."""
    address = subscription._client.connection_pool.connection_kwargs
    return cluster.addresses.index((address["host"], address["port"]))


@pytest.mark.full
def test_a_subscription_leaves_a_master_that_is_frozen(monkeypatch):
    """By itself: where no command goes to the master, nothing else finds that it is silent."""
    with running_cluster() as cluster:
        timeout = 20.0
        store = opened(cluster, socket_timeout=timeout, socket_connect_timeout=timeout)
        store.push(QUEUE, jobs(300))
        run_all(store, acquired(store))
        with store.subscribe([QUEUE]) as subscription:
            # The nodes may still carry the announcements of these pushes to each other.
            with monkeypatch.context() as patch:
                patch.setattr(listener, "ANSWER", 30.0)
                eventually(lambda: subscription.wait_pushed(1.5) is None)
            frozen = listened_to(cluster, subscription)
            cluster.freeze(frozen)
            began = time.monotonic()
            with pytest.raises(SubscriptionLost, match="does not respond"):
                subscription.wait_pushed(30)
            # Half a second, and those of a busy machine.
            assert time.monotonic() - began < 0.9 * timeout
        began = time.monotonic()
        with store.subscribe([QUEUE]) as subscription:
            assert time.monotonic() - began < 0.9 * timeout
            assert listened_to(cluster, subscription) != frozen
            of_living = next(shard for shard in SHARDS if cluster.owner(slot(shard)) != frozen)
            store.push(QUEUE, [next(j for j in jobs(500) if QUEUE.shard_of(j.id) == of_living)])
            shard, _ = subscription.wait_pushed(5)
            assert shard == of_living
        cluster.thaw(frozen)
        store.close()


@pytest.mark.full
def test_shards_of_living_masters_are_admitted_while_another_one_is_dead():
    """Those that are not registered yet: of a queue whose own key is there."""
    with running_cluster() as cluster:
        store = opened(cluster, socket_timeout=5.0)
        registry = cluster.owner(slot_of(queue_key("orders")))
        dead = (registry + 1) % 3
        living = [shard for shard in SHARDS if cluster.owner(slot(shard)) != dead]
        at_living = {shard: next(j for j in jobs(500) if QUEUE.shard_of(j.id) == shard) for shard in living}
        store.push(QUEUE, [at_living[living[0]]])
        cluster.kill(dead)
        store.push(QUEUE, list(at_living.values()))
        lost = next(shard for shard in SHARDS if shard not in living)
        watches = [LeaseWatch(QUEUE, shard, NEVER_SEEN) for shard in SHARDS]
        seen = store.observe(SHARDS)
        watches = [replace(w, seen=state) if state else w for w, state in zip(watches, seen, strict=True)]
        answers = dict(zip(SHARDS, store.acquire_all(watches, "me"), strict=True))
        assert isinstance(answers[lost], StoreUnavailable)
        assert {answers[shard].shard for shard in living} == set(living)
        store.close()


@pytest.mark.full
def test_a_process_with_another_declared_number_calls_while_the_queues_own_master_is_dead():
    """It does not know the stored number yet, and learns it from the shards that refuse its calls."""
    with running_cluster() as cluster:
        store, caller = opened(cluster), opened(cluster)
        store.push(QUEUE, jobs(200))
        dead = cluster.owner(slot_of(queue_key("orders")))
        declared = replace(QUEUE, shards=5)
        living = {shard for shard in SHARDS if cluster.owner(slot(shard)) != dead}
        at_living = [job for job in jobs(200) if QUEUE.shard_of(job.id) in living]
        assert not living.issuperset(declared.shard_of(job.id) for job in at_living)
        cluster.kill(dead)
        with pytest.raises(StoreUnavailable):
            caller.push(declared, at_living)
        caller.push(declared, at_living)
        for shard in living:
            pushed = [job for job in at_living if QUEUE.shard_of(job.id) == shard]
            assert store.client.commands([("HGET", shard_keys(shard)["meta"], "merged")]) == [
                b"%d" % len(pushed)
            ]
        lost = next(job for job in jobs(200) if job not in at_living)
        with pytest.raises(StoreUnavailable):
            caller.push(declared, [lost])
        store.close()
        caller.close()


@pytest.mark.full
def test_a_migration_goes_on_between_living_masters():
    with running_cluster() as cluster:
        store = opened(cluster, socket_timeout=5.0)
        store.push(QUEUE, jobs(600))
        assert store.begin_migration("orders", 24)
        mover, migrations = store.mover(QUEUE), Migrations(store.client, "orders")
        eventually(lambda: mover.turn() and migrations.read().phase is Phase.MOVE)
        dead = (cluster.owner(slot_of(queue_key("orders"))) + 1) % 3
        of = {n: cluster.owner(slot(ShardRef("orders", n))) for n in range(24)}
        cluster.kill(dead)
        wanted = replace(QUEUE, shards=24)
        homes = {job.id: wanted.shard_of(job.id).index for job in jobs(600)}
        going = {job_id: n for job_id, n in homes.items() if n >= 12 and dead not in (of[n], of[n % 12])}
        assert going

        def arrived():
            # A turn may be of shards of the dead master only.
            with contextlib.suppress(StoreUnavailable):
                mover.turn()
            lengths = [("HLEN", shard_keys(ShardRef("orders", n))["jobs"]) for n in set(going.values())]
            return sum(store.client.commands(lengths)) == len(going)

        eventually(arrived)
        store.close()


@pytest.mark.full
def test_no_migration_begins_while_a_master_is_away():
    """It had begun, though the error said that the master is unreachable, and nothing else."""
    with running_cluster() as cluster:
        store = opened(cluster)
        store.push(QUEUE, jobs(10))
        registry = cluster.owner(slot_of(queue_key(QUEUE.name)))
        cluster.kill((registry + 1) % 3)
        with pytest.raises(StoreUnavailable):
            reshard(store.mover(QUEUE), QUEUE, 24)
        # A worker looks again after a lease time.
        assert not store.begin_migration(QUEUE.name, 24)
        assert Migrations(store.client, QUEUE.name).read() is None
        store.close()
