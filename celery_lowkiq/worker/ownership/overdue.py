"""Tells of batches that run for longer than their task allows."""

from __future__ import annotations

from collections.abc import Sequence

from celery_lowkiq.rules.clock import Clock
from celery_lowkiq.rules.models import Lease

from ..lane.lane import Lane
from ..ports import Host


class Alarms:
    """Once for each batch; a shard has one batch at a time."""

    def __init__(self, host: Host, clock: Clock, lanes: Sequence[Lane]) -> None:
        self._host = host
        self._clock = clock
        self._lanes = lanes
        #: Of the batches that are late now.
        self.leases: frozenset[Lease] = frozenset()

    def look(self) -> None:
        """Look at what runs now."""
        now = self._clock.monotonic()
        late = {b.lease: b for lane in self._lanes if (b := lane.batch) is not None and b.overdue(now)}
        for lease, batch in late.items():
            if lease not in self.leases:
                self._host.alarm(batch, now - batch.began_at)
        self.leases = frozenset(late)
