"""An app that looks for its tasks."""

from __future__ import annotations

from celery import Celery

app = Celery("discovering")
app.autodiscover_tasks(["tests.cli.elsewhere"])
