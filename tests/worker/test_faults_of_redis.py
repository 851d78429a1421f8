"""R12: whatever Redis answers, a node goes on when it is back: told twice, nothing lost, nothing doubled."""

from __future__ import annotations

import logging
import threading

import pytest
import redis

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.rules.errors import StoreFull
from celery_lowkiq.store.client import UNAVAILABLE
from tests.outages import Front, away, busy, full, read_only
from tests.waiting import eventually
from tests.worker.engine import Engine

#: A node works again 2 s after Redis answers; a machine that has other things to do gets more.
BACK_WITHIN = 8.0
BEGINS, ENDS = "Ordered queues wait until it is back", "Ordered queues go on"


@pytest.fixture(scope="module")
def mortal():
    with EmbeddedServer(appendonly=True) as server:
        yield server


@pytest.fixture
def server(mortal, caplog):
    caplog.set_level(logging.WARNING)
    with redis.Redis(unix_socket_path=mortal.socket_path) as client:
        client.flushall()
    return mortal


def survives(engine, outage, caplog):
    """The outage begins in the middle of work, and lasts until everybody has noticed it."""
    engine.runner.act = lambda batch: threading.Event().wait(0.005) and None
    engine.push(200)
    eventually(lambda: len(engine.runner.ids) > 20)
    with outage:
        eventually(lambda: BEGINS in caplog.text)
    seconds = engine.all_done(BACK_WITHIN)
    eventually(lambda: caplog.text.count(ENDS) == 1)
    assert caplog.text.count(BEGINS) == 1
    assert engine.lost_or_doubled() == {}
    return seconds


@pytest.mark.parametrize("outage", [away, read_only, busy])
def test_a_redis_that_is_away(server, caplog, outage):
    with Engine(server) as engine:
        print(survives(engine, outage(server), caplog))


@pytest.mark.parametrize("code", UNAVAILABLE)
def test_a_redis_that_cannot_serve_now(server, caplog, tmp_path, code):
    with Front(server, tmp_path) as front, Engine(server, front.path) as engine:
        print(survives(engine, front.answers(f"{code} as asked"), caplog))


def test_twenty_restarts(server, caplog):
    slowest = 0.0
    with Engine(server) as engine:
        for _ in range(20):
            engine.push(10)
            with away(server):
                pass
            engine.push(10)
            slowest = max(slowest, engine.all_done(BACK_WITHIN))
            eventually(lambda: caplog.text.count(ENDS) == caplog.text.count(BEGINS))
    print(slowest)
    assert caplog.text.count(BEGINS) <= 20
    assert engine.lost_or_doubled() == {}


def test_all_connections_killed(server, caplog):
    with Engine(server) as engine, redis.Redis(unix_socket_path=server.socket_path) as client:
        for _ in range(5):
            engine.push(50)
            for type_ in ("normal", "pubsub"):
                client.execute_command("CLIENT", "KILL", "TYPE", type_)
            engine.all_done(BACK_WITHIN)
            eventually(lambda: caplog.text.count(ENDS) == caplog.text.count(BEGINS))
    assert caplog.text.count(BEGINS) <= 5
    assert engine.lost_or_doubled() == {}


def test_all_scripts_forgotten(server, caplog):
    with Engine(server) as engine, redis.Redis(unix_socket_path=server.socket_path) as client:
        for _ in range(10):
            engine.push(30)
            client.script_flush()
            engine.all_done(BACK_WITHIN)
    assert caplog.text == ""
    assert engine.lost_or_doubled() == {}


def test_a_full_redis_is_drained_also_by_a_node_that_starts_then(server, caplog):
    engine = Engine(server)
    engine.push(30)
    with full(server):
        with pytest.raises(StoreFull):
            engine.push(1)
        with engine:
            engine.all_done()
    assert caplog.text == ""
    assert engine.lost_or_doubled() == {}
