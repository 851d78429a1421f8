"""Makes the faults of a plan, and mends them."""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import singledispatchmethod
from typing import Any

from tests.chaos.journal import Journal
from tests.chaos.nodes import Cluster
from tests.chaos.pair import Pair
from tests.chaos.plan import (
    SHARDS,
    Cut,
    Down,
    Failover,
    Fault,
    Freeze,
    Hole,
    Jump,
    Kill,
    KillRedis,
    Reshard,
    Resize,
    Roll,
    Rollback,
)
from tests.chaos.proxy import Proxy
from tests.chaos.queue import Queue
from tests.chaos.victim import Victim

#: Seconds between two looks after nodes that ended by themselves.
TEND = 0.1
#: The replica may not have read the writes of the last UNREAD seconds before a failover.
UNREAD = 0.5


class Faults:
    """Each fault is written down when it is mended, with the time that it took. One that finds its victim
    down already is left out.
    """

    def __init__(
        self,
        cluster: Cluster,
        queue: Queue,
        proxy: Proxy,
        victim: Victim | None,
        journal: Journal,
        shards: int,
    ) -> None:
        """``shards``: of the queue's task."""
        self._cluster = cluster
        self._queue = queue
        self._proxy = proxy
        self._victim = victim
        self._journal = journal
        self._mends: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._shards = deque(round(part * shards) for part in SHARDS)
        self._failed_over_at = -math.inf

    def run(self, faults: Iterable[Fault], seconds: float) -> None:
        """Make each fault at its time, in ``seconds``; in the end all are mended, also after an error."""
        began_at = time.monotonic()
        try:
            for fault in faults:
                self._wait_until(began_at + fault.at)
                self._make(fault)
            self._wait_until(began_at + seconds)
        finally:
            self._mend_all()

    def _mend_all(self) -> None:
        while self._mends:
            mends, self._mends = self._mends, []
            for _, _, mend in sorted(mends, key=lambda one: one[:2]):
                mend()
            if self._mends:
                # What they wait for has not come yet.
                threading.Event().wait(TEND)
        self._heal()
        if self._victim is not None and self._victim.clock is not None:
            self._victim.clock.set(0.0)
        self._cluster.tend()

    def _heal(self) -> None:
        self._line(0).heal()

    def _line(self, master: int) -> Proxy:
        """The proxy of a master."""
        return self._proxy

    def _behind(self, master: int) -> dict[str, Any]:
        """What a trouble says about the shards of that master: nothing, when it has all."""
        return {}

    def kill(self, number: int, kind: str = "kill") -> None:
        """SIGKILL to a node, and another in its place."""
        node = self._cluster.get(number)
        if node is not None and not node.ended.is_set():
            began_at = time.monotonic()
            self._cluster.kill(number)
            node.ended.wait()
            self._note(kind, began_at, victim=node.pid)

    def _wait_until(self, at: float) -> None:
        while (now := time.monotonic()) < at:
            self._cluster.tend()
            if self._mends and self._mends[0][0] <= now:
                heapq.heappop(self._mends)[2]()
                continue
            soonest = self._mends[0][0] if self._mends else at
            threading.Event().wait(min(at - now, max(0.0, soonest - now), TEND))

    def _note(self, kind: str, began_at: float, **about: Any) -> None:
        """``about``: further fields of a Trouble."""
        self._journal.note("trouble", kind=kind, began_at=began_at, ended_at=time.monotonic(), **about)

    def _mend_after(self, kind: str, seconds: float, mend: Callable[[], None], **about: Any) -> None:
        began_at = time.monotonic()

        def mended() -> None:
            mend()
            self._note(kind, began_at, **about)

        self._mend_in(seconds, mended)

    def _mend_in(self, seconds: float, mend: Callable[[], None]) -> None:
        heapq.heappush(self._mends, (time.monotonic() + seconds, next(self._count), mend))

    @singledispatchmethod
    def _make(self, fault: Fault) -> None:
        raise AssertionError(f"{fault} has no maker")

    @_make.register
    def _(self, fault: Kill) -> None:
        self.kill(fault.node)

    @_make.register
    def _(self, fault: Freeze) -> None:
        node = self._cluster.get(fault.node)
        if node is not None and not node.ended.is_set():
            node.freeze()
            self._mend_after("freeze", fault.seconds, node.thaw, victim=node.pid)

    @_make.register
    def _(self, fault: Cut) -> None:
        began_at = time.monotonic()
        self._line(fault.master).cut()
        self._note("cut", began_at, **self._behind(fault.master))

    @_make.register
    def _(self, fault: Hole) -> None:
        line = self._line(fault.master)
        line.hold()
        self._mend_after("hole", fault.seconds, line.heal, **self._behind(fault.master))

    @_make.register
    def _(self, fault: Down) -> None:
        line = self._line(fault.master)
        line.down()
        self._mend_after("down", fault.seconds, line.heal, **self._behind(fault.master))

    @_make.register
    def _(self, fault: KillRedis) -> None:
        victim = self._victim
        if victim is not None and victim.alive:
            victim.kill()
            self._mend_after("redis", fault.seconds, lambda: None if victim.alive else victim.restart())

    @_make.register
    def _(self, fault: Rollback) -> None:
        victim = self._victim
        if victim is not None and victim.alive:
            began_at = time.monotonic()
            written = victim.written()

            def forget() -> None:
                if self._failed_over_at >= began_at:
                    return
                victim.kill()
                victim.forget(written)
                victim.restart()
                self._note("rollback", began_at)

            self._mend_in(fault.seconds, forget)

    @_make.register
    def _(self, fault: Jump) -> None:
        if self._victim is not None and self._victim.clock is not None:
            began_at = time.monotonic()
            self._victim.clock.set(fault.seconds)
            self._note("clock", began_at)

    @_make.register
    def _(self, fault: Resize) -> None:
        began_at = time.monotonic()
        self._cluster.resize(fault.nodes)
        self._note("rebalance", began_at)

    @_make.register
    def _(self, fault: Roll) -> None:
        if self._cluster.get(fault.node) is not None:
            began_at = time.monotonic()
            self._cluster.roll(fault.node)
            self._note("rebalance", began_at)

    @_make.register
    def _(self, fault: Reshard) -> None:
        shards = self._shards[0]
        if self._queue.reshard(shards):
            self._shards.rotate(-1)
            self._follow_reshard()
            self._mend_in(fault.seconds, self._cluster.move(shards))

    def _follow_reshard(self) -> None:
        """How long the migration takes is not waited for: shards come and go until the end."""
        self._mend_after("reshard", math.inf, lambda: None)

    @_make.register
    def _(self, fault: Failover) -> None:
        pair = self._victim
        if not isinstance(pair, Pair) or not pair.alive or not pair.is_in_sync():
            return
        began_at = self._failed_over_at = time.monotonic()
        kind = "failover of a move" if self._queue.is_moving() else "failover"
        if fault.lag:
            pair.detach()

        def promote() -> None:
            self._proxy.switch(pair.promote())
            self._note(kind, began_at - UNREAD)
            pair.add_replica()

        def fail() -> None:
            pair.fail()
            self._mend_in(fault.seconds, promote)

        # Nothing else happens to Redis meanwhile.
        pair.alive = False
        self._mend_in(fault.lag, fail)
