"""A store in memory, and a runner and a host that remember: enough to drive a node without Redis."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from celery_lowkiq.rules.claims import Claim, ClaimRequest, Due, OpenClaims, SettleReply, SettleRequest
from celery_lowkiq.rules.errors import LowkiqError, NotOwner, StoreError, StoreUnavailable
from celery_lowkiq.rules.leases import LeaseWatch
from celery_lowkiq.rules.models import (
    Batch,
    Disposition,
    Job,
    Lease,
    LeaseState,
    Payload,
    QueueSpec,
    Renewed,
    Settlement,
    ShardRef,
)
from celery_lowkiq.rules.policies import TokenRequest, Tokens
from celery_lowkiq.rules.topology import Master, Server
from celery_lowkiq.rules.views import BeatResult, Counters, NodeReport, NodeUpdate, Running, UpdateReply


class FakeStore:
    """``worker.ports.Store`` for one node. ``fail`` makes calls raise before or after they took effect."""

    def __init__(self) -> None:
        self.lock = threading.Condition(threading.RLock())
        self.waiting: dict[ShardRef, dict[str, Job]] = {}
        self.processing: dict[ShardRef, dict[str, Job]] = {}
        self.leases: dict[ShardRef, LeaseState] = {}
        self.stopping: set[ShardRef] = set()
        self.claims: list[tuple[ShardRef, int]] = []
        self.settled: list[tuple[str, Disposition]] = []
        self.pushed: list[tuple[ShardRef, float]] = []
        self.refreshes = 0
        #: How many shards were asked about, and how many each acquire was to take.
        self.asked = 0
        #: How many of them were empty when they were last asked about.
        self.asked_of_empty = 0
        self.acquired: list[int] = []
        self.number = 0
        self.in_hands: list[OpenClaims | None] = []
        self.forgiven: list[Lease] = []
        self.suspects: set[str] = set()
        self.last: dict[ShardRef, tuple[int, int]] = {}
        #: Method name -> function that may raise; called before the effect, then with True after it.
        self.fail: dict[str, Callable[[bool], None]] = {}
        self.bucket = 0
        self.token_requests: list[TokenRequest] = []
        self.open = True
        self.members: dict[str, dict[str, tuple[int, int]]] = {}
        #: Numbers of shards by queue, as they are stored.
        self.routes: dict[str, str] = {}
        self.reports: dict[str, NodeReport] = {}
        self.news: list[NodeUpdate] = []
        self.server = Server(policy="noeviction")
        self.refused: dict[str, str] = {}

    # -- what tests do

    def push(
        self, shard: ShardRef, job_id: str, perform_in: float | None = None, announce: bool = True
    ) -> None:
        with self.lock:
            when = time.time() if perform_in is None else perform_in
            self.waiting.setdefault(shard, {})[job_id] = Job(job_id, (Payload(b"x", 1.0),), when)
            if announce:
                self.pushed.append((shard, when))
            self.lock.notify_all()

    def steal(self, shard: ShardRef) -> None:
        with self.lock:
            self.leases[shard] = LeaseState("thief", self.leases[shard].epoch + 1, 1)

    def _maybe_fail(self, name: str, after: bool = False) -> None:
        if name in self.fail:
            self.fail[name](after)

    def _check(self, lease: Lease) -> None:
        state = self.leases.get(lease.shard, LeaseState())
        if (state.owner, state.epoch) != (lease.owner, lease.epoch):
            raise NotOwner(str(lease.shard))

    # -- the port

    def observe(self, shards: list[ShardRef]) -> list[LeaseState]:
        self._maybe_fail("observe")
        with self.lock:
            return [self.leases.get(shard, LeaseState()) for shard in shards]

    def acquire_all(self, wanted: list[LeaseWatch], owner: str) -> list[Lease | LowkiqError]:
        self.acquired.append(len(wanted))
        return [self._answer(lambda one: self.acquire(one, owner), one) for one in wanted]

    def acquire(self, one: LeaseWatch, owner: str) -> Lease:
        shard, seen, known_epoch = one.shard, one.seen, one.known_epoch
        self._maybe_fail("acquire")
        with self.lock:
            if self.leases.get(shard, LeaseState()) != seen:
                raise NotOwner(str(shard))
            if seen.owner == owner:
                return Lease(shard, owner, seen.epoch)
            state = LeaseState(owner, max(seen.epoch, known_epoch) + 1, seen.counter + 1)
            self.leases[shard] = state
            self.waiting.setdefault(shard, {}).update(self.processing.pop(shard, {}))
            return Lease(shard, owner, state.epoch)

    def renew(self, leases: list[Lease], stopping: bool, turn: int) -> list[Renewed]:
        self._maybe_fail("renew")
        answers: list[Renewed] = []
        with self.lock:
            for lease in leases:
                state = self.leases.get(lease.shard, LeaseState())
                ours = (state.owner, state.epoch) == (lease.owner, lease.epoch)
                answers.append(ours and lease)
                if ours:
                    self.leases[lease.shard] = replace(state, counter=state.counter + 1, turn=turn)
                    if stopping:
                        self.stopping.add(lease.shard)
        return answers

    def release(self, lease: Lease, unsettled: bool = False) -> bool:
        self._maybe_fail("release")
        return self._release(lease, unsettled)

    def _release(self, lease: Lease, unsettled: bool = False) -> bool:
        with self.lock:
            self._check(lease)
            if self.processing.get(lease.shard) and not unsettled:
                return False
            self.leases[lease.shard] = LeaseState("", lease.epoch, 99)
            return True

    def exchange(self, settle: SettleRequest | None, claim: ClaimRequest | None):
        """Errors of one half leave the other alone, but for an outage."""
        return tuple(
            None if asked is None else self._answer(act, asked)
            for act, asked in ((self.settle, settle), (self.claim, claim))
        )

    def _answer(self, act, asked):
        try:
            return act(asked)
        except StoreUnavailable:
            raise
        except LowkiqError as error:
            return error

    def claim(self, wish: ClaimRequest) -> Claim:
        queue, lease, request, suspects = wish.queue, wish.lease, wish.request, wish.suspects
        self._maybe_fail("claim")
        with self.lock:
            self._check(lease)
            self.claims.append((lease.shard, request))
            now = time.time()
            busy = self.processing.setdefault(lease.shard, {})
            last_request, last_number = self.last.get(lease.shard, (0, 0))
            if request == last_request:
                jobs = [job for job in busy.values() if job.claim == last_number]
            else:
                self.number += 1
                self.last[lease.shard] = (request, self.number)
                self.in_hands.append(wish.in_hand)
                jobs = self._take(lease.shard, queue.batch_size * wish.batches, now)
                if not suspects and any(job.id in self.suspects for job in jobs):
                    self.waiting[lease.shard].update({job.id: busy.pop(job.id) for job in jobs})
                    return Claim(0, (), now, self._next_due(lease.shard), suspect_due=True)
            suspect = any(job.id in self.suspects for job in jobs)
            reply = Claim(self.number if jobs else 0, tuple(jobs), now, self._next_due(lease.shard), suspect)
        self._maybe_fail("claim", after=True)
        return reply

    def _take(self, shard: ShardRef, limit: int, now: float) -> list[Job]:
        waiting, busy = self.waiting.setdefault(shard, {}), self.processing[shard]
        due = sorted(
            (j for j in waiting.values() if j.perform_in <= now and j.id not in busy),
            key=lambda j: j.perform_in,
        )
        taken = []
        for job in due[:limit]:
            del waiting[job.id]
            busy[job.id] = Job(job.id, job.payloads, job.perform_in, job.retry_count, claim=self.number)
            taken.append(busy[job.id])
        return taken

    def settle(self, asked: SettleRequest) -> SettleReply:
        lease, settlements = asked.lease, asked.settlements
        self._maybe_fail("settle")
        with self.lock:
            self._check(lease)
            busy = self.processing.setdefault(lease.shard, {})
            accepted = set()
            for settlement in settlements:
                if settlement.id in busy and busy[settlement.id].claim == settlement.claim:
                    job = busy.pop(settlement.id)
                    if settlement.disposition is Disposition.RETURN:
                        self.waiting[lease.shard].setdefault(job.id, job)
                    accepted.add(settlement.id)
                    self.settled.append((settlement.id, settlement.disposition))
            self.lock.notify_all()
            next_due = self._next_due(lease.shard)
            released = asked.release and self._release(lease)
            reply = SettleReply(frozenset(accepted), time.time(), next_due, released)
        self._maybe_fail("settle", after=True)
        return reply

    def _next_due(self, shard: ShardRef) -> float | None:
        busy = self.processing.get(shard, {})
        return min(
            (j.perform_in for j in self.waiting.get(shard, {}).values() if j.id not in busy), default=None
        )

    def retract_crashes(self, lease: Lease) -> None:
        self._maybe_fail("retract_crashes")
        self.forgiven.append(lease)

    def beat(self, queues: list[str], owner: str, lanes: int, turn: int, news: NodeUpdate) -> BeatResult:
        self._maybe_fail("beat")
        with self.lock:
            for queue in queues if lanes else ():
                members = self.members.setdefault(queue, {})
                members[owner] = (lanes, turn)
            routes = [self.routes.get(queue, "") for queue in queues]
            return BeatResult(
                [dict(self.members.get(queue, {})) for queue in queues], routes, self._tell(news)
            )

    def _tell(self, news: NodeUpdate) -> UpdateReply | StoreError:
        try:
            self._maybe_fail("report")
        except StoreError as error:
            return error
        self.news.append(news)
        self.reports[news.report.owner] = news.report
        return UpdateReply(time.time(), tuple((q.name, Counters(time.time(), (1,))) for q in news.counted))

    def forget_report(self, owner: str) -> None:
        self._maybe_fail("forget_report")
        self.reports.pop(owner, None)

    def forget_members(self, queue: str, members: list[tuple[str, int]]) -> None:
        self._maybe_fail("forget_members")
        with self.lock:
            for owner, _ in members:
                self.members.get(queue, {}).pop(owner, None)

    def next_due(
        self,
        shards: list[ShardRef],
        in_hand: list[OpenClaims] | tuple[()] = (),
        were_empty: list[bool] | tuple[()] = (),
    ) -> list[Due]:
        self._maybe_fail("next_due")
        with self.lock:
            self.refreshes += 1
            self.asked += len(shards)
            self.asked_of_empty += sum(were_empty)
            return [Due(self._next_due(shard), time.time()) for shard in shards]

    def count_due(self, shards: list[ShardRef]) -> int:
        self._maybe_fail("count_due")
        with self.lock:
            return sum(len(self.waiting.get(shard, ())) for shard in shards)

    def tokens(self, asked: TokenRequest) -> Tokens:
        """As many as ``bucket`` has; those that come back are put in it."""
        self._maybe_fail("tokens")
        with self.lock:
            self.token_requests.append(asked)
            self.bucket += asked.surplus
            granted = min(self.bucket, asked.wanted)
            self.bucket -= granted
            return Tokens(granted, 0.0 if self.bucket else 3600.0)

    def masters(self, shards: Sequence[ShardRef]) -> list[Master]:
        self._maybe_fail("masters")
        return [Master("redis:6379", self.server, refused=self.refused)]

    def subscribe(self, queues: list[QueueSpec]) -> FakeStore:
        self._maybe_fail("subscribe")
        self.open = True
        return self

    def wait_pushed(self, timeout: float) -> tuple[ShardRef, float] | None:
        self._maybe_fail("wait_pushed")
        with self.lock:
            self.lock.wait_for(lambda: self.pushed or not self.open, timeout)
            if not self.open:
                raise StoreUnavailable("closed")
            return self.pushed.pop(0) if self.pushed else None

    def close(self) -> None:
        with self.lock:
            self.open = False
            self.lock.notify_all()


class FakeRunner:
    """Remembers runs; ``act`` may block, raise, or return settlements."""

    def __init__(self, act: Callable[[Batch], tuple[Settlement, ...] | None] = lambda batch: None) -> None:
        self.act = act
        self.runs: list[tuple[str, str]] = []
        self.told: list[frozenset[str]] = []
        self.late_writes = 0
        #: Whether the results of a batch are held back until `flush`, and its settlements with them.
        self.holds: Callable[[Batch], bool] = lambda batch: False
        self._held: dict[threading.Thread, list[Settlement]] = defaultdict(list)

    def run(self, batch: Batch) -> tuple[Settlement, ...]:
        self.runs += [(job.id, threading.current_thread().name) for job in batch.jobs]
        done = tuple(Settlement(job.id, job.claim, Disposition.DONE) for job in batch.jobs)
        settlements = self.act(batch) or done
        if not self.holds(batch):
            return settlements
        self._held[threading.current_thread()] += settlements
        return ()

    def flush(self) -> tuple[Settlement, ...]:
        return tuple(self._held.pop(threading.current_thread(), ()))

    def write_late(self) -> None:
        self.late_writes += 1

    def settled(self, batch: Batch, accepted: frozenset[str]) -> None:
        self.told.append(accepted)

    @property
    def ids(self) -> list[str]:
        return [job_id for job_id, _ in self.runs]


class FakeHost:
    def __init__(self) -> None:
        self.stops: list[tuple[int, str]] = []
        self.words: list[BaseException] = []
        self.alarms: list[tuple[Running, int | None]] = []

    def stop(self, exitcode: int, reason: str) -> None:
        self.stops.append((exitcode, reason))

    def alarm(self, lane: str, run: Running, waiting: int | None) -> None:
        self.alarms.append((run, waiting))

    def last_words(self, error: BaseException) -> None:
        self.words.append(error)
