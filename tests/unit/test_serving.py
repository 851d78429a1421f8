"""A node that begins and ends to serve queues while it runs."""

from __future__ import annotations

import threading

import pytest

from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.rules.models import LeaseState, QueueSpec, ShardRef
from celery_lowkiq.rules.shares import default_splitter, lease_splitter
from celery_lowkiq.worker.acquisition import SLICE
from tests.unit.nodes import Q, once
from tests.waiting import eventually

OTHER = QueueSpec("other", shards=2)
ONE_OF_OTHER = ShardRef("other", 0)


def owned(node, queue):
    return sum(node.store.leases.get(shard, LeaseState()).owner == "me" for shard in queue.shard_refs())


@pytest.mark.parametrize("splitter", [lease_splitter, default_splitter])
def test_a_node_serves_the_selected_queues_and_takes_another_on_command(node, splitter):
    one = node(queues=[Q, OTHER], served=["q"], splitter=splitter).start()
    eventually(lambda: owned(one, Q) == 4)
    assert owned(one, OTHER) == 0
    assert "other" not in one.store.members
    one.runtime.serve(["other"])
    eventually(lambda: (owned(one, Q), owned(one, OTHER)) == (0, 2))
    assert not one.store.members.get("q")
    one.store.push(ONE_OF_OTHER, "heard")
    one.ran("heard")


def test_a_running_batch_is_finished_before_its_shard_is_given_up(node):
    one = node(queues=[Q], splitter=lease_splitter)
    gate = threading.Event()
    one.runner.act = lambda batch: gate.wait(10) and None
    one.start()
    eventually(lambda: owned(one, Q) == 4)
    one.store.push(ShardRef("q", 1), "runs")
    eventually(lambda: one.runner.ids)
    one.runtime.serve([])
    eventually(lambda: owned(one, Q) == 1)
    assert not one.store.settled
    gate.set()
    eventually(lambda: owned(one, Q) == 0)
    one.ran("runs")


def test_a_node_without_queues_hears_again_when_it_gets_one(node):
    one = node(queues=[Q], served=[], splitter=lease_splitter).start()
    eventually(lambda: one.store.leases == {})
    one.runtime.serve(["q"])
    eventually(lambda: owned(one, Q) == 4)
    one.store.push(ShardRef("q", 2), "heard")
    one.ran("heard")


def test_a_node_serves_a_queue_that_it_learns_of_later(node):
    """F9: only the queues of its start were ever served."""
    one = node(queues=[Q], splitter=lease_splitter).start()
    eventually(lambda: owned(one, Q) == 4)
    one.runtime.add_queues([Q, OTHER])
    one.runtime.serve(["q", "other"])
    eventually(lambda: owned(one, OTHER) == 2)
    assert owned(one, Q) == 4
    assert set(one.store.members) == {"q", "other"}
    one.store.push(ONE_OF_OTHER, "heard")
    one.ran("heard")
    one.runtime.serve(["q"])
    eventually(lambda: (owned(one, Q), owned(one, OTHER)) == (4, 0))
    one.runtime.serve(["other"])
    eventually(lambda: (owned(one, Q), owned(one, OTHER)) == (0, 2))


def test_a_splitter_that_has_dealt_the_shards_learns_no_queue(node):
    one = node(queues=[Q], splitter=default_splitter).start()
    one.runtime.add_queues([OTHER])
    assert one.runtime.queue_names == {"q"}


def test_a_node_that_cannot_leave_the_members_tries_again(node):
    one = node(queues=[Q, OTHER], splitter=lease_splitter).start()
    eventually(lambda: (owned(one, Q), owned(one, OTHER)) == (4, 2))
    one.store.fail["forget_members"] = once(StoreUnavailable("away"))
    one.runtime.serve(["q"])
    eventually(lambda: owned(one, OTHER) == 0)
    assert not one.store.members["other"]
    assert owned(one, Q) == 4


def test_what_is_said_in_the_middle_of_a_turn_holds_for_the_rest_of_it(node):
    queue = QueueSpec("many", shards=SLICE + 1)
    one = node(queues=[queue], splitter=lease_splitter)
    acquire_all = one.store.acquire_all

    def quiet_at_the_first(wanted, owner):
        one.runtime.quiet(True)
        return acquire_all(wanted, owner)

    one.store.acquire_all = quiet_at_the_first
    one.start()
    eventually(lambda: [state.owner for state in one.store.leases.values()] == [""] * SLICE)
    assert one.store.acquired == [SLICE]
