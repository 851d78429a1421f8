"""Policies of a queue: priorities, rate, isolation, and the words that the scripts get."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

# The order in which due jobs of a shard are claimed; ``store/lua/lib/waiting.lua`` has the same rule.

#: 0 is the most urgent, as in Celery with Redis; it is the default.
MOST_URGENT, LEAST_URGENT = 0, 9


def turn(priority: int, perform_in: float, now: float, max_wait: float) -> tuple[int, float, int]:
    """Return the sort key of a due job; the smallest is claimed first. Times are Unix s.

    Jobs due for more than ``max_wait`` s come first, then the most urgent ones, then the longest due.
    """
    overdue = perform_in < now - max_wait
    return -1 if overdue else priority, perform_in, priority


# Token bucket of a rate-limited queue: each run takes a token.
#
# The bucket is in Redis, shared by all nodes; this module computes when a token is available.

#: Capacity of a bucket, in seconds of its rate, but at least one token.
BURST_SECONDS = 0.1
#: Maximum seconds between token requests of a node with a due job, unless its polls are rarer.
ASKED = 60.0


@dataclass(frozen=True)
class TokenRequest:
    """A request to return ``surplus`` tokens and take at most ``wanted``; ``rate`` in tokens per second.

    ``number`` grows with each request of a ``holder``; a repeated number gets the same answer.
    """

    queue: str
    holder: str
    number: int
    rate: float
    wanted: int = 0
    surplus: int = 0


@dataclass(frozen=True)
class Tokens:
    """The tokens granted, and ``wait``: seconds until the next token, 0 when one is available."""

    granted: int
    wait: float


def capacity(rate: float) -> float:
    """Return the maximum number of tokens in a bucket."""
    return max(1.0, BURST_SECONDS * rate)


def seconds_to_token(tokens_then: float, seconds: float, rate: float) -> float:
    """Return the seconds until a token is available, ``seconds`` after the bucket had ``tokens_then``."""
    tokens = min(capacity(rate), tokens_then + max(0.0, seconds) * rate)
    return 0.0 if tokens >= 1 else (1 - tokens) / rate


def token_at(full_at: float, rate: float) -> float:
    """Return the Unix time (s) of the next token of a bucket that is full at ``full_at``."""
    return full_at - (capacity(rate) - 1) / rate


# Isolation: the batch size of jobs after a batch of several failed as a whole (rule 5).
#
# One payload may have caused the failure, or an outage; the worker cannot tell. So it halves the batch
# until jobs run alone, and gives the halves a longer retry delay than jobs have: an outage causes no storm
# of runs.

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


# Policies of a queue beyond the rules of a job: which payloads are kept, and when a job is due.


class AfterFailure(str, enum.Enum):
    """Effect of a push on a job that waits for its retry."""

    #: The call waits until the retry is due, as in Lowkiq.
    WAIT = "wait"
    #: The job is due now; a run that fails then puts its retry_count and perform_in back.
    NOW = "now"


class WhenFull(str, enum.Enum):
    """Effect of a full shard on a new job."""

    REFUSE = "refuse"
    DROP_NEWEST = "drop_newest"
    DROP_OLDEST = "drop_oldest"


#: Default of ``drop_stale`` (s), for which the largest processed score of an id is kept: a week.
DROP_STALE_SECONDS = 7 * 86400.0


@dataclass(frozen=True)
class Policies:
    """The policies of a queue that change what the store does; by default none, at no cost."""

    #: Maximum number of payloads of a waiting job: those with the highest scores are kept.
    keep: int | None = None
    #: Seconds from the last call until the job is due,
    debounce: float | None = None
    #: and at most from the first waiting call.
    debounce_max: float | None = None
    #: Seconds for which payloads are dropped whose score is below one that was processed for their id.
    drop_stale: float | None = None
    when_pushed_after_failure: AfterFailure = AfterFailure.WAIT
    #: Maximum number of waiting jobs of the queue.
    max_length: int | None = None
    when_full: WhenFull = WhenFull.REFUSE
    #: Priority of calls that give none, from 0, the most urgent, to 9.
    priority: int = MOST_URGENT
    #: Priority of a job that waits for its retry; None keeps its own.
    retry_priority: int | None = None
    #: Maximum seconds for which a due job waits for more urgent ones.
    priority_max_wait: float = 60.0
    #: Maximum runs per second of one id.
    rate_per_id: float | None = None
    #: Maximum number of payloads of an id in a claim: those with the lowest scores.
    per_run: int | None = None
    #: Maximum number of payloads behind a dead one, which holds its id; None: a death holds nothing.
    hold: int | None = None
    #: True if a push resets the retry count of a job that waits for its retry.
    anew_on_push: bool = False

    @property
    def may_hold(self) -> bool:
        """True if dead payloads can hold their ids: nothing drops payloads, so that others run over a gap."""
        return self.keep is None and self.drop_stale is None

    def words(self, shards: int) -> str:
        """Return the argument ``policy`` of scripts (``lib/policies.lua``): '' without policies."""
        words: dict[str, float | int | str | None] = {
            "keep": self.keep,
            "per_run": self.per_run,
            "hold": self.hold,
            "anew_on_push": 1 if self.anew_on_push else None,
            "debounce": self.debounce,
            "debounce_max": self.debounce_max,
            "drop_stale": self.drop_stale,
            "priority": self.priority or None,
            "retry_priority": self.retry_priority,
            "due_on_push": 1 if self.when_pushed_after_failure is AfterFailure.NOW else None,
        }
        if self.max_length is not None:
            words |= {
                "max_length": length_of_shard(self.max_length, shards),
                "when_full": self.when_full.value,
            }
        if self.rate_per_id is not None:
            words |= {"rate": self.rate_per_id, "burst": capacity(self.rate_per_id)}
        return " ".join(f"{name}={value}" for name, value in words.items() if value is not None)


NONE = Policies()


def length_of_shard(max_length: int, shards: int) -> int:
    """Return the maximum number of waiting jobs of one shard: its part of the queue's, rounded up."""
    return math.ceil(max_length / shards)


def surplus(count: int, keep: int | None) -> int:
    """Return how many of a job's payloads are dropped, from the smallest score on."""
    return 0 if keep is None else max(0, count - keep)
