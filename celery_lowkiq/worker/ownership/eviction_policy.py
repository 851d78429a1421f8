"""Warns while Redis may throw away what is stored: its setting ``maxmemory-policy``."""

from __future__ import annotations

import logging

from celery_lowkiq.rules.clock import Clock
from celery_lowkiq.rules.health_checks import ERROR, eviction

from ..ports import Store

logger = logging.getLogger("celery_lowkiq.worker")

#: How often it is looked at, and said again while it is so, in s.
EACH = 60.0


class Evictions:
    """Asks one question a minute. What Redis does not tell is said once, and what is harmless not at all."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._next = clock.monotonic()
        self._said = False
        self._said_unknown = False

    def look(self) -> None:
        """Raises StoreUnavailable."""
        now = self._clock.monotonic()
        if now < self._next:
            return
        server = self._store.memory()
        self._next = now + EACH
        finding = eviction(server)
        line = f"maxmemory-policy of Redis: {finding.text} {finding.advice}"
        if finding.level == ERROR:
            logger.error(line)
        elif server.policy is None and not self._said_unknown:
            self._said_unknown = True
            logger.warning(line)
        elif self._said:
            logger.warning("Redis does not throw anything away any more: maxmemory-policy %s", server.policy)
        self._said = finding.level == ERROR
