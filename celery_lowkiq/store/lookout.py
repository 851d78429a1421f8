"""Reads for people about nodes and shards: who does what, and what was done. No job waits for any of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery_lowkiq.rules.history import Sample
from celery_lowkiq.rules.models import QueueSpec
from celery_lowkiq.rules.reports import NodeReport

from .keys import history_key, report_key, reports_key
from .records import parse_id
from .reports import parse_history, parse_report
from .store import RedisStore

#: So many nodes are shown at most, those that reported last.
MOST_NODES = 1000
REPORT_FIELDS = ("at", "started", "text")


class Lookout:
    """What nodes say of themselves, and what queues have done. Every method may raise StoreError."""

    def __init__(self, store: RedisStore) -> None:
        self._client = store.client

    def nodes(self) -> list[NodeReport]:
        """All that reported within the last hour and did not stop properly since, in two round trips."""
        time, known = self._client.commands([("TIME",), ("ZREVRANGE", reports_key(), 0, MOST_NODES - 1)])
        return self.reports([parse_id(owner) for owner in known], seconds(time))

    def reports(self, owners: Sequence[str], now: float) -> list[NodeReport]:
        """Of these nodes, without those that have none, in one round trip; ``now`` is Redis's (Unix s)."""
        found = self._client.commands([report_command(owner) for owner in owners])
        reports = [parse_report(owner, fields, now) for owner, fields in zip(owners, found, strict=True)]
        return [report for report in reports if report is not None]

    def histories(self, queues: Sequence[QueueSpec]) -> list[tuple[Sample, ...]]:
        """Samples of the last hour, oldest first, of each queue, in one round trip."""
        time, *found = self._client.commands(
            [("TIME",), *(("HVALS", history_key(queue.name)) for queue in queues)]
        )
        return [parse_history(values, seconds(time)) for values in found]


def report_command(owner: str) -> tuple[Any, ...]:
    """Reads what :func:`~.reports.parse_report` takes."""
    return ("HMGET", report_key(owner), *REPORT_FIELDS)


def seconds(time: Any) -> float:
    """Redis's answer to TIME as Unix s."""
    return float(time[0]) + float(time[1]) / 1_000_000
