"""Policies of a queue beyond the rules of a job: which payloads are kept, and when a job is due."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from .priorities import MOST_URGENT
from .rate import capacity


class AfterFailure(str, enum.Enum):
    """What a push does to a job that waits for its retry."""

    #: The call waits until the retry is due, as in Lowkiq.
    WAIT = "wait"
    #: The job is due now; a run that fails then puts its retry_count and perform_in back.
    NOW = "now"


class WhenFull(str, enum.Enum):
    """What a push does with a new job when its shard is full."""

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
    on_push_after_failure: AfterFailure = AfterFailure.WAIT
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
    #: Whether a push resets the retry count of a job that waits for its retry.
    anew_on_push: bool = False

    @property
    def may_hold(self) -> bool:
        """Whether dead payloads can hold their ids: nothing drops payloads, so that others run over a gap."""
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
            "due_on_push": 1 if self.on_push_after_failure is AfterFailure.NOW else None,
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
