"""Ownership: the thread that renews leases, shares shards, acquires and releases them."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

from celery_lowkiq.rules.basics import worker_logger as logger
from celery_lowkiq.rules.claims import Due, OpenClaims
from celery_lowkiq.rules.errors import NotOwner, StoreError, StoreUnavailable
from celery_lowkiq.rules.leases import RENEWALS_PER_LEASE
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.resharding import Resize, agreed, migrating, resize
from celery_lowkiq.rules.shares import moves
from celery_lowkiq.worker.acquisition import UNREACHABLE_RETRY, Acquisition
from celery_lowkiq.worker.context import WorkerContext
from celery_lowkiq.worker.lane import Lane
from celery_lowkiq.worker.lease_table import LeaseTable
from celery_lowkiq.worker.members import Heartbeat, Membership, OverdueMonitor
from celery_lowkiq.worker.monitors import LossMonitor, MasterMonitor, RenewalMonitor
from celery_lowkiq.worker.mover_thread import MoverThread
from celery_lowkiq.worker.outage import backoff
from celery_lowkiq.worker.owned_shard import OwnedShard
from celery_lowkiq.worker.ports import Store

# Gives surplus shards to other nodes, and levels the shards of this node over its lanes.


class Rebalancing:
    """Unless shards are shared, a node keeps those of the queues that it serves, each on its lane."""

    def __init__(
        self, store: Store, table: LeaseTable, *, lanes: Sequence[Lane], membership: Membership
    ) -> None:
        self._store = store
        self._table = table
        self._lanes = lanes
        self._membership = membership

    def share(
        self, served: Collection[str], unreachable: Collection[ShardRef], go_on: Callable[[], bool]
    ) -> bool:
        """Release surplus shards, each when its batch has ended, while ``go_on()``.

        A surplus shard is served until its turn comes, because a release may wait for a master that is
        unreachable. ``unreachable``: shards of unreachable masters, whose leases were not renewed; they are
        released later. Returns whether all were tried. Raises StoreError.
        """
        table = self._table
        for shard in table.staying():
            if shard.queue not in served:
                table.leave(shard)
        leaving = [owned.shard for owned in table.leaving()]
        surplus = self._membership.surplus(table.without_retired(table.staying()), self._busy())
        for shard in (*surplus, *leaving):
            if not go_on():
                return False
            owned = table.leave(shard)
            if not table.in_use(shard) and shard not in unreachable:
                self._release(owned)
        return True

    def level(self) -> None:
        """Move idle shards between lanes until the lanes differ by one shard at most."""
        loads = [lane.load for lane in self._lanes]
        if not self._membership.shared or max(loads, default=0) - min(loads, default=0) <= 1:
            return
        for shard, lane in moves([lane.shards() for lane in self._lanes], self._busy()):
            self._table.move(shard, self._lanes[lane])

    def _busy(self) -> frozenset[ShardRef]:
        return frozenset[ShardRef]().union(*(lane.working for lane in self._lanes))

    def _release(self, owned: OwnedShard) -> None:
        owned.may_be_released = True
        try:
            released: bool | None = self._store.release(owned.lease)
        except NotOwner:
            logger.info("shard %s needs no release: it has changed hands before", owned.shard)
            released = True
        if released:
            self._table.forget(owned)
        elif released is not None:
            # A claim of it is unsettled: the lane's next claim returns those jobs.
            self._table.stay(owned)


# Follows the stored numbers of shards: takes up added shards, and gives up removed ones. Begins migrations by
# itself: to the number of shards that the code of all nodes declares.

#: Deals the shards of queues to the lanes of the node.
Deal = Callable[[Sequence[QueueSpec]], Mapping[ShardRef, "tuple[QueueSpec, Lane]"]]


class Resizing:
    """A node with a fixed splitter deals its shards by the first stored numbers that it reads, once."""

    def __init__(
        self,
        ctx: WorkerContext,
        table: LeaseTable,
        queues: dict[str, QueueSpec],
        deal: Deal,
        declared: Mapping[str, int],
        *,
        shared: bool,
    ) -> None:
        """``queues``: all by name; the whole of ownership reads them here, and this keeps them as stored.

        ``declared``: numbers of shards in the code of this node, by queue; may change.
        """
        self._ctx = ctx
        self._store = ctx.store
        self._declared = declared
        self._look_at = ctx.clock.monotonic() + ctx.lease_seconds
        self._table = table
        self._queues = queues
        self._deal = deal
        self._shared = shared
        #: The stored numbers as they were last read, by queue.
        self._routes: dict[str, str] = {}

    def follow(self, routes: Mapping[str, str]) -> None:
        """Apply the stored numbers of shards, by queue."""
        changed = {name: route for name, route in routes.items() if route != self._routes.get(name)}
        changes = [c for name, route in changed.items() if (c := resize(self._queues[name], route))]
        for change in changes:
            self._log(change)
            self._queues[change.queue.name] = change.queue
            self._table.update_queue(change.queue)
            if self._shared:
                dealt = self._deal([change.queue])
                self._table.add_shards({shard: dealt[shard] for shard in change.added})
                self._table.retire(change.removed)
        if changes and not (self._shared or self._routes):
            self._table.deal_again(self._deal(list(self._queues.values())))
        self._routes |= changed

    def begin(self, routes: Mapping[str, str]) -> None:
        """Begin the migrations that all nodes agree on. ``routes``: stored numbers of shards, by queue.

        Looks once in a lease time, and only while the code and the stored number differ. In a rolling deploy
        the nodes do not agree, so nothing begins before its end. Raises StoreError.
        """
        now = self._ctx.clock.monotonic()
        # A queue that is moving has the phase behind its route.
        wanted = [
            queue
            for queue, route in routes.items()
            if route.isdecimal() and int(route) != self._declared.get(queue, int(route))
        ]
        if not wanted or now < self._look_at:
            return
        self._look_at = now + self._ctx.lease_seconds
        nodes = self._store.nodes()
        for queue in wanted:
            shards = agreed(nodes, queue)
            if shards == self._declared[queue] and self._store.begin_migration(queue, shards):
                logger.info("queue %s begins to move to %d shards: all nodes declare that", queue, shards)

    def leave_given_elsewhere(self, unreachable: Collection[ShardRef]) -> None:
        """Leave shards of moving queues whose lease another server gave, to be acquired anew.

        A failover may have lost claims of what runs, so nothing leaves such a shard (``export.lua``) until
        its batch has ended and this server has given a lease. ``unreachable``: shards of unreachable masters.
        """
        moving = [
            owned
            for owned in self._table.owned()
            if owned.queue.former_shards is not None and not owned.leaving and owned.shard not in unreachable
        ]
        states = self._store.observe([owned.shard for owned in moving]) if moving else []
        for owned, state in zip(moving, states, strict=True):
            # Any other server refuses the release.
            if state is not None and state.given_on != state.server == owned.lease.server:
                self._table.leave(owned.shard)

    def _log(self, change: Resize) -> None:
        queue, declared = change.queue, self._queues[change.queue.name].shards
        if queue.former_shards is not None:
            logger.info(
                "queue %s is moving from %d to %d shards", queue.name, queue.former_shards, queue.shards
            )
        if queue.name not in self._routes:
            if queue.shards != declared:
                logger.warning(
                    "queue %s has %d shards, the code declares %d; the stored number applies",
                    queue.name,
                    queue.shards,
                    declared,
                )
        elif self._shared:
            if queue.former_shards is None:
                logger.info("queue %s has %d shards now", queue.name, queue.shards)
        elif change.added or change.removed:
            logger.warning(
                "queue %s has %d shards now, but the splitter of this node deals shards once, when it "
                "starts: restart the node",
                queue.name,
                queue.shards,
            )

    def give_up(self) -> None:
        """Leave removed shards in which no job is left, and forget those not owned. Raises StoreError."""
        if not self._table.retired:
            return
        self._table.drop_retired()
        shards = [shard for shard in self._table.staying() if shard in self._table.retired]
        if not shards:
            return
        no_claims = [OpenClaims()] * len(shards)
        dues = self._store.next_due(shards, no_claims, [False] * len(shards))
        for shard, due in zip(shards, dues, strict=True):
            # The lane reports a damage.
            if isinstance(due, Due) and due.next_due is None:
                self._table.leave(shard)


# The thread that acquires shards, renews their leases, and releases them when the node stops.

#: Maximum seconds between two attempts to renew: leases run out while Redis does not answer.
MAX_RENEWAL_BACKOFF = 0.25
#: Fraction of the lease time in which a turn acquires shards even when the rest of the turn took too long.
MIN_ACQUISITION = 0.1


class Ownership:
    """Works in turns: renew, rebalance, acquire, check for problems.

    Shared shards are divided among the nodes, and go to the lane that has fewest; else the node acquires all
    that it deals, each for its lane.
    """

    def __init__(
        self,
        ctx: WorkerContext,
        *,
        lanes: Sequence[Lane],
        queues: Sequence[QueueSpec],
        deal: Deal,
        served: Collection[str],
        shared: bool,
    ) -> None:
        """``served``: names of the ``queues`` whose shards are acquired at first."""
        self._ctx = ctx
        self._lanes = lanes
        self._queues = by_name = {queue.name: queue for queue in queues}
        self._heartbeat = heartbeat = Heartbeat(ctx, lanes=lanes, queues=by_name, served=served)
        self._membership = membership = Membership(
            ctx, heartbeat, by_name, lanes=len(lanes), served=served, shared=shared
        )
        self._served = self._to_serve = frozenset(served)
        self._deal = deal
        table = self._table = LeaseTable(deal(queues))
        self._resizing = Resizing(ctx, table, by_name, deal, heartbeat.declared, shared=shared)
        self._mover = MoverThread(ctx)
        self._acquisition = Acquisition(ctx, table, lanes=lanes, membership=membership)
        self._rebalancing = Rebalancing(ctx.store, table, lanes=lanes, membership=membership)
        self._overdue = OverdueMonitor(ctx, lanes)
        self._renewals = RenewalMonitor(ctx.lease_seconds)
        self._losses = LossMonitor(table, ctx.owner)
        self._masters = MasterMonitor(ctx.store, ctx.clock, by_name)
        #: Added queues, until the thread reads them.
        self._added: deque[Sequence[QueueSpec]] = deque()
        self._draining = False
        self._abandoned = False
        #: True if the process ends, and its batches with it: no lane is waited for.
        self._at_once = False
        self._backoff = backoff(longest=MAX_RENEWAL_BACKOFF)
        #: Monotonic times: when the leases are to be renewed next, and when to observe those of other nodes.
        self._renew_at = 0.0
        self._observe_at = 0.0
        #: True if a release may have been announced since leases were last observed.
        self._woken = True
        #: Set when leases are released, or are left to run out.
        self.finished: threading.Event = threading.Event()
        self.thread: threading.Thread = ctx.thread("lowkiq-ownership", self._main)

    # -- called from other threads

    def add_queues(self, queues: Sequence[QueueSpec]) -> None:
        """Add more queues, which :meth:`serve` may name from now on."""
        self._added.append(queues)

    def serve(self, queues: Collection[str], quiet: bool) -> None:
        """Serve these queues only: other shards are released, each after its running batch.

        ``quiet``: whether an operator made the node quiet, for its report.
        """
        self._to_serve = self._heartbeat.served = frozenset(queues)
        self._heartbeat.quiet = quiet
        self._ctx.mailbox.wake()

    def drain(self) -> None:
        """Acquire nothing more, and release each lane's shards when the lane has ended."""
        self._draining = True
        self._heartbeat.stopping = True
        self._ctx.mailbox.wake()

    def abandon(self) -> None:
        """Wait for no lane in the drain that follows."""
        self._abandoned = True

    def release_at_exit(self) -> None:
        """Release shards without waiting for their batches: the process ends, and the batches with it."""
        self._at_once = self._ctx.exclusion.gives_up_running
        self._ctx.mailbox.wake()

    def find_lane(self, shard: ShardRef) -> Lane | None:
        """Return the lane that serves a shard, or would serve it."""
        return self._table.find_lane(shard)

    # -- the thread

    def _main(self) -> None:
        try:
            while not self._draining:
                self._ctx.mailbox.wait(self._turn())
                self._woken = self._ctx.mailbox.begin_turn() or self._woken
            self._release_all()
        finally:
            self._mover.stop()
            self.finished.set()

    def _turn(self) -> float:
        """Do one turn; return seconds until the next one."""
        self._ctx.outage.request_started()
        self._renew_at = self._ctx.clock.monotonic() + self._ctx.lease_seconds / RENEWALS_PER_LEASE
        try:
            unreachable = self._renew(stopping=False)
            self._masters.check()
            self._update_served()
            routes = self._membership.update()
            self._resizing.follow(routes)
            self._move(migrating(routes))
            if self._ctx.auto_reshard and self._membership.shared:
                self._resizing.begin(routes)
            self._resizing.give_up()
            self._resizing.leave_given_elsewhere(unreachable)
            done = self._rebalancing.share(
                self._served, unreachable, lambda: self._ctx.clock.monotonic() < self._renew_at
            )
            done = self._acquire() and done
            self._losses.check(self._wanted())
            self._rebalancing.level()
            self._overdue.check()
        except StoreError as error:
            self._ctx.outage.failed(error)
            self._table.mark_doubtful(self._ctx.clock.monotonic())
            self._observe_at = 0.0
            return min(self._ctx.lease_seconds / RENEWALS_PER_LEASE, next(self._backoff))
        self._ctx.outage.recovered()
        self._backoff = backoff(longest=MAX_RENEWAL_BACKOFF)
        if not done:
            return 0.0
        seconds_to_observation = self._acquisition.seconds_to_observation(self._wanted())
        seconds_to_renewal = UNREACHABLE_RETRY if self._may_be_renewed(unreachable) else math.inf
        return min(
            self._ctx.lease_seconds / RENEWALS_PER_LEASE,
            seconds_to_observation,
            seconds_to_renewal,
            self._membership.seconds_to_unresponsive(),
        )

    def _may_be_renewed(self, unreachable: Collection[ShardRef]) -> bool:
        """True if the lease of an unreachable shard lasts: a master may answer before its end."""
        now = self._ctx.clock.monotonic()
        return any(owned.shard in unreachable and now < owned.deadline for owned in self._table.owned())

    def _move(self, queues: Sequence[str]) -> None:
        nodes = max((len(self._membership.lanes_by_node(queue)) for queue in queues), default=1)
        self._mover.move([self._queues[queue] for queue in queues], nodes)

    def _renew(self, stopping: bool) -> set[ShardRef]:
        """Renew the leases; return the shards whose master is unreachable."""
        unreachable = set()
        for gone in self._ctx.mailbox.take_gone():
            self._forget(gone)
        # The lease of an overdue batch that strict exclusion is to end runs out.
        overdue = self._overdue.leases if self._ctx.exclusion.ends_overdue else frozenset()
        renewing = [owned for owned in self._table.owned() if owned.lease not in overdue]
        self._heartbeat.turn += 1
        sent_at = self._ctx.clock.monotonic()
        leases = [one.lease for one in renewing]
        renewed = self._ctx.store.renew(leases, stopping=stopping, turn=self._heartbeat.turn)
        answered_at = self._ctx.clock.monotonic()
        if renewing and None not in renewed:
            self._renewals.renewed(answered_at - sent_at)
        for owned, lease in zip(renewing, renewed, strict=True):
            if lease is None:
                # Only its own master is unreachable: its lease runs out unless that is back in time.
                unreachable.add(owned.shard)
                if sent_at >= owned.deadline:
                    owned.lost.set()
                continue
            late = not owned.may_claim(sent_at)
            if not lease or not owned.renew(lease, sent_at, answered_at):
                self._forget(owned)
            elif late:
                self._table.lane_of(owned.shard).refresh()
        self._ctx.meter.renewed(sum(map(bool, renewed)))
        self._ctx.exclusion.renewed()
        return unreachable

    def _forget(self, owned: OwnedShard) -> None:
        if self._table.forget(owned) and not owned.release_sent:
            self._ctx.meter.lost()
            self._losses.add(owned.shard)

    def _update_served(self) -> None:
        to_serve = self._to_serve
        if to_serve == self._served:
            return
        while self._added:
            queues = self._added.popleft()
            self._table.add_shards(self._deal(queues))
            self._queues.update((queue.name, queue) for queue in queues)
            self._heartbeat.declared.update((queue.name, queue.shards) for queue in queues)
        self._membership.serve(to_serve)
        self._served = to_serve

    def _wanted(self) -> list[ShardRef]:
        return self._table.wanted(self._served)

    def _acquire(self) -> bool:
        """Acquire what is free until the next renewal; return whether all was tried.

        A drain, or another set of queues to serve, ends it.
        """
        now = self._ctx.clock.monotonic()
        # Not in each turn while free shards take all the time.
        observes = now >= self._observe_at
        if observes:
            self._acquisition.observe(self._wanted(), everything=self._woken)
            self._woken = False
            self._observe_at = now + self._ctx.lease_seconds
            self._heartbeat.free_at = self._acquisition.free_at
        if self._draining:
            return True
        serving, until = self._to_serve, max(self._renew_at, now + MIN_ACQUISITION * self._ctx.lease_seconds)

        def go_on() -> bool:
            return self._ctx.clock.monotonic() < until and self._to_serve is serving and not self._draining

        done = self._acquisition.acquire((s for s in self._wanted() if s.queue in serving), go_on)
        if done:
            self._observe_at = now
        # A shard that was released since the last observation has woken this turn, and is to be seen.
        return done and observes

    # -- the end

    def _release_all(self) -> None:
        """Release the shards that no lane works, each as soon as its batch has settled; renew the others."""
        silent_since: float | None = None
        while True:
            seconds_to_turn = self._ctx.lease_seconds / RENEWALS_PER_LEASE
            self._ctx.mailbox.begin_turn()
            lanes_ended = all(lane.ended for lane in self._lanes)
            self._ctx.outage.request_started()
            try:
                self._release_turn()
                silent_since = None
                self._backoff = backoff(longest=MAX_RENEWAL_BACKOFF)
                if not self._table.owned():
                    self._heartbeat.remove_report()
                    return
            except StoreError as error:
                self._ctx.outage.failed(error)
                now = self._ctx.clock.monotonic()
                silent_since = silent_since or now
                if self._abandoned or (lanes_ended and now - silent_since > self._ctx.lease_seconds):
                    if self._table.owned():
                        logger.error("shards could not be released: their next owner waits for the lease")
                    return
                seconds_to_turn = min(seconds_to_turn, next(self._backoff))
            self._ctx.mailbox.wait(seconds_to_turn)

    def _release_turn(self) -> None:
        """Do one turn; after a StoreError the next one repeats what is left."""
        outage: StoreUnavailable | None = None
        try:
            self._membership.leave()
        except StoreUnavailable as error:
            # On a cluster, of the master with the queue's own keys: shards may be on others.
            outage = error
        for owned in self._table.owned():
            if self._table.lane_of(owned.shard).crashed and self._table.in_use(owned.shard):
                # Not marked as stopping: the batch that ran counts as crashed.
                self._table.remove(owned)
        self._overdue.check()
        silent = self._renew(stopping=True)
        self._losses.check(())
        if not self._release_unused(silent):
            outage = StoreUnavailable("Redis is not available: masters of shards to release are unreachable")
        if outage is not None:
            raise outage
        if self._table.owned():
            self._membership.update()

    def _release_unused(self, silent: Collection[ShardRef]) -> bool:
        """Release the shards that no lane works; False when masters are unreachable. ``silent``: shards whose
        leases were not renewed because their master is unreachable.
        """
        done = True
        for owned in self._table.owned():
            # No batch of it starts any more, also when a lane that stops is about to pick it.
            self._table.leave(owned.shard)
            if self._at_once:
                done = self._release(owned) and done
            elif not self._table.in_use(owned.shard):
                # A replica that has become the master since then refuses a release before the next renewal.
                done = owned.shard not in silent and self._release(owned) and done
        return done

    def _release(self, owned: OwnedShard) -> bool:
        """Release a shard for good. Return False when its master is unreachable."""
        if self._at_once:
            owned.lost.set()
        owned.may_be_released = True
        try:
            released = self._ctx.store.release(owned.lease, unsettled=self._at_once)
        except NotOwner:
            released = True
        if released is None:
            return False
        if not released:
            logger.warning(
                "shard %s keeps unsettled jobs, or Redis has failed over: its next owner waits for the lease",
                owned.shard,
            )
        self._table.remove(owned)
        return True
