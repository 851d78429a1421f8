"""Which fault comes when: a pure function of seed and options, so that a run can be repeated."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from .options import Options

#: How often a kind comes, beside 1 of others: a Redis that is always away lets nothing happen.
WEIGHTS = {"kill": 3, "freeze": 3, "cut": 3, "redis": 2, "reshard": 4, "failover": 3}
#: Sizes that a cluster is brought to, one after the other.
SIZES = (1, 4, 2, 8)
#: Seconds that a cluster gets to settle at each of its sizes.
SETTLE = 5.0
#: Seconds that the clock of Redis jumps by.
JUMPS = (1.0, 60.0, 3600.0)
YEAR = 365 * 86400.0
#: Numbers of shards that a queue is brought to, one after the other, as parts of that of its task.
SHARDS = (2.0, 1.0, 0.3, 1.0)


@dataclass(frozen=True)
class Kill:
    """SIGKILL to a node, which is started again."""

    at: float
    node: int


@dataclass(frozen=True)
class Freeze:
    """SIGSTOP to a node, SIGCONT after ``seconds``."""

    at: float
    node: int
    seconds: float


@dataclass(frozen=True)
class KillRedis:
    """SIGKILL to Redis, which is started again after ``seconds``."""

    at: float
    seconds: float


@dataclass(frozen=True)
class Cut:
    """All connections are closed."""

    at: float


@dataclass(frozen=True)
class Hole:
    """Connections stay, and for ``seconds`` nothing comes through."""

    at: float
    seconds: float


@dataclass(frozen=True)
class Down:
    """Connections are closed, and refused for ``seconds``."""

    at: float
    seconds: float


@dataclass(frozen=True)
class Rollback:
    """Redis forgets, at the end, what it was told in these s, as a failover may do."""

    at: float
    seconds: float


@dataclass(frozen=True)
class Jump:
    """The clock of Redis is set ``seconds`` ahead of the true time."""

    at: float
    seconds: float


@dataclass(frozen=True)
class Resize:
    """The cluster gets ``nodes`` nodes; those that leave get SIGTERM."""

    at: float
    nodes: int


@dataclass(frozen=True)
class Roll:
    """SIGTERM to a node, and another is started in its place at once."""

    at: float
    node: int


@dataclass(frozen=True)
class Reshard:
    """A migration to the next number of shards begins. A command moves the queue, beside all workers; it gets
    SIGKILL after ``seconds``.
    """

    at: float
    seconds: float


@dataclass(frozen=True)
class Failover:
    """SIGKILL to the master, ``lag`` s after its replica has followed it no more; ``seconds`` later, the
    replica takes its place.
    """

    at: float
    lag: float
    seconds: float


Fault: TypeAlias = (
    Kill | Freeze | KillRedis | Cut | Hole | Down | Rollback | Jump | Resize | Roll | Reshard | Failover
)


def plan(seed: int, options: Options) -> Iterator[Fault]:
    """The faults of a run, in order; ``at`` is in s from its start."""
    if options.faults == {"rebalance"}:
        return _rebalance(options)
    return _mixed(random.Random(seed), options)


def _mixed(chance: random.Random, options: Options) -> Iterator[Fault]:
    kinds = sorted(options.faults)
    weights = [WEIGHTS.get(kind, 1) for kind in kinds]
    at = 0.0
    while kinds:
        at += options.pause * chance.uniform(0.5, 1.5)
        if at >= options.seconds:
            return
        (kind,) = chance.choices(kinds, weights)
        yield _MAKERS[kind](chance, at, options)


def _rebalance(options: Options) -> Iterator[Fault]:
    """One size after the other, then one node after the other, until the time is over."""
    at = 0.0
    for nodes in SIZES:
        yield Resize(at, nodes)
        at += SETTLE
    node = 0
    while at < options.seconds:
        yield Roll(at, node % SIZES[-1])
        node += 1
        at += SETTLE / 2


def _freeze(chance: random.Random, at: float, options: Options) -> Fault:
    return Freeze(at, chance.randrange(options.nodes), chance.uniform(0.3, 2.5) * options.lease)


def _redis(chance: random.Random, at: float, options: Options) -> Fault:
    return KillRedis(at, chance.choice((0.05, 0.5, 1.5)) * options.lease)


def _cut(chance: random.Random, at: float, options: Options) -> Fault:
    seconds = chance.uniform(0.05, 1.5) * options.lease
    return chance.choice((Cut(at), Hole(at, seconds), Down(at, seconds)))


def _jump(chance: random.Random, at: float, _: Options) -> Fault:
    by = chance.choice((*JUMPS, *(-jump for jump in JUMPS), YEAR))
    return Jump(at, chance.uniform(0.5, 1.0) * by)


def _resize_or_roll(chance: random.Random, at: float, options: Options) -> Fault:
    if chance.random() < 0.3:
        return Resize(at, chance.choice(SIZES))
    return Roll(at, chance.randrange(options.nodes))


def _failover(chance: random.Random, at: float, options: Options) -> Fault:
    lag = chance.choice((0.0, chance.uniform(0.05, 0.5))) * options.lease
    return Failover(at, lag, chance.choice((0.05, 0.5, 1.5)) * options.lease)


_MAKERS: dict[str, Callable[[random.Random, float, Options], Fault]] = {
    "kill": lambda chance, at, options: Kill(at, chance.randrange(options.nodes)),
    "freeze": _freeze,
    "redis": _redis,
    "cut": _cut,
    "rollback": lambda chance, at, options: Rollback(at, chance.uniform(0.1, 2.0) * options.lease),
    "clock": _jump,
    "rebalance": _resize_or_roll,
    "reshard": lambda chance, at, options: Reshard(at, chance.uniform(0.5, 8.0) * options.lease),
    "failover": _failover,
}
