"""Values that reads return: counts, histories, reports of nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice, zip_longest
from operator import add
from typing import Any, Generic, NamedTuple, TypeVar

from celery_lowkiq.rules.basics import cached_property
from celery_lowkiq.rules.errors import InvalidCall, ShardDamaged, StoreError
from celery_lowkiq.rules.models import Job, LeaseState, Payload, QueueSpec, ShardRef

# Findings of health checks, and the words that they share.

OK, WARNING, ERROR = "ok", "warning", "error"
#: Maximum number of shards, or of names, in a finding.
LISTED = 10


@dataclass(frozen=True)
class Finding:
    """The result of a check. ``level``: ok, warning or error; ``advice``: what to do, empty for nothing."""

    level: str
    subject: str
    text: str
    advice: str = ""


def counted(count: int, one: str, more: str) -> str:
    """Return a count with the word for one, or for more."""
    return f"{count} {one if count == 1 else more}"


# Samples of a queue's counters over the last hour and the last day, and the rates computed from them.

#: Seconds between counters by shard, and number of them that are kept.
SHARDS_STEP, SHARDS_KEPT = 60, 2
#: Seconds over which rates are averaged, and age in s of the newest sample beyond which there is no rate.
RATE_SECONDS = 60.0
STALE = 45.0


@dataclass(frozen=True)
class Span:
    """A span of time for which samples are kept: ``seconds`` long, with one sample in each ``step`` s."""

    name: str
    seconds: int
    step: int

    @property
    def samples(self) -> int:
        """Maximum number of its samples."""
        return self.seconds // self.step

    def slot(self, at: float) -> int:
        """Return the number of the time slot of a Unix time; there is at most one sample per slot."""
        return int(at // self.step)


HOUR, DAY = Span("1h", 3600, 10), Span("24h", 86_400, 600)
SPANS = {span.name: span for span in (HOUR, DAY)}


def span_of(name: str) -> Span:
    """Return the span of that name. Raises InvalidCall."""
    if name not in SPANS:
        raise InvalidCall(f"span={name[:50]!r} is invalid: expected one of {', '.join(SPANS)}")
    return SPANS[name]


@dataclass(frozen=True, order=True)
class Sample:
    """Counters at a Unix time (s): jobs processed and runs failed since the queue exists.

    ``lag``: the largest (s) that was seen in its time slot.
    """

    at: float
    processed: int
    failed: int
    lag: float = 0.0


@dataclass(frozen=True, order=True)
class Counters:
    """Counters at a Unix time (s): jobs processed by shard; failed runs and the lag (s) of all shards.

    The time is that of the master which stores the queue's history.
    """

    at: float
    processed: tuple[int, ...]
    failed: int = 0
    lag: float = 0.0


@dataclass(frozen=True)
class Rates:
    """Jobs per second."""

    processed: float
    failed: float


def rates(samples: Sequence[Sample], now: float) -> Rates | None:
    """Return the rates over the last minute of samples, oldest first.

    None when samples are too few or too old, or when counters were reset.
    """
    recent = [sample for sample in samples if sample.at >= now - RATE_SECONDS - HOUR.step]
    if len(recent) < 2 or recent[-1].at < now - STALE:
        return None
    first, last = recent[0], recent[-1]
    seconds = last.at - first.at
    processed, failed = last.processed - first.processed, last.failed - first.failed
    if seconds <= 0 or processed < 0 or failed < 0:
        return None
    return Rates(processed / seconds, failed / seconds)


def shard_rates(
    earlier: Iterable[Counters], processed: Sequence[int], now: float
) -> tuple[float | None, ...]:
    """Return the jobs a minute of each shard, over the last one to two minutes.

    None when earlier counters are too recent or too old, or when one of them was larger: counters were reset,
    or those of a removed shard were added to others.
    """
    longest = SHARDS_STEP * SHARDS_KEPT + STALE
    if first := min((one for one in earlier if HOUR.step <= now - one.at <= longest), default=None):
        done = [new - old for new, old in zip_longest(processed, first.processed, fillvalue=0)]
        if min(done) >= 0:
            return tuple(60 * count / (now - first.at) for count in done[: len(processed)])
    return (None,) * len(processed)


def sum_of(histories: Iterable[Sequence[Sample]], span: Span = HOUR) -> tuple[Sample, ...]:
    """Return the sum of several histories of a span, with the largest of their lags.

    A gap in one counts with its previous sample, without its lag.
    """
    by_slot = [{span.slot(sample.at): sample for sample in samples} for samples in histories if samples]
    latest = [min(samples.values()) for samples in by_slot]
    total = []
    for number in sorted(set[int]().union(*by_slot)):
        latest = [samples.get(number, last) for samples, last in zip(by_slot, latest, strict=True)]
        found = [samples[number] for samples in by_slot if number in samples]
        at, lag = max(one.at for one in found), max(one.lag for one in found)
        total.append(Sample(at, sum(s.processed for s in latest), sum(s.failed for s in latest), lag))
    return tuple(total)


# Views of jobs and shards for people: counts, and entries and pages of listings.

T = TypeVar("T", covariant=True)
U = TypeVar("U")


#: Number of the busiest ids that are counted.
BUSIEST = 5
#: Waiting calls of one id from which on it has a backlog: more than one claim takes.
BACKLOG = 1000


@dataclass(frozen=True)
class IdCalls:
    """An id with the number of its waiting calls."""

    queue: str
    id: str
    calls: int


def busiest(one: tuple[IdCalls, ...], other: tuple[IdCalls, ...]) -> tuple[IdCalls, ...]:
    """Return the ids with the most calls, the largest number first."""
    return tuple(sorted(one + other, key=lambda found: -found.calls)[:BUSIEST])


def _stored() -> Any:
    """A count of ``stats.lua``; the other fields are computed from its reply."""
    return field(default=0, metadata={"stored": True})


@dataclass(frozen=True)
class Stats:
    """Counts of a shard, or the sum of several. Times are in s; a sum has the largest."""

    length: int = _stored()
    fresh: int = 0
    retries: int = _stored()
    morgue_length: int = _stored()
    busy: int = _stored()
    processed: int = _stored()
    failed: int = _stored()
    lag: float = 0.0
    #: Runs that were saved: calls that were merged into a waiting job and will not run by themselves.
    merged: int = _stored()
    #: Payloads that went to the morgue.
    dead: int = _stored()
    #: Seconds for which the oldest waiting job is due, even if it may not be claimed: its id is in processing
    #: or paused.
    oldest: float = 0.0
    #: Waiting jobs whose ids are paused, or held by a death.
    paused_jobs: int = _stored()
    #: Ids that are paused, with or without a waiting job.
    paused_ids: int = _stored()
    #: Paused shards, by themselves or with their queue.
    paused: int = _stored()
    #: Payloads that were dropped without a run: revoked, expired, or by a policy.
    dropped: int = _stored()
    #: Waiting jobs that are due and not paused, also those whose ids are in processing.
    due: int = _stored()
    #: Ids that a death holds, with or without a waiting job, and the seconds for which the longest is held.
    held: int = _stored()
    held_for: float = 0.0
    #: Shards that are in no count because their masters are unreachable.
    missing: int = 0
    #: Waiting calls: the payloads of the waiting jobs, of which equal ones were merged.
    calls: int = _stored()
    #: Seconds for which the oldest of them waits, from its arrival or due time on. Of an id with few calls,
    #: the seconds since its last run, if it has run since.
    oldest_call: float = 0.0
    #: The ids with the most waiting calls, among those with more than about 1 KiB of them. In a shard, each
    #: id with at least a 16th of the calls of such ids is found.
    busiest: tuple[IdCalls, ...] = ()

    def __add__(self, other: Stats) -> Stats:
        joined = {name: _JOINED.get(name, add)(one, getattr(other, name)) for name, one in vars(self).items()}
        return Stats(**joined)

    @property
    def backlog(self) -> tuple[IdCalls, ...]:
        """The busiest ids that have more waiting calls than one claim takes."""
        return tuple(found for found in self.busiest if found.calls > BACKLOG)


#: Names of the counts of a shard, in the order in which ``stats.lua`` returns them.
COUNTS = tuple(one.name for one in fields(Stats) if one.metadata)
#: How fields of a sum are made that are no sums.
_JOINED: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("lag", "oldest", "held_for", "oldest_call"), max),
    "busiest": busiest,
}


@dataclass(frozen=True)
class DeadJob:
    """A job in the morgue; ``updated_at`` is the Unix time (s) of its last death."""

    id: str
    payloads: tuple[Payload, ...]
    updated_at: float
    error: bytes | None
    #: Number of its payloads; a listing may show fewer.
    payload_count: int
    #: Since when (Unix s) it holds its id; None: newer payloads go on.
    held_since: float | None = None


@dataclass(frozen=True)
class Found:
    """Where an id was found; it may be in several places at once."""

    waiting: Job | None = None
    processing: Job | None = None
    dead: DeadJob | None = None

    def joined(self, other: Found) -> Found:
        """Return the places, and those of ``other`` that are empty here."""
        return Found(
            self.waiting or other.waiting, self.processing or other.processing, self.dead or other.dead
        )


@dataclass(frozen=True)
class Try:
    """A failed run of a job: when (Unix s), its retry_count after it, the node, and the error's last line."""

    at: float
    retry_count: int
    node: str
    error: str


@dataclass(frozen=True)
class FailedJob:
    """A failing or dead job without its payloads: when it failed last (Unix s; 0: unknown), and its error.

    ``fits``: whether the listing has it that was asked for.
    """

    id: str
    at: float
    error: bytes
    fits: bool = True


@dataclass(frozen=True)
class StoredGroup:
    """A group of failures as it is stored; times are Unix times in s."""

    fingerprint: str
    count: int
    first_seen: float
    last_seen: float
    about: bytes


@dataclass(frozen=True)
class Paused:
    """When (Unix s) a queue and single shards were paused, and the number of paused ids.

    ``unreachable``: as for :class:`ShardsPage`.
    """

    queue: float | None
    shards: Mapping[int, float]
    ids: int
    unreachable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PausedId:
    """An id that was paused at ``since`` (Unix s), with or without a waiting job."""

    id: str
    since: float


@dataclass(frozen=True)
class HeldId:
    """An id that a death holds since ``since`` (Unix s); ``paused``: it is paused, too."""

    id: str
    since: float
    paused: bool


@dataclass(frozen=True)
class ShardState:
    """A shard at one moment: its counts, and its lease (which names no server).

    Both are empty if there is a ``damage``, which says why they could not be read, and if the shard's master
    is ``unreachable``: its address then.
    """

    shard: ShardRef
    stats: Stats
    lease: LeaseState
    damage: ShardDamaged | None = None
    unreachable: str | None = None


def sum_of_states(states: Iterable[ShardState]) -> Stats | ShardDamaged:
    """Return the counts of a queue, or the first damage of its shards: a sum without these would go back.

    The sum tells how many shards are missing because their masters are unreachable.
    """
    total = Stats()
    for state in states:
        if state.damage is not None:
            return state.damage
        total += state.stats
    return total


@dataclass(frozen=True)
class Page(Generic[T]):
    """Part of a listing. ``next`` goes into ``after`` for the following part; None at the end."""

    items: tuple[T, ...]
    next: str | None

    def map(self, function: Callable[[T], U]) -> Page[U]:
        """Return the page with the function applied to each item."""
        return Page(tuple(map(function, self.items)), self.next)


@dataclass(frozen=True)
class ShardsPage(Page[T]):
    """Part of a listing of what lies in the shards of a queue.

    ``unreachable``: on a cluster, the names of the shards that this page or one before lacks because their
    masters were unreachable, by the address of the master.
    """

    unreachable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SearchPage(ShardsPage[T]):
    """Part of a listing of jobs. It may be empty while there is a next one.

    ``searched``: entries of the listing that were read for it, one by one, of ``total``; None when an index
    found the jobs.
    """

    searched: int | None = None
    total: int | None = None

    def map(self, function: Callable[[T], U]) -> SearchPage[U]:
        """Return the page with the function applied to each item."""
        items = tuple(map(function, self.items))
        return SearchPage(items, self.next, self.unreachable, self.searched, self.total)


def all_items(
    read: Callable[..., Page[U]], unreachable: dict[str, str] | None = None, **options: Any
) -> Iterator[U]:
    """Yield the items of all pages of a listing; ``read`` gets ``after`` and the options.

    ``unreachable`` gets that of a :class:`ShardsPage`.
    """
    after: str | None = None
    while True:
        page = read(after=after, **options)
        if unreachable is not None and isinstance(page, ShardsPage):
            unreachable.update(page.unreachable)
        yield from page.items
        after = page.next
        if after is None:
            return


# Reports of nodes about themselves, written with each heartbeat: for people, never used for a decision.

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
    #: True if it takes too long, see ``rules/health.py``.
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
    #: A node that is silent for longer is dead for the other nodes.
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
        """True if it reported within its lease time."""
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
        return self._running.get(shard)


@dataclass(frozen=True)
class ShardReport:
    """A shard, its owner's name, and the owner's last report about it. Times are Unix s of Redis's clock.

    Nothing else is known of a shard with an ``unreachable`` master.
    """

    index: int
    stats: Stats
    #: None: no node owns it.
    owner: str | None = None
    epoch: int = 0
    #: When the owner took it, or left it; None: it never had one.
    since: float | None = None
    #: True if the owner reported within its lease time; None: the master with the reports is unreachable.
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
    #: Address of its master, while that is unreachable.
    unreachable: str | None = None


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
    and the answer to its update. None for a queue whose master is unreachable.
    """

    members: list[dict[str, tuple[int, int]] | None]
    #: Each as text, empty when none is stored.
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
