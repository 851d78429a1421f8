"""S1: a worker of an app that accepts signed content only, and what others wrote for it."""

from __future__ import annotations

import base64
import gc
import json
import os
import pickle
import re

import msgpack
import pytest
import redis
import yaml
from celery import Celery
from kombu import Connection, serialization

from celery_lowkiq import ordered_task
from celery_lowkiq.integration.codec import MARK
from celery_lowkiq.rules.errors import BadDump, UndecodablePayload
from celery_lowkiq.rules.models import ShardRef
from celery_lowkiq.store.keys import shard_keys
from tests.processes import ROOT
from tests.signing import make_identity
from tests.waiting import eventually
from tests.worker.nodes import worker

PROJECT = """
import json

from tests.worker.test_signed_payloads import make_app

app, pay = make_app(**json.loads(%r))
"""
VALUE = {"amount": 10, "to": "anna"}


@pytest.fixture(autouse=True)
def no_result_outlives_its_server(redis_server):
    """An AsyncResult that ends after its server would look for it in vain."""
    yield
    gc.collect()


def make_app(ledger, **settings):
    app = Celery("signed", set_as_current=False)
    app.conf.update(settings, accept_content=["auth"], task_serializer="auth", result_serializer="auth")
    app.conf.update(lowkiq_serializer="auth", lowkiq_poll_interval=0.1)
    app.setup_security()

    @ordered_task(app=app, shared=False, name="pay", shards=1)
    def pay(payloads_by_id):
        with open(ledger, "a") as lines:
            for job_id, payloads in payloads_by_id.items():
                lines.write(json.dumps([job_id, payloads]) + "\n")
        return "paid"

    return app, pay


@pytest.fixture
def registry(monkeypatch):
    """kombu's own, as it was before the test when the test has ended."""
    registry = serialization.registry
    for name in ("_encoders", "_decoders", "name_to_type", "type_to_name"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    for name in ("_default_encode", "_default_content_type", "_default_content_encoding"):
        monkeypatch.setattr(registry, name, getattr(registry, name))
    monkeypatch.setattr(registry, "_disabled_content_types", set(registry._disabled_content_types))


class Signed:
    """The worker's app and task in this process, and the shard with all that is in it."""

    def __init__(self, url, directory, client):
        self.ledger = directory / "ledger"
        settings = {"broker_url": url, "result_backend": url, "ledger": str(self.ledger)}
        settings |= make_identity(directory)
        self.app, self.pay = make_app(**settings)
        (directory / "signed_proj.py").write_text(PROJECT % json.dumps(settings))
        self.directory = directory
        self.client = client
        self.keys = shard_keys(ShardRef("pay", 0))

    def start(self):
        path = os.pathsep.join([str(self.directory), str(ROOT)])
        return worker(self.app, self.directory / "log", module="signed_proj", PYTHONPATH=path)

    def plant(self, job_id, data):
        self.client.hset(self.keys["jobs"], job_id, b"1 %d %s" % (len(data), data))
        self.client.zadd(self.keys["due"], {job_id: 1})

    def flip(self, job_id):
        """One bit of what waits, behind the head of its record."""
        record = bytearray(self.client.hget(self.keys["jobs"], job_id))
        record[-20] ^= 1
        self.client.hset(self.keys["jobs"], job_id, bytes(record))

    def spoil_record(self, job_id, change):
        """Of the only call of a job."""
        key = self.keys["calls"]
        (member,) = self.client.zrangebylex(key, f"[{job_id}\0", f"({job_id}\1")
        start = len(job_id) + 1 + 10 + 12
        self.client.zrem(key, member)
        self.client.zadd(key, {member[:start] + change(member[start:]): 0})

    def send_plain(self, job_id, task_id):
        """As a process does that signs nothing."""
        headers = {"lang": "py", "task": "pay", "id": task_id, "root_id": task_id, "retries": 0}
        with Connection(self.app.conf.broker_url) as connection, connection.Producer() as producer:
            producer.publish(
                [[job_id, VALUE], {}, {}],
                serializer="json",
                headers=headers,
                routing_key="celery",
                declare=[self.app.amqp.queues["celery"]],
            )

    def ran(self):
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        return dict(map(json.loads, lines))

    def dead(self):
        return {job.id: job.error for job in self.pay.ordered_queue.raw().morgue().items}


@pytest.fixture
def signed(registry, redis_server, tmp_path):
    with redis.Redis(unix_socket_path=redis_server.socket_path) as client:
        client.flushall()
        made = Signed(redis_server.url, tmp_path, client)
        yield made
        made.app.close()


def flipped(data):
    return data[:-20] + bytes([data[-20] ^ 1]) + data[-19:]


def plain(data):
    return b'["%s"]' % json.loads(data.partition(MARK)[0])[0].encode()


def test_s1_only_what_was_signed_runs(signed):
    """S1: plain JSON that was written into Redis ran as a payment."""
    honest = signed.pay.delay("honest", VALUE)
    body = json.dumps(VALUE).encode()
    forged = {
        "json": body,
        "marked": MARK + b"application/json\0utf-8\0" + body,
        "unsigned": MARK + b"application/data\0utf-8\0" + base64.b64encode(body),
        "pickle": MARK + b"application/x-python-serialize\0binary\0" + pickle.dumps(VALUE),
        "yaml": MARK + b"application/x-yaml\0utf-8\0" + yaml.safe_dump(VALUE).encode(),
        "msgpack": MARK + b"application/x-msgpack\0binary\0" + msgpack.packb(VALUE),
    }
    for job_id, data in forged.items():
        signed.plant(job_id, data)
    signed.pay.apply_async(("changed", VALUE), ignore_result=True)
    signed.flip("changed")
    unread = {}
    for job_id, change in {"flipped record": flipped, "plain record": plain}.items():
        unread[job_id] = signed.pay.delay(job_id, VALUE)
        signed.spoil_record(job_id, change)
    signed.send_plain("message", "message-id")

    node = signed.start()
    try:
        assert honest.get(60) == "paid"
        eventually(lambda: {"honest", *unread} <= set(signed.ran()), 30)
        eventually(lambda: {*forged, "changed"} <= set(signed.dead()), 30)
        sent = signed.app.AsyncResult("message-id")
        eventually(lambda: sent.state == "FAILURE", 30)
        assert re.search("a message for pay, call .+, is rejected", node.logs())
        for result in unread.values():
            with pytest.raises(UndecodablePayload, match="the record of the call cannot be read"):
                result.get(30)
    finally:
        node.teardown()
    assert signed.ran() == {job_id: [VALUE] for job_id in ["honest", *unread]}
    dead = signed.dead()
    assert "Unable to deserialize" in dead["changed"]
    for job_id in ("json", "marked", "pickle", "yaml", "msgpack"):
        assert dead[job_id].startswith("undecodable payload: content type 'application/"), dead[job_id]
        assert dead[job_id].endswith("is not in accept_content")
    assert signed.client.zcard(signed.keys["calls"]) == 0


def test_s1_a_load_takes_what_was_signed_and_nothing_else(signed):
    """S1: a dump was loaded whatever its payloads were written by."""
    queue = signed.pay.ordered_queue
    signed.pay.apply_async(("1", VALUE), ignore_result=True)
    lines = list(queue.dump())
    assert queue.load(lines, again=True).new == len(lines) - 2
    line = json.loads(lines[1])
    data = base64.b64decode(line["payloads"][0]["base64"])
    for spoiled in ({"value": VALUE}, {"base64": base64.b64encode(flipped(data)).decode()}):
        lines[1] = json.dumps(line | {"payloads": [{"score": 1.0, **spoiled}]}).encode()
        with pytest.raises(BadDump, match="line 2: "):
            queue.load(lines, again=True)


def test_equal_payloads_never_merge(signed):
    """The signature has salt; docs/settings.md says so."""
    for _ in range(2):
        signed.pay.delay("1", VALUE)
    assert [payload.value for payload in signed.pay.ordered_queue.job("1").waiting.payloads] == [VALUE, VALUE]


def test_s1_a_worker_that_could_not_read_what_calls_write_does_not_start(signed):
    """S1: it did, and would have buried every payload."""
    with (signed.directory / "signed_proj.py").open("a") as project:
        project.write('app.conf.lowkiq_serializer = "json"\n')
    node = signed.start()
    try:
        assert node.exit_status(60) != 0
        assert "lowkiq_serializer='json' is invalid: expected a kombu serializer that is" in node.logs()
    finally:
        node.teardown()
