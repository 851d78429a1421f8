"""How long shards waited for their next owner after a release, when nothing went wrong meanwhile."""

from __future__ import annotations

from .history import History
from .ownership import Handover, Leases
from .report import EXAMPLES, Gate

#: Most seconds from the release of a shard to its next grant.
LIMIT = 1.0
#: Seconds after a fault of a master within which its clients find the new one.
FIND = 1.0


def handover_gate(history: History, leases: Leases) -> Gate:
    """The longest hand-over that no fault disturbed, with the longest ones as examples."""
    found = sorted(
        (one for one in leases.handovers() if not _is_disturbed(history, one)), key=lambda one: -one.seconds
    )
    examples = [
        f"shard {one.shard}: {one.seconds:.2f} s from {one.since:.3f}"
        for one in found[:EXAMPLES]
        if one.seconds > LIMIT
    ]
    return Gate("hand-over s", found[0].seconds if found else None, LIMIT, tuple(examples))


def _is_disturbed(history: History, handover: Handover) -> bool:
    """Whether a master was away then, or a worker that others may have taken for the next owner."""
    since, until = handover.since, handover.until
    missed = 1.25 * history.lease + FIND
    for trouble in history.troubles:
        lasts = missed if trouble.victim else FIND
        if trouble.kind != "rebalance" and trouble.touches(since - lasts, until):
            return True
    return any(death.cause != "stop" and since - missed <= death.at <= until for death in history.deaths)
