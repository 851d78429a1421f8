"""Faults of a simulated cluster: nodes die, freeze or are cut off, and Redis is unreachable or loses data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from celery_lowkiq.rules.models import ShardRef
from tests.simulation.node import Node
from tests.simulation.server import MASTERS
from tests.simulation.world import me

#: T, in s of virtual time.
LEASE = 1.0
#: For how many lease times faults happen.
TROUBLE = 8
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
LOSSES = ("roll_back", "lose_takeover", "lose_race", "lose_release")
#: Not with faults that start nodes: one that starts then cannot know of a lease that was the shard's first
#: (docs/invariants.md).
LOSS_OF_FIRST = "lose_first"
#: Most shards of a queue whose number changes.
MOST_SHARDS = 8


class Faults:
    """Each fault is the method of its name. ``possible`` has the names of those that happen in a run."""

    def make_trouble(self) -> None:
        chance = self.world.random
        between = chance.choice([0.5, 1.0, 2.5]) * LEASE
        while True:
            me().park(2 * chance.random() * between)
            if self.world.now > TROUBLE * LEASE:
                return
            self.faults += 1
            getattr(self, chance.choice(self.possible))()

    def alive(self) -> list[Node]:
        self.nodes = [node for node in self.nodes if not node.dead]
        return self.nodes

    def kill(self) -> None:
        if self.alive():
            node = self.world.random.choice(self.alive())
            self.world.note(f"{node.name} is killed")
            node.die()
            self.start_again()

    def start_again(self) -> None:
        self.world.later(self.world.random.random() * 2 * LEASE, self.start_node)

    def freeze(self) -> None:
        if self.alive():
            node, seconds = (
                self.world.random.choice(self.alive()),
                self.world.random.uniform(0.3, 2.5) * LEASE,
            )
            self.world.note(f"{node.name} is frozen for {seconds:.3f}")
            node.freeze(seconds)

    def cut(self) -> None:
        if self.alive():
            node, seconds = (
                self.world.random.choice(self.alive()),
                self.world.random.uniform(0.1, 1.5) * LEASE,
            )
            self.world.note(f"{node.name} is cut off for {seconds:.3f}")
            self.network.cut.add(node)
            node.cut_until = self.world.now + seconds
            self.server.cut_listeners()
            self.world.later(seconds, partial(self.network.cut.discard, node))

    def mute(self) -> None:
        """A node whose heartbeats fail, while its renewals do not."""
        if self.alive():
            node, seconds = (
                self.world.random.choice(self.alive()),
                self.world.random.uniform(0.1, 2.5) * LEASE,
            )
            self.world.note(f"{node.name} has no heartbeat for {seconds:.3f}")
            self.network.mute.add(node)
            node.mute_until = max(node.mute_until, self.world.now + seconds)
            self.world.later(seconds, partial(self.network.mute.discard, node))

    def damage(self) -> None:
        """A lease that is not renewed, while the heartbeat of its owner moves on."""
        shard = self.world.random.choice(self.server.current())
        seconds = self.world.random.uniform(0.05, 1.5) * LEASE
        self.world.note(f"the lease of {shard} is damaged for {seconds:.3f}")
        self.server.damaged.add(shard)
        self.world.later(seconds, partial(self.server.damaged.discard, shard))

    def restart_redis(self) -> None:
        self._redis_away(self.world.random.choice([0.05, 0.5, 1.5]) * LEASE)

    def _redis_away(self, seconds: float, older=None, masters: Sequence[int] = range(MASTERS)) -> None:
        if not self.server.down:
            forgets = f" and {list(masters)} forget" if older else ""
            self.world.note(f"Redis is unreachable for {seconds:.3f}{forgets}")
            self.server.stop()
            self.world.later(seconds, partial(self.server.start, older, masters))

    def silence(self) -> None:
        """Redis hangs, or the network around it: it is the same process afterwards."""
        if not (self.server.down or self.server.unresponsive):
            seconds = self.world.random.uniform(0.1, 2.5) * LEASE
            self.world.note(f"Redis is silent for {seconds:.3f}")
            self.server.be_silent(seconds)

    def master_away(self) -> None:
        """One master or two of a cluster do not answer; they are the same processes afterwards."""
        chance = self.world.random
        masters = chance.sample(range(MASTERS), chance.choice([1, 1, 2]))
        seconds = chance.uniform(0.1, 3.5) * LEASE
        self.world.note(f"masters {masters} are unreachable for {seconds:.3f}")
        for master in masters:
            self.server.be_away(master, seconds)

    def roll_back(self) -> None:
        """A failover of one master or of all: replicas have not seen the last writes, and are there at once
        or soon. Whatever cut them off may have cut off a node as well.
        """
        chance = self.world.random
        lost = chance.uniform(0.1, 3) * LEASE
        if self.alive() and chance.random() < 0.5:
            chance.choice(self.alive()).freeze(lost + chance.uniform(-0.2, 0.5) * LEASE)

        def wait() -> Sequence[int]:
            me().park(lost)
            return range(MASTERS) if chance.random() < 0.3 else [chance.randrange(MASTERS)]

        self._lose(wait)

    def lose_takeover(self) -> None:
        """A failover loses what one node takes from another one, which was silent. Now that node speaks: it
        sends what it wanted to release, or its last renewal arrives.
        """
        chance, busy = self.world.random, [node for node in self.alive() if self.checks.runs_on(node)]
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

    def lose_race(self) -> None:
        """A failover loses what one node takes of a dead one's. Then another one's request to take the same
        arrives there, maybe for the second time: nothing of it was lost before.
        """
        chance, busy = self.world.random, [node for node in self.alive() if node.owned()]
        if len(busy) < 2:
            return
        dead, late = chance.sample(busy, 2)
        shards, repeats = dead.owned(), chance.random() < 0.5
        self.world.note(f"{dead.name} is killed, and {late.name} is late to take what it had")
        dead.die()
        self.start_again()

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

    def lose_first(self) -> None:
        """A failover loses all leases that there ever were, while a node is frozen: at the beginning, one
        that has seen a shard without a lease; later, one whose shards others take.
        """
        nodes = self.alive()
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

    def lose_release(self) -> None:
        """A failover loses a release of which no answer came, and what the next owner has taken since."""
        releasing = [node for node in self.alive() if node.owned()]
        if len(self.alive()) < 2 or not releasing:
            return
        node = self.world.random.choice(releasing)
        shards = node.owned()

        def wait() -> Sequence[int]:
            self.network.unanswered.add(node)
            self._shut_down_node(node)
            for _ in range(100):
                me().park(0.005 * LEASE)
                if taken := self.checks.run_by_others(node, shards):
                    return [self.server.master_of[shard] for shard in taken]
            return range(MASTERS)

        self._lose(wait)
        self.network.unanswered.discard(node)

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

    def move_slot(self) -> None:
        shard, master = self.world.random.choice(self.server.current()), self.world.random.randrange(MASTERS)
        self.world.note(f"the slot of {shard} moves to master {master}")
        self.server.move(shard, master)

    def jump(self) -> None:
        seconds = self.world.random.uniform(-1, 1) * LEASE
        self.world.note(f"Redis's clock jumps by {seconds:.3f}")
        self.server.clock += seconds

    def leave(self) -> None:
        if len(self.alive()) > 1:
            self._shut_down_node(self.world.random.choice(self.alive()))

    def _shut_down_node(self, node: Node) -> None:
        self.world.note(f"{node.name} leaves")
        node.shut_down()
        self.start_again()

    def abandon(self) -> None:
        if self.alive():
            node, seconds = self.world.random.choice(self.alive()), 0.3 * self.world.random.random() * LEASE
            self.world.note(f"{node.name} leaves within {seconds:.3f}, whatever runs")
            node.shut_down_by(seconds)
            self.start_again()

    def join(self) -> None:
        if len(self.alive()) < 5:
            self.start_node()
            self.world.note(f"{self.nodes[-1].name} joins")

    def pause(self) -> None:
        chance = self.world.random
        job_id = chance.choice([None, f"id-{chance.randrange(IDS)}"])
        shard = self.checks.shard(job_id) if job_id else chance.choice(self.server.current())
        self.world.note(f"{job_id or shard} is paused")
        self.server.pause(shard, job_id)
        self.world.later(chance.random() * 3 * LEASE, partial(self.server.resume, shard, job_id))

    def resize(self) -> None:
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
