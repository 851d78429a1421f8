"""What may be changed, in one table; pages and API offer what stands here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery_lowkiq.integration.queue import OrderedQueue
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.models import Stats

from .operations import Progress


@dataclass(frozen=True)
class Target:
    """What of a queue is changed."""

    ids: tuple[str, ...] = ()


Runs = Callable[[OrderedQueue, Target, Progress], int]


@dataclass(frozen=True)
class Action:
    """``label`` says what it does (a button), ``effect`` what becomes of the jobs (a question).

    ``on``: what it is done to, "all" that ``counts`` counts, or "ids". ``dangerous``: it is asked about.
    """

    name: str
    label: str
    effect: str
    run: Runs
    on: str = "all"
    counts: Callable[[Stats], int] = lambda stats: stats.length
    dangerous: bool = False

    def total(self, queue: OrderedQueue, target: Target) -> int:
        """How many jobs it will be done to, about. Raises StoreError."""
        return self.counts(queue.stats()) if self.on == "all" else len(target.ids)

    def check(self, target: Target) -> None:
        """Raises InvalidCall when the target is not what the action is done to."""
        if (self.on == "ids") != bool(target.ids):
            needs = "needs ids" if self.on == "ids" else "takes no ids"
            raise InvalidCall(f"action={self.name!r} {needs}")


def _table(*actions: Action) -> dict[str, Action]:
    return {action.name: action for action in actions}


def _retries(stats: Stats) -> int:
    return stats.retries


def _dead(stats: Stats) -> int:
    return stats.morgue_length


ACTIONS = _table(
    Action(
        "perform_all_now",
        "Run all now",
        "All waiting jobs become due now.",
        lambda queue, _, progress: queue.perform_all_now(progress),
    ),
    Action(
        "perform_now",
        "Run now",
        "These waiting jobs become due now.",
        lambda queue, target, progress: queue.perform_now(target.ids, progress),
        on="ids",
    ),
    Action(
        "kill",
        "Bury",
        "These waiting jobs move to the morgue; their calls end as FAILURE.",
        lambda queue, target, progress: queue.kill(target.ids, progress),
        on="ids",
        dangerous=True,
    ),
    Action(
        "kill_all_failed",
        "Bury all",
        "Waiting jobs that failed before move to the morgue; their calls end as FAILURE.",
        lambda queue, _, progress: queue.kill_all_failed(progress),
        counts=_retries,
        dangerous=True,
    ),
    Action(
        "delete_all_failed",
        "Delete all",
        "Waiting jobs that failed before are deleted; their calls end as REVOKED.",
        lambda queue, _, progress: queue.delete_all_failed(progress),
        counts=_retries,
        dangerous=True,
    ),
    Action(
        "delete",
        "Delete",
        "These waiting jobs are deleted; their calls end as REVOKED. What runs goes on.",
        lambda queue, target, progress: queue.delete(target.ids, progress),
        on="ids",
        dangerous=True,
    ),
    Action(
        "morgue_queue_up",
        "Queue up",
        "These dead jobs go back to the queue, due now, as new.",
        lambda queue, target, progress: queue.morgue_queue_up(target.ids, progress),
        on="ids",
    ),
    Action(
        "morgue_queue_up_all",
        "Queue up all",
        "All jobs that are dead now go back to the queue, due now, as new.",
        lambda queue, _, progress: queue.morgue_queue_up_all(progress),
        counts=_dead,
    ),
    Action(
        "morgue_delete",
        "Delete",
        "These dead jobs are deleted.",
        lambda queue, target, progress: queue.morgue_delete(target.ids, progress),
        on="ids",
        dangerous=True,
    ),
    Action(
        "morgue_delete_all",
        "Delete all",
        "All jobs that are dead now are deleted.",
        lambda queue, _, progress: queue.morgue_delete_all(progress),
        counts=_dead,
        dangerous=True,
    ),
)


def action_of(name: Any) -> Action:
    """Raises InvalidCall, which lists the known ones."""
    if name not in ACTIONS:
        raise InvalidCall(f"action={str(name)[:100]!r}: allowed are {', '.join(ACTIONS)}")
    return ACTIONS[name]
