"""Remote control commands of ordered queues: ``celery inspect lowkiq``, ``celery control lowkiq_...``.

A command that acts on a queue may reach several workers. Sent by Celery's command line it carries a ticket,
and the worker that is first to take it acts for all. Without one each acts, and finds little left to do.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from celery import Celery
from celery.worker.control import control_command, inspect_command
from kombu.utils.uuid import uuid

from celery_lowkiq.integration.app.context import home_of
from celery_lowkiq.integration.calls.validation import read_id
from celery_lowkiq.integration.operations.inspector import Console, Overview
from celery_lowkiq.integration.operations.queue import OrderedQueue
from celery_lowkiq.rules.errors import ConfigurationError, InvalidCall, LowkiqError

logger = logging.getLogger("celery_lowkiq")

#: A worker replies within so many s; what takes longer goes on, and is logged when it is done.
REPLY = 0.5

#: What an action does to a queue, or to some ids of it; its answer is said to whoever asked.
OnAll = Callable[[OrderedQueue], Any]
OnSome = Callable[..., Any]


def ticketed(queue: str) -> list[str]:
    """The queue, with what tells this command from the next one like it; for Celery's command line."""
    return [queue, uuid()]


#: Celery's command line gives the last of exactly so many words to the variadic part, too: hence ``job_id``.
_OF_A_QUEUE: dict[str, Any] = {
    "args": [("queue", ticketed), ("job_id", str)],
    "variadic": "ids",
    "signature": "<queue> [id1 [...]]",
}


@inspect_command()
def lowkiq(state: Any, **_: Any) -> Any:
    """Lanes with their shards and runs, and counts of the ordered queues that the worker serves."""
    return _answer(lambda: _picture(_step(state), state.app))


@control_command()
def lowkiq_quiet(state: Any, **_: Any) -> Any:
    """Begin nothing new of ordered queues; other workers get the shards. Use -d to name the worker."""
    return _quiet(state, True, "quiet: what runs is finished, and nothing new begins")


@control_command()
def lowkiq_unquiet(state: Any, **_: Any) -> Any:
    """Serve ordered queues again, as before lowkiq_quiet."""
    return _quiet(state, False, "serves ordered queues again")


@control_command(**_OF_A_QUEUE)
def lowkiq_pause(state: Any, **given: Any) -> Any:
    """Pause an ordered queue, or only some ids of it, on all workers."""
    return _act(state, "pause", given, OrderedQueue.pause, OrderedQueue.pause_ids)


@control_command(**_OF_A_QUEUE)
def lowkiq_resume(state: Any, **given: Any) -> Any:
    """Resume an ordered queue, or only some ids of it."""
    return _act(state, "resume", given, OrderedQueue.resume, OrderedQueue.resume_ids)


@control_command(**_OF_A_QUEUE)
def lowkiq_run_now(state: Any, **given: Any) -> Any:
    """Make all jobs of an ordered queue due now, or some of them."""
    return _act(state, "run now", given, OrderedQueue.perform_all_now, OrderedQueue.perform_now)


@control_command(**_OF_A_QUEUE)
def lowkiq_requeue(state: Any, **given: Any) -> Any:
    """Move all dead jobs of an ordered queue back from the morgue, or some of them."""
    return _act(state, "requeue", given, OrderedQueue.morgue_queue_up_all, OrderedQueue.morgue_queue_up)


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


def _picture(step: Any, app: Celery) -> dict[str, Any]:
    """Lanes are shown also when Redis is away, and queues beside one that is damaged."""
    return {**step.snapshot(), "queues": _answer(lambda: _counts(Console(app).overview(step.served)))}


def _counts(found: Overview) -> dict[str, Any]:
    """By queue; of a damaged one what is wrong."""
    damaged = {name: {"error": str(error)} for name, error in found.damaged.items()}
    return {name: asdict(counts) for name, counts in found.by_queue.items()} | damaged


def _quiet(state: Any, yes: bool, done: str) -> Any:
    def quiet() -> dict[str, str]:
        _step(state).quiet(yes)
        return {"ok": done}

    return _answer(quiet)


@dataclass(frozen=True)
class _Asked:
    """What a command named: a queue, perhaps ids of it (None: all), perhaps a ticket."""

    queue: str
    ids: tuple[str, ...] | None = None
    ticket: str | None = None


def _read(queue: Any = None, job_id: Any = None, ids: Any = None, **unknown: Any) -> _Asked:
    """Raises InvalidCall: what is not understood must not end in an action on all."""
    if unknown:
        raise InvalidCall(f"{', '.join(sorted(unknown))}: allowed are queue and ids")
    name, ticket = _name(queue)
    if ids is not None and not isinstance(ids, (list, tuple)):
        raise InvalidCall(f"ids={ids!r}: a list of ids is allowed; without ids it is for all")
    if job_id is not None:
        ids = [job_id, *(ids or ())]
    elif ticket is not None and ids and list(ids) == [name]:
        ids = None  # Celery's command line gives the queue to the variadic part when nothing follows it.
    return _Asked(name, None if ids is None else tuple(dict.fromkeys(map(read_id, ids))), ticket)


def _name(queue: Any) -> tuple[str, str | None]:
    if isinstance(queue, str):
        return queue, None
    if not isinstance(queue, (list, tuple)) or list(map(type, queue)) != [str, str]:
        raise InvalidCall(f"queue={queue!r}: the name of an ordered queue is allowed")
    name, ticket = queue
    return name, ticket


def _act(state: Any, name: str, given: dict[str, Any], on_all: OnAll, on_some: OnSome) -> Any:
    return _answer(lambda: _begin(state, name, _read(**given), on_all, on_some))


def _begin(state: Any, name: str, asked: _Asked, on_all: OnAll, on_some: OnSome) -> dict[str, Any]:
    """In a thread of its own: the worker's event loop must not wait for a million jobs."""
    act = on_all if asked.ids is None else partial(on_some, ids=asked.ids)
    what = f"{name} {asked.queue}"
    reply: dict[str, Any] = {}
    thread = threading.Thread(
        target=_take_and_act, args=(state, asked, act, what, reply), name="lowkiq-command", daemon=True
    )
    thread.start()
    thread.join(REPLY)
    return reply or {"ok": f"{what} goes on: the worker logs its end"}


def _take_and_act(state: Any, asked: _Asked, act: OnAll, what: str, reply: dict[str, Any]) -> None:
    me = state.hostname
    try:
        queue = Console(state.app).queue(asked.queue)
        taken_by = home_of(state.app).store.take(asked.ticket, me) if asked.ticket else me
        answer = act(queue) if taken_by == me else f"left to {taken_by}"
    except LowkiqError as error:
        logger.error("%s: %s", what, error)
        reply["error"] = str(error)
        return
    logger.info("%s: %s", what, answer)
    reply["ok"] = answer
