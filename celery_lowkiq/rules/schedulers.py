"""Schedulers: choose the next of a lane's shards to work. Every lane has its own."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping

from .models import ShardRef

#: ``(due times by shard, Redis's now) -> shard, or None to work none now``. A lane passes the shards that are
#: due, at least one, and falls back to ``lag`` when the answer is not one of them.
Scheduler = Callable[[Mapping[ShardRef, float], float], "ShardRef | None"]


def lag() -> Scheduler:
    """Choose the shard whose oldest due job has waited longest."""

    def pick(due: Mapping[ShardRef, float], now: float) -> ShardRef | None:
        shard = min(due, key=lambda ref: (due[ref], ref), default=None)
        return shard if shard is not None and due[shard] <= now else None

    return pick


def seq() -> Scheduler:
    """Choose the due shards in turn."""
    last: list[ShardRef] = []

    def pick(due: Mapping[ShardRef, float], now: float) -> ShardRef | None:
        ready = sorted(ref for ref, when in due.items() if when <= now)
        if not ready:
            return None
        following = [ref for ref in ready if last and ref > last[0]]
        last[:] = [(following or ready)[0]]
        return last[0]

    return pick


def weighted(weights: Mapping[str, float], draw: Callable[[], float] = random.random) -> Scheduler:
    """Draw a queue with due jobs by weight (default 1), then choose its shard by lag.

    ``draw`` returns a random number in [0, 1).
    """
    by_lag = lag()

    def pick(due: Mapping[ShardRef, float], now: float) -> ShardRef | None:
        ready = {ref: when for ref, when in due.items() if when <= now}
        queues = sorted({ref.queue for ref in ready})
        if len(queues) > 1:
            # Efraimidis and Spirakis: the largest u**(1/weight) wins. Logarithms keep small weights apart.
            queues = [max(queues, key=lambda name: math.log(1.0 - draw()) / weights.get(name, 1.0))]
        return by_lag({ref: when for ref, when in ready.items() if ref.queue in queues}, now)

    return pick
