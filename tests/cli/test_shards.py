"""``stats --shards``, and what ``doctor`` says of shards with too much load."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from itertools import count, islice

import pytest

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.rules.models import Call, ShardRef, shard_of
from celery_lowkiq.rules.policies import TokenRequest
from celery_lowkiq.rules.views import Counters, LaneReport, NodeReport, NodeUpdate, Running
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.resharding import Migrations
from tests.cli import proj
from tests.cli.test_repair import with_wrong_key
from tests.store.aging import age, server_time

BUSY, OWNER = ShardRef("sync_order", 2), "worker@here-1"


@pytest.fixture
def late(queue):
    """Four ids in shard 2, due for 40 s; one of them runs in the one of four lanes that worked all the time.
    Shard 1 is paused.
    """
    # The app of all tests knows numbers of shards that others gave their queues.
    store, spec = context_of(proj.app).open_store(1), queue.spec
    ids = islice((str(number) for number in count() if shard_of(str(number), 4) == BUSY.index), 4)
    jobs = [Call(job_id, b"1", 1.0, time.time() - 40) for job_id in ids]
    began = server_time(store.client)
    store.push(spec, jobs)
    age(store.client, spec, jobs, began)
    lease = store.acquire(spec, BUSY, OWNER, store.observe([BUSY])[0], 0)
    store.claim(replace(spec, batch_size=1), lease, 1)
    queue.pause(shard=1)
    run = Running(BUSY, (jobs[0].id,), 1, 4.0)
    store.client.servers.redis.hset(shard_keys(BUSY)["lease"], "since", time.time() - 3600)
    idle = LaneReport("lane-1", (), 0, load=0.0)
    lanes = [
        LaneReport("lane-0", (BUSY,), 1, run, 0.97),
        *(replace(idle, name=f"lane-{n}") for n in (1, 2, 3)),
    ]
    report = NodeReport("worker@here", OWNER, 1, 60.0, False, False, ("sync_order",), tuple(lanes))
    counters = Counters(time.time() - 70, (0,) * 4)
    store.beat([], OWNER, 4, 1, NodeUpdate(report, 60.0, samples=(("sync_order", counters),)))
    store.client.servers.redis.hset(shard_keys(BUSY)["meta"], "processed", 50)
    yield store
    store.close()


def test_the_most_loaded_come_first(late, run):
    header, first, *others = run("stats", "sync_order", "--shards").stdout.splitlines()
    assert header.split() == ["queue", "shard", "owner", "waiting", "running", "lag", "jobs/min", "state"]
    queue, shard, owner, waiting, running, lag, unit, per_minute = first.split()
    assert (queue, shard, owner, waiting, running) == ("sync_order", "2", "worker@here", "3", "1")
    assert 40 <= int(lag) < 100
    assert unit == "s"
    assert 20 < float(per_minute) <= 50
    assert sorted(line.split()[1:3] for line in others) == [["0", "none"], ["1", "none"], ["3", "none"]]
    assert [line.split()[1] for line in others if line.endswith("paused")] == ["1"]
    assert len(run("stats", "--shards").stdout.splitlines()) > 5


def test_programs_get_json(late, run):
    found = json.loads(run("stats", "sync_order", "--shards", "--json").stdout)
    assert (found["damaged"], [queue["name"] for queue in found["queues"]]) == ({}, ["sync_order"])
    first, *others = found["queues"][0]["shards"]
    assert (first["index"], first["stats"]["due"], first["moving"]) == (2, 3, 0)
    assert (len(others), others[0]["jobs_per_minute"]) == (3, 0.0)


def test_jobs_that_a_migration_has_to_sort_are_named(late, queue, run):
    migrations = Migrations(late.client, "sync_order")
    assert migrations.begin(8)
    late.client.servers.redis.rename(shard_keys(BUSY)["due"], shard_keys(BUSY)["moving"])
    assert run("stats", "sync_order", "--shards").stdout.count("moving 3\n") == 1


def test_other_queues_are_shown_beside_a_damaged_one(server, run):
    shard = with_wrong_key(server)
    found = run("stats", "--shards")
    assert found.exit_code == 1
    assert "send_mail" in found.stdout
    assert "sync_order" not in found.stdout
    assert found.stderr.startswith(f"shard {shard} is damaged: ")


def test_the_doctor_says_to_what_number(late, run):
    found = run("doctor").stdout
    assert "Ids wait for each other in sync_order/2, for up to 4" in found
    assert "1 lane of 4 worked all the time, and all of them 24% of it." in found
    assert "would use more lanes: celery -A proj lowkiq reshard sync_order 11" in found
    # Lanes wait for tokens then.
    late.tokens(TokenRequest("sync_order", "me", 1, 0.01, 1))
    assert "Ids wait" not in run("doctor").stdout
