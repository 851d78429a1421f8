"""Plain Flower shows ordered tasks as any other."""

from __future__ import annotations

import pytest

from tests.flower.conftest import tasks
from tests.waiting import eventually


def task(site, task_id, state):
    """What Flower's API says of a call, once that is in the state."""
    found = {one["uuid"]: one for one in tasks(site)}
    return found.get(task_id) if found.get(task_id, {}).get("state") == state else None


def test_a_call_that_succeeded(app, site):
    sent = app.tasks["record"].delay("order-1", {"status": "paid"})
    found = eventually(lambda: task(site, sent.id, "SUCCESS"))
    assert (found["name"], found["worker"]) == ("record", "w0@test")
    assert "'order-1' (1): [{'status': 'paid'}]" in found["args"]
    assert found["received"] <= found["started"] <= found["succeeded"]
    assert found["runtime"] >= 0
    assert site.json(f"/api/task/info/{sent.id}")["state"] == "SUCCESS"


def test_a_call_that_failed_for_good(app, site):
    sent = app.tasks["outcome"].delay("order-2", "fail")
    found = eventually(lambda: task(site, sent.id, "FAILURE"))
    assert found["exception"] == "ValueError('as asked')"
    assert found["retries"] == 1


def test_the_worker_with_its_lanes_and_ordered_queues(site):
    found = eventually(
        lambda: w if "stats" in (w := site.json("/api/workers?refresh=1").get("w0@test", {})) else None
    )
    assert "record" in found["registered"]
    assert [lane["name"] for lane in found["stats"]["lowkiq"]["lanes"]] == [f"lane-{n}" for n in range(4)]
    assert {"record", "outcome", "celery"} <= {queue["name"] for queue in found["active_queues"]}


def test_runs_are_among_flowers_metrics(app, site):
    sent = app.tasks["record"].delay("order-3", "x")
    eventually(lambda: task(site, sent.id, "SUCCESS"))
    text = site.get("/metrics")
    for event in ("received", "started", "succeeded"):
        assert f'flower_events_total{{task="record",type="task-{event}",worker="w0@test"}}' in text
    assert 'flower_task_runtime_seconds_count{task="record",worker="w0@test"}' in text


@pytest.mark.parametrize("path", ["/", "/tasks", "/broker", "/worker/w0@test"])
def test_pages_come(site, path):
    assert "Flower" in site.get(path)
