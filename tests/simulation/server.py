"""Redis in memory: leases as in the scripts, jobs by the plain model that the scripts are tested against."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from celery_lowkiq.rules.claims import Claim, ClaimRequest, Due, OpenClaims, SettleReply, SettleRequest
from celery_lowkiq.rules.errors import NotOwner, QueueResharded, ShardDamaged, StoreError, StoreUnavailable
from celery_lowkiq.rules.models import (
    Call,
    Job,
    Layout,
    Lease,
    LeaseState,
    Payload,
    QueueSpec,
    Renewed,
    ShardRef,
    shard_of,
)
from tests.model.jobs import ModelJob
from tests.model.model import Model
from tests.simulation.world import World

#: Jobs that are never taken for poison: nodes die of other things here.
MANY = 10_000
#: Among which the shards are divided. The first one has the queue's own keys.
MASTERS = 3
#: Claim numbers that differ in the time only.
NUMBERS = 1000


@dataclass
class Shard:
    model: Model = field(default_factory=lambda: Model("min", MANY))
    owner: str = ""
    epoch: int = 0
    counter: int = 0
    stopping: bool = False
    leaving: bool = False
    #: Of its owner, as the owner's number of it.
    turn: int = 0
    given_on: str = ""
    request: tuple[int, int] = (0, 0)
    senders: dict[str, int] = field(default_factory=dict)


class Server:
    """A cluster, of which some masters may come back as other processes, with older data."""

    def __init__(self, world: World, shards: Sequence[ShardRef]) -> None:
        self.world = world
        self.shards = {shard: Shard() for shard in shards}
        #: How many shards the queue has; there may be others that it had.
        self.count = len(shards)
        #: By id and payload: when its call was stored last; again when a failover has lost the first time.
        self.stored_at: dict[tuple[str, bytes], float] = {}
        self.members: dict[str, dict[str, tuple[int, int]]] = {}
        #: Shards whose lease is a key of another type.
        self.damaged: set[ShardRef] = set()
        self.down = False
        self.starts = 1
        #: How often each master was another process.
        self.processes = [1] * MASTERS
        self.master_of = {shard: shard.index % MASTERS for shard in shards}
        #: How often a shard's master came back with older data.
        self.losses: dict[ShardRef, int] = defaultdict(int)
        #: Since when (the world's time) its process has had a shard, and since when any master answers.
        self.here_since: dict[ShardRef, float] = dict.fromkeys(shards, -math.inf)
        self.up_since = -math.inf
        #: How often that was when a shard left a process.
        self._left: dict[tuple[ShardRef, str], int] = {}
        #: What replicas have that lag. They have what their master began with, also when a shard is moved.
        self.replicas: list[Any] = []
        #: The same process does not answer between these times (the world's).
        self.silent_from = self.silent_until = -math.inf
        #: How often it had started when that began.
        self.silent_start = 0
        #: Of each master, when (the world's time) it was unreachable last, while others answered.
        self.away_from = [-math.inf] * MASTERS
        self.away_until = [-math.inf] * MASTERS
        #: Told of each shard given here that a node takes from another one: shard, former, new owner.
        self.taken: Callable[[ShardRef, str, str], None] = lambda shard, former, owner: None
        #: Told of each lease whose owner releases it, and of each that it may not release: it names another
        #: process.
        self.released: Callable[[Lease], None] = lambda lease: None
        self.not_known: Callable[[Lease], None] = lambda lease: None
        self.clock = 1.7e9
        self.listeners: list = []
        #: By shard: epochs as they were given, for the check that they only grow.
        self.given: dict[ShardRef, int] = {}
        #: By shard, epoch and number: when a claim was made.
        self.claimed_at: dict[tuple[ShardRef, int, int], float] = {}

    def name_of(self, shard: ShardRef) -> str:
        """The process that has a shard."""
        return self._process(self.master_of[shard])

    def _process(self, master: int) -> str:
        return f"{'abc'[master]}-{self.processes[master]}"

    @property
    def now(self) -> float:
        return self.clock + self.world.now

    # -- faults

    def copy(self):
        return copy.deepcopy((self.shards, self.members, self.count))

    def copy_without_leases(self):
        """As if no shard had ever had an owner."""
        older = self.copy()
        for shard, s in older[0].items():
            s.model.recover(False, self.now)
            older[0][shard] = Shard(s.model, senders=s.senders)
        return older

    def stop(self) -> None:
        self.down = True
        self.cut_listeners()

    def start(self, older=None, masters: Collection[int] = range(MASTERS)) -> None:
        """As other processes of these masters, which have ``older`` data."""
        self.down = False
        self.starts += 1
        self.up_since = self.world.now
        for master in masters:
            self.processes[master] += 1
        self.here_since.update((s, self.world.now) for s, m in self.master_of.items() if m in masters)
        if older is None:
            return
        shards, members, self.count = older
        for shard in shards:
            if self.master_of[shard] in masters:
                self.losses[shard] += 1
                self.shards[shard] = shards[shard]
                self._replicate(shard)
        if 0 in masters:
            self.members = members

    def move(self, shard: ShardRef, master: int) -> None:
        """Move a shard's slot, unless it would return to a process after a loss elsewhere.

        That is not simulated: nothing tells the process that the shard was unreachable (docs/invariants.md).
        """
        if self._left.get((shard, self._process(master)), self.losses[shard]) == self.losses[shard]:
            self._left[shard, self.name_of(shard)] = self.losses[shard]
            self.master_of[shard] = master
            self.here_since[shard] = self.world.now
            self._replicate(shard)

    def _replicate(self, shard: ShardRef) -> None:
        for shards, *_ in self.replicas:
            shards[shard] = copy.deepcopy(self.shards[shard])

    @property
    def unresponsive(self) -> bool:
        return self.silent_from <= self.world.now < self.silent_until

    def be_silent(self, seconds: float) -> None:
        self.silent_from, self.silent_until = self.world.now, self.world.now + seconds
        self.silent_start = self.starts

    def be_away(self, master: int, seconds: float) -> None:
        """Do not answer about what a master has."""
        if not self._is_away(master):
            self.away_from[master] = self.world.now
        self.away_until[master] = max(self.away_until[master], self.world.now + seconds)

    def _is_away(self, master: int) -> bool:
        return self.world.now < self.away_until[master]

    def is_unreachable(self, shard: ShardRef) -> bool:
        return self._is_away(self.master_of[shard])

    @property
    def queue_is_away(self) -> bool:
        """Whether that is so for the queue's own keys."""
        return self._is_away(0)

    def check_answers(self, shard: ShardRef) -> None:
        if self.is_unreachable(shard):
            raise StoreUnavailable("its master is unreachable")

    def cut_listeners(self) -> None:
        for listener in list(self.listeners):
            listener.cut()

    # -- the number of shards

    def resize(self, count: int) -> None:
        """What an operator does when the queue is empty."""
        assert self.idle()
        (queue,) = {shard.queue for shard in self.shards}
        self.count = count
        for index in range(count):
            self.shards.setdefault(ShardRef(queue, index), Shard())
            self.master_of.setdefault(ShardRef(queue, index), index % MASTERS)
            self.here_since.setdefault(ShardRef(queue, index), -math.inf)

    def current(self) -> list[ShardRef]:
        """The shards that the queue has now."""
        return [shard for shard in self.shards if shard.index < self.count]

    def check_count(self, queue: QueueSpec) -> None:
        if queue.shards != self.count:
            raise QueueResharded(queue.name, Layout(self.count))

    # -- leases

    def _state(self, shard: ShardRef) -> LeaseState:
        s = self.shards[shard]
        if shard in self.damaged:
            return LeaseState(server=self.name_of(shard))
        return LeaseState(s.owner, s.epoch, s.counter, self.name_of(shard), s.given_on, s.leaving, s.turn)

    def _owned(self, lease: Lease) -> Shard:
        s = self.shards[lease.shard]
        if lease.shard in self.damaged:
            raise ShardDamaged(lease.shard.queue, lease.shard.index, "WRONGTYPE")
        if (s.owner, s.epoch) != (lease.owner, lease.epoch):
            raise NotOwner(str(lease.shard))
        return s

    def observe(self, shards: Sequence[ShardRef]) -> list[LeaseState | None]:
        return [None if self.is_unreachable(shard) else self._state(shard) for shard in shards]

    def acquire(self, shard: ShardRef, owner: str, seen: LeaseState, known_epoch: int) -> Lease:
        s, state = self.shards[shard], self._state(shard)
        if shard in self.damaged:
            raise ShardDamaged(shard.queue, shard.index, "WRONGTYPE")
        name = self.name_of(shard)
        here = s.given_on == name
        if s.owner == owner and here:
            s.counter += 1
            s.turn = 0
            return Lease(shard, owner, s.epoch, name)
        if (seen.owner, seen.epoch, seen.counter, seen.server) != (
            state.owner,
            state.epoch,
            state.counter,
            name,
        ):
            raise NotOwner(str(shard))
        crashed = bool(s.owner) and s.owner != owner and not s.stopping and here
        if here and s.owner not in ("", owner):
            self.taken(shard, s.owner, owner)
        s.epoch = max(s.epoch + 1, known_epoch + 1, int(self.now * 1000))
        s.owner, s.counter, s.given_on = owner, s.counter + 1, name
        s.stopping = s.leaving = False
        s.turn = 0
        s.model.recover(crashed, self.now)
        if s.epoch <= self.given.get(shard, 0):
            self.world.violated(f"{shard}: epoch {s.epoch} after {self.given[shard]}")
        self.given[shard] = s.epoch
        return Lease(shard, owner, s.epoch, name)

    def renew(self, leases: Sequence[Lease], stopping: bool, turn: int) -> list[Renewed]:
        return [
            None if self.is_unreachable(lease.shard) else self._renew(lease, stopping, turn)
            for lease in leases
        ]

    def _renew(self, lease: Lease, stopping: bool, turn: int) -> Renewed:
        try:
            s = self._owned(lease)
        except (NotOwner, ShardDamaged):
            return False
        s.stopping = stopping
        s.counter += 1
        s.turn = max(s.turn, turn)
        return replace(lease, server=self.name_of(lease.shard))

    def release(self, lease: Lease, unsettled: bool = False) -> bool:
        s = self.shards[lease.shard]
        if (s.owner, s.epoch) == ("", lease.epoch):
            return True
        self._owned(lease)
        if not unsettled and s.model.processing:
            return False
        if not unsettled and not self._knows(lease):
            self.not_known(lease)
            return False
        s.owner = ""
        s.given_on = lease.server
        s.leaving = unsettled
        s.counter += 1
        self.announce(lease.shard, None)
        if not unsettled:
            self.released(lease)
        return True

    def _knows(self, lease: Lease) -> bool:
        """Whether the owner knows which process has the shard."""
        return lease.server == self.name_of(lease.shard)

    # -- jobs

    def push(self, shard: ShardRef, sender: str, n: int, entries: Sequence[tuple[str, bytes, float]]) -> None:
        self.check_answers(shard)
        if shard.index != shard_of(entries[0][0], self.count):
            raise StoreError("it was sent before the queue had another number of shards")
        s = self.shards[shard]
        if s.senders.get(sender, 0) >= n:
            return
        s.senders[sender] = n
        s.model.push([Call(*entry, perform_in=self.now) for entry in entries], self.now)
        self.stored_at.update(((job_id, payload), self.world.now) for job_id, payload, _ in entries)
        self.announce(shard, self.now)

    def claim(self, wish: ClaimRequest) -> Claim:
        lease, request, in_hand = wish.lease, wish.request, wish.in_hand
        assert in_hand is not None
        self.check_answers(lease.shard)
        s = self._owned(lease)
        model = s.model
        epoch, last = s.request
        last = last if epoch == lease.epoch else 0
        if request < last:
            return Claim(0, (), self.now, self._next_due(s))
        kind = 0
        if request > last:
            s.request = (lease.epoch, request)
            # As claim.lua does; the model adds the last 1.
            model.claims = (max(model.claims, in_hand.last) // NUMBERS + 1) * NUMBERS - 1
            model.claims += int(self.now * 1_000_000) % NUMBERS
            for job_id, job in list(model.processing.items()):
                if job.claim not in in_hand.open:
                    del model.processing[job_id]
                    model.put_unfinished(job_id, job, job.in_order(), self.now)
            kind = self._fill(model, wish.queue.batch_size * wish.batches, wish.suspects)
            self.claimed_at[lease.shard, lease.epoch, model.claims] = self.world.now
        jobs = [_job(i, model.processing[i]) for i in model.in_claim_order() if self._is_of(model, i)]
        return Claim(
            model.claims if jobs else 0, tuple(jobs), self.now, self._next_due(s), kind == 1, kind == 2
        )

    def _is_of(self, model: Model, job_id: str) -> bool:
        return model.processing[job_id].claim == model.claims

    def _fill(self, model: Model, limit: int, suspects: bool) -> int:
        hidden = (
            {} if suspects else {i: model.waiting.pop(i) for i in list(model.suspects) if i in model.waiting}
        )
        ids = model.claim(limit, self.now)
        model.waiting.update(hidden)
        if ids and ids[0] in model.suspects:
            return 1
        passed = [model.waiting[i] for i in hidden if i in model.claimable()]
        return 2 if not ids and any(job.perform_in <= self.now for job in passed) else 0

    def settle(self, asked: SettleRequest) -> SettleReply:
        self.check_answers(asked.lease.shard)
        s = self._owned(asked.lease)
        accepted = {
            v.id
            for v in asked.settlements
            if s.model.settle(
                v.id, v.claim, v.disposition, v.retry_count, self.now + v.delay, self.now, v.error
            )
        }
        next_due = self._next_due(s)
        released = asked.release and self.release(asked.lease)
        return SettleReply(frozenset(accepted), self.now, next_due, released)

    def next_due(self, shard: ShardRef, in_hand: OpenClaims, was_empty: bool) -> Due | None:
        if self.is_unreachable(shard):
            return None
        s = self.shards[shard]
        if was_empty and not s.model.waiting:
            return Due(None, self.now)
        left = any(job.claim not in in_hand.open for job in s.model.processing.values())
        return Due(self.now if left else self._next_due(s), self.now)

    def _next_due(self, s: Shard) -> float | None:
        return s.model.next_due()

    # -- pauses

    def pause(self, shard: ShardRef, job_id: str | None) -> None:
        """A shard, or one of its ids."""
        model = self.shards[shard].model
        model.paused.add(job_id) if job_id else model.pauses.add("shard")

    def resume(self, shard: ShardRef, job_id: str | None) -> None:
        model = self.shards[shard].model
        model.paused.discard(job_id) if job_id else model.pauses.discard("shard")
        if (due := model.next_due()) is not None:
            self.announce(shard, due)

    # -- members and announcements

    def beat(self, queue: str, owner: str, lanes: int, turn: int) -> dict[str, tuple[int, int]] | None:
        if self.queue_is_away:
            return None
        members = self.members.setdefault(queue, {})
        members[owner] = (lanes, max(members.get(owner, (0, 0))[1], turn))
        return dict(members)

    def forget_members(self, queue: str, owners: Sequence[str]) -> None:
        if self.queue_is_away:
            raise StoreUnavailable("the queue's master is unreachable")
        for owner in owners:
            self.members.get(queue, {}).pop(owner, None)

    def announce(self, shard: ShardRef, perform_in: float | None) -> None:
        for listener in list(self.listeners):
            listener.tell(shard, perform_in)

    # -- for the checks

    def places(self, job_id: str, shard: ShardRef) -> list[bytes]:
        """The payloads of an id that are somewhere."""
        model = self.shards[shard].model
        jobs = [jobs.get(job_id) for jobs in (model.waiting, model.processing, model.morgue)]
        return [payload for job in jobs if job is not None for payload in job.items]

    def idle(self) -> bool:
        return not any(s.model.waiting or s.model.processing for s in self.shards.values())


def _job(job_id: str, job: ModelJob) -> Job:
    payloads = tuple(Payload(item.payload, item.score) for item in job.in_order())
    return Job(job_id, payloads, job.perform_in, job.retry_count, job.error, job.claim, len(payloads))
