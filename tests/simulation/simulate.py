"""``python -m tests.simulation.simulate SEED`` replays one seed and prints what happened."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.rules.models import QueueSpec, ShardRef
from celery_lowkiq.worker import context, exclusion, outage, runtime, waker
from celery_lowkiq.worker.lane import lane, lane_state
from celery_lowkiq.worker.ownership import ownership

from .checks import Checks
from .node import Network, Node
from .server import MASTERS, Server
from .world import Machine, Task, Threading, World, me

#: T, in s of virtual time.
LEASE = 1.0
#: For how many lease times faults happen.
TROUBLE = 8
#: And how many the nodes get afterwards to finish everything.
PEACE = 25
IDS = 8
FAULTS = (
    "kill",
    "freeze",
    "cut",
    "mute",
    "damage",
    "restart_redis",
    "silence",
    "master_away",
    "leave",
    "abandon",
    "join",
    "pause",
    "resize",
    "move_slot",
)
#: Those that need data to be lost.
LOSSES = ("roll_back", "lose_takeover", "lose_race")
#: Not with faults that start nodes: one that starts then cannot know of a lease that was the shard's first
#: (docs/invariants.md).
LOSS_OF_FIRST = "lose_first"
#: Most shards of a queue whose number changes.
MOST_SHARDS = 8
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


class Simulation:
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
            Task(Machine(self.world, "trouble"), self._make_trouble).start()
        if LOSS_OF_FIRST in self.possible:
            Task(Machine(self.world, "first leases"), self._lose_first).start()
        self.checks.look_at_released()
        self.world.run(TROUBLE * LEASE)
        self._heal()
        self.world.run(self.world.now + PEACE * LEASE, self._finished)
        # What was settled last is being told.
        self.world.run(self.world.now + LEASE)
        if not self.world.violations:
            self.checks.all_is_done()
        if not (self.world.violations or self.world.run(self.world.now + PEACE * LEASE, self._shared)):
            owned = {node.name: sorted(map(str, node.owned())) for node in self._alive()}
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
            restart=self._start_again,
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

    # -- faults

    def _make_trouble(self) -> None:
        chance = self.world.random
        between = chance.choice([0.5, 1.0, 2.5]) * LEASE
        while True:
            me().park(2 * chance.random() * between)
            if self.world.now > TROUBLE * LEASE:
                return
            self.faults += 1
            getattr(self, f"_{chance.choice(self.possible)}")()

    def _alive(self) -> list[Node]:
        self.nodes = [node for node in self.nodes if not node.dead]
        return self.nodes

    def _kill(self) -> None:
        if self._alive():
            node = self.world.random.choice(self._alive())
            self.world.note(f"{node.name} is killed")
            node.die()
            self._start_again()

    def _start_again(self) -> None:
        self.world.later(self.world.random.random() * 2 * LEASE, self.start_node)

    def _freeze(self) -> None:
        if self._alive():
            node, seconds = (
                self.world.random.choice(self._alive()),
                self.world.random.uniform(0.3, 2.5) * LEASE,
            )
            self.world.note(f"{node.name} is frozen for {seconds:.3f}")
            node.freeze(seconds)

    def _cut(self) -> None:
        if self._alive():
            node, seconds = (
                self.world.random.choice(self._alive()),
                self.world.random.uniform(0.1, 1.5) * LEASE,
            )
            self.world.note(f"{node.name} is cut off for {seconds:.3f}")
            self.network.cut.add(node)
            node.cut_until = self.world.now + seconds
            self.server.cut_listeners()
            self.world.later(seconds, partial(self.network.cut.discard, node))

    def _mute(self) -> None:
        """A node whose heartbeats fail, while its renewals do not."""
        if self._alive():
            node, seconds = (
                self.world.random.choice(self._alive()),
                self.world.random.uniform(0.1, 2.5) * LEASE,
            )
            self.world.note(f"{node.name} has no heartbeat for {seconds:.3f}")
            self.network.mute.add(node)
            node.mute_until = max(node.mute_until, self.world.now + seconds)
            self.world.later(seconds, partial(self.network.mute.discard, node))

    def _damage(self) -> None:
        """A lease that is not renewed, while the heartbeat of its owner moves on."""
        shard = self.world.random.choice(self.server.current())
        seconds = self.world.random.uniform(0.05, 1.5) * LEASE
        self.world.note(f"the lease of {shard} is damaged for {seconds:.3f}")
        self.server.damaged.add(shard)
        self.world.later(seconds, partial(self.server.damaged.discard, shard))

    def _restart_redis(self) -> None:
        self._redis_away(self.world.random.choice([0.05, 0.5, 1.5]) * LEASE)

    def _redis_away(self, seconds: float, older=None, masters: Sequence[int] = range(MASTERS)) -> None:
        if not self.server.down:
            forgets = f" and {list(masters)} forget" if older else ""
            self.world.note(f"Redis is away for {seconds:.3f}{forgets}")
            self.server.stop()
            self.world.later(seconds, partial(self.server.start, older, masters))

    def _silence(self) -> None:
        """Redis hangs, or the network around it: it is the same process afterwards."""
        if not (self.server.down or self.server.silent):
            seconds = self.world.random.uniform(0.1, 2.5) * LEASE
            self.world.note(f"Redis is silent for {seconds:.3f}")
            self.server.be_silent(seconds)

    def _master_away(self) -> None:
        """One master or two of a cluster do not answer; they are the same processes afterwards."""
        chance = self.world.random
        masters = chance.sample(range(MASTERS), chance.choice([1, 1, 2]))
        seconds = chance.uniform(0.1, 3.5) * LEASE
        self.world.note(f"masters {masters} are away for {seconds:.3f}")
        for master in masters:
            self.server.be_away(master, seconds)

    def _roll_back(self) -> None:
        """A failover of one master or of all: replicas have not seen the last writes, and are there at once
        or soon. Whatever cut them off may have cut off a node as well.
        """
        chance = self.world.random
        lost = chance.uniform(0.1, 3) * LEASE
        if self._alive() and chance.random() < 0.5:
            chance.choice(self._alive()).freeze(lost + chance.uniform(-0.2, 0.5) * LEASE)

        def wait() -> Sequence[int]:
            me().park(lost)
            return range(MASTERS) if chance.random() < 0.3 else [chance.randrange(MASTERS)]

        self._lose(wait)

    def _lose_takeover(self) -> None:
        """A failover loses what one node takes from another one, which was silent. Now that node speaks: it
        sends what it wanted to release, or its last renewal arrives.
        """
        chance, busy = self.world.random, [node for node in self._alive() if self.checks.runs_on(node)]
        if not busy:
            return
        node, held = chance.choice(busy), chance.random() < 0.5
        self.world.note(f"{node.name} is silent until another one runs what it had")
        if held:
            node.freeze(chance.uniform(0.5, 0.75) * LEASE)
        elif chance.random() < 0.7:
            self._shut_down_node(node)
            me().park(0.05 * LEASE)
        shards = node.owned()

        def wait() -> Sequence[int]:
            for _ in range(200):
                if held:
                    self.network.held[node] = self.world.now + 0.02 * LEASE
                else:
                    node.freeze(0.02 * LEASE)
                me().park(0.01 * LEASE)
                taken = self.checks.run_by_others(node, shards)
                if taken and chance.random() < 0.2:
                    return [self.server.master_of[shard] for shard in taken]
            return range(MASTERS)

        self._lose(wait)

    def _lose_race(self) -> None:
        """A failover loses what one node takes of a dead one's. Then another one's request to take the same
        arrives there, maybe for the second time: nothing of it was lost before.
        """
        chance, busy = self.world.random, [node for node in self._alive() if node.owned()]
        if len(busy) < 2:
            return
        dead, late = chance.sample(busy, 2)
        shards, repeats = dead.owned(), chance.random() < 0.5
        self.world.note(f"{dead.name} is killed, and {late.name} is late to take what it had")
        dead.die()
        self._start_again()

        def hold(until: Callable[[], Sequence[ShardRef]]) -> Sequence[int]:
            for _ in range(300):
                self.network.held_acquires[late] = self.world.now + 0.02 * LEASE
                me().park(0.01 * LEASE)
                if found := until():
                    return [self.server.master_of[shard] for shard in found]
            return range(MASTERS)

        if repeats:
            self.network.repeating.add(late)
            hold(lambda: [shard for shard in shards if self.server.shards[shard].owner == late.name])
            self.network.repeating.discard(late)
        self._lose(lambda: hold(lambda: self.checks.run_by_others(late, shards)))

    def _lose_first(self) -> None:
        """A failover loses all leases that there ever were, while a node is frozen: at the beginning, one
        that has seen a shard without a lease; later, one whose shards others take.
        """
        nodes = self._alive()
        # The strict mode ends what is frozen, and starts a node.
        if self.strict or len(nodes) < 2:
            return
        node = self.world.random.choice(nodes)
        while not (node.owned() or node.unowned()):
            me().park(0.001 * LEASE)
        shards = node.unowned() or node.owned()

        def wait() -> Sequence[int]:
            for _ in range(200):
                node.freeze(0.02 * LEASE)
                me().park(0.01 * LEASE)
                if taken := self.checks.run_by_others(node, shards):
                    return [self.server.master_of[shard] for shard in taken]
            return range(MASTERS)

        self._lose(wait, self.server.copy_without_leases())

    def _lose(self, wait: Callable[[], Sequence[int]], older: Any = None) -> None:
        """Lose what is written during ``wait()``, which returns the masters that replicas replace.

        These have ``older`` data; without it those of now, unless a shard has had no lease.
        """
        if not (older or all(self.server.shards[shard].epoch for shard in self.server.current())):
            return
        older, since, resizes = older or self.server.copy(), self.world.now, self.resizes
        self.server.replicas.append(older)
        masters = wait()
        self.server.replicas = [one for one in self.server.replicas if one is not older]
        if self.server.down or self.world.now > TROUBLE * LEASE or self.resizes != resizes:
            return
        self.checks.lost_windows.append((since, self.world.now + 0.02 * LEASE))
        seconds = self.world.random.choice([0.001, 0.01, 0.5]) * LEASE
        self._redis_away(seconds, older, masters)

    def _move_slot(self) -> None:
        shard, master = self.world.random.choice(self.server.current()), self.world.random.randrange(MASTERS)
        self.world.note(f"the slot of {shard} moves to master {master}")
        self.server.move(shard, master)

    def _jump(self) -> None:
        seconds = self.world.random.uniform(-1, 1) * LEASE
        self.world.note(f"Redis's clock jumps by {seconds:.3f}")
        self.server.clock += seconds

    def _leave(self) -> None:
        if len(self._alive()) > 1:
            self._shut_down_node(self.world.random.choice(self._alive()))

    def _shut_down_node(self, node: Node) -> None:
        self.world.note(f"{node.name} leaves")
        node.shut_down()
        self._start_again()

    def _abandon(self) -> None:
        if self._alive():
            node, seconds = self.world.random.choice(self._alive()), 0.3 * self.world.random.random() * LEASE
            self.world.note(f"{node.name} leaves within {seconds:.3f}, whatever runs")
            node.shut_down_by(seconds)
            self._start_again()

    def _join(self) -> None:
        if len(self._alive()) < 5:
            self.start_node()
            self.world.note(f"{self.nodes[-1].name} joins")

    def _pause(self) -> None:
        chance = self.world.random
        job_id = chance.choice([None, f"id-{chance.randrange(IDS)}"])
        shard = self.checks.shard(job_id) if job_id else chance.choice(self.server.current())
        self.world.note(f"{job_id or shard} is paused")
        self.server.pause(shard, job_id)
        self.world.later(chance.random() * 3 * LEASE, partial(self.server.resume, shard, job_id))

    def _resize(self) -> None:
        """An empty queue gets another number of shards: callers wait for that."""
        if not self.holding:
            self.holding = True
            self._resize_when_empty()

    def _resize_when_empty(self) -> None:
        if not self.calling:
            return
        if self.calls or self.server.down or not self.server.idle():
            self.world.later(0.02 * LEASE, self._resize_when_empty)
            return
        count = self.world.random.randint(1, MOST_SHARDS)
        self.world.note(f"the queue has {count} shards, and had {self.server.count}")
        self.server.resize(count)
        self.resizes += 1
        self.holding = False

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
        self.network.mute.clear()
        self.server.damaged.clear()
        self.server.silent_until = min(self.server.silent_until, self.world.now)
        self.server.away_until = [min(until, self.world.now) for until in self.server.away_until]
        if not self._alive():
            self.start_node()

    def _finished(self) -> bool:
        called = all(caller.done for caller in self.callers)
        return called and not self.server.down and self.server.idle() and not self.checks.busy()

    def _shared(self) -> bool:
        """Whether the living nodes have the shards of the queue, and no other."""
        owned = [shard for node in self._alive() for shard in node.owned()]
        return sorted(owned) == self.server.current()

    def _shut_down(self) -> None:
        """Every node can be stopped, and then none has a shard of the queue."""
        if self.world.violations:
            return
        nodes = [node for node in self._alive() if not node.leaving]
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
