"""What remote control commands answer where there is nothing to command, or no store."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from celery_lowkiq import ordered_task
from celery_lowkiq.integration import commands


@pytest.mark.parametrize("command", [commands.lowkiq, commands.lowkiq_quiet, commands.lowkiq_unquiet])
def test_a_worker_of_an_app_without_ordered_tasks_says_so(command):
    state = SimpleNamespace(consumer=SimpleNamespace())
    assert command(state) == {"error": "the app of this worker has no ordered task"}


def test_lanes_are_shown_also_when_redis_is_away(app):
    @ordered_task(app=app, name="orders")
    def orders(payloads_by_id):
        """Never runs."""

    picture = {"quiet": False, "lanes": [{"name": "lane-0", "shards": [], "running": None}]}
    step = SimpleNamespace(served=["orders"], snapshot=lambda: picture)
    found = commands.lowkiq(SimpleNamespace(consumer=SimpleNamespace(ordered_queues=step), app=app))
    assert found["lanes"] == picture["lanes"]
    assert "Redis is not available" in found["queues"]["error"]
