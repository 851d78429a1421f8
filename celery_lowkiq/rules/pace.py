"""How much a lane claims at once: so much that asking Redis costs little, so little that nobody waits."""

from __future__ import annotations

#: What was claimed at once should have run within so many s.
WINDOW = 0.03
#: When it has not within so many s, the rest goes back.
PATIENCE = 0.05
#: What waits behind a run for so many s goes back while that goes on.
WAITING = 0.5
#: Weight of the last run in the mean of their durations.
WEIGHT = 0.3


def mean_duration(mean: float | None, duration: float) -> float:
    """The mean (s) after another run: at once when runs become slow, by and by when they become fast."""
    if mean is None or duration > mean:
        return duration
    return (1 - WEIGHT) * mean + WEIGHT * duration


def batches_to_claim(mean: float | None, most: int) -> int:
    """How many batches to claim at once, one before anything is known."""
    if mean is None:
        return 1
    return max(1, min(most, int(WINDOW / mean) if mean > 0 else most))
