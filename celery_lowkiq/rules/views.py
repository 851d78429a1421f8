"""Views of jobs and shards for people: counts, and entries and pages of listings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import add
from typing import Any, Generic, TypeVar

from .errors import ShardDamaged
from .models import Job, LeaseState, Payload, ShardRef

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


@dataclass(frozen=True)
class Stats:
    """Counts of a shard, or the sum of several. Times are in s; a sum has the largest."""

    length: int = 0
    fresh: int = 0
    retries: int = 0
    morgue_length: int = 0
    busy: int = 0
    processed: int = 0
    failed: int = 0
    lag: float = 0.0
    #: Runs that were saved: calls that were merged into a waiting job and will not run by themselves.
    merged: int = 0
    #: Payloads that went to the morgue.
    dead: int = 0
    #: Seconds for which the oldest waiting job is due, even if it may not be claimed: its id is in processing
    #: or paused.
    oldest: float = 0.0
    #: Waiting jobs whose ids are paused, or held by a death.
    paused_jobs: int = 0
    #: Ids that are paused, with or without a waiting job.
    paused_ids: int = 0
    #: Paused shards, by themselves or with their queue.
    paused: int = 0
    #: Payloads that were dropped without a run: revoked, expired, or by a policy.
    dropped: int = 0
    #: Waiting jobs that are due and not paused, also those whose ids are in processing.
    due: int = 0
    #: Ids that a death holds, with or without a waiting job, and the seconds for which the longest is held.
    held: int = 0
    held_for: float = 0.0
    #: Shards that are in no count, since their masters are away.
    missing: int = 0
    #: Waiting calls: the payloads of the waiting jobs, of which equal ones were merged.
    calls: int = 0
    #: Seconds for which the oldest of them waits, from its arrival or due time on. Of an id with few calls,
    #: the seconds since its last run, if it has run since.
    oldest_call: float = 0.0
    #: The ids with the most waiting calls, among those with more than about 1 KiB of them. In a shard, each
    #: id with at least a 16th of the calls of such ids is found.
    busiest: tuple[IdCalls, ...] = ()

    def __add__(self, other: Stats) -> Stats:
        both = ((name, value, getattr(other, name)) for name, value in vars(self).items())
        return Stats(**{name: _JOINED.get(name, add)(one, two) for name, one, two in both})

    @property
    def backlog(self) -> tuple[IdCalls, ...]:
        """The busiest ids that have more waiting calls than one claim takes."""
        return tuple(found for found in self.busiest if found.calls > BACKLOG)


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

    ``away``: as for :class:`ShardsPage`.
    """

    queue: float | None
    shards: Mapping[int, float]
    ids: int
    away: Mapping[str, str] = field(default_factory=dict)


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
    is ``away``: its address then.
    """

    shard: ShardRef
    stats: Stats
    lease: LeaseState
    damage: ShardDamaged | None = None
    away: str | None = None


def sum_of(states: Iterable[ShardState]) -> Stats | ShardDamaged:
    """Return the counts of a queue, or the first damage of its shards: a sum without these would go back.

    The sum tells how many shards are missing, since their masters are away.
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

    ``away``: on a cluster, the names of the shards that this page or one before lacks, since their masters
    were away, by the address of the master.
    """

    away: Mapping[str, str] = field(default_factory=dict)


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
        return SearchPage(items, self.next, self.away, self.searched, self.total)


def all_items(
    read: Callable[..., Page[U]], away: dict[str, str] | None = None, **options: Any
) -> Iterator[U]:
    """Yield the items of all pages of a listing; ``read`` gets ``after`` and the options.

    ``away`` gets that of a :class:`ShardsPage`.
    """
    after: str | None = None
    while True:
        page = read(after=after, **options)
        if away is not None and isinstance(page, ShardsPage):
            away.update(page.away)
        yield from page.items
        after = page.next
        if after is None:
            return
