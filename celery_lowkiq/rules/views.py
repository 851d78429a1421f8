"""What counts and listings show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .errors import ShardDamaged
from .models import Job, LeaseState, Payload, ShardRef

T = TypeVar("T", covariant=True)
U = TypeVar("U")


@dataclass(frozen=True)
class Stats:
    """Counts of one shard, or the sum of a queue's. ``lag`` and ``oldest`` in s (of a sum: the largest)."""

    length: int = 0
    fresh: int = 0
    retries: int = 0
    morgue_length: int = 0
    busy: int = 0
    processed: int = 0
    failed: int = 0
    lag: float = 0.0
    #: Calls that were merged into a job that waited.
    merged: int = 0
    #: Payloads that went to the morgue.
    dead: int = 0
    #: For how long the oldest job that waits is due, also one that may not be claimed: its id is processed,
    #: or it is paused.
    oldest: float = 0.0
    #: Jobs, of those that ``length`` counts, whose ids are paused.
    paused_jobs: int = 0
    #: Shards that are paused, by themselves or with their queue.
    paused: int = 0
    #: Payloads that were dropped without a run: revoked, expired, or by a policy.
    dropped: int = 0

    def __add__(self, other: Stats) -> Stats:
        return Stats(
            length=self.length + other.length,
            fresh=self.fresh + other.fresh,
            retries=self.retries + other.retries,
            morgue_length=self.morgue_length + other.morgue_length,
            busy=self.busy + other.busy,
            processed=self.processed + other.processed,
            failed=self.failed + other.failed,
            lag=max(self.lag, other.lag),
            merged=self.merged + other.merged,
            dead=self.dead + other.dead,
            oldest=max(self.oldest, other.oldest),
            paused_jobs=self.paused_jobs + other.paused_jobs,
            paused=self.paused + other.paused,
            dropped=self.dropped + other.dropped,
        )


@dataclass(frozen=True)
class DeadJob:
    """A job in the morgue; ``updated_at`` is the Unix time (s) of its last death."""

    id: str
    payloads: tuple[Payload, ...]
    updated_at: float
    error: bytes | None = None
    #: How many payloads it has; a listing may show fewer of them.
    payload_count: int = 0


@dataclass(frozen=True)
class Found:
    """Where an id was found; it may be in several places at once."""

    waiting: Job | None = None
    processing: Job | None = None
    dead: DeadJob | None = None


@dataclass(frozen=True)
class Try:
    """A failed run of a job: when (Unix s), its retry_count after it, the node, and the error's last line."""

    at: float
    retry_count: int
    node: str
    error: str


@dataclass(frozen=True)
class Paused:
    """Since when (Unix s) a queue is paused, and which of its shards by themselves; how many ids are."""

    queue: float | None
    shards: Mapping[int, float]
    ids: int


@dataclass(frozen=True)
class PausedId:
    """An id that is paused since then (Unix s), whether anything waits of it or not."""

    id: str
    since: float


@dataclass(frozen=True)
class ShardLook:
    """A shard at one moment: its counts, and its lease (which names no server). Both are empty where there is
    a ``damage``, which says why they could not be read.
    """

    shard: ShardRef
    stats: Stats
    lease: LeaseState
    damage: ShardDamaged | None = None


def sum_of(looks: Iterable[ShardLook]) -> Stats | ShardDamaged:
    """Counts of a queue; the first damage of its shards where there is one, since counters without some of
    the shards would go back.
    """
    total = Stats()
    for look in looks:
        if look.damage is not None:
            return look.damage
        total += look.stats
    return total


@dataclass(frozen=True)
class Page(Generic[T]):
    """Part of a listing. ``next`` goes into ``after`` for the following part; None at the end."""

    items: tuple[T, ...]
    next: str | None

    def map(self, function: Callable[[T], U]) -> Page[U]:
        """Return the page with the function applied to each item."""
        return Page(tuple(map(function, self.items)), self.next)


def all_items(read: Callable[..., Page[U]], **options: Any) -> Iterator[U]:
    """Yield the items of all pages of a listing; ``read`` gets ``after`` and the options."""
    after: str | None = None
    while True:
        page = read(after=after, **options)
        yield from page.items
        after = page.next
        if after is None:
            return
