"""Damage of a shard, found by comparing its keys; when a repair is allowed, and its report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from celery_lowkiq.rules.models import Layout, ShardRef


class Registered(NamedTuple):
    """The content of a queue's own key: layout; number and begin of its last pause; whether shards move."""

    layout: Layout
    pause: str
    since: str
    is_migrating: bool = False


@dataclass(frozen=True)
class Condition:
    """The state of a shard's keys."""

    shard: ShardRef
    #: Number of shards of the queue as stored in the shard; '' when it is missing.
    shards: str
    owned: bool
    #: Claimable jobs with a priority.
    urgent: int
    #: Names of keys of the wrong type.
    wrong: tuple[str, ...]
    #: Number of entries of each key.
    counts: Mapping[str, int]

    @property
    def used(self) -> bool:
        """True if the shard has jobs or paused ids."""
        return any(self.counts[name] for name in _USED)


#: Keys that have entries while the shard has jobs or paused ids.
_USED = (
    *("jobs", "due", "due_prioritized", "due_paused", "moving", "claimed", "processing", "paused"),
    *("spill_order", "dead", "dead_ids", "dead_jobs", "dead_spill_order"),
)


@dataclass(frozen=True)
class Damage:
    """A description of one damage of a shard."""

    #: None for the queue as a whole.
    shard: ShardRef | None
    text: str


@dataclass(frozen=True)
class Repaired:
    """The result of a shard's repair. Counts are of jobs; ``mended`` is of entries."""

    shard: ShardRef
    #: Keys of the wrong type, which were deleted.
    cleared: tuple[str, ...] = ()
    #: True if meta was rewritten.
    meta: bool = False
    #: Waiting jobs that are due now because their due times were lost.
    undated: int = 0
    mended: int = 0
    lost_waiting: int = 0
    lost_processing: int = 0
    lost_dead: int = 0

    def plus(self, **counts: int) -> Repaired:
        """Return the report with counts added to its fields."""
        return replace(self, **{name: getattr(self, name) + count for name, count in counts.items()})

    @property
    def lost(self) -> int:
        """Number of jobs whose payloads were lost."""
        return self.lost_waiting + self.lost_processing + self.lost_dead

    @property
    def text(self) -> str:
        """The report as text; empty when nothing was repaired."""
        return "; ".join(_done(self))


def can_restore_meta(shard: ShardRef, says: str, registered: Layout, ids: Iterable[str]) -> bool:
    """True if meta of a shard may be rewritten with the registered number of shards.

    It may when meta has no number, no migration is under way, and the shard's ids belong there. A closed
    shard is in a migration that the queue's own key may have lost.
    """
    return (
        Layout.parse(says) is None
        and says != "closed"
        and registered.former is None
        and shard.index < registered.shards
        and all(registered.home(job_id) == shard.index for job_id in ids)
    )


def said_count(shards: Sequence[Condition]) -> int | None:
    """The number of shards that all shards with jobs have in meta; None when they differ, or have none."""
    counts = {shard.shards for shard in shards if shard.used}
    said = Layout.parse(counts.pop()) if len(counts) == 1 else None
    return said.shards if said and said.former is None else None


def damages(condition: Condition, registered: Layout) -> tuple[Damage, ...]:
    """Return the damages of a shard; ``registered`` is the queue's layout in its registry."""
    return tuple(Damage(condition.shard, text) for text in _damages(condition, registered))


def _damages(condition: Condition, registered: Layout) -> Iterator[str]:
    for name in condition.wrong:
        yield f"the key {name} has the wrong type"
    # Comparisons with a key of the wrong type would report the same damage again.
    counts = {name: count for name, count in condition.counts.items() if name not in condition.wrong}
    yield from _of_meta(condition, counts, registered)
    yield from _of_pairs(counts)
    yield from _of_lists(condition, counts)


def _of_meta(condition: Condition, counts: Mapping[str, int], registered: Layout) -> Iterator[str]:
    differs = condition.shards != registered.route
    if "meta" in counts and differs and (condition.used or Layout.parse(condition.shards)):
        stored = f"{condition.shards!r} shards" if condition.shards else "no number of shards"
        yield f"meta has {stored}, the queue has {registered.route}"


def _of_pairs(counts: Mapping[str, int]) -> Iterator[str]:
    for names, text in _PAIRS:
        if all(name in counts for name in names):
            first, *others = numbers = [counts[name] for name in names]
            if first != sum(others):
                yield text.format(*numbers)


def _of_lists(condition: Condition, counts: Mapping[str, int]) -> Iterator[str]:
    for order, jobs in (("spill_order", "jobs"), ("dead_spill_order", "dead_jobs")):
        if counts.get(order) and counts.get(jobs) == 0:
            yield f"{counts[order]} payloads in {order} belong to no job"
    if {"due_prioritized", "by_priority"} <= counts.keys() and condition.urgent != counts["due_prioritized"]:
        yield f"{counts['due_prioritized']} jobs are ordered by priority, {condition.urgent} have one"
    if counts.get("due_paused") and counts.get("paused") == 0:
        yield f"{counts['due_paused']} jobs wait as paused, but no id is paused"


#: Keys whose numbers of entries must agree: that of the first is the sum of the others.
_PAIRS = (
    (("processing", "claimed"), "{} jobs are in processing, {} are claimed"),
    (
        ("jobs", "due", "due_prioritized", "due_paused", "moving"),
        "{} jobs wait, {} + {} + {} + {} have a due time",
    ),
    (("spill", "spill_order"), "of long jobs {} payloads have a place, {} are in order"),
    (("failed", "errors"), "{} waiting jobs have failed, {} have an error"),
    (("dead_jobs", "dead"), "{} dead jobs have payloads, {} have a time"),
    (("dead_jobs", "dead_ids"), "{} dead jobs have payloads, {} are listed"),
    (("dead_jobs", "dead_errors"), "{} dead jobs have payloads, {} have an error"),
    (("dead_spill", "dead_spill_order"), "of long dead jobs {} payloads have a place, {} are in order"),
)


def _done(repaired: Repaired) -> Iterator[str]:
    for name in repaired.cleared:
        yield f"the key {name} had the wrong type and was deleted"
    if repaired.meta:
        yield (
            "meta was rewritten with numbers above all stored ones: its counts start at 0, and a pause of "
            "only this shard is lost"
        )
    if repaired.undated:
        yield f"{repaired.undated} waiting jobs are due now because their due times were lost"
    if repaired.mended:
        yield f"{repaired.mended} entries were rewritten from other keys"
    for count, kind in (
        (repaired.lost_waiting, "waiting"),
        (repaired.lost_processing, "processing"),
        (repaired.lost_dead, "dead"),
    ):
        if count:
            yield f"{count} {kind} jobs are LOST: their payloads are gone"
