"""The picture of a migration: bars of the former shards on the left, of the new ones on the right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from celery_lowkiq.rules.resharding import MigrationState
from celery_lowkiq.rules.text import ranges

#: Maximum number of bars of a side. With more shards, a bar is of several.
MAX_BARS = 48


@dataclass(frozen=True)
class Bar:
    """Jobs of some shards, ``3`` or ``0-7``: those that claims may take, and those that are to be sorted."""

    shards: str
    sorted: int
    unsorted: int

    @property
    def count(self) -> int:
        """All jobs of the bar."""
        return self.sorted + self.unsorted


@dataclass(frozen=True)
class Picture:
    """Left: jobs to sort, and those that may run in shards that are removed. Right: all others that wait."""

    left: tuple[Bar, ...]
    right: tuple[Bar, ...]

    @property
    def largest(self) -> int:
        """The largest count of a bar."""
        return max(bar.count for bar in (*self.left, *self.right))

    @property
    def sorted(self) -> int:
        """Jobs that claims may take."""
        return sum(bar.sorted for bar in (*self.left, *self.right))

    @property
    def unsorted(self) -> int:
        """Jobs that are to be sorted."""
        return sum(bar.unsorted for bar in (*self.left, *self.right))


def picture_of(state: MigrationState) -> Picture:
    """Return the picture of a migration. Each job is in one bar, and in one bar only."""
    former, shards = state.former, state.shards
    left, right = [], []
    for shard in state.progress:
        unsorted = state.unsorted(shard)
        done = shard.waiting - unsorted
        if shard.index < former:
            left.append((0 if shard.index < shards else done, unsorted))
        if shard.index < shards:
            right.append((done, 0 if shard.index < former else unsorted))
    return Picture(_bars(left), _bars(right))


def _bars(counts: Sequence[tuple[int, int]]) -> tuple[Bar, ...]:
    size = -(-len(counts) // MAX_BARS)
    starts = range(0, len(counts), size)
    return tuple(_bar(start, counts[start : start + size]) for start in starts)


def _bar(start: int, counts: Sequence[tuple[int, int]]) -> Bar:
    shards = ranges(range(start, start + len(counts)))
    return Bar(shards, sum(done for done, _ in counts), sum(unsorted for _, unsorted in counts))
