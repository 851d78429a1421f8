"""The queues as the first page shows them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from celery_lowkiq.rules.layout import Layout
from celery_lowkiq.rules.text import by_master
from celery_lowkiq.rules.views import ShardState, Stats, sum_of


@dataclass(frozen=True)
class QueueLook:
    """Counts of a queue; ``unowned``: number of its shards without a living owner.

    For a queue with a damaged shard both are unknown, and ``damage`` is the error. Both lack the shards of
    masters that are ``away``.
    """

    name: str
    shards: int
    stats: Stats
    unowned: int
    damage: str = ""
    #: While its jobs move to another number of shards.
    migrating: Layout | None = None
    #: Addresses of masters, with the names of the shards.
    away: Mapping[str, str] = field(default_factory=dict)

    @property
    def unread(self) -> bool:
        """Whether no count is known."""
        return bool(self.damage) or self.stats.missing == self.shards

    @property
    def unserved(self) -> bool:
        return self.unowned == self.shards - self.stats.missing > 0

    @property
    def troubled(self) -> bool:
        """Whether it needs attention."""
        stats = self.stats
        return bool(self.unowned or stats.paused or stats.held or stats.backlog or self.damage or self.away)

    @property
    def paused(self) -> bool:
        """Whether the whole queue is paused."""
        return self.stats.paused == self.shards - self.stats.missing > 0


def queues_look(
    names: Iterable[str],
    states: Iterable[ShardState],
    owners: Collection[str] | None,
    migrating: Mapping[str, Layout],
) -> list[QueueLook]:
    """Return the queues, the largest lag first; ``owners`` are those of the living nodes, if known."""
    by_queue: dict[str, list[ShardState]] = {name: [] for name in names}
    for state in states:
        by_queue[state.shard.queue].append(state)
    found = [
        replace(_queue(name, shards, owners), migrating=migrating.get(name))
        for name, shards in by_queue.items()
    ]
    return sorted(found, key=lambda queue: (-queue.stats.lag, queue.name))


def _queue(name: str, shards: list[ShardState], owners: Collection[str] | None) -> QueueLook:
    stats = sum_of(shards)
    if not isinstance(stats, Stats):
        return QueueLook(name, len(shards), Stats(), 0, str(stats))
    there = [state for state in shards if state.away is None]
    unowned = sum(state.lease.owner not in owners for state in there) if owners is not None else 0
    away = by_master({state.shard: state.away for state in shards if state.away is not None})
    return QueueLook(name, len(shards), stats, unowned, away=away)
