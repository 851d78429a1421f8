"""Messages of Celery and remote control commands: each is answered, and what waits behind them runs."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from celery import signature
from celery.worker.control import Panel
from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.message import Message

from celery_lowkiq.integration.actions import VERBS
from celery_lowkiq.integration.bootstep import remote_control
from tests.fuzz.conftest import BUSY, HANG
from tests.fuzz.mutators import ODD_BYTES, canaries, changed_bytes, changed_value
from tests.fuzz.node import POLL, VICTIMS, Node
from tests.waiting import eventually

#: Messages before the innocent jobs are pushed.
AT_ONCE = 25
#: Content types, encodings and compressions of bodies.
CONTENT = (
    *(("application/json", "utf-8"), ("application/json", "x"), ("application/x-python-serialize", "binary")),
    *(
        ("application/x-yaml", "utf-8"),
        ("application/data", "binary"),
        ("text/plain", "utf-8"),
        ("x", "utf-16"),
    ),
    *((None, None), ("", ""), ("application/json; x\r\ny: z", "utf-8")),
)


def seeds(app):
    """Protocol 2: headers, properties and body of calls with something of everything."""
    link = signature("calm", args=("linked", 1), app=app).clone()
    soon = datetime.now(timezone.utc) + timedelta(seconds=0.1)
    own = {"lowkiq": {"score": 1.5, "perform_in": time.time(), "priority": 3}}
    options = [
        {},
        {"headers": own},
        {"eta": soon, "expires": soon + timedelta(days=1)},
        {"callbacks": [link], "errbacks": [link], "chain": [link], "root_id": "root", "parent_id": "parent"},
        {"chord": link, "group_id": "group", "group_index": 1, "reply_to": "replies"},
        {"time_limit": 5, "soft_time_limit": 4, "retries": 1, "shadow": "name", "priority": 5},
    ]
    for name in ("orders", *VICTIMS):
        for number, given in enumerate(options):
            given = {**given}
            headers = given.pop("headers", {})
            priority = given.pop("priority", None)
            args = (f"m-{number}", {"a": [1, "x"]}) if number % 2 else (f"m-{number}",)
            made = app.amqp.as_task_v2(
                f"id-{name}-{number}", name, args, {} if number else {"payload": 1}, **given
            )
            yield {
                "headers": {**made.headers, **headers},
                "properties": {**made.properties, "priority": priority},
                "body": json.loads(json.dumps(made.body, default=repr)),
            }


class Consumer:
    """Hands messages to their tasks, as Celery's does."""

    def __init__(self, node, path):
        self._app, self._canaries = node.app, canaries(path)
        self._strategies = {}
        timer = MagicMock(call_after=lambda *_: pytest.fail("waits for the store"))
        for name in ("orders", *VICTIMS):
            task = self._app.tasks[name]
            consumer = MagicMock(connection_errors=(), timer=timer, app=self._app, hostname="w@h")
            self._strategies[name] = task.Strategy(task, self._app, consumer)
        self._seeds = list(seeds(self._app))

    def consume(self, random):
        seed = random.choice(self._seeds)
        name, sent = seed["headers"]["task"], changed_value(random, seed)
        sent = {**seed, **(sent if isinstance(sent, dict) else {})}
        content = ("application/json", "utf-8")
        body = json.dumps(sent["body"], default=repr).encode("utf-8", "surrogatepass")
        if random.random() < 0.3:
            body = changed_bytes(random, body, ODD_BYTES + self._canaries)
            content = random.choice(CONTENT)
        told = []
        message = Message(
            body=body,
            content_type=content[0],
            content_encoding=content[1],
            headers=sent["headers"] if isinstance(sent["headers"], dict) else {},
            properties=sent["properties"],
            delivery_info={"priority": random.choice((0, 9, None, "x", 10**30))},
            accept={"json"},
        )
        message.reject_log_error = lambda *_, requeue=False: told.append("requeued" if requeue else "reject")
        # Celery rejects what cannot be decoded.
        with contextlib.suppress(ContentDisallowed, DecodeError):
            handle = self._strategies[name]
            handle(message, None, lambda *_: told.append("ack"), lambda *_: told.append("reject"))
            assert told in (["ack"], ["reject"]), (sent, body, content, told)


class Worker:
    """Gets remote control commands."""

    def __init__(self, app):
        step = SimpleNamespace(
            tasks={"orders": None}, served=["orders"], snapshot=dict, quiet=lambda yes: None, node=None
        )
        self._state = SimpleNamespace(
            app=app, hostname="w@h", consumer=SimpleNamespace(ordered_queues=step, app=app)
        )
        self._names = sorted(name for name in Panel.data if name.startswith("lowkiq"))
        assert len(self._names) > len(VERBS) / 2

    def command(self, random):
        name = random.choice(self._names)
        queue = random.choice(VICTIMS)
        given = {
            "queue": random.choice((queue, [queue, "ticket"])),
            "ids": ["m-1"],
            "job_id": "m-2",
            "shards": 3,
        }
        given = {key: value for key, value in given.items() if random.random() < 0.7}
        given = changed_value(random, given)
        given = given if isinstance(given, dict) else {"queue": given}
        # Names come as texts: pidbox passes them as keywords.
        given = {str(key): value for key, value in given.items() if key not in ("state", b"state")}
        answer = Panel.data[name](self._state, **given)
        assert json.dumps(answer), (name, given)


@pytest.fixture
def node(empty_redis, monkeypatch):
    monkeypatch.setattr(remote_control, "REPLY", 0.1)
    node = Node(empty_redis, poll_interval=POLL)
    with node.engine:
        node.push("calm", first := node.ids("calm"))
        eventually(lambda: node.has_run(first))
        yield node
    node.app.close()


@pytest.mark.random
def test_changed_messages(node, fuzz, tmp_path, caplog):
    consumer, worker = Consumer(node, str(tmp_path / "canary")), Worker(node.app)

    def attack(random):
        caplog.clear()
        for _ in range(AT_ONCE):
            consumer.consume(random) if random.random() < 0.8 else worker.command(random)
        with node.in_time(innocent := node.ids("calm")):
            node.push("calm", innocent)
        assert not node.engine.host.stops
        assert not (tmp_path / "canary").exists()
        told = [record for record in caplog.records if record.levelno >= logging.CRITICAL]
        ours = (record for record in caplog.records if record.name.startswith("celery_lowkiq"))
        told += [record for record in ours if not record.getMessage().isprintable()]
        assert not told, [record.getMessage()[:500] for record in told]

    fuzz(attack, AT_ONCE, hang=BUSY + HANG)
    print(f"the latest innocent job ran after {node.latest:.3f} s")
