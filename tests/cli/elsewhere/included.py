"""An app that names its tasks by ``include``."""

from __future__ import annotations

from celery import Celery

app = Celery("included", include=["tests.cli.elsewhere.tasks"])
