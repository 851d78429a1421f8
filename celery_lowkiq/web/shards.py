"""The cell of a shard in the strip of all shards of a queue."""

from __future__ import annotations

from dataclasses import dataclass

from celery_lowkiq.rules.reports import ShardReport
from celery_lowkiq.rules.shard_hints import LATE
from celery_lowkiq.rules.text import duration

from .formatting import plain

#: Lag (s) from which a shard is very late.
VERY_LATE = 300.0
#: Numbers of jobs from which the colour is darker.
STEPS = (1, 10, 100, 1000)


@dataclass(frozen=True)
class Look:
    """``kind`` is its colour: idle, some-1 to some-4, late, very-late, paused or unowned."""

    index: int
    kind: str
    text: str


def shards_look(shard: ShardReport) -> Look:
    """Return the cell of a shard: its colour, and its state as text."""
    return Look(shard.index, _kind(shard), _text(shard))


def _kind(shard: ShardReport) -> str:
    stats = shard.stats
    if shard.owner is None or not shard.alive:
        return "unowned"
    if shard.paused_since is not None:
        return "paused"
    if stats.lag >= LATE:
        return "very-late" if stats.lag >= VERY_LATE else "late"
    level = sum(stats.length + stats.busy >= step for step in STEPS)
    return f"some-{level}" if level else "idle"


def _text(shard: ShardReport) -> str:
    parts = [f"Shard {shard.index}", f"{shard.stats.length:,} waiting"]
    parts += [f"lag {duration(shard.stats.lag)}"] if shard.stats.lag else []
    parts += [f"{shard.jobs_per_minute:,.0f} a minute"] if shard.jobs_per_minute else []
    parts += ["paused"] if shard.paused_since is not None else []
    parts.append("no owner" if shard.owner is None else plain(shard.owner))
    parts += ["silent"] if shard.owner and not shard.alive else []
    if shard.running is not None:
        parts.append(f"runs {plain(', '.join(shard.running.ids[:3]))}")
    return " · ".join(parts)
