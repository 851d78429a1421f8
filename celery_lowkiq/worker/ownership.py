"""One thread that takes shards, renews their leases, and gives them up when the node stops."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from celery_lowkiq.rules.balance import lane_for, move_between, to_give_up
from celery_lowkiq.rules.errors import (
    FormatMismatch,
    NotOwner,
    ShardCountMismatch,
    StoreError,
    StoreUnavailable,
)
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.ownership import RENEWALS, Watch
from celery_lowkiq.rules.pace import WAITING

from .alarms import Alarms
from .heartbeat import Heartbeat
from .held import Held
from .lane import Lane
from .membership import Membership, of_queues
from .outage import pauses
from .strays import Strays
from .surroundings import Surroundings

logger = logging.getLogger("celery_lowkiq.worker")

#: After a refusal that only people can mend (another shard count) a queue is tried again so often, in s.
REFUSED_AGAIN = 60.0


class Ownership:
    """Holds the node's leases. Lanes are told what to serve; the rest of the node asks nothing of it.

    With ``membership`` the shards are shared with the other nodes, and go to the lane that has the fewest;
    without it the node wants all that are ``dealt``, each for its lane.
    """

    def __init__(
        self,
        around: Surroundings,
        *,
        owner: str,
        lanes: Sequence[Lane],
        dealt: Mapping[ShardRef, tuple[QueueSpec, Lane]],
        heartbeat: Heartbeat,
        membership: Membership | None,
        strays: Strays,
        served: Collection[str],
    ) -> None:
        """``served``: names of the queues whose shards are wanted at first."""
        self._store = around.store
        self._host = around.host
        self._outage = around.outage
        self._exclusion = around.exclusion
        self._clock = around.clock
        self._meter = around.meter
        self._seconds = around.lease_seconds
        self._owner = owner
        self._lanes = lanes
        self._heartbeat = heartbeat
        self._membership = membership
        self._strays = strays
        self._lane_of = {shard: lane for shard, (_, lane) in dealt.items()}
        self._watches = {shard: Watch(queue, shard) for shard, (queue, _) in dealt.items()}
        self._served = self._to_serve = frozenset(served)
        heartbeat.serves = self._served
        self._held: dict[ShardRef, Held] = {}
        self._leaving: set[ShardRef] = set()
        self._alarms = Alarms(around.host, around.clock, lanes)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._draining = False
        self._abandoned = False
        self._exiting = False
        self._pauses = pauses()
        self.ended = False
        self._thread = threading.Thread(target=self._main, name="lowkiq-ownership", daemon=True)

    # -- called from other threads

    def start(self) -> None:
        """Begin to take shards."""
        self._thread.start()

    def serve(self, queues: Collection[str]) -> None:
        """Want the shards of these queues only: others are given up, each after its running batch."""
        self._to_serve = self._heartbeat.serves = frozenset(queues)
        self._wake.set()

    def drain(self) -> None:
        """Take nothing more, and release each lane's shards when it has ended."""
        self._draining = self._heartbeat.stopping = True
        self._wake.set()

    def abandon(self) -> None:
        """Say that this node is stopping, and leave everything as it is."""
        self._abandoned = True
        self.drain()

    def let_go(self) -> None:
        """The process ends now, and all runs with it: give up the shards that they are of."""
        self._exiting = self._exclusion.gives_up_running
        self._wake.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread ended, at most ``timeout`` s."""
        self._thread.join(timeout)

    def look_now(self) -> None:
        """Something happened that the thread waits for."""
        self._wake.set()

    def lost(self, held: Held) -> None:
        """A shard is another node's, whoever is told first."""
        if self._part_with(held):
            self._meter.lost()

    def lane_of(self, shard: ShardRef) -> Lane | None:
        """The lane that serves a shard, or would."""
        return self._lane_of.get(shard)

    # -- the thread

    def _main(self) -> None:
        try:
            while not self._draining:
                self._rest(self._turn())
                self._wake.clear()
            self._give_up()
        except Exception as error:
            logger.exception("the ownership thread ends: the worker stops")
            self._host.last_words(error)
            self._host.stop(70, f"lowkiq-ownership: {error!r}")
        finally:
            self.ended = True

    def _rest(self, seconds: float) -> None:
        """Wait for the next turn, and give back what waits behind long runs meanwhile."""
        until = self._clock.monotonic() + seconds
        while not self._wake.is_set() and (left := until - self._clock.monotonic()) > 0:
            self._wake.wait(min(left, WAITING / 2))
            for lane in self._lanes:
                lane.give_back(self._clock.monotonic())

    def _turn(self) -> float:
        """Renew, share, look, take; seconds until the next turn."""
        self._outage.asks()
        try:
            self._renew(stopping=False)
            self._attend()
            self._share()
            self._look()
            for shard in self._wanted():
                # Read anew each time: one refusal puts off all shards of its queue.
                if not self._draining and self._free(self._watches[shard]):
                    self._take(self._watches[shard])
            self._level()
            self._alarms.look()
            self._strays.look()
        except StoreError as error:
            self._outage.begins(error)
            self._doubt()
            return min(self._seconds / RENEWALS, next(self._pauses))
        self._outage.ends()
        self._pauses = pauses()
        now = self._clock.monotonic()
        looks = [self._watches[shard].next_look(now, self._seconds) for shard in self._wanted()]
        return min([self._seconds / RENEWALS, *looks])

    def _doubt(self) -> None:
        """Tell the runs of shards that another node may have by now. What was seen of others is worth nothing
        either: while nobody could look, an owner could not renew.
        """
        self._watches = {shard: replace(watch, since=None) for shard, watch in self._watches.items()}
        now = self._clock.monotonic()
        for held in self._leases():
            if now >= held.deadline:
                held.lost.set()

    def _leases(self) -> list[Held]:
        with self._lock:
            return list(self._held.values())

    def _part_with(self, held: Held) -> bool:
        """Whether the lease was still among this node's."""
        with self._lock:
            if self._held.get(held.shard) is not held:
                return False
            self._forget(held)
            return True

    def _forget(self, held: Held) -> None:
        """Called with the lock."""
        held.lost.set()
        del self._held[held.shard]
        self._leaving.discard(held.shard)
        self._watches[held.shard] = Watch(held.queue, held.shard, known_epoch=held.lease.epoch)

    def _renew(self, stopping: bool) -> None:
        held = [one for one in self._leases() if not self._given_up(one)]
        sent_at = self._clock.monotonic()
        lapsed = [one.lapsed(sent_at) for one in held]
        renewed = self._store.renew([one.lease for one in held], lapsed, stopping=stopping)
        for one, ours in zip(held, renewed, strict=True):
            if ours:
                late = not one.may_claim(sent_at)
                one.renewed_at = sent_at
                one.lost.clear()
                if late:
                    self._lane_of[one.shard].refresh()
            else:
                logger.warning("shard %s is no longer this node's: it leaves it", one.shard)
                self._lane_of[one.shard].drop(one.shard)
                self.lost(one)
        self._meter.renewed(sum(renewed))
        self._exclusion.renewed()

    def _given_up(self, held: Held) -> bool:
        """Whether a run never seems to end, and may be ended by letting its lease run out."""
        return self._exclusion.ends_overdue and held.lease in self._alarms.leases

    def _busy(self) -> frozenset[ShardRef]:
        return frozenset[ShardRef]().union(*(lane.working for lane in self._lanes))

    def _attend(self) -> None:
        """Begin with the queues that were added, and leave those that were taken away."""
        to_serve = self._to_serve
        if to_serve == self._served:
            return
        if self._membership is not None:
            self._membership.attend(to_serve)
        self._served = to_serve

    def _wanted(self) -> list[ShardRef]:
        """The shards that others have, or nobody."""
        return [s for s in self._watches if s.queue in self._served and s not in self._held]

    def _share(self) -> None:
        """Give up, one finished batch at a time, what is other nodes' share."""
        if self._membership is not None:
            self._membership.meet()
            for queues, quota in self._membership.pools():
                staying = [s for s in of_queues(list(self._held), queues) if s not in self._leaving]
                for shard in to_give_up(staying, self._busy(), quota):
                    self._give(shard)
        else:
            self._heartbeat.beat([])
        for shard in [one.shard for one in self._leases()]:
            if shard.queue not in self._served and shard not in self._leaving:
                self._give(shard)
        for shard in sorted(self._leaving):
            idle = shard not in self._lane_of[shard].working
            # A lane may have lost it a moment ago.
            held = self._held.get(shard)
            if idle and held is not None:
                self._hand_over(held)

    def _give(self, shard: ShardRef) -> None:
        self._leaving.add(shard)
        self._lane_of[shard].drop(shard)

    def _hand_over(self, held: Held) -> None:
        try:
            released = self._store.release(held.lease)
        except NotOwner:
            logger.info("shard %s was given up: it has changed hands before", held.shard)
            released = True
        if released:
            self._part_with(held)
        else:
            # Something of it is unsettled: the lane's next claim puts that back.
            self._leaving.discard(held.shard)
            self._lane_of[held.shard].serve(held)

    def _look(self) -> None:
        watched = self._wanted()
        states = self._store.observe(watched)
        now = self._clock.monotonic()
        for shard, state in zip(watched, states, strict=True):
            self._watches[shard] = self._watches[shard].look(state, now)

    def _free(self, watch: Watch) -> bool:
        """Never while a thread of this node still works on an older epoch."""
        if watch.shard in self._held or watch.shard in self._lane_of[watch.shard].working:
            return False
        now = self._clock.monotonic()
        return watch.ours(self._owner) or (
            watch.may_take(now, self._seconds)
            and (watch.orphaned(now, self._seconds) or self._below_quota(watch.shard))
        )

    def _below_quota(self, shard: ShardRef) -> bool:
        if self._membership is None:
            return True
        for queues, quota in self._membership.pools():
            if shard.queue in queues:
                return len(of_queues(list(self._held), queues)) < quota
        raise AssertionError(f"{shard} is of no pool")

    def _take(self, watch: Watch) -> None:
        sent_at = self._clock.monotonic()
        try:
            lease = self._store.acquire(watch.queue, watch.shard, self._owner, watch.seen, watch.known_epoch)
        except NotOwner:
            return
        except StoreUnavailable:
            raise
        except (ShardCountMismatch, FormatMismatch, StoreError) as error:
            logger.error("queue %s is not served: %s", watch.queue.name, error)
            for shard, other in self._watches.items():
                if other.queue.name == watch.queue.name:
                    self._watches[shard] = replace(other, not_before=sent_at + REFUSED_AGAIN)
            return
        held = Held(watch.queue, lease, self._seconds, sent_at)
        with self._lock:
            self._held[watch.shard] = held
        if self._membership is not None:
            loads = [len(lane.shards()) for lane in self._lanes]
            self._lane_of[watch.shard] = self._lanes[lane_for(loads)]
        self._lane_of[watch.shard].serve(held)

    def _level(self) -> None:
        """Shards change lanes only when nothing of them is in a lane's hands."""
        while self._membership is not None:
            move = move_between([lane.shards() for lane in self._lanes], self._busy())
            if move is None:
                return
            shard, lane = move
            self._lane_of[shard].drop(shard)
            if shard not in self._lane_of[shard].working:
                self._lane_of[shard] = self._lanes[lane]
            held = self._held.get(shard)
            if held is not None:
                self._lane_of[shard].serve(held)

    # -- the end

    def _give_up(self) -> None:
        """Renew for the lanes that still work, release for those that have ended."""
        silent_since: float | None = None
        left = self._membership is None
        while self._leases() or not left:
            self._wake.clear()
            lanes_ended = all(lane.ended for lane in self._lanes)
            self._outage.asks()
            try:
                if self._membership is not None and not left:
                    self._membership.leave()
                    left = True
                self._forget_crashed()
                self._alarms.look()
                self._renew(stopping=True)
                for held in self._leases():
                    self._release(held)
                if self._leases():
                    self._heartbeat.beat([])
                silent_since = None
            except StoreError as error:
                self._outage.begins(error)
                silent_since = silent_since or self._clock.monotonic()
                if self._abandoned or (
                    lanes_ended and self._clock.monotonic() - silent_since > self._seconds
                ):
                    logger.error("shards could not be released: their next owner waits for the lease")
                    return
            if self._leases():
                self._rest(self._seconds / RENEWALS)
        self._heartbeat.end()

    def _forget_crashed(self) -> None:
        """What a crashed lane was running counts as a crash: that lease is not marked as stopping."""
        with self._lock:
            self._held = {shard: held for shard, held in self._held.items() if not self._crashed_on(shard)}

    def _crashed_on(self, shard: ShardRef) -> bool:
        return self._lane_of[shard].crashed and shard in self._lane_of[shard].working

    def _release(self, held: Held) -> None:
        if not (self._lane_of[held.shard].ended or self._exiting):
            return
        if self._exiting:
            held.lost.set()
        try:
            released = self._store.release(held.lease, unsettled=self._exiting)
        except NotOwner:
            released = True
        if not released:
            logger.warning("shard %s keeps unsettled jobs: its next owner recovers them", held.shard)
        with self._lock:
            self._held.pop(held.shard, None)
