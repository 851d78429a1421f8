"""A queue in use moves to other numbers of shards: nothing is lost, doubled, or out of order."""

from __future__ import annotations

import threading
from collections import defaultdict

from tests.waiting import eventually

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
