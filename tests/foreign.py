"""Shared tasks of other tests belong to every app of the process."""

from __future__ import annotations

from celery import Celery

from celery_lowkiq import OrderedTask


def drop_shared(app: Celery, module: str) -> None:
    """Leave the app no ordered tasks but those that were defined in the module."""
    foreign = [
        name
        for name, task in app.tasks.items()
        if isinstance(task, OrderedTask) and task.run.__module__ != module
    ]
    for name in foreign:
        del app.tasks[name]
