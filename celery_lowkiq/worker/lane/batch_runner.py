"""What a lane does with one shard: claim, run, and settle with the next claim."""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import TYPE_CHECKING

from celery_lowkiq.rules.claims import Claim, Due, Settled, ToClaim
from celery_lowkiq.rules.errors import NotOwner, ShardDamaged, StoreError, StoreUnavailable
from celery_lowkiq.rules.models import Batch, ShardRef
from celery_lowkiq.rules.pace import batches_to_claim, mean_duration
from celery_lowkiq.rules.rate import runs_of

from ..context import PARKED, Surroundings
from ..forks import staying
from ..owned_shard import Held
from .claim_window import Window

if TYPE_CHECKING:
    from .lane import Lane

logger = logging.getLogger("celery_lowkiq.worker")

#: How long a shard with a suspect waits for another lane's suspect, in s.
SUSPECT_PAUSE = 0.2


class Work:
    """Of one lane, in its thread; only :meth:`give_back` is called from another."""

    def __init__(self, lane: Lane, around: Surroundings) -> None:
        self.batch: Batch | None = None
        self._lane = lane
        self._around = around
        #: What is claimed and not settled yet.
        self._window: Window | None = None
        #: Mean duration of a batch (s), by queue.
        self._pace: dict[str, float] = {}

    @property
    def unsettled(self) -> bool:
        """Whether anything is claimed and not settled."""
        return self._window is not None

    @property
    def shard(self) -> ShardRef | None:
        """Of what is claimed and not settled."""
        window = self._window
        return None if window is None else window.held.shard

    def give_back(self, now: float) -> None:
        """Return what has waited for too long behind a run, while that goes on; ``now`` is monotonic."""
        window = self._window
        returned = window.overdue(now) if window is not None else None
        if window is None or returned is None:
            return
        try:
            answer, _ = self._around.store.exchange(returned, None)
        except StoreUnavailable as error:
            answer = error
        if isinstance(answer, StoreError):
            # The lane will meet it, and knows what to do.
            window.put_off(returned)

    def save(self) -> None:
        """Of what a crashed lane has claimed, only the batch that was running counts as crashed."""
        if self._window is None or self.batch is None:
            return
        try:
            answer, _ = self._around.store.exchange(self._window.to_settle(), None)
        except StoreUnavailable as error:
            answer = error
        if isinstance(answer, StoreError):
            logger.error("what %s had run before could not be settled: %s", self._lane.name, answer)

    def do(self, held: Held) -> None:
        """Claim from a shard, and run what is claimed; it is settled with the next claim."""
        queue = held.queue
        wanted = batches_to_claim(self._pace.get(queue.name), self._around.window)
        surplus = 0
        try:
            surplus = batches = self._take_tokens(queue.name, wanted)
            if batches:
                surplus = self._claim_and_run(held, batches)
        except StoreError as error:
            self._failed(held, error)
        self._return_tokens(queue.name, surplus)

    def finish(self) -> None:
        """Settle what has run, without claiming anything."""
        try:
            self._exchange(None)
        except StoreUnavailable as error:
            window, self._window = self._window, None
            if window is not None:
                self._failed(window.held, error)

    def _failed(self, held: Held, error: StoreError) -> None:
        if isinstance(error, NotOwner):
            self._lane.drop(held.shard)
            self._around.lost(held)
            self._forgive(held)
        elif isinstance(error, StoreUnavailable):
            logger.error(
                "gave up on Redis while stopping: what was claimed of %s will be recovered", held.shard
            )
        else:
            self._around.meter.refused()
            # Of damage its text says all.
            cause = None if isinstance(error, ShardDamaged) else error
            logger.error("shard %s is left alone for %.0f s: %s", held.shard, PARKED, error, exc_info=cause)
            self._lane.park(held.shard, PARKED)

    def _forgive(self, held: Held) -> None:
        """Whoever took the shard thought that this node had died."""
        try:
            self._around.store.forgive(held.lease)
        except StoreError as error:
            logger.warning("deaths that were counted for %s could not be taken back: %s", held.shard, error)

    def _take_tokens(self, queue: str, wanted: int) -> int:
        """How many batches may be claimed now."""
        limits = self._around.limits
        request = limits.request(queue, self._lane.name, wanted=wanted)
        if request is None:
            return wanted
        tokens = self._lane.ask([], lambda: self._around.store.tokens(request))
        limits.learn(queue, tokens)
        return tokens.granted

    def _return_tokens(self, queue: str, surplus: int) -> None:
        if not surplus:
            return
        limits = self._around.limits
        request = limits.request(queue, self._lane.name, surplus=surplus)
        if request is None:
            return
        try:
            limits.learn(queue, self._lane.ask([], lambda: self._around.store.tokens(request)))
        except StoreError as error:
            logger.warning("%d tokens of queue %s could not be given back: %s", surplus, queue, error)

    def _claim_and_run(self, held: Held, batches: int) -> int:
        """How many batches were claimed and have not begun. One suspect at a time on a node: if it dies, that
        one is to blame.
        """
        lock = self._around.suspects
        leave = lock.acquire(blocking=False)
        try:
            claim = self._exchange(self._wish(held, leave, batches))
            assert claim is not None
            if leave and not claim.suspect:
                lock.release()
                leave = False
            if claim.suspect_due:
                self._lane.park(held.shard, SUSPECT_PAUSE)
            claimed = runs_of(len(claim.jobs), held.queue.batch_size)
            # Now, since others could use them while this runs.
            self._return_tokens(held.queue.name, batches - claimed)
            began = self._run(held, claim)
            if leave:
                self.finish()
            return claimed - began
        finally:
            if leave:
                lock.release()

    def _wish(self, held: Held, suspects: bool, batches: int) -> ToClaim:
        held.request += 1
        # What is settled in the same breath is still in hand: the settle alone may fail.
        return ToClaim(held.queue, held.lease, held.request, held.in_hand, suspects, batches)

    def _exchange(self, wish: ToClaim | None) -> Claim | None:
        """Settle what has run, and claim, in one round trip. Raises what the claim was answered."""
        window = self._window
        to_settle = window.to_settle() if window is not None else None
        shards = [asked.lease.shard for asked in (to_settle, wish) if asked is not None]
        store = self._around.store
        settled, claim = self._lane.ask(shards, lambda: store.exchange(to_settle, wish))
        if window is not None:
            self._window = None
            assert settled is not None
            self._told(window, settled)
        if isinstance(claim, StoreError):
            raise claim
        if claim is not None and wish is not None:
            self._lane.know(wish.lease.shard, Due(claim.next_due, claim.now))
        return claim

    def _told(self, window: Window, settled: Settled | StoreError) -> None:
        held = window.held
        held.let_go(window.number)
        if isinstance(settled, StoreError):
            self._failed(held, settled)
        else:
            self._lane.know(held.shard, Due(settled.next_due, settled.now))
            for batch in window.ran:
                self._around.runner.settled(batch, settled.accepted)
        if not self._lane.serves(held):
            self._around.freed()

    def _run(self, held: Held, claim: Claim) -> int:
        if not claim.jobs:
            return 0
        held.took(claim.number)
        clock = self._around.clock
        now = clock.monotonic()
        window = self._window = Window(held, claim, now)
        while self._may_begin(held, now) and (batch := window.next(now)) is not None:
            self.batch = batch
            self._around.exclusion.begin(held)
            try:
                verdicts = staying(os.getpid(), partial(self._around.runner.run, batch))
            finally:
                self._around.exclusion.end(held)
            window.add(batch, verdicts)
            self.batch = None
            began_at, now = now, clock.monotonic()
            name = held.queue.name
            self._pace[name] = mean_duration(self._pace.get(name), now - began_at)
            self._around.meter.ran(batch, claim.now + began_at - window.claimed_at, now - began_at)
        return len(window.ran)

    def _may_begin(self, held: Held, now: float) -> bool:
        """The answer of a claim may be late: after an outage another node may be about to take the shard."""
        return not self._lane.stopping and held.may_claim(now) and self._lane.serves(held)
