"""A worker on a cluster with a master that answers late: below all timeouts, so that it is not away."""

from __future__ import annotations

import contextlib

import pytest

from celery_lowkiq.store.cluster_map import slot_of
from celery_lowkiq.store.keys import queue_key
from tests.chaos.proxy import Proxy
from tests.clusters import running_cluster
from tests.waiting import eventually


@pytest.fixture
def cluster():
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture
def lines(cluster):
    """A proxy of each master, under whose port the master is announced."""
    with contextlib.ExitStack() as stack:
        lines = [Proxy(address) for address in cluster.addresses]
        for number, line in enumerate(lines):
            line.start()
            stack.callback(line.stop)
            cluster.ask(number, "CONFIG SET", "cluster-announce-port", line.port)
        ports = {line.port for line in lines}
        eventually(lambda: all(_ports(cluster, number) == ports for number in range(len(lines))))
        yield lines


def _ports(cluster, number):
    return {master[1] for _, _, master, *_ in cluster.ask(number, "CLUSTER SLOTS")}


@pytest.fixture
def settings(settings, cluster, lines):
    url = f"redis+cluster://{','.join(f'127.0.0.1:{line.port}' for line in lines)}"
    return {**settings, "lowkiq_url": url}


@pytest.fixture
def slow(app, cluster, lines):
    """The line of the master with the queue's own key."""
    return lines[cluster.owner(slot_of(queue_key(app.tasks["record"].queue_spec.name)))]


@pytest.mark.full
def test_a_worker_that_starts_asks_a_slow_master_once_for_its_scripts(
    app, settings, cluster, slow, start_worker, ledger
):
    """A dozen scripts cost two round trips each, one after the other, before the first job of any master."""
    settings["lowkiq_lease_seconds"] = 10.0
    for job_id in range(60):
        app.tasks["record"].delay(str(job_id), job_id)
    for master in range(3):
        cluster.ask(master, "SCRIPT FLUSH")
        cluster.ask(master, "CONFIG RESETSTAT")
    slow.late = 0.4
    start_worker("-c", "2")
    ledger.wait_for("end", 60)
    slow.late = 0.0
    missing = [cluster.ask(master, "INFO", "errorstats")["errorstat_NOSCRIPT"] for master in range(3)]
    assert missing == [{"count": 1}] * 3


@pytest.mark.full
def test_a_worker_whose_lease_is_too_short_for_a_slow_master_says_so(
    app, settings, slow, start_worker, ledger
):
    """It served nothing, also of the other masters, and its log had no line about it."""
    settings["lowkiq_lease_seconds"] = 1.0
    for job_id in range(60):
        app.tasks["record"].delay(str(job_id), job_id)
    slow.late = 0.6
    worker = start_worker("-c", "2")
    eventually(lambda: "to renew leases; batches start only in the 0.50 s after" in worker.logs())
    assert "lowkiq_lease_seconds=1 to at least " in worker.logs()
    slow.late = 0.0
    ledger.wait_for("end", 60)
    eventually(lambda: "leases are renewed in time again" in worker.logs())
