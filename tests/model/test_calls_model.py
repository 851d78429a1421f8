"""Calls with and without records, equal payloads, failures, deaths: no record is lost or given twice."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from celery_lowkiq.rules.models import Call, Disposition, PayloadRemoval, Recorded, Settlement
from celery_lowkiq.store.call_records import CallReader
from celery_lowkiq.store.connect import connect
from celery_lowkiq.store.keys import shard_keys
from celery_lowkiq.store.redis_store import RedisStore
from tests.bound import Actions
from tests.store.helpers import ONE, SHARD, claim, take

IDS = st.sampled_from(["1", "2"])
#: Long ones make a bag spill.
PAYLOADS = st.sampled_from([b"a", b"b", b"c" * 700, b"d" * 700])


class CallsMachine(RuleBasedStateMachine):
    """The store beside sets of (task id, whether recorded) by id and payload."""

    server = None

    @initialize()
    def start(self):
        self.client = connect({"path": self.server.socket_path}, pool_size=4, pool_timeout=5)
        self.client.flushall()
        self.store = RedisStore(self.client)
        self.reader = CallReader(self.store.client)
        self.names = iter(range(10_000))
        self.owner = 0
        #: By id and payload: task ids of calls, None for one without a record.
        self.waiting = defaultdict(list)
        self.processing = {}
        self.ended = set()
        self.store.push(ONE, [Call("x", b"registers")])
        self.take_over()
        self.finish("x", b"registers")

    def finish(self, job_id, payload):
        (job,) = claim(self.store, self.lease).jobs
        assert (job.id, job.payloads[0].data) == (job_id, payload)
        self.store.settle(ONE, self.lease, [Settlement(job_id, job.claim, Disposition.DONE)])

    def teardown(self):
        if hasattr(self, "client"):
            self.client.connection_pool.disconnect()

    @rule(job_id=IDS, payload=PAYLOADS, recorded=st.lists(st.booleans(), min_size=1, max_size=4))
    def push(self, job_id, payload, recorded):
        names = [f"call {next(self.names)}" if kept else None for kept in recorded]
        jobs = [Call(job_id, payload, 1.0, 1.0, record=name and name.encode()) for name in names]
        self.store.push(ONE, jobs)
        self.waiting[job_id, payload] += names

    @rule()
    def claim(self):
        jobs = claim(self.store, self.lease).jobs
        for job in jobs:
            assert job.id not in self.processing
            known = {payload: names for (i, payload), names in self.waiting.items() if i == job.id and names}
            assert {p.data for p in job.payloads} == known.keys()
            for payload in job.payloads:
                assert payload.recorded is flag(known[payload.data])
                del self.waiting[job.id, payload.data]
            self.processing[job.id] = (job, known)

    @precondition(lambda self: self.processing)
    @rule(payload=PAYLOADS, recorded=st.booleans())
    def push_on_what_is_processed(self, payload, recorded):
        for job_id in self.processing:
            self.push(job_id, payload, [recorded])

    @precondition(lambda self: self.processing)
    @rule(
        disposition=st.sampled_from(
            [Disposition.DONE, Disposition.RETRY, Disposition.RETURN, Disposition.DIE, Disposition.BURY]
        )
    )
    def settle(self, disposition):
        job, known = self.processing.pop(min(self.processing))
        over = {
            Disposition.DONE: job.payloads,
            Disposition.BURY: job.payloads,
            Disposition.DIE: job.payloads[:1],
        }.get(disposition, ())
        self.end(job, known, {payload.data for payload in over}, disposition)

    @precondition(lambda self: self.processing)
    @rule()
    def drop_a_payload(self):
        job, known = self.processing.pop(max(self.processing))
        self.end(job, known, {job.payloads[0].data}, Disposition.RETURN, (PayloadRemoval(0, None),))

    def end(self, job, known, over, disposition, bad=()):
        keys = [
            (call.key, call.key)
            for page in self.reader.pages(SHARD, job._replace(calls=None))
            for call in page
            if job.payloads[call.payload].data in over
        ]
        self.store.settle(
            ONE, self.lease, [Settlement(job.id, job.claim, disposition, ended=tuple(keys), bad=bad)]
        )
        for payload, names in known.items():
            if payload in over:
                self.ended |= {name for name in names if name}
            else:
                self.waiting[job.id, payload] += names

    @rule()
    def take_over(self):
        """Its former owner was stopping, so no job is a suspect."""
        if self.owner:
            self.store.renew([self.lease], stopping=True)
        self.owner += 1
        self.lease = take(self.store, owner=f"owner {self.owner}")
        for job, known in self.processing.values():
            for payload, names in known.items():
                self.waiting[job.id, payload] += names
        self.processing.clear()

    @rule(job_id=IDS)
    def delete(self, job_id):
        left = []
        Actions(self.store.client, lambda calls, dead: left.extend(c.data.decode() for c in calls)).delete(
            ONE, [job_id]
        )
        gone = [name for (i, _), names in self.waiting.items() if i == job_id for name in names if name]
        assert sorted(left) == sorted(gone)
        self.ended |= set(gone)
        self.waiting = defaultdict(list, {key: v for key, v in self.waiting.items() if key[0] != job_id})

    @invariant()
    def no_record_is_lost_and_none_is_left_over(self):
        if not hasattr(self, "waiting"):
            return
        members = self.client.zrange(shard_keys(SHARD)["calls"], 0, -1)
        stored = sorted(member[member.rindex(b"call ") :].decode() for member in members)
        held = [recorded(known) for _, known in self.processing.values()]
        alive = [name for names in self.waiting.values() for name in names if name]
        assert stored == sorted([*alive, *(name for names in held for name in names)])
        assert not self.ended & set(stored)

    @invariant()
    def what_is_read_of_a_claim_is_what_it_took(self):
        """Whatever came or went meanwhile."""
        for job, known in getattr(self, "processing", {}).values():
            for told in (job, job._replace(calls=None)):
                calls = [call for page in self.reader.pages(SHARD, told) for call in page]
                assert sorted(call.data.decode() for call in calls) == recorded(known)
                order = [(call.payload, call.key) for call in calls]
                assert order == sorted(order), "calls end in the order of their payloads"


def recorded(known):
    return sorted(name for names in known.values() for name in names if name)


def flag(names):
    kept = [name is not None for name in names]
    return Recorded.ALL if all(kept) else Recorded.SOME if any(kept) else Recorded.NONE


@pytest.mark.random
def test_calls_follow_their_payloads(redis_server, rounds):
    machine = type("Machine", (CallsMachine,), {"server": redis_server})
    for count in rounds(150):
        run_state_machine_as_test(machine, settings=settings(max_examples=count, stateful_step_count=40))
