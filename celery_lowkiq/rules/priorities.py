"""The order in which due jobs of a shard are claimed; ``scripts/lib/waiting_index.lua`` has the same rule."""

from __future__ import annotations

#: As in Celery with Redis, 0 is the most urgent; it is the default.
MOST_URGENT, LEAST_URGENT = 0, 9


def turn(priority: int, perform_in: float, now: float, max_wait: float) -> tuple[int, float, int]:
    """Return the sort key of a due job; the smallest is claimed first. Times are Unix s.

    Jobs due for more than ``max_wait`` s come first, then the most urgent ones, then the longest due.
    """
    overdue = perform_in < now - max_wait
    return -1 if overdue else priority, perform_in, priority
