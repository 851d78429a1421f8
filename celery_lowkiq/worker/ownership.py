"""One thread that takes shards, renews their leases, and gives them up when the node stops."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace

from celery_lowkiq.rules.clock import Clock
from celery_lowkiq.rules.errors import (
    FormatMismatch,
    NotOwner,
    ShardCountMismatch,
    StoreError,
    StoreUnavailable,
)
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.rules.ownership import RENEWALS, Watch

from .held import Held
from .lane import Lane
from .outage import Outage, pauses
from .ports import Host, Store

logger = logging.getLogger("celery_lowkiq.worker")

#: After a refusal that only people can mend (another shard count) a queue is tried again so often, in s.
REFUSED_AGAIN = 60.0


class Ownership:
    """Holds the node's leases. Lanes are told what to serve; the rest of the node asks nothing of it."""

    def __init__(
        self,
        store: Store,
        host: Host,
        outage: Outage,
        clock: Clock,
        *,
        owner: str,
        lease_seconds: float,
        placement: Mapping[ShardRef, tuple[QueueSpec, Lane]],
    ) -> None:
        self._store = store
        self._host = host
        self._outage = outage
        self._clock = clock
        self._owner = owner
        self._seconds = lease_seconds
        self._lanes = {shard: lane for shard, (_, lane) in placement.items()}
        self._watches = {shard: Watch(queue, shard) for shard, (queue, _) in placement.items()}
        self._held: dict[ShardRef, Held] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._draining = False
        self._abandoned = False
        self._pauses = pauses()
        self.ended = False
        self._thread = threading.Thread(target=self._main, name="lowkiq-ownership", daemon=True)

    # -- called from other threads

    def start(self) -> None:
        """Begin to take shards."""
        self._thread.start()

    def drain(self) -> None:
        """Take nothing more, and release each lane's shards when it has ended."""
        self._draining = True
        self._wake.set()

    def abandon(self) -> None:
        """Say that this node is stopping, and leave everything as it is."""
        self._abandoned = True
        self.drain()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread ended, at most ``timeout`` s."""
        self._thread.join(timeout)

    def look_now(self) -> None:
        """Something happened that the thread waits for."""
        self._wake.set()

    def lost(self, held: Held) -> None:
        """A lane was told that a shard is another node's."""
        with self._lock:
            if self._held.get(held.shard) is held:
                del self._held[held.shard]
                self._watches[held.shard] = Watch(held.queue, held.shard, known_epoch=held.lease.epoch)

    # -- the thread

    def _main(self) -> None:
        try:
            while not self._draining:
                self._wake.wait(self._turn())
                self._wake.clear()
            self._give_up()
        except Exception as error:
            logger.exception("the ownership thread ends: the worker stops")
            self._host.last_words(error)
            self._host.stop(70, f"lowkiq-ownership: {error!r}")
        finally:
            self.ended = True

    def _turn(self) -> float:
        """Renew, look, take; seconds until the next turn."""
        try:
            self._renew(stopping=False)
            self._look()
            for shard in self._lanes:
                # Read anew each time: one refusal puts off all shards of its queue.
                if self._free(self._watches[shard]) and not self._draining:
                    self._take(self._watches[shard])
        except StoreError as error:
            self._outage.begins(error)
            return min(self._seconds / RENEWALS, next(self._pauses))
        self._outage.ends()
        self._pauses = pauses()
        now = self._clock.monotonic()
        looks = [w.next_look(now, self._seconds) for s, w in self._watches.items() if s not in self._held]
        return min([self._seconds / RENEWALS, *looks])

    def _leases(self) -> list[Held]:
        with self._lock:
            return list(self._held.values())

    def _renew(self, stopping: bool) -> None:
        held = self._leases()
        sent_at = self._clock.monotonic()
        renewed = self._store.renew([one.lease for one in held], stopping=stopping)
        for one, ours in zip(held, renewed, strict=True):
            if ours:
                late = not one.may_claim(sent_at)
                one.renewed_at = sent_at
                if late:
                    self._lanes[one.shard].refresh()
            else:
                logger.warning("shard %s has changed hands: this node leaves it", one.shard)
                self._lanes[one.shard].drop(one.shard)
                self.lost(one)

    def _look(self) -> None:
        watched = [shard for shard in self._watches if shard not in self._held]
        if watched:
            states = self._store.observe(watched)
            now = self._clock.monotonic()
            for shard, state in zip(watched, states, strict=True):
                self._watches[shard] = self._watches[shard].look(state, now)

    def _free(self, watch: Watch) -> bool:
        """Never while a thread of this node still runs something of an older epoch."""
        batch = self._lanes[watch.shard].batch
        runs = batch is not None and batch.shard == watch.shard
        if watch.shard in self._held or runs:
            return False
        # Ours already: the reply of an acquire was lost.
        return watch.seen.owner == self._owner or watch.may_take(self._clock.monotonic(), self._seconds)

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
        self._lanes[watch.shard].serve(held)

    # -- the end

    def _give_up(self) -> None:
        """Renew for the lanes that still work, release for those that have ended."""
        silent_since: float | None = None
        while self._leases():
            self._wake.clear()
            lanes_ended = all(lane.ended for lane in self._lanes.values())
            try:
                self._forget_crashed()
                self._renew(stopping=True)
                for held in self._leases():
                    self._release(held)
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
                self._wake.wait(self._seconds / RENEWALS)

    def _forget_crashed(self) -> None:
        """What a crashed lane was running counts as a crash: that lease is not marked as stopping."""
        with self._lock:
            self._held = {shard: held for shard, held in self._held.items() if not self._crashed_on(shard)}

    def _crashed_on(self, shard: ShardRef) -> bool:
        lane = self._lanes[shard]
        return lane.crashed and lane.batch is not None and lane.batch.shard == shard

    def _release(self, held: Held) -> None:
        if not self._lanes[held.shard].ended:
            return
        try:
            released = self._store.release(held.lease)
        except NotOwner:
            released = True
        if not released:
            logger.warning("shard %s keeps unsettled jobs: its next owner recovers them", held.shard)
        with self._lock:
            self._held.pop(held.shard, None)
