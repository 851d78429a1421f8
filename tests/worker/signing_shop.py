"""An app that signs, its worker, and Redis as somebody sees it who can write all keys."""

from __future__ import annotations

import itertools
import json

import redis

from celery_lowkiq.rules.models import ShardRef, shard_of
from celery_lowkiq.store.keys import shard_keys
from tests.waiting import eventually
from tests.worker.nodes import worker
from tests.worker.signing_proj import make_app

LATER = 3600
HONEST = {"amount": 10, "to": "anna"}
FORGED = {"amount": 1_000_000, "to": "mallory"}
HEAD = 24
CHANGED = "it is not what was signed: its queue, id, score or bytes were changed"
_numbers = itertools.count()


def dumped(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


class Shop:
    """An app in this process, its worker in another, and Redis as an attacker sees it."""

    def __init__(self, server, directory):
        self.server = server
        self.ledger = directory / "ledger"
        self.evil = directory / "evil"
        self.app = make_app(server.url)
        self.tasks = self.app.tasks
        self.client = redis.Redis(unix_socket_path=server.socket_path)
        env = {"SIGNING_URL": server.url, "SIGNING_LEDGER": self.ledger, "C_FORCE_ROOT": 1}
        env["SIGNING_SETTINGS"] = json.dumps({"lowkiq_links": ["receipt", "p*"]})
        self.node = worker(self.app, directory / "log", module="tests.worker.signing_proj", **env)
        eventually(lambda: self.node.ready() or self.node.container.status == "exited")
        assert self.node.ready(), self.node.logs()

    def new_id(self):
        return f"order-{next(_numbers)}"

    def key(self, queue, job_id, name):
        return shard_keys(ShardRef(queue, shard_of(job_id, 2)))[name]

    def call(self, job_id, value=HONEST, queue="pay", **options):
        options = {"countdown": LATER, "ignore_result": True, **options}
        return self.tasks[queue].apply_async((job_id, value), **options)

    def record(self, job_id, queue="pay"):
        return self.client.hget(self.key(queue, job_id, "jobs"), job_id)

    def write(self, job_id, record, queue="pay"):
        self.client.hset(self.key(queue, job_id, "jobs"), job_id, record)
        self.client.zadd(self.key(queue, job_id, "due"), {job_id: 1})

    def change(self, job_id, old, new, queue="pay"):
        record = self.record(job_id, queue)
        assert old in record
        self.write(job_id, record.replace(old, new), queue)

    def change_call(self, job_id, change, queue="pay"):
        """The record of the only call of an id, without its signature, by ``change``."""
        key = self.key(queue, job_id, "calls")
        (member,) = self.client.zrangebylex(key, b"[%b\0" % job_id.encode(), b"(%b\1" % job_id.encode())
        start = len(job_id) + 1 + 10 + 12
        self.client.zrem(key, member)
        self.client.zadd(key, {member[:start] + change(member[start:]): 0})

    def ran(self, job_id, queue="pay"):
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        found = map(json.loads, lines)
        return [payload for task, of, payload in found if (task, of) == (queue, job_id)]

    def dead(self, job_id, queue="pay"):
        return self.tasks[queue].ordered_queue.raw().job(job_id).dead

    def run(self, job_id, queue="pay"):
        self.tasks[queue].ordered_queue.run_now([job_id])

    def buries(self, job_id, reason, queue="pay"):
        """The worker does not run the id, says why, and goes on with others of the shard."""
        shard = shard_of(job_id, 2)
        neighbour = next(n for n in iter(self.new_id, None) if shard_of(n, 2) == shard)
        self.call(neighbour, queue=queue, countdown=None)
        dead = eventually(lambda: self.dead(job_id, queue), 30)
        assert dead.error == f"unverified payload: {reason}"
        eventually(lambda: self.ran(neighbour, queue), 30)
        assert self.ran(job_id, queue) == []
        assert f"queue {queue}, job {job_id!r}: payload 0 goes to the morgue: {reason}" in self.node.logs()
        return dead

    def refuses_record(self, job_id, reason=CHANGED, queue="pay", ran=None):
        """The payload runs, without what its record asked for."""
        eventually(lambda: self.ran(job_id, queue), 30)
        assert ran is None or self.ran(job_id, queue) == [ran]
        text = f"a record of a call of {queue} is refused, and its call gets no result: {reason}"
        eventually(lambda: text in self.node.logs(), 30)
