"""How long shards waited for their next owner after a release, when nothing went wrong meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.chaos.history import History
from tests.chaos.ownership import Handover, Leases
from tests.chaos.report import EXAMPLES, Gate

#: Most seconds from the release of a shard to its next grant.
LIMIT = 1.0
#: Seconds after a fault of a master within which its clients find the new one.
FIND = 1.0


def handover_gate(handovers: Iterable[Handover]) -> Gate:
    """The longest hand-over, with the longest ones as examples."""
    found = sorted(handovers, key=lambda one: -one.seconds)
    examples = [
        f"shard {one.shard}: {one.seconds:.2f} s from {one.since:.3f}"
        for one in found[:EXAMPLES]
        if one.seconds > LIMIT
    ]
    return Gate("hand-over s", found[0].seconds if found else None, LIMIT, tuple(examples))


def undisturbed_handovers(history: History, leases: Leases) -> Iterator[Handover]:
    """Each hand-over into which no fault fell of its shard's master or slot, and none of a worker."""
    for one in leases.handovers():
        if not _is_disturbed(history, one):
            yield one


def _is_disturbed(history: History, handover: Handover) -> bool:
    """Whether the shard's master was unreachable then, or a worker that others may have taken for the next
    owner.
    """
    since, until = handover.since, handover.until
    missed = 1.25 * history.lease + FIND
    for trouble in history.troubles:
        lasts = missed if trouble.victim else FIND
        concerned = trouble.victim or trouble.concerns(handover.shard)
        if trouble.kind != "rebalance" and concerned and trouble.touches(since - lasts, until):
            return True
    return any(death.cause != "stop" and since - missed <= death.at <= until for death in history.deaths)
