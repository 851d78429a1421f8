"""A worker on a cluster with a master that answers, and refuses the user or writes."""

from __future__ import annotations

import pytest

from celery_lowkiq.store.cluster_map import slot_of
from celery_lowkiq.store.keys import shard_keys
from tests.clusters import Cluster, running_cluster
from tests.waiting import eventually
from tests.worker.test_cluster import _called

PASSWORD = "of the test"


def permit(cluster: Cluster, number: int) -> None:
    cluster.ask(number, "ACL SETUSER", "app", "on", f">{PASSWORD}", "~*", "&*", "+@all")


def name_of(cluster, number):
    return "Redis {}:{}".format(*cluster.addresses[number])


def master_of(cluster, spec, job_id):
    return cluster.owner(slot_of(shard_keys(spec.shard_of(job_id))["meta"]))


@pytest.mark.full
def test_a_promoted_replica_without_the_user_is_named_and_its_end(app, settings, start_worker, ledger):
    """The last line said that the slots are on the replica now; then nothing, for as long as it refused."""
    with running_cluster(replicas=3) as cluster:
        for number in range(3):
            permit(cluster, number)
        login = {"username": "app", "password": PASSWORD}
        settings |= {"lowkiq_url": cluster.url, "lowkiq_redis_options": login}
        app.conf.update(settings)
        record = app.tasks["record"]
        record.delay("first", 1)
        worker = start_worker("-c", "2")
        ledger.wait_for("end")
        lost = next(n for n in map(str, range(1000)) if master_of(cluster, record.queue_spec, n) == 0)
        eventually(lambda: cluster.ask(3, "INFO", "replication")["master_link_status"] == "up")
        cluster.kill(0)
        refuses = f"{name_of(cluster, 3)} refuses user or password (WRONGPASS): create the user there"
        eventually(lambda: refuses in worker.logs(), 30)
        assert not _called(record, lost)
        permit(cluster, 3)
        eventually(lambda: _called(record, lost), 30)
        ledger.wait_for("end", 2)
        eventually(lambda: f"{name_of(cluster, 3)} accepts the login again after" in worker.logs())
        assert worker.logs().count(refuses) == 1


@pytest.mark.full
def test_a_master_that_waits_for_replicas_is_named_and_its_end(app, settings, start_worker, ledger):
    """Nothing was logged of its shards, which stood still."""
    with running_cluster() as cluster:
        settings["lowkiq_url"] = app.conf.lowkiq_url = cluster.url
        record = app.tasks["record"]
        record.delay("first", 1)
        worker = start_worker("-c", "2")
        ledger.wait_for("end")
        waiting = next(n for n in map(str, range(1000)) if master_of(cluster, record.queue_spec, n) == 1)
        cluster.ask(1, "CONFIG SET", "min-replicas-to-write", 1)
        refuses = f"{name_of(cluster, 1)} refuses writes: NOREPLICAS Not enough good replicas to write."
        eventually(lambda: refuses in worker.logs(), 30)
        cluster.ask(1, "CONFIG SET", "min-replicas-to-write", 0)
        eventually(lambda: f"{name_of(cluster, 1)} accepts writes again after" in worker.logs(), 30)
        eventually(lambda: _called(record, waiting))
        ledger.wait_for("end", 2)
        assert worker.logs().count(refuses) == 1
