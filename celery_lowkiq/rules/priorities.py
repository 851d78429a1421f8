"""In which order the due jobs of a shard take their turn; ``scripts/lib/turns.lua`` goes by the same rule."""

from __future__ import annotations

#: As Celery has it with Redis: 0 is the most urgent, and what a job has to which nobody gave another.
MOST_URGENT, LEAST_URGENT = 0, 9


def turn(priority: int, perform_in: float, now: float, max_wait: float) -> tuple[int, float, int]:
    """Smaller turns come first: those of jobs that are due for more than ``max_wait`` s, then those of the
    most urgent ones, and among these of the one that is due for longest. Times are Unix s.
    """
    overdue = perform_in < now - max_wait
    return -1 if overdue else priority, perform_in, priority
