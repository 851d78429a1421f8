"""Who had which shard when, as far as a run's history tells."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from celery_lowkiq.rules.leases import DEADLINE
from tests.chaos.history import Acquire, Execution, History


class Handover(NamedTuple):
    """A shard was released at a time, and granted again at another."""

    shard: int
    since: float
    until: float

    @property
    def seconds(self) -> float:
        return self.until - self.since


class Leases:
    """The grants of a run by shard, in the order in which they were answered."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._grants: dict[int, list[Acquire]] = defaultdict(list)
        self._granted: dict[tuple[int, int], Acquire] = {}
        self._renewed: dict[tuple[int, int], list[float]] = defaultdict(list)
        for grant in sorted(history.acquires, key=lambda one: one.at):
            known = self._granted.setdefault((grant.shard, grant.epoch), grant)
            if known is grant or known.owner != grant.owner:
                self._grants[grant.shard].append(grant)
            self._renewed[grant.shard, grant.epoch].append(grant.called_at)
        for renewal in history.renewals:
            self._renewed[renewal.shard, renewal.epoch].append(renewal.called_at)
        self._released = {(one.shard, one.epoch): one.at for one in history.releases}

    def ran_out(self, former: Execution, later: Execution) -> bool:
        """Whether the one with the smaller epoch could no longer rely on its lease when the other's was
        granted; then only its own thread could have kept it from going on.
        """
        if former.shard != later.shard:
            granted = self._granted_between(former, later)
        else:
            if former.epoch > later.epoch:
                former, later = later, former
            granted = self._granted.get((later.shard, later.epoch)) if former.epoch < later.epoch else None
        if granted is None:
            return False
        renewed = self._renewed.get((former.shard, former.epoch), ())
        last = max((at for at in renewed if at <= granted.called_at), default=None)
        return last is not None and granted.called_at >= last + DEADLINE * self._history.lease

    def _granted_between(self, former: Execution, later: Execution) -> Acquire | None:
        """The grant after the former one's, before a migration moved the id to the shard of the later one."""
        if (former.shard, former.epoch) not in self._granted:
            return None
        granted = self.next_after(former.shard, former.epoch)
        return granted if granted is not None and granted.at < later.claimed_at else None

    def stale_settles(self) -> Iterator[str]:
        """Settles that were accepted although a larger epoch had been granted before they were asked for.

        Not where a rollback or a failover made Redis forget that grant.
        """
        for settle in self._history.settles:
            for grant in self._grants[settle.shard]:
                stale = grant.epoch > settle.epoch and grant.at < settle.called_at
                if stale and not self._forgotten(grant, settle.at):
                    yield (
                        f"shard {settle.shard}: epoch {settle.epoch} settled at {settle.called_at:.3f}, "
                        f"{grant.epoch} was granted at {grant.at:.3f}"
                    )
                    break

    def _forgotten(self, grant: Acquire, by: float) -> bool:
        return any(
            loss.concerns(grant.shard) and loss.touches(grant.called_at, grant.at) and loss.began_at < by
            for loss in self._history.losses
        )

    def standing_epochs(self) -> Iterator[str]:
        """Grants whose epoch is not larger than that of one answered before they were asked for.

        Where the clock of Redis jumped, too, not against grants that Redis lost: it is the clock that tells
        Redis about those.
        """
        clock = any(trouble.kind == "clock" for trouble in self._history.troubles)
        for shard, grants in self._grants.items():
            for position, grant in enumerate(grants):
                before = [one for one in grants[:position] if one.at < grant.called_at]
                known = [one for one in before if not (clock and self._forgotten(one, grant.at))]
                if any(one.epoch >= grant.epoch for one in known):
                    yield f"shard {shard}: epoch {grant.epoch} granted at {grant.at:.3f} to {grant.owner}"

    def held_at(self, pid: int, at: float) -> dict[int, int]:
        """Shards that a process had at a time, and their epochs.

        None that it had given up without an answer to its release: it renewed others since.
        """
        held = {}
        for shard, grants in self._grants.items():
            before = [one for one in grants if one.at <= at]
            if before and before[-1].pid == pid:
                released = self._released.get((shard, before[-1].epoch))
                if (released is None or released > at) and not self._ended(before[-1], at):
                    held[shard] = before[-1].epoch
        return held

    def _ended(self, grant: Acquire, at: float) -> bool:
        renewed = [one for one in self._renewed[grant.shard, grant.epoch] if one <= at]
        return bool(self._history.renewals) and at >= max(renewed) + self._history.lease

    def changes(self, shard: int, since: float, until: float) -> Iterator[tuple[Acquire, Acquire]]:
        """The grants of that time, each after the one before it."""
        grants = self._grants[shard]
        for former, later in pairwise(grants):
            if since <= later.at <= until:
                yield former, later

    def next_after(self, shard: int, epoch: int) -> Acquire | None:
        """The grant after that of an epoch."""
        grants = self._grants[shard]
        later = [one for one in grants if one.at > self._granted[shard, epoch].at]
        return later[0] if later else None

    def handovers(self) -> Iterator[Handover]:
        """From each release until the shard was granted again; the last of a shard has none."""
        for (shard, epoch), at in self._released.items():
            taken = self.next_after(shard, epoch) if (shard, epoch) in self._granted else None
            if taken is not None:
                yield Handover(shard, at, taken.at)
