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
    queue: str, number: int, shards: Iterable[ShardReport], nodes: Iterable[NodeReport]
) -> list[Hint]:
    """Return hints about shards that are late although their lane works.

    ``number``: of shards, without a migration. The queue must have no rate limit: that makes jobs late, too.
    """
    lanes = _lanes(queue, nodes)
    by_lane = _with_work(queue, shards, lanes)
    crowded: list[ShardReport] = []
    alone: list[ShardReport] = []
    for in_lane in by_lane.values():
        if any(shard.stats.busy for shard in in_lane):
            late = [shard for shard in in_lane if _overdue(shard.stats) >= LATE]
            (crowded if _ids(in_lane) > 1 else alone).extend(late)
    hints = []
    if crowded:
        ids = sum(map(_ids, by_lane.values()))
        text = f"Ids wait for each other in {_described(queue, crowded)}: " + (
            f"{count_of(len(by_lane), 'lane')} of {len(lanes)} {'has' if len(by_lane) == 1 else 'have'} work."
        )
        hints.append(Hint(text, _advice(queue, number, ids, len(by_lane), len(lanes))))
    if alone:
        running = [job_id for shard in alone if shard.running for job_id in shard.running.ids]
        named = f" ({listed(running, MAX_IDS)})" if running else ""
        text = f"Calls wait for the run of their own id{named} in {_described(queue, alone)}."
        advice = (
            "More shards do not help: runs of an id never overlap. Make its runs shorter, or its calls fewer."
        )
        hints.append(Hint(text, advice))
    return hints


def _lanes(queue: str, nodes: Iterable[NodeReport]) -> list[LaneReport]:
    """The lanes that serve a queue, and do not run another one just now."""
    serving = (node for node in nodes if node.alive and queue in node.queues)
    lanes = (lane for node in serving for lane in node.lanes)
    return [lane for lane in lanes if lane.running is None or lane.running.shard.queue == queue]


def _with_work(
    queue: str, shards: Iterable[ShardReport], lanes: Sequence[LaneReport]
) -> dict[ShardRef | int, list[ShardReport]]:
    """The shards with due or running jobs, by lane; one that no lane lists is by itself."""
    lane_of = {shard: number for number, lane in enumerate(lanes) for shard in lane.shards}
    found: dict[ShardRef | int, list[ShardReport]] = defaultdict(list)
    for shard in shards:
        if shard.alive and shard.paused_since is None and (shard.stats.busy or shard.stats.lag):
            ref = ShardRef(queue, shard.index)
            found[lane_of.get(ref, ref)].append(shard)
    return found


def _overdue(stats: Stats) -> float:
    """How long a job waits for another one, or for the run of its own id."""
    return stats.lag or (0.0 if stats.paused_jobs else stats.oldest)


def _ids(shards: Iterable[ShardReport]) -> int:
    """The least number of ids that are due or run; one that runs may be due again."""
    return sum(max(s.stats.due, s.stats.busy + (s.stats.lag > 0)) for s in shards)


def _described(queue: str, shards: Sequence[ShardReport]) -> str:
    overdue = max(_overdue(shard.stats) for shard in shards)
    return f"{shard_names(ShardRef(queue, shard.index) for shard in shards)}, for up to {duration(overdue)}"


def _advice(queue: str, number: int, ids: int, used: int, lanes: int) -> str:
    """``used``: number of lanes with work. If ids are dealt to all lanes anew, some meet by chance."""
    expected = lanes * (1 - (1 - 1 / lanes) ** ids) if lanes else 0.0
    if used >= ENOUGH * expected:
        return "More shards would not help: start more workers, or give them more lanes (-c)."
    command = f"celery -A proj lowkiq reshard {queue} {_proposed(number, lanes)}"
    return f"Another number of shards would use about {expected:.0f} lanes: {command}"


def _proposed(number: int, lanes: int) -> int:
    """A prime, twice the number of shards and of lanes or more.

    Lanes get shards in turn. So if both numbers of shards were multiples of the lanes, each id would stay in
    its lane.
    """
    numbers = range(min(2 * max(number, lanes), LARGEST), MAX_SHARDS + 1)
    return next(n for n in numbers if n != number and all(n % divisor for divisor in range(2, min(n, 64))))
