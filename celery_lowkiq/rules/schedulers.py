"""Which of a lane's shards is worked next. Every lane has a scheduler of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .models import ShardRef

#: ``(due times by shard, Redis's now) -> shard, or None when none is due``.
Scheduler = Callable[[Mapping[ShardRef, float], float], "ShardRef | None"]


def lag() -> Scheduler:
    """The shard whose oldest due job has waited longest."""

    def pick(due: Mapping[ShardRef, float], now: float) -> ShardRef | None:
        shard = min(due, key=lambda ref: (due[ref], ref), default=None)
        return shard if shard is not None and due[shard] <= now else None

    return pick


def seq() -> Scheduler:
    """The shards in turn, passing by those that have nothing due."""
    last: list[ShardRef] = []

    def pick(due: Mapping[ShardRef, float], now: float) -> ShardRef | None:
        ready = sorted(ref for ref, when in due.items() if when <= now)
        if not ready:
            return None
        following = [ref for ref in ready if last and ref > last[0]]
        last[:] = [(following or ready)[0]]
        return last[0]

    return pick
