"""What it costs a node to take its shards: counted, not timed."""

from __future__ import annotations

import logging

import pytest

from celery_lowkiq.rules.errors import ShardDamaged, ShardRepairing
from celery_lowkiq.rules.leases import RENEWALS_PER_LEASE
from celery_lowkiq.rules.models import LeaseState, QueueSpec, ShardRef
from celery_lowkiq.rules.shares import default_splitter, lease_splitter
from celery_lowkiq.worker.acquisition import PROGRESS_INTERVAL, SLICE, AcquisitionProgress
from tests.unit.fakes import FakeStore
from tests.unit.nodes import Node
from tests.waiting import eventually


def queues(count, shards=24):
    return [QueueSpec(f"q{number:03d}", shards=shards) for number in range(count)]


class Clock:
    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


def taken(node):
    return sum(lease.owner == "me" for lease in node.store.leases.values())


@pytest.fixture
def start():
    """A node of some queues that has taken all its shards, and asked about them."""
    nodes = []

    def make(specs, **options):
        # No poll, and no renewal, comes in between.
        node = Node(queues=specs, lanes=5, lease_seconds=600.0, **options)
        nodes.append(node)
        node.start()
        eventually(lambda: taken(node) == sum(spec.shards for spec in specs))
        eventually(lambda: node.store.asked >= taken(node))
        return node

    yield make
    for node in nodes:
        node.runtime.abandon()
        node.runtime.join(10)


@pytest.mark.parametrize("splitter", [lease_splitter, default_splitter])
def test_m1_questions_and_round_trips_grow_with_the_shards_and_not_with_their_square(start, splitter):
    """M1: each shard is asked about when it comes, and many are acquired in a round trip."""
    for count in (10, 50):
        node = start(queues(count), splitter=splitter)
        shards = 24 * count
        # The lanes' first question, and that of the waker, may be about all that came before.
        assert node.store.asked <= 4 * shards
        assert len(node.store.acquired) == -(-shards // SLICE)


def test_a_shard_that_is_released_while_another_node_is_faster_is_taken_at_once():
    """Not at the next renewal, which is the one in two minutes here."""
    first, second = (ShardRef("q000", index) for index in (0, 1))
    store = FakeStore()
    store.leases = {shard: LeaseState("other", 1, 1) for shard in (first, second)}
    node = Node(store, queues=queues(1, shards=3), lease_seconds=600.0)
    acquire_all = store.acquire_all

    def overtaken(wanted, owner):
        if first in [watch.shard for watch in wanted]:
            store.leases[first] = LeaseState("third", 2, 2)
            store.leases[second] = LeaseState("", 1, 2)
            # The announcement of the release.
            node.runtime._on_announcement(second, None)
        return acquire_all(wanted, owner)

    node.start()
    eventually(lambda: taken(node) == 1)
    store.acquire_all = overtaken
    store.leases[first] = LeaseState("", 1, 2)
    node.runtime._on_announcement(first, None)
    eventually(lambda: taken(node) == 2)
    node.runtime.abandon()
    assert node.runtime.join(10)


def test_m1_the_nodes_share_is_computed_once_a_turn():
    """M1: and not once for each shard."""
    node = Node(queues=queues(50), lanes=5, lease_seconds=600.0, splitter=lease_splitter)
    membership = node.runtime._ownership._membership
    room, rooms = membership.room, []
    membership.room = lambda held: rooms.append(len(held)) or room(held)
    node.start()
    eventually(lambda: taken(node) == 1200)
    assert len(rooms) < 10
    node.runtime.abandon()
    node.runtime.join(10)


def test_m1_a_share_is_not_exceeded_by_a_slice():
    """M1: room is used up by what a slice asks for, before any answer."""
    node = Node(queues=queues(10), lanes=5, lease_seconds=600.0, splitter=lease_splitter)
    node.store.members = {spec.name: {"other": (5, 1)} for spec in queues(10)}
    membership = node.runtime._ownership._membership
    membership.update()
    for spec in queues(10):
        node.store.members[spec.name]["other"] = (5, 2)
    node.start()
    eventually(lambda: taken(node) == 120)
    assert sum(node.store.acquired) == 120
    node.runtime.abandon()
    node.runtime.join(10)


def test_m1_a_renewal_is_not_held_up_by_the_taking_of_more(monkeypatch):
    """M1: slices end where a renewal is due; the rest follows in the next turns, without looking again."""
    monkeypatch.setattr("celery_lowkiq.worker.acquisition.SLICE", 10)
    clock = Clock()
    node = Node(queues=queues(10), lanes=2, lease_seconds=600.0, splitter=lease_splitter, clock=clock)
    renewals, renew, acquire_all = [], node.store.renew, node.store.acquire_all
    observations, observe = [], node.store.observe

    def count(leases, *more, **options):
        renewals.append(len(leases))
        return renew(leases, *more, **options)

    def slow(wanted, owner):
        """The next renewal is due when it ends."""
        clock.now += 600.0 / RENEWALS_PER_LEASE
        return acquire_all(wanted, owner)

    node.store.renew, node.store.acquire_all = count, slow
    node.store.observe = lambda shards: observations.append(len(renewals)) or observe(shards)
    monkeypatch.setattr("celery_lowkiq.worker.ownership.MIN_ACQUISITION", 0.0)
    node.start()
    eventually(lambda: taken(node) == 240)
    assert renewals[:24] == list(range(0, 240, 10))
    assert [turn for turn in observations if turn <= 24] == list(range(1, 25, RENEWALS_PER_LEASE))
    node.runtime.abandon()
    node.runtime.join(10)


def test_m1_a_limited_queue_takes_no_token_for_a_shard_that_comes(start):
    """M1: a shard without work is asked about, and not claimed from."""
    node = start(queues(4), rates={spec.name: 5.0 for spec in queues(4)})
    assert node.store.token_requests == []
    assert node.store.claims == []


def test_m1_a_shard_that_comes_with_work_is_served_without_a_poll():
    """M1: its due time is asked for when it comes."""
    node = Node(queues=queues(2), lanes=2, lease_seconds=600.0, poll_interval=600.0)
    last = ShardRef("q001", 23)
    node.store.push(last, "1", announce=False)
    node.start()
    node.ran("1")
    node.runtime.abandon()
    assert node.runtime.join(10)


def test_m1_a_line_each_5_s_tells_how_far_it_is(caplog):
    """M1: and a last one, but none where all was taken before the first."""
    caplog.set_level(logging.INFO)
    clock = Clock()
    progress = AcquisitionProgress(clock)
    progress.begin(0, 4096)
    for taken_so_far in (500, 1000, 1796, 2000, 4096):
        clock.now += 2
        progress.log(taken_so_far)
    progress.begin(4096, 0)
    assert [record.message for record in caplog.records] == [
        "1,796 of 4,096 shards taken",
        "4,096 of 4,096 shards taken",
    ]
    caplog.clear()
    progress.begin(4096, 4)
    clock.now += PROGRESS_INTERVAL - 0.1
    progress.log(4100)
    assert caplog.records == []


@pytest.mark.parametrize(
    "refused, retry, level, text",
    [
        (ShardDamaged("q000", 0, "no meta"), "DAMAGED_RETRY", logging.ERROR, "is not served: "),
        (ShardRepairing("q000", 0, "no meta"), "REPAIRING_RETRY", logging.INFO, "is not served yet: "),
    ],
    ids=["damaged", "repairing"],
)
def test_a_shard_that_has_lost_keys_is_logged_and_tried_again(
    monkeypatch, caplog, refused, retry, level, text
):
    monkeypatch.setattr(f"celery_lowkiq.worker.acquisition.{retry}", 0.05)
    caplog.set_level(logging.INFO)
    node = Node(queues=queues(1, shards=3))
    lost_keys, acquire = [ShardRef("q000", 0)], node.store.acquire

    def refuse_once(watch, owner):
        if watch.shard in lost_keys:
            lost_keys.clear()
            raise refused
        return acquire(watch, owner)

    node.store.acquire = refuse_once
    node.start()
    eventually(lambda: taken(node) == 3)
    assert (level, f"shard q000/0 {text}{refused}") in [(one.levelno, one.message) for one in caplog.records]
    node.runtime.abandon()
    assert node.runtime.join(10)
