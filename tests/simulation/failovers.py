"""Failovers in simulated migrations: a replica that lags takes the place of one of three masters.

What a master wrote since its replica fell behind is lost, and only that: calls wait for no replica. A replica
that lags confirms nothing, so that movers wait for it; the master that it becomes confirms all, and has
another replication id. In other runs the replica is cut off: movers do not wait for it, so old jobs may be
lost or run twice, but the queue, whose own key loses nothing then, must come to rest.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from celery_lowkiq.rules.errors import LowkiqError
from celery_lowkiq.rules.models import Layout, ShardRef
from celery_lowkiq.store import durability, registry
from celery_lowkiq.store.keys import SHARD_KEYS, queue_key, shard_of_key
from celery_lowkiq.store.repairs import Repairs

#: Share of the runs with failovers, and of these those in which replicas are cut off.
FAILING, CUT_OFF = 0.3, 0.3
MASTERS = 3
#: Share of the runs with failovers in which the queue's own key lies on a master that may fail over.
OWN_KEY = 0.5
#: How often a replica falls behind, and for how many steps it lags before it takes over.
FALLS_BEHIND, LAGS = 0.008, (50, 300, 900)
#: Most shards of a queue.
SHARDS = 8
#: How often a refused call looks at what is stored while there are faults.
LOOKS = 0.2
ask_servers = durability.read_servers


def read_servers(client: Any, shards: Iterable[ShardRef]) -> Any:
    """Without failovers, movers ask nothing: there is no replica."""
    return ask_servers(client, shards) if client.of.fails else {}


class Lag(NamedTuple):
    """A replica that has nothing of what came ``since``, and takes over at a step."""

    master: int
    since: int
    until: int
    keys: dict[str, bytes | None]


class Loss(NamedTuple):
    """Steps whose writes a master has lost."""

    master: int
    since: int
    until: int


class Failovers:
    """``losses`` are those so far."""

    def prepare_failovers(self, seed: int, share: float) -> None:
        self.fate = fate = random.Random(f"failovers {seed}")
        self.fails = fate.random() < share
        self.cut_off = self.fails and fate.random() < CUT_OFF
        self.homes = [fate.randrange(MASTERS) for _ in range(SHARDS)]
        own_key = random.Random(f"own key {seed}")
        found = own_key.randrange(MASTERS + 1) if own_key.random() < OWN_KEY else None
        # A queue that has forgotten a migration does not know its shards.
        self.home_of_queue = None if self.cut_off else found
        #: Those that may fail over, as often as they have shards.
        self.masters = self.homes if self.home_of_queue is None else [*self.homes, self.home_of_queue]
        self.lag: Lag | None = None
        self.losses: list[Loss] = []
        #: By payload, the shard that took its call; of each settle, its shard and the steps that it took.
        self.taken_by: dict[bytes, int] = {}
        self.settles: dict[bytes, list[tuple[int, int, int]]] = {}

    # -- what movers ask

    def streams(self, shards: Iterable[ShardRef]) -> list[ShardRef]:
        """One shard of each master."""
        return list({self.homes[shard.index]: shard for shard in shards}.values())

    def replication(self, command: tuple[Any, ...], before: tuple[Any, ...]) -> Any:
        """INFO and WAIT, of the master that the command before went to."""
        shard = shard_of_key(before[1])
        assert shard is not None
        lags = self.lag is not None and self.lag.master == self.homes[shard.index]
        if command[0] == "WAIT":
            return 0 if lags else 1
        lost = sum(loss.master == self.homes[shard.index] for loss in self.losses)
        return {"connected_slaves": 0 if lags and self.cut_off else 1, "master_replid": str(lost)}

    # -- faults

    def disturb_masters(self) -> None:
        if self.lag is not None:
            if self.step >= self.lag.until:
                self.fail_over(self.lag)
                self.lag = None
        elif self.fails and self.faults and self.fate.random() < FALLS_BEHIND:
            master, until = self.fate.choice(self.masters), self.step + self.fate.choice(LAGS)
            if until < self.last:
                names = list(self.keys_of(master))
                found = dict(zip(names, self.dumps(names), strict=True))
                self.lag = Lag(master, self.step, until, found)

    def keys_of(self, master: int) -> Iterator[str]:
        for index, home in enumerate(self.homes):
            if home == master:
                keys = self.keys(index)
                yield from (keys[name] for name in SHARD_KEYS)
        if master == self.home_of_queue:
            yield queue_key(self.queue.name)

    def dumps(self, names: list[str]) -> list[bytes | None]:
        with self.redis.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.dump(name)
            return pipe.execute()

    def fail_over(self, lag: Lag) -> None:
        leases = self.leases_of(lag.master)
        with self.redis.pipeline(transaction=False) as pipe:
            pipe.delete(*lag.keys)
            for name, data in lag.keys.items():
                if data is not None:
                    pipe.restore(name, 0, data)
            pipe.execute()
        self.totals.failovers += 1
        self.losses.append(Loss(lag.master, lag.since, self.step))
        for index, home in enumerate(self.homes):
            if home == lag.master and self.redis.exists(self.keys(index)["lease"]):
                self.redis.hset(self.keys(index)["lease"], "server", f"before {len(self.losses)}")
        for actor in list(self.actors):
            if actor.kind == "worker" and lag.master in self.masters_of(actor.name):
                if leases != self.leases_of(lag.master):
                    self.crash(actor)
                else:
                    self.totals.survivors += 1
                    self.totals.lost_claims += self.has_lost_claim(actor.name)
        self.retries.clear()

    def leases_of(self, master: int) -> list[tuple[bytes | None, ...]]:
        """Owners and epochs of its shards. One that was lost is watched first, until its owner has ended."""
        shards = [index for index, home in enumerate(self.homes) if home == master]
        return [tuple(self.redis.hmget(self.keys(n)["lease"], "owner", "epoch")) for n in shards]

    def has_lost_claim(self, worker: str) -> bool:
        """Whether it runs a job that its shard does not know to be in processing."""
        mine = [(job_id, index) for job_id, (name, index) in self.running.items() if name == worker]
        return any(self.redis.zscore(self.keys(index)["claimed"], job_id) is None for job_id, index in mine)

    def masters_of(self, worker: str) -> set[int]:
        """Those of the shards that it has had."""
        return {self.homes[lease.shard.index] for lease in self.requests if lease.owner == worker}

    # -- what refused calls do

    def reopen(self, layout: Layout, index: int) -> None:
        """As a caller whose call a shard has refused."""
        if self.fails and (not self.faults or self.fate.random() < LOOKS):
            with contextlib.suppress(LowkiqError), self.client.alone():
                shard = ShardRef(self.queue.name, index)
                registry.open_shards(
                    self.client, self.known_as(layout), [shard], Repairs(self.client), lambda queue: None
                )

    # -- what was lost

    def is_lost(self, index: int, since: int, until: int) -> bool:
        """Whether what a shard was asked in these steps may be lost."""
        return any(
            one.master == self.homes[index] and one.since <= until and since <= one.until
            for one in self.losses
        )

    def may_be_lost(self, payload: bytes) -> bool:
        """Whether its call may be lost."""
        return self.is_lost(self.taken_by[payload], self.sent[payload], self.acked[payload])

    def lost_settles(self, payload: bytes) -> int:
        """How many of its settles may be lost."""
        return sum(self.is_lost(*settle) for settle in self.settles.get(payload, ()))
