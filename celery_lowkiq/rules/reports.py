"""Reports of nodes about themselves, written with each heartbeat: for people, never used for a decision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from .cached_property import cached_property
from .errors import StoreError
from .history import Counters
from .models import QueueSpec, ShardRef
from .views import Stats

#: Maximum number of shards that a report names; it has the number of all.
LISTED_SHARDS = 1000
#: Maximum number of ids of a batch that it names.
LISTED_IDS = 5


@dataclass(frozen=True)
class Running:
    """A running batch: some of its ids, the number of all, and the seconds since its start."""

    shard: ShardRef
    ids: tuple[str, ...]
    count: int
    seconds: float
    #: Whether it takes too long, see ``rules/overdue.py``.
    overdue: bool = False
    #: Seconds: its task's ``max_run``, and the usual ones of its queue; None: not known.
    max_run: float | None = None
    usual: float | None = None


@dataclass(frozen=True)
class LaneReport:
    """A lane with its shards; of very many, only the first are listed."""

    name: str
    shards: tuple[ShardRef, ...]
    shard_count: int
    running: Running | None = None
    #: Fraction of the last ten minutes in which it ran; None: it is younger.
    load: float | None = None


@dataclass(frozen=True)
class Wait:
    """Shards without an owner that a node may take in ``seconds``: another Redis gave their last lease."""

    shards: tuple[ShardRef, ...]
    seconds: float


@dataclass(frozen=True)
class NodeReport:
    """The last report of a node. Times are Unix s of Redis's clock."""

    name: str
    owner: str
    pid: int
    #: A node that is silent for longer is dead for the others.
    lease_seconds: float
    quiet: bool
    stopping: bool
    #: Names of the queues that it serves; a quiet node serves none.
    queues: tuple[str, ...]
    lanes: tuple[LaneReport, ...]
    # Added by the reader of the report.
    started_at: float = 0.0
    seen_at: float = 0.0
    #: Seconds since the report when it was read.
    silent: float = 0.0
    waits: tuple[Wait, ...] = ()
    #: The numbers of shards in its code, by queue.
    declared: Mapping[str, int] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """Whether it reported within its lease time."""
        return self.silent < self.lease_seconds

    def lane_of(self, shard: ShardRef) -> LaneReport | None:
        """Return the lane that lists the shard."""
        return self._lanes.get(shard)

    @cached_property
    def _lanes(self) -> dict[ShardRef, LaneReport]:
        return {shard: lane for lane in self.lanes for shard in lane.shards}

    @cached_property
    def _running(self) -> dict[ShardRef, Running]:
        return {lane.running.shard: lane.running for lane in self.lanes if lane.running is not None}

    def running(self, shard: ShardRef) -> Running | None:
        """Return the running batch of a shard."""
        return self._running.get(shard)


@dataclass(frozen=True)
class ShardReport:
    """A shard, its owner's name, and the owner's last report about it. Times are Unix s of Redis's clock.

    Of a shard whose master is ``away``, nothing else is known.
    """

    index: int
    stats: Stats
    #: None: no node owns it.
    owner: str | None = None
    epoch: int = 0
    #: When the owner took it, or left it; None: it never had one.
    since: float | None = None
    #: Whether the owner reported within its lease time; None: the master with the reports is away.
    alive: bool | None = None
    #: Seconds since the owner's report; None: none for an hour.
    silent: float | None = None
    running: Running | None = None
    #: When it was paused, by itself or with its queue; None: it is not.
    paused_since: float | None = None
    #: Waiting jobs that a migration has not sorted yet, also in `stats.length`; no claim takes them.
    moving: int = 0
    #: Jobs processed a minute, lately; None: not known.
    jobs_per_minute: float | None = None
    #: The lane of its owner that lists it; None: no lane does.
    lane: str | None = None
    #: Address of its master, while that is away.
    away: str | None = None


@dataclass(frozen=True)
class NodeUpdate:
    """Sent with a heartbeat: the report, samples to keep, and queues to be counted for the next samples."""

    report: NodeReport
    #: Seconds since the node's start.
    uptime: float
    samples: tuple[tuple[str, Counters], ...] = ()
    counted: tuple[QueueSpec, ...] = ()


class UpdateReply(NamedTuple):
    """The answer to an update: Redis's clock, and samples of the counted queues."""

    now: float
    samples: tuple[tuple[str, Counters], ...] = ()


class BeatResult(NamedTuple):
    """The answer to a heartbeat: of each queue, lanes and turn of all nodes, and its stored number of shards;
    and the answer to its update. None for a queue whose master is away.
    """

    members: list[dict[str, tuple[int, int]] | None]
    #: As text, empty when none is stored.
    routes: list[str | None]
    reply: UpdateReply | StoreError | None = None


def waits(free_at: Mapping[ShardRef, float], now: float) -> tuple[Wait, ...]:
    """Group shards by the time at which they are free, to 0.1 s; ``now`` is of the same clock."""
    by_time: dict[float, list[ShardRef]] = {}
    for shard, at in islice(free_at.items(), LISTED_SHARDS):
        by_time.setdefault(round(max(0.0, at - now), 1), []).append(shard)
    return tuple(Wait(tuple(shards), seconds) for seconds, shards in sorted(by_time.items()))


def seconds_to_wait(nodes: Iterable[NodeReport], shard: ShardRef) -> float | None:
    """Return seconds until a living node may take a shard without an owner; None: no node waits for it."""
    left = (
        wait.seconds - node.silent
        for node in nodes
        if node.alive
        for wait in node.waits
        if shard in wait.shards
    )
    return max(0.0, found) if (found := min(left, default=None)) is not None else None


def overdue_runs(nodes: Iterable[NodeReport]) -> list[Running]:
    """Return the runs of living nodes that take too long."""
    runs = (lane.running for node in nodes if node.alive for lane in node.lanes)
    return [run for run in runs if run is not None and run.overdue]


def node_name(owner: str) -> str:
    """Return the node's name, from the name of one of its starts."""
    return owner.rpartition("-")[0] or owner


def current(reports: Iterable[NodeReport]) -> tuple[NodeReport, ...]:
    """Return the reports sorted by name, without ended starts of a node that is alive."""
    found = sorted(reports, key=lambda report: (report.name, report.started_at))
    living = {report.name for report in found if report.alive}
    return tuple(report for report in found if report.alive or report.name not in living)
