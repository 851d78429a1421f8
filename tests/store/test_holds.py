"""Ids that a death holds: nothing runs over the gap, whatever brings it there, until somebody decides."""

from __future__ import annotations

import uuid

import pytest

from celery_lowkiq.rules.dump_format import Header, State, entry_line, read_line
from celery_lowkiq.rules.errors import QueueFull
from celery_lowkiq.rules.models import Call, Disposition, PayloadRemoval, QueueSpec, RemovalReason
from celery_lowkiq.rules.policies import Policies
from celery_lowkiq.store.actions import DEAD, STEP
from celery_lowkiq.store.dump_load import dump_entries, load_entries
from celery_lowkiq.store.keys import SHARD_KEYS, shard_keys
from celery_lowkiq.store.resharding import reshard
from tests.bound import Actions, Diagnosis, Pausing, Queries
from tests.store.helpers import SHARD, dead, end, listening, stats, take, waiting
from tests.store.shard import Shard

GONE = [PayloadRemoval(0, None, reason) for reason in RemovalReason]


@pytest.fixture
def shard(store):
    return Shard(store, hold=10_000)


def held(store, queue):
    return [one.id for one in Queries(store.client).held_ids(queue).items]


def claimed(shard):
    return {job.id: [p.data.decode() for p in job.payloads] for job in shard.claim()}


def kill(shard, job_id="1", payload=b"head", score=1.0, disposition=Disposition.DIE, **settlement):
    """A payload of the id is claimed alone and dies."""
    shard.push(job_id, payload, score)
    (job,) = [one for one in shard.claim() if one.id == job_id]
    shard.end(job, disposition, error=b"boom", **settlement)


# -- the ways in which a payload can leave


@pytest.mark.parametrize("disposition", [Disposition.DIE, Disposition.BURY])
def test_a_death_holds_its_id_and_no_other(store, shard, disposition):
    kill(shard, disposition=disposition)
    shard.push("1", b"newer", 2)
    shard.push("2", b"other", 1)
    assert claimed(shard) == {"2": ["other"]}
    assert held(store, shard.spec) == ["1"]
    assert (dead(store, "1", shard.spec), waiting(store, "1", shard.spec)) == (
        [("head", 1)],
        [("newer", 2)],
    )


def test_without_the_policy_newer_payloads_go_on(store):
    shard = Shard(store)
    kill(shard)
    shard.push("1", b"newer", 2)
    assert claimed(shard) == {"1": ["newer"]}
    assert held(store, shard.spec) == []


def test_the_others_of_the_run_and_what_came_meanwhile_wait(store, shard):
    shard.push("1", b"head", 1)
    shard.push("1", b"second", 2)
    (job,) = shard.claim()
    shard.push("1", b"newer", 3)
    shard.end(job, Disposition.DIE, error=b"boom")
    assert claimed(shard) == {}
    assert waiting(store, "1", shard.spec) == [("second", 2), ("newer", 3)]


def test_bytes_that_cannot_be_decoded_hold(store, shard):
    shard.push("1", b"\xff", 1)
    shard.push("1", b"newer", 2)
    (job,) = shard.claim()
    shard.end(job, Disposition.RETURN, bad=(PayloadRemoval(0, b"undecodable"),))
    assert claimed(shard) == {}
    assert held(store, shard.spec) == ["1"]


def test_a_death_holds_also_when_redis_is_full(store, client, shard):
    shard.push("1", b"head", 1)
    shard.push("1", b"newer", 2)
    (job,) = shard.claim()
    client.config_set("maxmemory", 1)
    try:
        shard.end(job, Disposition.DIE, error=b"boom")
    finally:
        client.config_set("maxmemory", 0)
    assert held(store, shard.spec) == ["1"]
    assert claimed(shard) == {}


def test_a_poison_pill_holds(store, shard):
    """A takeover buries it."""
    shard.push("1", b"pill", 1)
    for number in range(shard.spec.max_crashes + 1):
        assert claimed(shard) == {"1": ["pill"]}
        shard.lease = take(store, shard.spec, owner=f"heir {number}")
    shard.push("1", b"newer", 2)
    assert dead(store, "1", shard.spec) == [("pill", 1)]
    assert claimed(shard) == {}


def test_a_crash_of_a_lanes_process_holds(store, shard):
    shard.push("1", b"pill", 1)
    for _ in range(shard.spec.max_crashes + 1):
        (job,) = shard.claim()
        shard.end(job, Disposition.CRASH, retry_count=shard.spec.max_crashes, error=b"poison pill")
    shard.push("1", b"newer", 2)
    assert claimed(shard) == {}


@pytest.mark.parametrize("removal", GONE)
def test_what_is_dropped_or_over_holds_nothing(store, shard, removal):
    """Expired, revoked, past its job_ttl, or a BusinessFailure."""
    shard.push("1", b"gone", 1)
    (job,) = shard.claim()
    shard.end(job, Disposition.BURY, bad=(removal,))
    shard.push("1", b"newer", 2)
    assert claimed(shard) == {"1": ["newer"]}


def test_who_buries_by_hand_lets_the_id_go_on(store, shard, actions):
    shard.push("1", b"by hand", 1)
    actions.bury(shard.spec, ["1"], b"moved")
    shard.push("1", b"newer", 2)
    assert claimed(shard) == {"1": ["newer"]}


def test_deleting_what_waits_leaves_the_id_held(store, shard, actions):
    kill(shard)
    shard.push("1", b"newer", 2)
    actions.delete(shard.spec, ["1"])
    shard.push("1", b"newest", 3)
    assert claimed(shard) == {}


def test_burying_what_waits_leaves_the_id_held(store, shard, actions):
    kill(shard)
    shard.push("1", b"newer", 2)
    actions.bury(shard.spec, ["1"], b"moved")
    shard.push("1", b"newest", 3)
    assert claimed(shard) == {}
    actions.requeue(shard.spec, ["1"])
    assert claimed(shard) == {"1": ["head", "newer", "newest"]}


def test_burying_what_waits_keeps_the_error_of_the_dead_payload(store, shard, actions):
    """It was replaced by the words for a burial by hand, and filters by error missed the id."""
    kill(shard)
    shard.push("1", b"newer", 2)
    actions.bury(shard.spec, ["1"], b"moved")
    assert Queries(store.client).job(shard.spec, "1").dead.error == b"boom"


# -- what brings payloads there


@pytest.mark.parametrize("disposition", [Disposition.RETRY, Disposition.RETURN, Disposition.DIE])
def test_what_comes_back_to_a_held_id_waits(store, shard, pausing, disposition):
    """Somebody holds an id while newer payloads of it run."""
    shard.push("1", b"head", 1)
    Actions(store.client).bury(shard.spec, ["1"], b"moved")
    shard.push("1", b"newer", 2)
    shard.push("1", b"newest", 3)
    (job,) = shard.claim()
    assert pausing.switch_holds(shard.spec, ["1"], held=True) == 1
    shard.end(job, disposition, error=b"boom")
    assert claimed(shard) == {}


def test_a_takeover_puts_payloads_back_behind_the_dead_one(store, shard, pausing):
    shard.push("1", b"head", 1)
    Actions(store.client).bury(shard.spec, ["1"], b"moved")
    shard.push("1", b"newer", 2)
    assert len(shard.claim()) == 1
    pausing.switch_holds(shard.spec, ["1"], held=True)
    shard.lease = take(store, shard.spec, owner="heir")
    assert claimed(shard) == {}
    assert waiting(store, "1", shard.spec) == [("newer", 2)]


def test_priorities_and_times_wait_too(store, shard, actions):
    kill(shard)
    shard.push("1", b"urgent", 2, priority=7)
    shard.push("1", b"later", 3, perform_in=5.0)
    actions.run_now_all(shard.spec)
    assert claimed(shard) == {}
    assert store.next_due([SHARD])[0].next_due is None
    actions.requeue(shard.spec, ["1"])
    assert claimed(shard) == {"1": ["head", "urgent", "later"]}


def test_pushes_of_a_held_id_wake_nobody(store, shard):
    kill(shard)
    with listening(store) as heard:
        shard.push("1", b"newer", 2, perform_in=8e9)
        shard.push("2", b"other", 2, perform_in=9e9)
        assert heard() == (SHARD, 9e9)


# -- how it ends


def test_requeue_gives_the_dead_payload_first_and_the_others_behind_it_in_one_batch(store, shard, actions):
    kill(shard, score=5.0)
    shard.push("1", b"newer", 6)
    shard.push("1", b"older", 4)
    with listening(store) as heard:
        assert actions.requeue(shard.spec, ["1"]) == 1
        assert heard()[0] == SHARD
    (job,) = shard.claim()
    assert [(p.data, p.score) for p in job.payloads] == [(b"older", 4), (b"head", 5), (b"newer", 6)]
    assert job.retry_count == -1
    assert held(store, shard.spec) == []


def test_of_equal_scores_the_dead_payload_runs_first(shard, actions):
    kill(shard, score=5.0)
    shard.push("1", b"newer", 5)
    actions.requeue(shard.spec, ["1"])
    assert claimed(shard) == {"1": ["head", "newer"]}


def test_a_payload_equal_to_the_dead_one_merges_into_it_when_that_is_requeued(store, shard, actions):
    kill(shard)
    shard.push("1", b"newer", 2)
    shard.push("1", b"head", 3)
    assert waiting(store, "1", shard.spec) == [("newer", 2), ("head", 3)]
    actions.requeue(shard.spec, ["1"])
    assert claimed(shard) == {"1": ["head", "newer"]}


def test_a_large_dead_job_comes_back_in_steps_with_the_id_closed(store, shard, actions):
    count = 2 * STEP + 10
    store.push(shard.spec, [Call("1", b"%05d" % n, float(n)) for n in range(count)])
    actions.bury(shard.spec, ["1"], b"moved")
    Pausing(store.client).switch_holds(shard.spec, ["1"], held=True)
    shard.push("1", b"newer", float(count))
    seen = []
    assert actions.requeue(shard.spec, ["1"], lambda _: seen.append(claimed(shard))) == 1
    assert len(seen) == 3
    assert seen[:2] == [{}, {}]
    assert seen[2]["1"][:2] == ["00000", "00001"]


def test_equal_scores_of_a_large_dead_job_keep_their_order(store, shard, actions):
    texts = [b"%05d" % n for n in range(STEP + 10)]
    store.push(shard.spec, [Call("1", text, 5.0) for text in texts])
    actions.bury(shard.spec, ["1"], b"moved")
    Pausing(store.client).switch_holds(shard.spec, ["1"], held=True)
    shard.push("1", b"newer", 5.0)
    actions.requeue(shard.spec, ["1"])
    assert claimed(shard)["1"] == [*(text.decode() for text in texts), "newer"]


def test_an_interrupted_requeue_leaves_the_id_held(store, shard, actions):
    count = 2 * STEP
    store.push(shard.spec, [Call("1", b"%05d" % n, float(n)) for n in range(count)])
    actions.bury(shard.spec, ["1"], b"moved")
    Pausing(store.client).switch_holds(shard.spec, ["1"], held=True)

    def stop(_):
        raise InterruptedError

    with pytest.raises(InterruptedError):
        actions.requeue(shard.spec, ["1"], stop)
    assert claimed(shard) == {}
    actions.requeue(shard.spec, ["1"])
    assert len(claimed(shard)["1"]) == count


def test_an_id_goes_on_without_its_dead_payload(store, shard, pausing):
    kill(shard)
    shard.push("1", b"newer", 2)
    with listening(store) as heard:
        assert pausing.switch_holds(shard.spec, ["1", "2", "1"], held=False) == 1
        assert heard()[0] == SHARD
    assert claimed(shard) == {"1": ["newer"]}
    assert dead(store, "1", shard.spec) == [("head", 1)]
    assert pausing.switch_holds(shard.spec, ["1"], held=False) == 0


@pytest.mark.parametrize("all_dead", [True, False])
def test_an_id_goes_on_when_its_dead_payload_is_deleted(store, shard, actions, all_dead):
    kill(shard)
    shard.push("1", b"newer", 2)
    deleted = actions.delete_dead(shard.spec, DEAD) if all_dead else actions.delete_dead(shard.spec, ["1"])
    assert deleted == 1
    assert claimed(shard) == {"1": ["newer"]}
    assert held(store, shard.spec) == []


def test_a_large_dead_job_is_deleted_in_steps_with_the_id_closed(store, shard, actions):
    store.push(shard.spec, [Call("1", b"%05d" % n, float(n)) for n in range(2 * STEP)])
    actions.bury(shard.spec, ["1"], b"moved")
    Pausing(store.client).switch_holds(shard.spec, ["1"], held=True)
    shard.push("1", b"newer", 9e4)
    seen = []
    assert actions.delete_dead(shard.spec, ["1"], lambda _: seen.append(claimed(shard))) == 1
    assert (seen[0], seen[-1]) == ({}, {"1": ["newer"]})


def test_the_dead_payload_is_edited_and_requeued(store, shard, actions):
    kill(shard)
    shard.push("1", b"newer", 2)
    assert actions.edit_dead(shard.spec, "1", b"head", b"mended")
    assert not actions.edit_dead(shard.spec, "1", b"head", b"mended")
    assert claimed(shard) == {}
    actions.requeue(shard.spec, ["1"])
    assert claimed(shard) == {"1": ["mended", "newer"]}


@pytest.mark.parametrize("count", [2, 100])
def test_an_id_goes_on_when_the_last_dead_payload_is_deleted(store, shard, actions, count):
    store.push(shard.spec, [Call("1", b"%05d" % n * 20, float(n)) for n in range(count)])
    (job,) = shard.claim()
    shard.end(job, Disposition.BURY, error=b"Reject")
    shard.push("1", b"newer", 9e4)
    for n in range(count):
        assert claimed(shard) == {}
        assert actions.edit_dead(shard.spec, "1", b"%05d" % n * 20, None)
    assert claimed(shard) == {"1": ["newer"]}
    assert dead(store, "1", shard.spec) is None


def test_only_ids_with_dead_payloads_can_be_held(store, shard, pausing):
    shard.push("1", b"fine", 1)
    assert pausing.switch_holds(shard.spec, ["1", "nobody"], held=True) == 0
    assert claimed(shard) == {"1": ["fine"]}


def test_nothing_is_left_of_a_hold(store, client, shard, actions):
    kill(shard)
    shard.push("1", b"newer", 2)
    actions.requeue(shard.spec, ["1"])
    shard.run()
    kept = {name for name in SHARD_KEYS if client.exists(shard_keys(SHARD)[name])}
    assert kept <= {"lease", "meta", "senders"}


# -- beside a pause


def test_a_held_id_is_paused_and_resumed_by_itself(store, shard, pausing):
    kill(shard)
    shard.push("1", b"newer", 2)
    (found,) = Queries(store.client).held_ids(shard.spec).items
    assert [pausing.switch_ids(shard.spec, ["1"], paused=True) for _ in range(2)] == [1, 0]
    (both,) = Queries(store.client).held_ids(shard.spec).items
    assert (both.since, both.paused) == (pytest.approx(found.since, abs=1e-5), True)
    assert Queries(store.client).paused(shard.spec).ids == 1
    assert pausing.switch_holds(shard.spec, ["1"], held=False) == 1
    assert claimed(shard) == {}
    assert pausing.switch_ids(shard.spec, ["1"], paused=False) == 1
    assert claimed(shard) == {"1": ["newer"]}


def test_resuming_a_held_id_does_not_let_it_go_on(store, shard, pausing):
    pausing.switch_ids(shard.spec, ["1"], paused=True)
    pausing.switch_ids(shard.spec, ["1"], paused=False)
    kill(shard)
    shard.push("1", b"newer", 2)
    assert pausing.switch_ids(shard.spec, ["1"], paused=False) == 0
    pausing.switch_ids(shard.spec, ["1"], paused=True)
    assert pausing.switch_ids(shard.spec, ["1"], paused=False) == 1
    assert claimed(shard) == {}


# -- bounds, counts, and the diagnosis


def test_a_held_id_takes_hold_max_payloads(store):
    shard = Shard(store, hold=3)
    kill(shard)
    shard.push("1", b"2", 2)
    shard.push("1", b"3", 3)
    with pytest.raises(QueueFull, match="2 payloads wait behind a dead one of id '1', and hold_max allows 3"):
        store.push(shard.spec, [Call("1", b"4", 4.0), Call("1", b"5", 5.0)])
    shard.push("1", b"4", 4)
    shard.push("2", b"other", 4)
    with pytest.raises(QueueFull):
        shard.push("1", b"5", 5)
    assert [data for data, _ in waiting(store, "1", shard.spec)] == ["2", "3", "4"]


def test_hold_max_counts_spilled_payloads(store):
    shard = Shard(store, hold=100)
    kill(shard)
    store.push(shard.spec, [Call("1", b"%050d" % n, float(n)) for n in range(100)])
    with pytest.raises(QueueFull, match="100 payloads"):
        shard.push("1", b"more", 101.0)


def test_counts_of_held_ids(store, shard):
    assert (stats(store, shard.spec).held, stats(store, shard.spec).held_for) == (0, 0)
    kill(shard, "1")
    kill(shard, "2")
    shard.push("1", b"newer", 2)
    found = stats(store, shard.spec)
    assert (found.held, found.paused_jobs, found.paused_ids, found.lag) == (2, 1, 0, 0)
    assert 0 < found.held_for < 60
    assert held(store, shard.spec) == ["1", "2"]
    page = Queries(store.client).held_ids(shard.spec, limit=1)
    assert [one.id for one in Queries(store.client).held_ids(shard.spec, limit=1, after=page.next).items] == [
        "2"
    ]
    # An id that is held and paused, and one that is only paused.
    assert Pausing(store.client).switch_ids(shard.spec, ["2", "3"], paused=True) == 2
    found = stats(store, shard.spec)
    assert (found.held, found.paused_ids) == (2, 2)
    job = Queries(store.client).job(shard.spec, "1")
    assert (job.waiting.held, job.waiting.paused, job.dead.held_since > 0) == (True, False, True)


def test_the_diagnosis_knows_the_dead_payload(store, shard):
    kill(shard)
    shard.push("1", b"newer", 2)
    reports = Diagnosis(store.client)
    facts = reports.facts(
        shard.spec, "1", rate=None, max_retries=1, read=lambda error: (error or b"").decode()
    )
    assert facts.held_since == pytest.approx(facts.dead.updated_at)
    assert (facts.dead.error, facts.id_paused) == ("boom", None)


# -- moving


def test_a_dump_brings_a_held_id(store):
    shard = Shard(store, hold=10)
    kill(shard)
    kill(shard, "gone on")
    Pausing(store.client).switch_holds(shard.spec, ["gone on"], held=False)
    shard.push("1", b"newer", 2)
    lines = [entry_line(n, one) for n, one in enumerate(dump_entries(store, shard.spec), 1)]
    read = [read_line(line) for line in lines]
    assert [entry.state for _, entry in read] == [State.DEAD, State.DEAD, State.WAITING]
    other = QueueSpec("other", shards=1, policies=shard.spec.policies)
    load_entries(store, other, Header(uuid.uuid4().hex, "other", 1, "json", 0), read)
    assert held(store, other) == ["1"]
    lease = take(store, other)
    assert store.claim(other, lease, 1).jobs == ()


@pytest.mark.parametrize("count", [1, 3000])
def test_a_held_id_moves_with_all_that_is_behind_it(store, client, count):
    queue = QueueSpec("moving", shards=2, policies=Policies(hold=10_000))
    store.push(queue, [Call("1", b"head", 1.0)])
    lease = take(store, queue, queue.shard_of("1").index)
    end(store, lease, store.claim(queue, lease, 1), Disposition.DIE, queue=queue, error=b"boom")
    store.push(queue, [Call("1", b"%05d" % n, 2.0 + n) for n in range(count)])
    (before,) = Queries(store.client).held_ids(queue).items
    for shards in (3, 2, 5):
        queue = QueueSpec("moving", shards=shards, policies=Policies(hold=10_000))
        reshard(store.mover(queue), queue, shards)
        assert Queries(store.client).held_ids(queue).items == (before,)
        lease = take(store, queue, queue.shard_of("1").index)
        assert store.claim(queue, lease, 1).jobs == ()
    Actions(store.client).requeue(queue, ["1"])
    (job,) = store.claim(queue, lease, 2).jobs
    assert [p.data for p in job.payloads][:2] == [b"head", b"00000"]


def test_a_pause_and_a_hold_of_one_id_meet_in_a_shard(store, client):
    """Somebody paused the id in the shard where it goes."""
    queue = QueueSpec("moving", shards=1, policies=Policies(hold=10_000))
    store.push(queue, [Call("1", b"head", 1.0)])
    lease = take(store, queue)
    end(store, lease, store.claim(queue, lease, 1), Disposition.DIE, queue=queue, error=b"boom")
    two = QueueSpec("moving", shards=2, policies=queue.policies)
    assert two.shard_of("1").index == 1
    client.zadd(shard_keys(two.shard_of("1"))["paused"], {"1": 5.0})
    reshard(store.mover(queue), queue, 2)
    (found,) = Queries(store.client).held_ids(two).items
    assert found.paused
