"""States of tracked calls, and the updates that change them.

An update may come twice, late, or from a worker that has lost its shard. So each one names its run by
shard, epoch and claim: these numbers only grow in a shard, and claim numbers also when a migration moves the
call. An update of an older run changes nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class State(str, enum.Enum):
    """State of a tracked call."""

    ENQUEUED = "enqueued"
    WORKING = "working"
    FINISHED = "finished"
    #: Ended without success and without an error: BusinessFailure, revoked, expired, deleted.
    FAILED = "failed"
    #: Ended by an error, with no retries remaining.
    ERROR = "error"


class TrackerUpdate(NamedTuple):
    """An update of a tracked call by the run that ``shard``, ``epoch`` and ``claim`` name.

    Without them (0) it comes from outside a run and applies only to a pending call.
    """

    tracker: str
    call: str
    state: State
    #: State and text of a message to keep; no message when ``text`` is empty.
    message_state: State = State.ENQUEUED
    text: str = ""
    epoch: int = 0
    claim: int = 0
    #: Index of the run's shard.
    shard: int = 0


class NewCall(NamedTuple):
    """A call to add to a tracker: its task id, queue and job, and the bytes of its displayed payload."""

    call: str
    queue: str
    job_id: str
    payload: bytes


@dataclass(frozen=True)
class Counts:
    """Number of a tracker's calls by state."""

    enqueued: int = 0
    working: int = 0
    finished: int = 0
    failed: int = 0
    error: int = 0

    @classmethod
    def of(cls, numbers: Mapping[str, Any]) -> Counts:
        """Return the counts from a mapping by state name."""
        return cls(**{state.value: int(numbers[state.value]) for state in State})

    @property
    def total(self) -> int:
        return self.pending + self.ended

    @property
    def pending(self) -> int:
        """Calls that are enqueued or working."""
        return self.enqueued + self.working

    @property
    def ended(self) -> int:
        return self.finished + self.failed + self.error


class Message(NamedTuple):
    """A message of a call's run or of its end; ``at``: Unix time in s."""

    at: float
    state: State
    text: str


class TrackerView(NamedTuple):
    """A snapshot of a tracker. Times are Unix s."""

    id: str
    name: str
    opened_at: float
    #: True if no more calls will be added.
    closed: bool
    cancelled: bool
    counts: Counts

    @property
    def done(self) -> bool:
        """True if the tracker is closed and all its calls have ended."""
        return self.closed and not self.counts.pending


@dataclass(frozen=True)
class TrackedCall:
    """A snapshot of a tracked call.

    ``payload``: the bytes that the store keeps, or their value; of a large one, the beginning of its text.
    """

    task_id: str
    queue: str
    id: str
    payload: Any
    state: State
    #: Unix time in s.
    updated_at: float
    #: Progress reported by its run.
    current: float | None
    total: float | None
    #: The most recent messages.
    messages: tuple[Message, ...]


def began(tracker: str, call: str, epoch: int, claim: int, shard: int = 0) -> TrackerUpdate:
    """Return the update at the start of a run."""
    return TrackerUpdate(tracker, call, State.WORKING, epoch=epoch, claim=claim, shard=shard)


def waits(tracker: str, call: str) -> TrackerUpdate:
    """Return the update of a call that keeps waiting."""
    return TrackerUpdate(tracker, call, State.ENQUEUED)


def ended(
    began: TrackerUpdate, over: bool, success: bool, business: bool = False, text: str = ""
) -> TrackerUpdate:
    """Return the update at the end of the run that ``began``; unless ``over``, the call runs again."""
    if success and over:
        return began._replace(state=State.FINISHED)
    message_state = State.FAILED if business else State.ERROR
    return began._replace(
        state=message_state if over else State.ENQUEUED, message_state=message_state, text=text
    )


def ended_without_run(tracker: str, call: str, state: State, text: str) -> TrackerUpdate:
    """Return the update of a call that will not run."""
    return TrackerUpdate(tracker, call, state, state, text)
