"""What remote control commands answer where there is nothing to command, or no store."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import click
import pytest
from celery.worker.control import Panel

from celery_lowkiq import ordered_task
from celery_lowkiq.integration.bootstep import remote_control
from celery_lowkiq.integration.queue import OrderedQueue
from tests.waiting import eventually


@pytest.mark.parametrize("command", ["lowkiq", "lowkiq_quiet", "lowkiq_unquiet"])
def test_a_worker_of_an_app_without_ordered_tasks_says_so(command):
    state = SimpleNamespace(consumer=SimpleNamespace())
    assert Panel.data[command](state) == {"error": "the app of this worker has no ordered task"}


def test_lanes_are_shown_also_when_redis_is_away(app):
    @ordered_task(app=app, name="orders")
    def orders(payloads_by_id):
        """Never runs."""

    picture = {"quiet": False, "lanes": [{"name": "lane-0", "shards": [], "running": None}]}
    step = SimpleNamespace(tasks={"orders": None}, served=["orders"], snapshot=lambda: picture)
    found = remote_control.lowkiq(SimpleNamespace(consumer=SimpleNamespace(ordered_queues=step), app=app))
    assert found["lanes"] == picture["lanes"]
    assert "Redis is not available" in found["overview"]["error"]


def test_what_takes_longer_than_a_reply_may_goes_on_and_is_logged(app, monkeypatch, caplog):
    @ordered_task(app=app, name="orders")
    def orders(payloads_by_id):
        """Never runs."""

    gate = threading.Event()
    monkeypatch.setattr(OrderedQueue, "run_now_all", lambda queue, progress: gate.wait(30) and 1_000_000)
    monkeypatch.setattr(remote_control, "REPLY", 0.05)
    caplog.set_level("INFO", "celery_lowkiq")
    found = Panel.data["lowkiq_run_now"](SimpleNamespace(app=app, hostname="w@h"), queue="orders")
    assert found == {"ok": "run_now orders goes on: the worker logs its end"}
    gate.set()
    eventually(lambda: "run_now orders: 1000000" in caplog.messages)


@pytest.fixture
def acted(app, monkeypatch):
    """What was done, to which ids; None: to all."""

    @ordered_task(app=app, name="orders")
    def orders(payloads_by_id):
        """Never runs."""

    done = []
    monkeypatch.setattr(OrderedQueue, "requeue_all", lambda queue, progress: done.append(None) or 7)
    monkeypatch.setattr(OrderedQueue, "requeue", lambda queue, ids, progress: done.append(ids) or len(ids))
    return done


def requeue(app, **given):
    return Panel.data["lowkiq_requeue"](SimpleNamespace(app=app, hostname="w@h"), **given)


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        ({}, None),
        ({"ids": None}, None),
        ({"ids": []}, ()),
        ({"ids": ["12", 3, "3"]}, ("12", "3")),
        ({"job_id": "1"}, ("1",)),
    ],
)
def test_only_a_command_without_ids_is_for_all(app, acted, given, ids):
    assert requeue(app, queue="orders", **given) == {"ok": 7 if ids is None else len(ids)}
    assert acted == [ids]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"queue": "orders", "ids": "12"}, "ids='12' is invalid: expected a list of ids"),
        ({"queue": "orders", "ids": 7}, "ids=7 is invalid"),
        ({"queue": "orders", "ids": {"1": 2}}, "a list of ids"),
        ({"queue": "orders", "ids": ["12", None]}, "id=None is invalid"),
        ({"queue": "orders", "id": ["1"]}, "id is invalid: expected only queue and ids"),
        ({"queue": 5}, "queue=5 is invalid: expected the name of an ordered queue"),
        ({"queue": ["orders"]}, "queue=['orders'] is invalid"),
        ({"queue": ["orders", 5]}, "queue=['orders', 5] is invalid"),
        ({}, "queue=None is invalid"),
    ],
)
def test_what_is_not_understood_is_refused_and_nothing_is_done(app, acted, given, said):
    assert said in requeue(app, **given)["error"]
    assert acted == []


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ({"ids": ["orders"]}, None),
        ({"job_id": "1", "ids": ["1"]}, ("1",)),
        ({"job_id": "1", "ids": ["2"]}, ("1", "2")),
    ],
)
def test_what_the_command_line_makes_of_its_words(words, ids):
    assert remote_control._read(remote_control.ticketed("orders"), **words).ids == ids


def test_a_number_of_shards_is_read_from_the_command_line():
    _, (_, read) = Panel.meta["lowkiq_reshard"].args
    assert read("48") == 48
    with pytest.raises(click.BadParameter, match="not a valid integer"):
        read("many")
