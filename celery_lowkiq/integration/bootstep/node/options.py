"""Options of a node process, its connections, and its order to stop."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from celery import Celery
from celery.concurrency.thread import TaskPool
from celery.platforms import EX_OK
from celery.worker import state

# Options that the node process takes from the worker at its start.


@dataclass(frozen=True)
class Wanted:
    """The state of the lanes that operators want: sent at the start of a node process and at each change."""

    served: frozenset[str]
    is_quiet: bool
    #: :func:`task_limits` by queue.
    task_limits: Mapping[str, Mapping[str, Any]]
    #: The groups of events that are sent: see :func:`.events.groups_of`.
    events: tuple[str, ...] | None


@dataclass(frozen=True)
class NodeOptions:
    """Options of the worker, and its state at the start of the node process."""

    #: ``module:variable``.
    app: str
    hostname: str
    #: Attributes of the worker: ``concurrency``, limits of runs (None: no limit), and others.
    of_worker: Mapping[str, Any]
    colorize: bool | None
    wanted: Wanted
    #: :func:`.app_reference.modules_of`, and of tasks that were registered after the start.
    modules: tuple[str, ...] = ()
    #: Settings that the command line or signals have changed.
    changes: Mapping[str, Any] = field(default_factory=dict)
    revoked: tuple[str, ...] = ()
    revoked_stamps: Mapping[str, Any] = field(default_factory=dict)


class NodeWorker:
    """Stand-in of Celery's worker in the node process: the sender of ``worker_init``, with limits of runs."""

    pool_cls: type = TaskPool

    def __init__(self, app: Celery, options: NodeOptions) -> None:
        self.app = app
        self.hostname: str = options.hostname
        vars(self).update(options.of_worker)


def changed_settings(app: Celery) -> dict[str, Any]:
    """Return the settings that were changed after the app was made, as far as they are plain values."""
    return {name: value for name, value in dict(app.conf.changes or {}).items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    return value is None or type(value) in (str, bytes, bool, int, float)


def task_limits(task: Any) -> dict[str, Any]:
    """Return the attributes of a task that remote control may have changed."""
    return {name: getattr(task, name) for name in ("rate_limit", "time_limit", "soft_time_limit")}


def revoked_calls() -> dict[str, Any]:
    """Return the fields of NodeOptions about revoked calls."""
    stamps = {name: list(values) for name, values in state.revoked_stamps.items()}
    return {"revoked": tuple(state.revoked), "revoked_stamps": stamps}


# The order to stop, which the worker gives the node process at once, also in a signal handler.


class StopOrder:
    """The handler of stop signals, which others may send, too: the order is what the worker has written."""

    def __init__(self, end: int) -> None:
        """``end``: the file descriptor of the pipe."""
        os.set_blocking(end, False)
        self._end = end
        #: Called at the order. Before the lanes begin, there is nothing to wait for.
        self.stop: Callable[[], Any] = lambda: os._exit(EX_OK)

    def on_signal(self, *_: Any) -> None:
        """Stop if the worker says so."""
        try:
            ordered = os.read(self._end, 1)
        except BlockingIOError:
            return
        if ordered:
            self.stop()
