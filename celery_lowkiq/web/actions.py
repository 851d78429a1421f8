"""What may be changed, in one table; pages and API offer what stands here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from celery_lowkiq.integration.queue import OrderedQueue
from celery_lowkiq.rules.models import Stats

from .operations import Progress

Runs = Callable[[OrderedQueue, Sequence[str], Progress], int]


@dataclass(frozen=True)
class Action:
    """``label`` says what it does (a button), ``effect`` what becomes of the jobs (a question).

    ``on_ids``: it takes ids; else it is for all jobs that ``counts`` counts. ``dangerous``: asked about.
    """

    name: str
    label: str
    effect: str
    run: Runs
    on_ids: bool = False
    counts: Callable[[Stats], int] = lambda stats: stats.length
    dangerous: bool = False


def _table(*actions: Action) -> dict[str, Action]:
    return {action.name: action for action in actions}


ACTIONS = _table(
    Action(
        "perform_all_now",
        "Run all now",
        "All waiting jobs become due now.",
        lambda queue, _, progress: queue.perform_all_now(progress),
    ),
    Action(
        "kill_all_failed",
        "Bury all retries",
        "Waiting jobs that failed before move to the morgue; their calls end as FAILURE.",
        lambda queue, _, progress: queue.kill_all_failed(progress),
        counts=lambda stats: stats.retries,
        dangerous=True,
    ),
    Action(
        "delete_all_failed",
        "Delete all retries",
        "Waiting jobs that failed before are deleted; their calls end as REVOKED.",
        lambda queue, _, progress: queue.delete_all_failed(progress),
        counts=lambda stats: stats.retries,
        dangerous=True,
    ),
    Action(
        "delete",
        "Delete",
        "These waiting jobs are deleted; their calls end as REVOKED. What runs goes on.",
        lambda queue, ids, progress: queue.delete(ids, progress),
        on_ids=True,
        dangerous=True,
    ),
    Action(
        "morgue_queue_up",
        "Queue up",
        "These dead jobs go back to the queue, due now, as new.",
        lambda queue, ids, progress: queue.morgue_queue_up(ids, progress),
        on_ids=True,
    ),
    Action(
        "morgue_queue_up_all",
        "Queue up all",
        "All jobs that are dead now go back to the queue, due now, as new.",
        lambda queue, _, progress: queue.morgue_queue_up_all(progress),
        counts=lambda stats: stats.morgue_length,
    ),
    Action(
        "morgue_delete",
        "Delete",
        "These dead jobs are deleted.",
        lambda queue, ids, progress: queue.morgue_delete(ids, progress),
        on_ids=True,
        dangerous=True,
    ),
    Action(
        "morgue_delete_all",
        "Delete all",
        "All jobs that are dead now are deleted.",
        lambda queue, _, progress: queue.morgue_delete_all(progress),
        counts=lambda stats: stats.morgue_length,
        dangerous=True,
    ),
)
