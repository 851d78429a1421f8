"""What a run has to show before its gates say something: each kind of fault, and enough of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tests.chaos.history import History, Planned
from tests.chaos.options import Options
from tests.chaos.plan import (
    AddMaster,
    Cut,
    Down,
    Failover,
    Fault,
    Freeze,
    FreezeMaster,
    HoldSlot,
    Hole,
    Jump,
    Kill,
    KillMaster,
    KillRedis,
    MoveSlots,
    Reshard,
    Resize,
    Roll,
    Rollback,
    plan,
)
from tests.chaos.report import EXAMPLES, Gate

#: Seconds of faults from which on each kind must have happened that is planned before the LAST ones: a fault
#: of these may wait in vain until others are mended.
ALL_KINDS = 300.0
LAST = 120.0
#: Seconds of faults from which on there must be FEWEST faults, and something measured by each gate of time.
LONG = 1800.0
FEWEST = 100
#: Kinds of faults by the types of which each is the only one.
_KINDS: dict[type[Fault], str] = {
    Kill: "kill",
    Freeze: "freeze",
    KillRedis: "redis",
    Cut: "cut",
    Hole: "cut",
    Down: "cut",
    Rollback: "rollback",
    Jump: "clock",
    Resize: "rebalance",
    Roll: "rebalance",
    Reshard: "reshard",
    Failover: "failover",
    FreezeMaster: "stale",
    MoveSlots: "slots",
    AddMaster: "masters",
}
#: Kinds of faults by the troubles that they leave; other troubles have the name of their kind.
_OF_TROUBLES = {
    "hole": "cut",
    "down": "cut",
    "failover of a move": "failover",
    "failover of a killed one": "master",
    "failover of a frozen one": "stale",
    "failover of one behind": "behind",
    "slot held half-way": "slot",
    "aborted move": "abort",
    "slots moved": "slots",
    "master added and removed": "masters",
}


def kind_of(fault: Fault) -> str:
    """The kind of a fault, as ``--faults`` names it."""
    if isinstance(fault, KillMaster):
        return "behind" if fault.lag else "master"
    if isinstance(fault, HoldSlot):
        return "abort" if fault.aborted else "slot"
    return _KINDS[type(fault)]


def planned(options: Options) -> Planned:
    """What a run is to show."""
    faults = list(plan(options.seed, options))
    expected = {kind_of(fault) for fault in faults if fault.at < options.seconds - LAST}
    return Planned(
        options.seconds,
        Counter(map(kind_of, faults)),
        frozenset(expected if options.seconds >= ALL_KINDS else ()),
    )


def made(history: History) -> dict[str, int]:
    """How often each planned kind of fault happened."""
    found = Counter(_OF_TROUBLES.get(trouble.kind, trouble.kind) for trouble in history.troubles)
    return {kind: found[kind] for kind in sorted(history.planned.faults)}


def left_out(history: History) -> dict[str, int]:
    """How often each planned kind did not, where it was left out."""
    happened = made(history)
    missing = {kind: count - happened[kind] for kind, count in sorted(history.planned.faults.items())}
    return {kind: count for kind, count in missing.items() if count > 0}


def proof_gates(history: History, measured: Mapping[str, int]) -> list[Gate]:
    """``measured``: how many figures each gate of time had, by what it measures."""
    happened = made(history)
    missing = [kind for kind in sorted(history.planned.expected) if not happened[kind]]
    little = []
    if history.planned.seconds >= LONG:
        if (count := sum(happened.values())) < FEWEST:
            little.append(f"{count} faults, fewer than {FEWEST}")
        # Without kills, there are no takeovers.
        needed = measured.keys() - (set() if "kill" in happened else {"takeovers"})
        little += [f"no {name} measured" for name in sorted(needed) if not measured[name]]
    return [
        Gate("kinds of faults that did not happen", len(missing), 0, tuple(missing)),
        Gate("too little in a long run", len(little), 0, tuple(little[:EXAMPLES])),
    ]
