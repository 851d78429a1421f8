"""What the page lets an operator do with a queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from celery_lowkiq.integration.operations.queue import OrderedQueue


@dataclass(frozen=True)
class Action:
    """``run`` gets the queue and the chosen ids, and returns a count for the text ``done``."""

    label: str
    done: str
    run: Callable[[OrderedQueue, Sequence[str]], int]


ACTIONS = {
    "requeue": Action(
        "Requeue", "Dead jobs that are back in the queue: {}.", lambda queue, ids: queue.morgue_queue_up(ids)
    ),
    "requeue-all": Action(
        "Requeue all dead jobs",
        "Dead jobs that are back in the queue: {}.",
        lambda queue, _: queue.morgue_queue_up_all(),
    ),
    "run-now": Action("Run all now", "Jobs that are due now: {}.", lambda queue, _: queue.perform_all_now()),
    "pause": Action("Pause", "The queue is paused: what runs is finished.", lambda queue, _: queue.pause()),
    "resume": Action("Resume", "The queue goes on.", lambda queue, _: queue.resume()),
}


def told(name: str, count: str) -> str:
    """What a page says after an action; nothing for what no action has said."""
    action = ACTIONS.get(name)
    return action.done.format(f"{int(count):,}") if action and count.isdecimal() and len(count) < 16 else ""
