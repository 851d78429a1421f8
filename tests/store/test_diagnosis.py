"""Reads of shards and of one id for people: ``store/diagnosis.py``."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from celery_lowkiq.rules.diagnosis import Dead, why
from celery_lowkiq.rules.models import Disposition, QueueSpec, ShardRef
from celery_lowkiq.rules.policies import TokenRequest
from celery_lowkiq.rules.views import LaneReport, NodeReport, NodeUpdate, Running, Stats
from celery_lowkiq.store.keys import report_key, shard_keys, tokens_key
from tests.bound import Diagnosis, Pausing
from tests.store.helpers import ONE, SHARD, claim, end, push, take

TWO = QueueSpec("orders", shards=2)
OWNER = "w@host-0123"


@pytest.fixture
def diagnosis(store):
    return Diagnosis(store.client)


def tell(store, running=None, shards=(SHARD,), **options):
    lanes = (LaneReport("lane-0", (), 0), LaneReport("lane-1", shards, len(shards), running))
    report = NodeReport("w@host", OWNER, 7, 10.0, options.get("quiet", False), False, ("orders",), lanes)
    return store.beat([], OWNER, 2, 1, NodeUpdate(report, 1.0)).reply.now


def facts(diagnosis, job_id, rate=None):
    return diagnosis.facts(
        ONE, job_id, rate=rate, max_retries=25, read=lambda error: error and error.decode()
    )


def kinds(diagnosis, job_id, **options):
    return [reason.kind for reason in why(facts(diagnosis, job_id, **options)).reasons]


def test_shards_with_their_owners(store, diagnosis):
    push(store, "1", ("a", 1), perform_in=9e9, queue=TWO)
    lease = take(store, TWO, 0, OWNER)
    released = take(store, TWO, 1, "other-1")
    store.release(released)
    now = tell(store, Running(SHARD, ("5",), 1, 3.0))
    owned, left = diagnosis.shards(TWO)
    assert (owned.index, owned.owner, owned.epoch, owned.alive) == (0, "w@host", lease.epoch, True)
    assert owned.running.ids == ("5",)
    assert owned.stats == Stats()
    assert now - 60 < owned.since <= now
    assert (left.owner, left.alive, left.running, left.stats.length) == (None, False, None, 1)
    assert left.since >= owned.since
    assert (owned.paused_since, left.paused_since) == (None, None)


def test_a_shard_of_a_node_that_says_nothing(store, diagnosis):
    take(store, ONE, owner="gone@host-1")
    (shard,) = diagnosis.shards(ONE)
    assert (shard.owner, shard.alive) == ("gone@host", False)
    never = QueueSpec("never", shards=1)
    (shard,) = diagnosis.shards(never)
    assert (shard.owner, shard.epoch, shard.since) == (None, 0, None)


def test_an_id_on_its_way(store, diagnosis):
    assert kinds(diagnosis, "1") == ["nowhere"]
    push(store, "1", ("a", 1), perform_in=2.0)
    assert kinds(diagnosis, "1") == ["unowned"]
    lease = take(store, owner=OWNER)
    assert kinds(diagnosis, "1") == ["silent"]
    tell(store)
    assert kinds(diagnosis, "1") == ["due"]
    for n in range(3):
        push(store, f"earlier-{n}", ("a", 1), perform_in=1.0)
    assert facts(diagnosis, "1").waiting.ahead == 3
    assert kinds(diagnosis, "1") == ["behind"]
    claimed = claim(store, lease)
    assert kinds(diagnosis, "1") == ["claimed"]
    tell(store, Running(SHARD, ("1",), 1, 3.0))
    assert kinds(diagnosis, "1") == ["running"]
    push(store, "1", ("b", 1))
    assert kinds(diagnosis, "1") == ["running", "behind_itself"]
    assert facts(diagnosis, "1").waiting.payloads == 1
    push(store, "1", ("c", 2), ("d", 3))
    assert facts(diagnosis, "1").waiting.payloads == 3
    end(store, lease, claimed, Disposition.BURY, error=b"boom")
    tell(store, quiet=True)
    assert kinds(diagnosis, "1") == ["leaving", "dead"]
    found = facts(diagnosis, "1")
    assert found.dead == Dead(pytest.approx(found.now, abs=60), "boom")
    store.release(lease)
    assert kinds(diagnosis, "1") == ["unowned", "dead"]
    assert facts(diagnosis, "1").unowned_since == pytest.approx(found.now, abs=60)


def test_a_late_job_tells_what_its_lane_works_first(store, diagnosis):
    now, other = time.time(), replace(ONE, name="reindex")
    push(store, "1", ("a", 1), perform_in=now - 1134)
    push(store, "2", ("a", 1), perform_in=now - 1500, queue=other)
    push(store, "3", ("a", 1), perform_in=now - 100, queue=replace(ONE, name="younger"))
    take(store, owner=OWNER)
    shards = [ShardRef(name, 0) for name in ("orders", "reindex", "younger", "empty")]
    tell(store, shards=tuple(shards))
    (before,) = facts(diagnosis, "1").due_before
    assert (before.shard, round(before.seconds / 10)) == (ShardRef("reindex", 0), 150)
    assert "Before it, lane-1 works reindex/0: a job there is 25 min late, this one 18 min" in (
        why(facts(diagnosis, "1")).text
    )
    push(store, "new", ("a", 1))
    assert facts(diagnosis, "new").due_before == ()


def test_a_failed_one_tells_its_error(store, diagnosis):
    push(store, "1", ("a", 1), perform_in=1.0)
    lease = take(store, owner=OWNER)
    end(store, lease, claim(store, lease), Disposition.RETRY, retry_count=3, delay=1000.0, error=b"boom")
    tell(store)
    answer = why(facts(diagnosis, "1"))
    assert answer.kind == "scheduled"
    assert answer.text.endswith("retry 4 of 25 after: boom.")


def test_a_suspect(store, diagnosis):
    push(store, "1", ("a", 1), perform_in=1.0)
    claim(store, take(store, owner="died"))
    take(store, owner=OWNER)
    tell(store)
    assert kinds(diagnosis, "1") == ["suspect", "due"]


def test_the_rate_limit(store, diagnosis):
    push(store, "1", ("a", 1), perform_in=1.0)
    take(store, owner=OWNER)
    tell(store)
    assert kinds(diagnosis, "1", rate=0.01) == ["due"]
    store.tokens(TokenRequest("orders", "me", 1, 0.01, 1))
    assert kinds(diagnosis, "1", rate=0.01) == ["limited", "due"]
    assert 90 < facts(diagnosis, "1", rate=0.01).token_wait <= 100


@pytest.mark.parametrize("declared", [None, 50.0])
def test_a_rate_limit_that_was_set_at_run_time(store, client, diagnosis, declared):
    push(store, "1", ("a", 1), perform_in=1.0)
    take(store, owner=OWNER)
    tell(store)
    store.tokens(TokenRequest("orders", "me", 1, 0.01, 1))
    assert kinds(diagnosis, "1", rate=declared) == ["limited", "due"]
    found = facts(diagnosis, "1", rate=declared)
    assert (found.rate, 90 < found.token_wait <= 100) == (0.01, True)
    long_ago = int((found.now - 3600) * 1e6)
    client.hset(tokens_key("orders"), "left", f"0 {long_ago}")
    assert facts(diagnosis, "1", rate=declared).rate == declared
    client.hset(tokens_key("orders"), mapping={"left": f"0 {int(found.now * 1e6)}", "rate": "-x"})
    assert facts(diagnosis, "1", rate=declared).rate == declared


def test_a_silent_owner(store, client, diagnosis):
    push(store, "1", ("a", 1), perform_in=1.0)
    take(store, owner=OWNER)
    now = tell(store)
    client.hset(report_key(OWNER), "at", now - 40)
    assert kinds(diagnosis, "1") == ["silent"]
    assert 40 <= facts(diagnosis, "1").owner.silent < 60


def test_the_owner_lane_and_what_it_runs_of_other_shards(store, diagnosis):
    push(store, "1", ("a", 1), perform_in=1.0)
    take(store, owner=OWNER)
    other = Running(QueueSpec("others").shard_refs()[3], ("y",), 1, 40.0)
    tell(store, other)
    owner = facts(diagnosis, "1").owner
    assert (owner.place, owner.running) == ("node w@host lane-1", other)


def test_what_was_planted_breaks_no_answer(store, client, diagnosis):
    push(store, "1", ("a", 1), perform_in=1.0)
    client.hset(shard_keys(SHARD)["lease"], mapping={"owner": b"\xff", "since": "x", "epoch": "y"})
    client.hset(shard_keys(SHARD)["meta"], "paused", "nan")
    assert kinds(diagnosis, "1") == ["silent"]
    (shard,) = diagnosis.shards(ONE)
    assert (shard.epoch, shard.since, shard.paused_since) == (0, None, None)


def test_what_is_paused(store, diagnosis):
    pausing = Pausing(store.client)
    take(store, owner=OWNER)
    tell(store)
    pausing.switch_ids(ONE, ["1"], paused=True)
    assert kinds(diagnosis, "1") == ["nowhere", "paused"]
    push(store, "1", ("a", 1), perform_in=1.0)
    push(store, "2", ("a", 1), perform_in=1.0)
    assert kinds(diagnosis, "1") == ["paused"]
    assert facts(diagnosis, "1").id_paused == pytest.approx(facts(diagnosis, "1").now, abs=60)
    assert kinds(diagnosis, "2") == ["due"]
    assert diagnosis.shards(ONE)[0].paused_since is None
    pausing.switch_shard(ONE, 0, paused=True)
    pausing.switch_queue(ONE, paused=True)
    assert kinds(diagnosis, "1") == ["paused"] * 3
    (shard,) = diagnosis.shards(ONE)
    assert shard.paused_since == facts(diagnosis, "1").shard_paused <= facts(diagnosis, "1").queue_paused
