"""What may be changed, in one table; pages and API offer what stands here."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery_lowkiq.integration.operations.queue import OrderedQueue
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.views import Stats
from celery_lowkiq.store.scripts.progress import Progress

from . import show
from .errors import NotFound

#: A payload is found among so many of its job, those with the smallest scores.
SEARCHED = 1000


@dataclass(frozen=True)
class Target:
    """What of a queue is changed: ids, a shard, or the payload of an id that has this mark."""

    ids: tuple[str, ...] = ()
    shard: int | None = None
    mark: str | None = None
    #: JSON of a new payload.
    value: str | None = None

    @property
    def given(self) -> set[str]:
        """Names of what is there."""
        fields = {"ids": self.ids or None, "shard": self.shard, "mark": self.mark, "value": self.value}
        return {name for name, value in fields.items() if value is not None}


Runs = Callable[[OrderedQueue, Target, Progress], int]
#: What each kind of action needs to be told; nothing else may be given.
NEEDS = {
    "queue": set[str](),
    "all": set[str](),
    "ids": {"ids"},
    "shard": {"shard"},
    "payload": {"ids", "mark"},
    "value": {"ids", "mark", "value"},
}


@dataclass(frozen=True)
class Action:
    """``label`` says what it does (a button), ``effect`` what becomes of the jobs (a question).

    ``on``: what it is done to, a key of NEEDS; "all" is what ``counts`` counts. ``dangerous``: asked about.
    """

    name: str
    label: str
    effect: str
    run: Runs
    on: str = "all"
    counts: Callable[[Stats], int] = lambda stats: stats.length
    dangerous: bool = False
    #: What its count counts; empty: it is done, or there was nothing to do.
    unit: str = "job"

    def total(self, queue: OrderedQueue, target: Target) -> int:
        """How many jobs it will be done to, about. Raises StoreError."""
        return self.counts(queue.stats()) if self.on == "all" else max(1, len(target.ids))

    def check(self, queue: OrderedQueue, target: Target) -> None:
        """Raises InvalidCall when the target is not what the action is done to."""
        needs = NEEDS[self.on]
        if target.given != needs:
            raise InvalidCall(f"action={self.name!r} takes {' and '.join(sorted(needs)) or 'the queue only'}")
        if target.shard is not None and not 0 <= target.shard < queue.spec.shards:
            raise InvalidCall(f"shard={target.shard}: 0 to {queue.spec.shards - 1} are allowed")
        if "mark" in needs and len(target.ids) != 1:
            raise InvalidCall(f"action={self.name!r} takes one id")
        if target.value is not None:
            _new_value(target)


def _payload(queue: OrderedQueue, target: Target) -> bytes:
    """Raises NotFound."""
    waiting = queue.job(target.ids[0], payload_limit=SEARCHED).waiting
    for payload in waiting.payloads if waiting else ():
        if show.mark(payload) == target.mark:
            data: bytes = payload.value
            return data
    raise NotFound("the job waits no more, or has no such payload any more: nothing was changed")


def _new_value(target: Target) -> Any:
    try:
        return json.loads(target.value or "", parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise InvalidCall("the new payload is not JSON: nothing was changed") from None


def _refuse(name: str) -> Any:
    raise ValueError(name)


def _drop(queue: OrderedQueue, target: Target, _: Progress) -> int:
    return int(queue.drop_payload(target.ids[0], _payload(queue, target)))


def _edit(queue: OrderedQueue, target: Target, _: Progress) -> int:
    return int(queue.edit_payload(target.ids[0], _payload(queue, target), _new_value(target)))


def _retries(stats: Stats) -> int:
    return stats.retries


def _dead(stats: Stats) -> int:
    return stats.morgue_length


def _table(*actions: Action) -> dict[str, Action]:
    return {action.name: action for action in actions}


ACTIONS = _table(
    Action(
        "pause",
        "Pause",
        "Nothing new of the queue begins on any node; what runs is finished.",
        lambda queue, *_: int(queue.pause()),
        on="queue",
        unit="",
    ),
    Action(
        "resume", "Resume", "The queue goes on.", lambda queue, *_: int(queue.resume()), on="queue", unit=""
    ),
    Action(
        "pause_shard",
        "Pause",
        "Nothing new of the shard begins; what runs is finished.",
        lambda queue, target, _: int(queue.pause(shard=target.shard)),
        on="shard",
        unit="",
    ),
    Action(
        "resume_shard",
        "Resume",
        "The shard goes on, unless the queue is paused.",
        lambda queue, target, _: int(queue.resume(shard=target.shard)),
        on="shard",
        unit="",
    ),
    Action(
        "pause_ids",
        "Pause",
        "Jobs of these ids are held, also those that come, until the ids are resumed.",
        lambda queue, target, progress: queue.pause_ids(target.ids, progress),
        on="ids",
        unit="id",
    ),
    Action(
        "resume_ids",
        "Resume",
        "Jobs of these ids are due at their own time again.",
        lambda queue, target, progress: queue.resume_ids(target.ids, progress),
        on="ids",
        unit="id",
    ),
    Action(
        "resume_all_ids",
        "Resume all ids",
        "All ids that are paused are resumed.",
        lambda queue, _, progress: queue.resume_all_ids(progress),
        counts=lambda stats: stats.held,
        unit="id",
    ),
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
        "drop_payload",
        "Drop",
        "This payload is deleted; its calls end as REVOKED. The others of the job stay.",
        _drop,
        on="payload",
        dangerous=True,
        unit="payload",
    ),
    Action(
        "edit_payload",
        "Save",
        "This payload is replaced, with the same score; the calls of what stood there end as REVOKED.",
        _edit,
        on="value",
        unit="payload",
    ),
    Action(
        "morgue_queue_up",
        "Queue up",
        "These dead jobs go back to the queue, due now, as new.",
        lambda queue, target, progress: queue.morgue_queue_up(target.ids, progress),
        on="ids",
    ),
    Action(
        "morgue_force_up",
        "Queue up by force",
        "These dead jobs go back to the queue, also payloads that are older than what was done.",
        lambda queue, target, progress: queue.morgue_queue_up(target.ids, progress, force=True),
        on="ids",
        dangerous=True,
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


def action_of(name: str) -> Action:
    """Raises InvalidCall, which lists the known ones."""
    if name not in ACTIONS:
        raise InvalidCall(f"action={name[:100]!r}: allowed are {', '.join(ACTIONS)}")
    return ACTIONS[name]
