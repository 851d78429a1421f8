"""Masters of a cluster that answer, and refuse the user, writes or all scripts."""

from __future__ import annotations

import contextlib
from html import unescape

import pytest

from celery_lowkiq.cli.read_commands import doctor, masters, stats
from celery_lowkiq.integration.publish import CallUnavailable
from celery_lowkiq.store.cluster_map import slot_of
from celery_lowkiq.store.keys import queue_key, reports_key, shard_keys
from tests.clusters import Cluster, running_cluster
from tests.waiting import eventually
from tests.web.test_masters import CliRunner, Context, read_metrics

PASSWORD = "of the test"


@pytest.fixture(scope="module")
def cluster():
    with running_cluster() as started:
        for number in range(3):
            permit(started, number)
        yield started


def permit(cluster: Cluster, number: int) -> None:
    cluster.ask(number, "ACL SETUSER", "app", "on", f">{PASSWORD}", "~*", "&*", "+@all")


@pytest.fixture
def settings(settings, cluster):
    login = {"username": "app", "password": PASSWORD}
    return settings | {"lowkiq_url": cluster.url, "lowkiq_redis_options": {"socket_timeout": 1.0, **login}}


@pytest.fixture
def other(cluster):
    """The number of a master without the reports of nodes."""
    return (cluster.owner(slot_of(reports_key())) + 1) % 3


def address(cluster, number):
    return "{}:{}".format(*cluster.addresses[number])


def findings(browser):
    return {found["subject"]: found for found in browser.get("/api/v1/doctor").json()["findings"]}


def test_a_master_without_the_user_is_named_with_what_to_do(app, browser, cluster, other):
    """The advice was to start it, and the error of a call was that the URL is wrong."""
    record, name = app.tasks["record"], address(cluster, other)
    record.delay("1", "x")
    of_master = next(str(n) for n in range(100) if cluster.owner(_slot(record.queue_spec, str(n))) == other)
    cluster.ask(other, "ACL DELUSER", "app")
    try:
        # The connections of the user are closed first.
        found = eventually(
            lambda: (one := findings(browser).get(f"master {name}")) and "WRONGPASS" in one["text"] and one
        )
        assert found["text"].startswith(f"Redis {name} refuses user or password (WRONGPASS): create the user")
        assert found["advice"].startswith("The server is up: `celery -A proj lowkiq acl --cluster`")
        with pytest.raises(CallUnavailable, match=rf"Redis {name} refuses user or password"):
            record.apply_async((of_master, 1), retry=False)
    finally:
        permit(cluster, other)


def _slot(spec, job_id):
    return slot_of(shard_keys(spec.shard_of(job_id))["meta"])


def test_a_master_that_waits_for_replicas_is_named(app, browser, cluster, other):
    """Nothing was said of it; a worker was to be started."""
    app.tasks["record"].delay("1", "x")
    cluster.ask(other, "CONFIG SET", "min-replicas-to-write", 1)
    try:
        found = findings(browser)
        assert found["writes"]["level"] == "error"
        assert found["writes"]["text"].startswith(
            f"{address(cluster, other)} refuses them: min-replicas-to-write is 1,"
        )
        assert "or its report is not stored" in found["queue record"]["text"]
    finally:
        cluster.ask(other, "CONFIG SET", "min-replicas-to-write", 0)
    assert "writes" not in findings(browser)


@pytest.mark.parametrize(
    ("of_what", "right", "command"),
    [
        ("shards", "-@scripting", "evalsha"),
        ("queue", "-hvals", "hvals"),
        ("nodes", "-zrevrange", "zrevrange"),
    ],
)
def test_a_master_that_denies_a_right_hides_no_other_one(
    app, browser, cluster, other, of_what, right, command
):
    """One error was all that stats, doctor, the overview and metrics said."""
    record = app.tasks["record"]
    name, shards = record.queue_spec.name, record.queue_spec.shard_refs()
    for number in range(60):
        record.delay(str(number), number)
    homes = [cluster.owner(slot_of(shard_keys(shard)["meta"])) for shard in shards]
    of_queue, of_nodes = (cluster.owner(slot_of(key)) for key in (queue_key(name), reports_key()))
    denies = {"shards": other, "queue": of_queue, "nodes": of_nodes}[of_what]
    before = record.ordered_queue.shard_stats()
    missing = [n for n, home in enumerate(homes) if home == denies and of_what == "shards"]
    known = sum(one.length for n, one in enumerate(before) if n not in missing)
    text = f"Redis {address(cluster, denies)} does not permit this (NOPERM): "
    cluster.ask(denies, "ACL SETUSER", "app", right)
    try:
        shown = CliRunner().invoke(stats, [name], obj=Context(app))
        assert (shown.exit_code, text in shown.stderr, f"'{command}" in shown.stderr) == (1, True, True)
        assert (f"{len(missing)} of {len(homes)} shards unknown" in shown.stdout) == bool(missing)
        assert ("Nodes are unknown" in shown.stdout) == (of_what == "nodes")
        found = browser.get("/api/v1/queues").json()
        (queue,) = (one for one in found["queues"] if one["name"] == name)
        assert (queue["stats"]["length"], queue["stats"]["missing"]) == (known, len(missing))
        assert [*found["denied"]] == [address(cluster, denies)]
        of_shards = CliRunner().invoke(stats, [name, "--shards"], obj=Context(app))
        assert (of_shards.exit_code, text in of_shards.stderr) == (bool(missing), bool(missing))
        assert len(of_shards.stdout.splitlines()) == 1 + len(homes)
        checked = CliRunner().invoke(doctor, [], obj=Context(app))
        assert (checked.exit_code, text in checked.stdout) == (1, of_what != "queue")
        assert "masters: 3 masters" in checked.stdout
        page = browser.get("/")
        assert (page.status_code, text in unescape(page.text)) == (200, True)
        figures = read_metrics(app)
        assert figures["lowkiq_redis_up"] == "1.0"
        assert float(figures[f'lowkiq_length{{queue="{name}"}}']) == known
        assert float(figures[f'lowkiq_shards_unreachable{{queue="{name}"}}']) == len(missing)
    finally:
        permit(cluster, denies)
    assert CliRunner().invoke(stats, [name], obj=Context(app)).exit_code == 0


@pytest.mark.full
def test_masters_that_refuse_all_since_a_slot_is_lost_are_not_up(settings, visit, app):
    """They were shown as up, /readyz said so, and only the shards of the dead one were said to wait."""
    with running_cluster(config={"cluster-require-full-coverage": "yes"}) as cluster:
        app.conf.lowkiq_url, app.conf.lowkiq_redis_options = cluster.url, {}
        browser = visit()
        with contextlib.suppress(CallUnavailable):
            app.tasks["record"].delay("1", "x")
        assert browser.get("/readyz").status_code == 200
        dead = (cluster.owner(slot_of(reports_key())) + 1) % 3
        cluster.kill(dead)
        eventually(lambda: browser.get("/readyz").status_code == 503)
        eventually(
            lambda: all(cluster.ask(n, "CLUSTER INFO")["cluster_state"] == "fail" for n in cluster.living)
        )
        figures = read_metrics(app)
        assert {figures[f'lowkiq_master_up{{master="{address(cluster, n)}"}}'] for n in range(3)} == {"0.0"}
        found = findings(browser)
        for number in cluster.living:
            assert "The cluster is down" in found[f"master {address(cluster, number)}"]["text"]
        assert found["cluster-require-full-coverage"]["level"] == "warning"
        shown = CliRunner().invoke(masters, [], obj=Context(app))
        assert shown.output.count("refuses: ") == 2
        assert shown.exit_code == 1


@pytest.mark.full
def test_a_replica_without_the_user_is_named_before_it_is_promoted(settings, visit, app):
    """Nothing was said of it, and a third of the shards stood still after the failover."""
    with running_cluster(replicas=3) as cluster:
        for number in range(5):
            permit(cluster, number)
        app.conf.lowkiq_url = cluster.url
        browser = visit()
        eventually(lambda: cluster.ask(0, "INFO", "replication")["connected_slaves"] == 1)
        found = eventually(lambda: findings(browser).get("users of replicas"))
        assert found["level"] == "warning"
        assert found["text"].startswith(f"{address(cluster, 5)}: this replica refuses user or password.")
        permit(cluster, 5)
        assert "users of replicas" not in findings(browser)
