"""A running worker follows the stored number of shards of its queues."""

from __future__ import annotations

import pytest

from celery_lowkiq.rules.models import shard_of
from tests.waiting import eventually
from tests.worker.checks import leases


def owners(task):
    return [shard.owner for shard in task.ordered_queue.shards()]


def one_id_in_each(shards):
    ids = [f"{shards}-{number}" for number in range(50 * shards)]
    return list({shard_of(job_id, shards): job_id for job_id in ids}.values())


def test_calls_run_in_added_shards_and_after_others_were_removed(app, start_worker, ledger):
    record = app.tasks["record"]
    queue = record.ordered_queue
    queue.reshard(4)
    node = start_worker()
    called = []
    for shards in (4, 8, 3):
        queue.reshard(shards)
        for job_id in one_id_in_each(shards):
            record.delay(job_id)
            called.append(job_id)
        ledger.wait_for("end", len(called), 30)
        eventually(lambda shards=shards: owners(record) == ["w0@test"] * shards)
        eventually(lambda: (stats := queue.stats()).length + stats.busy == 0)
    assert sorted(line["id"] for line in ledger.lines("end")) == sorted(called)
    # As the code declares it, with 8 shards.
    eventually(lambda: [lease.owner == "" for lease in leases(record)] == [False] * 3 + [True] * 5)
    assert "queue record has 3 shards now" in node.logs()
    assert "queue record has 4 shards, the code declares 8; the stored number applies" in node.logs()


@pytest.mark.full
def test_a_worker_with_fixed_shards_says_that_it_needs_a_restart(app, settings, start_worker, ledger):
    settings["lowkiq_splitter"] = "default"
    record = app.tasks["record"]
    record.ordered_queue.reshard(4)
    node = start_worker("-Q", "record,celery")
    eventually(lambda: owners(record) == ["w0@test"] * 4)
    record.ordered_queue.reshard(6)
    eventually(lambda: "queue record has 6 shards now, but the splitter of this node" in node.logs())
    assert owners(record) == ["w0@test"] * 4 + [None] * 2
    node.container.restart()
    eventually(lambda: owners(record) == ["w0@test"] * 6)
