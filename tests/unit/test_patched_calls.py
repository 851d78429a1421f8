"""Tests of users patch Celery's methods so that nothing is called: that holds for ordered tasks, too."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import pytest
from celery import Celery, group

from celery_lowkiq import ordered_task
from celery_lowkiq.store.push import Pusher

WAYS = {
    "delay": lambda task: task.delay("1", "paid"),
    "apply_async": lambda task: task.apply_async(("1", "paid"), score=7),
    "signature": lambda task: task.s("1", "paid").delay(),
    "group": lambda task: group([task.si("1", "paid")], app=task.app).delay(),
    "send_task": lambda task: task.app.send_task("sync", ("1", "paid")),
    "adelay": lambda task: asyncio.run(task.adelay("1", "paid")),
    "aapply_async": lambda task: asyncio.run(task.aapply_async(("1", "paid"), countdown=5)),
}
#: By the method that a test patches, the ways of calling that it stops, as of a plain task.
STOPPED = {
    "celery.app.task.Task.delay": ["delay", "adelay"],
    "celery.app.task.Task.apply_async": [way for way in WAYS if way != "send_task"],
    "celery.app.base.Celery.send_task": list(WAYS),
}


def save(order_id, status="new"): ...


def batch(payloads_by_id): ...


@pytest.mark.parametrize("options", [{"by": "order_id"}, {}], ids=["in place", "by id"])
@pytest.mark.parametrize(
    ("method", "way"), [(method, way) for method, ways in STOPPED.items() for way in ways]
)
def test_a_patched_method_of_celery_stops_calls(monkeypatch, options, method, way):
    stored = []
    monkeypatch.setattr(Pusher, "push", lambda self, *args: stored.append(args))
    app = Celery("patched", broker="redis://localhost:1/0", set_as_current=False)
    ordered_task(app=app, name="sync", **options)(save if options else batch)
    with patch(method) as patched:
        WAYS[way](app.tasks["sync"])
    assert (patched.call_count, stored) == (1, [])
