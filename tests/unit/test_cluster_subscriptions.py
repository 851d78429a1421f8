"""Subscriptions on a cluster, whose masters carry what is published to each other."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from celery_lowkiq.rules.errors import StoreUnavailable, SubscriptionLost
from celery_lowkiq.store import cluster_client, listener
from celery_lowkiq.store.listener import Listener
from tests.unit import test_cluster_client as others
from tests.waiting import eventually

cluster, make_client, client = others.cluster, others.make_client, others.client

#: What a node answers to SUBSCRIBE, and to PING of a subscription and of another connection.
SUBSCRIBED = b"*3\r\n$9\r\nsubscribe\r\n$7\r\nchannel\r\n:1\r\n"
PONG, PLAIN_PONG = b"*2\r\n$4\r\npong\r\n$0\r\n\r\n", b"+PONG\r\n"


@pytest.fixture(autouse=True)
def _answering(cluster, monkeypatch):
    for node in cluster.nodes:
        node.answer = answered
    # None is late because the machine is busy.
    monkeypatch.setattr(cluster_client, "NEAR", 5.0)


def answered(words):
    if words[0] == b"SUBSCRIBE":
        return SUBSCRIBED
    return PLAIN_PONG if words == [b"PING"] else PONG


def place_of(subscription):
    found = subscription._client.connection_pool.connection_kwargs
    return found["host"], found["port"]


def test_a_subscription_that_is_closed_between_two_waits_does_not_connect_again(cluster, client):
    """Its thread asked the master whether it was there, and waited on, while the worker stopped."""
    with Listener(client, "channel") as subscription:
        node = next(node for node in cluster.nodes if node.address == place_of(subscription))
        connections, wait = node.connections, subscription._next

        def closed_before(timeout):
            subscription.close()
            return wait(timeout)

        subscription._next = closed_before
        with pytest.raises(StoreUnavailable, match="is closed"):
            subscription.wait(1.0)
        assert node.connections == connections


def test_the_next_subscription_leaves_the_master_that_was_lost(cluster, client, monkeypatch):
    """A tracker had subscribed since, and its master was left instead; the lost one cost a timeout."""
    monkeypatch.setattr(listener, "ANSWER", 0.05)
    thaw = threading.Event()
    with Listener(client, "channel") as first, Listener(client, "channel"):
        lost = next(node for node in cluster.nodes if node.address == place_of(first))
        lost.answer = lambda words: thaw.wait(10) and answered(words)
        with pytest.raises(SubscriptionLost, match="does not respond"):
            first.wait(10)
        asked = len(lost.heard)
        with Listener(client, "channel") as third:
            assert place_of(third) != lost.address
        assert len(lost.heard) == asked
        thaw.set()


def test_a_subscription_that_is_refused_is_tried_at_another_master(cluster, client):
    first, *_ = client.cluster.map.masters()
    node = next(node for node in cluster.nodes if node.address == first)
    node.answer = lambda words: None if words[0] == b"SUBSCRIBE" else answered(words)
    with pytest.raises(StoreUnavailable):
        Listener(client, "channel")
    with Listener(client, "channel") as subscription:
        assert place_of(subscription) != first


def node_of(cluster, subscription):
    return next(node for node in cluster.nodes if node.address == place_of(subscription))


def late(words):
    threading.Event().wait(0.2)
    return answered(words)


def test_a_subscription_goes_to_a_master_that_answers_soon(cluster, client, monkeypatch):
    """Workers and trackers heard of calls of all masters as late as the first one answered."""
    first, second, third = (
        next(node for node in cluster.nodes if node.address == address)
        for address in client.cluster.map.masters()
    )
    monkeypatch.setattr(cluster_client, "NEAR", 0.15)
    first.answer = late
    with Listener(client, "channel") as subscription:
        assert place_of(subscription) in (second.address, third.address)


def test_where_all_masters_are_far_the_fastest_is_taken(cluster, client, monkeypatch):
    monkeypatch.setattr(cluster_client, "NEAR", 0.0)
    *far, near = (
        next(node for node in cluster.nodes if node.address == address)
        for address in client.cluster.map.masters()
    )
    for node in far:
        node.answer = late
    with Listener(client, "channel") as subscription:
        assert place_of(subscription) == near.address


@pytest.mark.parametrize("published", [False, True])
def test_a_subscription_leaves_a_master_that_answers_late(cluster, client, monkeypatch, published):
    """Also one that has something to tell all the time, and is not asked for its silence."""
    monkeypatch.setattr(listener, "STAYS", 0.0)
    if published:
        monkeypatch.setattr(listener, "CHECK_SECONDS", 60.0)
        monkeypatch.setattr(listener, "ASK_AGAIN", 0.0)
    with Listener(client, "channel") as subscription:
        node = node_of(cluster, subscription)
        node.answer = late
        if published:
            message = {"type": "message", "data": b""}
            told, wait = iter([message]), subscription._next
            monkeypatch.setattr(subscription, "_next", lambda timeout: next(told, None) or wait(timeout))
            assert subscription.wait(1.0) is message
        with pytest.raises(SubscriptionLost, match="answers late"):
            subscription.wait(10)
        with Listener(client, "channel") as other:
            assert place_of(other) != node.address


def test_what_a_listener_does_between_two_waits_is_no_late_answer(cluster, client, monkeypatch):
    """A tracker that counted its calls for a while, or a busy worker, left a master that answers at once."""
    away = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + away[0])
    monkeypatch.setattr(listener, "time", clock)
    monkeypatch.setattr(listener, "LATE", 5.0)
    monkeypatch.setattr(listener, "STAYS", 0.0)
    monkeypatch.setattr(listener, "ASK_AGAIN", 0.0)
    with Listener(client, "channel") as subscription:
        node, message, wait = node_of(cluster, subscription), {"type": "message"}, subscription._next
        told = iter([message])
        monkeypatch.setattr(subscription, "_next", lambda timeout: next(told, None) or wait(timeout))
        assert subscription.wait(1.0) is message
        eventually(lambda: node.heard[-1][0] == b"PING")
        away[0] = 60.0
        assert subscription.wait(0.3) is None


def test_a_subscription_stays_for_a_while_with_a_master_that_answers_late(cluster, client, monkeypatch):
    """All masters may be far."""
    monkeypatch.setattr(listener, "ANSWER", 5.0)
    with Listener(client, "channel") as subscription:
        node = node_of(cluster, subscription)
        node.answer = late
        asked = len(node.heard)
        assert subscription.wait(1.5) is None
        assert len(node.heard) > asked
