"""Tests of ``rules/leases.py``."""

from __future__ import annotations

import logging
import math
import threading
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_lowkiq.rules.errors import NotOwner, StoreUnavailable
from celery_lowkiq.rules.models import Disposition, Lease, LeaseState, QueueSpec, ShardRef
from celery_lowkiq.rules.shares import (
    Member,
    Pool,
    QuotaRoom,
    lease_splitter,
    least_loaded_lane,
    moves,
    quotas,
    surplus_shards,
)
from celery_lowkiq.worker.members import Membership
from celery_lowkiq.worker.owned_shard import OwnedShard
from tests.unit.fakes import FakeStore
from tests.unit.nodes import SHARDS, Node, Q, once
from tests.waiting import eventually


@given(st.integers(0, 500), st.dictionaries(st.text(max_size=3), st.integers(1, 32), min_size=1, max_size=12))
def test_quotas_add_up_and_follow_the_lanes(shards, lanes):
    found = quotas(shards, lanes)
    assert sum(found.values()) == shards
    for name, count in lanes.items():
        assert abs(found[name] - shards * count / sum(lanes.values())) < 1


@given(st.integers(0, 100), st.lists(st.sampled_from("abcdefgh"), min_size=2, unique=True))
def test_equal_nodes_get_shares_within_one(shards, names):
    found = quotas(shards, dict.fromkeys(names, 4)).values()
    assert max(found) - min(found) <= 1
    assert quotas(shards, dict.fromkeys(reversed(names), 4)) == quotas(shards, dict.fromkeys(names, 4))


def test_what_is_given_up_is_the_surplus_and_idle_first():
    held = [ShardRef("q", n) for n in range(5)]
    busy = frozenset({held[4], held[3]})
    assert surplus_shards(held, busy, 3) == [held[2], held[1]]
    assert surplus_shards(held, busy, 1) == [held[2], held[1], held[0], held[4]]
    assert surplus_shards(held, busy, 5) == surplus_shards(held, busy, 9) == []


def test_shards_taken_in_order_are_dealt_as_lowkiq_deals_them():
    loads = [0, 0, 0]
    lanes = []
    for _ in range(7):
        lanes.append(least_loaded_lane(loads))
        loads[lanes[-1]] += 1
    assert lanes == [0, 1, 2, 0, 1, 2, 0]


def test_shards_move_between_lanes_only_when_idle_and_worth_it():
    a, b, c = (ShardRef("q", n) for n in range(3))
    assert list(moves([[a, b], [c]], frozenset())) == []
    assert list(moves([[a, b, c], [], []], frozenset())) == [(c, 1), (b, 2)]
    assert list(moves([[a, b, c], []], frozenset({c}))) == [(b, 1)]
    assert list(moves([[a, b, c], []], frozenset({a, b, c}))) == []
    assert list(moves([], frozenset())) == []


def test_queues_that_the_same_nodes_serve_share_their_room():
    pools = [Pool(frozenset({"a", "b"}), 3, 3), Pool(frozenset({"c"}), 1, 1)]
    room = QuotaRoom(pools, [ShardRef("a", 0), ShardRef("gone", 1)])
    assert [room.left(queue) for queue in ("a", "b", "c", "gone")] == [True, True, True, False]
    room.fill("b")
    assert room.left("a")
    room.fill("a")
    room.fill("gone")
    assert [room.left(queue) for queue in ("a", "b", "c")] == [False, False, True]


def test_there_is_more_room_for_what_has_expired_while_other_nodes_are_new():
    room = QuotaRoom([Pool(frozenset({"a"}), 1, 2)], [ShardRef("a", 0)])
    assert [room.left("a"), room.left("a", expired=True)] == [False, True]
    room.fill("a")
    assert not room.left("a", expired=True)


class Watcher:
    """Node "me" with 2 lanes and a lease of 10 s, which watches node "other" in its queues of 4 shards."""

    def __init__(self, *queues):
        self.now, self._beats = 0.0, {}
        ctx = SimpleNamespace(
            clock=SimpleNamespace(monotonic=lambda: self.now), lease_seconds=10.0, owner="me", store=None
        )
        specs = {name: QueueSpec(name, shards=4) for name in queues}
        self.shards = [shard for spec in specs.values() for shard in spec.shard_refs()]
        self.membership = Membership(
            ctx, SimpleNamespace(beat=self._beat), specs, lanes=2, served=queues, shared=True
        )

    def _beat(self, queues, lanes):
        if self._beats is None:
            raise StoreUnavailable("all masters are unreachable")
        found = [self._beats.get(queue) for queue in queues]
        return SimpleNamespace(
            members=[None if turn is None else {"me": (2, 1), "other": (2, turn)} for turn in found],
            routes=[None if turn is None else "4" for turn in found],
        )

    def quota(self, seconds, **turns):
        """Return the quota at this time, when the heartbeats of the other node show these turns, by queue."""
        self.now, self._beats = seconds, turns
        self.membership.update()
        return len(self.shards) - len(self.membership.surplus(self.shards, frozenset()))

    def fail(self, seconds):
        """Read no heartbeats at this time."""
        self.now, self._beats = seconds, None
        with pytest.raises(StoreUnavailable):
            self.membership.update()


def test_no_shard_is_left_to_a_node_that_is_silent():
    """It may be frozen, and its last heartbeat counts for a lease time: nobody served the shard meanwhile."""
    watcher = Watcher("q")
    turns = {0.0: 1, 2.0: 2, 4.9: 2, 5.0: 2}
    assert [watcher.quota(seconds, q=turn) for seconds, turn in turns.items()] == [4, 2, 2, 4]
    assert watcher.membership.room(watcher.shards[:2]).left("q")
    assert watcher.quota(6.0, q=3) == 2
    assert not watcher.membership.room(watcher.shards[:2]).left("q")


def test_a_node_is_not_silent_where_its_heartbeats_are_not_read():
    """The master with those of queue b is unreachable. Each node would take the shares of all others."""
    watcher = Watcher("a", "b")
    assert [watcher.quota(0.0, a=1, b=1), watcher.quota(2.0, a=2, b=2)] == [8, 4]
    assert [watcher.quota(float(turn), a=turn) for turn in (4, 6, 8)] == [4, 4, 4]
    assert watcher.quota(9.0, a=9, b=2) == 4


def test_a_node_is_silent_that_is_so_in_all_queues_that_are_read():
    watcher = Watcher("a", "b")
    assert [watcher.quota(0.0, a=1, b=1), watcher.quota(2.0, a=2, b=2)] == [8, 4]
    assert [watcher.quota(4.0, a=2), watcher.quota(6.0, a=2)] == [4, 8]


def test_a_node_looks_again_when_another_one_becomes_silent():
    watcher = Watcher("a", "b")
    watcher.quota(0.0, a=1, b=1)
    assert watcher.membership.seconds_to_unresponsive() == 3.0
    found = {2.0: (2, 2), 4.0: (2, 3), 4.5: (2, 3), 5.0: (2, 3), 7.0: (2, 3)}
    waits = []
    for seconds, (a, b) in found.items():
        watcher.quota(seconds, a=a, b=b)
        waits.append(watcher.membership.seconds_to_unresponsive())
    assert waits == [3.0, 1.0, 0.5, 2.0, math.inf]


@pytest.mark.parametrize("away", [{}, None], ids=["its master", "all"])
def test_a_node_is_not_silent_as_long_as_it_may_have_had_no_place_for_heartbeats(away):
    """All nodes send theirs again when the master is back."""
    watcher = Watcher("q")
    assert [watcher.quota(0.0, q=1), watcher.quota(2.0, q=2)] == [4, 2]
    if away is None:
        watcher.fail(6.0)
    else:
        assert watcher.quota(6.0, **away) == 2
    assert [watcher.quota(8.0, q=2), watcher.quota(10.9, q=2), watcher.quota(11.0, q=2)] == [2, 2, 4]


class TestMember:
    start = Member("other", 4, 10, since=100.0)

    def test_it_counts_once_it_was_seen_to_move(self):
        assert not self.start.alive(100.1, 10)
        assert self.start.observed(11, 102.0).alive(102.0, 10)

    def test_it_is_gone_after_1_05_lease_times_without_a_beat(self):
        member = self.start.observed(11, 102.0)
        assert member.observed(11, 112.4).alive(112.4, 10)
        assert not member.observed(11, 112.5).alive(112.5, 10)
        assert member.observed(12, 113.0).alive(113.0, 10)

    def test_it_is_new_as_long_as_it_cannot_have_seen_a_lease_expire(self):
        new = Member("other", 4, 10, since=100.0, first_seen=100.0).observed(11, 102.0)
        assert new.is_new(110.4, 10)
        assert not new.is_new(110.5, 10)

    def test_its_heartbeat_is_removed_after_three(self):
        assert not self.start.gone(129.9, 10)
        assert self.start.gone(130.0, 10)


@pytest.fixture
def cluster():
    """Nodes on one store."""
    store, nodes = FakeStore(), []

    def add(name, **options):
        node = Node(store=store, splitter=lease_splitter, owner=name, **options).start()
        nodes.append(node)
        return node

    yield add
    for node in nodes:
        node.runtime.abandon()
        node.runtime.join(10)


def shares(*nodes):
    return [len(node.owns(f"n{number}")) for number, node in enumerate(nodes)]


class TestNodes:
    def test_a_joining_node_gets_its_share_and_the_rest_stays(self, cluster):
        first = cluster("n0")
        eventually(lambda: len(first.owns("n0")) == 4)
        second = cluster("n1")
        eventually(lambda: shares(first, second) == [2, 2])
        assert set(first.owns("n0")) == set(SHARDS[:2])

    def test_a_running_batch_is_finished_before_its_shard_is_handed_over(self, cluster):
        first = cluster("n0", lanes=4)
        gate = threading.Event()
        first.runner.act = lambda batch: gate.wait(10) and None
        eventually(lambda: len(first.owns("n0")) == 4)
        for shard in SHARDS:
            first.store.push(shard, f"busy-{shard.index}")
        eventually(lambda: len(first.runner.ids) == 4)
        second = cluster("n1", lanes=4)
        eventually(lambda: second.store.members["q"].get("n1", (0, 0))[1] > 8)
        assert shares(first, second) == [4, 0]
        gate.set()
        eventually(lambda: shares(first, second) == [2, 2])
        eventually(lambda: sorted(first.store.settled) == [(f"busy-{n}", Disposition.DONE) for n in range(4)])

    def test_a_shard_that_changed_hands_before_it_was_handed_over_is_no_outage(self, cluster, caplog):
        caplog.set_level(logging.INFO)
        first = cluster("n0")
        eventually(lambda: len(first.owns("n0")) == 4)
        first.store.fail["release"] = once(NotOwner("the shard has changed hands"))
        second = cluster("n1")
        eventually(lambda: shares(first, second) == [2, 2])
        assert [r.levelname for r in caplog.records if "it has changed hands" in r.message] == ["INFO"]
        assert {record.levelname for record in caplog.records} == {"INFO"}

    def test_a_leaving_node_is_replaced_at_once(self, cluster):
        first, second = cluster("n0", lease_seconds=2.0), cluster("n1", lease_seconds=2.0)
        eventually(lambda: shares(first, second) == [2, 2])
        second.runtime.drain()
        assert second.runtime.join(10)
        eventually(lambda: shares(first, second) == [4, 0])
        assert "n1" not in first.store.members["q"]

    def test_a_dead_node_is_replaced_after_its_lease(self, cluster):
        first = cluster("n0")
        store = first.store
        store.members["q"]["dead"] = (2, 5)
        eventually(lambda: "dead" not in store.members["q"])
        eventually(lambda: shares(first) == [4])

    def test_nodes_of_other_queues_take_no_share(self, cluster):
        other = QueueSpec("other", shards=3)
        both, only_q = cluster("n0", queues=[Q, other]), cluster("n1")
        eventually(lambda: shares(both, only_q) == [2, 2])
        leases = both.store.leases
        eventually(lambda: all(leases[shard].owner == "n0" for shard in other.shard_refs()))

    def test_lanes_have_shares_within_one(self, cluster):
        first = cluster("n0", lanes=2)
        eventually(lambda: shares(first) == [4])
        second = cluster("n1", lanes=2)
        eventually(lambda: shares(first, second) == [2, 2])

        def per_lane(node):
            return [len(lane["shards"]) for lane in node.runtime.snapshot()["lanes"]]

        eventually(lambda: per_lane(first) == per_lane(second) == [1, 1])

    def test_a_node_alone_deals_its_shards_as_lowkiq_does(self, cluster):
        queues = [QueueSpec(name, shards=count) for name, count in (("A", 3), ("B", 4), ("C", 1), ("D", 2))]
        first = cluster("n0", queues=queues, lanes=3)
        eventually(lambda: sum(lease.owner == "n0" for lease in first.store.leases.values()) == 10)
        lanes = [set(lane["shards"]) for lane in first.runtime.snapshot()["lanes"]]
        assert lanes == [{"A/0", "B/0", "B/3", "D/1"}, {"A/1", "B/1", "C/0"}, {"A/2", "B/2", "D/0"}]


class LosesIt:
    """A lane that finds its shard lost just while the ownership thread looks at it."""

    def __init__(self, mailbox, lane, owned):
        self._mailbox, self._lane, self._owned = mailbox, lane, owned

    def __getattr__(self, name):
        if name in ("working", "drop"):
            self._mailbox.report_gone(self._owned)
        return getattr(self._lane, name)


def an_owner():
    """A node with two lanes that has all leases; its own threads do not run."""
    node = Node(splitter=lease_splitter, lanes=2)
    ownership = node.runtime._ownership
    ownership._membership.update()
    node.store.leases |= {shard: LeaseState("me", 1, 0) for shard in SHARDS}
    return node, ownership, ownership._table, ownership._rebalancing


@pytest.mark.parametrize("step", ["share", "level"])
def test_a_shard_that_is_lost_while_it_is_given_away_is_just_gone(step):
    node, ownership, table, rebalancing = an_owner()
    lanes = node.runtime._lanes
    for shard in SHARDS:
        owned = OwnedShard(Q, Lease(shard, "me", 1), 60.0, time.monotonic())
        loses_it = LosesIt(node.runtime._ctx.mailbox, lanes[0], owned)
        table.add(owned, loses_it if shard in SHARDS[2:] else lanes[0])
    if step == "share":
        for shard in SHARDS[2:]:
            table.leave(shard)
        assert rebalancing.share({"q"}, (), go_on=lambda: True)
    else:
        rebalancing.level()
    ownership._renew(stopping=False)
    assert table.get(SHARDS[3]) is None
    assert [table.get(shard) is None for shard in SHARDS[:2]] == [False, False]
    assert not any(SHARDS[3] in lane.shards() for lane in lanes)


def test_a_shard_whose_lease_was_not_renewed_is_released_later(monkeypatch):
    """Its master is unreachable. A release without an answer would keep the node from trusting its
    replica.
    """
    node, _, table, rebalancing = an_owner()
    for shard in SHARDS:
        table.add(OwnedShard(Q, Lease(shard, "me", 1), 60.0, time.monotonic()))
    released = []
    monkeypatch.setattr(node.store, "release", lambda lease: released.append(lease.shard) or True)
    assert rebalancing.share((), SHARDS[:1], go_on=lambda: True)
    assert released == [*SHARDS[1:]]
    assert rebalancing.share((), (), go_on=lambda: True)
    assert released == [*SHARDS[1:], SHARDS[0]]


@pytest.mark.parametrize("away", [False, True], ids=["", "of a master that is unreachable"])
def test_a_surplus_shard_is_served_until_its_turn_to_be_released(away, monkeypatch):
    """A release may wait for a master, and the shards after it must not."""
    node, ownership, table, rebalancing = an_owner()
    lanes = node.runtime._lanes
    for shard in SHARDS:
        table.add(OwnedShard(Q, Lease(shard, "me", 1), 60.0, time.monotonic()))
    served = []

    def release(lease):
        served.append({shard for lane in lanes for shard in lane.shards()})
        return None if away else True

    monkeypatch.setattr(node.store, "release", release)
    monkeypatch.setattr(ownership._membership, "surplus", lambda owned, busy: SHARDS[:3])
    assert rebalancing.share({"q"}, (), go_on=lambda: True)
    assert served == [{*SHARDS[1:]}, {*SHARDS[2:]}, {*SHARDS[3:]}]
    # What did not fit into the turn is served until the next one.
    monkeypatch.setattr(ownership._membership, "surplus", lambda owned, busy: SHARDS[3:])
    assert not rebalancing.share({"q"}, (), go_on=lambda: False)
    assert {shard for lane in lanes for shard in lane.shards()} == {*SHARDS[3:]}
