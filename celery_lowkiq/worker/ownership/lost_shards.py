"""What the log says of shards that a node had and has no more: another node's, or gone with Redis's data."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Collection

from celery_lowkiq.rules.models import ShardRef

from .lease_table import Holdings

logger = logging.getLogger("celery_lowkiq.worker")

#: So many shards are named, the others are counted.
NAMED = 10


class Partings:
    """Collects shards from all threads; the ownership thread tells of them when it has seen their leases."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._left: deque[ShardRef] = deque()
        #: Queues of which it was said that their data is gone, until all their leases are known again.
        self._said: frozenset[str] = frozenset()

    def add(self, shard: ShardRef) -> None:
        """The node was told that a shard is not its own any more."""
        self._left.append(shard)

    def tell(self, wanted: Collection[ShardRef]) -> None:
        """Of those ``wanted`` the leases have just been looked at; the others are not looked at any more."""
        watches = self._holdings.watches
        gone = {shard for shard in wanted if watches[shard].forgotten}
        taken = sorted(set(self._unsaid(wanted)) - gone)
        if taken:
            more = f" and {len(taken) - NAMED} more" if len(taken) > NAMED else ""
            names = ", ".join(map(str, taken[:NAMED]))
            logger.warning("shards that changed hands, and that this node leaves: %s%s", names, more)
        self._tell_of_losses(gone)

    def _unsaid(self, wanted: Collection[ShardRef]) -> list[ShardRef]:
        """The shards that were added. One whose lease was not looked at since then waits for that."""
        if not self._left:
            return []
        found = [self._left.popleft() for _ in range(len(self._left))]
        unseen = {shard for shard in wanted if self._holdings.watches[shard].since is None}
        self._left.extend(shard for shard in found if shard in unseen)
        return [shard for shard in found if shard not in unseen]

    def _tell_of_losses(self, gone: Collection[ShardRef]) -> None:
        count = Counter(shard.queue for shard in gone)
        new = sorted(count.keys() - self._said)
        self._said = frozenset(count)
        if new:
            logger.warning(
                "Redis has lost data of %s: leases that this node knows of are gone. Was it flushed, "
                "restarted without persistence, or does it evict keys? Calls that it had stored there are "
                "lost, unless they are restored. New calls run in about one lease time.",
                ", ".join(f"{queue!r} (shards: {count[queue]})" for queue in new),
            )
