"""Workers whose store is a cluster, with the broker elsewhere."""

from __future__ import annotations

import statistics
import time

import pytest

from celery_lowkiq.integration.publish import CallUnavailable
from celery_lowkiq.store.cluster_map import slot_of
from celery_lowkiq.store.keys import queue_key, shard_keys
from tests.clusters import running_cluster
from tests.waiting import eventually

#: Seconds: the timeout of 0.75 after one of five renewals in a lease of 1 s; a busy machine gets more.
NOTICED_WITHIN = 8.0


@pytest.fixture(scope="module")
def cluster():
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture
def settings(settings, cluster):
    cluster.flush()
    return {**settings, "lowkiq_url": cluster.url}


@pytest.mark.full
def test_two_workers_share_a_queue_over_three_masters(app, start_worker, ledger):
    start_worker("-c", "2")
    start_worker("-c", "2")
    record = app.tasks["record"]
    for number in range(100):
        record.delay(str(number), number)
    ends = ledger.wait_for("end", 100)
    assert {line["id"]: line["payloads"] for line in ends} == {str(n): [n] for n in range(100)}
    eventually(lambda: record.ordered_queue.stats().processed == 100)


@pytest.mark.full
@pytest.mark.parametrize(
    "of_queue, frozen",
    [(False, False), (True, False), (False, True), (True, True)],
    ids=["other", "of the queue", "other, frozen", "of the queue, frozen"],
)
def test_shards_of_living_masters_go_on_while_one_is_dead(
    app, settings, start_worker, ledger, of_queue, frozen
):
    """Also while that of the queue's own keys and of its heartbeats is dead, or says nothing."""
    with running_cluster() as cluster:
        settings["lowkiq_url"] = app.conf.lowkiq_url = cluster.url
        record = app.tasks["record"]
        spec = record.queue_spec
        registry = cluster.owner(slot_of(queue_key(spec.name)))
        dead = registry if of_queue else (registry + 1) % 3
        for number in range(60):
            record.delay(str(number), number)
        worker = start_worker("-c", "2")
        ledger.wait_for("end", 60)
        living = [n for n in map(str, range(1000, 2000)) if _master(spec, n) != dead]
        lost = next(n for n in map(str, range(2000, 3000)) if _master(spec, n) == dead)
        (cluster.freeze if frozen else cluster.kill)(dead)
        waits = []
        for n in range(40):
            began = time.monotonic()
            record.delay(living[n], n)
            ends = ledger.wait_for("end", 61 + n)
            waits.append(max(0.0, ends[-1]["at"] - began))
        # A frozen one is unreachable after a timeout, in which all jobs may end.
        eventually(lambda: "Its shards wait." in worker.logs(), NOTICED_WITHIN)
        (cluster.thaw if frozen else cluster.restart)(dead)
        eventually(lambda: _called(record, lost))
        ledger.wait_for("end", 101)
        eventually(lambda: "is back after" in worker.logs())
        for words in ("Its shards wait.", "is back after"):
            assert worker.logs().count(words) == 1
        assert "Ordered queues wait" not in worker.logs()
        # A busy machine holds up some of them; a lane that waits for the dead master would hold up most.
        assert statistics.median(waits) < 0.5, waits
        assert max(waits) < 3.0


def _master(spec, job_id):
    return slot_of(shard_keys(spec.shard_of(job_id))["meta"]) * 3 // 16384


def _called(record, job_id):
    try:
        record.delay(job_id, 1)
    except CallUnavailable:
        return False
    return True


@pytest.mark.full
def test_shards_of_other_masters_go_on_while_one_denies_a_right(app, settings, start_worker, ledger):
    """For longer than a lease: with one answer less, no lease was renewed."""
    with running_cluster() as cluster:
        settings |= {"lowkiq_url": cluster.url, "lowkiq_lease_seconds": 1.0}
        app.conf.update(lowkiq_url=cluster.url, lowkiq_lease_seconds=1.0)
        record = app.tasks["record"]
        worker = start_worker("-c", "2")
        denying = (cluster.owner(slot_of(queue_key(record.queue_spec.name))) + 1) % 3
        ids = [n for n in map(str, range(1000)) if _master(record.queue_spec, n) != denying]
        record.delay(ids[0], 0)
        ledger.wait_for("end", 1)
        cluster.ask(denying, "ACL", "SETUSER", "default", "-evalsha")
        began = time.monotonic()
        count = 1
        while time.monotonic() - began < 3:
            record.delay(ids[count % len(ids)], count)
            count += 1
            ledger.wait_for("end", count)
        assert "does not permit this (NOPERM)" in worker.logs()
        assert "tries its shards one by one" not in worker.logs()
        cluster.ask(denying, "ACL", "SETUSER", "default", "+@all")
        refused = next(n for n in map(str, range(1000)) if _master(record.queue_spec, n) == denying)
        record.delay(refused, count)
        ledger.wait_for("end", count + 1)
