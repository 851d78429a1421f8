"""O6: each key of a shard is deleted under load: no innocent call is lost, no innocent shard stops."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter

import pytest
import redis

from celery_lowkiq.rules.errors import ShardDamaged
from celery_lowkiq.rules.models import Call, Disposition, Settlement, ShardRef, shard_of
from celery_lowkiq.store.actions import repair_queue
from celery_lowkiq.store.keys import SHARD_KEYS, shard_keys
from tests.bound import Pausing
from tests.waiting import eventually
from tests.worker.engine import QUEUE, Engine

DAMAGED = ShardRef(QUEUE.name, 1)
OF_DAMAGED = next(str(n) for n in range(200, 300) if shard_of(str(n), QUEUE.shards) == DAMAGED.index)
#: What holds the payloads of jobs: the only keys whose loss may lose some.
HOLDERS = {"jobs", "processing"}
LOST = re.compile(r"(\d+) (?:waiting|processing|dead) jobs are LOST")


class Runs:
    """Each run takes a moment; the first of an id ending in 7 fails. Remembers ids, and who ran at once."""

    def __init__(self):
        self.done = Counter()
        self.at_once = []
        self._failed = set()
        self._running = set()
        self._lock = threading.Lock()

    def run(self, batch):
        with self._lock:
            if batch.shard in self._running:
                self.at_once.append(batch.shard)
            self._running.add(batch.shard)
        time.sleep(0.002)
        settlements = []
        with self._lock:
            self._running.discard(batch.shard)
            for job in batch.jobs:
                if job.id.endswith("7") and job.id not in self._failed:
                    self._failed.add(job.id)
                    settlements.append(
                        Settlement(job.id, job.claim, Disposition.RETRY, 0, 0.1, b"boom", try_text=b"boom")
                    )
                else:
                    self.done[job.id] += 1
                    settlements.append(Settlement(job.id, job.claim, Disposition.DONE))
        return tuple(settlements)

    def flush(self):
        return ()

    def write_late(self):
        pass

    def settled(self, batch, accepted):
        pass


@pytest.fixture
def client(redis_server):
    with redis.Redis(unix_socket_path=redis_server.socket_path) as client:
        client.flushall()
        yield client


def load(engine, count, first):
    """Short jobs and long ones, some with a priority."""
    ids = [str(first + n) for n in range(count)]
    jobs = [Call(job_id, b"x", priority=5 if int(job_id) % 5 == 0 else None) for job_id in ids]
    long = [Call(job_id, b"%04d" % n * 20, float(n)) for job_id in ids[::10] for n in range(30)]
    engine.pushes.push(QUEUE, jobs + long)
    return ids


@pytest.mark.parametrize("key", SHARD_KEYS)
def test_a_key_is_deleted_under_load(redis_server, client, caplog, key):
    runs, pushed = Runs(), []
    with Engine(redis_server, runner=runs) as engine:
        eventually(lambda: client.hget(shard_keys(DAMAGED)["lease"], "owner"))
        Pausing(engine.pushes.client).switch_ids(QUEUE, ["3", "5"], paused=True)
        for turn in range(6):
            pushed += load(engine, 100, 100 * turn)
            before = sum(runs.done.values())
            client.delete(shard_keys(DAMAGED)[key])
            eventually(lambda before=before: sum(runs.done.values()) > before)
        Pausing(engine.pushes.client).switch_ids(QUEUE, ["3", "5"], paused=False)

        def lost():
            return sum(int(count) for count in LOST.findall(caplog.text))

        def gone():
            return {job_id for job_id in pushed if not runs.done[job_id]}

        eventually(lambda: len(gone()) <= lost() and is_empty(client), 30)
        assert {shard_of(job_id, QUEUE.shards) for job_id in gone()} <= {DAMAGED.index}
    assert key in HOLDERS or lost() == 0
    assert not runs.at_once


def is_empty(client):
    names = ("jobs", "due", "due_prioritized", "due_paused", "claimed", "processing", "spill_order")
    return not client.exists(*(shard_keys(shard)[name] for shard in QUEUE.shard_refs() for name in names))


#: Lanes skip the shard for 5 s when one of the last is damaged.
SKIPPED = [pytest.param(key, marks=pytest.mark.full) for key in ("claimed", "spill", "failed")]


@pytest.mark.parametrize("key", ["lease", "meta", "due", "jobs", "dead", *SKIPPED])
def test_a_key_of_another_type_stops_one_shard_until_it_is_repaired(redis_server, client, caplog, key):
    """O6: the others are served meanwhile; the caller or the log is told of the command. Meta is repaired."""
    runs = Runs()
    with Engine(redis_server, runner=runs) as engine:
        pushed = load(engine, 40, 0)
        eventually(lambda: is_empty(client))
        client.delete(shard_keys(DAMAGED)[key])
        client.set(shard_keys(DAMAGED)[key], "planted")
        others = [str(n) for n in range(100, 200) if shard_of(str(n), QUEUE.shards) != DAMAGED.index]
        engine.pushes.push(QUEUE, [Call(job_id, b"x") for job_id in others])
        told = ""
        try:
            engine.pushes.push(QUEUE, [Call(OF_DAMAGED, b"x")])
            pushed.append(OF_DAMAGED)
        except ShardDamaged as error:
            told = str(error)
        eventually(lambda: all(runs.done[job_id] for job_id in others))
        if key == "meta":
            eventually(lambda: "shard q/1 was repaired" in caplog.text)
        else:
            eventually(lambda: "celery -A proj lowkiq repair q" in told + caplog.text, 30)
        repair_queue(engine.pushes.client, QUEUE)
        pushed += load(engine, 40, 300)
        eventually(lambda: all(runs.done[job_id] for job_id in pushed), 30)
    assert not runs.at_once


def test_a_damaged_shard_delays_the_polls_of_no_other_one(redis_server, client, caplog):
    """A job whose announcement was lost waited for 5 s instead of a poll."""
    runs, other = Runs(), shard_keys(ShardRef(QUEUE.name, 2))
    with Engine(redis_server, runner=runs, lanes=1, poll_interval=0.1) as engine:
        engine.pushes.push(QUEUE, [Call(OF_DAMAGED, b"x", perform_in=9e9)])
        eventually(lambda: client.hget(shard_keys(DAMAGED)["lease"], "owner"))
        client.delete(shard_keys(DAMAGED)["due"])
        client.set(shard_keys(DAMAGED)["due"], "planted")
        eventually(lambda: "shard q/1 is skipped for 5 s" in caplog.text)
        for number in range(5):
            client.hset(other["jobs"], f"silent-{number}", b"1 1 x")
            client.zadd(other["due"], {f"silent-{number}": 1})
            eventually(lambda number=number: runs.done[f"silent-{number}"], 2)
        assert caplog.text.count("shard q/1 is skipped") == 1
        client.delete(shard_keys(DAMAGED)["due"])


def test_a_meta_that_was_lost_before_a_worker_starts_stops_nobody(redis_server, client, caplog):
    """O6: its own shard is served, too, and so are the shards after it; callers of the shard go on."""
    runs, ids = Runs(), [str(n) for n in range(40)]
    engine = Engine(redis_server, runner=runs)
    engine.pushes.push(QUEUE, [Call(job_id, b"x") for job_id in ids])
    client.delete(shard_keys(DAMAGED)["meta"])
    with engine:
        eventually(lambda: all(runs.done[job_id] for job_id in ids))
        engine.pushes.push(QUEUE, [Call(OF_DAMAGED, b"x")])
        eventually(lambda: runs.done[OF_DAMAGED])
    (told,) = [record for record in caplog.records if "shard q/1 was repaired" in record.getMessage()]
    assert told.levelname == "WARNING"
    assert "is not served" not in caplog.text
