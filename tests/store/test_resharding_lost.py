"""A queue that loses its own key in or after a migration goes on with it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from celery_lowkiq.rules.errors import NotAbortable, StoreUnavailable
from celery_lowkiq.rules.models import Call, Layout, shard_of
from celery_lowkiq.rules.resharding import Phase
from celery_lowkiq.store import registry
from celery_lowkiq.store.actions import queue_damages, repair_queue
from celery_lowkiq.store.keys import FORMAT, SHARD_KEYS, queue_key
from celery_lowkiq.store.resharding import Migrations, Mover
from tests.bound import Pausing
from tests.store.helpers import contents
from tests.store.resharding import (
    NAME,
    ONE,
    begun,
    claimed,
    copies,
    ended,
    key,
    owned,
    resharded,
    run,
    take_back,
    until,
)


@pytest.mark.parametrize("closed, open_", [(1, 0), (3, 0), (3, 1), (3, 5)])
@pytest.mark.parametrize("declared", [1, 3, 9])
def test_a_queue_whose_own_key_is_lost_while_its_shards_close_goes_on(store, client, declared, closed, open_):
    """Closed shards keep the route of the migration: callers finish it, and no other number applies."""
    store.push(replace(ONE, shards=5), [Call(f"id-{n}", b"x", perform_in=1.0) for n in range(50)])
    queue = resharded(store, resharded(store, replace(ONE, shards=5), 9), 3)
    begun(store, queue, 5).turn()
    half_flipped(store, closed, open_)
    client.delete(queue_key(NAME))
    caller = replace(ONE, shards=declared)
    for n in range(50):
        store.push(caller, [Call(f"id-{n}", b"y", perform_in=1.0)])
    assert client.hmget(queue_key(NAME), "gen", "migration") == [b"3", b"3>5"]
    until(client, Mover(store.client, caller), "idle")
    assert runs_of(store, replace(ONE, shards=5)) == {f"id-{n}": ["x", "y"] for n in range(50)}


def half_flipped(store, closed, open_):
    """Close and open only the first shards of 3, in their third migration, to 5."""
    args = {"gen": 3, "pause": 0, "since": "", "score": 0, "last_call": 0}
    for index in range(max(closed, open_)):
        run(store, "fence", index, gen=3, route="3>5")
    for index in range(open_):
        run(store, "open", index, shards="3>5", **args)


def runs_of(store, queue):
    """Texts of all payloads, by id."""
    found = {}
    for index in range(queue.shards):
        found |= contents(claimed(store, queue, owned(store, queue, index)))
    return {name: [text for text, _ in payloads] for name, payloads in found.items()}


def test_a_queue_whose_own_key_is_lost_between_two_seals_ends_its_migration(store, client):
    store.push(ONE, [Call("1", b"x", perform_in=1.0)])
    mover = begun(store, ONE, 3)
    until(client, mover, "seal")
    run(store, "seal", 2, gen=1, shards="1>3", sealed="3")
    client.delete(queue_key(NAME))
    registry.registered(store.client, ONE)
    until(client, mover, "idle")
    assert runs_of(store, replace(ONE, shards=3)) == {"1": ["x"]}


def test_a_queue_whose_own_key_is_older_than_its_shards_follows_them(store, client):
    """A failover lost the begin of the migration; shards on other servers have closed."""
    store.push(ONE, [Call("1", b"x", perform_in=1.0)])
    before = client.dump(queue_key(NAME))
    begun(store, ONE, 2).turn()
    run(store, "fence", 0, gen=1, route="1>2")
    client.restore(queue_key(NAME), 0, before, replace=True)
    store.push(ONE, [Call("1", b"y", perform_in=1.0)])
    until(client, Mover(store.client, ONE), "idle")
    assert runs_of(store, replace(ONE, shards=2)) == {"1": ["x", "y"]}


def test_a_queue_whose_own_key_is_lost_in_a_migration_stays_paused(store, client):
    store.push(ONE, [Call(f"id-{n}", b"x", perform_in=1.0) for n in range(20)])
    Pausing(store.client).switch_queue(ONE, paused=True)
    mover = begun(store, ONE, 3)
    until(client, mover, "flip")
    run(store, "fence", 0, gen=1, route="1>3")
    since = client.hget(queue_key(NAME), "paused")
    client.delete(queue_key(NAME))
    store.push(ONE, [Call("another", b"x", perform_in=1.0)])
    assert client.hget(queue_key(NAME), "paused") == since
    until(client, mover, "idle")
    queue = replace(ONE, shards=3)
    assert runs_of(store, queue) == {}
    Pausing(store.client).switch_queue(queue, paused=False)
    assert len(runs_of(store, queue)) == 21


@pytest.mark.parametrize("stored", [None, 1, 9])
def test_a_queue_that_is_repaired_after_a_migration_can_be_resharded(store, client, stored):
    """Its own key was lost, or written by other code: its shards know the number of the last migration."""
    store.push(ONE, [Call(f"id-{n}", b"x", perform_in=1.0) for n in range(20)])
    queue = resharded(store, ONE, 5)
    client.delete(queue_key(NAME))
    if stored:
        client.hset(queue_key(NAME), mapping={"shards": stored, "format": FORMAT})
    repair_queue(store.client, ONE)
    assert client.hmget(queue_key(NAME), "shards", "gen") == [b"5", b"1"]
    assert queue_damages(store.client, ONE) == []
    assert runs_of(store, resharded(store, queue, 2)) == {f"id-{n}": ["x"] for n in range(20)}


@pytest.mark.parametrize("phase", ["flip", "move", "seal"])
def test_a_queue_that_is_repaired_in_a_migration_goes_on_with_it(store, client, phase):
    store.push(ONE, [Call(f"id-{n}", b"x", perform_in=1.0) for n in range(20)])
    mover = begun(store, ONE, 5)
    until(client, mover, phase)
    if phase == "flip":
        run(store, "fence", 0, gen=1, route="1>5")
    client.delete(queue_key(NAME))
    repair_queue(store.client, ONE)
    until(client, mover, "idle")
    assert client.hget(queue_key(NAME), "gen") == b"1"
    assert runs_of(store, replace(ONE, shards=5)) == {f"id-{n}": ["x"] for n in range(20)}


@pytest.mark.parametrize("count", [1, 2])
def test_a_source_that_a_failover_takes_back_after_it_was_finished_is_moved_again(
    store, client, monkeypatch, count
):
    """What was lost is that it was ever closed: its jobs wait as before."""
    monkeypatch.setattr("celery_lowkiq.rules.resharding.TRANSFER_IDS", 1)
    two, moves = replace(ONE, shards=2), [name for name in map(str, range(200)) if homes(name) == (0, 2)]
    stays = next(name for name in map(str, range(200)) if homes(name)[0] == 1)
    store.push(two, [Call(name, b"x", perform_in=1.0) for name in [*moves, stays]])
    lease = owned(store, two, 1)
    running = claimed(store, two, lease)
    before = {name: client.dump(name) for name in client.scan_iter(f"lowkiq:1:{{{NAME}:0}}:*")}
    movers = [begun(store, two, 3), *(Mover(store.client, two) for _ in range(count - 1))]
    both = SimpleNamespace(turn=lambda: [mover.turn() for mover in movers])
    for _ in range(150):
        both.turn()
    assert (client.zcard(key("moving")), client.hlen(key("jobs"))) == (0, 0)
    client.delete(*client.scan_iter(f"lowkiq:1:{{{NAME}:0}}:*"))
    for name, dumped in before.items():
        client.restore(name, 0, dumped)
    ended(store, two, lease, running)
    until(client, both, "idle")
    assert client.hlen(key("jobs")) == 0
    assert runs_of(store, replace(ONE, shards=3)).keys() == set(moves)


def homes(name):
    return shard_of(name, 2), shard_of(name, 3)


def until_unconfirmed(mover, monkeypatch, after):
    """Have it do turns until a replica does not confirm; before, it confirms so many times."""
    confirms = iter([True] * after)

    def confirm(shards, servers):
        if list(shards) and not next(confirms, False):
            raise StoreUnavailable("not confirmed")
        return ()

    with monkeypatch.context() as patched:
        patched.setattr(mover, "_confirm", confirm)
        with pytest.raises(StoreUnavailable):
            while True:
                mover.turn()


def test_a_transfer_that_comes_back_to_a_sealed_shard_moves_all_once_more(store, client, monkeypatch):
    """Failovers lost the end of the transfer in its source, and the last phase in the queue's own key."""
    store.push(ONE, [Call(f"id-{n}", b"x", perform_in=1.0) for n in range(20)])
    mover = begun(store, ONE, 3)
    until(client, mover, "move")
    # The export is confirmed, and the import is not.
    until_unconfirmed(mover, monkeypatch, after=1)
    keys = [*(key(name) for name in SHARD_KEYS), queue_key(NAME)]
    lost = [(name, client.dump(name)) for name in keys]
    until(client, mover, "seal")
    for index in (1, 2):
        run(store, "seal", index, gen=1, shards="1>3", sealed="3")
    for name, data in lost:
        client.delete(name)
        if data is not None:
            client.restore(name, 0, data)
    until(client, Mover(store.client, ONE), "idle")
    assert client.hget(queue_key(NAME), "gen") == b"2"
    assert runs_of(store, replace(ONE, shards=3)) == {f"id-{n}": ["x"] for n in range(20)}


def test_the_last_phase_begins_when_replicas_have_the_end_of_all_transfers(store, client):
    """What is sealed takes no transfer: none may come back with a failover."""
    store.push(ONE, [Call(f"id-{n}", b"x", perform_in=1.0) for n in range(20)])
    mover, confirmed = begun(store, ONE, 3), []
    confirm = mover._confirm

    def confirming(shards, servers):
        confirmed.append((client.hget(queue_key(NAME), "phase"), list(shards)))
        return confirm(confirmed[-1][1], servers)

    mover._confirm = confirming
    until(client, mover, "seal")
    assert confirmed[-1] == (b"move", [0, 1, 2])


def test_a_transfer_is_imported_when_replicas_have_its_export(store, client, monkeypatch):
    """Else a failover of its source could bring back what has run in the other shard by then."""
    store.push(ONE, [Call(f"id-{n}", b"x", perform_in=1.0) for n in range(20)])
    mover = begun(store, ONE, 2)
    until(client, mover, "move")
    until_unconfirmed(mover, monkeypatch, after=0)
    assert client.hexists(key("outbox"), "1")
    assert not client.exists(key("jobs", 1), key("outbox", 1))
    until(client, mover, "idle")
    assert runs_of(store, replace(ONE, shards=2)) == {f"id-{n}": ["x"] for n in range(20)}


def test_a_shard_whose_opening_a_failover_has_lost_is_opened_again(store, client):
    """The phase after it stands in the queue's own key, which is another master's."""
    store.push(ONE, [Call(f"id-{n}", b"x", perform_in=1.0) for n in range(20)])
    mover = begun(store, ONE, 3)
    until(client, mover, "flip")
    run(store, "fence", 2, gen=1, route="1>3")
    closed = copies(client, 2)
    until(client, mover, "move")
    take_back(client, 2, closed)
    until(client, mover, "idle")
    assert runs_of(store, replace(ONE, shards=3)) == {f"id-{n}": ["x"] for n in range(20)}


@pytest.mark.parametrize("back_to", ["flip", "idle"])
def test_a_shard_that_a_failover_takes_back_in_the_last_phase_is_moved_again(store, client, back_to):
    """It was sealed by no one, and the migration never ended."""
    two = replace(ONE, shards=2)
    store.push(two, [Call(f"id-{n}", b"x", perform_in=1.0) for n in range(20)])
    former = copies(client, 1)
    mover = begun(store, two, 1)
    until(client, mover, "flip")
    if back_to == "flip":
        run(store, "fence", 1, gen=1, route="2>1")
        former = copies(client, 1)
    until(client, mover, "seal")
    take_back(client, 1, former)
    until(client, mover, "idle")
    assert runs_of(store, ONE) == {f"id-{n}": ["x"] for n in range(20)}
    assert client.hget(key("meta", 1), "shards") == b"retired"


@pytest.mark.parametrize("back_to", ["before", "sealing"])
def test_a_shard_that_a_failover_takes_back_over_two_migrations_is_moved_again(store, client, back_to):
    """Its replica was cut off all that time, so that no mover waited for it."""
    three = replace(ONE, shards=3)
    ids = [f"id-{n}" for n in range(20)]
    store.push(three, [Call(job_id, b"x", perform_in=1.0) for job_id in ids])
    before, mover = copies(client, 0), begun(store, three, 1)
    until(client, mover, "seal")
    sealing = copies(client, 0)
    until(client, mover, "idle")
    two = resharded(store, ONE, 2)
    take_back(client, 0, {"before": before, "sealing": sealing}[back_to])
    call = next(one for one in ids if shard_of(one, 2) == shard_of(one, 3) == 0)
    store.push(two, [Call(call, b"y", perform_in=1.0)])
    until(client, Mover(store.client, two), "idle")
    assert client.hmget(queue_key(NAME), "gen", "migration") == [b"3", b"1>2"]
    done = runs_of(store, two)
    assert done[call] == ["x", "y"]
    # What came to it in the first migration is lost, unless the second one took it away.
    kept = {one for one in ids if back_to == "sealing" or shard_of(one, 3) == 0 or shard_of(one, 2) == 1}
    assert done.keys() == kept | {call}
    assert [client.hget(key("meta", index), "shards") for index in range(2)] == [b"2", b"2"]


def test_a_queue_that_has_lost_that_its_shards_close_goes_on(store, client):
    """A failover took its own key back to the phase before, in which it was paused."""
    store.push(ONE, [Call("1", b"x", perform_in=1.0)])
    mover, migrations = begun(store, ONE, 3), Migrations(store.client, NAME)
    before = client.dump(queue_key(NAME))
    until(client, mover, "flip")
    for index in range(3):
        run(store, "fence", index, gen=1, route="1>3")
    client.restore(queue_key(NAME), 0, before, replace=True)
    assert migrations.pause(True)
    store.push(ONE, [Call("1", b"y", perform_in=1.0)])
    migrations.pause(False)
    until(client, mover, "idle")
    assert client.hget(queue_key(NAME), "gen") == b"1"
    assert runs_of(store, replace(ONE, shards=3)) == {"1": ["x", "y"]}


def test_a_migration_that_the_queue_has_lost_goes_on_before_another_one_begins(store, client):
    """Another one would have its number, and shards that are open would take no part in it."""
    store.push(ONE, [Call(f"id-{n}", b"x", perform_in=1.0) for n in range(20)])
    before = client.dump(queue_key(NAME))
    until(client, begun(store, ONE, 2), "move")
    client.restore(queue_key(NAME), 0, before, replace=True)
    assert not Migrations(store.client, NAME).begin(3)
    until(client, Mover(store.client, ONE), "idle")
    assert client.hmget(queue_key(NAME), "gen", "migration") == [b"1", b"1>2"]
    queue = resharded(store, replace(ONE, shards=2), 3)
    assert runs_of(store, queue) == {f"id-{n}": ["x"] for n in range(20)}


def test_a_queue_that_has_lost_that_its_shards_are_sealed_moves_once_more(store, client, monkeypatch):
    """A sealed shard says nothing of the ids that calls wait for, which were more than a turn has."""
    monkeypatch.setattr("celery_lowkiq.rules.resharding.TURN_JOBS", 2)
    two, waiting = replace(ONE, shards=2), [name for name in map(str, range(20)) if shard_of(name, 2)]
    store.push(two, [Call("any", b"x", perform_in=1.0)])
    mover = begun(store, two, 1)
    until(client, mover, "move")
    before = client.dump(queue_key(NAME))
    until(client, mover, "seal")
    run(store, "seal", 1, gen=1, shards="2>1", sealed="retired")
    client.restore(queue_key(NAME), 0, before, replace=True)
    store.push(two, [Call(job_id, b"x", perform_in=1.0) for job_id in waiting])
    until(client, Mover(store.client, two), "idle")
    assert runs_of(store, ONE) == {job_id: ["x"] for job_id in ["any", *waiting]}


def test_a_queue_that_has_forgotten_a_migration_finds_it_before_another_one_begins(store, client):
    """A failover took its own key and a shard back; the shards that were added are still in it."""
    store.push(ONE, [Call(f"id-{n}", b"x", perform_in=1.0) for n in range(20)])
    before = client.dump(queue_key(NAME))
    mover = begun(store, ONE, 4)
    until(client, mover, "move")
    for _ in range(3):
        mover.turn()
    client.restore(queue_key(NAME), 0, before, replace=True)
    client.hset(key("meta"), "shards", 1)
    client.hdel(key("meta"), "gen", "migration")
    assert not Migrations(store.client, NAME).begin(3)
    assert client.hmget(queue_key(NAME), "gen", "migration") == [b"1", b"1>4"]
    until(client, Mover(store.client, ONE), "idle")
    assert runs_of(store, replace(ONE, shards=4)).keys() == {f"id-{n}" for n in range(20)}


def test_a_queue_that_has_lost_a_migration_that_ended_is_in_none(store, client):
    """A failover took its own key back to the one before, whose phase stayed, with the last one's number."""
    two = replace(ONE, shards=2)
    store.push(two, [Call(f"id-{n}", b"x", perform_in=1.0) for n in range(20)])
    mover, migrations = begun(store, two, 1), Migrations(store.client, NAME)
    until(client, mover, "flip")
    migrations.pause(True)
    before = client.dump(queue_key(NAME))
    migrations.pause(False)
    until(client, mover, "idle")
    resharded(store, ONE, 2)
    client.restore(queue_key(NAME), 0, before, replace=True)
    assert registry.registered(store.client, two).layout.route == "2"
    fields = ("gen", "migration", "phase", "format", "migration_paused")
    assert client.hmget(queue_key(NAME), *fields) == [b"2", b"1>2", b"idle", b"%d" % FORMAT, None]
    assert runs_of(store, resharded(store, two, 3)) == {f"id-{n}": ["x"] for n in range(20)}


def test_a_mover_finds_that_the_queue_has_forgotten_a_migration(store, client):
    """Workers that have their leases, and callers that know its shards, ask nothing of its own key."""
    store.push(ONE, [Call(f"id-{n}", b"x", perform_in=1.0) for n in range(20)])
    until(client, begun(store, ONE, 2), "flip")
    before = client.dump(queue_key(NAME))
    Migrations(store.client, NAME).abort()
    mover = Mover(store.client, ONE)
    until(client, mover, "move")
    client.restore(queue_key(NAME), 0, before, replace=True)
    until(client, mover, "idle")
    assert client.hmget(queue_key(NAME), "gen", "migration") == [b"2", b"2>1"]
    assert runs_of(store, ONE) == {f"id-{n}": ["x"] for n in range(20)}


@pytest.mark.parametrize("fails", [False, True])
def test_a_turn_that_finds_a_forgotten_migration_does_not_count_as_a_busy_redis(
    store, client, monkeypatch, fails
):
    """Its many requests were measured as one small request; those of a turn that failed were not measured."""
    clock = SimpleNamespace(now=0.0)
    store.push(ONE, [Call("1", b"x", perform_in=1.0)])
    begun(store, ONE, 2)
    mover = Mover(store.client, ONE, clock=SimpleNamespace(monotonic=lambda: clock.now))
    mover.turn()

    def catch_up(migrations, shards):
        clock.now += 0.1
        if fails:
            raise StoreUnavailable("Redis is not available")

    monkeypatch.setattr(Migrations, "catch_up", catch_up)
    mover._is_behind = True
    with pytest.raises(StoreUnavailable) if fails else nullcontext():
        mover.turn()
    assert mover._pace.busy == 0
    assert mover.pause(1) > 0


@pytest.mark.parametrize("lost", ["its own key", "what a shard did"])
def test_a_migration_that_may_take_another_one_back_is_not_taken_back(store, client, lost):
    """Calls of an id lie in both shards then, later ones in the one that it would leave."""
    store.push(ONE, [Call("1", b"x", perform_in=1.0)])
    migrations = Migrations(store.client, NAME)
    until(client, begun(store, ONE, 2), "move")
    assert migrations.abort() == 1
    mover = Mover(store.client, ONE)
    until(client, mover, "move")
    if lost == "its own key":
        client.delete(queue_key(NAME))
        registry.registered(store.client, ONE)
    else:
        assert migrations.restart(2, Phase.MOVE)
    if lost == "its own key":
        with pytest.raises(NotAbortable, match="'orders' to 1 shards cannot be aborted"):
            migrations.abort()
    else:
        assert migrations.abort() == 1
    assert client.hmget(queue_key(NAME), "migration", "phase") == [b"2>1", b"flip"]
    until(client, mover, "idle")
    assert migrations.begin(2)
    assert migrations.abort() == 1


def test_a_queue_is_registered_as_its_retired_shards_say(store, client):
    """A failover took its own key back to before its migration, and the master of the other shard is
    unreachable.
    """
    store.push(replace(ONE, shards=4), [Call(f"id-{n}", b"x", perform_in=1.0) for n in range(20)])
    before = client.dump(queue_key(NAME))
    resharded(store, replace(ONE, shards=4), 1)
    client.restore(queue_key(NAME), 0, before, replace=True)
    client_of_others = WithoutFirst(store.client)
    assert registry.registered(client_of_others, replace(ONE, shards=4)).layout == Layout(1)
    assert client.hmget(queue_key(NAME), "shards", "gen", "migration") == [b"1", b"1", b"4>1"]
    assert len(runs_of(store, ONE)) == 20


class WithoutFirst:
    """A client for which the master of the first shard is unreachable."""

    def __init__(self, client):
        self._client = client

    def __getattr__(self, name):
        return getattr(self._client, name)

    def each_command(self, commands, **options):
        lost = {name for name, command in commands.items() if command[1] == key("meta")}
        found, errors = self._client.each_command(
            {name: command for name, command in commands.items() if name not in lost}, **options
        )
        return found, errors | dict.fromkeys(lost, StoreUnavailable("its master is unreachable"))
