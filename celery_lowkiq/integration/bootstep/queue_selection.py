"""Which ordered queues a worker serves."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from celery import Celery
from celery._state import get_current_worker_task
from celery.signals import celeryd_init, import_modules

from celery_lowkiq.rules.errors import ConfigurationError, InvalidCall
from celery_lowkiq.rules.names import did_you_mean, full_names, listed

logger = logging.getLogger("celery_lowkiq.worker")

_OPTIONS = "_lowkiq_worker_options"
#: By name: only a worker imports Celery's worker, and whatever instruments that comes first.
BOOTSTEP = "celery_lowkiq.integration.bootstep.step:OrderedQueues"
LATE = (
    "this worker does not serve the ordered queues (%s), since their tasks were registered after its start: "
    "calls wait for another worker. Have their modules imported at the start (imports, include)"
)


def ordered_tasks(app: Celery) -> dict[str, Any]:
    """The app's ordered tasks by the names of their queues, sorted by these: Celery registers tasks in an
    order that differs between processes, and all nodes have to deal the same shards.

    Raises ConfigurationError for a shared name.
    """
    from celery_lowkiq.integration.task.task import OrderedTask

    found: dict[str, Any] = {}
    for _, task in sorted(app.tasks.items()):
        if isinstance(task, OrderedTask):
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


def chosen(names: Collection[str], options: Mapping[str, Any]) -> list[str]:
    """The queues among ``names`` that the worker's -Q and -X leave."""
    include, exclude = _listed(options.get("queues")), _listed(options.get("exclude_queues"))
    return [name for name in names if (not include or name in include) and name not in exclude]


def named(names: Collection[str], options: Mapping[str, Any]) -> list[str]:
    """The queues among ``names`` that -Q names."""
    include = _listed(options.get("queues"))
    return [name for name in names if name in include]


def warn_of_weights(names: Collection[str], weights: Collection[str]) -> None:
    """Of ``lowkiq_queue_weights`` that name no ordered queue: most often a typing error."""
    unknown = sorted(set(weights) - set(names))
    if unknown:
        logger.warning(
            "lowkiq_queue_weights names %s, which is no ordered queue of this app: its queues are %s",
            ", ".join(unknown),
            ", ".join(sorted(names)),
        )


def warn_of_short_names(app: Celery, names: Collection[str], options: Mapping[str, Any]) -> None:
    """Of -Q and -X that give the last part of an ordered queue's name: there it may be a broker's queue."""
    declared = {getattr(queue, "name", queue) for queue in app.conf.task_queues or ()}
    for option in ("queues", "exclude_queues"):
        for given in _listed(options.get(option)):
            meant = [name for name in full_names(given, names) if name != given]
            if meant and given not in declared:
                logger.warning(
                    "%s names the broker's queue %s: did you mean the ordered queue %s?",
                    "-Q" if option == "queues" else "-X",
                    given,
                    " or ".join(meant),
                )


def leave_broker_queues(app: Celery, names: Collection[str]) -> None:
    """The broker delivers nothing for -Q's names of ordered queues, unless task_queues has them too."""
    declared = {getattr(queue, "name", queue) for queue in app.conf.task_queues or ()}
    app.amqp.queues.deselect([name for name in names if name not in declared])


def worker_options(app: Celery) -> dict[str, Any]:
    """Options of the worker's command line that the app runs under."""
    found: dict[str, Any] = app.__dict__.get(_OPTIONS, {})
    return found


def _listed(value: Any) -> list[str]:
    if not value:
        return []
    parts = value.split(",") if isinstance(value, str) else value
    return [str(part).strip() for part in parts]


def _remember_options(instance: Any = None, options: Any = None, **_: Any) -> None:
    """Celery keeps -Q and -X to itself, but for this signal."""
    instance.app.__dict__[_OPTIONS] = dict(options or {})


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


celeryd_init.connect(_remember_options, weak=False)
import_modules.connect(_prepare_worker, weak=False)
