"""Remote control: commands of Celery that ordered queues follow, and their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import click
from billiard.common import TERM_SIGNAME
from celery.utils.functional import maybe_list
from celery.worker import state
from celery.worker.control import Panel, control_command, inspect_command
from kombu import Exchange, Queue
from kombu.utils.uuid import uuid

from celery_lowkiq.integration.actions import VERBS, Target, Verb
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.calls import read_id
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.integration.json_records import plain
from celery_lowkiq.integration.options import FIXED, THREADS, read_rate
from celery_lowkiq.integration.processes.child_runs import runs_in_process
from celery_lowkiq.integration.queue import OrderedQueue
from celery_lowkiq.rules.basics import package_logger as logger
from celery_lowkiq.rules.errors import ConfigurationError, InvalidCall, LowkiqError
from celery_lowkiq.rules.text import in_line

# Celery's remote control commands, where they mean something else for an ordered queue.

Command = Callable[..., Any]

#: Shown as the exchange of an ordered queue, which has none.
STORE = Exchange("lowkiq")


def _instead(ours: Command, name: str = "") -> Command:
    """Put ``ours(step, celerys, **arguments)`` in the place of Celery's command of that name.

    ``celerys()`` does what Celery does. ``name``: by default that of the function.
    """
    name = name or ours.__name__
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
    """Switch the events of the node process, too: this command on, ``disable_events`` off."""
    reply = celerys()
    if step.node is not None:
        step.node.update()
    return reply


_instead(enable_events, "disable_events")


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


# Remote control commands of ordered queues: ``celery inspect lowkiq``, ``celery control lowkiq_...``.
#
# A command that acts on a queue may reach several workers. Sent by Celery's command line it carries a
# ticket, and the worker that takes the ticket first acts for all. Without a ticket each worker acts, and
# all but the first find little left to do.

#: Seconds until a worker replies; an action that takes longer goes on, and its end is logged.
REPLY = 0.5


def ticketed(queue: str) -> list[str]:
    """The queue, and an id of this command; for Celery's command line."""
    return [queue, uuid()]


#: With ``variadic`` Celery's command line passes the last of exactly as many words twice: hence ``job_id``.
_OF_A_QUEUE: dict[str, Any] = {
    "args": [("queue", ticketed), ("job_id", str)],
    "variadic": "ids",
    "signature": "<queue> [id1 [...]]",
}


@inspect_command()
def lowkiq(state: Any, **_: Any) -> Any:
    """Lanes with their shards and runs, and counts of the ordered queues that the worker serves."""
    return _answer(lambda: _picture(_step(state), state))


@inspect_command(args=[("queue", str)], signature="<queue>")
def lowkiq_migration(state: Any, queue: Any = None, **_: Any) -> Any:
    """The move of a queue to another number of shards, with the counts of each shard."""
    return _answer(lambda: plain(Inspector(state.app).queue(_name(queue)[0]).migration()))


def _define(verb: Verb) -> None:
    """Register ``lowkiq_<verb>`` unless all actions of the verb need a question first."""
    on_node = bool(verb.node_reply)
    if not on_node and not (verb.remote(ids=False) and verb.remote(ids=True)):
        return

    def command(state: Any, **given: Any) -> Any:
        return _answer(lambda: _on_node(state, verb) if on_node else _act(state, verb, _read(**given)))

    command.__doc__ = verb.summary if on_node else f"{verb.summary} Without ids: all of the queue."
    control_command(name=f"lowkiq_{verb.name}", **{} if on_node else _OF_A_QUEUE)(command)


def _define_move(verb: Verb) -> None:
    """Register ``lowkiq_<verb>``, whose action moves shards; the reply says in words what it did."""
    (action,) = verb.actions
    words = [("queue", ticketed), *((one.name, click.INT) for one in action.takes)]

    def command(state: Any, queue: Any = None, **given: Any) -> Any:
        target = Target(values={one.name: given.get(one.name) for one in action.takes})
        return _answer(
            lambda: _begin(
                state,
                queue,
                verb.name,
                lambda found: action.said(found.name, target, action.run(found, target)),
            )
        )

    command.__doc__ = verb.summary
    signature = " ".join(f"<{name}>" for name, _ in words)
    control_command(name=f"lowkiq_{verb.name}", args=words, signature=signature)(command)


for _each in VERBS:
    (_define_move if _each.moves else _define)(_each)


def _relay(name: str) -> None:
    """Execute a command of ours in the worker's node process, if it has one."""
    here = Panel.data[name]

    @wraps(here)
    def command(state: Any, **arguments: Any) -> Any:
        step = getattr(getattr(state, "consumer", None), "ordered_queues", None)
        node = getattr(step, "node", None)
        return here(state, **arguments) if node is None else node.command(name, arguments)

    Panel.data[name] = command


#: The worker itself is made quiet, so that its next node process is, too.
_OF_WORKER = {f"lowkiq_{verb.name}" for verb in VERBS if verb.node_reply}
for _name_of in [name for name in Panel.data if name.startswith("lowkiq") and name not in _OF_WORKER]:
    _relay(_name_of)


def _step(state: Any) -> Any:
    """The bootstep. Raises ConfigurationError for a worker of an app without ordered tasks."""
    step = getattr(state.consumer, "ordered_queues", None)
    if step is None or not step.tasks:
        raise ConfigurationError("the app of this worker has no ordered task")
    return step


def _answer(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except LowkiqError as error:
        return {"error": str(error)}


def _picture(step: Any, state: Any) -> dict[str, Any]:
    """Lanes are shown also when Redis is unreachable, and queues beside one that is damaged."""
    served = step.served
    queues = _answer(lambda: plain(Inspector(state.app).overview_json(served)))
    return {**step.snapshot(), "overview": queues}


def _on_node(state: Any, verb: Verb) -> dict[str, str]:
    _step(state).quiet(verb.name == "quiet")
    return {"ok": verb.node_reply}


@dataclass(frozen=True)
class _Command:
    """The queue that a command names, ids of it (None: all), and a ticket."""

    queue: str
    ids: tuple[str, ...] | None = None
    ticket: str | None = None


def _read(queue: Any = None, job_id: Any = None, ids: Any = None, **unknown: Any) -> _Command:
    """Raises InvalidCall: a misread command must not end in an action on all jobs."""
    if unknown:
        raise InvalidCall(f"{', '.join(sorted(unknown))} is invalid: expected only queue and ids")
    name, ticket = _name(queue)
    if ids is not None and not isinstance(ids, (list, tuple)):
        raise InvalidCall(f"ids={ids!r} is invalid: expected a list of ids. Leave it out for all jobs")
    if job_id is not None:
        ids = [job_id, *(ids or ())]
    elif ticket is not None and ids and list(ids) == [name]:
        ids = None  # Celery's command line passes the queue in the variadic part when nothing follows it.
    return _Command(name, None if ids is None else tuple(dict.fromkeys(map(read_id, ids))), ticket)


def _name(queue: Any) -> tuple[str, str | None]:
    if isinstance(queue, str):
        return queue, None
    if not isinstance(queue, (list, tuple)) or list(map(type, queue)) != [str, str]:
        raise InvalidCall(f"queue={queue!r} is invalid: expected the name of an ordered queue")
    name, ticket = queue
    return name, ticket


def _act(state: Any, verb: Verb, command: _Command) -> dict[str, Any]:
    action = verb.remote(ids=command.ids is not None)
    assert action is not None  # _define has looked
    target = Target(command.ids or ())
    given = [command.queue, command.ticket] if command.ticket else command.queue
    return _begin(state, given, verb.name, lambda queue: action.run(queue, target))


def _begin(state: Any, queue: Any, verb: str, act: Callable[[OrderedQueue], object]) -> dict[str, Any]:
    """Act in another thread: the worker's event loop must not wait for a million jobs."""
    name, ticket = _name(queue)
    what = f"{verb} {in_line(name)}"
    reply: dict[str, Any] = {}
    thread = threading.Thread(
        target=_take_and_act, args=(state, name, ticket, act, what, reply), name="lowkiq-command", daemon=True
    )
    thread.start()
    thread.join(REPLY)
    return reply or {"ok": f"{what} goes on: the worker logs its end"}


def _take_and_act(
    state: Any,
    name: str,
    ticket: str | None,
    act: Callable[[OrderedQueue], object],
    what: str,
    reply: dict[str, Any],
) -> None:
    me = state.hostname
    try:
        queue = Inspector(state.app).queue(name)
        taken_by = context_of(state.app).store.take(ticket, me) if ticket else me
        answer = act(queue) if taken_by == me else f"left to {taken_by}"
    except LowkiqError as error:
        logger.error("%s: %s", what, in_line(error))
        reply["error"] = str(error)
        return
    logger.info("%s: %s", what, answer)
    reply["ok"] = answer
