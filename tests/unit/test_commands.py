"""What remote control commands answer where there is nothing to command, or no store."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from celery_lowkiq import ordered_task
from celery_lowkiq.integration import commands
from celery_lowkiq.integration.queue import OrderedQueue
from tests.waiting import eventually


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


def test_what_takes_longer_than_a_reply_may_goes_on_and_is_logged(app, monkeypatch, caplog):
    @ordered_task(app=app, name="orders")
    def orders(payloads_by_id):
        """Never runs."""

    gate = threading.Event()
    monkeypatch.setattr(OrderedQueue, "perform_all_now", lambda queue: gate.wait(30) and 1_000_000)
    monkeypatch.setattr(commands, "REPLY", 0.05)
    caplog.set_level("INFO", "celery_lowkiq")
    found = commands.lowkiq_run_now(SimpleNamespace(app=app, hostname="w@h"), queue="orders")
    assert found == {"ok": "run now orders goes on: the worker logs its end"}
    gate.set()
    eventually(lambda: "run now orders: 1000000" in caplog.messages)
