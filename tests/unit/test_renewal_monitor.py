"""Renewals that take too long for the lease time are named: shards stand still, although Redis answers."""

from __future__ import annotations

import logging
import threading

import pytest

from celery_lowkiq.worker.monitors import SLOW_RENEWALS, RenewalMonitor
from tests.unit.nodes import Node
from tests.waiting import eventually


def test_slow_renewals_are_logged_once_and_their_end(caplog):
    monitor = RenewalMonitor(lease_seconds=1.0)
    for _ in range(2 * SLOW_RENEWALS):
        monitor.renewed(0.26)
    (text,) = caplog.messages
    assert "took 0.26 s to renew leases; batches start only in the 0.50 s after a renewal is sent" in text
    assert text.endswith("or set lowkiq_lease_seconds=1 to at least 3")
    for _ in range(2):
        monitor.renewed(0.25)
    assert caplog.messages[1:] == ["leases are renewed in time again"]


def test_some_slow_renewals_are_no_slow_redis(caplog):
    monitor = RenewalMonitor(lease_seconds=1.0)
    for _ in range(3):
        for _ in range(SLOW_RENEWALS - 1):
            monitor.renewed(9.0)
        monitor.renewed(0.1)
    assert not caplog.messages


@pytest.mark.parametrize("answers", [True, False])
def test_a_node_whose_renewals_are_slow_says_so(caplog, answers):
    """It served nothing, and said nothing. A timeout of a master that is unreachable is no slow renewal."""
    caplog.set_level(logging.WARNING)
    node = Node(lease_seconds=0.5)
    renew, late, turns = node.store.renew, threading.Event(), []

    def slow(leases, stopping=False, turn=0):
        found = renew(leases, stopping=stopping, turn=turn)
        late.wait(0.3 if leases else 0)
        turns.append(turn)
        return found if answers or not leases else [None, *found[1:]]

    node.store.renew = slow
    node.start()
    eventually(lambda: len(node.owns()) == 4 and len(turns) > SLOW_RENEWALS + 2)
    assert ("to renew leases" in caplog.text) == answers
    late.set()
    node.store.renew = renew
    node.runtime.drain()
    assert node.runtime.join(10)
