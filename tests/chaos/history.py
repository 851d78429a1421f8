"""What happened in a run, as values. All times are seconds of the clock that the processes share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Push:
    """A payload that was accepted, in a call that took from ``called_at`` to ``at``. It is its own score."""

    id: str
    payload: int
    called_at: float
    at: float


@dataclass(frozen=True)
class Execution:
    """One run of the task function. ``ended_at`` is when it returned or its process died; None: never."""

    pid: int
    shard: int
    epoch: int
    #: When the claim that it comes from was first asked for.
    claimed_at: float
    began_at: float
    ended_at: float | None
    payloads: Mapping[str, tuple[int, ...]]
    #: False when its process died over it, or it failed.
    finished: bool = True
    #: Its first payload died.
    died: int | None = None
    #: Of its process.
    thread: int = 0


@dataclass(frozen=True)
class Watch:
    """A node has begun to watch the leases of others."""

    pid: int
    at: float


@dataclass(frozen=True)
class Acquire:
    """A shard that a node was granted."""

    pid: int
    owner: str
    shard: int
    epoch: int
    called_at: float
    at: float


@dataclass(frozen=True)
class Renewal:
    """A lease that was renewed by a request sent at ``called_at``."""

    shard: int
    epoch: int
    called_at: float


@dataclass(frozen=True)
class Service:
    """A lane, by its thread, serves a shard from ``at`` until it drops it, or its process ends."""

    pid: int
    thread: int
    shard: int
    at: float
    until: float


@dataclass(frozen=True)
class Release:
    """A shard that a node gave up."""

    shard: int
    epoch: int
    at: float


@dataclass(frozen=True)
class Settle:
    """A settle that changed something."""

    pid: int
    shard: int
    epoch: int
    called_at: float
    at: float
    #: Ids whose jobs it ended as done; None if that was not noted.
    done: Sequence[str] | None = None


@dataclass(frozen=True)
class Death:
    """The end of a process; ``cause`` is kill, stop (it was asked to), deadline (strict) or unexpected."""

    pid: int
    at: float
    cause: str


@dataclass(frozen=True)
class Trouble:
    """A fault, from its beginning until it was mended."""

    kind: str
    began_at: float
    ended_at: float
    #: The shards that it touches; None: all of them.
    shards: tuple[int, ...] | None = None
    #: The process that it happened to; 0: to Redis.
    victim: int = 0

    def touches(self, began_at: float, ended_at: float) -> bool:
        """Whether it fell into that time."""
        return self.began_at <= ended_at and began_at <= self.ended_at

    def concerns(self, shard: int) -> bool:
        """Whether it touches a shard."""
        return self.shards is None or shard in self.shards


@dataclass(frozen=True)
class Drain:
    """The end of a run: how long the queue took to get empty (None: it did not), and what keys stayed."""

    seconds: float | None
    leftover: tuple[str, ...] = ()


@dataclass(frozen=True)
class Planned:
    """How long a run makes faults, how many of each kind, and the kinds that must have happened."""

    seconds: float = 0.0
    faults: Mapping[str, int] = field(default_factory=dict)
    expected: frozenset[str] = frozenset()


@dataclass(frozen=True)
class History:
    """A whole run."""

    lease: float
    strict: bool
    drain: Drain
    pushes: tuple[Push, ...] = ()
    executions: tuple[Execution, ...] = ()
    watches: tuple[Watch, ...] = ()
    acquires: tuple[Acquire, ...] = ()
    renewals: tuple[Renewal, ...] = ()
    releases: tuple[Release, ...] = ()
    services: tuple[Service, ...] = ()
    settles: tuple[Settle, ...] = ()
    deaths: tuple[Death, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    #: Whether the store is a cluster.
    cluster: bool = False
    #: Calls that ended with an error: Redis may have stored them.
    unconfirmed: tuple[Push, ...] = ()
    planned: Planned = Planned()

    @property
    def rollbacks(self) -> tuple[Trouble, ...]:
        """The periods whose pushes Redis lost."""
        return tuple(trouble for trouble in self.troubles if trouble.kind == "rollback")

    @property
    def losses(self) -> tuple[Trouble, ...]:
        """The periods whose writes Redis lost, but for pushes that were confirmed by its replica."""
        return tuple(one for one in self.troubles if one.kind.startswith(("rollback", "failover")))


Line = Mapping[str, Any]


def history_of(
    lines: Iterable[Line],
    *,
    lease: float,
    strict: bool,
    drain: Drain,
    cluster: bool = False,
    planned: Planned = Planned(),
) -> History:
    """The run that a ledger tells of."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line["event"], []).append(line)
    deaths = [Death(line["dead"], line["at"], line["cause"]) for line in found.get("death", ())]
    return History(
        lease=lease,
        strict=strict,
        drain=drain,
        cluster=cluster,
        planned=planned,
        pushes=tuple(push for line in found.get("push", ()) for push in _pushes(line)),
        unconfirmed=tuple(push for line in found.get("unconfirmed", ()) for push in _pushes(line)),
        executions=_executions(found.get("start", ()), found.get("end", ()), deaths),
        watches=tuple(Watch(**_fields(line, Watch)) for line in found.get("watch", ())),
        acquires=tuple(Acquire(**_fields(line, Acquire)) for line in found.get("acquire", ())),
        renewals=tuple(
            Renewal(int(shard), epoch, line["called_at"])
            for line in found.get("renew", ())
            for shard, epoch in line["epochs"].items()
        ),
        releases=tuple(Release(**_fields(line, Release)) for line in found.get("release", ())),
        services=_services(found.get("serve", ()), found.get("drop", ()), deaths),
        settles=tuple(Settle(**_fields(line, Settle)) for line in found.get("settle", ())),
        deaths=tuple(deaths),
        troubles=tuple(_trouble(line) for line in found.get("trouble", ())),
    )


def _trouble(line: Line) -> Trouble:
    shards = line.get("shards")
    return Trouble(
        line["kind"],
        line["began_at"],
        line["ended_at"],
        None if shards is None else tuple(shards),
        line.get("victim", 0),
    )


def _fields(line: Line, kind: Any) -> dict[str, Any]:
    return {name: line[name] for name in kind.__dataclass_fields__ if name in line}


def _pushes(line: Line) -> Iterable[Push]:
    for job_id, payload in line["payloads"].items():
        yield Push(job_id, payload, line["called_at"], line["at"])


def _services(serves: Iterable[Line], drops: Iterable[Line], deaths: Iterable[Death]) -> tuple[Service, ...]:
    died = {death.pid: death.at for death in deaths}
    begun: dict[tuple[int, int, int], float] = {}
    found: list[Service] = []
    for line in sorted((*serves, *drops), key=lambda line: line["at"]):
        place = line["pid"], line["thread"], line["shard"]
        if line["event"] == "serve":
            begun.setdefault(place, line["at"])
        elif place in begun:
            found.append(Service(*place, begun.pop(place), line["at"]))
    found += [Service(*place, at, died.get(place[0], math.inf)) for place, at in begun.items()]
    return tuple(found)


def _executions(
    starts: Iterable[Line], ends: Iterable[Line], deaths: Iterable[Death]
) -> tuple[Execution, ...]:
    ended = {(line["pid"], line["run"]): line for line in ends}
    died = {death.pid: death.at for death in deaths}
    made = []
    for line in starts:
        end = ended.get((line["pid"], line["run"]))
        execution = Execution(
            pid=line["pid"],
            shard=line["shard"],
            epoch=line["epoch"],
            claimed_at=line["claimed_at"],
            began_at=line["at"],
            ended_at=died.get(line["pid"]) if end is None else end["at"],
            payloads={job_id: tuple(payloads) for job_id, payloads in line["payloads"].items()},
            finished=end is not None and not end.get("failed"),
            died=None if end is None else end.get("died"),
            thread=line.get("thread", 0),
        )
        made.append(execution)
    return tuple(made)
