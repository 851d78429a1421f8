"""The ordered tasks that are registered in an app, and their queues by name."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from celery import Celery
from celery._state import get_current_worker_task
from celery.signals import import_modules

from celery_lowkiq.rules.errors import ConfigurationError, InvalidCall
from celery_lowkiq.rules.names import did_you_mean, full_names, listed

logger = logging.getLogger("celery_lowkiq.worker")

#: By name: only a worker imports Celery's worker, and whatever instruments that comes first.
BOOTSTEP = "celery_lowkiq.integration.bootstep.step:OrderedQueues"
LATE = (
    "this worker does not serve the ordered queues (%s), since their tasks were registered after its start: "
    "calls wait for another worker. Have their modules imported at the start (imports, include)"
)


class OrderedTaskMarker:
    """Base class by which packages below ``task`` recognise an ordered task."""

    queue_name: str | None


def ordered_tasks(app: Celery) -> dict[str, Any]:
    """The app's ordered tasks by the names of their queues, sorted by these: Celery registers tasks in an
    order that differs between processes, and all nodes have to deal the same shards.

    Raises ConfigurationError for a shared name.
    """
    found: dict[str, Any] = {}
    for _, task in sorted(app.tasks.items()):
        if isinstance(task, OrderedTaskMarker):
            name = task.queue_name or task.name
            if name in found:
                raise ConfigurationError(
                    f"queue_name={name!r} belongs to {found[name].name} and to {task.name}: "
                    "every ordered task has a queue of its own"
                )
            found[name] = task
    return dict(sorted(found.items()))


def read_queue_name(given: str, known: Collection[str]) -> str:
    """The ordered queue that a person means: its name, or the last part of it where only one queue ends so.
    Raises InvalidCall, which suggests names.
    """
    found = full_names(given, known)
    if len(found) == 1:
        return found[0]
    if found:
        expected, advice = "the name of one ordered queue", f"Several end so: {listed(found)}"
    else:
        expected = "an ordered queue of the app"
        advice = did_you_mean(given, known) or f"The app has {listed(known) or 'none: does -A name it?'}"
    raise InvalidCall(f"queue={given[:100]!r} is invalid: expected {expected}. {advice}")


def check_names(app: Celery) -> None:
    """Raises ConfigurationError when two ordered tasks share a queue."""
    ordered_tasks(app)


def add_step(app: Celery, queue: str) -> None:
    """Have the app's workers serve ordered queues. Warns in a run of a worker that started without that step:
    nothing else of it would ever learn of the queue.
    """
    steps = app.steps["consumer"]
    if BOOTSTEP not in steps and get_current_worker_task() is not None:
        logger.warning(LATE, queue)
    steps.add(BOOTSTEP)


def _prepare_worker(sender: Any = None, **_: Any) -> None:
    """The first ordered task of an app may be registered while its worker runs."""
    sender.steps["consumer"].add(BOOTSTEP)


import_modules.connect(_prepare_worker, weak=False)
