"""Adds the ordered queues to the worker's startup banner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.signals import celeryd_after_setup

from celery_lowkiq.integration.app.registry import ordered_tasks, worker_options

from .queue_selection import chosen


def banner_section(tasks: dict[str, Any], obstacle: str) -> str:
    """Return a section of the banner; empty without tasks. ``obstacle``: why they are not served, or ""."""
    if not tasks:
        return ""
    rows = [f"  .> {name:<16} shards={task.shards}" for name, task in sorted(tasks.items())]
    head = f"[ordered queues, not served: {obstacle}]" if obstacle else "[ordered queues]"
    return "\n".join([head, *rows, ""])


def _list_ordered_queues(instance: Any = None, **_: Any) -> None:
    celery_info: Callable[..., str] = instance.startup_info

    def startup_info(*args: Any, **options: Any) -> str:
        tasks = ordered_tasks(instance.app)
        names = chosen(tasks, worker_options(instance.app))
        obstacle = instance.consumer.ordered_queues.obstacle if names else ""
        ordered = banner_section({name: tasks[name] for name in names}, obstacle)
        return f"{celery_info(*args, **options)}\n{ordered}"

    instance.startup_info = startup_info


celeryd_after_setup.connect(_list_ordered_queues, weak=False)
