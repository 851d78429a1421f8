"""Begins migrations by itself: to the number of shards that the code of all nodes declares."""

from __future__ import annotations

from collections.abc import Mapping

from celery_lowkiq.rules.loggers import worker_logger as logger
from celery_lowkiq.rules.resizing import agreed

from ..context import WorkerContext


class AutoReshard:
    """Looks once in a lease time, and only while the code and the stored number differ.

    In a rolling deploy the nodes do not agree, so nothing begins before its end.
    """

    def __init__(self, ctx: WorkerContext, declared: Mapping[str, int]) -> None:
        """``declared``: numbers of shards in the code of this node, by queue; may change."""
        self._ctx = ctx
        self._declared = declared
        self._look_at = ctx.clock.monotonic() + ctx.lease_seconds

    def check(self, routes: Mapping[str, str]) -> None:
        """Begin what all nodes agree on. ``routes``: stored numbers of shards. Raises StoreError."""
        now = self._ctx.clock.monotonic()
        # A queue that is moving has the phase behind its route.
        wanted = [
            queue
            for queue, route in routes.items()
            if route.isdecimal() and int(route) != self._declared.get(queue, int(route))
        ]
        if not wanted or now < self._look_at:
            return
        self._look_at = now + self._ctx.lease_seconds
        nodes = self._ctx.store.nodes()
        for queue in wanted:
            shards = agreed(nodes, queue)
            if shards == self._declared[queue] and self._ctx.store.begin_migration(queue, shards):
                logger.info("queue %s begins to move to %d shards: all nodes declare that", queue, shards)
