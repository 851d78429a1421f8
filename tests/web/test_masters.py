"""The masters of a cluster on the dashboard, in the API, in metrics, and on the command line."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from prometheus_client import generate_latest

from celery_lowkiq.cli.commands.masters import masters
from celery_lowkiq.metrics.queues import queue_registry
from tests.clusters import running_cluster
from tests.waiting import eventually


@pytest.fixture(scope="module")
def cluster():
    with running_cluster() as started:
        yield started


@pytest.fixture
def settings(settings, cluster):
    return settings | {"lowkiq_url": cluster.url, "lowkiq_redis_options": {"socket_timeout": 1.0}}


class Context:
    def __init__(self, app):
        self.app = app


def read_metrics(app):
    lines = generate_latest(queue_registry(app)).decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def addresses(cluster):
    return [f"{host}:{port}" for host, port in sorted(cluster.addresses)]


def test_all_masters_with_their_shards(app, browser, cluster):
    app.tasks["record"].delay("1", "x")
    found = browser.get("/api/v1/masters").json()
    assert (found["kind"], [master["address"] for master in found["masters"]]) == (
        "cluster",
        addresses(cluster),
    )
    shards = [master["shard_count"] for master in found["masters"]]
    assert sum(shards) == sum(queue["shards"] for queue in browser.get("/api/v1/queues").json()["queues"])
    assert sum(master["slots"] for master in found["masters"]) == 16384
    assert found["skew"] == pytest.approx(max(shards) * 3 / sum(shards))
    page = browser.get("/doctor").text
    assert all(address in page for address in addresses(cluster))
    subjects = {finding["subject"]: finding for finding in browser.get("/api/v1/doctor").json()["findings"]}
    assert subjects["masters"]["text"].startswith(f"3 masters, {sum(shards)} shards: ")
    assert subjects["cluster-require-full-coverage"]["level"] == "ok"
    assert subjects["cluster-node-timeout"]["text"].startswith("2 s, and a lease lasts 1 s: ")
    assert subjects["replicas"]["level"] == subjects["shards a master"]["level"] == "warning"
    figures = read_metrics(app)
    for address, count in zip(addresses(cluster), shards, strict=True):
        label = f'{{master="{address}"}}'
        assert figures[f"lowkiq_master_up{label}"] == "1.0"
        assert float(figures[f"lowkiq_master_shards{label}"]) == count
        assert float(figures[f"lowkiq_master_used_memory_bytes{label}"]) > 0
    assert float(figures["lowkiq_clock_skew_seconds"]) < 1


def test_the_command_line_shows_them(app, cluster):
    shown = CliRunner().invoke(masters, [], obj=Context(app)).output.splitlines()
    assert [line.split()[0] for line in shown[1:4]] == addresses(cluster)
    assert "times its share of shards" in shown[4]
    line = CliRunner().invoke(masters, ["--json"], obj=Context(app)).output
    assert json.loads(line)["kind"] == "cluster"


@pytest.mark.full
def test_a_master_that_is_away_is_named_beside_the_others(settings, visit, app):
    with running_cluster() as cluster:
        app.conf.lowkiq_url = cluster.url
        browser = visit()
        browser.get("/api/v1/masters")
        cluster.servers[1].kill()

        def named():
            found = {m["address"]: m["away"] for m in browser.get("/api/v1/masters").json()["masters"]}
            return [address for address, away in found.items() if away]

        gone = "{}:{}".format(*cluster.addresses[1])
        assert eventually(named) == [gone]
        assert "away" in browser.get("/doctor").text
        levels = {f["subject"]: f["level"] for f in browser.get("/api/v1/doctor").json()["findings"]}
        assert levels[f"master {gone}"] == "error"
        assert read_metrics(app)[f'lowkiq_master_up{{master="{gone}"}}'] == "0.0"
