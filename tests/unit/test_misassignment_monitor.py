"""A wrong node number costs idle shards, and says so."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from celery_lowkiq.rules.models import LeaseState, QueueSpec
from celery_lowkiq.worker.monitors import MisassignmentMonitor
from tests.unit.fakes import FakeStore

Q = QueueSpec("q", shards=4)
SHARDS = Q.shard_refs()


class Clock:
    now = 100.0

    def time(self):
        return 1e9

    def monotonic(self):
        return self.now


@pytest.fixture
def watch():
    """``watch(seconds)`` looks on, turn by turn; the owner named ``alive`` moves its counters."""
    store, clock = FakeStore(), Clock()

    def watch(seconds, wanted=SHARDS[1::2], owners=("", "", "", ""), alive="other"):
        ctx = SimpleNamespace(store=store, clock=clock, owner="me", lease_seconds=10)
        monitor = MisassignmentMonitor(ctx, queues={"q": Q}, wanted=frozenset(wanted))
        for turn in range(int(seconds / 2)):
            for shard, owner in zip(SHARDS, owners, strict=True):
                store.leases[shard] = LeaseState(owner, 5 if owner else 0, turn if owner == alive else 0)
            monitor.check()
            clock.now += 2

    return watch


def test_shards_that_nobody_serves(watch, caplog):
    watch(28, owners=("", "me", "dead", "me"))
    assert caplog.messages == []
    watch(200, owners=("", "me", "dead", "me"))
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("no node serves q/0, q/2: do the node numbers")


def test_shards_of_two_nodes_with_one_number(watch, caplog):
    watch(28, owners=("other", "other", "other", "other"))
    assert caplog.messages == []
    watch(200, owners=("other", "other", "other", "other"))
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("q/1, q/3 are dealt to this node, but a living node owns them")


def test_all_is_well(watch, caplog):
    watch(200, owners=("other", "me", "other", "me"))
    assert caplog.messages == []


def test_who_wants_all_shards_waits_for_them_in_silence(watch, caplog):
    watch(200, wanted=SHARDS, owners=("other", "other", "", "me"))
    assert caplog.messages == []
