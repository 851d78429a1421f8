"""A call keeps its record until its result is written, whoever dies meanwhile."""

from __future__ import annotations

import pytest

from celery_lowkiq.store.keys import shard_keys
from tests.waiting import eventually


def records(task):
    redis = task.ordered_queue._context.store.client.servers.redis
    return sum(redis.zcard(shard_keys(shard)["calls"]) for shard in task.queue_spec.shard_refs())


@pytest.fixture
def settings(settings):
    """With results."""
    return {**settings, "result_backend": settings["broker_url"], "task_ignore_result": False}


def test_the_next_worker_gives_the_result(app, start_worker, ledger, tmp_path):
    gated = app.tasks["gated"]
    results = [gated.delay("1", n) for n in range(2)]
    node = start_worker()
    ledger.wait_for("start")
    node.kill("SIGKILL")
    node.exit_status()
    assert [result.state for result in results] == ["PENDING"] * 2
    assert records(gated) == 2
    (tmp_path / "gate").touch()
    start_worker()
    assert [result.get(30) for result in results] == [None] * 2
    eventually(lambda: records(gated) == 0)
