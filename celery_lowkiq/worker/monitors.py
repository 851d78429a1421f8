"""Warnings of the ownership thread, each logged once while its cause lasts.

Slow renewals, lost shards and lost data, masters that drop keys or refuse commands.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence

from celery_lowkiq.rules.basics import Clock
from celery_lowkiq.rules.basics import worker_logger as logger
from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.text import listed
from celery_lowkiq.rules.topology import Master, eviction, refusals
from celery_lowkiq.rules.views import ERROR
from celery_lowkiq.worker.lease_table import LeaseTable
from celery_lowkiq.worker.owned_shard import CLAIMING
from celery_lowkiq.worker.ports import Store

#: Maximum number of lost shards that a line names.
LISTED_SHARDS = 10
#: Seconds between two looks at the eviction policy, which is logged each time while it is dangerous.
POLICY_INTERVAL = 60.0
#: Fraction of the time in which batches may start after a renewal was sent. When the renewal takes longer,
#: the answer to a claim, which takes as long, may come too late.
SLOW_RENEWAL = 0.5
#: Renewals in a row that were slow before that is logged.
SLOW_RENEWALS = 3
#: Lease times that are advised, in times that a renewal took: a turn of a node sends more than renewals.
ADVISED_LEASE = 10


class RenewalMonitor:
    """Logs that renewals take too long for the lease time: shards stand still, although Redis answers."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        #: Number of slow renewals since the last one in time.
        self._slow = 0

    def renewed(self, seconds: float) -> None:
        """Record how long the last renewal took."""
        if seconds <= SLOW_RENEWAL * CLAIMING * self._lease_seconds:
            if self._slow >= SLOW_RENEWALS:
                logger.warning("leases are renewed in time again")
            self._slow = 0
            return
        self._slow += 1
        if self._slow == SLOW_RENEWALS:
            logger.error(
                "Redis, or a master of the cluster, took %.2f s to renew leases; batches start only in the "
                "%.2f s after a renewal is sent, so that shards stand still. Find out what makes Redis slow, "
                "or set lowkiq_lease_seconds=%g to at least %d",
                seconds,
                CLAIMING * self._lease_seconds,
                self._lease_seconds,
                math.ceil(ADVISED_LEASE * seconds),
            )


class LossMonitor:
    """Logs shards that the node has lost: to another node, or with the data of Redis."""

    def __init__(self, table: LeaseTable, owner: str) -> None:
        """``owner``: name of this node in its leases."""
        self._table = table
        self._owner = owner
        self._lost: deque[ShardRef] = deque()
        #: Queues whose loss of data was logged, until all their leases are back.
        self._logged: frozenset[str] = frozenset()

    def add(self, shard: ShardRef) -> None:
        """Record a lost shard; it is logged when its lease has been observed."""
        self._lost.append(shard)

    def check(self, observed: Collection[ShardRef]) -> None:
        """Log the losses; ``observed`` are the shards whose leases are still watched."""
        gone = {shard for shard in observed if self._table.watch(shard).forgotten}
        lost = sorted(set(self._pop_lost(observed)) - gone)
        no_other = ("", self._owner)
        taken = [s for s in lost if s in observed and self._table.watch(s).seen.owner not in no_other]
        self._log("shards changed hands, and this node leaves them: %s", taken)
        left = [shard for shard in lost if shard not in taken]
        self._log("this node has lost leases, and no other node is known to have them: %s", left)
        self._log_data_loss(gone)

    def _log(self, text: str, shards: Sequence[ShardRef]) -> None:
        if shards:
            logger.warning(text, listed(list(map(str, shards)), LISTED_SHARDS))

    def _pop_lost(self, observed: Collection[ShardRef]) -> list[ShardRef]:
        """Remove and return the lost shards but those whose lease was not observed since."""
        if not self._lost:
            return []
        found = [self._lost.popleft() for _ in range(len(self._lost))]
        unseen = {shard for shard in observed if self._table.watch(shard).since is None}
        self._lost.extend(shard for shard in found if shard in unseen)
        return [shard for shard in found if shard not in unseen]

    def _log_data_loss(self, gone: Collection[ShardRef]) -> None:
        count = Counter(shard.queue for shard in gone)
        new = sorted(count.keys() - self._logged)
        self._logged = frozenset(count)
        if new:
            logger.warning(
                "Redis has lost data of %s: leases of this node are gone. Was it flushed, restarted without "
                "persistence, or does it evict keys? Calls that were stored there are lost unless you "
                "restore them. New calls run in about one lease time.",
                ", ".join(f"{queue!r} (shards: {count[queue]})" for queue in new),
            )


class MasterMonitor:
    """Warns of masters that let Redis drop jobs, and of commands that one refuses."""

    def __init__(self, store: Store, clock: Clock, queues: Mapping[str, QueueSpec]) -> None:
        self._store = store
        self._clock = clock
        self._queues = queues
        self._next = clock.monotonic()
        #: Addresses of masters that may drop jobs.
        self._dangerous: set[str] = set()
        #: Addresses of masters with unknown policy, and texts about commands: each is logged once.
        self._logged: set[str] = set()

    def check(self) -> None:
        """Look at all masters when that is due. Raises StoreError."""
        now = self._clock.monotonic()
        if now < self._next:
            return
        shards = [shard for queue in self._queues.values() for shard in queue.shard_refs()]
        # Also after a refusal: an unreadable policy must not keep each turn from the leases.
        self._next = now + POLICY_INTERVAL
        try:
            masters = self._store.masters(shards)
        except StoreUnavailable:
            self._next = now
            raise
        for master in masters:
            name = "Redis" if master.slots is None else f"Redis {master.address}"
            self._check_policy(master, name)
            for finding in refusals(master.refused, name):
                if finding.text not in self._logged:
                    self._logged.add(finding.text)
                    log = logger.error if finding.level == ERROR else logger.warning
                    log("%s %s", finding.text, finding.advice)

    def _check_policy(self, master: Master, name: str) -> None:
        finding = eviction(master.server)
        line = f"maxmemory-policy of {name}: {finding.text} {finding.advice}"
        if finding.level == ERROR:
            logger.error(line)
            self._dangerous.add(master.address)
            return
        if master.server.policy is None and master.address not in self._logged:
            self._logged.add(master.address)
            logger.warning(line)
        elif master.address in self._dangerous:
            policy = master.server.policy
            logger.warning("%s evicts no jobs any more: maxmemory-policy %s", name, policy)
        self._dangerous.discard(master.address)
