"""R13: bytes that are no payload end in the morgue with the reason, wherever they lie; the work goes on."""

from __future__ import annotations

import itertools
import pickle

import pytest
from celery import Celery
from hypothesis import example, given, settings
from hypothesis import strategies as st

from celery_lowkiq import ordered_task
from celery_lowkiq.integration.codec import MARK, Codec
from celery_lowkiq.rules.errors import UndecodablePayload
from celery_lowkiq.rules.models import Call
from celery_lowkiq.store.keys import KEY_TYPES, shard_keys
from tests.bound import Queries
from tests.waiting import eventually
from tests.worker.celery_runner import celery_runner
from tests.worker.engine import QUEUE, Engine

#: What ended a worker of plain Celery, or was a danger to it.
KNOWN = [
    b"garbage",
    b"null",
    b"[]",
    b"[" * 100_000,
    b"\xff\xfe\0",
    b"{}",
    pickle.dumps({"a": 1}),
    b"@@@=",
    b"",
    # P8: larger than any call could have stored.
    b'"%s"' % (b"x" * 2_000_000),
]
VALID = [
    b'{"a":[1,"\xc3\xa9"]}',
    b'{"__type__":"datetime","__value__":"2020-01-01T00:00:00"}',
    b'{"__type__":"uuid","__value__":{"hex":"0"}}',
    MARK + b"application/json\0utf-8\0[1]",
    MARK + b"application/x-python-serialize\0binary\0" + pickle.dumps(1),
]
_numbers = itertools.count()


@st.composite
def mutated(draw):
    data = bytearray(draw(st.sampled_from(VALID)))
    at = draw(st.integers(0, len(data) - 1))
    data[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(data)


def as_record(data):
    return b"1 %d %s" % (len(data), data)


def waiting(plant, job_id, data):
    plant("jobs", {job_id: as_record(data)})
    plant("due", {job_id: 1.0})


def spilled(plant, job_id, data):
    place = b"bff0000000000000" + b"800000000000" + b"1\0"
    plant("jobs", {job_id: b"S"})
    plant("spill", {job_id + b"\0" + data: place})
    plant("spill_order", {job_id + b"\0" + place + data: 0.0})
    plant("due", {job_id: 1.0})


def processing(plant, job_id, data):
    plant("processing", {job_id: b"0 1 -1 0 " + as_record(data)})
    plant("claimed", {job_id: 0.0})


class Node:
    """An engine that runs a task through Celery's tracer, and what its function got."""

    def __init__(self, server):
        self.got = {}
        app = Celery("hostile", broker=server.url, set_as_current=False)

        @ordered_task(app=app, shared=False, name=QUEUE.name)
        def task(payloads_by_id):
            self.got.update(payloads_by_id)

        app.finalize()
        runner = celery_runner(app, server.socket_path)
        # Nobody announces what is planted.
        self.engine = Engine(server, runner=runner, poll_interval=0.02)
        self.store = self.engine.pushes

    def plant(self, shard, name, values):
        client, key = self.store.client.servers.redis, shard_keys(shard)[name]
        change = client.zadd if KEY_TYPES[name] == "zset" else client.hset
        change(key, mapping=values)

    def push_to_all_shards(self):
        """Ids of good jobs, one at least for each shard."""
        ids = [f"good-{next(_numbers)}" for _ in range(16)]
        self.store.push(QUEUE, [Call(job_id, b'"good"') for job_id in ids])
        return ids

    def idle(self):
        stats = Queries(self.store.client).stats(QUEUE)
        return stats.length == stats.busy == 0


@pytest.fixture(scope="module")
def node(redis_server):
    node = Node(redis_server)
    node.store.client.servers.redis.flushall()
    with node.engine:
        node.push_to_all_shards()
        eventually(node.idle)
        yield node


def undecodable(data):
    try:
        Codec("json", ["json"], 65536).load_verified(data)
    except UndecodablePayload:
        return True
    return False


# The node's threads draw from random while Hypothesis thinks that only it does.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
@given(st.lists(st.binary(max_size=64) | mutated() | st.sampled_from(VALID), min_size=1, max_size=8))
@example(KNOWN)
@settings(max_examples=100)
def test_a_worker_survives_hostile_bytes(node, planted):
    bad, good = {}, {}
    shards = QUEUE.shard_refs()
    for data, place in itertools.product(planted, (waiting, spilled, processing)):
        number = next(_numbers)
        job_id = f"{place.__name__}-{number}"
        (bad if undecodable(data) else good)[job_id] = data
        place(lambda *what, s=shards[number % 4]: node.plant(s, *what), job_id.encode(), data)
    pushed = node.push_to_all_shards()
    eventually(lambda: set(pushed) <= set(node.got) and node.idle())
    buried = {}
    for shard in shards:
        keys = shard_keys(shard)
        errors = node.store.client.servers.redis.hgetall(keys["dead_errors"])
        buried |= {job_id.decode(): error for job_id, error in errors.items()}
    assert set(buried) >= set(bad)
    assert not set(buried) & set(good)
    assert all(buried[job_id].startswith(b"undecodable payload: ") for job_id in bad)
    assert set(good) <= set(node.got)
    assert node.engine.host.stops == []
