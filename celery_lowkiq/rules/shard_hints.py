"""Which shards have the most load, and whether another number of shards would help."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .layout import MAX_SHARDS
from .models import ShardRef
from .reports import LaneReport, NodeReport, ShardReport
from .text import count_of, duration, listed, shard_names
from .views import Stats

#: Lag (s) from which a shard is late.
LATE = 10.0
#: Seconds of history that advice about shards needs, and the load from which a lane works all the time.
LONG_RUN = 600.0
FULL = 0.9
#: Lanes with work, as a fraction of those that a new deal would use, from which that would not help.
ENOUGH = 0.8
#: Numbers from which the proposed one is taken, at the latest.
LARGEST = 4000
#: Maximum number of ids in a hint.
MAX_IDS = 3


class Hint(NamedTuple):
    """What is wrong with the load of shards, and what to do."""

    text: str
    advice: str


def by_load(shards: Iterable[ShardReport]) -> list[ShardReport]:
    """Return the shards, those with the most load first: lag, then jobs, then jobs a minute."""

    def load(shard: ShardReport) -> tuple[float, ...]:
        return shard.stats.lag, shard.stats.length + shard.stats.busy, shard.jobs_per_minute or 0.0

    return sorted(shards, key=load, reverse=True)


def shard_hints(
    queue: str, number: int, shards: Sequence[ShardReport], nodes: Iterable[NodeReport]
) -> list[Hint]:
    """Return hints about shards that are late although their lane has worked for ten minutes.

    ``number``: of shards, without a migration. The queue must have no rate limit: that makes jobs late, too.
    Hints come from what lanes did in the long run, and name a number that depends on the numbers of shards
    and lanes alone, so that two reads in a row say the same.
    """
    serving = [node for node in nodes if node.alive and queue in node.queues]
    if not all(_known_for_long(shard, serving) for shard in shards if shard.alive):
        return []
    lanes = [lane for node in serving for lane in node.lanes]
    loads = [lane.load for lane in lanes if lane.load is not None]
    if not loads or len(loads) < len(lanes):
        return []
    crowded: list[ShardReport] = []
    alone: list[ShardReport] = []
    by_lane = _with_work(queue, shards, lanes)
    for lane, in_lane in by_lane:
        if _works(lane):
            late = [shard for shard in in_lane if _overdue(shard.stats) >= LATE]
            (crowded if _ids(in_lane) > 1 else alone).extend(late)
    hints = []
    if crowded:
        ids = sum(_ids(in_lane) for _, in_lane in by_lane)
        text = (
            f"Ids wait for each other in {_described(queue, crowded)}: in the last {duration(LONG_RUN)}, "
            f"{count_of(sum(map(_works, lanes)), 'lane')} of {len(lanes)} worked all the time, and all of "
            f"them {sum(loads) / len(loads):.0%} of it."
        )
        hints.append(Hint(text, _advice(queue, number, ids, sum(loads), len(lanes))))
    if alone:
        running = [job_id for shard in alone if shard.running for job_id in shard.running.ids]
        named = f" ({listed(running, MAX_IDS)})" if running else ""
        text = f"Calls wait for the run of their own id{named} in {_described(queue, alone)}."
        advice = (
            "More shards do not help: runs of an id never overlap. Make its runs shorter, or its calls fewer."
        )
        hints.append(Hint(text, advice))
    return hints


def _known_for_long(shard: ShardReport, nodes: Iterable[NodeReport]) -> bool:
    """Whether its owner has had it for as long as the load of lanes tells: a move takes shards anew."""
    now = max((node.seen_at + node.silent for node in nodes), default=0.0)
    return shard.since is None or now - shard.since >= LONG_RUN


def _works(lane: LaneReport) -> bool:
    """Whether it has worked all the time in the long run, and not on one run that is overdue."""
    return (lane.load or 0.0) >= FULL and not (lane.running and lane.running.overdue)


def _with_work(
    queue: str, shards: Iterable[ShardReport], lanes: Sequence[LaneReport]
) -> list[tuple[LaneReport, list[ShardReport]]]:
    """The lanes that have shards with due or running jobs, and these shards."""
    lane_of = {shard: number for number, lane in enumerate(lanes) for shard in lane.shards}
    found: dict[int, list[ShardReport]] = defaultdict(list)
    for shard in shards:
        if shard.alive and shard.paused_since is None and (shard.stats.busy or shard.stats.lag):
            number = lane_of.get(ShardRef(queue, shard.index))
            if number is not None:
                found[number].append(shard)
    return [(lanes[number], in_lane) for number, in_lane in found.items()]


def _overdue(stats: Stats) -> float:
    """How long a job waits for another one, or for the run of its own id."""
    return stats.lag or (0.0 if stats.paused_jobs else stats.oldest)


def _ids(shards: Iterable[ShardReport]) -> int:
    """The least number of ids that are due or run; one that runs may be due again."""
    return sum(max(s.stats.due, s.stats.busy + (s.stats.lag > 0)) for s in shards)


def _described(queue: str, shards: Sequence[ShardReport]) -> str:
    overdue = max(_overdue(shard.stats) for shard in shards)
    return f"{shard_names(ShardRef(queue, shard.index) for shard in shards)}, for up to {duration(overdue)}"


def _advice(queue: str, number: int, ids: int, used: float, lanes: int) -> str:
    """``used``: the sum of the loads of lanes. If ids are dealt to all lanes anew, some meet by chance."""
    expected = lanes * (1 - (1 - 1 / lanes) ** ids)
    if used >= ENOUGH * expected:
        return "More shards would not help: start more workers, or give them more lanes (-c)."
    command = f"celery -A proj lowkiq reshard {queue} {_proposed(number, lanes)}"
    return f"Another number of shards would use more lanes: {command}"


def _proposed(number: int, lanes: int) -> int:
    """A prime, twice the number of shards and of lanes or more.

    Lanes get shards in turn. So if both numbers of shards were multiples of the lanes, each id would stay in
    its lane.
    """
    numbers = range(min(2 * max(number, lanes), LARGEST), MAX_SHARDS + 1)
    return next(n for n in numbers if n != number and all(n % divisor for divisor in range(2, min(n, 64))))
