"""Ordered tasks in a Django project: calls that wait for the transaction."""

from __future__ import annotations

import pytest

from tests.worker.users import users_pytest

pytest_plugins = ["pytester"]

SETTINGS = """
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
CELERY_BROKER_URL = "redis://localhost:1/0"
"""
PROJECT = """
import os

if DJANGO:
    os.environ["DJANGO_SETTINGS_MODULE"] = "site_settings"

import django
from celery import Celery, shared_task
from celery.contrib.django.task import DjangoTask

from celery_lowkiq import OrderedTask, ordered_task

app = Celery("proj")
app.config_from_object("site_settings", namespace="CELERY")

@ordered_task
def plain(payloads_by_id): ...

@shared_task(base=OrderedTask)
def by_base(payloads_by_id): ...

@ordered_task(base=DjangoTask)
def named(payloads_by_id): ...

class ByHand(OrderedTask, DjangoTask):
    abstract = True

@ordered_task(base=ByHand)
def by_hand(payloads_by_id): ...
"""
ON_COMMIT = """
import os
import django
import pytest
from proj import app, by_base, by_hand, named, plain

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "site_settings")
django.setup()
from django.db import transaction

@pytest.fixture
def lowkiq_app():
    return app

@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
class TestOnCommit:
    def test_a_call_waits_for_the_commit(self, lowkiq, task):
        with transaction.atomic():
            task.delay_on_commit("1", "x")
            task.apply_async_on_commit(("1", "y"), countdown=60)
            task.perform_async_on_commit({"id": id, "payload": "z"} for id in (1, 2))
            lowkiq.assert_nothing_enqueued(task)
        lowkiq.assert_enqueued(task, "1", "x", "y", "z")
        assert lowkiq.drain(task) == 2

    def test_a_call_of_a_transaction_that_was_rolled_back_is_none(self, lowkiq, task):
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            task.delay_on_commit("1", "x")
            1 / 0
        lowkiq.assert_nothing_enqueued(task)

    def test_outside_of_a_transaction_it_is_a_call(self, lowkiq, task):
        task.delay_on_commit("1", "x")
        lowkiq.assert_enqueued(task, "1", "x")
"""


@pytest.mark.full
@pytest.mark.parametrize(
    "django, tasks",
    [(True, ["plain", "by_base", "named", "by_hand"]), (False, ["named", "by_hand"])],
    ids=["in a Django project", "without Celery's Django fixup"],
)
def test_calls_on_commit(pytester, monkeypatch, django, tasks):
    project = f"DJANGO = {django}\n{PROJECT}"
    passes = users_pytest(pytester, monkeypatch, site_settings=SETTINGS, proj=project)
    passes(ON_COMMIT.replace("TASKS", f"[{', '.join(tasks)}]"), 3 * len(tasks))
