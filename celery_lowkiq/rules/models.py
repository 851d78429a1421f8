"""The values that all layers speak of. Payloads are bytes here; only ``integration`` reads them."""

from __future__ import annotations

import enum
import zlib
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from .isolation import NOT_ISOLATED, Isolation
from .policies import NONE as NO_POLICIES
from .policies import Policies
from .priorities import MOST_URGENT
from .tracking import News


def shard_of(job_id: str, shards: int) -> int:
    """Shard of an id: ``crc32(id) % shards``, as Lowkiq has it."""
    return zlib.crc32(job_id.encode("utf-8", "surrogateescape")) % shards


class Merge(str, enum.Enum):
    """Which score stays when two payloads of one id are equal."""

    MIN = "min"
    MAX = "max"


#: A queue has so many shards at most.
MAX_SHARDS = 4096


@dataclass(frozen=True)
class QueueSpec:
    """What the store and the worker know of an ordered queue."""

    name: str
    shards: int = 5
    batch_size: int = 1
    merge: Merge = Merge.MIN
    max_crashes: int = 3
    #: Stored as the error of a job that took its owner down ``max_crashes`` times.
    poison_error: bytes = b"poison pill"
    #: A batch that runs for longer (s) raises an alarm.
    max_run: float | None = None
    policies: Policies = NO_POLICIES

    def shard_refs(self) -> tuple[ShardRef, ...]:
        """All shards of the queue, in order."""
        return tuple(ShardRef(self.name, index) for index in range(self.shards))

    @property
    def policy(self) -> str:
        """What scripts are told of the policies."""
        return "" if self.policies is NO_POLICIES else self.policies.words(self.shards)


@dataclass(frozen=True, order=True)
class ShardRef:
    """Names one shard of one queue."""

    queue: str
    index: int

    def __str__(self) -> str:
        return f"{self.queue}/{self.index}"


class Recorded(str, enum.Enum):
    """Which calls of a payload have a record."""

    NONE = ""
    SOME = "r"
    ALL = "R"


class Payload(NamedTuple):
    """What one call carries, and its place within the job."""

    data: bytes
    score: float
    recorded: Recorded = Recorded.NONE
    #: Bytes of the whole, where ``data`` is only its beginning.
    cut_from: int | None = None


@dataclass(frozen=True)
class NewJob:
    """One entry of a push.

    ``perform_in`` is a Unix time in s; ``delay`` is in s from Redis's now. At most one of them is set,
    none means now. Without ``score`` the store makes one; ``sent``, in Unix s of the sender's clock, is the
    score then, unless Redis's clock has not come so far.
    """

    id: str
    payload: bytes
    score: float | None = None
    perform_in: float | None = None
    delay: float | None = None
    #: What is kept of the call until its job has ended; None: nobody will ask.
    record: bytes | None = None
    #: From 0, the most urgent, to 9; None: that of the queue.
    priority: int | None = None
    sent: float | None = None


@dataclass(frozen=True)
class CallRecord:
    """A call of a claimed job."""

    #: Names it in the store; keys of a payload's calls grow.
    key: bytes
    #: Position of its payload in the job.
    payload: int
    data: bytes


@dataclass(frozen=True)
class FirstCalls:
    """The calls of a claimed job that came with the claim, in the order of its payloads."""

    records: tuple[CallRecord, ...]
    #: Whether these are all.
    complete: bool


#: ``retry_count`` of a job that took its owner down too often, and is handed out to be buried.
CONDEMNED = -2


class Job(NamedTuple):
    """A job that a claim handed out, or that a listing found."""

    id: str
    payloads: tuple[Payload, ...]
    perform_in: float
    retry_count: int = -1
    error: bytes | None = None
    #: Number of the claim it is in; 0 while it waits.
    claim: int = 0
    #: How many payloads the job has; a listing may show fewer of them.
    payload_count: int = 0
    #: Number of the shard's last call before the claim: later ones are not the claim's.
    last_call: int = 0
    #: None: the claim told nothing of calls. Ask, when payloads are ``recorded``.
    calls: FirstCalls | None = None
    #: So many of its payloads, from the smallest score on, are dropped by a policy.
    unwanted: int = 0
    #: A new call made it due before its ``perform_in``, which is still to come.
    early: bool = False
    #: Whether it waits for its id to be resumed.
    held: bool = False
    #: From 0, the most urgent, to 9.
    priority: int = MOST_URGENT
    #: Of one whose last run failed as a whole: with how many others it runs next.
    isolation: Isolation = NOT_ISOLATED

    @property
    def recorded(self) -> bool:
        """Whether any call of it has a record."""
        return any(payload.recorded is not Recorded.NONE for payload in self.payloads)


@dataclass(frozen=True)
class LeaseState:
    """What a shard's lease looks like to whoever reads it. ``owner`` is empty when nobody has it.

    ``server`` names the Redis process that showed it, ``given_on`` the one that gave it to its last owner.
    They differ after a restart or a failover, which may have lost what was written in between.
    ``leaving``: given up by a process that was about to end, and whose last runs end with it.
    """

    owner: str = ""
    epoch: int = 0
    counter: int = 0
    server: str = ""
    given_on: str = ""
    leaving: bool = False


@dataclass(frozen=True)
class Lease:
    """A node's right to a shard, until another epoch begins; ``server`` is the Redis process that gave it."""

    shard: ShardRef
    owner: str
    epoch: int
    server: str = ""


class Fate(str, enum.Enum):
    """What a settle does with a claimed job."""

    DONE = "done"
    #: Failed: back to the queue with ``retry_count`` and ``delay``.
    RETRY = "retry"
    #: Retries exhausted: the payload with the smallest score to the morgue, the rest back as new.
    DIE = "die"
    #: All payloads to the morgue.
    BURY = "bury"
    #: Back unchanged: it never ran.
    RETURN = "return"


class Gone(str, enum.Enum):
    """Why a payload goes, and not to the morgue."""

    #: Nobody wants it to run any more; it counts as dropped.
    DROPPED = ""
    #: It has run, and failed for good.
    OVER = "over"
    #: It has run with success, though others of its job have not.
    DONE = "done"


@dataclass(frozen=True)
class BadPayload:
    """A payload (by its position in the claimed job) that goes to the morgue whatever the job's fate; without
    an error it is ``gone``.
    """

    position: int
    error: bytes | None
    gone: Gone = Gone.DROPPED


class Verdict(NamedTuple):
    """The end of one claimed job. ``retry_count`` counts for RETRY, ``delay`` (s) for RETRY and, when it is
    not 0, for RETURN.
    """

    id: str
    claim: int
    fate: Fate
    retry_count: int = -1
    delay: float = 0.0
    error: bytes = b""
    bad: tuple[BadPayload, ...] = ()
    #: Calls whose results are written, as first and last key of runs of keys: their records go.
    ended: tuple[tuple[bytes, bytes], ...] = ()
    #: What trackers are told of its calls, with the settle.
    news: tuple[News, ...] = ()
    #: Unix time (s) that replaces ``delay`` for RETRY; 0 for none.
    perform_in: float = 0.0
    #: What the log of the job's tries is to say of this one; empty: nothing.
    try_text: bytes = b""
    #: With how many others the job runs next, for RETRY.
    isolation: Isolation = NOT_ISOLATED


class Flag(Protocol):
    """As much of a ``threading.Event`` as a task function needs."""

    def is_set(self) -> bool:
        """Whether it has happened."""

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it has happened, at most ``timeout`` s; whether it has."""


@dataclass(frozen=True)
class Batch:
    """The jobs of one claim on their way through a lane. ``lost`` is set while the lease may be another's."""

    queue: QueueSpec
    lease: Lease
    claim: int
    jobs: tuple[Job, ...]
    lost: Flag = field(compare=False)
    #: Monotonic time of its start.
    began_at: float = field(compare=False, default=0.0)

    def overdue(self, now: float) -> bool:
        """Whether it runs for longer than its task allows; ``now`` is monotonic."""
        return self.queue.max_run is not None and now - self.began_at > self.queue.max_run

    @property
    def shard(self) -> ShardRef:
        return self.lease.shard
