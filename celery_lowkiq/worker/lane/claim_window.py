"""The batches of one claim, and how many batches to claim at once.

A larger claim saves round trips; a smaller one keeps other lanes and nodes from waiting.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence

from celery_lowkiq.rules.claims import Claim, SettleRequest
from celery_lowkiq.rules.models import Batch, Disposition, Job, Settlement

from ..owned_shard import OwnedShard

#: The batches of one claim should run within this many s.
TARGET_WINDOW = 0.03
#: Batches that have not started after this many s are returned with the settle.
MAX_WINDOW_AGE = 0.05
#: Batches that wait for this many s behind a running one are returned while it runs.
MAX_WAIT_BEHIND_RUN = 0.5
#: Weight of the last run in the mean duration.
WEIGHT = 0.3


def mean_duration(mean: float | None, duration: float) -> float:
    """Return the mean (s) after another run: follows a slow run at once, fast ones gradually."""
    if mean is None or duration > mean:
        return duration
    return (1 - WEIGHT) * mean + WEIGHT * duration


def batches_to_claim(mean: float | None, most: int) -> int:
    """Return how many batches of ``mean`` s to claim at once; one if no duration is known."""
    if mean is None:
        return 1
    return max(1, min(most, int(TARGET_WINDOW / mean) if mean > 0 else most))


class ClaimWindow:
    """Batches that wait, run, and are settled together.

    The lane starts batches and adds settlements; the window reaper takes away what waits for too long.
    """

    def __init__(self, owned: OwnedShard, claim: Claim, claimed_at: float) -> None:
        self.owned = owned
        self.number: int = claim.number
        self._suspect = claim.suspect
        self._redis_time = claim.now
        self.claimed_at = claimed_at
        self.ran: list[Batch] = []
        #: Monotonic time at which Redis first denied the right to settle it.
        self.denied_at: float | None = None
        self._settlements: list[Settlement] = []
        size = owned.queue.batch_size
        #: Taken from one end, by one method of ``deque``: so each batch goes to one thread, without a lock.
        self._waiting = deque([claim.jobs[i : i + size] for i in range(0, len(claim.jobs), size)])

    def next(self, now: float) -> Batch | None:
        """Return the batch to run at ``now`` (monotonic); None when the rest is to be returned."""
        if self.ran and now > self.claimed_at + MAX_WINDOW_AGE:
            return None
        try:
            jobs = self._waiting.popleft()
        except IndexError:
            return None
        owned = self.owned
        return Batch(
            owned.queue, owned.lease, self.number, jobs, owned.lost, now, self._redis_time, "", self._suspect
        )

    def add(self, batch: Batch, settlements: Sequence[Settlement]) -> None:
        """Record the settlements of a batch that has run."""
        self.ran.append(batch)
        self._settlements += settlements

    def to_settle(self, release: bool = False) -> SettleRequest:
        """Return all settlements; batches that have not run are returned unchanged."""
        settlements = (*self._settlements, *self._returned(self._take_waiting()))
        return SettleRequest(self.owned.queue, self.owned.lease, settlements, release)

    def restore(self, request: SettleRequest) -> None:
        """Take back what :meth:`to_settle` returned and could not be settled.

        Its failures were counted beside the settle: a later try would count them again.
        """
        self._settlements = [each._replace(failure=None) for each in request.settlements]

    def take_unstarted(self, now: float) -> SettleRequest | None:
        """Remove the batches that have waited too long at ``now`` (monotonic), to be returned."""
        if now < self.claimed_at + MAX_WAIT_BEHIND_RUN:
            return None
        jobs = self._take_waiting()
        return SettleRequest(self.owned.queue, self.owned.lease, self._returned(jobs)) if jobs else None

    def add_settlements(self, settlements: Sequence[Settlement]) -> None:
        """Record settlements that came later than their batch, or that could not be settled alone."""
        self._settlements += settlements

    def _take_waiting(self) -> list[Job]:
        jobs: list[Job] = []
        with contextlib.suppress(IndexError):
            while True:
                jobs += self._waiting.popleft()
        return jobs

    def _returned(self, jobs: Sequence[Job]) -> tuple[Settlement, ...]:
        return tuple(Settlement(job.id, job.claim, Disposition.RETURN) for job in jobs)
