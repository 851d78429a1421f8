"""Heartbeats, and the word that a shard was released."""

from __future__ import annotations

from celery_lowkiq.store.keys import nodes_key, queue_key
from tests.store.helpers import SHARD, listening, push, take


def test_heartbeats_of_nodes(store, client):
    assert store.beat(["a", "b"], "me@host", 4, 1).members == [{"me@host": (4, 1)}] * 2
    assert store.beat(["a"], "other", 8, 1).members == [{"me@host": (4, 1), "other": (8, 1)}]
    assert store.beat(["a"], "me@host", 4, 2).members == [{"me@host": (4, 2), "other": (8, 1)}]
    store.forget_members("a", [("other", 8), ("nobody", 1)])
    assert store.beat(["a"], "me@host", 4, 3).members == [{"me@host": (4, 3)}]
    planted = {"planted": 7, "x y": 7, "x 1": "y", "x " + "9" * 5000: 7, b"\xff 2": 7}
    client.hset(nodes_key("a"), mapping=planted)
    assert store.beat(["a"], "me@host", 4, 4).members == [{"me@host": (4, 4), "\ufffd": (2, 7)}]


def test_a_heartbeat_that_arrives_late_moves_nothing_back(store):
    assert store.beat(["a"], "me@host", 4, 10).members == [{"me@host": (4, 10)}]
    assert store.beat(["a"], "me@host", 4, 9).members == [{"me@host": (4, 10)}]
    assert store.beat(["a"], "me@host", 4, 11).members == [{"me@host": (4, 11)}]


def test_a_release_is_announced(store):
    push(store, "1", ("a", 1), perform_in=9e9)
    lease = take(store)
    with listening(store) as heard:
        assert store.release(lease)
        assert heard() == (SHARD, None)


def test_a_heartbeat_reads_the_stored_number_of_shards(store, client):
    push(store, "1", ("a", 1))
    assert store.beat(["orders", "new"], "me@host", 4, 1).routes == ["1", ""]
    client.hset(queue_key("orders"), "shards", "24>48")
    client.set(queue_key("new"), "planted")
    result = store.beat(["orders", "new"], "me@host", 4, 2)
    assert result.routes == ["24>48", ""]
    assert result.members == [{"me@host": (4, 2)}] * 2


def test_a_node_without_lanes_reads_the_number_and_has_no_heartbeat(store):
    push(store, "1", ("a", 1))
    result = store.beat(["orders"], "me@host", 0, 1)
    assert (result.routes, result.members) == (["1"], [{}])
    assert store.beat(["orders"], "other", 4, 1).members == [{"other": (4, 1)}]
