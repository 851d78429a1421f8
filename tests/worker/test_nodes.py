"""What nodes say of themselves, and what is known of queues from it, without asking any worker."""

from __future__ import annotations

import re
import time

import pytest
import redis

from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.store.keys import shard_keys
from tests.marks import first_often
from tests.waiting import eventually


@pytest.fixture
def inspector(app):
    return Inspector(app)


def shards(report):
    return {str(shard) for lane in report.lanes for shard in lane.shards}


@pytest.mark.parametrize("splitter", first_often(["lease", "default"]))
def test_nodes_say_what_they_are_doing(app, settings, inspector, start_worker, ledger, tmp_path, splitter):
    settings.update(lowkiq_splitter=splitter)
    assert inspector.nodes() == ()
    node = start_worker("-Q", "gated,celery", lanes=2)
    app.tasks["gated"].delay("1")
    ledger.wait_for("start")
    shard = next(s for s, stats in enumerate(app.tasks["gated"].ordered_queue.shard_stats()) if stats.busy)
    (report,) = eventually(
        lambda: (found := inspector.nodes()) and found[0].running(ShardRef("gated", shard)) and found
    )
    assert (report.name, report.pid, report.queues) == ("w0@test", node.container.process.pid, ("gated",))
    assert (report.alive, report.quiet, report.stopping) == (True, False, False)
    assert report.started_at <= report.seen_at
    assert [lane.shard_count for lane in report.lanes] == [2, 2]
    assert shards(report) == {f"gated/{n}" for n in range(4)}
    run = report.running(ShardRef("gated", shard))
    assert (run.ids, run.count) == (("1",), 1)
    node.kill("SIGTERM")
    eventually(lambda: inspector.nodes()[0].stopping)
    (tmp_path / "gate").touch()
    node.exit_status()
    assert inspector.nodes() == ()


@pytest.mark.full
def test_a_node_that_died_is_shown_until_it_is_back(inspector, start_worker):
    node = start_worker()
    (before,) = eventually(inspector.nodes)
    node.kill("SIGKILL")
    node.exit_status()
    eventually(lambda: not inspector.nodes()[0].alive)
    node.container.restart()
    (after,) = eventually(lambda: (found := inspector.nodes()) and found[0].alive and found)
    assert before.name == after.name
    assert before.pid != after.pid


@pytest.mark.full
def test_a_queue_has_a_history(app, inspector, start_worker, ledger):
    record = app.tasks["record"]
    record.perform_async([{"id": n} for n in range(20)])
    start_worker()
    ledger.wait_for("end", 20)
    (*_, last) = eventually(lambda: (h := record.ordered_queue.history()) and h[-1].processed == 20 and h, 40)
    assert last.failed == 0
    found = inspector.history()
    assert found.by_queue["record"][-1].processed == 20
    assert found.total[-1].processed == 20
    assert set(found.by_queue) == set(inspector.queues())


def test_shards_and_why_of_a_run(app, start_worker, ledger, tmp_path):
    queue = app.tasks["gated"].ordered_queue
    assert queue.why("1").kind == "nowhere"
    app.tasks["gated"].delay("1")
    assert queue.why("1").kind == "unowned"
    start_worker()
    ledger.wait_for("start")
    app.tasks["gated"].delay("1", "again")
    answer = eventually(lambda: (a := queue.why(1)).kind == "running" and a)
    assert [reason.kind for reason in answer.reasons] == ["running", "behind_itself"]
    assert "on node w0@test lane-" in answer.text
    shard = queue.shards()[answer.facts.shard.index]
    assert (shard.owner, shard.alive, shard.running.ids, shard.stats.busy) == ("w0@test", True, ("1",), 1)
    (tmp_path / "gate").touch()
    ledger.wait_for("end", 2)
    eventually(lambda: queue.why("1").kind == "nowhere")


@pytest.mark.full
def test_why_tells_of_retries_and_the_morgue(app, start_worker, ledger):
    outcome = app.tasks["outcome"]
    outcome.delay("1", "fail")
    start_worker()
    ledger.wait_for("run", 2)
    answer = eventually(lambda: (a := outcome.ordered_queue.why("1")).kind == "dead" and a)
    assert answer.text.endswith("after: ValueError: as asked.")


@pytest.mark.full
def test_x_shards_that_wait_are_named_in_one_line_and_in_why_and_doctor(
    app, settings, inspector, start_worker, redis_server
):
    """X: released before a restart of Redis, they are free after one lease time, and say so meanwhile."""
    settings["lowkiq_lease_seconds"] = 10.0
    gated = app.tasks["gated"]
    gated.delay("1")
    with redis.Redis(unix_socket_path=redis_server.socket_path) as client:
        for shard in gated.queue_spec.shard_refs():
            lease = {
                "owner": "",
                "epoch": 5,
                "counter": 3,
                "server": "before the restart",
                "since": time.time(),
            }
            client.hset(shard_keys(shard)["lease"], mapping=lease)
    node = start_worker("-Q", "gated,celery")
    answer = eventually(lambda: "free in" in (text := gated.ordered_queue.why("1").text) and text)
    assert re.search(
        r"Redis restarted, failed over or lost data, and it is free in \d+(\.\d)? s, when ", answer
    )
    (finding,) = [f for f in inspector.doctor() if "free in" in f.text]
    assert (finding.level, finding.subject) == ("warning", "queue gated")
    assert finding.text.startswith("Shards 0-3: Redis restarted, failed over or lost data; free in ")
    eventually(lambda: len({shard.owner for shard in gated.ordered_queue.shards()} - {None}) == 1, 40)
    lines = [line for line in node.logs().splitlines() if "failed over or lost data" in line]
    assert len(lines) == 1
    assert re.search(r"INFO.*, free in 10\.\d s: gated/0-3$", lines[0])
