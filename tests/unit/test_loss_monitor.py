"""What the log says of shards that a node has no more."""

from __future__ import annotations

import logging

import pytest

from celery_lowkiq.rules.models import LeaseState
from tests.unit.nodes import SHARDS, Node
from tests.waiting import eventually


@pytest.fixture
def one(caplog):
    caplog.set_level(logging.WARNING)
    node = Node(lease_seconds=0.3).start()
    eventually(lambda: len(node.owns()) == 4)
    yield node
    node.runtime.drain()
    assert node.runtime.join(10)


def said(caplog, words):
    return [message for message in caplog.messages if words in message]


def test_shards_that_others_have_are_one_line(one, caplog):
    """P3: there was a line for each."""
    with one.store.lock:
        for shard in SHARDS[:3]:
            one.store.steal(shard)
    eventually(lambda: said(caplog, "changed hands"))
    assert caplog.messages == ["shards changed hands, and this node leaves them: q/0, q/1, q/2"]


def test_leases_that_are_gone_are_one_line_also_when_that_happens_again(one, caplog):
    """P3"""
    for times in (1, 2):
        with one.store.lock:
            one.store.leases.clear()
        eventually(lambda: len(said(caplog, "Redis has lost data of 'q' (shards: 4)")) == times)  # noqa: B023
        eventually(lambda: len(one.owns()) == 4)
    assert len(caplog.messages) == 2


def test_an_older_lease_is_no_other_owner(one, caplog):
    """P3: of a replica, or of a dump."""
    with one.store.lock:
        state = one.store.leases[SHARDS[1]]
        one.store.leases[SHARDS[1]] = LeaseState("before", state.epoch - 1, 7)
    eventually(lambda: said(caplog, "Redis has lost data of 'q' (shards: 1)"))
    eventually(lambda: len(one.owns()) == 4)
    assert len(caplog.messages) == 1


def test_leases_that_no_other_node_has_did_not_change_hands(one, caplog):
    """It was said of a single worker, after its master was unreachable for longer than a lease."""
    with one.store.lock:
        state = one.store.leases[SHARDS[1]]
        one.store.leases[SHARDS[1]] = LeaseState("", state.epoch, state.counter + 1)
    eventually(
        lambda: said(caplog, "this node has lost leases, and no other node is known to have them: q/1")
    )
    eventually(lambda: len(one.owns()) == 4)
    assert not said(caplog, "changed hands")
