"""Samples of a queue's counters over the last hour and the last day, and the rates computed from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from .errors import InvalidCall

#: Seconds between counters by shard, and number of them that are kept.
SHARDS_STEP, SHARDS_KEPT = 60, 2
#: Seconds over which rates are averaged, and age in s of the newest sample beyond which there is no rate.
RATE_SECONDS = 60.0
STALE = 45.0


@dataclass(frozen=True)
class Span:
    """A span of time for which samples are kept: ``seconds`` long, with one sample in each ``step`` s."""

    name: str
    seconds: int
    step: int

    @property
    def samples(self) -> int:
        """Maximum number of its samples."""
        return self.seconds // self.step

    def slot(self, at: float) -> int:
        """Return the number of the time slot of a Unix time; there is at most one sample per slot."""
        return int(at // self.step)


HOUR, DAY = Span("1h", 3600, 10), Span("24h", 86_400, 600)
SPANS = {span.name: span for span in (HOUR, DAY)}


def span_of(name: str) -> Span:
    """Return the span of that name. Raises InvalidCall."""
    if name not in SPANS:
        raise InvalidCall(f"span={name[:50]!r} is invalid: expected one of {', '.join(SPANS)}")
    return SPANS[name]


@dataclass(frozen=True, order=True)
class Sample:
    """Counters at a Unix time (s): jobs processed and runs failed since the queue exists.

    ``lag``: the largest (s) that was seen in its time slot.
    """

    at: float
    processed: int
    failed: int
    lag: float = 0.0


@dataclass(frozen=True, order=True)
class Counters:
    """Counters at a Unix time (s): jobs processed by shard; failed runs and the lag (s) of all shards.

    The time is that of the master which stores the queue's history.
    """

    at: float
    processed: tuple[int, ...]
    failed: int = 0
    lag: float = 0.0


@dataclass(frozen=True)
class Rates:
    """Jobs per second."""

    processed: float
    failed: float


def rates(samples: Sequence[Sample], now: float) -> Rates | None:
    """Return the rates over the last minute of samples, oldest first.

    None when samples are too few or too old, or when counters were reset.
    """
    recent = [sample for sample in samples if sample.at >= now - RATE_SECONDS - HOUR.step]
    if len(recent) < 2 or recent[-1].at < now - STALE:
        return None
    first, last = recent[0], recent[-1]
    seconds = last.at - first.at
    processed, failed = last.processed - first.processed, last.failed - first.failed
    if seconds <= 0 or processed < 0 or failed < 0:
        return None
    return Rates(processed / seconds, failed / seconds)


def shard_rates(
    earlier: Iterable[Counters], processed: Sequence[int], now: float
) -> tuple[float | None, ...]:
    """Return the jobs a minute of each shard, over the last one to two minutes.

    None when earlier counters are too recent or too old, or when one of them was larger: counters were reset,
    or those of a removed shard were added to others.
    """
    longest = SHARDS_STEP * SHARDS_KEPT + STALE
    if first := min((one for one in earlier if HOUR.step <= now - one.at <= longest), default=None):
        done = [new - old for new, old in zip_longest(processed, first.processed, fillvalue=0)]
        if min(done) >= 0:
            return tuple(60 * count / (now - first.at) for count in done[: len(processed)])
    return (None,) * len(processed)


def sum_of(histories: Iterable[Sequence[Sample]], span: Span = HOUR) -> tuple[Sample, ...]:
    """Return the sum of several histories of a span, with the largest of their lags.

    A gap in one counts with its previous sample, without its lag.
    """
    by_slot = [{span.slot(sample.at): sample for sample in samples} for samples in histories if samples]
    latest = [min(samples.values()) for samples in by_slot]
    total = []
    for number in sorted(set[int]().union(*by_slot)):
        latest = [samples.get(number, last) for samples, last in zip(by_slot, latest, strict=True)]
        found = [samples[number] for samples in by_slot if number in samples]
        at, lag = max(one.at for one in found), max(one.lag for one in found)
        total.append(Sample(at, sum(s.processed for s in latest), sum(s.failed for s in latest), lag))
    return tuple(total)
