"""Warns about parts of the shards that no node was given, or two were: a wrong node number."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from celery_lowkiq.rules.balance import ORPHANED
from celery_lowkiq.rules.clock import Clock
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.ownership import Watch

from ..ports import Store

logger = logging.getLogger("celery_lowkiq.worker")


class Strays:
    """Looks once in a lease time, and says once what has been so for three of them."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        owner: str,
        lease_seconds: float,
        shards: Mapping[ShardRef, QueueSpec],
        wanted: Collection[ShardRef],
    ) -> None:
        self._store = store
        self._clock = clock
        self._owner = owner
        self._seconds = lease_seconds
        self._wanted = frozenset(wanted)
        self._watches = {shard: Watch(queue, shard) for shard, queue in shards.items()}
        self._next = clock.monotonic()
        self._twice_since: dict[ShardRef, float] = {}
        self._said: set[ShardRef] = set()

    def look(self) -> None:
        """Raises StoreError."""
        now = self._clock.monotonic()
        if now < self._next or len(self._wanted) == len(self._watches):
            return
        self._next = now + self._seconds
        states = self._store.observe(list(self._watches))
        for (shard, watch), state in zip(list(self._watches.items()), states, strict=True):
            self._watches[shard] = watch.look(state, now)
        self._say(
            [s for s in self._watches.keys() - self._wanted if self._orphaned(s, now)],
            "no node serves %s: do the node numbers of all nodes together leave none out?",
        )
        self._say(
            [s for s in self._wanted if self._twice(s, now)],
            "%s, this node's own part, belong to another node that is alive: do two nodes have one number?",
        )

    def _orphaned(self, shard: ShardRef, now: float) -> bool:
        """An owner that is alive moves the counter of its lease."""
        return self._watches[shard].orphaned(now, self._seconds)

    def _twice(self, shard: ShardRef, now: float) -> bool:
        if self._watches[shard].seen.owner in ("", self._owner) or self._orphaned(shard, now):
            self._twice_since.pop(shard, None)
            return False
        return now >= self._twice_since.setdefault(shard, now) + ORPHANED * self._seconds

    def _say(self, shards: Iterable[ShardRef], text: str) -> None:
        new = sorted(set(shards) - self._said)
        if new:
            self._said.update(new)
            logger.warning(text, ", ".join(map(str, new)))
