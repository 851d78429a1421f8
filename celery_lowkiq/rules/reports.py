"""What nodes say of themselves, for people: written with each heartbeat, never a ground for a decision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from .errors import StoreError
from .history import Sample
from .models import Batch, QueueSpec, ShardRef
from .views import Stats

#: A report names so many shards at most; of the others it tells the number.
LISTED_SHARDS = 1000
#: And so many ids of a batch.
LISTED_IDS = 5


@dataclass(frozen=True)
class Running:
    """A batch that ran when the node reported: some of its ids, how many it has, and since how many s."""

    shard: ShardRef
    ids: tuple[str, ...]
    count: int
    seconds: float


@dataclass(frozen=True)
class LaneReport:
    """A lane with its shards; of a node with very many, not all are listed."""

    name: str
    shards: tuple[ShardRef, ...]
    shard_count: int
    running: Running | None = None


@dataclass(frozen=True)
class Wait:
    """Shards without an owner that a node may take in so many s: another Redis gave their last lease."""

    shards: tuple[ShardRef, ...]
    seconds: float


@dataclass(frozen=True)
class NodeReport:
    """A node as it described itself last. Times are Unix s of Redis's clock."""

    name: str
    owner: str
    pid: int
    #: In s: who was silent for longer is given up by the others.
    lease_seconds: float
    quiet: bool
    stopping: bool
    #: Names of the queues that it serves; a quiet node serves none.
    queues: tuple[str, ...]
    lanes: tuple[LaneReport, ...]
    # What a node does not say itself, but whoever reads it knows.
    started_at: float = 0.0
    seen_at: float = 0.0
    #: For how many s it had not been heard of, when this was read.
    silent: float = 0.0
    #: What it waits for; it does say that itself.
    waits: tuple[Wait, ...] = ()

    @property
    def alive(self) -> bool:
        """Whether it was heard of within its lease."""
        return self.silent < self.lease_seconds

    def lane_of(self, shard: ShardRef) -> LaneReport | None:
        """The lane that has the shard, as far as it is listed."""
        return next((lane for lane in self.lanes if shard in lane.shards), None)

    def running(self, shard: ShardRef) -> Running | None:
        """What it runs of a shard, with the time that has passed since it said so."""
        for lane in self.lanes:
            if lane.running is not None and lane.running.shard == shard:
                return lane.running
        return None


@dataclass(frozen=True)
class ShardReport:
    """A shard, its owner's name, and what that said last about it. Times are Unix s of Redis's clock."""

    index: int
    stats: Stats
    #: None: nobody has it.
    owner: str | None
    epoch: int
    #: When the owner took it, or left it; None: nobody ever had it.
    since: float | None
    #: Whether the owner was heard of within its lease, and for how many s it was not; None: not for an hour.
    alive: bool
    silent: float | None
    running: Running | None
    #: Since when it is paused, by itself or with its queue.
    paused_since: float | None


@dataclass(frozen=True)
class NodeUpdate:
    """What goes with a heartbeat: the report, samples to keep, and queues to be counted for the next ones."""

    report: NodeReport
    #: For how many s the node has been up.
    uptime: float
    samples: tuple[tuple[str, Sample], ...] = ()
    counted: tuple[QueueSpec, ...] = ()


class HeartbeatReply(NamedTuple):
    """The answer to news: Redis's clock, and what the queues counted."""

    now: float
    samples: tuple[tuple[str, Sample], ...] = ()


class BeatResult(NamedTuple):
    """The answer to a heartbeat: by queue, lanes and counter of all nodes, and what became of the news."""

    members: list[dict[str, tuple[int, int]]]
    told: HeartbeatReply | StoreError | None = None


def waits(free_at: Mapping[ShardRef, float], now: float) -> tuple[Wait, ...]:
    """Of shards by the time at which they are free, to 0.1 s; ``now`` is of the same clock."""
    by_time: dict[float, list[ShardRef]] = {}
    for shard, at in islice(free_at.items(), LISTED_SHARDS):
        by_time.setdefault(round(max(0.0, at - now), 1), []).append(shard)
    return tuple(Wait(tuple(shards), seconds) for seconds, shards in sorted(by_time.items()))


def seconds_to_wait(nodes: Iterable[NodeReport], shard: ShardRef) -> float | None:
    """In how many s a living node may take a shard without an owner; None: none says that it waits for it."""
    left = (
        wait.seconds - node.silent
        for node in nodes
        if node.alive
        for wait in node.waits
        if shard in wait.shards
    )
    return max(0.0, found) if (found := min(left, default=None)) is not None else None


def node_name(owner: str) -> str:
    """The node's name, of the name of one of its starts."""
    return owner.rpartition("-")[0] or owner


def describe_lane(name: str, shards: Sequence[ShardRef], listed: int, running: Running | None) -> LaneReport:
    """A lane with the first ``listed`` of its shards."""
    return LaneReport(name, tuple(shards[:listed]), len(shards), running)


def describe_run(batch: Batch, now: float) -> Running:
    """A batch that runs; ``now`` is monotonic."""
    ids = tuple(job.id for job in batch.jobs[:LISTED_IDS])
    return Running(batch.shard, ids, len(batch.jobs), round(max(0.0, now - batch.began_at), 3))


def current(reports: Iterable[NodeReport]) -> tuple[NodeReport, ...]:
    """Sorted by name, without those that ended when another start of the same node is alive."""
    found = sorted(reports, key=lambda report: (report.name, report.started_at))
    living = {report.name for report in found if report.alive}
    return tuple(report for report in found if report.alive or report.name not in living)
