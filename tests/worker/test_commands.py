"""``celery inspect lowkiq``, ``celery control lowkiq_...``: what a worker tells of ordered queues."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.bootstep.remote_control import ticketed
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.store.keys import shard_keys
from tests.waiting import eventually
from tests.worker.checks import command, leases, released
from tests.worker.test_serving import active, owners

ORDERED = ("gated", "record", "batches", "outcome")


@pytest.fixture
def celery(settings):
    """Celery's own command line: ``celery("inspect", "lowkiq")``."""

    def run(*words):
        done = subprocess.run(
            [sys.executable, "-m", "celery", "-A", "tests.worker.proj", *words],
            env={**os.environ, "PROJ_SETTINGS": json.dumps(settings)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout

    return run


@pytest.mark.full
def test_the_command_line_lists_them(celery):
    listed = " ".join(celery("inspect", "--list").split())
    assert "lowkiq Lanes with their shards and runs, and counts" in listed
    listed = " ".join(celery("control", "--list").split())
    for name in ("lowkiq_pause", "lowkiq_resume", "lowkiq_run_now", "lowkiq_requeue"):
        assert f"{name} <queue> [id1 [...]]" in listed
    assert "lowkiq_quiet Let a node finish" in listed
    assert "lowkiq_unquiet Let a quiet node serve again" in listed


def test_inspect_shows_lanes_and_queues(app, start_worker, ledger, tmp_path, celery):
    start_worker("-Q", "gated,record", lanes=2)
    app.tasks["gated"].delay("1")
    ledger.wait_for("start")
    app.tasks["gated"].delay("1", "again")

    def replies():
        found = json.loads(celery("inspect", "lowkiq", "--json", "-t", "5") or "{}")
        return found.get("w0@test")

    found = eventually(replies)
    (run,) = [lane["running"] for lane in found["lanes"] if lane["running"]]
    assert (run["shard"][:6], run["ids"]) == ("gated/", ["1"])
    assert run["seconds"] > 0
    assert sum(len(lane["shards"]) for lane in found["lanes"]) == 12
    assert not found["quiet"]
    counts = {queue["name"]: queue["stats"] for queue in found["overview"]["queues"]}
    assert set(counts) == {"gated", "record"}
    assert (counts["gated"]["busy"], counts["gated"]["length"]) == (1, 1)
    (tmp_path / "gate").touch()
    ledger.wait_for("end", 2)


@pytest.mark.full
def test_inspect_shows_other_queues_beside_a_damaged_one(app, start_worker, celery):
    """O6: a key of another type in one shard made an error of the counts of all queues."""
    app.tasks["record"].apply_async(("1", "x"), countdown=3600)
    (shard, *_) = app.tasks["outcome"].queue_spec.shard_refs()
    context_of(app).store.client.commands([("SET", shard_keys(shard)["due"], "planted")])
    start_worker("-Q", "record,outcome")

    def replies():
        return json.loads(celery("inspect", "lowkiq", "--json", "-t", "5") or "{}").get("w0@test")

    found = eventually(replies)["overview"]
    assert [(queue["name"], queue["stats"]["length"]) for queue in found["queues"]] == [("record", 1)]
    assert f"shard {shard} is damaged: " in found["damaged"]["outcome"]


@pytest.mark.full
def test_one_of_several_workers_acts_for_all(app, start_worker, celery):
    outcome = app.tasks["outcome"]
    for n in range(3):
        outcome.apply_async((n, "ok"), countdown=3600)
    app.tasks["record"].ordered_queue.pause()
    start_worker()
    start_worker()
    app.control.broadcast("ping", reply=True, timeout=5, limit=2)
    queue = ticketed("outcome")
    answers = command(app, "lowkiq_run_now", "w0@test", "w1@test", queue=queue)
    (left,) = [answer["ok"] for answer in answers if answer["ok"] != 3]
    assert left in ("left to w0@test", "left to w1@test")
    eventually(lambda: outcome.ordered_queue.stats().processed == 3)


@pytest.mark.full
def test_the_command_line_makes_the_ticket(app, start_worker, celery):
    queue = app.tasks["record"].ordered_queue
    start_worker()
    start_worker()
    app.control.broadcast("ping", reply=True, timeout=5, limit=2)

    def shown(*words):
        return eventually(lambda: (text := celery("control", *words, "-t", "3")).count("->") == 2 and text)

    text = shown("lowkiq_pause", "record")
    assert ("        1" in text, "left to w" in text) == (True, True)
    assert queue.paused().queue
    text = shown("lowkiq_pause", "record", "1", "1", "2")
    assert ("        2" in text, "left to w" in text) == (True, True)
    assert [paused.id for paused in queue.paused_ids().items] == ["1", "2"]
    shown("lowkiq_resume", "record")
    assert queue.paused().queue is None
    shown("lowkiq_resume", "record", "2")
    assert [paused.id for paused in queue.paused_ids().items] == ["1"]


@pytest.mark.full
def test_without_a_ticket_each_acts_harmlessly(app, start_worker):
    outcome = app.tasks["outcome"]
    for n in range(3):
        outcome.apply_async((n, "ok"), countdown=3600)
    start_worker()
    start_worker()
    answers = command(app, "lowkiq_run_now", "w0@test", "w1@test", queue="outcome")
    assert sum(answer["ok"] for answer in answers) == 3


def test_pause_resume_run_now_and_requeue(app, start_worker, ledger):
    outcome = app.tasks["outcome"]
    queue = outcome.ordered_queue
    start_worker()
    assert command(app, "lowkiq_pause", "w0@test", queue="outcome") == [{"ok": True}]
    assert queue.paused().queue
    outcome.delay("1", "fail")
    assert command(app, "lowkiq_resume", "w0@test", queue="outcome") == [{"ok": True}]
    eventually(lambda: queue.stats().morgue_length == 1)
    assert command(app, "lowkiq_pause", "w0@test", queue="outcome", ids=["1", "2"]) == [{"ok": 2}]
    assert command(app, "lowkiq_requeue", "w0@test", queue="outcome", ids=["2"]) == [{"ok": 0}]
    assert command(app, "lowkiq_requeue", "w0@test", queue="outcome") == [{"ok": 1}]
    assert queue.stats().paused_jobs == 1
    assert command(app, "lowkiq_resume", "w0@test", queue="outcome", ids=["1"]) == [{"ok": 1}]
    eventually(lambda: queue.stats().morgue_length == 1)
    outcome.apply_async(("3", "ok"), countdown=3600)
    assert command(app, "lowkiq_run_now", "w0@test", queue="outcome", ids=["3"]) == [{"ok": 1}]
    eventually(lambda: queue.stats().processed == 1)


def test_an_unknown_queue_and_a_bad_id_are_refused(app, start_worker):
    start_worker()
    (answer,) = command(app, "lowkiq_pause", "w0@test", queue="outcom")
    assert answer["error"].startswith("queue='outcom' is invalid: expected an ordered queue of the app.")
    assert answer["error"].endswith("Did you mean 'outcome'?")
    (answer,) = command(app, "lowkiq_requeue", "w0@test", queue="outcome", ids=["a\nb"])
    assert "a\\nb" in answer["error"]


@pytest.mark.full
def test_a_quiet_node_finishes_and_gives_its_shards_to_another(app, start_worker, ledger, tmp_path):
    gated, record = app.tasks["gated"], app.tasks["record"]
    inspector = Inspector(app)
    start_worker()
    eventually(lambda: owners(gated) == {"w0"})
    gated.delay("runs")
    ledger.wait_for("start")
    start_worker()
    eventually(lambda: owners(record) == {"w0", "w1"})
    (answer,) = command(app, "lowkiq_quiet", "w0@test")
    assert answer == {"ok": "quiet: running jobs finish, and nothing new starts"}
    assert active(app, "w0@test") == {"celery"}
    eventually(lambda: owners(record) == {"w1"})
    eventually(lambda: [node.quiet for node in inspector.nodes()] == [True, False])
    eventually(lambda: sorted(lease.owner[:2] for lease in leases(gated)) == ["w0", "w1", "w1", "w1"])
    (tmp_path / "gate").touch()
    eventually(lambda: owners(gated) == {"w1"})
    assert [line["id"] for line in ledger.lines("end")] == ["runs"]
    app.tasks["plain"].delay(1)
    app.tasks["plain"].delay(2)
    assert {line["value"] for line in ledger.wait_for("plain", 2)} == {1, 2}
    command(app, "lowkiq_unquiet", "w0@test")
    eventually(lambda: owners(record) == {"w0", "w1"})
    eventually(lambda: [node.quiet for node in inspector.nodes()] == [False, False])


def test_a_quiet_node_serves_afterwards_what_it_was_told_meanwhile(app, start_worker, ledger):
    start_worker()
    eventually(lambda: all(owners(app.tasks[name]) == {"w0"} for name in ORDERED))
    command(app, "lowkiq_quiet", "w0@test")
    eventually(lambda: all(released(app.tasks[name]) for name in ORDERED))
    app.tasks["record"].delay("1")
    command(app, "cancel_consumer", "w0@test", queue="outcome")
    command(app, "add_consumer", "w0@test", queue="record")
    assert active(app, "w0@test") == {"celery"}
    assert app.tasks["record"].ordered_queue.why("1").kind == "unowned"
    command(app, "lowkiq_unquiet", "w0@test")
    ledger.wait_for("end")
    assert active(app, "w0@test") == {"celery", "record", "gated", "batches"}


def test_a_worker_without_lanes_says_so(app, start_worker):
    start_worker(pool="solo", lanes=1)
    (answer,) = command(app, "lowkiq_quiet", "w0@test")
    assert answer == {"error": "this worker serves no ordered queue"}
    (answer,) = command(app, "lowkiq", "w0@test")
    assert (answer["quiet"], answer["lanes"], answer["overview"]["queues"]) == (False, [], [])
