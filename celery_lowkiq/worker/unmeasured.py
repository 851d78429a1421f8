"""``worker.ports.Meter`` where nobody watches."""

from __future__ import annotations

from celery_lowkiq.rules.models import Batch


class Unmeasured:
    """Counts nothing."""

    def ran(self, batch: Batch, began_at: float, seconds: float) -> None:
        """Not counted."""

    def renewed(self, leases: int) -> None:
        """Not counted."""

    def lost(self) -> None:
        """Not counted."""

    def refused(self) -> None:
        """Not counted."""

    def outage(self) -> None:
        """Not counted."""


UNMEASURED = Unmeasured()
