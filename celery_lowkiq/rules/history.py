"""What a queue has done so far, sampled: the last hour, and how fast it goes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: A sample each so many s, and for how long (s) they are kept.
STEP = 10
KEPT = 3600
#: Rates are means over so many s, and known until the newest sample is so old.
RATE_SECONDS = 60.0
STALE = 45.0


@dataclass(frozen=True, order=True)
class Sample:
    """At a Unix time (s): how many jobs had been processed, and how many runs had failed, ever."""

    at: float
    processed: int
    failed: int


@dataclass(frozen=True)
class Rates:
    """Jobs a second."""

    processed: float
    failed: float


def slot(at: float) -> int:
    """Which sample a moment belongs to; there is at most one a slot."""
    return int(at // STEP)


def rates(samples: Sequence[Sample], now: float) -> Rates | None:
    """Over the last minute of the samples, oldest first; None when there is no such minute: too few of them,
    too old ones, or a queue that began to count anew.
    """
    recent = [sample for sample in samples if sample.at >= now - RATE_SECONDS - STEP]
    if len(recent) < 2 or recent[-1].at < now - STALE:
        return None
    first, last = recent[0], recent[-1]
    seconds = last.at - first.at
    processed, failed = last.processed - first.processed, last.failed - first.failed
    if seconds <= 0 or processed < 0 or failed < 0:
        return None
    return Rates(processed / seconds, failed / seconds)


def sum_of(histories: Iterable[Sequence[Sample]]) -> tuple[Sample, ...]:
    """One history of several queues. Where one has a gap, it counts with what it had before."""
    by_slot = [{slot(sample.at): sample for sample in samples} for samples in histories if samples]
    latest = [min(samples.values()) for samples in by_slot]
    found = []
    for number in sorted(set[int]().union(*by_slot)):
        latest = [samples.get(number, last) for samples, last in zip(by_slot, latest, strict=True)]
        at = max(samples[number].at for samples in by_slot if number in samples)
        found.append(Sample(at, sum(s.processed for s in latest), sum(s.failed for s in latest)))
    return tuple(found)
