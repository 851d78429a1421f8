"""A queue that is stored with another number of shards: what a node takes up, and what it gives up."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import pytest

from celery_lowkiq.rules.errors import QueueResharded, ShardDamaged, StoreUnavailable
from celery_lowkiq.rules.leases import by_node_splitter, lease_splitter
from celery_lowkiq.rules.models import Layout, LeaseState, QueueSpec, ShardRef
from celery_lowkiq.rules.policies import Policies
from celery_lowkiq.rules.resharding import Resize, resize
from tests.unit.fakes import FakeStore
from tests.unit.nodes import Node, Q, once
from tests.waiting import eventually

LIMITED = QueueSpec("q", shards=4, policies=Policies(max_length=80))


def refs(*indexes):
    return tuple(ShardRef("q", index) for index in indexes)


def owned(node, owner="me"):
    """The shards of the queue that a node owns."""
    leases = dict(node.store.leases)
    return sorted(shard.index for shard, state in leases.items() if state.owner == owner)


def turns(node, count):
    """Wait for as many turns of ownership."""
    seen = len(node.store.news)
    eventually(lambda: len(node.store.news) > seen + count)


def given_elsewhere(store, shard, server=""):
    """A failover has taken place: the lease names the server before."""
    with store.lock:
        store.leases[shard] = replace(store.leases[shard], given_on="before", server=server)


def per_lane(node):
    return [len(lane["shards"]) for lane in node.runtime.snapshot()["lanes"]]


def run_until_gate(node, shard):
    begun = threading.Event()

    def act(batch):
        begun.set()
        node.gate.wait(10)

    node.runner.act = act
    node.store.push(shard, "runs")
    assert begun.wait(10)


class TestDecision:
    @pytest.mark.parametrize(
        ("route", "added", "removed"),
        [("6", (4, 5), ()), ("1", (), (1, 2, 3)), ("5", (4,), ()), ("4>6", (4, 5), ()), ("4>2", (), ())],
    )
    def test_shards_are_added_or_removed_at_the_end(self, route, added, removed):
        stored = Q.with_layout(Layout.parse(route))
        assert resize(Q, route) == Resize(stored, refs(*added), refs(*removed))

    @pytest.mark.parametrize(
        "route", ["4", "", "0", "4097", "closed", "-1", "4x", "\N{SUPERSCRIPT TWO}", "9" * 5000]
    )
    def test_the_same_number_and_what_is_none_change_nothing(self, route):
        assert resize(Q, route) is None

    def test_shards_are_removed_when_the_migration_has_ended(self):
        moving = Q.with_layout(Layout(2, former=4))
        assert resize(moving, "2").removed == refs(2, 3)
        assert resize(Q.with_layout(Layout(6, former=4)), "6") == Resize(replace(Q, shards=6), (), ())

    def test_a_queue_keeps_its_other_options(self):
        change = resize(LIMITED, "8")
        assert change.queue == replace(LIMITED, shards=8)
        assert change.queue.policy == "max_length=10 when_full=refuse"


class TestSharedShards:
    """By leases, as by default."""

    @pytest.fixture
    def started(self, node):
        one = node(queues=[LIMITED], splitter=lease_splitter).start()
        eventually(lambda: owned(one) == [0, 1, 2, 3])
        return one

    def test_added_shards_are_served_and_spread_over_the_lanes(self, started):
        started.store.routes["q"] = "8"
        eventually(lambda: owned(started) == list(range(8)))
        eventually(lambda: per_lane(started) == [4, 4])
        started.store.push(ShardRef("q", 7), "new")
        started.ran("new")
        eventually(lambda: started.store.reports["me"].lane_of(ShardRef("q", 7)))

    def test_removed_shards_are_left_and_not_watched_any_more(self, started):
        observed = []
        observe = started.store.observe
        started.store.observe = lambda shards: observed.append(shards) or observe(shards)
        started.store.routes["q"] = "1"
        eventually(lambda: owned(started) == [0])
        table = started.runtime._ownership._table
        eventually(lambda: list(table.known()) == [ShardRef("q", 0)])
        observed.clear()
        started.store.routes["q"] = "2"
        eventually(lambda: owned(started) == [0, 1])
        assert {shard.index for shards in observed for shard in shards} == {1}

    def test_numbers_may_follow_each_other_at_once(self, started):
        for number in (8, 3, 5, 1, 6):
            started.store.routes["q"] = str(number)
            news = len(started.store.news)
            eventually(lambda seen=news: len(started.store.news) > seen)
        eventually(lambda: owned(started) == list(range(6)))
        eventually(lambda: per_lane(started) == [3, 3])

    def test_all_parts_of_the_node_see_the_new_number(self, started):
        started.store.routes["q"] = "8"
        eventually(lambda: owned(started) == list(range(8)))
        wishes, claim = [], started.store.claim
        started.store.claim = lambda wish: wishes.append(wish) or claim(wish)
        started.store.push(ShardRef("q", 0), "1")
        started.ran("1")
        assert {wish.queue.policy for wish in wishes} == {"max_length=10 when_full=refuse"}
        table = started.runtime._ownership._table
        assert {table.watch(shard).queue.shards for shard in table.known()} == {8}
        eventually(
            lambda: any(queue.shards == 8 for news in started.store.news for queue in news.counted), 15
        )

    def test_a_removed_shard_is_served_until_it_is_empty(self, started):
        run_until_gate(started, ShardRef("q", 3))
        started.store.push(ShardRef("q", 3), "waits")
        started.store.routes["q"] = "3"
        table = started.runtime._ownership._table
        eventually(lambda: table.retired)
        news = len(started.store.news)
        eventually(lambda: len(started.store.news) > news + 2)
        assert owned(started) == [0, 1, 2, 3]
        started.gate.set()
        started.ran("runs", "waits")
        eventually(lambda: owned(started) == [0, 1, 2])
        assert started.store.leases[ShardRef("q", 3)].owner == ""

    def test_a_removed_shard_whose_last_batch_runs_is_released_by_its_settle(self, started):
        run_until_gate(started, ShardRef("q", 3))
        started.store.routes["q"] = "3"
        table = started.runtime._ownership._table
        eventually(lambda: table.retired)
        started.gate.set()
        started.ran("runs")
        eventually(lambda: owned(started) == [0, 1, 2])
        eventually(lambda: not table.retired)
        assert not started.runtime._ownership._losses._lost

    def test_a_shard_that_comes_back_before_it_was_given_up_stays(self, started):
        started.store.push(ShardRef("q", 3), "waits", perform_in=9e9)
        started.store.routes["q"] = "3"
        table = started.runtime._ownership._table
        eventually(lambda: table.retired == {ShardRef("q", 3)})
        epoch = started.store.leases[ShardRef("q", 3)].epoch
        started.store.routes["q"] = "4"
        eventually(lambda: not table.retired)
        news = len(started.store.news)
        eventually(lambda: len(started.store.news) > news + 2)
        assert started.store.leases[ShardRef("q", 3)].epoch == epoch

    def test_a_removed_shard_that_another_node_takes_is_forgotten(self, started):
        started.store.push(ShardRef("q", 3), "waits", perform_in=9e9)
        started.store.routes["q"] = "3"
        table = started.runtime._ownership._table
        eventually(lambda: table.retired == {ShardRef("q", 3)})
        started.store.steal(ShardRef("q", 3))
        eventually(lambda: not table.retired)
        assert started.store.leases[ShardRef("q", 3)].owner == "thief"

    def test_a_lease_that_another_server_gave_is_taken_anew_while_its_queue_moves(self, started):
        before = dict(started.store.leases)
        given_elsewhere(started.store, ShardRef("q", 2))
        turns(started, 3)
        assert started.store.leases[ShardRef("q", 2)].epoch == before[ShardRef("q", 2)].epoch
        started.store.routes["q"] = "4>8"
        eventually(lambda: started.store.leases[ShardRef("q", 2)].given_on == "")
        eventually(lambda: owned(started) == list(range(8)))
        turns(started, 3)
        epochs = {shard.index: state.epoch for shard, state in started.store.leases.items()}
        assert [epochs[n] - before[ShardRef("q", n)].epoch for n in range(4)] == [0, 0, 1, 0]

    def test_a_lease_that_another_server_gave_ends_with_its_batch(self, started):
        run_until_gate(started, ShardRef("q", 2))
        started.store.push(ShardRef("q", 2), "waits")
        epoch = started.store.leases[ShardRef("q", 2)].epoch
        started.store.routes["q"] = "4>8"
        given_elsewhere(started.store, ShardRef("q", 2))
        turns(started, 3)
        assert started.store.leases[ShardRef("q", 2)].epoch == epoch
        started.gate.set()
        started.ran("runs", "waits")
        assert started.store.leases[ShardRef("q", 2)].epoch == epoch + 1

    def test_a_shard_stays_when_its_node_does_not_know_the_server(self, started):
        """A release would be refused there, and the lease would have to run out."""
        started.store.routes["q"] = "4>8"
        given_elsewhere(started.store, ShardRef("q", 2), server="unknown")
        released, release = [], started.store._release
        started.store._release = lambda *args: released.append(args) or release(*args)
        turns(started, 3)
        assert not released

    def test_a_node_that_starts_with_another_number_serves_the_stored_one(self, node):
        one = node(queues=[Q], splitter=lease_splitter)
        one.store.routes["q"] = "6"
        one.start()
        eventually(lambda: owned(one) == list(range(6)))
        assert {state.epoch for state in one.store.leases.values()} == {1}

    def test_a_shard_that_is_refused_with_another_number_is_tried_again_with_the_stored_one(
        self, started, caplog
    ):
        acquire = started.store.acquire

        def refuse(one, owner):
            if one.queue.shards != 5:
                raise QueueResharded("q", Layout(5))
            return acquire(one, owner)

        started.store.acquire = refuse
        with started.store.lock:
            started.store.leases[ShardRef("q", 1)] = LeaseState("", 9, 99)
        eventually(lambda: owned(started) == [0, 2, 3])
        started.store.routes["q"] = "5"
        eventually(lambda: owned(started) == list(range(5)))
        assert not [record for record in caplog.records if record.levelname == "ERROR"]

    def test_an_outage_in_the_middle_is_survived(self, started):
        started.store.fail["next_due"] = once(StoreUnavailable("away"))
        started.store.routes["q"] = "2"
        eventually(lambda: owned(started) == [0, 1])
        started.store.fail["acquire"] = once(StoreUnavailable("away"))
        started.store.routes["q"] = "5"
        eventually(lambda: owned(started) == list(range(5)))

    def test_a_removed_shard_does_not_count_for_the_share_of_the_node(self, started):
        """It would give up others, or take fewer."""
        for index in (6, 7):
            started.store.push(ShardRef("q", index), "waits", perform_in=9e9)
        started.store.routes["q"] = "8"
        eventually(lambda: owned(started) == list(range(8)))
        started.store.routes["q"] = "4"
        eventually(lambda: owned(started) == [0, 1, 2, 3, 6, 7])
        started.store.routes["q"] = "6"
        eventually(lambda: owned(started) == list(range(8)))
        assert {started.store.leases[shard].epoch for shard in refs(0, 1, 2, 3, 6, 7)} == {1}

    def test_a_damaged_shard_that_was_removed_keeps_the_node_from_nothing(self, started):
        next_due, damaged = started.store.next_due, ShardRef("q", 3)

        def refuse(shards, *more):
            dues = zip(shards, next_due(shards, *more), strict=True)
            return [ShardDamaged("q", 3, "WRONGTYPE") if shard == damaged else due for shard, due in dues]

        started.store.next_due = refuse
        started.store.routes["q"] = "3"
        table = started.runtime._ownership._table
        eventually(lambda: table.retired)
        with started.store.lock:
            started.store.leases[ShardRef("q", 0)] = LeaseState("", 9, 99)
        eventually(lambda: owned(started) == [0, 1, 2, 3])
        assert table.retired == {damaged}

    def test_a_migration_to_fewer_shards_keeps_all_served(self, started):
        started.store.routes["q"] = "8"
        eventually(lambda: owned(started) == list(range(8)))
        started.store.routes["q"] = "8>3"
        table = started.runtime._ownership._table
        eventually(lambda: table.watch(ShardRef("q", 0)).queue.shards == 3)
        news = len(started.store.news)
        eventually(lambda: len(started.store.news) > news + 2)
        assert owned(started) == list(range(8))
        assert {state.epoch for state in started.store.leases.values()} == {1}
        started.store.routes["q"] = "3"
        eventually(lambda: owned(started) == [0, 1, 2])

    def test_two_nodes_share_the_shards_of_the_new_number(self, node):
        store = FakeStore()
        first, second = (
            node(store=store, owner=name, splitter=lease_splitter).start() for name in ("me", "other")
        )
        for number in (4, 9, 2, 7):
            store.routes["q"] = str(number)

            def shared(number=number):
                counts = sorted((len(owned(first)), len(owned(second, "other"))))
                return counts == [number // 2, number - number // 2]

            eventually(shared)
            assert sorted(owned(first) + owned(second, "other")) == list(range(number))


class TestFixedSplitter:
    def test_a_node_deals_by_the_stored_number_when_it_starts(self, node):
        one = node(splitter=by_node_splitter(2, 1))
        one.store.routes["q"] = "8"
        one.start()
        eventually(lambda: owned(one) == [1, 3, 5, 7])
        eventually(lambda: per_lane(one) == [2, 2])
        assert "q" not in one.store.members

    def test_it_says_once_that_it_needs_a_restart_and_keeps_its_deal(self, node, caplog):
        one = node(splitter=by_node_splitter(2, 0)).start()
        eventually(lambda: owned(one) == [0, 2])
        one.store.routes["q"] = "8"

        def warnings():
            return [text for text in caplog.messages if "restart the node" in text]

        eventually(warnings)
        news = len(one.store.news)
        eventually(lambda: len(one.store.news) > news + 2)
        assert warnings() == [
            "queue q has 8 shards now, but the splitter of this node deals shards once, when it starts: "
            "restart the node"
        ]
        assert owned(one) == [0, 2]
        one.store.push(ShardRef("q", 2), "1")
        one.ran("1")

    def test_what_was_dealt_is_acquired_by_the_new_number(self, node):
        one = node(splitter=by_node_splitter(2, 0)).start()
        eventually(lambda: owned(one) == [0, 2])
        one.store.routes["q"] = "8"
        table = one.runtime._ownership._table
        eventually(lambda: table.watch(ShardRef("q", 2)).queue.shards == 8)


def lines_of(caplog):
    return [text for text in caplog.messages if text.startswith("queue q ")]


def test_the_log_names_the_begin_and_the_end_of_a_migration(node, caplog):
    caplog.set_level(logging.INFO)
    one = node(splitter=lease_splitter)
    one.store.routes["q"] = "4"
    one.start()
    for route, logged in (("4>8", "queue q is moving from 4 to 8 shards"), ("8", "queue q has 8 shards now")):
        one.store.routes["q"] = route
        eventually(lambda logged=logged: lines_of(caplog)[-1:] == [logged])
    assert len(lines_of(caplog)) == 2


def test_a_node_that_starts_during_a_migration_to_the_declared_number_says_only_that(node, caplog):
    caplog.set_level(logging.INFO)
    one = node(splitter=lease_splitter)
    one.store.routes["q"] = "8>4"
    one.start()
    eventually(lambda: lines_of(caplog))
    assert lines_of(caplog) == ["queue q is moving from 8 to 4 shards"]


def test_a_queue_without_a_stored_number_is_served_as_declared():
    one = Node(splitter=lease_splitter).start()
    eventually(lambda: owned(one) == [0, 1, 2, 3])
    news = len(one.store.news)
    eventually(lambda: len(one.store.news) > news + 2)
    assert owned(one) == [0, 1, 2, 3]
    one.runtime.abandon()
    assert one.runtime.join(10)
