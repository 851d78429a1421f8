"""The thread that acquires shards, renews their leases, and releases them when the node stops."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence

from celery_lowkiq.rules.errors import StoreError
from celery_lowkiq.rules.loggers import worker_logger as logger
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.ownership import RENEWALS_PER_LEASE

from ..context import WorkerContext
from ..lane.lane import Lane
from ..lane.window_reaper import WindowReaper
from ..outage import backoff
from ..owned_shard import OwnedShard
from ..ports import EXIT_CRASHED
from .acquisition import Acquisition
from .heartbeat import Heartbeat
from .lease_table import LeaseTable
from .membership import Membership
from .monitors import EvictionPolicyMonitor, LossMonitor, MisassignmentMonitor, OverdueMonitor
from .rebalancing import Rebalancing
from .shutdown import ShardReleaser

#: Maximum seconds between two attempts to renew: leases run out while Redis does not answer.
MAX_RENEWAL_BACKOFF = 0.25
#: Fraction of the lease time in which a turn acquires shards even when the rest of the turn took too long.
MIN_ACQUISITION = 0.1


class Ownership:
    """Works in turns: renew, rebalance, acquire, check for problems.

    With ``membership`` the shards are shared with the other nodes, and go to the lane that has fewest;
    without it the node acquires all that are ``dealt``, each for its lane.
    """

    def __init__(
        self,
        ctx: WorkerContext,
        *,
        lanes: Sequence[Lane],
        dealt: Mapping[ShardRef, tuple[QueueSpec, Lane]],
        heartbeat: Heartbeat,
        membership: Membership | None,
        misassignment: MisassignmentMonitor,
        reaper: WindowReaper,
        served: Collection[str],
    ) -> None:
        """``served``: names of the queues whose shards are acquired at first."""
        self._ctx = ctx
        self._store = ctx.store
        self._outage = ctx.outage
        self._mailbox = ctx.mailbox
        self._clock = ctx.clock
        self._lease_seconds = ctx.lease_seconds
        self._lanes = lanes
        self._heartbeat = heartbeat
        self._membership = membership
        self._reaper = reaper
        self._served = self._to_serve = frozenset(served)
        table = self._table = LeaseTable(dealt)
        self._acquisition = Acquisition(ctx, table, lanes=lanes, membership=membership)
        self._rebalancing = Rebalancing(
            ctx.store, table, lanes=lanes, heartbeat=heartbeat, membership=membership
        )
        self._releaser = ShardReleaser(ctx.store, table, membership)
        self._overdue = OverdueMonitor(ctx.host, ctx.clock, lanes)
        self._losses = LossMonitor(table)
        self._eviction_policy = EvictionPolicyMonitor(ctx.store, ctx.clock)
        self._misassignment = misassignment
        #: Shards of added queues, until the thread reads them.
        self._added: deque[Mapping[ShardRef, tuple[QueueSpec, Lane]]] = deque()
        self._draining = False
        self._abandoned = False
        self._backoff = backoff(longest=MAX_RENEWAL_BACKOFF)
        #: Monotonic times: when the leases are to be renewed next, and when to observe those of other nodes.
        self._renew_at = 0.0
        self._observe_at = 0.0
        self.ended: bool = False
        self._thread = threading.Thread(target=self._main, name="lowkiq-ownership", daemon=True)

    # -- called from other threads

    def start(self) -> None:
        """Start to acquire shards."""
        self._thread.start()

    def add_queues(self, dealt: Mapping[ShardRef, tuple[QueueSpec, Lane]]) -> None:
        """Add the shards of more queues; :meth:`serve` may name these queues from now on."""
        self._added.append(dealt)

    def serve(self, queues: Collection[str]) -> None:
        """Serve these queues only: other shards are released, each after its running batch."""
        self._to_serve = frozenset(queues)
        self._heartbeat.report_served(self._to_serve)
        self._mailbox.wake()

    def drain(self) -> None:
        """Acquire nothing more, and release each lane's shards when the lane has ended."""
        self._draining = True
        self._heartbeat.report_stopping()
        self._mailbox.wake()

    def abandon(self) -> None:
        """Mark the leases as stopping, and wait for no lane."""
        self._abandoned = True
        self.drain()

    def release_at_exit(self) -> None:
        """Release shards without waiting for their batches: the process ends, and the batches with it."""
        if self._ctx.exclusion.gives_up_running:
            self._releaser.release_at_once()
        self._mailbox.wake()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended, at most ``timeout`` s."""
        self._thread.join(timeout)

    def find_lane(self, shard: ShardRef) -> Lane | None:
        """Return the lane that serves a shard, or would serve it."""
        return self._table.find_lane(shard)

    # -- the thread

    def _main(self) -> None:
        try:
            while not self._draining:
                self._mailbox.wait(self._turn())
                self._mailbox.begin_turn()
            self._release_all()
        except Exception as error:
            logger.exception("the ownership thread ends: the worker stops")
            self._ctx.host.last_words(error)
            self._ctx.host.stop(EXIT_CRASHED, f"lowkiq-ownership: {error!r}")
        finally:
            self._reaper.stop()
            self.ended = True

    def _turn(self) -> float:
        """Do one turn; return seconds until the next one."""
        self._outage.request_started()
        self._renew_at = self._clock.monotonic() + self._lease_seconds / RENEWALS_PER_LEASE
        try:
            self._renew(stopping=False)
            self._eviction_policy.check()
            self._update_served()
            done = self._rebalancing.share(self._served, lambda: self._clock.monotonic() < self._renew_at)
            done = self._acquire() and done
            self._losses.check(self._wanted())
            self._rebalancing.level()
            self._overdue.check()
            self._misassignment.check()
        except StoreError as error:
            self._outage.failed(error)
            self._table.mark_doubtful(self._clock.monotonic())
            self._observe_at = 0.0
            return min(self._lease_seconds / RENEWALS_PER_LEASE, next(self._backoff))
        self._outage.recovered()
        self._backoff = backoff(longest=MAX_RENEWAL_BACKOFF)
        if not done:
            return 0.0
        next_look = self._acquisition.seconds_to_next_look(self._wanted())
        return min(self._lease_seconds / RENEWALS_PER_LEASE, next_look)

    def _renew(self, stopping: bool) -> None:
        for lost in self._mailbox.take_lost():
            self._forget(lost)
        renewing = [one for one in self._table.owned() if not self._ends_by_lease(one)]
        sent_at = self._clock.monotonic()
        lapsed = [one.lapsed(sent_at) for one in renewing]
        renewed = self._store.renew([one.lease for one in renewing], lapsed, stopping=stopping)
        for owned, ours in zip(renewing, renewed, strict=True):
            if not ours:
                self._forget(owned)
                continue
            late = not owned.may_claim(sent_at)
            owned.renew(sent_at)
            if late:
                self._table.lane_of(owned.shard).refresh()
        self._ctx.meter.renewed(sum(renewed))
        self._ctx.exclusion.renewed()

    def _forget(self, owned: OwnedShard) -> None:
        if self._table.forget_lost(owned):
            self._ctx.meter.lost()
            self._losses.add(owned.shard)

    def _ends_by_lease(self, owned: OwnedShard) -> bool:
        """Whether strict exclusion is to end an overdue batch: its lease runs out."""
        return self._ctx.exclusion.ends_overdue and owned.lease in self._overdue.leases

    def _update_served(self) -> None:
        to_serve = self._to_serve
        if to_serve == self._served:
            return
        while self._added:
            self._add(self._added.popleft())
        if self._membership is not None:
            self._membership.serve(to_serve)
        self._served = to_serve

    def _add(self, dealt: Mapping[ShardRef, tuple[QueueSpec, Lane]]) -> None:
        queues = {queue.name: queue for queue, _ in dealt.values()}
        self._table.add_shards(dealt)
        self._heartbeat.add_queues(queues)
        if self._membership is not None:
            self._membership.add_queues(queues)

    def _wanted(self) -> list[ShardRef]:
        return self._table.wanted(self._served)

    def _acquire(self) -> bool:
        """Acquire what is free until the next renewal; return whether all was tried.

        A drain, or another set of queues to serve, ends it.
        """
        now = self._clock.monotonic()
        # Not in each turn while free shards take all the time.
        if now >= self._observe_at:
            self._acquisition.observe(self._wanted())
            self._observe_at = now + self._lease_seconds
            self._heartbeat.report_waits(self._acquisition.free_at)
        serving, until = self._to_serve, max(self._renew_at, now + MIN_ACQUISITION * self._lease_seconds)

        def go_on() -> bool:
            return self._clock.monotonic() < until and self._to_serve is serving and not self._draining

        done = self._acquisition.acquire((s for s in self._wanted() if s.queue in serving), go_on)
        if done:
            self._observe_at = now
        return done

    # -- the end

    def _release_all(self) -> None:
        """Renew the shards of lanes that still work, and release those of lanes that have ended."""
        silent_since: float | None = None
        while not self._releaser.done:
            self._mailbox.begin_turn()
            lanes_ended = all(lane.ended for lane in self._lanes)
            self._outage.request_started()
            try:
                self._release_turn()
                silent_since = None
            except StoreError as error:
                self._outage.failed(error)
                now = self._clock.monotonic()
                silent_since = silent_since or now
                if self._abandoned or (lanes_ended and now - silent_since > self._lease_seconds):
                    logger.error("shards could not be released: their next owner waits for the lease")
                    return
            if not self._releaser.done:
                self._mailbox.wait(self._lease_seconds / RENEWALS_PER_LEASE)
        self._heartbeat.remove_report()

    def _release_turn(self) -> None:
        self._releaser.leave()
        self._releaser.forget_crashed()
        self._overdue.check()
        self._renew(stopping=True)
        self._losses.check(())
        self._releaser.release()
        if self._table.owned():
            self._heartbeat.beat([])
