"""Claims from one shard, runs the batches, and settles them with the next claim."""

from __future__ import annotations

import os
from collections.abc import KeysView

from celery_lowkiq.rules.claims import SENT_AGAIN, Claim, ClaimRequest, Due, SettleReply, SettleRequest
from celery_lowkiq.rules.errors import NotOwner, ShardDamaged, StoreError, StoreUnavailable
from celery_lowkiq.rules.loggers import worker_logger as logger
from celery_lowkiq.rules.models import Batch, Settlement, ShardRef
from celery_lowkiq.rules.rate import Tokens, run_count

from ..context import WorkerContext
from ..forks import staying
from ..owned_shard import OwnedShard
from .claim_window import ClaimWindow, batches_to_claim, mean_duration
from .lane_state import FAILED_SHARD_DELAY, LaneState

#: Seconds until a lane tries a shard again whose master of a cluster is away.
PARKED = 0.5
#: Seconds until a lane tries a shard again in which only suspects are due, while another lane runs one.
SUSPECT_DELAY = 0.2


class ClaimCycle:
    """Claims batches of a shard, runs them, and settles them with the next claim.

    It belongs to the thread of its lane; only :meth:`return_unstarted` is called from another one.
    """

    def __init__(self, state: LaneState, ctx: WorkerContext) -> None:
        #: The running batch.
        self.batch: Batch | None = None
        #: Of the runs of each queue, in s, see ``claim_window.py``; and the seconds of all runs together.
        self.mean_durations: dict[str, float] = {}
        self.seconds_run: float = 0.0
        self._state = state
        self._ctx = ctx
        #: The claim that is not settled yet.
        self._window: ClaimWindow | None = None
        #: Claims that could not be settled, by shard: their masters are away, or Redis denies the right.
        #: Replaced as a whole, since other threads read it.
        self._aside: dict[ShardRef, ClaimWindow] = {}
        #: Monotonic time at which they are tried again.
        self._try_aside_at = 0.0

    @property
    def unsettled(self) -> ShardRef | None:
        """The shard of a claim that is not settled yet."""
        window = self._window
        return None if window is None else window.owned.shard

    @property
    def aside(self) -> KeysView[ShardRef]:
        """The shards of claims that could not be settled yet: their masters are away, or deny the right."""
        return self._aside.keys()

    def run_next(self, owned: OwnedShard) -> None:
        """Claim from a shard, and run the batches; the next claim settles them."""
        queue = owned.queue
        if owned.shard in self._aside:
            if self._window is not None:
                self.settle()
            self._window = self._take_aside(owned.shard)
            self.settle()
            if owned.shard in self._aside:
                return
        wanted = batches_to_claim(self.mean_durations.get(queue.name), self._ctx.window)
        surplus = 0
        try:
            tokens = self._tokens(queue.name, wanted=wanted)
            surplus = batches = wanted if tokens is None else tokens.granted
            if batches:
                surplus = self._claim_and_run(owned, batches)
        except StoreError as error:
            if owned.shard not in self._aside:
                self._on_store_error(owned, error)
        self._return_tokens(queue.name, surplus)

    def settle_aside(self, at_once: bool = False) -> None:
        """Try again to settle what is aside, not more often than each PARKED s unless ``at_once``.

        Gives up when the lane does.
        """
        now = self._ctx.clock.monotonic()
        if not self._aside or (now < self._try_aside_at and not at_once):
            return
        self._try_aside_at = now + PARKED
        if self._window is not None:
            self.settle()
        for shard in self._aside:
            self._window = self._take_aside(shard)
            self.settle()
        if self._aside and self._state.gives_up():
            for shard, window in self._aside.items():
                self._take_aside(shard)
                self._on_store_error(window.owned, StoreUnavailable("what ran is not settled"))

    def _take_aside(self, shard: ShardRef) -> ClaimWindow:
        window = self._aside[shard]
        self._aside = {other: each for other, each in self._aside.items() if other != shard}
        return window

    def settle(self) -> None:
        """Settle what has run, without another claim."""
        try:
            self._settle_and_claim(None)
        except StoreError as error:
            window, self._window = self._window, None
            if window is not None:
                self._on_settled(window, error)

    def settle_after_crash(self) -> None:
        """Settle all batches of a crashed lane but the running one: only that counts as crashed.

        End at the first server that is away: the worker stops only after this.
        """
        if self.batch is None:
            return
        windows = list(self._aside.values())
        if self._window is not None:
            self._window.add_settlements(self._ctx.runner.flush())
            windows.insert(0, self._window)
        for window in windows:
            error = self._try_settle(window.to_settle())
            if error is not None:
                shard = window.owned.shard
                logger.error("%s could not settle what ran of %s before: %s", self._state.name, shard, error)
            if isinstance(error, StoreUnavailable):
                break

    def return_unstarted(self, now: float) -> None:
        """Return batches that have waited too long behind a running one; ``now`` is monotonic."""
        window = self._window
        returned = window.take_unstarted(now) if window is not None else None
        if window is not None and returned is not None and self._try_settle(returned) is not None:
            # The lane's own settle meets the error, and handles it.
            window.add_settlements(returned.settlements)

    def _try_settle(self, to_settle: SettleRequest) -> StoreError | None:
        try:
            answer, _ = self._ctx.store.exchange(to_settle, None)
        except StoreError as error:
            return error
        return answer if isinstance(answer, StoreError) else None

    def _on_store_error(self, owned: OwnedShard, error: StoreError) -> None:
        if isinstance(error, NotOwner):
            self._state.drop(owned.shard)
            self._ctx.mailbox.report_gone(owned)
            self._retract_crashes(owned)
        elif isinstance(error, StoreUnavailable) and not self._state.gives_up():
            self._state.defer(owned.shard, PARKED)
        elif isinstance(error, StoreUnavailable):
            logger.error("stopping: jobs of %s that were claimed will be recovered: %s", owned.shard, error)
        else:
            self._ctx.meter.refused()
            # The text of a damage needs no traceback.
            cause = None if isinstance(error, ShardDamaged) else error
            logger.error(
                "shard %s is skipped for %.0f s: %s", owned.shard, FAILED_SHARD_DELAY, error, exc_info=cause
            )
            self._state.defer(owned.shard, FAILED_SHARD_DELAY)

    def _retract_crashes(self, owned: OwnedShard) -> None:
        # The new owner has counted a crash of this node, which is alive.
        try:
            self._ctx.store.retract_crashes(owned.lease)
        except StoreError as error:
            logger.warning("crashes that were counted for %s could not be undone: %s", owned.shard, error)

    def _tokens(self, queue: str, *, wanted: int = 0, surplus: int = 0) -> Tokens | None:
        """Take or return tokens; None for a queue without a rate limit. Raises StoreUnavailable."""
        limiter = self._ctx.rate_limiter
        request = limiter.request(queue, self._state.name, wanted=wanted, surplus=surplus)
        if request is None:
            return None
        tokens = self._state.request([], lambda: self._ctx.store.tokens(request))
        if isinstance(tokens, StoreUnavailable):
            limiter.park(queue, PARKED)
            raise tokens
        limiter.record(queue, tokens)
        return tokens

    def _return_tokens(self, queue: str, surplus: int) -> None:
        if not surplus:
            return
        try:
            self._tokens(queue, surplus=surplus)
        except StoreError as error:
            logger.warning("%d tokens of queue %s could not be returned: %s", surplus, queue, error)

    def _claim_and_run(self, owned: OwnedShard, batches: int) -> int:
        """Claim and run. Return how many claimed batches did not start: their tokens go back.

        A node runs one suspect at a time, so that a crash has one cause.
        """
        lock = self._ctx.suspect_lock
        locked = lock.acquire(blocking=False)
        try:
            # The claim that is settled in the same round trip is listed as open, too: if only its settle
            # fails, its jobs must not go back and run twice.
            number, open_claims = owned.next_request(), owned.open_claims
            claim = self._settle_and_claim(
                ClaimRequest(owned.queue, owned.lease, number, open_claims, locked, batches)
            )
            assert claim is not None
            if locked and not claim.suspect:
                lock.release()
                locked = False
            if claim.suspect_due:
                self._state.defer(owned.shard, SUSPECT_DELAY)
            claimed = run_count(len(claim.jobs), owned.queue.batch_size)
            # Returned before the run, since other lanes can use them meanwhile.
            self._return_tokens(owned.queue.name, batches - claimed)
            started = self._run(owned, claim)
            if locked:
                self.settle()
            return claimed - started
        finally:
            if locked:
                lock.release()

    def _settle_and_claim(self, to_claim: ClaimRequest | None) -> Claim | None:
        """Settle what has run, release its shard if it is leaving, and claim, in one round trip.

        Raises the error of the claim.
        """
        window = self._window
        to_settle = self._settle_request(window) if window is not None else None
        shards = [request.lease.shard for request in (to_settle, to_claim) if request is not None]
        store = self._ctx.store
        settled, claim = self._state.request(shards, lambda: store.exchange(to_settle, to_claim))
        if window is not None:
            self._window = None
            assert settled is not None
            assert to_settle is not None
            if isinstance(settled, SENT_AGAIN):
                window.restore(to_settle)
                self._set_aside(window, settled)
                if to_claim is not None and to_claim.lease.shard == window.owned.shard:
                    # What was claimed nevertheless goes back with the next claim: a second window of the
                    # shard would take the place of this one.
                    raise settled
            else:
                self._on_settled(window, settled)
        if isinstance(claim, StoreError):
            raise claim
        if claim is not None and to_claim is not None:
            self._state.record(to_claim.lease.shard, Due(claim.next_due, claim.now))
        return claim

    def _set_aside(self, window: ClaimWindow, error: StoreError) -> None:
        now = self._ctx.clock.monotonic()
        if not self._aside:
            self._try_aside_at = now + PARKED
        shard = window.owned.shard
        self._aside = {**self._aside, shard: window}
        self._state.defer(shard, PARKED)
        # What a master of a cluster denies is logged for all its shards.
        if not isinstance(error, StoreUnavailable):
            self._ctx.meter.refused()
            if window.denied_at is None:
                window.denied_at = now
                logger.error("what ran of shard %s is not settled until Redis permits it: %s", shard, error)

    def _settle_request(self, window: ClaimWindow) -> SettleRequest:
        """Return the request that settles what has run, and releases the shard if it is leaving."""
        window.add_settlements(self._ctx.runner.flush())
        owned = window.owned
        owned.release_sent = owned.leaving
        owned.may_be_released |= owned.leaving
        return window.to_settle(owned.release_sent)

    def _on_settled(self, window: ClaimWindow, settled: SettleReply | StoreError) -> None:
        owned = window.owned
        owned.close_claim(window.number)
        if window.denied_at is not None and not isinstance(settled, StoreError):
            seconds = self._ctx.clock.monotonic() - window.denied_at
            logger.warning("what ran of shard %s is settled after %.1f s", owned.shard, seconds)
        if isinstance(settled, StoreError):
            self._on_store_error(owned, settled)
        else:
            if settled.released:
                self._ctx.mailbox.report_gone(owned)
            self._state.record(owned.shard, Due(settled.next_due, settled.now))
            for batch in window.ran:
                self._ctx.runner.settled(batch, settled.accepted)
        if not self._state.serves(owned):
            self._ctx.mailbox.wake()

    def _count_unverified(self, queue: str, settlement: Settlement) -> None:
        count = sum(removal.unverified for removal in settlement.bad)
        if count:
            self._ctx.meter.unverified(queue, count)

    def _run(self, owned: OwnedShard, claim: Claim) -> int:
        """Run the batches of a claim while they may start; return how many ran."""
        if not claim.jobs:
            return 0
        owned.open_claim(claim.number)
        ctx, pid, name = self._ctx, os.getpid(), owned.queue.name
        now = ctx.clock.monotonic()
        window = self._window = ClaimWindow(owned, claim, now)
        mean = self.mean_durations.get(name)
        # The answer of a claim may come late: after an outage another node may be about to take the shard.
        while self._state.may_start(owned, now) and (batch := window.next(now)) is not None:
            self.batch = batch
            ctx.exclusion.begin(owned)
            try:
                settlements = staying(pid, ctx.runner.run, batch)
            finally:
                ctx.exclusion.end(owned)
            if self._state.stopping:
                # What stops the worker may have ended the child process of the run, too.
                settlements = tuple([settlement.without_crash() for settlement in settlements])
            window.add(batch, settlements)
            for settlement in settlements:
                if settlement.bad:
                    self._count_unverified(name, settlement)
            self.batch = None
            began_at, now = now, ctx.clock.monotonic()
            mean = self.mean_durations[name] = mean_duration(mean, now - began_at)
            self.seconds_run += now - began_at
            ctx.meter.ran(batch, claim.now + began_at - window.claimed_at, now - began_at)
        return len(window.ran)
