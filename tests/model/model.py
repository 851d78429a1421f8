"""Plain-Python model of the rules of a job, for one shard. No Redis, no packing, no scripts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from celery_lowkiq.rules.models import POISON_PILL_RETRY_COUNT, Call, Disposition, RemovalReason
from celery_lowkiq.rules.policies import (
    NONE,
    NOT_ISOLATED,
    AfterFailure,
    Isolation,
    Policies,
    WhenFull,
    surplus,
)
from celery_lowkiq.rules.signatures import KeyRing
from tests.model.jobs import Buckets, Item, ModelJob, score_of
from tests.model.policies import after_failure, debounced, has_place, reached, stale
from tests.model.suspects import NO_SUSPECT, Suspects

#: Positions of payloads that are buried with an error, or go for another reason.
Bad = Mapping[int, "bytes | RemovalReason"]
NONE_BAD: Bad = {}


def joined_signature(kept: Item, other: Item, later: bool) -> bytes:
    """One that binds the score stays with it; another may be that of the later or only signed call."""
    if b"S" in (kept.signature[:1], other.signature[:1]) or not other.signature:
        return kept.signature
    return other.signature if later or not kept.signature else kept.signature


@dataclass
class Model:
    """One shard: waiting, processing, morgue, and who died with what."""

    merge: str
    max_crashes: int
    policies: Policies = NONE
    waiting: dict[str, ModelJob] = field(default_factory=dict)
    processing: dict[str, ModelJob] = field(default_factory=dict)
    morgue: dict[str, ModelJob] = field(default_factory=dict)
    suspects: Suspects = field(default_factory=Suspects)
    #: Ids that are paused, and whether the shard is: by itself ("shard"), with its queue ("queue").
    paused: set[str] = field(default_factory=set)
    pauses: set[str] = field(default_factory=set)
    #: Ids that a death holds.
    held: set[str] = field(default_factory=set)
    processed: int = 0
    failed: int = 0
    merged: int = 0
    dead: int = 0
    dropped: int = 0
    #: By id, under a policy: the first call and the earliest time; the own time of a job that is due before
    #: it; the highest score that was done.
    firsts: dict[str, tuple[float, float]] = field(default_factory=dict)
    early: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)
    #: Of the next pushes; None: they are not signed.
    signer: KeyRing | None = None
    claims: int = 0
    back: int = 0
    front: int = 0

    def __post_init__(self) -> None:
        self.buckets = Buckets(self.policies.rate_per_id)
        self.max_wait = self.policies.priority_max_wait

    def unite(self, into: dict[bytes, Item], items: list[Item], older: bool) -> None:
        """Rule 2: of equal payloads the smaller (or larger) score stays; a tie keeps the earlier arrival."""
        for item in reversed(items) if older else items:
            if older:
                self.front -= 1
            else:
                self.back += 1
            arrival = self.front if older else self.back
            known = into.get(item.payload)
            flag = item.flag if known is None or known.flag == item.flag else "r"
            if known is None:
                into[item.payload] = replace(item, arrival=arrival)
            elif self._replaces(item, known, older):
                signature = joined_signature(item, known, later=older)
                into[item.payload] = Item(item.payload, item.score, arrival, flag, signature)
            else:
                known.flag, known.signature = flag, joined_signature(known, item, later=not older)

    def _replaces(self, new: Item, old: Item, older: bool) -> bool:
        bound, known = new.signature[:1] == b"S", old.signature[:1] == b"S"
        if (bound and not old.signature) or (known and not new.signature):
            return bound
        if new.score == old.score:
            return older
        return (new.score > old.score) == (self.merge == "max")

    # -- calls

    def refuses(self, jobs: Sequence[Call]) -> bool:
        """Whether there is no place for all new ids among them, or behind a dead payload."""
        added = Counter(job.id for job in jobs)
        limit = self.policies.hold
        if limit is not None and any(self._behind(i) + added[i] > limit for i in added.keys() & self.held):
            return True
        new = {job.id for job in jobs if not self._is_stale(job)} - self.waiting.keys()
        full = self.policies.when_full is WhenFull.REFUSE and self.policies.max_length is not None
        return (
            full and bool(new) and not has_place(len(self.waiting) + len(new) - 1, self.policies.max_length)
        )

    def _behind(self, job_id: str) -> int:
        """Number of payloads that wait behind a dead one."""
        return len(self.waiting[job_id].items) if job_id in self.waiting else 0

    @property
    def closed(self) -> set[str]:
        """Ids of which nothing is claimed."""
        return self.paused | self.held

    def push(self, jobs: Sequence[Call], now: float) -> tuple[list[int], list[str]]:
        """Positions of calls that were dropped, and ids that gave way, of those that somebody hears of."""
        gone: list[int] = []
        evicted: list[str] = []
        for position, job in enumerate(jobs):
            if not self._push(job, now, evicted):
                self.dropped += 1
                gone += [position] if job.record is not None else []
        return gone, evicted

    def _push(self, job: Call, now: float, evicted: list[str]) -> bool:
        flag, waits = "" if job.record is None else "R", job.id in self.waiting
        assert job.perform_in is not None
        at = max(job.perform_in, now)
        takes_place = self.policies.max_length is not None and not waits
        if (not flag or takes_place) and self._is_stale(job):
            return False
        if not waits and not self._make_place(evicted):
            return False
        priority = self.policies.priority if job.priority is None else job.priority
        known = self.waiting.setdefault(job.id, ModelJob({}, at, priority=priority))
        first, has_equal = known.first(), job.data in known.items
        signature = b""
        if self.signer is not None:
            signature = self.signer.sign_payload("q", job.id.encode(), job.data, job.score)
        self.unite(known.items, [Item(job.data, score_of(job), 0, flag, signature)], older=False)
        if job.data not in self._trim(known):
            self.merged += waits and (self.policies.per_run != 1 or has_equal)
            known.priority = min(known.priority, priority)
            self._put_off(job.id, known, at, now, waits)
            passed = self.policies.per_run == 1 and known.first() != first
            if known.retry_count >= 0 and (passed or self.policies.anew_on_push):
                known.forget_failure()
                self.forget(job.id)
        return True

    def _is_stale(self, job: Call) -> bool:
        return stale([score_of(job)], self.peaks.get(job.id)) > 0

    def _make_place(self, evicted: list[str]) -> bool:
        if self.policies.when_full is WhenFull.REFUSE or has_place(
            len(self.waiting), self.policies.max_length
        ):
            return True
        running = [i for i in self.waiting if i not in self.closed]
        if self.policies.when_full is WhenFull.DROP_NEWEST or not running:
            return False
        oldest = min(running, key=self._first_to_go)
        items = self.waiting.pop(oldest).items
        self.forget(oldest)
        self.dropped += len(items)
        evicted += [oldest] if any(item.flag for item in items.values()) else []
        return True

    def _first_to_go(self, job_id: str) -> tuple[bool, float, bytes]:
        job = self.waiting[job_id]
        return job.priority == 0, job.perform_in, job_id.encode()

    def _put_off(self, job_id: str, job: ModelJob, asked: float, now: float, waits: bool) -> None:
        policies = self.policies
        if job.retry_count >= 0:
            own = job.perform_in
            job.perform_in = after_failure(own, asked, policies.when_pushed_after_failure)
            if job.perform_in < own:
                self.early.setdefault(job_id, own)
        elif policies.debounce is not None and (job_id in self.firsts or not waits):
            first, floor = self.firsts.get(job_id, (now, asked))
            self.firsts[job_id] = first, max(floor, asked)
            longest = policies.debounce_max
            job.perform_in = debounced(now, first, policies.debounce, longest, max(floor, asked))

    def _trim(self, job: ModelJob) -> set[bytes]:
        """What is not kept; of that, payloads that somebody hears of stay until a claim."""
        items = job.in_order()[: surplus(len(job.items), self.policies.keep)]
        for item in items:
            if not item.flag:
                del job.items[item.payload]
                self.dropped += 1
        return {item.payload for item in items}

    def forget(self, job_id: str) -> None:
        """The job waits no more."""
        self.firsts.pop(job_id, None)
        self.early.pop(job_id, None)

    def take_out(self, job_id: str) -> None:
        """Somebody takes it out of the queue; what does not run either is no suspect.

        Where nothing waits, nothing changes: a suspect that gave way to another job is one still.
        """
        waited = self.waiting.pop(job_id, None)
        self.forget(job_id)
        if waited and job_id not in self.processing:
            self.suspects.pop(job_id, None)

    # -- claims

    def claim(self, limit: int, now: float) -> list[str]:
        ids: list[str] = []
        for job_id in self._looked_at(limit, now):
            if not ids:
                self.suspects.end_if_gone(job_id, self.waiting[job_id])
            if len(ids) == limit or (ids and ids[0] in self.suspects):
                break
            if job_id not in self.suspects and self.waiting[job_id].is_apart([self.waiting[i] for i in ids]):
                continue
            if self.buckets.token_at(job_id) > now:
                self.waiting[job_id].perform_in = self.buckets.token_at(job_id)
            elif ids and job_id in self.suspects:
                break
            else:
                ids.append(job_id)
                limit = min(limit, self.waiting[job_id].isolation.largest or limit)
        self.claims += 1
        for job_id in ids:
            self._take(job_id, now)
        return sorted(ids, key=lambda i: (self.processing[i].turn(now, self.max_wait), i.encode()))

    def _looked_at(self, limit: int, now: float) -> list[str]:
        """What a claim may take, in the order of their turns: it looks a little beyond its limit."""
        due = [i for i, job in self.waiting.items() if i not in self.closed and job.perform_in <= now]
        due.sort(key=lambda i: (self.waiting[i].stored_turn(now, self.max_wait), i.encode()))
        passed_by = 100 if self.policies.rate_per_id else len(self.processing) + len(self.suspects)
        claimable = self.claimable()
        return [job_id for job_id in due[: limit + passed_by] if job_id in claimable]

    def claimable(self) -> list[str]:
        """Ids that wait for nothing but their time."""
        if self.pauses:
            return []
        return [i for i in self.waiting if i not in self.processing and i not in self.closed]

    def next_due(self) -> float | None:
        return min((self.waiting[job_id].perform_in for job_id in self.claimable()), default=None)

    def _take(self, job_id: str, now: float) -> None:
        job = self.waiting.pop(job_id)
        self.buckets.take(job_id, now)
        own = self.early.get(job_id, 0.0)
        suspect = self.suspects.get(job_id, NO_SUSPECT)
        most = 1 if suspect.level > 1 else self.policies.per_run
        taken = {item.payload: item for item in job.in_order()[:most]}
        copied = None if self.policies.keep else suspect.moved(job)
        if copied is not None:
            taken = {copied.payload: replace(copied, flag="")}
            suspect = replace(suspect, level=2)
            self.suspects[job_id] = suspect
        if copied is not None or len(taken) < len(job.items):
            rest = {payload: item for payload, item in job.items.items() if payload not in taken}
            rest = dict(job.items) if copied is not None else rest
            at = job.perform_in if suspect.level > 1 else now
            self.waiting[job_id] = replace(job, items=rest, perform_in=at)
            self.firsts.pop(job_id, None)
            if self.policies.per_run == 1:
                self.waiting[job_id].forget_failure()
                self.forget(job_id)
        else:
            self.forget(job_id)
        job = replace(job, items=taken)
        if suspect.level == 3 and job.first() == suspect.crashing:
            self.suspects[job_id] = replace(suspect, level=2)
            job.retry_count, job.isolation = POISON_PILL_RETRY_COUNT, NOT_ISOLATED
        if own > now:
            job.perform_in, job.early = own, True
        rest = len(self.waiting[job_id].items) if job_id in self.waiting else 0
        beyond = min(surplus(len(job.items) + rest, self.policies.keep), len(job.items))
        scores = [item.score for item in job.in_order()]
        job.unwanted = max(beyond, stale(scores, self.peaks.get(job_id)))
        job.claim = self.claims
        self.processing[job_id] = job

    def put_back(
        self,
        job_id: str,
        items: list[Item],
        perform_in: float,
        retry_count: int,
        error: bytes | None,
        priority: int,
        isolation: Isolation = NOT_ISOLATED,
    ) -> bool:
        """Rule 3: payloads are united; all else is the job's that comes back, if anything of it is kept."""
        if not items:
            return False
        job = self.waiting.setdefault(job_id, ModelJob({}, perform_in, priority=priority))
        self.unite(job.items, items, older=True)
        if {item.payload for item in items} <= self._trim(job):
            return False
        self.forget(job_id)
        job.perform_in, job.retry_count, job.error, job.isolation = perform_in, retry_count, error, isolation
        if retry_count < 0 or (self.policies.per_run == 1 and job.first() != items[0].payload):
            job.forget_failure()
        job.priority = min(job.priority, priority)
        return True

    def put_unfinished(self, job_id: str, job: ModelJob, items: list[Item], time: float) -> None:
        """An early run that did not end is made up for."""
        back = self.put_back(job_id, items, time, job.retry_count, job.error, job.priority, job.isolation)
        may = self.policies.when_pushed_after_failure is AfterFailure.NOW
        if back and may and self.waiting[job_id].retry_count >= 0 and job.perform_in > time:
            self.early[job_id] = job.perform_in

    def bury(self, job_id: str, items: list[Item], error: bytes | None) -> None:
        self.dead += len(items)
        if items:
            dead = self.morgue.setdefault(job_id, ModelJob({}, 0.0))
            dead.error = error
            plain = [replace(item, flag="") for item in items]
            self.unite(dead.items, plain, older=False)

    def die(self, job_id: str, items: list[Item], error: bytes | None) -> None:
        """What dies in a run, or of one, holds its id under ``when_dead="hold"``."""
        self.bury(job_id, items, error)
        if items and self.policies.hold is not None:
            self.held.add(job_id)

    def settle(
        self,
        job_id: str,
        claim: int,
        disposition: Disposition,
        retry_count: int,
        perform_in: float,
        now: float,
        error: bytes,
        bad: Bad = NONE_BAD,
        isolation: Isolation = NOT_ISOLATED,
    ) -> bool:
        job = self.processing.get(job_id)
        if job is None or job.claim != claim:
            return False
        del self.processing[job_id]
        claimed = job.in_order()
        retried = self.policies.retry_priority
        items = [item for position, item in enumerate(claimed) if position not in bad]
        parts = []
        for position, item in enumerate(claimed):
            reason = bad.get(position)
            self.dropped += reason is RemovalReason.DROPPED
            if reason is RemovalReason.DONE:
                parts.append(item.score)
            elif isinstance(reason, bytes):
                self.die(job_id, [item], reason)
        self._reach(job_id, parts, [item.score for item in items])
        ran = items or any(
            bad.get(position) in (RemovalReason.OVER, RemovalReason.DONE) for position in range(len(claimed))
        )
        if not ran or (disposition is Disposition.RETURN and perform_in == now):
            self.buckets.give_back(job_id)
        if disposition is Disposition.DONE:
            self.processed += 1
            self._reach(job_id, [item.score for item in items], [])
        elif disposition is Disposition.RETURN:
            at_once = job.early and job.retry_count >= 0
            time = perform_in if perform_in != now else now if at_once else job.perform_in
            self.put_unfinished(job_id, job, items, time)
        elif disposition is Disposition.CRASH:
            self.put_unfinished(job_id, job, self._suspect(job_id, items) if items else items, now)
        else:
            self.failed += 1
        if disposition is Disposition.RETRY:
            priority = job.priority if retried is None or retry_count < 0 else retried
            self.put_back(job_id, items, perform_in, retry_count, error, priority, isolation)
        elif disposition is Disposition.DIE:
            self.die(job_id, items[:1], error)
            priority = job.priority if retried is None else self.policies.priority
            if not self.put_back(job_id, items[1:], now, -1, None, priority):
                self._start_anew(job_id, now, priority)
        elif disposition is Disposition.BURY:
            self.die(job_id, items, error)
        back = {Disposition.DONE: 0, Disposition.BURY: 0, Disposition.DIE: max(len(items) - 1, 0)}
        if disposition in back:
            leaving = claimed[: len(claimed) - back[disposition]]
            self.suspects.leave(job_id, leaving, disposition is Disposition.DONE)
        elif disposition is Disposition.RETRY and len(claimed) == 1:
            self.suspects.ran(job_id, claimed[0])
        if job_id not in self.waiting:
            self.suspects.pop(job_id, None)
        return True

    def _start_anew(self, job_id: str, now: float, priority: int) -> None:
        """Rule 5 for what a claim left of a job that failed: what came during its run has not."""
        job = self.waiting.get(job_id)
        if job is not None and job.retry_count >= 0:
            self.forget(job_id)
            job.perform_in = now
            job.forget_failure()
            job.priority = min(job.priority, priority)

    def recover(self, crashed: bool, now: float) -> None:
        """Rule 8: what the former owner left goes back; jobs that keep killing their owner lose a payload."""
        for job_id in self.in_claim_order():
            job = self.processing.pop(job_id)
            items = job.in_order()
            if crashed:
                items = self._suspect(job_id, items)
            self.put_unfinished(job_id, job, items, now)
            now += 32e-6 if job.priority else 1e-6

    def in_claim_order(self) -> list[str]:
        return sorted(self.processing, key=lambda i: (self.processing[i].claim, i.encode()))

    def _suspect(self, job_id: str, items: list[Item]) -> list[Item]:
        """Suspects run alone, then payload by payload; only deaths of a single payload count."""
        if not self.suspects.add(job_id, items, self.max_crashes):
            return items
        self.die(job_id, items, b"poison pill")
        if job_id not in self.waiting:
            del self.suspects[job_id]
        return []

    def _reach(self, job_id: str, done: Sequence[float], left: Sequence[float]) -> None:
        peak = reached(done, left, self.peaks.get(job_id))
        if self.policies.drop_stale is not None and peak is not None:
            self.peaks[job_id] = peak

    def queue_up(self, job_id: str, now: float, force: bool) -> None:
        """Rule 4. What is stale stays, unless by force."""
        if job_id not in self.morgue:
            return
        if force:
            self.peaks.pop(job_id, None)
        dead = self.morgue[job_id]
        items = self.revivable(job_id)
        for item in items:
            del dead.items[item.payload]
        if not dead.items:
            self.forget_dead(job_id)
        self.put_back(job_id, items, now, -1, None, self.policies.priority)

    def forget_dead(self, job_id: str) -> None:
        """Nothing of the id is dead any more: it goes on."""
        self.morgue.pop(job_id, None)
        self.held.discard(job_id)

    def revivable(self, job_id: str, force: bool = False) -> list[Item]:
        """Dead payloads of the id that go back to the queue."""
        items = self.morgue[job_id].in_order() if job_id in self.morgue else []
        peak = None if force else self.peaks.get(job_id)
        return items[stale([item.score for item in items], peak) :]
