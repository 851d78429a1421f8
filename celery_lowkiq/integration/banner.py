"""The worker's banner, which lists the broker's queues, lists the ordered queues as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.concurrency.thread import TaskPool as ThreadPool
from celery.signals import celeryd_after_setup

from .selection import chosen, ordered_tasks, worker_options


def ordered_lines(tasks: dict[str, Any], served: bool) -> str:
    """A section of the banner; empty without ordered tasks."""
    if not tasks:
        return ""
    rows = [f"  .> {name:<16} shards={task.shards}" for name, task in sorted(tasks.items())]
    head = "[ordered queues]" if served else "[ordered queues, not served: they need -P threads]"
    return "\n".join([head, *rows, ""])


def _list_ordered_queues(instance: Any = None, **_: Any) -> None:
    celerys: Callable[..., str] = instance.startup_info

    def startup_info(*args: Any, **options: Any) -> str:
        tasks = ordered_tasks(instance.app)
        names = chosen(tasks, worker_options(instance.app))
        served = issubclass(instance.pool_cls, ThreadPool)
        return celerys(*args, **options) + "\n" + ordered_lines({name: tasks[name] for name in names}, served)

    instance.startup_info = startup_info


celeryd_after_setup.connect(_list_ordered_queues, weak=False)
