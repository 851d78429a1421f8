"""Which ordered queues a worker serves."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from celery import Celery
from celery.signals import celeryd_init

from celery_lowkiq.rules.names import full_names

logger = logging.getLogger("celery_lowkiq.worker")

_OPTIONS = "_lowkiq_worker_options"


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


celeryd_init.connect(_remember_options, weak=False)
