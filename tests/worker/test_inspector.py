"""Reads over all ordered queues of an app; no worker."""

from __future__ import annotations

import pytest

from celery_lowkiq import InvalidCall
from celery_lowkiq.integration.inspector import Inspector
from tests.waiting import eventually
from tests.worker import proj


@pytest.fixture
def inspector(app):
    return Inspector(app)


def test_an_overview_has_all_queues_and_their_sum(app, inspector):
    app.tasks["record"].perform_async([{"id": n} for n in range(3)])
    app.tasks["batches"].perform_async([{"id": n} for n in range(4)])
    found = inspector.overview()
    assert list(found.by_queue) == sorted(inspector.queues())
    assert (found.by_queue["record"].length, found.by_queue["batches"].length) == (3, 4)
    assert found.total.length == 7


def test_an_overview_of_one_queue(app, inspector):
    app.tasks["record"].perform_async([{"id": 1}])
    assert inspector.overview(["batches"]).total.length == 0


def test_an_unknown_queue_is_refused_with_the_known_ones(inspector):
    with pytest.raises(InvalidCall, match=r"'recrod'.*record"):
        inspector.queue("recrod")


def test_a_checkup_finds_what_is_not_served(inspector, app):
    app.tasks["record"].perform_async([{"id": 1}])
    found = {(finding.subject, finding.level) for finding in inspector.doctor()}
    assert {("connection", "ok"), ("queue record", "error"), ("queue batches", "ok")} <= found


def test_a_checkup_of_a_worker_that_is_well(inspector, start_worker):
    """Tasks that other tests share belong to the app, too."""
    start_worker()
    ours = {"nodes", "queue record", "queue gated", "queue batches", "queue outcome"}
    well = {(subject, "ok") for subject in ours}
    eventually(lambda: {(f.subject, f.level) for f in inspector.doctor() if f.subject in ours} == well)


def test_a_checkup_of_a_server_that_is_away_says_so_without_the_password(tmp_path):
    app = proj.make_app(broker_url="redis://:secret@127.0.0.1:1/0")
    (found,) = Inspector(app).doctor()
    assert (found.level, found.subject) == ("error", "connection")
    assert "secret" not in f"{found}"
