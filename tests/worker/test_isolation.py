"""O7: a batch that failed as a whole is halved until its jobs run alone, and only who fails alone dies."""

from __future__ import annotations

from itertools import pairwise

import pytest

from celery_lowkiq.rules.text import last_error_line
from tests.marks import first_often
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def more_tasks(monkeypatch):
    """The project has the tasks of this file, too."""
    monkeypatch.setenv("PROJ_MORE", "1")


def run_to_the_end(app, start_worker, name, innocents):
    """The statistics of the queue after a bad payload and ``innocents`` others, called before a worker is."""
    task = app.tasks[name]
    calls = [{"id": f"innocent-{n}", "payload": "good"} for n in range(innocents)]
    calls.insert(innocents // 2, {"id": "culprit", "payload": "bad"})
    task.perform_async(calls)
    start_worker()

    def all_over():
        stats = task.ordered_queue.stats()
        return stats if stats.length == stats.busy == 0 else None

    return eventually(all_over, 60.0)


def sizes(ledger):
    return [len(line["ids"]) for line in ledger.lines("charge")]


@pytest.mark.parametrize(
    "name, others", first_often([("charge", 3), ("charge once", 3), ("charge many", 99)])
)
def test_o7_a_bad_payload_does_not_bury_its_neighbours(app, start_worker, ledger, name, others):
    stats = run_to_the_end(app, start_worker, name, others)
    (dead,) = app.tasks[name].ordered_queue.morgue().items
    assert (dead.id, last_error_line(dead.error)) == ("culprit", "ValueError: one of them is bad")
    assert (stats.processed, stats.morgue_length) == (others, 1)


@pytest.mark.parametrize("name, others", first_often([("charge", 3), ("charge many", 99)]))
def test_o7_a_batch_that_failed_is_at_least_halved(app, start_worker, ledger, name, others):
    run_to_the_end(app, start_worker, name, others)
    of_culprit = [len(line["ids"]) for line in ledger.lines("charge") if "culprit" in line["ids"]]
    assert of_culprit[0] == others + 1
    assert all(after <= max(1, before // 2) for before, after in pairwise(of_culprit))
    assert of_culprit[-1] == 1


def test_o7_lowkiqs_way_buries_the_whole_batch(app, start_worker, ledger):
    stats = run_to_the_end(app, start_worker, "as lowkiq", 3)
    assert (stats.processed, stats.morgue_length) == (0, 4)
    assert sizes(ledger) == [4, 4, 4]
