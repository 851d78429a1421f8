"""Where the time of a job goes, by cProfile in the one lane of a worker.

cProfile makes every call slower, one of a Python function more than one of a built-in: what the job takes
longer than without it is taken off in that proportion, so that the groups add up to a job's true time.
Built-ins and the standard library belong to whoever calls them, but for sockets: that time is Redis's and the
network's.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from celery.signals import worker_shutdown

#: A function as pstats names it: file, line, name.
Place: TypeAlias = tuple[str, int, str]

NETWORK = "Redis and network"
OTHER = "other"
#: What pstats has for the file of a built-in.
BUILT_IN = "~"
#: What pstats has of a function that was entered before the profile began.
NOBODY: tuple[Any, ...] = (0, 0, 0.0, 0.0, {})
#: Calls that the prices are measured with.
CALLS = 100_000
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


def prices() -> tuple[float, float]:
    """What cProfile adds to a call of a Python function, and of a built-in."""

    def seconds(call: Callable[[], object], profiled: bool) -> float:
        profile = cProfile.Profile()
        began = time.perf_counter()
        if profiled:
            profile.enable()
        for _ in range(CALLS):
            call()
        profile.disable()
        return time.perf_counter() - began

    def function() -> None:
        return None

    return (
        max(0.0, seconds(function, True) - seconds(function, False)),
        max(0.0, seconds(dict, True) - seconds(dict, False)),
    )


def costs(
    stats: Mapping[Place, Any], jobs: int, microseconds: float, prices: tuple[float, float]
) -> dict[str, list[Cost]]:
    """Functions by group, most expensive first; a job takes so many ``microseconds`` without a profiler."""
    found: defaultdict[str, list[Cost]] = defaultdict(list)
    weights = {place: calls * prices[place[0] == BUILT_IN] for place, (_, calls, _, _, _) in stats.items()}
    profiled = sum(seconds for _, _, seconds, _, _ in stats.values()) / jobs * 1e6
    factor = (profiled - microseconds) / sum(weights.values())
    for place, (_, calls, seconds, _, callers) in stats.items():
        own = seconds * 1e6 / jobs - weights[place] * factor
        for group, share in _shares(stats, place, callers).items():
            found[group].append(Cost(place, own * share, calls * share / jobs))
    return {group: sorted(costs, key=lambda cost: -cost.microseconds) for group, costs in found.items()}


def _shares(stats: Mapping[Place, Any], place: Place, callers: Mapping[Place, Any]) -> dict[str, float]:
    """A function of no group is shared out among the groups of its callers."""
    if group_of(place) != OTHER:
        return {group_of(place): 1.0}
    calls: defaultdict[str, int] = defaultdict(int)
    for caller, (_, count, _, _) in callers.items():
        calls[_home(stats, caller, {place})] += count
    # Helpers that call each other lead nowhere; whoever calls them from outside pays.
    if len(calls) > 1:
        calls.pop(OTHER, None)
    total = sum(calls.values())
    return {group: count / total for group, count in calls.items()} if total else {OTHER: 1.0}


def _home(stats: Mapping[Place, Any], place: Place, seen: set[Place]) -> str:
    """The group that calls a helper most often, however many helpers lie between."""
    group = group_of(place)
    callers = {c: calls for c, calls in stats.get(place, NOBODY)[4].items() if c not in seen}
    if group != OTHER or not callers:
        return group
    return _home(stats, max(callers, key=lambda caller: callers[caller][1]), {*seen, place})


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
