"""Drives the real scripts and the plain model side by side, with lost replies and repeats."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.rules.errors import NotOwner, QueueFull
from celery_lowkiq.rules.models import (
    Call,
    Disposition,
    Layout,
    Lease,
    Merge,
    PayloadRemoval,
    QueueSpec,
    RemovalReason,
    Settlement,
    ShardRef,
)
from celery_lowkiq.rules.policies import NOT_ISOLATED, Isolation, Policies, isolated
from celery_lowkiq.rules.repairs import damages
from celery_lowkiq.rules.signatures import KeyRing
from celery_lowkiq.store.actions import DEAD
from celery_lowkiq.store.connect import connect
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.listings import Listing
from celery_lowkiq.store.push import Sender, push_call
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.repairs import Repairs
from tests.bound import Actions, Pausing, Queries
from tests.model.model import Model
from tests.model.people import IDS, PeopleRules

#: Jobs with all of their payloads: one that crashes again and again gets more than a page has.
WHOLE = Listing(payload_limit=1000)
#: Long ones make a bag spill after a few pushes.
PAYLOADS = st.sampled_from(
    [b"1", b"2", b"3", b"", b"\0\xff 5 x", b"x" * 400, b"y" * 500, b"z" * 600, b"w" * 1500]
)
SCORES = st.one_of(
    st.sampled_from([0.0, 1.0, 1.0, 2.0, -1.5, 1e300, -1e300, 5e-324, 2.0**53]),
    st.floats(allow_nan=False, allow_infinity=False),
)
#: The past is due, the far future is not, whatever the server's clock does meanwhile.
TIMES = st.sampled_from([0.0, 1.0, 2.0, 9e9])
PRIORITIES = st.sampled_from([None, 0, 3, 9])
#: Of a sender whose clock is behind that of Redis.
SENT = st.sampled_from([1.0, 2.5, 1700000000.123456])
#: The store reads only the encoded payload.
UNREAD = {"payload": st.just(""), "task_id": st.none()}
JOBS = st.one_of(
    st.builds(Call, IDS, PAYLOADS, SCORES, TIMES, priority=PRIORITIES, **UNREAD),
    st.builds(Call, IDS, PAYLOADS, st.none(), TIMES, priority=PRIORITIES, sent=SENT, **UNREAD),
)
KEYS = [KeyRing({name: name.encode() * 16}) for name in "ab"]
#: What is due is overdue, or nothing ever is.
MAX_WAITS = st.sampled_from([60.0, 1e10])
ISOLATIONS = st.sampled_from([NOT_ISOLATED, Isolation(1, 5), Isolation(2, 3), Isolation(500, 999)])
BAD = st.dictionaries(st.integers(0, 3), st.sampled_from([b"bad", *RemovalReason]), max_size=2)


@dataclass(frozen=True)
class WholeScripts(QueueSpec):
    """A queue whose scripts run all of their parts: none ends early with a policy, though this is none."""

    @property
    def policy(self) -> str:
        return super().policy or "-"


class StoreMachine(PeopleRules):
    """Times that a script takes from Redis's clock are copied from the store into the model."""

    server: EmbeddedServer
    #: Deaths after which a payload goes to the morgue.
    max_crashes = 2

    def __init__(self) -> None:
        super().__init__()
        self.client = connect({"path": self.server.socket_path}, pool_size=2, pool_timeout=5)
        self.client.flushall()
        self.store = RedisStore(self.client)
        self.queries, self.actions = Queries(self.store.client), Actions(self.store.client)
        self.pausing = Pausing(self.store.client)
        self.repairs = Repairs(self.store.client)
        self.sender = Sender()
        self.sent: list = []
        self.last_reply: object = 0
        self.shard = ShardRef("q", 0)
        self.owners = 0
        self.request = 0
        self.stale: list[Lease] = []
        self.old_claims: list[tuple[str, int]] = []

    @initialize(
        merge=st.sampled_from(list(Merge)),
        ranked=st.booleans(),
        jobs=st.lists(JOBS, min_size=1, max_size=8),
        policies=st.builds(Policies, priority_max_wait=MAX_WAITS, hold=st.sampled_from([None, 10_000])),
    )
    def begin(self, merge: Merge, ranked: bool, jobs: list[Call], policies: Policies) -> None:
        self.ranked = ranked
        self.queue = QueueSpec("q", shards=1, merge=merge, max_crashes=self.max_crashes, policies=policies)
        self.model = Model(merge.value, self.max_crashes, policies)
        self.lease = self._acquire()
        self.push(jobs, 1)

    def _acquire(self) -> Lease:
        self.owners += 1
        (seen,) = self.store.observe([self.shard])
        self.request = 0
        return self.store.acquire(self.queue, self.shard, f"owner-{self.owners}", seen, 0)

    def _limited(self, limit: int) -> QueueSpec:
        return replace(self.queue, batch_size=limit)

    def _due(self, job_id: str) -> float:
        """When a waiting job is due, held or not."""
        found = self._found_due(job_id)
        assert found is not None
        return found

    def _found_due(self, job_id: str) -> float | None:
        keys = shard_keys(self.shard)
        places = ("due", "due_prioritized", "due_paused")
        times = [self.client.zscore(keys[name], job_id.encode()) for name in places]
        assert times.count(None) >= 2, f"{job_id} lies in two places"
        return next((float(time) for time in times if time is not None), None)

    # -- what happens

    @rule(whole=st.booleans())
    def scripts_of_the_next_steps(self, whole: bool) -> None:
        """Answers and data are the same whether a script ends early or not."""
        given = {each.name: getattr(self.queue, each.name) for each in fields(QueueSpec)}
        self.queue = (WholeScripts if whole else QueueSpec)(**given)

    @rule(signer=st.sampled_from([None, *KEYS]))
    def keys_of_the_next_pushes(self, signer: KeyRing | None) -> None:
        """Of callers that sign, with one key or another, and of ones that do not."""
        self.model.signer = signer

    @rule(jobs=st.lists(JOBS, min_size=1, max_size=4), repeats=st.integers(1, 2))
    def push(self, jobs: list[Call], repeats: int) -> None:
        """A reply that was lost makes the client send the same command again."""
        jobs = jobs if self.ranked else [job._replace(priority=None) for job in jobs]
        call = push_call(self.queue, self.shard, self.sender, jobs, self.model.signer)
        if self.model.refuses(jobs):
            with pytest.raises(QueueFull):
                self.store.client.call(call)
            return
        began = self._clock()
        replies = [self.store.client.call(call) for _ in range(repeats)]
        took = self._clock() - began
        self.sent.append(call)
        gone, evicted = self.model.push(jobs, now=began)
        self._copy_times({job.id for job in jobs}, began, took)
        if not gone and not evicted:
            assert replies == [1, 0][:repeats]
        for positions, *others in replies if gone or evicted else ():
            assert [int(position) for position in positions.split()] == gone
            assert [job_id.decode() for job_id in others[::3]] == evicted
        self.last_reply = replies[0] if gone or evicted else 0

    def _clock(self) -> float:
        seconds, micros = self.client.time()
        return float(seconds + micros / 1e6)

    def _copy_times(self, ids: set[str], began: float, took: float) -> None:
        """Of jobs that are due now, or that calls have put off: of the script's clock, which is later."""
        for job_id in ids & self.model.waiting.keys():
            known = self.model.waiting[job_id]
            due = self._due(job_id)
            if known.perform_in >= began:
                assert known.perform_in - 1e-5 <= due <= known.perform_in + took + 1e-5
                known.perform_in = due
        for job_id in ids & self.model.firsts.keys():
            first, floor = self._told("debounce", job_id)
            self.model.firsts[job_id] = float(first) / 1e6, float(floor)

    def _told(self, name: str, job_id: str) -> list[bytes]:
        """Of a hash that a policy keeps."""
        return self.client.hget(shard_keys(self.shard)[name], job_id.encode()).split(b" ")

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def an_old_push_arrives_again(self, data: st.DataObject) -> None:
        call = data.draw(st.sampled_from(self.sent))
        assert self.store.client.call(call) == (self.last_reply if call is self.sent[-1] else 0)

    @rule(limit=st.integers(1, 4), repeats=st.integers(1, 2))
    def claim(self, limit: int, repeats: int) -> None:
        self.request += 1
        claims = [self.store.claim(self._limited(limit), self.lease, self.request) for _ in range(repeats)]
        # A repeated claim does not tell of calls again.
        told = [[job._replace(calls=None) for job in c.jobs] for c in claims]
        assert all(jobs == told[0] for jobs in told)
        # The last digits of a claim's number are those of the time.
        self.model.claims = max(self.model.claims, claims[0].number - 1)
        ids = self.model.claim(limit, now=claims[0].now)
        over = {job.id for job in claims[0].jobs} & self.model.held
        assert not over, f"handed out above a held payload: {over}"
        assert [job.id for job in claims[0].jobs] == ids
        self.model.claims = claims[0].number or self.model.claims
        self.old_claims += [(job.id, job.claim) for job in claims[0].jobs]
        for job in claims[0].jobs:
            known = self.model.processing[job.id]
            assert [(p.data, p.score, p.signature) for p in job.payloads] == [
                (i.payload, i.score, i.signature) for i in known.in_order()
            ]
            assert (job.retry_count, job.error) == (known.retry_count, known.error)
            assert (job.unwanted, job.early) == (known.unwanted, known.early)
            assert (job.priority, job.isolation) == (known.priority, known.isolation)
            assert job.perform_in == pytest.approx(known.perform_in, abs=1e-5)

    @precondition(lambda self: self.request > 1)
    @rule(back=st.integers(1, 3))
    def an_old_claim_arrives_again(self, back: int) -> None:
        if self.request - back > 0:
            assert self.store.claim(self.queue, self.lease, self.request - back).jobs == ()

    @precondition(lambda self: self.old_claims)
    @rule(
        data=st.data(),
        disposition=st.sampled_from(list(Disposition)),
        retry_count=st.integers(0, 3),
        delay=st.sampled_from([0.0, 1e6]),
        bad=BAD,
        isolation=ISOLATIONS,
        repeats=st.integers(1, 2),
    )
    def settle(
        self,
        data: st.DataObject,
        disposition: Disposition,
        retry_count: int,
        delay: float,
        bad: dict[int, bytes | RemovalReason],
        isolation: Isolation,
        repeats: int,
    ) -> None:
        """Of what is in processing, or of any claim ever made: most of them are over, and change nothing."""
        running = [(job_id, job.claim) for job_id, job in self.model.processing.items()]
        claims = [running, self.old_claims[-6:]] if running else [self.old_claims[-6:]]
        job_id, claim = data.draw(st.one_of(*map(st.sampled_from, claims)))
        self._settle(job_id, claim, disposition, retry_count, delay, bad, repeats, isolation)

    def _settle(
        self,
        job_id: str,
        claim: int,
        disposition: Disposition,
        retry_count: int,
        delay: float,
        bad: dict[int, bytes | RemovalReason],
        repeats: int,
        isolation: Isolation = NOT_ISOLATED,
    ) -> None:
        parts = tuple(
            PayloadRemoval(position, None, reason)
            if isinstance(reason, RemovalReason)
            else PayloadRemoval(position, reason)
            for position, reason in bad.items()
        )
        told = (job_id, claim, disposition, retry_count, delay, b"boom", parts)
        settlement = Settlement(*told, try_text=b"boom", isolation=isolation)
        known = self.model.processing.get(job_id)
        if known is not None and known.claim == claim and known.early and disposition is Disposition.RETRY:
            settlement = settlement._replace(retry_count=known.retry_count, perform_in=known.perform_in)
        if disposition is Disposition.CRASH:
            # As ``crash_batch`` makes it: a crash says nothing of a try, or of the job's next batch.
            about = {"retry_count": self.max_crashes, "error": self.queue.poison_error}
            settlement = settlement._replace(**about, try_text=b"", isolation=NOT_ISOLATED)
        settled = [self.store.settle(self.queue, self.lease, [settlement]) for _ in range(repeats)]
        assert not any(repeat.accepted for repeat in settled[1:])
        now = settled[0].now
        time = settlement.perform_in or now + delay
        outcome = (disposition, settlement.retry_count, time, now, b"boom", bad, isolation)
        accepted = self.model.settle(job_id, claim, *outcome)
        assert settled[0].accepted == ({job_id} if accepted else set())

    @rule(
        limit=st.integers(1, 4),
        disposition=st.sampled_from(list(Disposition)),
        delay=st.sampled_from([0.0, 1e6]),
    )
    def run(self, limit: int, disposition: Disposition, delay: float) -> None:
        """Claim and settle, as most often happens."""
        self.claim(limit, 1)
        jobs = self.model.processing
        batch = [job_id for job_id in self.model.in_claim_order() if jobs[job_id].claim == self.model.claims]
        for job_id in batch:
            isolation = isolated(jobs[job_id].isolation, len(batch))
            self._settle(job_id, jobs[job_id].claim, disposition, 0, delay, {}, 1, isolation)

    @rule(limit=st.integers(1, 4), repeats=st.integers(1, 2))
    def run_well(self, limit: int, repeats: int) -> None:
        """Claim, and settle all jobs together."""
        self.claim(limit, 1)
        claim = self.model.claims
        batch = [job_id for job_id, job in self.model.processing.items() if job.claim == claim]
        done = [Settlement(job_id, claim, Disposition.DONE) for job_id in batch]
        if not done:
            return
        replies = [self.store.settle(self.queue, self.lease, done) for _ in range(repeats)]
        assert [reply.accepted for reply in replies] == [frozenset(batch), frozenset()][:repeats]
        for job_id in batch:
            outcome = (Disposition.DONE, 0, replies[0].now, replies[0].now, b"", {}, NOT_ISOLATED)
            assert self.model.settle(job_id, claim, *outcome)

    @rule()
    def an_acquire_is_repeated(self) -> None:
        """Its reply was lost; nothing is recovered a second time."""
        (seen,) = self.store.observe([self.shard])
        again = self.store.acquire(self.queue, self.shard, self.lease.owner, seen, 0)
        assert again == self.lease

    @rule(stopping=st.booleans())
    def another_owner_takes_over(self, stopping: bool) -> None:
        self.store.renew([self.lease], stopping=stopping)
        self.stale.append(self.lease)
        before = self.lease
        self.lease = self._acquire()
        assert self.lease.epoch > before.epoch
        self.old_claims = self.old_claims[-3:]
        self.model.recover(crashed=not stopping, now=self._recovered_at())

    @rule(limit=st.integers(1, 4), scores=st.permutations([1.0, 2.0, 3.0]), crashes=st.integers(1, 3))
    def crash_while_it_is_called_again(self, limit: int, scores: list[float], crashes: int) -> None:
        """Payloads that are in processing at a crash come again, before and after new ones."""
        for _ in range(crashes):
            self.claim(limit, 1)
            before, again, after = (self.owners * 10 + score for score in scores)
            calls = [
                Call(job_id, payload, score, 1.0)
                for job_id, job in self.model.processing.items()
                for payload, score in [
                    (b"%d before" % self.owners, before),
                    *((payload, again) for payload in job.items),
                    (b"%d after" % self.owners, after),
                ]
            ]
            if calls:
                self.push(calls, 1)
            self.another_owner_takes_over(stopping=False)

    def _recovered_at(self) -> float:
        """Redis's clock at the takeover; jobs after the first got a bit more."""
        return float(self.client.hget(shard_keys(self.shard)["lease"], "since"))

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def a_former_owner_is_refused(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.stale))
        assert self.store.renew([lease]) == [False]
        job_id, claim = self.old_claims[-1] if self.old_claims else ("a", 1)
        for refused in (
            lambda: self.store.claim(self.queue, lease, 999),
            lambda: self.store.settle(self.queue, lease, [Settlement(job_id, claim, Disposition.DONE)]),
            lambda: self.store.release(lease),
        ):
            try:
                refused()
            except NotOwner:
                continue
            raise AssertionError("a former owner was obeyed")

    @rule()
    def release_and_take_again(self) -> None:
        released = self.store.release(self.lease)
        assert released == (not self.model.processing)
        if released:
            assert self.store.release(self.lease)
            self.stale.append(self.lease)
            self.lease = self._acquire()

    @rule()
    def leave_all_unsettled_and_take_again(self) -> None:
        """As a process does whose end cannot wait for its batches: no job counts as crashed."""
        assert self.store.release(self.lease, unsettled=True)
        self.stale.append(self.lease)
        self.lease = self._acquire()
        self.old_claims = self.old_claims[-3:]
        self.model.recover(crashed=False, now=self._recovered_at())

    # -- what must hold

    @invariant()
    def the_keys_of_the_shard_agree(self) -> None:
        """What claims take for damage when it is not so."""
        if hasattr(self, "lease"):
            (found,) = self.repairs.conditions([self.shard])
            assert damages(found, Layout(1)) == ()

    @invariant()
    def the_store_is_as_the_model_says(self) -> None:
        if not hasattr(self, "lease"):
            return
        jobs = {job.id: job for job in self.queries.jobs(self.queue, WHOLE).items}
        assert jobs.keys() == self.model.waiting.keys()
        for job_id, job in jobs.items():
            known = self.model.waiting[job_id]
            assert [(p.data, p.score, p.signature) for p in job.payloads] == [
                (i.payload, i.score, i.signature) for i in known.in_order()
            ]
            assert (job.retry_count, job.error, job.payload_count) == (
                known.retry_count,
                known.error,
                len(known.items),
            )
            assert abs(job.perform_in - known.perform_in) < 1e-5
            assert (job.paused, job.held) == (job_id in self.model.paused, job_id in self.model.held)
            assert job.priority == known.priority
            assert job.isolation == known.isolation
        dead = {job.id: job for job in self.queries.morgue(self.queue, WHOLE).items}
        assert {i: [(p.data, p.score, p.signature) for p in d.payloads] for i, d in dead.items()} == {
            i: [(m.payload, m.score, m.signature) for m in d.in_order()] for i, d in self.model.morgue.items()
        }
        assert {i: d.error for i, d in dead.items()} == {i: d.error for i, d in self.model.morgue.items()}
        busy = self.queries.processing(self.queue).items
        assert {job.id for job in busy} == self.model.processing.keys()
        stats = self.queries.stats(self.queue)
        assert (stats.processed, stats.failed) == (self.model.processed, self.model.failed)
        assert (stats.merged, stats.dead) == (self.model.merged, self.model.dead)
        assert stats.dropped == self.model.dropped
        assert stats.calls == sum(len(job.items) for job in self.model.waiting.values())
        assert {i: float(told[1]) for i, told in self._all("debounce").items()} == {
            i: floor for i, (_, floor) in self.model.firsts.items()
        }
        assert {i: float(told[0]) for i, told in self._all("early_due").items()} == pytest.approx(
            self.model.early, abs=1e-5
        )
        assert {i: float(told[0]) for i, told in self._all("done_scores").items()} == self.model.peaks
        retries = sum(job.retry_count >= 0 for job in self.model.waiting.values())
        assert (stats.length, stats.retries, stats.fresh) == (len(jobs), retries, len(jobs) - retries)
        assert (stats.busy, stats.morgue_length) == (len(busy), len(dead))
        paused_jobs = sum(job.paused or job.held for job in jobs.values())
        assert (stats.paused_jobs, stats.paused) == (paused_jobs, bool(self.model.pauses))
        paused = {paused.id for paused in self.queries.paused_ids(self.queue).items}
        held = self.queries.held_ids(self.queue).items
        assert stats.paused_ids == len(self.model.paused)
        assert paused | {one.id for one in held if one.paused} == self.model.paused
        assert {one.id for one in held} == self.model.held
        assert (stats.held, stats.held_for > 0) == (len(held), bool(held))
        (due,) = self.store.next_due([self.shard])
        assert due.next_due == self._near(self.model.next_due())

    def _all(self, name: str) -> dict[str, list[bytes]]:
        found = self.client.hgetall(shard_keys(self.shard)[name])
        return {job_id.decode(): told.split(b" ") for job_id, told in found.items()}

    def _near(self, due: float | None) -> object:
        return None if due is None else pytest.approx(due, abs=1e-5)

    def teardown(self) -> None:
        if hasattr(self, "lease"):
            self._drain()
            left = {
                key
                for name in self._keys_of_jobs()
                if self.client.exists(key := shard_keys(self.shard)[name])
            }
            assert not left, f"keys left after a drain: {left}"
        self.client.connection_pool.disconnect()

    def _drain(self) -> None:
        self.lease = self._acquire()
        self.actions.delete(self.queue, list(self.model.waiting) + list(self.model.processing))
        self.actions.delete_dead(self.queue, DEAD)
        assert {one.id for one in self.queries.held_ids(self.queue).items} <= self.model.held
        self.pausing.switch_ids(self.queue, self.model.paused, paused=False)
        self.pausing.switch_holds(self.queue, self.model.held, held=False)

    def _keys_of_jobs(self) -> set[str]:
        from celery_lowkiq.store.keys import SHARD_KEYS

        # Records go with their results, and marks with their time.
        kept = "lease meta senders crash_marks calls done_scores buckets"
        return set(SHARD_KEYS) - set(kept.split())
