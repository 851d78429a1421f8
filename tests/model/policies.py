"""The decisions of ``lib/policies.lua``, in Python."""

from __future__ import annotations

import math
from collections.abc import Sequence

from celery_lowkiq.rules.policies import AfterFailure


def stale(scores: Sequence[float], peak: float | None) -> int:
    """How many of ascending scores are below the highest one that was processed with success."""
    return 0 if peak is None else sum(score < peak for score in scores)


def has_place(length: int, allowed: int | None) -> bool:
    """Whether one more job may wait in a shard with ``length`` waiting jobs."""
    return allowed is None or length < allowed


def debounced(
    now: float, first: float, debounce: float, debounce_max: float | None, not_before: float
) -> float:
    """When a job is due (Unix s) after a call at ``now``: ``debounce`` s later, at most ``debounce_max`` s
    after the ``first`` call, never before a time that a call asked for.
    """
    latest = math.inf if debounce_max is None else first + debounce_max
    return max(min(now + debounce, latest), not_before)


def after_failure(own: float, asked: float, policy: AfterFailure) -> float:
    """When a job is due (Unix s) that waits for its retry until its ``own`` time, after a call that asked for
    another one.
    """
    return min(own, asked) if policy is AfterFailure.NOW else own


def reached(done: Sequence[float], left: Sequence[float], peak: float | None) -> float | None:
    """The highest score processed with success, after a run that did some payloads and left others: what is
    left is not stale.
    """
    lowest = min(left, default=math.inf)
    scores = [score for score in done if score <= lowest]
    return max([*scores, *([] if peak is None else [peak])], default=None)
