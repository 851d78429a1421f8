"""Where the time of a job goes, by cProfile in the one lane of a worker.

cProfile makes every call slower: what the job takes longer than without it is taken off, the same of each
call, so that the groups add up to a job's true time. Built-in functions and the standard library belong to
whoever calls them, but for sockets: that time is Redis's and the network's.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from celery.signals import worker_shutdown

#: A function as pstats names it: file, line, name.
Place: TypeAlias = tuple[str, int, str]

NETWORK = "Redis and network"
OTHER = "other"
#: Helpers of these belong to whoever calls them, as those of the standard library.
HELPERS = ("/celery/utils/", "/kombu/utils/")
SOCKETS = ("_socket.socket", "select.poll", "select.select", "select.epoll")
#: Groups by parts of a file's path; the first that matches.
GROUPS = (
    ("client (redis-py)", ("/redis/",)),
    ("ours: store", ("celery_lowkiq/store/",)),
    ("ours: lane", ("celery_lowkiq/worker/", "celery_lowkiq/rules/")),
    ("ours: runner", ("celery_lowkiq/integration/",)),
    ("user", ("benchmarks/proj",)),
    ("Celery: tracer", ("/celery/app/",)),
    ("Celery: request, state", ("/celery/", "/kombu/")),
)


@dataclass(frozen=True)
class Cost:
    """One function's share, in us a job."""

    place: Place
    microseconds: float
    calls: float

    def __str__(self) -> str:
        file, line, name = self.place
        where = "/".join(file.split("/")[-2:])
        return f"{self.microseconds:8.1f} us {self.calls:7.2f} calls  {name}  {where}:{line}"


def profile_lanes(path: str) -> None:
    """In a worker with one lane: profile its thread, and write the profile when the worker stops."""
    profiles: list[cProfile.Profile] = []

    def begin(*_: object) -> None:
        sys.setprofile(None)
        if threading.current_thread().name.startswith("lane-"):
            profile = cProfile.Profile()
            profiles.append(profile)
            profile.enable()

    def write(**_: object) -> None:
        for profile in profiles:
            profile.dump_stats(path)

    threading.setprofile(begin)
    worker_shutdown.connect(write, weak=False)


def group_of(place: Place) -> str:
    """The group of a function, as far as its own name tells."""
    file, _, name = place
    if any(part in name for part in SOCKETS):
        return NETWORK
    if any(part in file for part in HELPERS):
        return OTHER
    return next((group for group, parts in GROUPS if any(part in file for part in parts)), OTHER)


def costs(stats: Mapping[Place, Any], jobs: int, microseconds: float) -> dict[str, list[Cost]]:
    """Functions by group, most expensive first; a job takes so many ``microseconds`` without a profiler."""
    found: defaultdict[str, list[Cost]] = defaultdict(list)
    profiled = sum(seconds for _, _, seconds, _, _ in stats.values()) / jobs * 1e6
    price = (profiled - microseconds) * jobs / sum(calls for _, calls, _, _, _ in stats.values())
    for place, (_, calls, seconds, _, callers) in stats.items():
        own = (seconds * 1e6 - calls * price) / jobs
        for group, share in _shares(stats, place, callers).items():
            found[group].append(Cost(place, own * share, calls * share / jobs))
    return {group: sorted(costs, key=lambda cost: -cost.microseconds) for group, costs in found.items()}


def _shares(stats: Mapping[Place, Any], place: Place, callers: Mapping[Place, Any]) -> dict[str, float]:
    """A function of no group is shared out among the groups of its callers."""
    group = group_of(place)
    if group != OTHER or not callers:
        return {group: 1.0}
    total = sum(calls for _, calls, _, _ in callers.values())
    shares: defaultdict[str, float] = defaultdict(float)
    for caller, (_, calls, _, _) in callers.items():
        shares[_home(stats, caller, 0)] += calls / total
    return dict(shares)


def _home(stats: Mapping[Place, Any], place: Place, depth: int) -> str:
    """The group that calls a helper most often, however many helpers lie between."""
    group = group_of(place)
    callers = stats[place][4] if place in stats else {}
    if group != OTHER or not callers or depth > 10:
        return group
    return _home(stats, max(callers, key=lambda caller: callers[caller][1]), depth + 1)


def read(path: str) -> Mapping[Place, Any]:
    """The functions of a profile."""
    stats: Mapping[Place, Any] = vars(pstats.Stats(path))["stats"]
    return stats


def text(found: Mapping[str, list[Cost]], functions: int = 12) -> str:
    """The groups, and the most expensive functions of each."""
    sums = {group: sum(cost.microseconds for cost in costs) for group, costs in found.items()}
    total = sum(sums.values()) or 1.0
    lines = [f"{total:.0f} us a job, of which"]
    for group in sorted(sums, key=lambda group: -sums[group]):
        lines.append(f"{sums[group]:8.1f} us {sums[group] / total:6.1%}  {group}")
        lines += [f"      {cost}" for cost in found[group][:functions]]
    return "\n".join(lines)
