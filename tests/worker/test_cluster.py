"""Workers whose store is a cluster, with the broker elsewhere."""

from __future__ import annotations

import pytest

from tests.clusters import running_cluster
from tests.waiting import eventually


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
