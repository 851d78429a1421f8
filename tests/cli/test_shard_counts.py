"""Commands on a queue that is stored with another number of shards than the code declares."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from celery_lowkiq.integration.app.context import context_of
from celery_lowkiq.rules.errors import ShardCountMismatch
from celery_lowkiq.rules.models import Disposition, NewJob
from celery_lowkiq.store.admin.pausing import Pausing
from tests.cli import proj
from tests.cli.conftest import end_all

FAR = 9_000_000_000.0
STORED = 6


@pytest.fixture
def spec(queue):
    """As the other code declares the queue."""
    return replace(queue.spec, shards=STORED)


@pytest.fixture
def stored(spec):
    """Ten dead jobs and ten that wait."""
    store = context_of(proj.app).store
    store.push(spec, [NewJob(f"d{n}", b"%d" % n, n) for n in range(10)])
    end_all(proj.sync_order, Disposition.BURY, spec=spec)
    store.push(spec, [NewJob(f"w{n}", b"%d" % n, n, FAR) for n in range(10)])
    return store


@pytest.mark.parametrize(
    "words",
    [
        "job sync_order w1",
        "why sync_order w1",
        "jobs sync_order",
        "morgue sync_order",
        "paused sync_order",
        "requeue sync_order --all",
        "requeue sync_order d1",
        "delete sync_order w1 --yes",
        "delete sync_order --morgue --all --yes",
        "bury sync_order w1 --yes",
        "run-now sync_order --all",
        "run-now sync_order w1",
        "pause sync_order w1",
        "pause sync_order --shard 1",
        "resume sync_order w1",
        "push sync_order new 1",
    ],
)
def test_what_would_see_or_change_a_part_is_refused(stored, run, words):
    result = run(*words.split())
    assert result.exit_code == 1
    assert result.output.startswith(
        "Error: queue 'sync_order' is stored with 6 shards, but the code declares 4"
    )


def test_counts_are_those_of_the_stored_shards(stored, run):
    (queue,) = json.loads(run("stats", "sync_order", "--json").stdout)["queues"]
    counts = queue["stats"]
    assert (counts["length"], counts["morgue_length"], queue["shards"]) == (10, 10, STORED)
    assert json.loads(run("stats", "--json").stdout)["total"]["length"] == 10


def test_the_doctor_says_it(stored, run):
    assert "It is stored with 6 shards, the code declares 4" in run("doctor").output


def test_all_of_it_is_paused(stored, spec, run):
    assert run("pause", "sync_order").exit_code == 0
    (queue_json,) = json.loads(run("stats", "sync_order", "--json").stdout)["queues"]
    assert queue_json["stats"]["paused"] == STORED
    assert run("resume", "sync_order").exit_code == 0


def test_an_empty_queue_may_be_stored_with_any(stored, spec, queue, run):
    stored.client.redis.flushall()
    stored.push(spec, [NewJob("1", b"1", 1)])
    end_all(proj.sync_order, Disposition.DONE, spec=spec)
    assert (queue.stats().length, queue.job("1").waiting) == (0, None)
    assert run("push", "sync_order", "1", "2").exit_code == 0
    assert queue.stats().length == 1


def test_an_id_that_was_paused_in_another_shard_is_not_taken_for_a_free_one(server, spec, queue):
    store = context_of(proj.app).store
    store.push(spec, [NewJob("1", b"1", 1)])
    end_all(proj.sync_order, Disposition.DONE, spec=spec)
    Pausing(store.client).pause_ids(spec, ["w1"])
    with pytest.raises(ShardCountMismatch):
        queue.resume_ids(["w1"])
    proj.sync_order.delay("w1")
    assert queue.resume_ids(["w1"]) == 1
