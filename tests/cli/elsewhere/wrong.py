"""An app with a task that is wrong, in a module that is imported late."""

from __future__ import annotations

from celery import Celery

app = Celery("wrong", include=["tests.cli.elsewhere.wrong_tasks"])
