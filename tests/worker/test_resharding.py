"""A queue in use moves to other numbers of shards: nothing is lost, doubled, or out of order."""

from __future__ import annotations

import threading
from collections import defaultdict

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.rules.models import Layout
from celery_lowkiq.rules.resharding import Phase
from celery_lowkiq.rules.views import NodeReport, NodeUpdate
from tests.waiting import eventually
from tests.worker.checks import command

IDS = [f"id-{number}" for number in range(40)]


class Callers:
    """Call with growing versions for each id, as code with other numbers of shards does."""

    def __init__(self, record, count=2):
        self._record = record
        self._stop = threading.Event()
        self.sent = defaultdict(int)
        self.errors = []
        self._threads = [threading.Thread(target=self._call, args=(IDS[n::count],)) for n in range(count)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _call(self, ids):
        while not self._stop.is_set():
            for job_id in ids:
                try:
                    self._record.delay(job_id, self.sent[job_id] + 1)
                except Exception as error:  # noqa: BLE001 - the test shows whatever it is
                    self.errors.append(error)
                    return
                self.sent[job_id] += 1
            self._stop.wait(0.02)


def test_a_queue_in_use_is_resharded(app, start_worker, ledger):
    record = app.tasks["record"]
    queue = record.ordered_queue
    nodes = [start_worker(), start_worker()]
    with Callers(record) as callers:
        for shards in (12, 3, 8):
            before = len(ledger.lines("end"))
            queue.reshard(shards)
            assert queue.stored_spec().shards == shards
            ledger.wait_for("end", before + 100, 60)
            if shards == 3:
                nodes[1].container.kill()
    assert callers.errors == []
    eventually(lambda: (stats := queue.stats()).length + stats.busy == 0, 60)
    ran = defaultdict(list)
    for line in ledger.lines("end"):
        ran[line["id"]] += line["payloads"]
    for job_id, count in callers.sent.items():
        assert sorted(set(ran[job_id])) == list(range(1, count + 1))
        firsts = [ran[job_id].index(version) for version in range(1, count + 1)]
        assert firsts == sorted(firsts)


def report_of_another(app, declared):
    report = NodeReport("other@host", "other@host-1", 1, 3600.0, False, False, (), (), declared=declared)
    context_of(app).store.beat([], report.owner, 0, 1, NodeUpdate(report, 1.0))
    return report


def test_workers_reshard_a_queue_when_the_code_of_all_declares_the_same_number(
    app, settings, start_worker, ledger
):
    settings.update(lowkiq_reshard="auto")
    record = app.tasks["record"]
    queue = record.ordered_queue
    queue.reshard(3)
    report = report_of_another(app, {"record": 3})
    node = start_worker("-Q", "record,celery")
    record.delay("1")
    ledger.wait_for("end")
    assert queue.stored_spec().shards == 3
    context_of(app).store.forget_report(report.owner)
    eventually(lambda: queue.stored_spec().layout == Layout(8))
    eventually(lambda: "queue record begins to move to 8 shards: all nodes declare that" in node.logs())


def test_remote_control_reshards_pauses_and_resumes(app, start_worker, ledger, tmp_path):
    gated = app.tasks["gated"]
    queue = gated.ordered_queue
    start_worker("-Q", "gated,celery", lanes=2)
    before = queue.spec.shards
    layout = Layout(before - 1, before)
    moves = next(name for name in map(str, range(100)) if layout.former_home(name) is not None)
    gated.delay(moves)
    ledger.wait_for("start")
    (answer,) = command(app, "lowkiq_reshard", "w0@test", queue="gated", shards=before - 1)
    assert answer == {"ok": "reshard gated goes on: the worker logs its end"}
    eventually(lambda: queue.migration().phase is Phase.MOVE)
    assert command(app, "lowkiq_pause_migration", "w0@test", queue="gated") == [
        {"ok": "paused the move of queue gated"}
    ]
    (found,) = command(app, "lowkiq_migration", "w0@test", queue="gated")
    assert (found["former"], found["shards"], found["phase"]) == (before, before - 1, "move")
    assert found["paused_since"]
    (answer,) = command(app, "lowkiq_reshard", "w0@test", queue="gated", shards=before - 1)
    assert "the move is paused" in answer["error"]
    (tmp_path / "gate").touch()
    eventually(lambda: queue.stats().busy == 0)
    assert queue.migration() is not None
    assert command(app, "lowkiq_resume_migration", "w0@test", queue="gated") == [
        {"ok": "resumed the move of queue gated"}
    ]
    eventually(lambda: queue.migration() is None)
    assert queue.stored_spec().layout == Layout(before - 1)
    (answer,) = command(app, "lowkiq_resume_migration", "w0@test", queue="gated")
    assert "is not moving to another number of shards" in answer["error"]


def test_remote_control_aborts(app, start_worker, ledger, tmp_path):
    """What runs in a shard of the other number goes back when it has ended."""
    gated = app.tasks["gated"]
    queue = gated.ordered_queue
    start_worker("-Q", "gated,celery", lanes=2)
    before = queue.stored_spec().shards
    (answer,) = command(app, "lowkiq_abort_migration", "w0@test", queue="gated")
    assert "is not moving to another number of shards" in answer["error"]
    layout = Layout(before + 1, before)
    moves = next(name for name in map(str, range(100)) if layout.former_home(name) is not None)
    gated.delay(moves)
    ledger.wait_for("start")
    command(app, "lowkiq_reshard", "w0@test", queue="gated", shards=before + 1)
    eventually(lambda: queue.migration().phase is Phase.MOVE)
    gated.delay(moves)
    (answer,) = command(app, "lowkiq_abort_migration", "w0@test", queue="gated")
    assert answer == {"ok": "aborted the move of queue gated"}
    gated.delay(moves)
    (tmp_path / "gate").touch()
    eventually(lambda: queue.migration() is None)
    assert queue.stored_spec().layout == Layout(before)
    eventually(lambda: len(ledger.lines("end")) >= 2 and queue.stats().length == 0)


def test_nothing_waits_for_a_paused_migration(app, start_worker, ledger):
    record = app.tasks["record"]
    queue = record.ordered_queue
    queue.reshard(4)
    for name in IDS:
        record.delay(name, 1)
    store = context_of(app).store
    store.begin_migration("record", 8)
    mover = store.mover(queue.spec)
    eventually(lambda: mover.turn() and queue.migration().phase is Phase.MOVE)
    assert queue.migration().left == len(IDS)
    queue.pause_migration()
    start_worker("-Q", "record,celery")
    for name in IDS:
        record.delay(name, 2)
    eventually(lambda: sum(len(line["payloads"]) for line in ledger.lines("end")) == 2 * len(IDS))
    assert queue.migration().paused_since is not None
    ran = defaultdict(list)
    for line in ledger.lines("end"):
        ran[line["id"]] += line["payloads"]
    assert [ran[name] for name in IDS] == [[1, 2]] * len(IDS)
