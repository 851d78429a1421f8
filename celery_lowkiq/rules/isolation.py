"""Which jobs run together after a run of several has failed as a whole (rule 5).

One payload may be to blame, or the database may be down: nobody can tell. So the batch is halved until its
jobs run alone, and the halves wait longer than their jobs would, so that an outage sees no storm of runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

#: Isolation puts a job off to so many s at most: an outage is over then, or long.
LONGEST_WAIT = 60.0
#: Beyond, more parts make no difference: the pause of any of them is LONGEST_WAIT, or none.
MOST_PARTS = 999


class Isolation(NamedTuple):
    """What a failed job's next batch looks like."""

    #: It has so many jobs at most, all of them isolated; 0: any jobs.
    largest: int = 0
    #: So many runs take the place of the one that failed first.
    parts: int = 1


#: Of a job that runs together with any other.
NOT_ISOLATED = Isolation()


def isolated(before: Isolation, together: int) -> Isolation:
    """Of each job of a run of ``together`` jobs that failed as a whole: one of half that size is next."""
    largest = max(1, together // 2)
    return Isolation(largest, min(MOST_PARTS, before.parts * math.ceil(together / largest)))


def put_off(parts: int, pause: float, next_pause: Callable[[int], float | Literal[False]]) -> float:
    """The pause (s) of a job whose ``parts`` of a batch run in its place, when it would be ``pause``.

    Two parts run in the place of one run: with more of them, each sits some out, of which ``next_pause``
    tells the pauses, from 1. So together they run at most twice as often as the batch would have.
    """
    waited, left = pause, parts / 2 - 1
    turn = 1
    while left > 0 and waited < LONGEST_WAIT:
        following = next_pause(turn)
        if following is False:
            break
        waited += following * min(1.0, left)
        turn, left = turn + 1, left - 1
    return max(pause, min(waited, LONGEST_WAIT))
