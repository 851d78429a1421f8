"""Values that travel: jobs, payloads, leases, queues, and the layout of shards."""

from __future__ import annotations

import enum
import zlib
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol

from celery_lowkiq.rules.basics import cached_property
from celery_lowkiq.rules.policies import MOST_URGENT, NOT_ISOLATED, Isolation, Policies
from celery_lowkiq.rules.policies import NONE as NO_POLICIES
from celery_lowkiq.rules.tracking import TrackerUpdate

# How the ids of a queue are dealt to its shards.

#: Maximum number of shards of a queue.
MAX_SHARDS = 4096


def shard_of(job_id: str, shards: int) -> int:
    """Return the index of an id's shard: ``crc32(id) % shards``, as in Lowkiq."""
    return zlib.crc32(job_id.encode("utf-8", "surrogateescape")) % shards


@dataclass(frozen=True)
class Layout:
    """The number of shards that ids are dealt by; during a migration also the ``former`` one."""

    shards: int
    former: int | None = None

    @classmethod
    def parse(cls, route: str) -> Layout | None:
        """Return the layout of a stored route; None for other text."""
        former, arrow, shards = route.rpartition(">")
        if arrow:
            return cls(int(shards), int(former)) if is_count(former) and is_count(shards) else None
        return cls(int(shards)) if is_count(shards) else None

    @cached_property
    def route(self) -> str:
        """The layout as shards and their queue store it: ``24``, or ``24>48`` during a migration."""
        return str(self.shards) if self.former is None else f"{self.former}>{self.shards}"

    @property
    def count(self) -> int:
        """Number of shards that may have jobs."""
        return max(self.shards, self.former or 0)

    def home(self, job_id: str) -> int:
        """Return the index of the shard of an id."""
        return shard_of(job_id, self.shards)

    def former_home(self, job_id: str) -> int | None:
        """Return the index of the other shard that an id had before the migration; None without one."""
        if self.former is None:
            return None
        index = shard_of(job_id, self.former)
        return None if index == self.home(job_id) else index


def is_count(text: str) -> bool:
    """True if a text is a number of shards."""
    return text.isdecimal() and text.isascii() and len(text) < 5 and 0 < int(text) <= MAX_SHARDS


# The data types shared by all layers. Payloads are bytes here; only ``integration`` decodes them.


class Merge(str, enum.Enum):
    """Rule for the score when two payloads of one id are equal."""

    MIN = "min"
    MAX = "max"


@dataclass(frozen=True)
class QueueSpec:
    """The definition of an ordered queue for the store and the worker."""

    name: str
    shards: int = 5
    #: Number of shards before the migration that is under way; None: there is none.
    former_shards: int | None = None
    batch_size: int = 1
    merge: Merge = Merge.MIN
    max_crashes: int = 3
    #: Stored as the error of a job that was in processing in ``max_crashes`` worker crashes.
    poison_error: bytes = b"poison pill"
    #: Seconds after which a running batch is reported as overdue.
    max_run: float | None = None
    policies: Policies = NO_POLICIES

    def shard_refs(self) -> tuple[ShardRef, ...]:
        """All shards that may have jobs, in order."""
        return tuple([ShardRef(self.name, index) for index in range(self.layout.count)])

    def shard_of(self, job_id: str) -> ShardRef:
        return ShardRef(self.name, self.layout.home(job_id))

    def shards_of(self, job_id: str) -> tuple[ShardRef, ...]:
        """The shards where an id may be: its own, and during a migration its former one."""
        homes = (self.layout.home(job_id), self.layout.former_home(job_id))
        return tuple(ShardRef(self.name, index) for index in homes if index is not None)

    @cached_property
    def layout(self) -> Layout:
        """How ids are dealt to shards."""
        return Layout(self.shards, self.former_shards)

    def with_layout(self, layout: Layout) -> QueueSpec:
        if layout == self.layout:
            return self
        return replace(self, shards=layout.shards, former_shards=layout.former)

    @cached_property
    def policy(self) -> str:
        """The policies as the argument of scripts."""
        return "" if self.policies is NO_POLICIES else self.policies.words(self.shards)


@dataclass(frozen=True, order=True)
class ShardRef:
    """Reference to a shard of a queue."""

    queue: str
    index: int

    def __str__(self) -> str:
        return f"{self.queue}/{self.index}"


class Recorded(str, enum.Enum):
    """Calls of a payload that have a stored record."""

    NONE = ""
    SOME = "r"
    ALL = "R"


class Payload(NamedTuple):
    """The data of a call, and the score that orders it within the job."""

    data: bytes
    score: float
    recorded: Recorded = Recorded.NONE
    #: Full size in bytes when ``data`` is only the beginning.
    cut_from: int | None = None
    #: See ``rules/signatures.py``; empty: none.
    signature: bytes = b""


class Call(NamedTuple):
    """A checked call: client middlewares see it, and the store pushes it.

    ``perform_in`` is a Unix time in s; ``delay`` is in s from Redis's time. At most one of them is set;
    without both, the job is due now. Without ``score`` the store generates one: ``sent`` (Unix s of the
    sender's clock), unless that is ahead of Redis's clock.
    """

    id: str
    #: The encoded payload.
    data: bytes = b""
    score: float | None = None
    perform_in: float | None = None
    delay: float | None = None
    #: The call's record, stored until its job has ended; None: no record.
    record: bytes | None = None
    #: From 0, the most urgent, to 9; None: the queue's priority.
    priority: int | None = None
    sent: float | None = None
    payload: Any = ""
    #: Set where a record, a message or a result names it.
    task_id: str | None = None


class StoredRecord(NamedTuple):
    """The record of a call of a claimed job."""

    #: Key in the store; keys of a payload's calls increase.
    key: bytes
    #: Position of its payload in the job.
    payload: int
    data: bytes


class ClaimedCallRecords(NamedTuple):
    """The call records returned with the claim of a job, in the order of its payloads."""

    records: tuple[StoredRecord, ...]
    #: True if the job has no other records.
    complete: bool


#: ``retry_count`` of a poison pill that is claimed only to be buried.
POISON_PILL_RETRY_COUNT = -2


class Job(NamedTuple):
    """A job returned by a claim or a listing."""

    id: str
    payloads: tuple[Payload, ...]
    perform_in: float
    retry_count: int = -1
    error: bytes | None = None
    #: Number of its claim; 0 while it waits.
    claim: int = 0
    #: Number of its payloads; a listing may return fewer.
    payload_count: int = 0
    #: Number of the shard's last call before the claim; later calls are not part of it.
    last_call: int = 0
    #: None: the claim returned no records. Read them when payloads are ``recorded``.
    calls: ClaimedCallRecords | None = None
    #: Number of its payloads, from the smallest score on, that a policy drops.
    unwanted: int = 0
    #: True if a new call made it due before its ``perform_in``.
    early: bool = False
    #: True if its id is paused; ``held``: if a death holds it.
    paused: bool = False
    held: bool = False
    #: From 0, the most urgent, to 9.
    priority: int = MOST_URGENT
    #: Limits on its next batch after its last batch failed as a whole.
    isolation: Isolation = NOT_ISOLATED

    @property
    def recorded(self) -> bool:
        """True if any of its calls has a record."""
        return any(payload.recorded is not Recorded.NONE for payload in self.payloads)


@dataclass(frozen=True)
class LeaseState:
    """A shard's lease as read from Redis. ``owner`` is empty when the shard has no owner.

    ``server`` is the run id of the Redis process that was read, ``given_on`` that of the one that gave the
    lease, or on which its owner released it. They differ after a restart or a failover, which may have lost
    writes. ``leaving``: released by a process that was about to exit while batches ran. ``turn``: the owner's
    turn in which it last renewed the lease; 0 when unknown.
    """

    owner: str = ""
    epoch: int = 0
    counter: int = 0
    server: str = ""
    given_on: str = ""
    leaving: bool = False
    turn: int = 0


@dataclass(frozen=True)
class Lease:
    """A node's ownership of a shard during an epoch.

    ``server``: run id of the Redis process that gave it, or that has since answered the owner in time.
    """

    shard: ShardRef
    owner: str
    epoch: int
    server: str = field(default="", compare=False)


#: A renewed lease as its server has it; False for one of another node, None for one whose master is
#: unreachable.
Renewed = Lease | Literal[False] | None


class Disposition(str, enum.Enum):
    """Effect of a settle on a claimed job."""

    DONE = "done"
    #: Failed: waiting again, with ``retry_count`` and ``delay``.
    RETRY = "retry"
    #: Retries exhausted: the payload with the smallest score goes to the morgue, the others wait as new.
    DIE = "die"
    #: All payloads go to the morgue.
    BURY = "bury"
    #: Waiting again, unchanged: it did not run.
    RETURN = "return"
    #: Its process died: waiting again as a suspect, or in the morgue after ``retry_count`` deaths.
    CRASH = "crash"


class RemovalReason(str, enum.Enum):
    """Why a payload is removed without going to the morgue."""

    #: Revoked, expired, or dropped by a policy; it counts as dropped.
    DROPPED = ""
    #: It ran, and failed without retry.
    OVER = "over"
    #: It succeeded, unlike other payloads of its job.
    DONE = "done"


@dataclass(frozen=True)
class PayloadRemoval:
    """A payload, by position in the claimed job, that leaves the job whatever the job's disposition.

    With an error it goes to the morgue; without one it is removed for the reason ``gone``.
    """

    position: int
    error: bytes | None
    gone: RemovalReason = RemovalReason.DROPPED
    #: True if its signature did not verify.
    unverified: bool = False


class PayloadChange(NamedTuple):
    """Changes of a retry to a job's only payload, and to the payload's call."""

    #: Position of the payload in the claimed job.
    position: int
    #: The new payload, with its signature; empty: as it is.
    data: bytes = b""
    signature: bytes = b""
    #: The new record of the call, behind the beginning of its key; empty: the call has none.
    head: bytes = b""
    record: bytes = b""
    #: Key of the call's record so far; empty: it has none.
    key: bytes = b""


class Failure(NamedTuple):
    """A failed run for its group: the fingerprint, and the stored description of the group."""

    fingerprint: str
    description: bytes


class Settlement(NamedTuple):
    """The outcome of a claimed job.

    ``retry_count`` applies to RETRY; ``delay`` (s) to RETRY, and to RETURN unless it is 0.
    """

    id: str
    claim: int
    disposition: Disposition
    retry_count: int = -1
    delay: float = 0.0
    error: bytes = b""
    bad: tuple[PayloadRemoval, ...] = ()
    #: Calls whose results are stored, as ranges (first and last key) of records to delete.
    ended: tuple[tuple[bytes, bytes], ...] = ()
    #: Tracker updates of its calls, applied with the settle.
    news: tuple[TrackerUpdate, ...] = ()
    #: Unix time (s) that replaces ``delay`` for RETRY; 0: not set.
    perform_in: float = 0.0
    #: Line for the log of the job's tries; empty: no line.
    try_text: bytes = b""
    #: Counted with its group; None: no run failed.
    failure: Failure | None = None
    #: Limits on the job's next batch, for RETRY.
    isolation: Isolation = NOT_ISOLATED
    #: Change by a RETRY; None: none.
    change: PayloadChange | None = None
    #: Priority after a RETRY; None: that of the job.
    priority: int | None = None

    def without_crash(self) -> Settlement:
        """Return the job where this counts a crash."""
        if self.disposition is not Disposition.CRASH:
            return self
        return Settlement(self.id, self.claim, Disposition.RETURN)


class Flag(Protocol):
    """The part of ``threading.Event`` that task functions use."""

    def is_set(self) -> bool:
        """True if the flag is set."""

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the flag is set, at most ``timeout`` s. Return whether it is set."""


@dataclass(slots=True)
class Batch:
    """The jobs of a claim that run together. ``lost`` is set while another node may own the shard."""

    queue: QueueSpec
    lease: Lease
    claim: int
    jobs: tuple[Job, ...]
    lost: Flag = field(compare=False)
    #: Monotonic time of its start, in s.
    began_at: float = field(compare=False, default=0.0)
    #: Redis's clock at the claim (Unix s).
    claimed_at: float = field(compare=False, default=0.0)
    #: Id of its run, if that has been chosen.
    run_id: str = field(compare=False, default="")
    #: True if it is a suspect, which was in processing when its owner or its process died.
    suspect: bool = field(compare=False, default=False)
    #: True if its process is being started, so that its run has not begun.
    is_starting: bool = field(compare=False, default=False)

    @property
    def shard(self) -> ShardRef:
        return self.lease.shard
