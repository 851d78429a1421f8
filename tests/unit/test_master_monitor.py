"""A worker says when Redis may throw jobs away, or refuses a command."""

from __future__ import annotations

import logging

import pytest

from celery_lowkiq.rules.errors import StoreError
from celery_lowkiq.rules.topology import Server
from celery_lowkiq.worker.monitors import MasterMonitor
from tests.unit.fakes import FakeStore
from tests.unit.nodes import Node
from tests.waiting import eventually

EVICTS = Server(policy="allkeys-lru", maxmemory=100)


class Clock:
    now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def store():
    return FakeStore()


@pytest.fixture
def minutes(store, caplog):
    """Look all the time for some minutes; the levels of the lines that came."""
    caplog.set_level(logging.INFO)
    clock = Clock()
    monitor = MasterMonitor(store, clock, {})

    def pass_by(count):
        caplog.clear()
        for _ in range(60 * count):
            monitor.check()
            clock.now += 1
        return [record.levelname for record in caplog.records]

    return pass_by


def test_an_error_at_once_and_each_minute_until_it_is_mended(store, minutes, caplog):
    """P1"""
    store.server = EVICTS
    assert minutes(1) == ["ERROR"]
    assert caplog.messages == [
        "maxmemory-policy of Redis: allkeys-lru: a full Redis evicts jobs. "
        "Set maxmemory-policy to noeviction."
    ]
    assert minutes(3) == ["ERROR"] * 3
    store.server = Server(policy="noeviction", maxmemory=100)
    assert minutes(3) == ["WARNING"]
    assert "any more: maxmemory-policy noeviction" in caplog.text
    store.server = EVICTS
    assert minutes(2) == ["ERROR"] * 2


def test_what_cannot_be_read_ends_one_turn_a_minute(store, minutes, monkeypatch):
    """It ended each, before the turn looked for shards to take."""
    asked = []

    def masters(shards):
        asked.append(shards)
        raise StoreError("the reply of INFO cannot be read")

    monkeypatch.setattr(store, "masters", masters)
    with pytest.raises(StoreError):
        minutes(1)
    assert minutes(1) == []
    assert len(asked) == 1


def test_what_expires_may_be_thrown_away_too(store, minutes, caplog):
    """P1: jobs never expire, but what ``drop_stale`` has seen does."""
    store.server = Server(policy="volatile-lru", maxmemory=100)
    assert minutes(1) == ["ERROR"]
    assert "keeps jobs, but evicts what drop_stale knows" in caplog.text


@pytest.mark.parametrize("server", [Server(policy="noeviction", maxmemory=5), Server(policy="allkeys-lru")])
def test_what_is_harmless_is_not_said(store, minutes, server):
    """P1: without a limit nothing is thrown away."""
    store.server = server
    assert minutes(3) == []


def test_a_server_that_does_not_tell_is_said_once(store, minutes, caplog):
    """P1: managed servers, and users without INFO."""
    store.server = Server(policy=None)
    assert minutes(5) == ["WARNING"]
    assert "INFO is forbidden" in caplog.text


def test_a_node_looks_before_it_takes_shards(caplog):
    """P1"""
    node = Node()
    node.store.server = EVICTS
    node.start()
    eventually(node.owns)
    assert "evicts jobs" in caplog.text
    node.runtime.drain()
    assert node.runtime.join(10)


def test_a_refused_command_is_named_once(store, minutes, caplog):
    store.refused = {"TIME in scripts": "ERR not allowed from script"}
    assert minutes(3) == ["ERROR"]
    assert caplog.messages == [
        "Redis refuses TIME in scripts: ERR not allowed from script. No call can be stored, and none runs. "
        "Permit it (`celery -A proj lowkiq acl` writes the rights), or use a Redis that has it."
    ]
