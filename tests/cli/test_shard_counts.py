"""Commands on a queue that is stored with another number of shards than the code declares."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from celery_lowkiq.integration.app.context import context_of
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.models import Disposition, NewJob
from celery_lowkiq.store.inspect.queries import Queries
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


def test_reads_and_actions_follow_the_stored_number(stored, spec, queue, run):
    assert json.loads(run("job", "sync_order", "w1", "--json").stdout)["waiting"]
    assert run("delete", "sync_order", "w1", "--yes").exit_code == 0
    assert run("requeue", "sync_order", "--all", "--yes").exit_code == 0
    assert run("push", "sync_order", "w2", "1").exit_code == 0
    assert run("pause", "sync_order", "w2").exit_code == 0
    assert run("pause", "sync_order", "--shard", str(STORED - 1)).exit_code == 0
    assert run("pause", "sync_order", "--shard", str(STORED)).exit_code == 2
    found = Queries(stored).stats(spec)
    assert (found.length, found.morgue_length, found.paused_jobs) == (19, 0, 1)
    assert queue.shard_of("w2") == spec.shard_of("w2").index


def test_counts_are_those_of_the_stored_shards(stored, run):
    (queue,) = json.loads(run("stats", "sync_order", "--json").stdout)["queues"]
    counts = queue["stats"]
    assert (counts["length"], counts["morgue_length"], queue["shards"]) == (10, 10, STORED)
    assert json.loads(run("stats", "--json").stdout)["total"]["length"] == 10


def test_the_doctor_says_it(stored, run):
    found = run("doctor").output
    assert "It has 6 shards, the code declares 4; the stored number applies" in found
    assert "celery -A proj lowkiq reshard sync_order 4" in found


def test_all_of_it_is_paused(stored, spec, run):
    assert run("pause", "sync_order").exit_code == 0
    (queue_json,) = json.loads(run("stats", "sync_order", "--json").stdout)["queues"]
    assert queue_json["stats"]["paused"] == STORED
    assert run("resume", "sync_order").exit_code == 0


def test_an_empty_queue_is_resharded(stored, queue, run):
    refused = run("reshard", "sync_order", "4")
    assert refused.exit_code == 1
    assert refused.output.startswith(
        "Error: shards=4 is invalid: expected 6, since queue 'sync_order' has jobs"
    )
    queue.delete_dead_all()
    queue.delete([f"w{n}" for n in range(10)])
    assert run("reshard", "sync_order", "4").stdout == "queue sync_order has 4 shards\n"
    assert queue.stored_spec().shards == 4
    assert "shards, the code declares" not in run("doctor").output


def test_the_number_of_shards_is_checked(queue, run):
    with pytest.raises(InvalidCall, match="shards=0 is invalid: expected a whole number from 1 to 4096"):
        queue.reshard(0)
    assert run("reshard", "sync_order", "5000").exit_code == 2
