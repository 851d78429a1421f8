"""How long healthy shards of a cluster were silent: those whose master lived and whose slot did not move."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.chaos.history import Execution, History, Service
from tests.chaos.ownership import Leases
from tests.chaos.report import EXAMPLES, Gate

#: Most seconds between an accepted payload and its run, while its lane and its shard had nothing else to do.
LIMIT = 1.0
#: Seconds after a fault of a master within which its clients find the new one, beside the lease's times.
FIND = 1.0


class Silence(NamedTuple):
    """A payload waited from ``since`` until its run began, though its shard was idle, and so was the lane
    that served the shard, if one did.
    """

    since: float
    execution: Execution

    @property
    def seconds(self) -> float:
        return self.execution.began_at - self.since


def silence_gate(silences: Iterable[Silence]) -> Gate:
    """The longest of the silences of healthy shards, with the longest ones as examples."""
    found = sorted(silences, key=lambda one: -one.seconds)
    examples = [
        f"shard {one.execution.shard}, pid {one.execution.pid}: {one.seconds:.2f} s from {one.since:.3f}"
        for one in found[:EXAMPLES]
        if one.seconds > LIMIT
    ]
    return Gate("silence of a healthy shard s", found[0].seconds if found else None, LIMIT, tuple(examples))


def healthy_silences(history: History, leases: Leases) -> Iterator[Silence]:
    """Each silence into which no fault of its shard's master or slot fell, and none of its owner."""
    for one in silences(history):
        if not _is_disturbed(history, leases, one):
            yield one


def silences(history: History) -> Iterator[Silence]:
    """One for each run that had a payload which no run had claimed before."""
    pushed = {(push.id, push.payload): push.at for push in reversed(history.pushes)}
    idle_since: dict[tuple[int, int] | int, float] = {}
    lanes = _Lanes(history)
    for execution in sorted(history.executions, key=_began_at):
        fresh = [
            pushed.pop((job_id, payload), math.inf)
            for job_id, payloads in execution.payloads.items()
            for payload in payloads
        ]
        lane = (execution.pid, execution.thread)
        since = max(min(fresh), idle_since.get(lane, 0.0), idle_since.get(execution.shard, 0.0))
        since = lanes.busy_until(execution.shard, since, execution.began_at)
        if since < execution.began_at:
            yield Silence(since, execution)
        for place in (lane, execution.shard):
            ended_at = execution.ended_at or math.inf
            idle_since[place] = max(idle_since.get(place, 0.0), ended_at)


class _Lanes:
    """The lanes of each shard, one after the other, and their runs."""

    def __init__(self, history: History) -> None:
        self._services: dict[int, list[Service]] = defaultdict(list)
        self._runs: dict[tuple[int, int], list[Execution]] = defaultdict(list)
        for service in history.services:
            self._services[service.shard].append(service)
        for run in sorted(history.executions, key=_began_at):
            self._runs[run.pid, run.thread].append(run)

    def busy_until(self, shard: int, since: float, began_at: float) -> float:
        """Return the last time after ``since`` at which a lane served the shard and ran another one, before
        the run that ``began_at``; ``since`` without one.
        """
        for service in self._services[shard]:
            if service.at > began_at or service.until <= since:
                continue
            runs = self._runs[service.pid, service.thread]
            place = bisect_left(runs, min(service.until, began_at), key=_began_at)
            ended_at = (runs[place - 1].ended_at or math.inf) if place else 0.0
            busy_until = min(ended_at, service.until)
            if service.at <= busy_until <= began_at:
                since = max(since, busy_until)
        return since


def _began_at(execution: Execution) -> float:
    return execution.began_at


def _is_disturbed(history: History, leases: Leases, silence: Silence) -> bool:
    since, until, shard = silence.since, silence.execution.began_at, silence.execution.shard
    for trouble in history.troubles:
        if trouble.victim:
            # Of a worker: of its shards only, which another one takes, or it goes on with them.
            if trouble.victim == silence.execution.pid and trouble.touches(since, until):
                return True
        # What was lost comes back after the lease, as another server has it now.
        elif trouble.concerns(shard) and trouble.touches(since - 1.25 * history.lease - FIND, until):
            return True
    changes = leases.changes(shard, since, until)
    return any(_is_taken(history, former.pid, since, later.at) for former, later in changes)


def _is_taken(history: History, pid: int, since: float, at: float) -> bool:
    """Whether a shard was taken from a process that was dead, or had been frozen until then."""
    dead = any(death.pid == pid and death.at <= at for death in history.deaths)
    lease = 1.25 * history.lease + FIND
    return dead or any(one.victim == pid and one.touches(since - lease, at) for one in history.troubles)
