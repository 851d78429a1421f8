"""Database connections of lanes: threads that live as long as their worker."""

from __future__ import annotations

import os
import sqlite3
from functools import partial

import psutil
import pytest

from celery_lowkiq import OrderedTask
from tests.processes import ROOT
from tests.waiting import eventually
from tests.worker.nodes import worker

SITE = """
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "%(database)s"}}
CELERY_BROKER_URL = "%(url)s"
CELERY_LOWKIQ_SERVER_MIDDLEWARES = ["examples.middlewares.log_runs"]
"""
PROJECT = """
import os

os.environ["DJANGO_SETTINGS_MODULE"] = "site_settings"

from celery import Celery
from celery_lowkiq import ordered_task

app = Celery("proj")
app.config_from_object("site_settings", namespace="CELERY")

@ordered_task(app=app, shared=False, name="site", shards=2, retry_in=0.01)
def site(payloads_by_id):
    from django.db import connection

    (payloads,) = payloads_by_id.values()
    left_over = connection.connection is not None
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO runs VALUES (%s, %s)", [payloads[-1], left_over])
    if payloads[-1] == "breaks":
        # As a server that became unreachable does: what is left cannot be used any more.
        connection.connection.close()
    if payloads[-1] == "fails":
        raise ValueError("after the query")
"""


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "site.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE runs (payload, left_over)")
    return path


def rows(database):
    with sqlite3.connect(database) as connection:
        return connection.execute("SELECT payload, left_over FROM runs").fetchall()


def is_open(database, pid):
    return str(database) in {file.path for file in psutil.Process(pid).open_files()}


@pytest.fixture
def site(app, settings, tmp_path, database):
    """A call of the project's task, and the worker of the project."""
    url = settings["broker_url"]
    (tmp_path / "site_settings.py").write_text(SITE % {"database": database, "url": url})
    (tmp_path / "site_proj.py").write_text(PROJECT)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    node = worker(app, tmp_path / "worker.log", module="site_proj", lanes=1, PYTHONPATH=path)
    try:
        eventually(lambda: node.ready() or node.container.status == "exited", 40)
        assert node.ready(), node.logs()
        task = type("Site", (OrderedTask,), {"name": "site", "shards": 2, "run": lambda self, batch: None})
        yield app.register_task(task()), node
    finally:
        node.teardown()


@pytest.mark.full
def test_djangos_are_closed_after_each_batch_and_a_broken_one_is_replaced(site, database):
    task, node = site
    for number, payload in enumerate(["first", "breaks", "fails", "last"], start=1):
        task.delay(payload, payload)
        eventually(partial(lambda n: len(rows(database)) >= n, number))
    eventually(lambda: ("last", 0) in rows(database))
    assert {left_over for _, left_over in rows(database)} == {0}
    eventually(lambda: task.ordered_queue.stats().processed >= 3)
    eventually(lambda: not is_open(database, node.container.process.pid))
    assert "site of {'first': 1} done in" in node.logs()
