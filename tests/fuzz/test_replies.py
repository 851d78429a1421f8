"""Something answers in place of Redis: only errors of the package come out, nothing hangs."""

from __future__ import annotations

import contextlib
import itertools
import time
from random import Random

import pytest
from redis._parsers import _RESP2Parser
from redis.connection import DefaultParser

from celery_lowkiq.rules.errors import LowkiqError
from celery_lowkiq.rules.leases import LeaseWatch
from celery_lowkiq.rules.models import Call, Disposition, Lease, LeaseState, QueueSpec, Settlement
from celery_lowkiq.rules.policies import TokenRequest
from celery_lowkiq.rules.topology import Kind, Topology
from celery_lowkiq.rules.views import NodeReport, NodeUpdate
from celery_lowkiq.store import listener, node_reports
from celery_lowkiq.store.actions import DEAD, queue_damages, repair_queue
from celery_lowkiq.store.call_records import CallReader
from celery_lowkiq.store.client import read_server
from celery_lowkiq.store.connect import connect
from celery_lowkiq.store.dump_load import dump_entries
from celery_lowkiq.store.health import read_state
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.resharding import Migrations
from celery_lowkiq.store.trackers import TrackerStore
from tests.bound import Actions, Diagnosis, Pausing, Queries
from tests.fuzz.node import Node
from tests.fuzz.resp import changed_reply
from tests.outages import Front
from tests.store.helpers import ONE, SHARD
from tests.store.test_wrong_types import TRACKER, a_shard_with_jobs_everywhere, a_tracker
from tests.waiting import eventually

#: Seconds until a client gives up one of its attempts.
SHORT = {"socket_timeout": 0.03, "socket_connect_timeout": 0.03}
#: Seconds for which a node is lied to, and how often.
LIES, RATE = 1.5, 0.1


class Caller:
    """Does all that workers, callers and operators do."""

    def __init__(self, path, lease, **options):
        options |= {"path": path, **SHORT}
        self._store = store = RedisStore(connect(options, pool_size=2, pool_timeout=0.2))
        self._numbers, self._lease, self._claimed = itertools.count(1), lease, ()
        queries, actions, pausing = Queries(store.client), Actions(store.client), Pausing(store.client)
        trackers, reports = TrackerStore(store.client), Diagnosis(store.client)
        self.acts = [
            *(
                self._push,
                self._claim,
                self._claim,
                self._settle,
                self._settle,
                self._acquire,
                self._renew,
                self._beat,
            ),
            *(
                self._tokens,
                self._subscribe,
                self._calls,
                lambda: store.masters([SHARD]),
                store.nodes,
                lambda: store.observe([SHARD]),
            ),
            *(lambda: store.next_due([SHARD]), lambda: store.next_due([SHARD], were_empty=[True])),
            *(lambda: store.take("ticket", "me"), lambda: store.release(Lease(SHARD, "other", 1))),
            *(lambda: store.retract_crashes(lease), lambda: queries.jobs(ONE), lambda: queries.morgue(ONE)),
            *(
                lambda: queries.processing(ONE),
                lambda: queries.job(ONE, "long"),
                lambda: queries.tries(ONE, "failed"),
            ),
            *(lambda: queries.stats(ONE), lambda: queries.paused(ONE), lambda: queries.paused_ids(ONE)),
            *(
                lambda: actions.requeue(ONE, DEAD),
                lambda: actions.bury(ONE, ["failed"], b"reason"),
                lambda: actions.run_now_all(ONE),
            ),
            *(lambda: actions.delete(ONE, ["nobody"]), lambda: actions.edit(ONE, "nobody", b"a", b"b")),
            *(
                lambda: pausing.switch_queue(ONE, paused=True),
                lambda: pausing.switch_queue(ONE, paused=False),
                lambda: pausing.switch_ids(ONE, ["nobody"], paused=True),
            ),
            *(lambda: queue_damages(store.client, ONE), lambda: repair_queue(store.client, ONE)),
            *(
                lambda: list(dump_entries(store, ONE)),
                Migrations(store.client, "orders").state,
                lambda: store.nodes(),
            ),
            *(
                lambda: reports.shards(ONE),
                lambda: node_reports.histories(store.client, [ONE]),
                lambda: queries.failure_groups(ONE),
            ),
            *(
                lambda: read_state(store.client, [ONE], Topology(Kind.SERVER, (), 10.0)),
                lambda: read_server(store.client),
            ),
            *(
                lambda: trackers.view(TRACKER),
                lambda: trackers.recent(9, None),
                lambda: trackers.open("new", 60),
            ),
            *(lambda: trackers.calls(TRACKER, [], 9, None), lambda: trackers.cancel("1" * 32)),
        ]

    def _push(self):
        job_id = f"new-{next(self._numbers)}"
        self._store.push(ONE, [Call(job_id, b"x", record=b"[]"), Call("long", b"y")], pauses=[0.0])

    def _acquire(self):
        watch = LeaseWatch(QueueSpec("orders", shards=1), SHARD, LeaseState(), known_epoch=0)
        self._store.acquire_all([watch], "other")

    def _renew(self):
        self._store.renew([self._lease, Lease(SHARD, "other", 1)], turn=next(self._numbers))

    def _claim(self):
        self._claimed = self._store.claim(ONE, self._lease, 10**6 + next(self._numbers)).jobs

    def _settle(self):
        settlements = [
            Settlement(job.id, job.claim, Disposition.RETRY, 0, 0.1, b"boom") for job in self._claimed
        ]
        self._store.settle(ONE, self._lease, settlements or [Settlement("a", 1, Disposition.DONE)])

    def _beat(self):
        report = NodeReport("w", "w 1", 1, 10.0, False, False, ("orders",), (), 1.0, 1.0, 0.0)
        self._store.beat(["orders"], "w 1", 2, next(self._numbers), NodeUpdate(report, 1.0, counted=(ONE,)))

    def _tokens(self):
        self._store.tokens(TokenRequest("orders", "me 1", next(self._numbers), 5.0, wanted=1))

    def _subscribe(self):
        with contextlib.closing(self._store.subscribe([ONE])) as subscription:
            subscription.wait_pushed(0.01)

    def _calls(self):
        for job in Queries(self._store.client).jobs(ONE).items:
            list(CallReader(self._store.client).pages(SHARD, job))


@pytest.fixture
def front(empty_redis, tmp_path):
    with Front(empty_redis, tmp_path) as front:
        yield front


@pytest.mark.random
def test_changed_replies(empty_redis, front, fuzz, monkeypatch):
    monkeypatch.setattr(listener, "SUBSCRIBE_TIMEOUT", SHORT["socket_timeout"])
    # Each attempt waits for the rest of a reply.
    monkeypatch.setattr("celery_lowkiq.store.connect.RETRIES", 1)
    store = RedisStore(connect({"path": empty_redis.socket_path}, pool_size=2, pool_timeout=5))
    a_tracker(store)
    state = a_shard_with_jobs_everywhere(store)
    caller = Caller(front.path, Lease(SHARD, "me", state.epoch, state.server))
    for act in caller.acts:
        with contextlib.suppress(LowkiqError):
            act()

    def attack(random):
        act = random.choice(caller.acts)
        rate = random.choice((1.0, 0.5))
        lies = Random(random.random())
        front.change = lambda data: changed_reply(lies, data) if lies.random() < rate else data
        with contextlib.suppress(LowkiqError):
            act()

    fuzz(attack)


@pytest.mark.parametrize("parser", [_RESP2Parser, DefaultParser], ids=["python", "installed"])
def test_arrays_in_arrays_without_end(empty_redis, front, monkeypatch, parser):
    """redis-py's own parser calls itself for each of them, and ended the worker with a RecursionError."""
    monkeypatch.setattr(listener, "SUBSCRIBE_TIMEOUT", SHORT["socket_timeout"])
    monkeypatch.setattr("celery_lowkiq.store.connect.RETRIES", 0)
    caller = Caller(front.path, Lease(SHARD, "me", 1), parser_class=parser)
    front.change = lambda data: b"*1\r\n" * 100_000 + b":1\r\n"
    for act in caller.acts:
        with contextlib.suppress(LowkiqError):
            act()


def test_a_node_survives_changed_replies(empty_redis, front, fuzz):
    """Its threads go on, and run what waits as soon as Redis answers itself."""
    node = Node(empty_redis, front.path, poll_interval=0.2)
    lies = Random(0)
    with node.engine:
        node.push("calm", first := node.ids("calm"))
        eventually(lambda: node.has_run(first))
        front.change = lambda data: changed_reply(lies, data) if lies.random() < RATE else data
        until = time.monotonic() + LIES
        while time.monotonic() < until:
            for queue in ("calm", "calls", "limited", "held"):
                node.push(queue, node.ids(queue))
        front.change = lambda data: data
        node.push("calm", last := node.ids("calm"))
        eventually(lambda: node.has_run(last) or node.engine.host.stops)
        assert not node.engine.host.stops
    node.app.close()
