"""One thread that takes shards, renews their leases, and gives them up when the node stops."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence

from celery_lowkiq.rules.errors import StoreError
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.ownership import RENEWALS
from celery_lowkiq.rules.pace import WAITING

from ..context import Surroundings
from ..lane.lane import Lane
from ..outage import pauses
from ..owned_shard import Held
from .acquisition import Taking
from .eviction_policy import Evictions
from .heartbeat import Heartbeat
from .lease_table import Holdings
from .lost_shards import Partings
from .membership import Membership
from .misassignment import Strays
from .overdue import Alarms
from .rebalancing import Sharing
from .shutdown import Farewell

logger = logging.getLogger("celery_lowkiq.worker")

#: Leases run out while others wait for Redis: the longest time between two attempts to renew them, in s.
LONGEST_PAUSE = 0.25
#: So much of a lease time a turn takes shards in any case, also when all else took longer than a turn should.
TAKING = 0.1


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
        self._lanes = lanes
        self._heartbeat = heartbeat
        self._membership = membership
        self._strays = strays
        self._served = self._to_serve = frozenset(served)
        heartbeat.serves = self._served
        holdings = self._holdings = Holdings(dealt)
        self._partings = Partings(holdings)
        self._taking = Taking(around, holdings, owner=owner, lanes=lanes, membership=membership)
        self._sharing = Sharing(
            around.store, holdings, lanes=lanes, heartbeat=heartbeat, membership=membership
        )
        self._farewell = Farewell(around.store, holdings, membership)
        self._alarms = Alarms(around.host, around.clock, lanes)
        self._evictions = Evictions(around.store, around.clock)
        #: What was dealt since the start, until the thread takes it in.
        self._learnt: deque[Mapping[ShardRef, tuple[QueueSpec, Lane]]] = deque()
        self._wake = threading.Event()
        self._draining = False
        self._abandoned = False
        self._pauses = pauses(longest=LONGEST_PAUSE)
        #: When the leases are to be renewed next (monotonic).
        self._renew_at = 0.0
        #: When to look at the shards of others: not while those seen free take all the time (monotonic).
        self._look_at = 0.0
        self.ended = False
        self._thread = threading.Thread(target=self._main, name="lowkiq-ownership", daemon=True)

    # -- called from other threads

    def start(self) -> None:
        """Begin to take shards."""
        self._thread.start()

    def learn(self, dealt: Mapping[ShardRef, tuple[QueueSpec, Lane]]) -> None:
        """Know the shards of more queues before the next :meth:`serve`, which may name these."""
        self._learnt.append(dealt)

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
        self._farewell.at_once = self._exclusion.gives_up_running
        self._wake.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread ended, at most ``timeout`` s."""
        self._thread.join(timeout)

    def look_now(self) -> None:
        """Something happened that the thread waits for."""
        self._wake.set()

    def lost(self, held: Held) -> None:
        """A shard is another node's, whoever is told first."""
        if self._holdings.part_with(held):
            self._meter.lost()
            self._partings.add(held.shard)

    def lane_of(self, shard: ShardRef) -> Lane | None:
        """The lane that serves a shard, or would."""
        return self._holdings.lane_of.get(shard)

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
            self._give_back()

    def _give_back(self) -> None:
        for lane in self._lanes:
            lane.give_back(self._clock.monotonic())

    def _turn(self) -> float:
        """Renew, share, look, take; seconds until the next turn."""
        self._outage.asks()
        self._renew_at = self._clock.monotonic() + self._seconds / RENEWALS
        try:
            self._renew(stopping=False)
            self._evictions.look()
            self._attend()
            done = self._sharing.share(self._served, lambda: self._in_time(self._renew_at))
            done = self._take() and done
            self._partings.tell(self._wanted())
            self._sharing.level()
            self._alarms.look()
            self._strays.look()
        except StoreError as error:
            self._outage.begins(error)
            self._holdings.doubt(self._clock.monotonic())
            self._look_at = 0.0
            return min(self._seconds / RENEWALS, next(self._pauses))
        self._outage.ends()
        self._pauses = pauses(longest=LONGEST_PAUSE)
        if not done:
            return 0.0
        return min(self._seconds / RENEWALS, self._taking.next_look(self._wanted()))

    def _in_time(self, until: float) -> bool:
        """Whether a turn with much to do may go on (monotonic, s). What waits behind long runs is given back
        meanwhile.
        """
        self._give_back()
        return self._clock.monotonic() < until

    def _renew(self, stopping: bool) -> None:
        held = [one for one in self._holdings.leases() if not self._given_up(one)]
        sent_at = self._clock.monotonic()
        lapsed = [one.lapsed(sent_at) for one in held]
        renewed = self._store.renew([one.lease for one in held], lapsed, stopping=stopping)
        for one, ours in zip(held, renewed, strict=True):
            lane = self._holdings.lane_of[one.shard]
            if ours:
                late = not one.may_claim(sent_at)
                one.renewed_at = sent_at
                one.lost.clear()
                if late:
                    lane.refresh()
            else:
                lane.drop(one.shard)
                self.lost(one)
        self._meter.renewed(sum(renewed))
        self._exclusion.renewed()

    def _given_up(self, held: Held) -> bool:
        """Whether a run never seems to end, and may be ended by letting its lease run out."""
        return self._exclusion.ends_overdue and held.lease in self._alarms.leases

    def _attend(self) -> None:
        """Begin with the queues that were added, and leave those that were taken away."""
        to_serve = self._to_serve
        if to_serve == self._served:
            return
        while self._learnt:
            self._take_in(self._learnt.popleft())
        if self._membership is not None:
            self._membership.attend(to_serve)
        self._served = to_serve

    def _take_in(self, dealt: Mapping[ShardRef, tuple[QueueSpec, Lane]]) -> None:
        queues = {queue.name: queue for queue, _ in dealt.values()}
        self._holdings.learn(dealt)
        self._heartbeat.learn(queues)
        if self._membership is not None:
            self._membership.learn(queues)

    def _wanted(self) -> list[ShardRef]:
        return self._holdings.wanted(self._served)

    def _take(self) -> bool:
        """What is free, for as long as there is time; whether that was all. What this node is told meanwhile
        ends it.
        """
        now = self._clock.monotonic()
        if now >= self._look_at:
            self._taking.look(self._wanted())
            self._look_at = now + self._seconds
            self._heartbeat.free_at = self._taking.free_at
        serving, until = self._to_serve, max(self._renew_at, now + TAKING * self._seconds)

        def go_on() -> bool:
            return self._in_time(until) and self._to_serve is serving and not self._draining

        done = self._taking.take((s for s in self._wanted() if s.queue in serving), go_on)
        if done:
            self._look_at = now
        return done

    # -- the end

    def _give_up(self) -> None:
        """Renew for the lanes that still work, release for those that have ended."""
        silent_since: float | None = None
        while not self._farewell.done:
            self._wake.clear()
            lanes_ended = all(lane.ended for lane in self._lanes)
            self._outage.asks()
            try:
                self._part()
                silent_since = None
            except StoreError as error:
                self._outage.begins(error)
                silent_since = silent_since or self._clock.monotonic()
                if self._abandoned or (
                    lanes_ended and self._clock.monotonic() - silent_since > self._seconds
                ):
                    logger.error("shards could not be released: their next owner waits for the lease")
                    return
            if self._holdings.leases():
                self._rest(self._seconds / RENEWALS)
        self._heartbeat.end()

    def _part(self) -> None:
        self._farewell.leave()
        self._farewell.forget_crashed()
        self._alarms.look()
        self._renew(stopping=True)
        self._partings.tell(())
        self._farewell.release()
        if self._holdings.leases():
            self._heartbeat.beat([])
