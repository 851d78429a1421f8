"""Migrations of a queue to another number of shards: what moves, and what each script refuses."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from celery_lowkiq.rules import resharding as rules
from celery_lowkiq.rules.errors import LowkiqError
from celery_lowkiq.rules.models import Call, Disposition, Layout, QueueSpec, ShardRef
from celery_lowkiq.rules.policies import AfterFailure, Policies, WhenFull
from celery_lowkiq.store import resharding as strays
from celery_lowkiq.store.errors import ShardCountDiffers
from celery_lowkiq.store.keys import ID_KEYS, SHARD_KEYS, queue_key
from celery_lowkiq.store.push import Sender, push_call
from celery_lowkiq.store.repairs import Repairs
from celery_lowkiq.store.resharding import Migrations, Mover, reshard
from tests.bound import Actions, Pausing, Queries
from tests.store.helpers import contents, stats
from tests.store.resharding import (
    NAME,
    ONE,
    begun,
    claimed,
    ended,
    fails,
    in_migration,
    key,
    owned,
    phase,
    pushed,
    resharded,
    someone,
    until,
)
from tests.waiting import eventually

#: As many bytes as make a job with a few payloads spill.
LONG = [b"%03d" % n + b"x" * 200 for n in range(40)]
POLICIES = Policies(
    debounce=30.0,
    drop_stale=1e6,
    rate_per_id=1e-3,
    when_pushed_after_failure=AfterFailure.NOW,
)


# -- all that is kept of an id


def kept(client, job_id, shards):
    """All entries of an id: by key, its value in each shard that has one."""
    found = {}
    for name, index in itertools.product(sorted(ID_KEYS), range(shards)):
        entries = entries_of(client, name, index, job_id.encode())
        if entries:
            found.setdefault(name, []).append((index, entries))
    return found


def entries_of(client, name, index, job_id):
    if SHARD_KEYS[name] == "zset":
        pairs = client.zrange(key(name, index), 0, -1, withscores=True)
    else:
        pairs = client.hgetall(key(name, index)).items()
    own = {member: value for member, value in pairs if member.partition(b"\0")[0] == job_id}
    if name in ("spill", "spill_order", "dead_spill", "dead_spill_order"):
        # Arrival numbers are those of the shard.
        return sorted(member.rpartition(b"\0")[2] for member in own)
    return own


def an_id_with_everything(store, queue, job_id):
    """Failed, spilled, with a call record, and dead."""
    lease = owned(store, queue, 0)
    store.push(queue, [Call(job_id, b"%03d" % n + b"y" * 200, 2.0 + n, 1.0) for n in range(40)])
    ended(store, queue, lease, claimed(store, queue, lease), Disposition.BURY, error=b"boom")
    jobs = [Call(job_id, payload, 100.0 + n, 1.0) for n, payload in enumerate(LONG)]
    store.push(queue, [*jobs, Call(job_id, b"called", 200.0, 1.0, record=b"call")])
    fails(store, queue, lease)


#: Keys whose entries a migration does not move, and why.
STAYS = {
    "claimed": "what is in processing is settled where it was claimed",
    "processing": "the same",
    "moving": "it is the index of what is being moved",
}
#: Keys whose entry depends on the time of the first test, and is written here by hand.
BY_HAND = {
    "done_scores": ("hset", b"77.5 1790000000"),
    "crash_marks": ("hset", b"2@4 1790000000:5\nx"),
    "early_due": ("hset", b"8999999999"),
    "debounce": ("hset", b"1790000000000000 0"),
}


def test_everything_of_an_id_moves(store, client):
    """No key that has entries of ids is forgotten."""
    queue = replace(ONE, policies=POLICIES)
    job_id, other = someone(3, 1), someone(3, 1)
    an_id_with_everything(store, ONE, job_id)
    for name, (command, value) in BY_HAND.items():
        getattr(client, command)(key(name), job_id, value)
    client.zadd(key("buckets"), {job_id: 9e15})
    Pausing(store.client).switch_ids(ONE, [other], paused=True)
    store.push(ONE, [Call(other, b"1", 5.0, 9e9, priority=4)])
    client.zadd(key("due_prioritized"), {(ranked := someone(3, 1)): 9e9})
    client.zadd(key("by_priority"), {ranked: 5 * 2**34 + 9e9})
    client.hset(key("jobs"), ranked, b"1 1 x")
    before = {name: kept(client, name, 3) for name in (job_id, other, ranked)}
    assert set().union(*before.values()) == ID_KEYS - STAYS.keys()
    resharded(store, queue, 3)
    layout = Layout(3)
    for name, was in before.items():
        home = layout.home(name)
        assert home != 0
        assert kept(client, name, 3) == {k: [(home, entries)] for k, [(_, entries)] in was.items()}
    assert not Repairs(store.client).conditions([ShardRef(NAME, 0)])[0].used


@pytest.mark.parametrize(
    "left_mark, own_mark, expected",
    [
        (
            b"1@20 1790000001:6 =aaaaaaaaaa\ny",
            b"1@9 1790000000:5 =aaaaaaaaaabbbbbbbbbb\nx",
            b"1@20 1790000001:6 =aaaaaaaaaabbbbbbbbbb\ny",
        ),
        (
            b"1@9 1790000000:5 =bbbbbbbbbb\nx",
            b"1@20 1790000001:6 =aaaaaaaaaa\ny",
            b"1@20 1790000000:5 =aaaaaaaaaabbbbbbbbbb\nx",
        ),
        (b"1@20 1790000000:5\nx", b"2@9 1790000001:6\ny", b"2@9 1790000001:6\ny"),
        (b"2@9 1790000001:6\ny", b"1@20 1790000000:5\nx", b"2@9 1790000001:6\ny"),
    ],
)
def test_an_id_with_two_marks_stays_a_suspect_as_long_as_both_say(
    store, client, left_mark, own_mark, expected
):
    """The mark that came ended the suspicion before what had run at the other crash was done."""
    job_id = someone(2, 1)
    store.push(ONE, [Call(job_id, b"x", perform_in=1.0)])
    mover = begun(store, ONE, 2)
    until(client, mover, "move")
    home = Layout(2).home(job_id)
    client.hset(key("crash_marks"), job_id, left_mark)
    client.hset(key("crash_marks", home), job_id, own_mark)
    until(client, mover, "idle")
    assert kept(client, job_id, 2)["crash_marks"] == [(home, {job_id.encode(): expected})]


@pytest.mark.parametrize("shards", [1, 2, 5, 7])
def test_payloads_and_order_are_the_same_after_migrations(store, client, shards):
    queue = replace(ONE, shards=3)
    jobs = [Call(f"id-{n % 17}", b"%d" % n, perform_in=1.0) for n in range(170)]
    store.push(queue, jobs)
    store.push(queue, [Call("long", payload, perform_in=1.0) for payload in LONG])
    queue = resharded(store, queue, shards)
    found = {}
    for index in range(shards):
        found |= contents(claimed(store, queue, owned(store, queue, index)))
    assert {name: [text for text, _ in payloads] for name, payloads in found.items()} == {
        **{f"id-{n}": [str(m) for m in range(n, 170, 17)] for n in range(17)},
        "long": [payload.decode() for payload in LONG],
    }


def test_equal_scores_keep_their_order_in_an_id_of_several_transfers(store, client, monkeypatch):
    monkeypatch.setattr("celery_lowkiq.store.resharding.TRANSFER_PAYLOADS", 7)
    job_id = someone(2, 1)
    store.push(ONE, [Call(job_id, payload, 1.0, 1.0) for payload in LONG])
    queue = resharded(store, ONE, 2)
    claim = claimed(store, queue, owned(store, queue, 1))
    assert [payload.data for job in claim.jobs for payload in job.payloads] == LONG


def test_an_id_of_several_transfers_is_claimed_in_neither_shard_meanwhile(store, client, monkeypatch):
    monkeypatch.setattr("celery_lowkiq.store.resharding.TRANSFER_PAYLOADS", 7)
    job_id = someone(2, 1)
    store.push(ONE, [Call(job_id, payload, perform_in=1.0) for payload in LONG])
    mover, queue = begun(store, ONE, 2), in_migration(ONE, 2)
    until(client, mover, "move")
    leases = [owned(store, queue, index) for index in range(2)]
    seen = set()
    while client.hlen(key("jobs", 0)):
        mover.turn()
        if client.hlen(key("jobs", 0)):
            assert not any(claimed(store, queue, lease).jobs for lease in leases)
            seen.add(client.zcard(key("spill_order", 1)))
    assert len(seen) > 3
    assert len(claimed(store, queue, leases[1]).jobs[0].payloads) == len(LONG)


def test_counts_add_up_in_the_shards_that_stay(store, client):
    queue = replace(ONE, shards=3)
    for index in range(3):
        lease = owned(store, queue, index)
        store.push(queue, [Call(someone(3, home=index), b"x", perform_in=1.0) for _ in range(index + 1)])
        ended(store, queue, lease, claimed(store, queue, lease))
        store.push(queue, [Call(someone(3, home=index), b"x", perform_in=1.0)])
        ended(store, queue, lease, claimed(store, queue, lease), Disposition.BURY, error=b"boom")
    before = stats(store, queue)
    assert (before.processed, before.dead, before.failed) == (6, 3, 3)
    after = stats(store, resharded(store, queue, 1))
    assert (after.processed, after.dead, after.failed) == (6, 3, 3)


def test_a_mover_waits_for_nothing_while_jobs_can_move(store, client, monkeypatch):
    """Not in turns over shards without jobs, and not while it searches those that jobs have left."""
    monkeypatch.setattr(rules, "TURN_SHARDS", 1)
    monkeypatch.setattr(strays, "STEP", 10)
    queue = replace(ONE, shards=3)
    store.push(queue, [Call(str(number), b"x") for number in range(300)])
    mover = begun(store, queue, 8)
    while phase(client) != "idle":
        assert mover.turn()
    assert not mover.turn()


def test_a_retired_shard_expires_and_comes_back_with_another_migration(store, client):
    store.push(replace(ONE, shards=2), [Call("any", b"x")])
    queue = resharded(store, replace(ONE, shards=2), 1)
    assert client.hget(key("meta", 1), "shards") == b"retired"
    assert 3000 < client.ttl(key("meta", 1)) <= 3600
    assert isinstance(pushed(store, replace(ONE, shards=2), someone(2, home=1), b"x"), ShardCountDiffers)
    queue = resharded(store, queue, 3)
    assert client.ttl(key("meta", 1)) == -1
    assert pushed(store, queue, someone(3, home=1), b"x") == 1


# -- calls


def test_a_call_that_was_stored_before_the_route_changed_is_known_when_it_is_repeated(store, client):
    job_id = someone(2, 1)
    call = push_call(ONE, ShardRef(NAME, 0), Sender(), [Call(job_id, b"x")])
    store.push(ONE, [Call("any", b"x")])
    assert store.client.call(call) == 1
    until(client, begun(store, ONE, 2), "move")
    assert store.client.call(call) == 0
    assert isinstance(pushed(store, ONE, job_id, b"y"), ShardCountDiffers)


@pytest.mark.parametrize("policies", [Policies(), Policies(keep=5), Policies(priority=2)])
def test_a_call_for_an_id_with_payloads_elsewhere_runs_after_them(store, client, policies):
    queue = replace(ONE, policies=policies)
    job_id, new = someone(2, 1), someone(2, 1)
    store.push(queue, [Call(job_id, b"older", perform_in=1.0)])
    mover, moved = begun(store, queue, 2), in_migration(queue, 2)
    until(client, mover, "move")
    for name in (job_id, new):
        assert pushed(store, moved, name, b"newer", perform_in=2.0) == 1
    lease = owned(store, moved, 1)
    claim = claimed(store, moved, lease)
    assert (claim.jobs, claim.next_due) == ((), None)
    until(client, mover, "idle")
    runs = contents(claimed(store, replace(queue, shards=2), lease))
    assert {name: [text for text, _ in payloads] for name, payloads in runs.items()} == {
        job_id: ["older", "newer"],
        new: ["newer"],
    }


def test_a_call_for_an_id_in_processing_elsewhere_waits_until_it_is_settled(store, client):
    job_id = someone(2, 1)
    store.push(ONE, [Call(job_id, b"older", perform_in=1.0)])
    lease = owned(store, ONE, 0)
    running = claimed(store, ONE, lease)
    mover, moved = begun(store, ONE, 2), in_migration(ONE, 2)
    until(client, mover, "move")
    assert pushed(store, moved, job_id, b"newer", perform_in=2.0) == 1
    for _ in range(20):
        mover.turn()
    assert (phase(client), claimed(store, moved, owned(store, moved, 1)).jobs) == ("move", ())
    ended(store, moved, lease, running, Disposition.RETRY, retry_count=0, delay=0.0, error=b"boom")
    until(client, mover, "idle")
    (job,) = claimed(store, replace(ONE, shards=2), owned(store, replace(ONE, shards=2), 1)).jobs
    assert ([p.data for p in job.payloads], job.retry_count, job.error) == ([b"older", b"newer"], 0, b"boom")


def moved_meanwhile(store, client, queue, job_id, *payloads, **when):
    """The id's job after calls that came while it was moved."""
    mover, moved = begun(store, queue, 2), in_migration(queue, 2)
    until(client, mover, "move")
    assert pushed(store, moved, job_id, *payloads, **when) == 1
    until(client, mover, "idle")
    return Queries(store.client).job(replace(queue, shards=2), job_id).waiting


def a_failed_job(store, queue, job_id):
    lease = owned(store, queue, 0)
    store.push(queue, [Call(job_id, b"older", perform_in=1.0)])
    fails(store, queue, lease)
    return Queries(store.client).job(queue, job_id).waiting.perform_in


def test_a_failed_job_keeps_its_time_and_retry_count(store, client):
    job_id = someone(2, 1)
    perform_in = a_failed_job(store, ONE, job_id)
    job = moved_meanwhile(store, client, ONE, job_id, b"newer")
    assert (job.perform_in, job.retry_count, job.error) == (perform_in, 3, b"boom")


def test_a_call_makes_a_failed_job_due_early_if_the_queue_says_so(store, client):
    queue = replace(ONE, policies=Policies(when_pushed_after_failure=AfterFailure.NOW))
    job_id = someone(2, 1)
    own = a_failed_job(store, queue, job_id)
    job = moved_meanwhile(store, client, queue, job_id, b"newer")
    assert job.retry_count == 3
    assert job.perform_in < own - 1e5
    assert float(client.hget(key("early_due", 1), job_id)) == own


def test_a_call_resets_the_retry_count_if_the_queue_says_so(store, client):
    queue = replace(ONE, policies=Policies(anew_on_push=True))
    job_id = someone(2, 1)
    a_failed_job(store, queue, job_id)
    assert moved_meanwhile(store, client, queue, job_id, b"newer").retry_count == -1


@pytest.mark.parametrize("most, late", [(None, True), (1.0, False)])
def test_a_call_moves_a_debounced_job_at_most_by_debounce_max(store, client, most, late):
    queue = replace(ONE, policies=Policies(debounce=1e5, debounce_max=most))
    job_id = someone(2, 1)
    store.push(queue, [Call(job_id, b"older")])
    before = Queries(store.client).job(queue, job_id).waiting.perform_in
    job = moved_meanwhile(store, client, queue, job_id, b"newer")
    assert (job.perform_in > before) is late
    assert [payload.data for payload in job.payloads] == [b"older", b"newer"]


def test_the_more_urgent_priority_stays(store, client):
    queue = replace(ONE, policies=Policies(priority=5))
    job_id = someone(2, 1)
    store.push(queue, [Call(job_id, b"older")])
    assert moved_meanwhile(store, client, queue, job_id, b"newer", priority=2).priority == 2


def test_jobs_that_are_moved_count_as_waiting(store, client):
    queue = replace(ONE, policies=Policies(max_length=2, when_full=WhenFull.REFUSE))
    stays = [someone(2, home=0) for _ in range(3)]
    store.push(queue, [Call(job_id, b"x", perform_in=1.0) for job_id in stays[:2]])
    mover, moved = begun(store, queue, 2), in_migration(queue, 2)
    until(client, mover, "move")
    assert client.zcard(key("moving")) == 2
    assert stats(store, moved).length == 2
    assert isinstance(pushed(store, moved, stays[2], b"x"), LowkiqError)
    assert client.hlen(key("jobs")) == 2


def test_an_import_is_never_refused_and_drops_nothing(store, client):
    policies = Policies(max_length=2, when_full=WhenFull.DROP_OLDEST)
    queue = replace(ONE, shards=2, policies=policies)
    ids = [someone(2, home=index) for index in (0, 1)]
    store.push(queue, [Call(job_id, b"x", perform_in=1.0) for job_id in ids])
    queue = resharded(store, queue, 1)
    assert stats(store, queue).length == 2


# -- paused ids and what operators do


def test_a_paused_id_stays_paused(store, client):
    job_id = someone(2, 1)
    Pausing(store.client).switch_ids(ONE, [job_id], paused=True)
    store.push(ONE, [Call(job_id, b"x", perform_in=1.0)])
    queue = resharded(store, ONE, 2)
    lease = owned(store, queue, 1)
    assert claimed(store, queue, lease).jobs == ()
    Pausing(store.client).switch_ids(queue, [job_id], paused=False)
    assert [job.id for job in claimed(store, queue, lease).jobs] == [job_id]


def test_what_an_operator_does_leaves_a_job_that_is_moved_where_it_is(store, client):
    stays = someone(2, home=0)
    store.push(ONE, [Call(stays, b"x", perform_in=9e9)])
    mover, moved = begun(store, ONE, 2), in_migration(ONE, 2)
    until(client, mover, "move")
    Pausing(store.client).switch_ids(moved, [stays], paused=True)
    Pausing(store.client).switch_ids(moved, [stays], paused=False)
    Actions(store.client).run_now(moved, [stays])
    assert client.zrange(key("moving"), 0, -1) == [stays.encode()]
    lease = owned(store, moved, 0)
    assert claimed(store, moved, lease).jobs == ()
    until(client, mover, "idle")
    assert [job.id for job in claimed(store, replace(ONE, shards=2), lease).jobs] == [stays]


def test_the_pause_of_a_queue_holds_in_new_shards(store, client):
    store.push(ONE, [Call("any", b"x")])
    Pausing(store.client).switch_queue(ONE, paused=True)
    queue = resharded(store, ONE, 2)
    assert stats(store, queue).paused == 2


@pytest.mark.parametrize("turns", range(5))
def test_a_queue_whose_own_key_is_lost_is_resharded_as_its_shards_are(store, client, turns):
    store.push(ONE, [Call(f"id-{n}", b"x", perform_in=1.0) for n in range(50)])
    queue = resharded(store, ONE, 4)
    mover = begun(store, queue, 3)
    if turns:
        until(client, mover, "flip")
        for _ in range(turns):
            mover.turn()
    client.delete(queue_key(NAME))
    reshard(mover, ONE, 3)
    assert client.hget(queue_key(NAME), "shards") == b"3"
    queue = replace(ONE, shards=3)
    leases = [owned(store, queue, index) for index in range(3)]
    assert sum(len(claimed(store, queue, lease).jobs) for lease in leases) == 50


def test_a_caller_that_remembers_a_migration_begins_the_queue_of_an_empty_redis_anew(store, client):
    store.push(ONE, [Call("1", b"x")])
    until(client, begun(store, ONE, 2), "move")
    store.push(ONE, [Call("1", b"y")])
    client.flushall()
    store.push(ONE, [Call("1", b"z")])
    assert client.hget(queue_key(NAME), "shards") == b"2"
    assert not client.hexists(queue_key(NAME), "phase")
    assert reshard(begun(store, ONE, 3), ONE, 3) == 1


def test_a_queue_gets_its_number_after_another_migration_that_ended_just_now(store, client, monkeypatch):
    store.push(ONE, [Call("1", b"x")])
    begin = Migrations.begin

    def refused(migrations, shards):
        monkeypatch.setattr(Migrations, "begin", begin)
        resharded(store, ONE, 2)
        return False

    monkeypatch.setattr(Migrations, "begin", refused)
    reshard(Mover(store.client, ONE), ONE, 3)
    assert client.hget(queue_key(NAME), "shards") == b"3"


def test_the_pause_of_a_removed_shard_ends_with_it(store, client):
    """Its jobs run where they are now. The shard that is added later is not paused."""
    two, pausing = replace(ONE, shards=2), Pausing(store.client)
    names = [someone(2, home=1) for _ in range(3)]
    store.push(two, [Call(names[0], b"x", perform_in=1.0)])
    lease = owned(store, two, 1)
    running = claimed(store, two, lease)
    store.push(two, [Call(name, b"x", perform_in=1.0) for name in names[1:]])
    assert pausing.switch_shard(two, 1, paused=True)
    mover = begun(store, two, 1)
    until(client, mover, "move")
    ended(store, two, lease, running, Disposition.RETRY, retry_count=0, delay=0.0, error=b"boom")
    until(client, mover, "idle")
    lease = owned(store, ONE, 0)
    moved = claimed(store, ONE, lease)
    assert contents(moved).keys() == set(names)
    ended(store, ONE, lease, moved)
    queue = resharded(store, ONE, 2)
    assert stats(store, queue).paused == 0
    assert not pausing.switch_shard(queue, 1, paused=False)


def test_the_pause_of_a_shard_that_stays_holds_for_jobs_that_come_to_it(store, client):
    store.push(ONE, [Call(someone(1, home=0), b"x")])
    queue = resharded(store, ONE, 2)
    store.push(queue, [Call(job_id := someone(2, home=1), b"x", perform_in=1.0)])
    pausing = Pausing(store.client)
    assert pausing.switch_shard(queue, 0, paused=True)
    queue = resharded(store, queue, 1)
    lease = owned(store, queue, 0)
    assert claimed(store, queue, lease).jobs == ()
    assert pausing.switch_shard(queue, 0, paused=False)
    assert job_id in {job.id for job in claimed(store, queue, lease).jobs}


def test_the_end_of_a_migration_is_written_when_replicas_have_its_seals(store):
    """On a cluster, the queue's own key lies on another master: it could say so of a seal that is lost."""
    queue = QueueSpec("sealed", shards=2)
    store.push(queue, [Call("1", b"x", None)])
    assert store.begin_migration("sealed", 4)
    mover, migrations = store.mover(queue), Migrations(store.client, "sealed")
    confirmed, confirm = [], mover._confirm

    def confirming(shards, servers):
        confirmed.append((migrations.read().phase, list(shards)))
        return confirm(confirmed[-1][1], servers)

    mover._confirm = confirming
    eventually(lambda: not mover.turn() and migrations.read() is None)
    assert confirmed[-1] == (rules.Phase.SEAL, [0, 1, 2, 3])
