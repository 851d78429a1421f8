"""Commands on a queue that is stored with another number of shards than the code declares."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import replace
from types import SimpleNamespace

import pytest
from celery.bin.celery import celery

from celery_lowkiq.cli.change_commands import MoveProgress, in_words
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.models import Call, Disposition
from celery_lowkiq.rules.resharding import MigrationState, Phase, ShardProgress
from celery_lowkiq.store import registry
from celery_lowkiq.store.keys import queue_key
from celery_lowkiq.store.resharding import Migrations
from tests.bound import Queries
from tests.cli import proj
from tests.cli.conftest import APP, done, end_all, start

FAR = 9_000_000_000.0
STORED = 6


@pytest.fixture
def spec(queue):
    """As the other code declares the queue."""
    return replace(queue.spec, shards=STORED)


@pytest.fixture
def stored(spec):
    """Ten dead jobs and ten that wait."""
    store = context_of(proj.app).store
    store.push(spec, [Call(f"d{n}", b"%d" % n, n) for n in range(10)])
    end_all(proj.sync_order, Disposition.BURY, spec=spec)
    store.push(spec, [Call(f"w{n}", b"%d" % n, n, FAR) for n in range(10)])
    return store


def test_reads_and_actions_follow_the_stored_number(stored, spec, queue, run):
    assert json.loads(run("job", "sync_order", "w1", "--json").stdout)["waiting"]
    assert run("delete", "sync_order", "w1", "--yes").exit_code == 0
    assert run("requeue", "sync_order", "--all", "--yes").exit_code == 0
    assert run("push", "sync_order", "w2", "1").exit_code == 0
    assert run("pause", "sync_order", "w2").exit_code == 0
    assert run("pause", "sync_order", "--shard", str(STORED - 1)).exit_code == 0
    assert run("pause", "sync_order", "--shard", str(STORED)).exit_code == 2
    found = Queries(stored.client).stats(spec)
    assert (found.length, found.morgue_length, found.paused_jobs) == (19, 0, 1)
    assert queue.shard_of("w2") == spec.shard_of("w2").index


def test_counts_are_those_of_the_stored_shards(stored, run):
    (queue,) = json.loads(run("stats", "sync_order", "--json").stdout)["queues"]
    counts = queue["stats"]
    assert (counts["length"], counts["morgue_length"], queue["shards"]) == (10, 10, STORED)
    assert json.loads(run("stats", "--json").stdout)["total"]["length"] == 10


def test_the_doctor_says_it(stored, run):
    found = run("doctor").output
    assert "It has 6 shards, the code declares 4; the stored number applies" in found
    assert "celery -A proj lowkiq reshard sync_order 4" in found


def test_all_of_it_is_paused(stored, spec, run):
    assert run("pause", "sync_order").exit_code == 0
    (queue_json,) = json.loads(run("stats", "sync_order", "--json").stdout)["queues"]
    assert queue_json["stats"]["paused"] == STORED
    assert run("resume", "sync_order").exit_code == 0


def test_a_queue_is_resharded(stored, queue, run):
    assert run("reshard", "sync_order", "4").stdout == "queue sync_order has 4 shards\n"
    assert queue.stored_spec().shards == 4
    found = queue.stats()
    assert (found.length, found.morgue_length) == (10, 10)
    assert "shards, the code declares" not in run("doctor").output


def test_a_queue_is_resharded_and_watched(stored, queue, run):
    found = run("reshard", "sync_order", "4", "--watch")
    assert (found.exit_code, found.stdout) == (0, "queue sync_order has 4 shards\n")
    assert "6>4, " in found.stderr


def test_a_move_that_goes_on_is_followed(stored, queue, run):
    Migrations(stored.client, queue.name).begin(4)
    assert run("reshard", "sync_order", "4", "--watch").stdout == "queue sync_order has 4 shards\n"
    assert run("reshard", "sync_order", "4", "--watch", "--pause").exit_code == 2


def test_the_number_of_shards_is_checked(queue, run):
    with pytest.raises(InvalidCall, match="shards=0 is invalid: expected a whole number from 1 to 4096"):
        queue.reshard(0)
    assert run("reshard", "sync_order", "5000").exit_code == 2


def test_a_dry_run_shows_the_cost_and_changes_nothing(stored, queue, run):
    before = stored.client.servers.redis.dbsize()
    shown = run("reshard", "sync_order", "12", "--dry-run").stdout
    assert "queue sync_order has 6 shards\nabout 10 of 20 jobs, " in shown
    assert "less than a second, at 5000 jobs a second; nothing was changed\n" in shown
    assert queue.reshard_cost(6).leaving == 0
    assert (queue.stored_spec().shards, stored.client.servers.redis.dbsize()) == (6, before)
    assert run("reshard", "sync_order", "4", "--pause").exit_code == 2
    assert run("reshard", "sync_order").exit_code == 2
    assert run("reshard", "sync_order", "--pause", "--resume").exit_code == 2


def test_a_migration_is_paused_watched_and_resumed(stored, queue, run):
    assert run("reshard", "sync_order", "--pause").exit_code == 1
    Migrations(stored.client, queue.name).begin(4)
    said = "the move of queue sync_order to other shards: "
    assert run("reshard", "sync_order", "--pause").stdout == f"{said}paused\n"
    again = run("reshard", "sync_order", "--pause")
    assert (again.exit_code, again.stdout) == (1, f"{said}paused before\n")
    refused = run("reshard", "sync_order", "4")
    assert refused.exit_code == 1
    assert "celery -A proj lowkiq reshard sync_order --resume" in refused.stderr
    with ThreadPoolExecutor() as pool:
        watching = pool.submit(done, "reshard", "sync_order", "--watch")
        assert run("reshard", "sync_order", "--resume").stdout == f"{said}resumed\n"
        assert run("reshard", "sync_order", "4").exit_code == 0
        watched = watching.result()
    assert (watched.returncode, watched.stdout) == (0, "queue sync_order has 4 shards\n")


def test_a_migration_is_aborted(stored, queue, run):
    assert run("reshard", "sync_order", "--abort").exit_code == 1
    migrations = Migrations(stored.client, queue.name)
    migrations.begin(4)
    while migrations.read().phase is not Phase.MOVE:
        stored.mover(queue.spec).turn()
    assert run("stats", "sync_order").stdout.count("moving 6>4\n") == 1
    assert "the move is paused" not in run("doctor").output
    queue.pause_migration()
    assert "from 6 to 4 shards, and the move is paused" in run("doctor").output
    assert run("reshard", "sync_order", "--abort").stdout == "queue sync_order has 6 shards\n"
    assert (queue.migration(), queue.stats().length) == (None, 10)


def test_a_migration_that_may_be_a_way_back_is_not_aborted(stored, spec, queue, run):
    """The command said that the queue has the other number of shards, as if that were the former one."""
    migrations = Migrations(stored.client, queue.name)
    migrations.begin(4)
    while migrations.read().phase is not Phase.MOVE:
        stored.mover(queue.spec).turn()
    stored.client.servers.redis.delete(queue_key(queue.name))
    registry.registered(stored.client, spec)
    refused = run("reshard", "sync_order", "--abort")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "the move of queue 'sync_order' to 4 shards cannot be aborted" in refused.stderr
    migration = migrations.read()
    assert (migration.phase, migration.layout.shards) == (Phase.FLIP, 4)


def test_the_progress_is_shown_in_words(stored, queue, run):
    Migrations(stored.client, queue.name).begin(4)
    queue.pause_migration()
    process = start("reshard", "sync_order", "--watch", stderr=subprocess.PIPE)
    try:
        assert process.stderr.readline() == (b"6>4, paused: about 10 jobs left to move\n")
        assert b"no worker that serves queue sync_order is alive" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert (process.returncode, said) == (0, b"")
    finally:
        process.kill()
    assert not queue.pause_migration()
    assert queue.resume_migration()
    assert not queue.resume_migration()


def test_a_bar_shows_the_progress(stored, queue, run, monkeypatch):
    monkeypatch.setattr("celery_lowkiq.cli.change_commands.LOOK", 0)
    out, err = io.StringIO(), io.StringIO()
    err.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", err)
    with redirect_stdout(out):
        celery.main(["-A", APP, "lowkiq", "reshard", "sync_order", "4"], standalone_mode=False)
    assert "10/10" in err.getvalue()
    assert "6>4, move" in err.getvalue()


def test_a_bar_follows_jobs_that_are_to_be_sorted_again(monkeypatch):
    """After a pause; and calls make it longer."""
    monkeypatch.setattr("celery_lowkiq.cli.change_commands.LOOK", 0)
    err = io.StringIO()
    err.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", err)
    of_move = {"phase": Phase.MOVE, "paused_since": None, "aborted_at": None, "former": 6, "shards": 4}
    states = [
        SimpleNamespace(**of_move, moved=moved, left=left) for moved, left in ((60, 0), (10, 50), (50, 20))
    ]
    shown = iter(states)
    with MoveProgress(SimpleNamespace(name="sync_order", migration=lambda: next(shown))) as progress:
        for _ in states:
            progress.update()
    assert re.findall(r"-?\d+/\d+", err.getvalue()) == ["0/1", "60/60", "10/60", "50/70"]


def test_the_progress_in_words():
    """What there is none of is not named."""
    none = {"waiting": 9, "moving": 7, "processing": 0, "in_flight": 0, "transfers": 0, "transfer_bytes": 0}
    quiet = ShardProgress(0, "8>12", **none)
    busy = ShardProgress(1, "8>12", **{**none, "in_flight": 2, "transfers": 1, "transfer_bytes": 300})
    state = MigrationState("q", 1, Phase.MOVE, 8, 12, None, None, None, (quiet,))
    assert in_words(state) == "8>12, move: 7 jobs left to sort"
    assert in_words(replace(state, progress=(quiet, busy))) == (
        "8>12, move: 14 jobs left to sort, 2 running jobs to end first, 1 transfer with 300 bytes on the way"
    )
    back = replace(state, former=12, shards=8, aborted_at=1.0)
    assert in_words(back) == "12>8, back: 7 jobs left to sort"
    assert in_words(replace(back, paused_since=2.0)).startswith("12>8, paused: about ")
