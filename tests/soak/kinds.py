"""The 50 queues of a soak run: every kind of task, and how each is called."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

#: Number of queues; kinds are repeated up to this number.
QUEUES = 50
#: Ids of a queue. A bounded set, so that what Redis keeps for each id reaches a steady state.
IDS = 40

#: Numbers of the calls that one id gets in turn k of a queue. Each number is payload and score.
Numbers: TypeAlias = Callable[[int], Sequence[int]]


def one(k: int) -> Sequence[int]:
    """One call."""
    return (k,)


def thrice(k: int) -> Sequence[int]:
    """Equal calls, which merge while they wait."""
    return (k, k, k)


def burst(k: int) -> Sequence[int]:
    """Calls that wait together."""
    return range(4 * k, 4 * k + 4)


def late(k: int) -> Sequence[int]:
    """A newer state, and then an older one."""
    return (2 * k + 1, 2 * k)


@dataclass(frozen=True)
class Kind:
    """A kind of ordered task. Those with ``by`` among the options keep their signature."""

    name: str
    #: Options of ``ordered_task``.
    options: Mapping[str, Any] = field(default_factory=dict)
    numbers: Numbers = one
    #: Options of the call with a number.
    call: Callable[[int], Mapping[str, Any]] = lambda n: {}
    #: Ids of one bulk call; 0 makes single calls.
    bulk: int = 0
    #: Whether a bulk call has a tracker.
    tracked: bool = False
    #: Whether a payload fails in its try number so and so, from 0.
    fails: Callable[[int, int], bool] = lambda n, tries: False
    #: Whether a run does one payload of an id, and raises Again for the others.
    again: bool = False

    @property
    def in_place(self) -> bool:
        return "by" in self.options

    @property
    def has_results(self) -> bool:
        return self.options.get("ignore_result") is False

    @property
    def dies(self) -> bool:
        """Whether payloads go to the morgue."""
        return "max_retries" in self.options

    def calls_a_turn(self) -> int:
        """Number of calls that a turn makes."""
        return max(1, self.bulk) * len(self.numbers(0))


def scored(n: int) -> Mapping[str, Any]:
    """Equal payloads keep their place when the score is the payload's."""
    return {"score": n}


def every_tenth(n: int, tries: int) -> bool:
    """Every tenth payload fails in its first try."""
    return n % 10 == 0 and tries == 0


def every_fiftieth(n: int, tries: int) -> bool:
    """Every fiftieth payload never succeeds."""
    return n % 50 == 0


BY = {"by": "order_id"}
RESULT = {"ignore_result": False}

KINDS: tuple[Kind, ...] = (
    Kind("plain"),
    Kind("batches", {"batch_size": 10}),
    Kind("bulk", {"batch_size": 10}, bulk=10),
    Kind("merge-min", {"merge": "min"}, thrice, scored),
    Kind("merge-max", {"merge": "max", "batch_size": 5}, thrice, scored),
    Kind("in-place", BY),
    Kind("by-position", {"by": 0, "acks_late": True}, burst),
    Kind("latest", {**BY, "latest": True}, burst),
    Kind("latest-results", {**BY, **RESULT, "latest": True}, burst),
    Kind("merged-calls", {**BY, "merge": "max"}, thrice, scored),
    Kind("per-run", {"max_payloads_per_run": 2}, burst),
    Kind("acks-late", {"acks_late": True, "batch_size": 5}),
    Kind("acks-early", {"acks_late": False}),
    Kind("flaky", {"retry_in": 1.0}, fails=every_tenth),
    Kind("flaky-batches", {"retry_in": 1.0, "batch_size": 10}, bulk=10, fails=every_tenth),
    Kind("flaky-in-place", {**BY, "retry_in": 1.0, "retry_priority": 3}, fails=every_tenth),
    Kind("countdown", call=lambda n: {"countdown": n % 5}),
    Kind("eta", BY, call=lambda n: {"eta": time.time() + n % 3}),
    Kind("drop-oldest", {"max_length": 8, "when_full": "drop_oldest"}, call=lambda n: {"countdown": 10}),
    Kind("rate-limit", {"rate_limit": "20/s"}, burst),
    Kind("rate-limit-per-id", {"rate_limit_per_id": "2/s"}, burst),
    Kind("job-ttl", {"job_ttl": 3.0}, call=lambda n: {"countdown": 5} if n % 4 == 0 else {}),
    Kind("priorities", {"priority": 5}, call=lambda n: {"priority": n % 10}),
    Kind("results", {**RESULT, "batch_size": 5}),
    Kind("in-place-results", {**BY, **RESULT, "retry_in": 1.0}, fails=every_tenth),
    Kind("bulk-results", {**RESULT, "batch_size": 10}, bulk=10),
    Kind("tracked", {"batch_size": 5}, bulk=IDS, tracked=True),
    Kind("dead", {"max_retries": 1, "retry_in": 0.5}, fails=every_fiftieth),
    Kind("keep", {"keep": 1}, burst),
    Kind("debounce", {"debounce": 1.0, "debounce_max": 3.0}),
    Kind("drop-stale", {"drop_stale": True}, late, scored),
    Kind("again", numbers=burst, again=True),
)


def queues(prefix: str, count: int = QUEUES) -> dict[str, Kind]:
    """The kind of each queue, by the queue's name."""
    kinds = [KINDS[number % len(KINDS)] for number in range(count)]
    return {f"{prefix}-{number}-{kind.name}": kind for number, kind in enumerate(kinds)}
