"""What runs the jobs of an engine in this process through Celery's tracer."""

from __future__ import annotations

from types import SimpleNamespace

from celery import Celery
from celery.app.trace import build_tracer

from celery_lowkiq.integration.app import context_of, ordered_tasks
from celery_lowkiq.integration.runner import CeleryRunner
from celery_lowkiq.store.call_records import CallReader
from tests.worker.engine import open_store


def celery_runner(app: Celery, path: str) -> CeleryRunner:
    """A runner of the app's ordered tasks; ``path`` leads to Redis."""
    tasks = ordered_tasks(app)
    for task in tasks.values():
        task.__trace__ = build_tracer(task.name, task, app.loader, "host", app=app)
    consumer = SimpleNamespace(app=app, hostname="host", event_dispatcher=None)
    context = context_of(app)
    return CeleryRunner(tasks, consumer, context, CallReader(open_store(path).client), context.tracker_store)
