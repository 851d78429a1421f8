"""The masters of a cluster on the dashboard, in the API, in metrics, and on the command line."""

from __future__ import annotations

import json
from html import unescape

import pytest
from click.testing import CliRunner
from prometheus_client import generate_latest

from celery_lowkiq.cli.change_commands import COMMANDS, command_of
from celery_lowkiq.cli.read_commands import failures, held, jobs, masters, morgue, paused, why
from celery_lowkiq.cli.read_commands import stats as stats_command
from celery_lowkiq.metrics.queues import queue_registry
from celery_lowkiq.rules.text import ranges
from celery_lowkiq.store.cluster_map import slot_of
from celery_lowkiq.store.keys import AUDIT_KEY, queue_key, reports_key, shard_keys
from tests.clusters import running_cluster
from tests.waiting import eventually

#: What is said when the master with the queue's own keys, or with the reports of nodes, is unreachable.
UNKNOWN = (
    "The master with the queue's own keys is unreachable: the use of its rate limit is unknown.",
    "The master with the reports of nodes is unreachable: who is alive and what runs is unknown.",
)


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
    text = f"3 masters, {sum(shards)} shards, the busiest has {found['skew']:.2f} times its share: "
    assert subjects["masters"]["text"].startswith(text)
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
    assert "0 s at least" not in shown[4]
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
            found = {m["address"]: m["unreachable"] for m in browser.get("/api/v1/masters").json()["masters"]}
            return [address for address, away in found.items() if away]

        gone = "{}:{}".format(*cluster.addresses[1])
        assert eventually(named) == [gone]
        assert '<span class="pill bad">unreachable</span>' in browser.get("/doctor").text
        levels = {f["subject"]: f["level"] for f in browser.get("/api/v1/doctor").json()["findings"]}
        assert levels[f"master {gone}"] == "error"
        assert read_metrics(app)[f'lowkiq_master_up{{master="{gone}"}}'] == "0.0"
        for words in ([], ["--json"]):
            shown = CliRunner().invoke(masters, words, obj=Context(app))
            assert (shown.exit_code, gone in shown.output) == (1, True)


@pytest.mark.full
def test_a_master_that_was_replaced_is_not_shown_without_other_traffic(settings, visit, app):
    """The former master answers as a replica, and was shown as up."""
    with running_cluster(replicas=3) as cluster:
        app.conf.lowkiq_url = cluster.url
        browser = visit()

        def listed():
            return [m["address"] for m in browser.get("/api/v1/masters").json()["masters"]]

        former, successor = ("{}:{}".format(*cluster.addresses[number]) for number in (1, 4))
        assert former in listed()
        eventually(lambda: cluster.ask(4, "INFO", "replication")["master_link_status"] == "up")
        cluster.ask(4, "CLUSTER FAILOVER")
        # All nodes know of it then.
        eventually(lambda: all(_knows(cluster, number, successor) for number in range(6)))
        assert successor in listed()
        assert former not in listed()
        labels = [name for name in read_metrics(app) if name.startswith("lowkiq_master_up")]
        assert f'lowkiq_master_up{{master="{successor}"}}' in labels
        assert f'lowkiq_master_up{{master="{former}"}}' not in labels


def _knows(cluster, number, master):
    found = cluster.ask(number, "CLUSTER NODES")
    return any(address.startswith(master) and about["slots"] for address, about in found.items())


@pytest.mark.full
@pytest.mark.parametrize("frozen", [False, True], ids=["killed", "frozen"])
@pytest.mark.parametrize("of_what", ["queue", "nodes", "neither"])
def test_what_living_masters_know_is_shown_and_what_is_missing_is_named(
    settings, visit, app, of_what, frozen
):
    """Also while the master with the queue's own keys, or with the reports of nodes, is unreachable."""
    with running_cluster() as cluster:
        app.conf.lowkiq_url = cluster.url
        browser, record = visit(), app.tasks["record"]
        spec = record.queue_spec
        for number in range(120):
            record.delay(str(number), number)
        before = record.ordered_queue.shard_stats()
        homes = [cluster.owner(slot_of(shard_keys(shard)["meta"])) for shard in spec.shard_refs()]
        of_queue, of_nodes = (
            cluster.owner(slot_of(queue_key(spec.name))),
            cluster.owner(slot_of(reports_key())),
        )
        of_log = cluster.owner(slot_of(AUDIT_KEY))
        gone = {"queue": of_queue, "nodes": of_nodes}.get(of_what)
        if gone is None:
            gone = min({0, 1, 2} - {of_queue, of_nodes})
        (cluster.freeze if frozen else cluster.kill)(gone)
        try:
            check_missing(app, browser, record, before, homes, gone, cluster)
            check_listings(app, browser, record, homes, gone, cluster)
            check_job(app, browser, record, homes, gone, (of_queue, of_nodes, of_log))
            found = browser.get("/api/v1/queues").json()
            assert (found["nodes"] is None) == (gone == of_nodes)
            of_queue_page = browser.get("/queue", params={"queue": spec.name}).text
            assert ("lanes unknown" in of_queue_page) == ("0 busy" not in of_queue_page) == (gone == of_nodes)
            page = browser.get("/").text
            # Who serves a queue is not known without the reports.
            assert ("nodes unknown" in page) == ("is served by no worker" not in page) == (gone == of_nodes)
            assert found["total"]["length"] == sum(one["stats"]["length"] for one in found["queues"])
        finally:
            if frozen:
                cluster.thaw(gone)


def check_listings(app, browser, record, homes, gone, cluster):
    """Pages, the API and commands list what answers, and say what they lack."""
    name, queue = record.queue_spec.name, record.ordered_queue
    here = {str(n) for n in range(120) if homes[queue.shard_of(str(n))] != gone}
    lost = ranges(index for index, home in enumerate(homes) if home == gone)
    address = "{}:{}".format(*cluster.addresses[gone])
    away, sentence = {address: f"{name}/{lost}"}, f"{address} was unreachable: this lacks {name}/{lost}."

    page = queue.jobs("perform_in", limit=1000)
    assert ({job.id for job in page.items}, page.unreachable) == (here, away)
    found = browser.get("/api/v1/jobs", params={"queue": name, "limit": 500, "age": "<1h"}).json()
    assert ({job["id"] for job in found["items"]}, found["unreachable"]) == (here, away)
    for path in ("morgue", "retries", "processing", "paused_ids", "held_ids", "failures"):
        assert browser.get(f"/api/v1/{path}", params={"queue": name}).json()["unreachable"] == away
    wanted = {"queue": name, "list": "morgue", "error": "*"}
    assert browser.get("/api/v1/matches", params=wanted).json()["unreachable"] == away
    assert len(browser.get("/api/v1/shards", params={"queue": name}).json()["shards"]) == len(homes)
    for listed in ("jobs", "retries", "morgue", "processing", "paused", "held", "shards"):
        shown = browser.get("/queue", params={"queue": name, "list": listed})
        assert shown.status_code == 200
        assert f"{address} is unreachable: nothing here counts {name}/{lost}" in shown.text
        assert (sentence in shown.text) == (listed != "shards")
    assert sentence in browser.get("/failures", params={"queue": name, "error": "*"}).text
    here_id, lost_id = min(here), next(str(n) for n in range(120) if str(n) not in here)
    assert record.ordered_queue.job(here_id).waiting
    search = browser.get("/search", params={"id": lost_id}).text
    assert f"{address} was unreachable: this lacks" in search
    assert f"{name}/{queue.shard_of(lost_id)}" in search

    for command, words in ((jobs, ["--limit", "0"]), (morgue, []), (paused, []), (held, []), (failures, [])):
        shown = CliRunner().invoke(command, [name, *words], obj=Context(app))
        assert (shown.exit_code, sentence in shown.stderr) == (1, True), command.name
        assert command is not jobs or len(shown.stdout.splitlines()) == 1 + len(here)
    shown = CliRunner().invoke(
        command_of(COMMANDS["run-now"]), [name, *sorted(here), lost_id], obj=Context(app)
    )
    assert shown.exit_code == 1
    assert shown.stdout == f"made due 0 waiting jobs of queue {name}\n"
    assert f"shards were left out: {name}/{queue.shard_of(lost_id)} ({address} is unreachable)" in str(
        shown.exception
    )
    asked = {"action": "run_now_all", "queue": name, "wait": 5}
    done = browser.post("/api/v1/changes", json=asked).json()
    assert (done["state"], f"left out: {name}/{lost} (" in done["error"]) == ("failed", True)


def check_job(app, browser, record, homes, gone, owners):
    """Why an id does not run, and its page: other masters than that of its shard may be unreachable."""
    name, queue = record.queue_spec.name, record.ordered_queue
    job_id = next(str(n) for n in range(120) if homes[queue.shard_of(str(n))] != gone)
    missing = [what for what, owner in zip(UNKNOWN, owners, strict=False) if owner == gone]
    answer = queue.why(job_id)
    assert [reason.text for reason in answer.reasons if reason.kind == "unknown"] == missing[::-1]
    assert answer.kind == "unowned"
    shown = CliRunner().invoke(why, [name, job_id], obj=Context(app))
    assert (shown.exit_code, shown.stdout.splitlines()[1:]) == (0, missing[::-1])
    asked = {"queue": name, "id": job_id}
    found = browser.get("/api/v1/job", params=asked).json()
    assert (found["id"], found["why"]["kind"]) == (job_id, "unowned")
    page = browser.get("/job", params=asked)
    assert (page.status_code, [text in unescape(page.text) for text in missing]) == (
        200,
        [True] * len(missing),
    )
    assert ("The master with the audit log is unreachable" in page.text) == (owners[2] == gone)


def check_missing(app, browser, record, before, homes, gone, cluster):
    name = record.queue_spec.name
    lost = [index for index, home in enumerate(homes) if home == gone]
    assert 0 < len(lost) < len(homes)
    known = sum(one.length for index, one in enumerate(before) if index not in lost)
    address = "{}:{}".format(*cluster.addresses[gone])
    shards = f"{name}/{ranges(lost)}"

    stats = record.ordered_queue.stats()
    assert (stats.length, stats.missing) == (known, len(lost))
    assert [one.missing for one in record.ordered_queue.shard_stats()] == [home == gone for home in homes]
    found = browser.get("/api/v1/queues").json()
    assert shards in found["unreachable"][address]
    (queue,) = (one for one in found["queues"] if one["name"] == name)
    assert (queue["shards"], queue["stats"]["length"], queue["stats"]["missing"]) == (
        len(homes),
        known,
        len(lost),
    )
    of_lowkiq = browser.get("/api/v1/stats").json()["by_worker"][name]
    assert (of_lowkiq["length"], of_lowkiq["missing"]) == (known, len(lost))
    page = browser.get("/")
    assert page.status_code == 200
    assert f"{address} is unreachable: nothing here counts {shards}" in page.text
    assert f"{len(lost)} of {len(homes)} shards missing" in page.text

    shown = CliRunner().invoke(stats_command, [name], obj=Context(app))
    assert shown.exit_code == 1
    assert f"{len(lost)} of {len(homes)} shards unreachable" in shown.stdout
    assert f"{address} is unreachable: nothing here counts {shards}" in shown.stderr
    of_shards = CliRunner().invoke(stats_command, [name, "--shards", "--json"], obj=Context(app))
    (listed,) = json.loads(of_shards.stdout)["queues"]
    assert {one["index"] for one in listed["shards"] if one["unreachable"] == address} == {*lost}
    assert sum(one["stats"]["length"] for one in listed["shards"]) == known

    figures, label = read_metrics(app), f'{{queue="{name}"}}'
    assert figures["lowkiq_redis_up"] == "1.0"
    assert float(figures[f"lowkiq_shards_unreachable{label}"]) == len(lost)
    assert float(figures[f"lowkiq_shards{label}"]) == len(homes)
    assert float(figures[f"lowkiq_length{label}"]) == known
    assert f"lowkiq_processed_total{label}" not in figures
