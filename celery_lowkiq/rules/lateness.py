"""Health check of the lag: queues whose jobs are later than usual, with the cause and the time to drain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from .findings import counted
from .history import DAY, Sample
from .models import ShardRef
from .reports import LaneReport, NodeReport, ShardReport
from .text import duration, format_job_ids

#: Lag (s) from which a queue is late, if it is beyond this many times the usual.
LATE = 60.0
TIMES_USUAL = 2.0


class Lateness(NamedTuple):
    """What is late in a queue, with the cause, and what to do."""

    text: str
    advice: str


def usual_lag(day: Sequence[Sample], until: float) -> float | None:
    """Return the median lag (s) of a day's samples before a Unix time; None without any."""
    before = [sample.lag for sample in day if sample.at < until]
    return median(before) if before else None


def is_late(lag: float, usual: float | None) -> bool:
    """Whether a lag (s) is beyond what is usual."""
    return lag >= LATE and lag > TIMES_USUAL * (usual or 0.0)


def lateness(
    queue: str,
    shards: Sequence[ShardReport],
    day: Sequence[Sample],
    now: float,
    nodes: Sequence[NodeReport],
    lags: Mapping[ShardRef, float],
    limited: bool,
) -> Lateness | None:
    """Return what is late in a queue; None when nothing is, or when its late shards have no living owner.

    ``day``: samples of its last day until ``now`` (Unix s); ``lags``: of the shards of all queues;
    ``limited``: by a rate limit.
    """
    owned = [shard for shard in shards if shard.alive]
    worst = max(owned, key=lambda shard: shard.stats.lag, default=None)
    if worst is None:
        return None
    # What the late job has added to the samples since it was due is not what is usual.
    usual = usual_lag(day, now - worst.stats.lag - DAY.step)
    if not is_late(worst.stats.lag, usual):
        return None
    text = f"Jobs are {duration(worst.stats.lag)} late"
    if usual is not None:
        text += f", usual is {duration(usual)}"
    cause, advice = _cause(queue, worst, nodes, lags, limited)
    return Lateness(f"{text}: {cause}. {_drain(owned)}", advice)


def _cause(
    queue: str, worst: ShardReport, nodes: Sequence[NodeReport], lags: Mapping[ShardRef, float], limited: bool
) -> tuple[str, str]:
    """The cause of the lag of a shard, and advice."""
    lane = _lane_of(worst, nodes)
    run = lane.running if lane is not None else None
    place = f"{worst.lane or 'a lane'} of {worst.owner}"
    if run is not None and run.overdue:
        return f"{place} has run {format_job_ids(run.ids, run.count)} of {run.shard.queue} for too long", (
            "See the run above: the shards of its lane wait for its end."
        )
    if limited:
        return "a rate limit applies", "See how many jobs a second rate_limit and the limits of groups allow."
    first = max(lane.shards, key=lambda shard: lags.get(shard, 0.0), default=None) if lane else None
    other = f"{place} works {{}} first"
    advice = (
        "Give {} workers of its own (-Q, -X), so that no lane has both, or share the lanes by weight "
        "(lowkiq_queue_weights)."
    )
    if first is not None and first.queue != queue and lags.get(first, 0.0) > worst.stats.lag:
        late = duration(lags[first])
        return f"{other.format(first.queue)}, whose jobs are {late} late", advice.format(first.queue)
    if run is not None and run.shard.queue != queue:
        return other.format(run.shard.queue), advice.format(run.shard.queue)
    jobs = counted(worst.stats.due, "due job", "due jobs")
    return (
        f"{place} has {jobs} of shard {worst.index}",
        "Start another worker, or give it more lanes (-c); see the advice about shards, if there is any.",
    )


def _lane_of(shard: ShardReport, nodes: Sequence[NodeReport]) -> LaneReport | None:
    lanes = (lane for node in nodes if node.alive and node.name == shard.owner for lane in node.lanes)
    return next((lane for lane in lanes if lane.name == shard.lane), None)


def _drain(shards: Sequence[ShardReport]) -> str:
    """How long the due jobs take, at the pace of the last one to two minutes."""
    due = sum(shard.stats.due for shard in shards)
    jobs = counted(due, "due job", "due jobs")
    known = [
        (s.stats.due, s.jobs_per_minute) for s in shards if s.stats.due and s.jobs_per_minute is not None
    ]
    if not known:
        return f"{jobs} wait."
    if not all(pace for _, pace in known):
        return f"{jobs} wait, and a shard of them had no job done in the last minute."
    seconds = max(60 * count / (pace or 1.0) for count, pace in known)
    pace = sum(pace or 0.0 for _, pace in known)
    return f"{jobs} drain in about {duration(seconds)} at {pace:.0f} a minute, if no more arrive."
