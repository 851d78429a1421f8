"""``python -m tests.simulation.simulate SEED`` replays one seed and prints what happened."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from unittest import mock

from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.rules.models import QueueSpec
from celery_lowkiq.worker import context, exclusion, lane, outage, ownership, runtime, waker
from celery_lowkiq.worker import lane as lane_state
from tests.simulation.checks import Checks
from tests.simulation.faults import FAULTS, IDS, LEASE, LOSS_OF_FIRST, LOSSES, TROUBLE, Faults
from tests.simulation.node import Network, Node
from tests.simulation.server import Server
from tests.simulation.world import Machine, Task, Threading, World, me

#: For how many lease times the nodes can finish everything after the faults.
PEACE = 25
MODULES = (lane, lane_state, ownership, context, outage, runtime, waker, exclusion)


@dataclass(frozen=True)
class Report:
    seed: int
    violations: tuple[str, ...]
    trace: tuple[str, ...]
    runs: int
    faults: int
    resizes: int
    overlaps_of_frozen: int


class Simulation(Faults):
    """A cluster, its callers, and what goes wrong: anything, or ``only`` some faults."""

    def __init__(
        self, seed: int, threading: Threading, only: Sequence[str] = (), loss: float | None = None
    ) -> None:
        self.seed = seed
        self.world = World(seed)
        self.threading = threading
        chance = self.world.random
        self.queue = QueueSpec("q", shards=chance.randint(2, 6), batch_size=chance.randint(1, 3))
        self.server = Server(self.world, self.queue.shard_refs())
        self.strict = chance.random() < 0.5
        #: A clock that is set back can repeat an epoch that was lost with its write: not both in one run.
        jumps = chance.random() < 0.4
        self.possible = only or (*FAULTS, *(("jump",) if jumps else LOSSES))
        self.network = Network(self.world, self.server, LEASE)
        self.network.loss = chance.choice([0.0, 0.01, 0.03]) if loss is None else loss
        self.checks = Checks(self.world, self.server, "q", strict=self.strict, lease_seconds=LEASE)
        self.checks.lossy = self.network.loss > 0
        self.nodes: list[Node] = []
        self.starts = 0
        self.faults = self.resizes = 0
        self.pushed = 0
        self.calling = True
        #: Whether callers wait until the queue is empty, and how many are in the middle of a call.
        self.holding = False
        self.calls = 0
        self.callers: list[Task] = []

    def run(self) -> Report:
        for _ in range(self.world.random.randint(2, 4)):
            self.start_node()
        clients = Machine(self.world, "clients")
        for number in range(2):
            caller = Task(clients, partial(self._call, f"sender-{number}"))
            caller.start()
            self.callers.append(caller)
        for _ in range(self.world.random.choice([1, 1, 2])):
            Task(Machine(self.world, "trouble"), self.make_trouble).start()
        if LOSS_OF_FIRST in self.possible:
            Task(Machine(self.world, "first leases"), self.lose_first).start()
        self.checks.look_at_released()
        self.world.run(TROUBLE * LEASE)
        self._heal()
        self.world.run(self.world.now + PEACE * LEASE, self._finished)
        # What was settled last is being told.
        self.world.run(self.world.now + LEASE)
        if not self.world.violations:
            self.checks.all_is_done()
        if not (self.world.violations or self.world.run(self.world.now + PEACE * LEASE, self._shared)):
            owned = {node.name: sorted(map(str, node.owned())) for node in self.alive()}
            self.world.violated(f"not shared: {owned} of {self.server.count}")
        self._shut_down()
        self.world.end()
        return Report(
            self.seed,
            tuple(self.world.violations),
            tuple(self.world.trace),
            self.checks.runs,
            self.faults,
            self.resizes,
            self.checks.overlaps_of_frozen,
        )

    def start_node(self) -> None:
        self.starts += 1
        node = Node(
            self.network,
            self.threading,
            self.checks,
            self.queue,
            f"node-{self.starts}",
            strict=self.strict,
            lanes=self.world.random.randint(1, 3),
            restart=self.start_again,
        )
        self.nodes.append(node)
        self.checks.nodes[node.name] = node

    # -- callers

    def _call(self, sender: str) -> None:
        n = 0
        chance = self.world.random
        while self.calling:
            me().park(chance.random() * 0.1 * LEASE)
            if self.holding:
                continue
            n += 1
            self.calls += 1
            self.pushed += 1
            job_id, payload = f"id-{chance.randrange(IDS)}", b"%d" % self.pushed
            entries = [(job_id, payload, float(self.pushed))]
            effect = partial(self.server.push, self.checks.shard(job_id), sender, n, entries)
            while not self._accepted(effect):
                continue
            self.checks.acknowledged[job_id][payload] = self.world.now
            self.calls -= 1

    def _accepted(self, effect: partial[None]) -> bool:
        try:
            self.network.call(effect)
        except StoreUnavailable:
            me().park(0.05 * LEASE)
            return False
        return True

    # -- the end

    def _resume_all(self) -> None:
        """A Redis that came back with older data may have forgotten a resume."""
        for shard, state in self.server.shards.items():
            for job_id in (None, *sorted(state.model.paused)):
                self.server.resume(shard, job_id)

    def _heal(self) -> None:
        self.world.later(LEASE, self._resume_all)
        self.calling = False
        self.network.loss = 0.0
        self.network.cut.clear()
        self.network.held.clear()
        self.network.held_acquires.clear()
        self.network.unanswered.clear()
        self.network.mute.clear()
        self.server.damaged.clear()
        self.server.silent_until = min(self.server.silent_until, self.world.now)
        self.server.away_until = [min(until, self.world.now) for until in self.server.away_until]
        if not self.alive():
            self.start_node()

    def _finished(self) -> bool:
        called = all(caller.done for caller in self.callers)
        return called and not self.server.down and self.server.idle() and not self.checks.busy()

    def _shared(self) -> bool:
        """Whether the living nodes have the shards of the queue, and no other."""
        owned = [shard for node in self.alive() for shard in node.owned()]
        return sorted(owned) == self.server.current()

    def _shut_down(self) -> None:
        """Every node can be stopped, and then none has a shard of the queue."""
        if self.world.violations:
            return
        nodes = [node for node in self.alive() if not node.leaving]
        for node in nodes:
            node.shut_down()
        self.world.run(self.world.now + 5 * LEASE)
        for node in nodes:
            if not node.drained:
                self.world.violated(f"{node.name} does not end")
            self.checks.all_is_released(node)


@contextlib.contextmanager
def simulated() -> Iterator[Threading]:
    """The worker's modules on simulated threads."""
    threading = Threading()
    logger = logging.getLogger("celery_lowkiq")
    level = logger.level
    with contextlib.ExitStack() as stack:
        for module in MODULES:
            stack.enter_context(mock.patch.object(module, "threading", threading))
        backoff = partial(outage.backoff, lambda: 0.5)
        for module in (outage, waker, ownership):
            stack.enter_context(mock.patch.object(module, "backoff", backoff))
        logger.setLevel(logging.CRITICAL + 1)
        try:
            yield threading
        finally:
            # By its method, which forgets what was found disabled meanwhile.
            logger.setLevel(level)


def simulate(seed: int, only: Sequence[str] = (), loss: float | None = None) -> Report:
    """What comes of a seed; always the same."""
    with simulated() as threading:
        return Simulation(seed, threading, only, loss).run()


if __name__ == "__main__":
    report = simulate(int(sys.argv[1]))
    print(*report.trace, sep="\n")
    print(f"seed {report.seed}: {report.runs} runs, {report.faults} faults")
    sys.exit("\n".join(report.violations) or 0)
