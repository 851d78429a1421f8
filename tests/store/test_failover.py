"""A Redis that comes back as another process may have lost the last writes: no node relies on them."""

from __future__ import annotations

import itertools

import pytest

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.rules.claims import OpenClaims
from celery_lowkiq.rules.errors import NotOwner
from celery_lowkiq.rules.leases import LeaseWatch
from celery_lowkiq.rules.models import LeaseState
from celery_lowkiq.store.connect import connect
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.redis_store import RedisStore
from tests.bound import Queries
from tests.store.helpers import ONE, SHARD, claim, dead, push, take

OWNERS = (f"owner-{number}" for number in itertools.count())
LEASE = shard_keys(SHARD)["lease"]


@pytest.fixture(scope="module")
def server():
    with EmbeddedServer(appendonly=True, config={"appendfsync": "always"}) as server:
        yield server


@pytest.fixture
def client(server):
    client = connect({"path": server.socket_path}, pool_size=2, pool_timeout=1)
    client.flushall()
    yield client
    client.connection_pool.disconnect()


@pytest.fixture
def store(client):
    return RedisStore(client)


@pytest.fixture
def fail_over(server, client):
    """Redis as another process; ``lease`` puts back what it had forgotten of the lease."""

    def fail_over(lease=None):
        server.kill()
        server.restart()
        if lease is not None:
            client.delete(LEASE)
            if lease:
                client.hset(LEASE, mapping=lease)

    return fail_over


def may_take_at_once(store):
    (seen,) = store.observe([SHARD])
    return LeaseWatch(ONE, SHARD).observed(seen, now=1.0).may_take(now=1.0, lease_seconds=10)


def test_a_lease_names_the_server_that_gave_it(store, fail_over):
    lease = take(store)
    (before,) = store.observe([SHARD])
    fail_over()
    (after,) = store.observe([SHARD])
    assert lease.server == before.server == before.given_on == after.given_on
    assert after.server not in ("", before.server)
    assert (before.owner, before.epoch, before.counter) == (after.owner, after.epoch, after.counter)


def test_a_lease_that_was_seen_on_another_server_is_not_taken(store, fail_over):
    take(store, owner="dead")
    (seen,) = store.observe([SHARD])
    fail_over()
    with pytest.raises(NotOwner):
        store.acquire(ONE, SHARD, "me", seen, 0)
    assert take(store, owner="me").epoch > seen.epoch


def test_a_released_shard_is_free_at_once_on_the_server_that_gave_it_only(store, fail_over):
    assert may_take_at_once(store)
    store.release(take(store))
    assert may_take_at_once(store)
    fail_over()
    assert not may_take_at_once(store)
    store.release(take(store, owner="next"))
    assert may_take_at_once(store)


def test_a_lost_acquire_is_waited_for(store, client, fail_over):
    """Others see the shard as it was before, while its owner works on."""
    store.release(take(store, owner="first"))
    released = client.hgetall(LEASE)
    owner = take(store, owner="second")
    fail_over(released)
    assert not may_take_at_once(store)
    assert store.renew([owner]) == [False]
    (seen,) = store.observe([SHARD])
    assert store.acquire(ONE, SHARD, "third", seen, owner.epoch).epoch > owner.epoch


def test_our_own_lease_that_another_had_since_is_taken_anew(store, client, fail_over):
    ours = take(store, owner="me")
    written = client.hgetall(LEASE)
    other = take(store, owner="other")
    fail_over(written)
    (seen,) = store.observe([SHARD])
    assert not LeaseWatch(ONE, SHARD).observed(seen, 1.0).ours("me")
    again = store.acquire(ONE, SHARD, "me", seen, other.epoch)
    assert again.epoch > other.epoch > ours.epoch


@pytest.mark.parametrize("stopping", [False, True])
def test_a_renewal_tells_which_server_has_the_lease(store, fail_over, stopping):
    lease = take(store)
    fail_over()
    (seen,) = store.observe([SHARD])
    (renewed,) = store.renew([lease], stopping)
    assert (renewed, renewed.server) == (lease, seen.server)
    assert renewed.server != lease.server


def test_a_release_goes_to_the_server_that_the_owner_knows_of(store, fail_over):
    """An owner whose renewal was answered there in time hands its shard over at once."""
    lease = take(store)
    fail_over()
    assert not store.release(lease)
    (renewed,) = store.renew([lease])
    assert store.release(renewed)
    assert may_take_at_once(store)


def test_what_is_given_up_without_knowing_the_server_is_waited_for(store, fail_over):
    lease = take(store)
    fail_over()
    assert store.release(lease, unsettled=True)
    assert not may_take_at_once(store)


def test_who_died_together_with_redis_is_no_suspect(store, fail_over):
    push(store, "1", ("x", 1), perform_in=1.0)
    for _ in range(ONE.max_crashes + 3):
        assert claim(store, take(store, owner=next(OWNERS))).jobs
        fail_over()
    lease = take(store, owner=next(OWNERS))
    claimed = claim(store, lease)
    assert ([job.id for job in claimed.jobs], claimed.suspect) == (["1"], False)
    assert dead(store, "1") is None
    assert Queries(store.client).stats(ONE).morgue_length == 0


def test_a_server_that_does_not_tell_its_name_works_as_before(store, client):
    client.execute_command("ACL", "SETUSER", "default", "-info")
    try:
        assert store.observe([SHARD]) == [LeaseState()]
        lease = take(store)
        assert lease.server == ""
        assert store.renew([lease])[0].server == ""
        store.release(lease)
        assert may_take_at_once(store)
    finally:
        client.execute_command("ACL", "SETUSER", "default", "+info")


def test_a_claims_number_is_above_all_that_its_owner_remembers(store, client):
    """Redis went back, and then to newer data again, as a second failover may: nothing may stay behind."""
    push(store, "1", ("x", 1), perform_in=1.0)
    lease = take(store)
    older = dump(client)
    first = claim(store, lease)
    newer = dump(client)
    restore(client, older)
    again = claim(store, lease, in_hand=OpenClaims(first.number))
    assert again.number > first.number
    restore(client, newer)
    in_hand = OpenClaims(again.number)
    assert store.next_due([SHARD], [in_hand])[0].next_due is not None
    assert [job.id for job in claim(store, lease, in_hand=in_hand).jobs] == ["1"]


def dump(client):
    return {key: client.dump(key) for key in client.scan_iter()}


def restore(client, dumped):
    client.flushall()
    for key, value in dumped.items():
        client.restore(key, 0, value)
