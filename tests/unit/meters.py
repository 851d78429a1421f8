"""A meter that remembers."""

from __future__ import annotations

from celery_lowkiq.rules.models import Batch


class Tally:
    """``worker.ports.Meter``."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, float, float]] = []
        self.renewals = self.losses = self.refusals = self.outages = 0

    def ran(self, batch: Batch, began_at: float, seconds: float) -> None:
        self.runs.append((batch.jobs[0].id, began_at, seconds))

    def renewed(self, leases: int) -> None:
        self.renewals += leases

    def lost(self) -> None:
        self.losses += 1

    def refused(self) -> None:
        self.refusals += 1

    def outage(self) -> None:
        self.outages += 1

    def loop_lag(self, seconds: float) -> None: ...
