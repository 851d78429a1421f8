"""Tests of ``rules/resharding.py``."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import pytest

from celery_lowkiq.rules import resharding
from celery_lowkiq.rules.errors import QueueResharded, ShardDamaged, StoreUnavailable
from celery_lowkiq.rules.models import Layout, LeaseState, QueueSpec, ShardRef
from celery_lowkiq.rules.policies import Policies
from celery_lowkiq.rules.resharding import (
    LARGEST_SHARE,
    LEAST_SHARE,
    LONGEST_TURN,
    Export,
    Migration,
    Pace,
    Phase,
    Resize,
    ShardMoves,
    UnresponsiveOwners,
    cost,
    has_come_back,
    has_sorted,
    is_finished,
    last_export,
    pages_of,
    paused_turn,
    resize,
    shards_of_turn,
    turn,
    turns_of_round,
)
from celery_lowkiq.rules.shares import lease_splitter
from tests.unit.fakes import FakeStore
from tests.unit.nodes import Node, Q, once, part
from tests.waiting import eventually

# What a mover decides in a turn.

GROWS = Migration(1, Phase.MOVE, Layout(4, 2))
SHRINKS = Migration(1, Phase.MOVE, Layout(2, 4))


def ids(migration, source, home, count=1):
    """Ids of a former shard and of a new one."""
    layout = migration.layout
    found = (
        name
        for name in map(str, range(10_000))
        if (layout.former_home(name), layout.home(name)) == (None if source == home else source, home)
    )
    return tuple(next(found) for _ in range(count))


def moves(*moving, gen=1, **others):
    return ShardMoves("2>4", gen, moving, **{"waiting": len(moving), **others})


def test_ids_that_stay_become_claimable_and_others_leave():
    stays, leaves = ids(GROWS, 0, 0), ids(GROWS, 0, 2)
    done = turn(GROWS, {0: moves(*stays, *leaves)}, {})
    assert done.relays == {0: stays}
    assert done.exports == (Export(0, 2, leaves),)


def test_a_source_is_asked_for_an_id_that_a_call_has_brought():
    (job_id,) = ids(GROWS, 0, 2)
    assert turn(GROWS, {2: moves(job_id)}, {}).exports == (Export(0, 2, (job_id,)),)


def test_ids_that_calls_have_brought_come_first(monkeypatch):
    monkeypatch.setattr(resharding, "TRANSFER_IDS", 2)
    first, second, third = ids(GROWS, 0, 2, 3)
    done = turn(GROWS, {0: moves(first, second), 2: moves(third)}, {})
    assert done.exports == (Export(0, 2, (third, first)),)


def test_what_was_in_processing_and_strays_leave_too():
    runs, dead = ids(GROWS, 1, 3, 2)
    (stays,) = ids(GROWS, 1, 1)
    done = turn(GROWS, {1: moves(inflight=(runs, stays))}, {1: [dead]})
    assert done.exports == (Export(1, 3, (runs, dead)),)


def test_a_transfer_that_is_on_its_way_is_asked_for_again():
    assert turn(GROWS, {0: moves(pending=(2,))}, {}).exports == (Export(0, 2),)


@pytest.mark.parametrize(
    "found",
    [
        moves(*ids(GROWS, 0, 2)),
        moves(inflight=ids(GROWS, 0, 2)),
        moves(*ids(GROWS, 0, 0), waiting=2),
        moves(gen=0),
    ],
)
def test_a_source_that_an_id_may_leave_is_not_sorted(found):
    assert not has_sorted(GROWS, 0, found)


def test_a_source_is_finished_when_nothing_is_on_its_way():
    stays = ids(GROWS, 0, 0)
    assert is_finished(GROWS, 0, moves(*stays, inflight=stays))
    assert not is_finished(GROWS, 0, moves(pending=(2,)))


def test_what_comes_back_to_a_finished_source_is_all_that_leaves_it():
    stays, leaves = ids(SHRINKS, 0, 0), ids(SHRINKS, 3, 1)
    assert not has_come_back(SHRINKS, 0, moves(*stays, inflight=stays, counts=5))
    # More wait than were read.
    assert not has_come_back(SHRINKS, 0, replace(moves(*stays), waiting=100))
    back = {"pending": (1,), "staying": True, "given_elsewhere": "a 1 1 server", "counts": 5, "gen": 0}
    for name, value in back.items():
        assert has_come_back(SHRINKS, 3, replace(moves(), **{name: value}))
    assert has_come_back(SHRINKS, 3, moves(*leaves))
    assert has_come_back(SHRINKS, 3, moves(inflight=leaves))


def test_an_owner_is_silent_when_its_lease_has_not_changed_for_its_time():
    owners = UnresponsiveOwners(10.0)
    owners.observed(3, "a 1 1", 0.0)
    owners.observed(3, "a 1 1", 10.0)
    assert [owners.unresponsive(3, now) for now in (0.0, 10.4, 10.5)] == ["", "", "a 1 1"]
    owners.observed(3, "a 1 2", 11.0)
    assert [owners.unresponsive(3, now) for now in (11.0, 21.4, 21.5)] == ["", "", "a 1 2"]
    owners.observed(3, "", 30.0)
    assert owners.unresponsive(3, 100.0) == owners.unresponsive(4, 100.0) == ""


@pytest.mark.parametrize("shards, left", [(None, ["", ""]), ([1], ["", "b"])])
def test_an_owner_that_could_not_renew_is_watched_from_anew(shards, left):
    owners = UnresponsiveOwners(10.0)
    owners.observed(1, "a", 0.0)
    owners.observed(2, "b", 0.0)
    owners.doubted(shards)
    assert [owners.unresponsive(index, 20.0) for index in (1, 2)] == left


def test_counts_leave_a_shard_that_is_retired_after_all_else():
    assert last_export(SHRINKS, 3, moves(counts=5)) == Export(3, 1, counts=True)
    assert not is_finished(SHRINKS, 3, moves(counts=5))
    assert last_export(SHRINKS, 3, moves(*ids(SHRINKS, 3, 1), counts=5)) is None
    assert last_export(SHRINKS, 1, moves(counts=5)) is None
    assert is_finished(SHRINKS, 1, moves(counts=5))


def test_a_shard_that_the_new_number_does_not_have_is_retired():
    assert [SHRINKS.sealed(index) for index in range(4)] == ["2", "2", "retired", "retired"]


@pytest.mark.parametrize(("count", "round_of"), [(1, 1), (16, 1), (17, 2), (96, 6), (384, 24), (1000, 24)])
def test_turns_go_round_over_all_shards(count, round_of):
    migration = Migration(1, Phase.MOVE, Layout(count, 1))
    assert turns_of_round(migration) == round_of
    turns = [shards_of_turn(migration, number) for number in range(2 * round_of)]
    assert all(turns)
    assert sorted(index for turn in turns for index in turn) == sorted(2 * list(range(count)))


def share(pace, movers=1):
    """The part of the time that movers work together."""
    return movers * 0.01 / (0.01 + pace.pause_after(0.01, movers))


def paced(*requests):
    """After requests that took so long (s), again and again."""
    pace = Pace()
    for seconds in 50 * requests:
        pace.asked(seconds)
    return pace


@pytest.mark.parametrize("movers", [1, 2, 8])
def test_movers_together_leave_a_part_of_an_idle_redis(movers):
    assert share(paced(0.001, 0.0015), movers) == pytest.approx(LARGEST_SHARE)


@pytest.mark.parametrize("movers", [1, 8])
def test_movers_take_their_part_of_what_other_work_leaves(movers):
    # Redis is busy for others in a fifth of the time, whatever the way there takes.
    for way in (0.0001, 0.01):
        pace = paced(way, 9 * way, way, 2 * way, way)
        assert pace.busy == pytest.approx(0.2, abs=0.05)
        assert share(pace, movers) == pytest.approx(0.8 * LARGEST_SHARE, abs=0.04)


def test_movers_go_on_slowly_while_redis_is_always_busy():
    busy = paced(0.0001, *[0.05] * 100)
    assert share(busy) == pytest.approx(LEAST_SHARE)
    for _ in range(50):
        busy.asked(0.0001)
    assert share(busy) == pytest.approx(LARGEST_SHARE, abs=0.05)


def test_a_mover_that_was_frozen_in_a_turn_goes_on_soon():
    assert Pace().pause_after(3600.0, 8) == pytest.approx((8 / LARGEST_SHARE - 1) * LONGEST_TURN)


@pytest.mark.parametrize(("former", "shards"), [(4, 4096), (24, 48), (48, 24), (4096, 1)])
def test_the_pages_of_each_turn_share_its_jobs_among_its_sources(former, shards):
    migration = Migration(1, Phase.MOVE, Layout(shards, former))
    for number in range(turns_of_round(migration)):
        found = pages_of(migration, shards_of_turn(migration, number))
        sources = [page for index, page in found.items() if index < former]
        # A turn without a source would sort nothing; there is one where there are enough sources.
        assert not sources or 500 < sum(sources) <= 1000
        assert bool(sources) == (number < former)
        assert min(found.values()) >= 1


def test_a_shard_has_a_page_also_in_a_large_turn():
    assert set(pages_of(Migration(1, Phase.MOVE, Layout(4096, 4000)), range(4096)).values()) == {1}


def test_in_a_pause_ids_stay_unless_calls_have_brought_them():
    stays, leaves, arrives = ids(GROWS, 0, 0), ids(GROWS, 0, 2), ids(GROWS, 1, 3)
    found = {0: moves(*stays, *leaves, inflight=leaves, pending=(2,)), 3: moves(*arrives)}
    staying, done = paused_turn(GROWS, found)
    assert staying == {0: leaves}
    assert done.relays == {0: stays}
    assert done.exports == (Export(0, 2), Export(1, 3, arrives))


def test_a_shard_is_not_finished_while_jobs_that_leave_it_may_be_claimed():
    assert not is_finished(GROWS, 0, moves(staying=True))


def test_the_cost_of_a_migration():
    def leaving(former, shards):
        return cost("orders", Layout(shards, former), 600, 1200).leaving

    assert (leaving(24, 48), leaving(48, 24), leaving(2, 3), leaving(5, 5)) == (300, 300, 400, 0)
    found = cost("orders", Layout(48, 24), 600, 1200)
    assert (found.leaving_bytes, found.seconds) == (600, 600 / resharding.JOBS_PER_SECOND)


# A queue that is stored with another number of shards: what a node takes up, and what it gives up.

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
        eventually(lambda: table.shards_of("q") == [ShardRef("q", 0)])
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
        assert {table.watch(shard).queue.shards for shard in table.shards_of("q")} == {8}
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
        one = node(splitter=part(2, 1))
        one.store.routes["q"] = "8"
        one.start()
        eventually(lambda: owned(one) == [1, 3, 5, 7])
        eventually(lambda: per_lane(one) == [2, 2])
        assert "q" not in one.store.members

    def test_it_says_once_that_it_needs_a_restart_and_keeps_its_deal(self, node, caplog):
        one = node(splitter=part(2, 0)).start()
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
        one = node(splitter=part(2, 0)).start()
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
