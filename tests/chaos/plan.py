"""Which fault comes when: a pure function of seed and options, so that a run can be repeated."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from tests.chaos.options import Options

#: How often a kind comes, beside 1 of others: a Redis that is always away lets nothing happen.
WEIGHTS = {"kill": 3, "freeze": 3, "cut": 3, "redis": 2, "reshard": 4, "failover": 3}
#: Beside the faults of a cluster, of which there are many kinds.
WEIGHTS_ON_CLUSTER = {"reshard": 1, "rebalance": 0.5}
#: Sizes that a cluster is brought to, one after the other.
SIZES = (1, 4, 2, 8)
#: Seconds that a cluster gets to settle at each of its sizes.
SETTLE = 5.0
#: Seconds that the clock of Redis jumps by.
JUMPS = (1.0, 60.0, 3600.0)
YEAR = 365 * 86400.0
#: Numbers of shards that a queue is brought to, one after the other, as parts of that of its task.
SHARDS = (2.0, 1.0, 0.3, 1.0)

#: One of this many numbers stands for one of the masters, however many there are.
ANY = 60


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
    """All connections are closed: on a cluster, those to one ``master``."""

    at: float
    master: int = 0


@dataclass(frozen=True)
class Hole:
    """Connections stay, and for ``seconds`` nothing comes through."""

    at: float
    seconds: float
    master: int = 0


@dataclass(frozen=True)
class Down:
    """Connections are closed, and refused for ``seconds``."""

    at: float
    seconds: float
    master: int = 0


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


@dataclass(frozen=True)
class KillMaster:
    """SIGKILL to a master of a cluster, ``lag`` s after its replica was cut off (0: it was not). ``seconds``
    after the replica was promoted, the master starts again, as its replica.
    """

    at: float
    master: int
    lag: float
    seconds: float


@dataclass(frozen=True)
class FreezeMaster:
    """SIGSTOP to a master of a cluster, SIGCONT ``seconds`` after its replica was promoted."""

    at: float
    master: int
    seconds: float


@dataclass(frozen=True)
class HoldSlot:
    """The slot of a shard, or that of the queue's own keys (``shard`` -1), moves to another master; half-way,
    ``seconds`` pass. ``aborted``: they pass before the first key has moved, and the slot stays.
    """

    at: float
    shard: int
    master: int
    seconds: float
    aborted: bool


@dataclass(frozen=True)
class MoveSlots:
    """``slots`` slots, with that of a shard in their middle, move to another master."""

    at: float
    shard: int
    master: int
    slots: int


@dataclass(frozen=True)
class AddMaster:
    """Another master gets the slots of some shards, and is removed after ``seconds``."""

    at: float
    shards: tuple[int, ...]
    seconds: float


Fault: TypeAlias = (
    Kill
    | Freeze
    | KillRedis
    | Cut
    | Hole
    | Down
    | Rollback
    | Jump
    | Resize
    | Roll
    | Reshard
    | Failover
    | KillMaster
    | FreezeMaster
    | HoldSlot
    | MoveSlots
    | AddMaster
)


def plan(seed: int, options: Options) -> Iterator[Fault]:
    """The faults of a run, in order; ``at`` is in s from its start."""
    if options.faults == {"rebalance"}:
        return _rebalance(options)
    return _mixed(random.Random(seed), options)


def _mixed(chance: random.Random, options: Options) -> Iterator[Fault]:
    kinds = sorted(options.faults)
    known = WEIGHTS_ON_CLUSTER if options.cluster else WEIGHTS
    weights = [known.get(kind, 1) for kind in kinds]
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
    master = chance.randrange(ANY) if options.cluster else 0
    return chance.choice((Cut(at, master), Hole(at, seconds, master), Down(at, seconds, master)))


def _jump(chance: random.Random, at: float, _: Options) -> Fault:
    by = chance.choice((*JUMPS, *(-jump for jump in JUMPS), YEAR))
    return Jump(at, chance.uniform(0.5, 1.0) * by)


def _resize_or_roll(chance: random.Random, at: float, options: Options) -> Fault:
    if chance.random() < 0.3 and not options.cluster:
        return Resize(at, chance.choice(SIZES))
    return Roll(at, chance.randrange(options.nodes))


def _failover(chance: random.Random, at: float, options: Options) -> Fault:
    lag = chance.choice((0.0, chance.uniform(0.05, 0.5))) * options.lease
    return Failover(at, lag, chance.choice((0.05, 0.5, 1.5)) * options.lease)


def _killed_master(chance: random.Random, at: float, _: Options) -> Fault:
    return KillMaster(at, chance.randrange(ANY), 0.0, chance.uniform(0.1, 2.0))


def _behind(chance: random.Random, at: float, _: Options) -> Fault:
    return KillMaster(at, chance.randrange(ANY), chance.uniform(0.5, 3.0), chance.uniform(0.1, 2.0))


def _hold_slot(chance: random.Random, at: float, options: Options, aborted: bool = False) -> Fault:
    shard = chance.randrange(-1, options.shards)
    return HoldSlot(at, shard, chance.randrange(ANY), chance.uniform(0.1, 1.0) * options.lease, aborted)


def _move_slots(chance: random.Random, at: float, options: Options) -> Fault:
    return MoveSlots(at, chance.randrange(options.shards), chance.randrange(ANY), 300)


def _add_master(chance: random.Random, at: float, options: Options) -> Fault:
    shards = chance.sample(range(options.shards), max(1, options.shards // 4))
    return AddMaster(at, tuple(shards), chance.uniform(1.0, 2.0) * options.lease)


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
    "master": _killed_master,
    "stale": lambda chance, at, options: FreezeMaster(at, chance.randrange(ANY), chance.uniform(0.1, 2.0)),
    "behind": _behind,
    "slot": _hold_slot,
    "abort": lambda chance, at, options: _hold_slot(chance, at, options, aborted=True),
    "slots": _move_slots,
    "masters": _add_master,
}
