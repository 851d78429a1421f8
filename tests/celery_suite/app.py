"""The app of a worker that is a process of its own, for pools and processes whose children import it."""

from __future__ import annotations

import os

from celery import Celery

from tests.celery_suite.plugin import MODULE, order_tasks

order_tasks()
app = Celery(
    "suite",
    broker=os.environ["TEST_BROKER"],
    backend=os.environ["TEST_BACKEND"],
    include=[MODULE, "celery.contrib.testing.tasks"],
)
app.conf.result_extended = True


@app.on_after_finalize.connect
def add_class_tasks(sender: Celery, **_: object) -> None:
    """Register the task that is a class, as the tests' own worker does."""
    from t.integration.tasks import ClassBasedAutoRetryTask

    sender.register_task(ClassBasedAutoRetryTask())
