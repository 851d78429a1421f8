"""Celery's remote control commands, where they mean something else for an ordered queue."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from billiard.common import TERM_SIGNAME
from celery.utils.functional import maybe_list
from celery.worker import state
from celery.worker.control import Panel
from kombu import Exchange, Queue

from celery_lowkiq.integration.app.context import context_of
from celery_lowkiq.integration.app.rate_limits import read_rate
from celery_lowkiq.integration.processes.process_runner import runs_in_process
from celery_lowkiq.integration.task.unsupported import FIXED, THREADS
from celery_lowkiq.rules.errors import ConfigurationError

Command = Callable[..., Any]

#: Shown as the exchange of an ordered queue, which has none.
STORE = Exchange("lowkiq")


def _instead(ours: Command) -> Command:
    """Put ``ours(step, celerys, **arguments)`` in the place of Celery's command of that name.

    ``celerys()`` does what Celery does.
    """
    name = ours.__name__
    celerys = Panel.data[name]

    @wraps(celerys)
    def command(state: Any, **arguments: Any) -> Any:
        as_celery = partial(celerys, state, **arguments)
        step = getattr(state.consumer, "ordered_queues", None)
        return as_celery() if step is None else ours(step, as_celery, **arguments)

    Panel.data[name] = command
    return ours


@_instead
def add_consumer(step: Any, celerys: Command, queue: str, **_: Any) -> Any:
    """Serve an ordered queue."""
    return _serve(step, queue, True, f"add consumer {queue}") if step.finds(queue) else celerys()


@_instead
def cancel_consumer(step: Any, celerys: Command, queue: str, **_: Any) -> Any:
    """Stop serving an ordered queue."""
    if queue not in step.tasks:
        return celerys()
    return _serve(step, queue, False, f"no longer consuming from {queue}")


def _serve(step: Any, queue: str, yes: bool, done: str) -> Any:
    try:
        step.serve(queue, yes)
    except ConfigurationError as error:
        return {"error": f"ordered queue {queue}: {error}"}
    return {"ok": done}


@_instead
def rate_limit(step: Any, celerys: Command, task_name: str, rate_limit: Any, **_: Any) -> Any:
    """Limit the ordered queue, too."""
    queues = [queue for queue, task in step.tasks.items() if task.name == task_name]
    if queues:
        try:
            read_rate(rate_limit)
        except ConfigurationError as error:
            return {"error": str(error)}
    reply = celerys()
    for queue in queues:
        step.limit(queue)
    return reply


@_instead
def time_limit(step: Any, celerys: Command, task_name: str | None = None, **_: Any) -> Any:
    """Refuse limits of an ordered task that runs in threads."""
    named = {queue: task for queue, task in step.tasks.items() if task.name == task_name}
    if not all(runs_in_process(task, context_of(task.app).settings) for task in named.values()):
        return {"error": f"time_limit: {THREADS}"}
    reply = celerys()
    for queue in named:
        step.limit(queue)
    return reply


@_instead
def pool_grow(step: Any, celerys: Command, **_: Any) -> Any:
    """Refuse it in a worker with lanes."""
    return {"error": f"pool_grow: {FIXED}"} if step.has_lanes else celerys()


@_instead
def pool_shrink(step: Any, celerys: Command, **_: Any) -> Any:
    """Refuse it in a worker with lanes."""
    return {"error": f"pool_shrink: {FIXED}"} if step.has_lanes else celerys()


@_instead
def active_queues(step: Any, celerys: Command, **_: Any) -> Any:
    """List the ordered queues, too."""
    ordered = [Queue(name, STORE, name).as_dict(recurse=True) for name in step.served]
    return [*celerys(), *ordered]


# -- for lanes in a node process: what Celery knows only of its own process


@_instead
def active(step: Any, celerys: Command, **arguments: Any) -> Any:
    """List the runs of ordered queues, too."""
    return [*celerys(), *_of_node(step, [], "command", "active", arguments)]


Panel.data["dump_active"] = Panel.data["active"]


@_instead
def query_task(step: Any, celerys: Command, **arguments: Any) -> Any:
    """Find the runs of ordered queues, too."""
    return {**celerys(), **_of_node(step, {}, "command", "query_task", arguments)}


@_instead
def revoke(step: Any, celerys: Command, task_id: Any, terminate: bool = False, **arguments: Any) -> Any:
    """Revoke calls that run in the node process there: here they would look as if they did not run."""
    return _revoke(step, celerys, task_id, (arguments.get("signal") or TERM_SIGNAME) if terminate else None)


@_instead
def terminate(step: Any, celerys: Command, signal: Any, task_id: Any, **_: Any) -> Any:
    """As :func:`revoke`."""
    return _revoke(step, celerys, task_id, signal)


def _revoke(step: Any, celerys: Command, task_id: Any, signal: Any) -> Any:
    ids = maybe_list(task_id) or []
    running = _of_node(step, [], "revoke", ids, signal)
    if not running:
        return celerys()
    state.revoked.update(running)
    others = [each for each in ids if each not in running]
    if others:
        celerys(task_id=others)
    return {
        "ok": f"terminate: {', '.join(running)}" if signal else f"tasks {', '.join(ids)} flagged as revoked"
    }


@_instead
def revoke_by_stamped_headers(step: Any, celerys: Command, **arguments: Any) -> Any:
    """Revoke calls of ordered queues, too."""
    _of_node(step, None, "command", "revoke_by_stamped_headers", arguments)
    return celerys()


@_instead
def enable_events(step: Any, celerys: Command, **_: Any) -> Any:
    """Send events of ordered queues, too."""
    return _switch_events(step, celerys)


@_instead
def disable_events(step: Any, celerys: Command, **_: Any) -> Any:
    """Send no events of ordered queues, either."""
    return _switch_events(step, celerys)


def _switch_events(step: Any, celerys: Command) -> Any:
    reply = celerys()
    if step.node is not None:
        step.node.switch_events()
    return reply


@_instead
def pool_restart(step: Any, celerys: Command, **_: Any) -> Any:
    """Restart the node process, too: it has imported the modules by itself."""
    reply = celerys()
    if step.node is not None:
        step.node.restart()
    return reply


def _of_node(step: Any, otherwise: Any, name: str, *about: Any) -> Any:
    """The answer of the worker's node process; ``otherwise`` if it has none."""
    return otherwise if step.node is None else step.node.ask_or(otherwise, name, *about)
