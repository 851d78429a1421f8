"""What a lane has claimed of one shard at once: batches that wait, run, and are settled together."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from celery_lowkiq.rules.claims import Claim, ToSettle
from celery_lowkiq.rules.models import Batch, Fate, Job, Verdict
from celery_lowkiq.rules.pace import PATIENCE, WAITING

from ..owned_shard import Held


class Window:
    """Its lane takes batches and adds verdicts; another thread may take away what waits for too long."""

    def __init__(self, held: Held, claim: Claim, claimed_at: float) -> None:
        self.held = held
        self.number = claim.number
        self.claimed_at = claimed_at
        self.ran: list[Batch] = []
        self._verdicts: list[Verdict] = []
        size = held.queue.batch_size
        self._waiting = deque(claim.jobs[i : i + size] for i in range(0, len(claim.jobs), size))
        self._lock = threading.Lock()

    def next(self, now: float) -> Batch | None:
        """The batch to run now (monotonic s), without an outcome yet."""
        with self._lock:
            if not self._waiting or (self.ran and now > self.claimed_at + PATIENCE):
                return None
            jobs = self._waiting.popleft()
        held = self.held
        return Batch(held.queue, held.lease, self.number, jobs, held.lost, now)

    def add(self, batch: Batch, verdicts: Sequence[Verdict]) -> None:
        """A batch has run."""
        self.ran.append(batch)
        self._verdicts += verdicts

    def to_settle(self) -> ToSettle:
        """What has run, with its outcome; what has not goes back as it was."""
        verdicts = (*self._verdicts, *self._returned(self._take_waiting()))
        return ToSettle(self.held.queue, self.held.lease, verdicts)

    def overdue(self, now: float) -> ToSettle | None:
        """What has waited for too long behind a run, to be returned."""
        if now < self.claimed_at + WAITING:
            return None
        jobs = self._take_waiting()
        return ToSettle(self.held.queue, self.held.lease, self._returned(jobs)) if jobs else None

    def put_off(self, returned: ToSettle) -> None:
        """What was to be returned could not be: it goes with the rest."""
        self._verdicts += returned.verdicts

    def _take_waiting(self) -> list[Job]:
        with self._lock:
            jobs = [job for batch in self._waiting for job in batch]
            self._waiting.clear()
        return jobs

    def _returned(self, jobs: Sequence[Job]) -> tuple[Verdict, ...]:
        return tuple(Verdict(job.id, job.claim, Fate.RETURN) for job in jobs)
