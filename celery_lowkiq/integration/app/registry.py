"""Registry: the ordered tasks of an app, by the names of their queues."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from celery import Celery
from celery._state import get_current_worker_task
from celery.signals import celeryd_init, import_modules

from celery_lowkiq.rules.errors import ConfigurationError, InvalidCall
from celery_lowkiq.rules.loggers import worker_logger as logger
from celery_lowkiq.rules.names import did_you_mean, full_names, listed

#: By name, so that only a worker imports it, after anything that instruments Celery's worker.
BOOTSTEP = "celery_lowkiq.integration.bootstep.step:OrderedQueues"
_OPTIONS = "_lowkiq_worker_options"
LATE = (
    "this worker does not serve the ordered queues (%s), since their tasks were registered after its start: "
    "calls wait for another worker. Import their modules at the start (imports, include)"
)


class OrderedTaskMarker:
    """Base class by which packages below ``task`` recognise an ordered task."""

    queue_name: str | None


def ordered_tasks(app: Celery) -> dict[str, Any]:
    """Return the app's ordered tasks by queue name, sorted, so that all nodes deal shards in the same order.

    Raises ConfigurationError when two tasks share a queue.
    """
    by_queue: dict[str, Any] = {}
    for _, task in sorted(app.tasks.items()):
        if isinstance(task, OrderedTaskMarker):
            name = task.queue_name or task.name
            if name in by_queue:
                raise ConfigurationError(
                    f"queue_name={name!r} belongs to {by_queue[name].name} and to {task.name}: "
                    "every ordered task needs a queue of its own"
                )
            by_queue[name] = task
    return dict(sorted(by_queue.items()))


def read_queue_name(given: str, known: Collection[str]) -> str:
    """Return the ordered queue with the given name or unambiguous last part of a name.

    Raises InvalidCall, which suggests names.
    """
    candidates = full_names(given, known)
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        expected, advice = "the name of one ordered queue", f"Several end so: {listed(candidates)}"
    else:
        expected = "an ordered queue of the app"
        advice = did_you_mean(given, known) or f"The app has {listed(known) or 'none: does -A name it?'}"
    raise InvalidCall(f"queue={given[:100]!r} is invalid: expected {expected}. {advice}")


def check_names(app: Celery) -> None:
    """Raise ConfigurationError when two ordered tasks share a queue."""
    ordered_tasks(app)


def add_step(app: Celery, queue: str) -> None:
    """Add the bootstep that serves ordered queues to the app's workers.

    In a running worker that started without the step, log a warning: it cannot serve the queue any more.
    """
    steps = app.steps["consumer"]
    if BOOTSTEP not in steps and get_current_worker_task() is not None:
        logger.warning(LATE, queue)
    steps.add(BOOTSTEP)


def worker_options(app: Celery) -> dict[str, Any]:
    """Return the command line options of the app's worker."""
    options: dict[str, Any] = app.__dict__.get(_OPTIONS, {})
    return options


def _remember_options(instance: Any = None, options: Any = None, **_: Any) -> None:
    # Celery exposes -Q and -X only by this signal.
    instance.app.__dict__[_OPTIONS] = dict(options or {})


def _prepare_worker(sender: Any = None, **_: Any) -> None:
    # The first ordered task of an app may be registered while its worker runs.
    sender.steps["consumer"].add(BOOTSTEP)


# The worker sends these before it imports the bootstep.
celeryd_init.connect(_remember_options, weak=False)
import_modules.connect(_prepare_worker, weak=False)
