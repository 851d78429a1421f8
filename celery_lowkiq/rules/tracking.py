"""The life of a tracked call: its states, and which news of it counts.

News may come twice, late, or from a worker that has lost its shard. So each names the run that it is of, by
epoch and claim, both of which only grow: older news than what is known changes nothing, and so no count.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class State(str, enum.Enum):
    """Where a tracked call is."""

    ENQUEUED = "enqueued"
    WORKING = "working"
    FINISHED = "finished"
    #: It has ended for a reason of business: BusinessFailure, revoked, expired, deleted.
    FAILED = "failed"
    #: It has ended by an error, without retries left.
    ERROR = "error"


#: States in which more is to come.
PENDING = (State.ENQUEUED, State.WORKING)


class News(NamedTuple):
    """What has happened to a tracked call in a run, which ``epoch`` and ``claim`` name. Without them nobody
    runs it, and the news counts only while it is pending.
    """

    tracker: str
    call: str
    state: State
    #: In what state it was said, and what: kept among the messages unless empty.
    said_in: State = State.ENQUEUED
    text: str = ""
    epoch: int = 0
    claim: int = 0


class NewCall(NamedTuple):
    """A call that a tracker is to know: its task id, queue and job, and the bytes of its shown payload."""

    call: str
    queue: str
    job_id: str
    payload: bytes


@dataclass(frozen=True)
class Counts:
    """Calls of a tracker by state."""

    enqueued: int = 0
    working: int = 0
    finished: int = 0
    failed: int = 0
    error: int = 0

    @classmethod
    def of(cls, numbers: Mapping[str, Any]) -> Counts:
        """By names of states."""
        return cls(**{state.value: int(numbers[state.value]) for state in State})

    @property
    def total(self) -> int:
        return self.pending + self.ended

    @property
    def pending(self) -> int:
        """Those that are enqueued or working."""
        return self.enqueued + self.working

    @property
    def ended(self) -> int:
        return self.finished + self.failed + self.error


class Message(NamedTuple):
    """Something that a call's run, or its end, has said. ``at``: Unix time in s."""

    at: float
    state: State
    text: str


class TrackerView(NamedTuple):
    """A tracker as it stands. Times are Unix s."""

    id: str
    name: str
    opened_at: float
    #: No more while calls may still be added.
    closed: bool
    cancelled: bool
    counts: Counts

    @property
    def done(self) -> bool:
        """Whether nothing is to come any more."""
        return self.closed and not self.counts.pending


class CallView(NamedTuple):
    """A tracked call as it stands; ``payload`` as its bytes."""

    call: str
    queue: str
    job_id: str
    payload: bytes
    state: State
    #: Unix time in s.
    updated_at: float
    #: What its run has told of its progress.
    current: float | None
    total: float | None
    #: The last ones.
    messages: tuple[Message, ...]


def began(tracker: str, call: str, epoch: int, claim: int) -> News:
    """A run of the call begins."""
    return News(tracker, call, State.WORKING, epoch=epoch, claim=claim)


def waits(tracker: str, call: str) -> News:
    """The call goes on waiting."""
    return News(tracker, call, State.ENQUEUED)


def ended(began: News, over: bool, success: bool, business: bool = False, text: str = "") -> News:
    """The run that ``began`` has ended. Not ``over``: the call runs again."""
    if success and over:
        return began._replace(state=State.FINISHED)
    said_in = State.FAILED if business else State.ERROR
    return began._replace(state=said_in if over else State.ENQUEUED, said_in=said_in, text=text)


def ends_without_run(tracker: str, call: str, state: State, text: str) -> News:
    """Nobody will run the call any more."""
    return News(tracker, call, state, state, text)
