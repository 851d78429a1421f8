"""Isolation: the batch size of jobs after a batch of several failed as a whole (rule 5).

One payload may have caused the failure, or an outage; the worker cannot tell. So it halves the batch until
jobs run alone, and gives the halves a longer retry delay than jobs have: an outage causes no storm of runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

#: Maximum delay in s that isolation causes.
MAX_ISOLATION_DELAY = 60.0
#: Maximum stored value of ``Isolation.parts``; more would not change the delay.
MAX_PARTS = 999


class Isolation(NamedTuple):
    """The limits on a failed job's next batch."""

    #: Maximum number of jobs in it, all of them isolated; 0: not limited.
    largest: int = 0
    #: Number of runs that replace the run that failed first.
    parts: int = 1


NOT_ISOLATED = Isolation()


def isolated(before: Isolation, together: int) -> Isolation:
    """Return the isolation of each job after a batch of ``together`` jobs failed: half the size."""
    largest = max(1, together // 2)
    return Isolation(largest, min(MAX_PARTS, before.parts * math.ceil(together / largest)))


def isolation_delay(parts: int, own: float, next_delay: Callable[[int], float | Literal[False]]) -> float:
    """Return the retry delay (s) of an isolated job whose own delay is ``own``.

    ``parts`` runs replace one run. With more than two, each part skips turns; ``next_delay`` gives the delays
    of the skipped turns, from 1. So together they run at most twice as often as the batch would have.
    """
    delay, skipped = own, parts / 2 - 1
    turn = 1
    while skipped > 0 and delay < MAX_ISOLATION_DELAY:
        later = next_delay(turn)
        if later is False:
            break
        delay += later * min(1.0, skipped)
        turn, skipped = turn + 1, skipped - 1
    return max(own, min(delay, MAX_ISOLATION_DELAY))
