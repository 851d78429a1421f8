"""Makes the faults of a cluster, one at a time, beside those of the workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import singledispatchmethod
from typing import Any

from celery_lowkiq.store.cluster_map import SLOTS, slot_of
from celery_lowkiq.store.keys import queue_key
from tests.chaos.faults import UNREAD, Faults
from tests.chaos.journal import Journal
from tests.chaos.masters import Masters, slot_of_shard
from tests.chaos.nodes import Cluster
from tests.chaos.plan import AddMaster, Cut, Down, Fault, FreezeMaster, HoldSlot, Hole, KillMaster, MoveSlots
from tests.chaos.proof import kind_of
from tests.chaos.proxy import Proxy
from tests.chaos.queue import Queue

#: What asynchronous replication allows. Each other event fails a gate.
ALLOWED = (
    "a call that ended with an error may be stored, or lost (figures: not confirmed, not confirmed and lost)",
    "a settle or a claim that a failover lost, in the shards of that master: its jobs run again",
    "a grant of a lease that a failover lost, in the shards of that master: its epoch may come again",
    "what a master that was frozen accepts, until it hears that it was replaced, is lost as above",
    "in cooperative mode, the run of a worker that is frozen or cut off beyond its lease goes on beside that "
    "of the next owner, and its settle is refused (figure: frozen overlaps)",
    "a shard is silent while its master is unreachable or its slot moves, and then until its lease is free",
)
#: Seconds between two looks at what a fault waits for, and how long it may take.
LOOK = 0.1
PATIENCE = 60.0
#: Keys of a slot that have moved when a move is half-way.
HALF = 3


class ClusterFaults(Faults):
    """A fault that comes while another one of the cluster is not mended is left out; the first of its kind
    waits for that.
    """

    def __init__(
        self, cluster: Cluster, queue: Queue, masters: Masters, journal: Journal, name: str, shards: int
    ) -> None:
        """``name``: of the queue; ``shards``: of its task."""
        super().__init__(cluster, queue, masters.line(0), None, journal, shards)
        self._masters = masters
        self._name = name
        #: The most shards that the queue has in a run.
        self._most = 2 * shards
        self._busy = False
        self._made: set[str] = set()
        #: The first ones of their kinds that came while another one was not mended.
        self._waiting: dict[str, Fault] = {}

    def _mend_all(self) -> None:
        self._waiting.clear()
        super()._mend_all()

    @singledispatchmethod
    def _make(self, fault: Fault) -> None:
        super()._make(fault)

    # -- lines

    @_make.register(Cut)
    @_make.register(Hole)
    @_make.register(Down)
    def _(self, fault: Cut | Hole | Down) -> None:
        if self._begin(fault):
            super()._make(fault)
            self._mend_in(getattr(fault, "seconds", 0.0), self._end)

    def _heal(self) -> None:
        for number in self._masters.living:
            self._masters.line(number).heal()

    def _line(self, master: int) -> Proxy:
        return self._masters.line(self._number(master))

    def _behind(self, master: int) -> dict[str, Any]:
        return {"shards": self._masters.shards_on(self._number(master), self._name, self._most)}

    def _follow_reshard(self) -> None:
        """Until the migration ends, all shards have a reason to be silent."""
        began_at = time.monotonic()

        def look() -> None:
            if self._queue.is_moving(unknown=True):
                self._mend_in(1.0, look)
            else:
                self._note("reshard", began_at)

        self._mend_in(1.0, look)

    # -- masters

    @_make.register
    def _(self, fault: KillMaster) -> None:
        if not self._begin(fault):
            return
        masters, number = self._masters, self._number(fault.master)
        replica = masters.replica_of(number)
        assert replica is not None
        kind = "failover of one behind" if fault.lag else "failover of a killed one"
        about, began_at = self._behind(fault.master), time.monotonic() - UNREAD
        if fault.lag:
            masters.cut_off(number)

        def kill() -> None:
            masters.kill(number)
            self._until(lambda: masters.is_promoted(replica), promoted)

        def promoted() -> None:
            self._note(kind, began_at, **about)
            self._mend_in(fault.seconds, restart)

        def restart() -> None:
            masters.restart(number)
            self._end()

        self._mend_in(fault.lag, kill)

    @_make.register
    def _(self, fault: FreezeMaster) -> None:
        if not self._begin(fault):
            return
        masters, number = self._masters, self._number(fault.master)
        replica = masters.replica_of(number)
        assert replica is not None
        about, began_at = self._behind(fault.master), time.monotonic() - UNREAD
        masters.freeze(number)

        def thaw() -> None:
            masters.thaw(number)
            self._until(lambda: masters.is_replica(number), noted)

        def noted() -> None:
            self._note("failover of a frozen one", began_at, **about)
            self._end()

        self._until(lambda: masters.is_promoted(replica), lambda: self._mend_in(fault.seconds, thaw))

    # -- slots

    @_make.register
    def _(self, fault: HoldSlot) -> None:
        if not self._begin(fault):
            return
        masters, slot = self._masters, self._slot(fault.shard)
        shards = [n for n in range(self._most) if slot_of_shard(self._name, n) == slot]
        source, target = self._way(slot, fault.master)
        began_at = time.monotonic()
        masters.begin_move(slot, target)
        if not fault.aborted:
            masters.move_keys(slot, source, target, most=HALF)

        def end() -> None:
            if fault.aborted:
                masters.abort_move(slot, source, target)
            else:
                masters.move_keys(slot, source, target)
                masters.end_move(slot, target)
            self._note("aborted move" if fault.aborted else "slot held half-way", began_at, shards=shards)
            self._end()

        self._mend_in(fault.seconds, end)

    @_make.register
    def _(self, fault: MoveSlots) -> None:
        if not self._begin(fault):
            return
        slot = self._slot(fault.shard)
        source, target = self._way(slot, fault.master)
        first = max(0, slot - fault.slots // 2)
        ranges = self._masters.ranges(source)
        slots = [
            n for n in range(first, min(SLOTS, first + fault.slots)) if any(a <= n <= b for a, b in ranges)
        ]
        self._move("slots moved", slots, source, target)
        self._end()

    @_make.register
    def _(self, fault: AddMaster) -> None:
        if not self._begin(fault):
            return
        masters = self._masters
        master, replica = masters.add_master()
        slots = [self._slot(shard) for shard in fault.shards]
        sources = [masters.owner(slot) for slot in slots]

        def fill() -> None:
            for slot, source in zip(slots, sources, strict=True):
                self._move("slots moved to a new master", [slot], source, master)
            self._mend_in(fault.seconds, remove)

        def remove() -> None:
            for slot, source in zip(slots, sources, strict=True):
                self._move("slots moved from a master that leaves", [slot], master, source)
            self._until(lambda: not masters.ranges(master), leave)

        def leave() -> None:
            began_at = time.monotonic()
            masters.remove([replica, master])
            self._note("master added and removed", began_at, shards=())
            self._end()

        self._until(lambda: masters.is_ready(master), fill)

    def _move(self, kind: str, slots: Sequence[int], source: int, target: int) -> None:
        began_at = time.monotonic()
        moved = set(slots)
        shards = [n for n in range(self._most) if slot_of_shard(self._name, n) in moved]
        self._masters.move_all(slots, source, target)
        self._note(kind, began_at, shards=shards)

    # -- one at a time

    def _begin(self, fault: Fault) -> bool:
        """Whether nothing is wrong with the cluster, so that a fault may begin."""
        kind = kind_of(fault)
        if self._busy or not self._masters.is_whole():
            if kind not in self._made:
                self._waiting.setdefault(kind, fault)
            return False
        self._busy = True
        self._made.add(kind)
        return True

    def _end(self) -> None:
        self._until(self._masters.is_whole, self._free)

    def _free(self) -> None:
        self._busy = False
        if self._waiting:
            self._make(self._waiting.pop(next(iter(self._waiting))))

    def _until(self, condition: Callable[[], bool], then: Callable[[], None]) -> None:
        """Wait for something of the cluster, and go on."""
        ends_at = time.monotonic() + PATIENCE

        def look() -> None:
            if condition():
                then()
                return
            assert time.monotonic() < ends_at, f"the cluster did not mend itself within {PATIENCE:.0f} s"
            self._mend_in(LOOK, look)

        look()

    # -- which

    def _number(self, master: int) -> int:
        numbers = self._masters.masters()
        return numbers[master % len(numbers)]

    def _slot(self, shard: int) -> int:
        return slot_of_shard(self._name, shard) if shard >= 0 else slot_of(queue_key(self._name))

    def _way(self, slot: int, master: int) -> tuple[int, int]:
        """The master of a slot, and another one."""
        source = self._masters.owner(slot)
        others = [number for number in self._masters.masters() if number != source]
        return source, others[master % len(others)]
