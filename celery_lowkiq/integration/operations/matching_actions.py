"""Actions on the failing or dead jobs that match a filter."""

from __future__ import annotations

from functools import partial

from celery_lowkiq.rules.text import lacking
from celery_lowkiq.store.scripts.progress import Progress

from .action_parts import LIMIT, MATCHING, MATCHING_DEAD, MATCHING_FAILED, RATE, Action, Target
from .failures_mixin import Matches
from .job_filters import read_filter, read_rate
from .queue import OrderedQueue


def _matches(queue: OrderedQueue, target: Target, *, dead: bool) -> Matches:
    return queue.matching(read_filter(target.values), dead=dead)


def _match_plan(queue: OrderedQueue, target: Target, *, dead: bool) -> str:
    found = _matches(queue, target, dead=dead)
    kind = "dead" if dead else "failed"
    plan = f"{found.count:,} {kind} jobs match: searched {found.searched:,} of {found.jobs:,}."
    return " ".join([plan, *lacking(found.away)])


def matching(
    name: str, label: str, change: str, effect: str, *, dead: bool, options: tuple[str, ...] = ()
) -> Action:
    """An action on the jobs that match a filter; ``change`` is the method that changes ids."""

    def call(queue: OrderedQueue, target: Target, progress: Progress | None) -> int:
        only_failed = {} if dead else {"only_failed": True}
        rate = target.values.get(RATE.name)
        return queue.change_matching(
            partial(getattr(queue, change), **only_failed),
            read_filter(target.values),
            dead=dead,
            limit=target.values.get(LIMIT.name),
            rate=read_rate(rate) if rate else None,
            progress=progress,
        )

    def count(queue: OrderedQueue, target: Target) -> int:
        found = _matches(queue, target, dead=dead).count
        return min(found, target.values.get(LIMIT.name) or found)

    return Action(
        name,
        MATCHING_DEAD if dead else MATCHING_FAILED,
        label,
        effect,
        call=call,
        options=options,
        optional=MATCHING,
        count=count,
        plan=partial(_match_plan, dead=dead),
    )
