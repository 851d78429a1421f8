"""One master of a cluster is unreachable: its shards wait, and those of the others go on."""

from __future__ import annotations

from functools import partial

import pytest

from celery_lowkiq.rules.errors import NotOwner, ShardDamaged, StoreUnavailable
from celery_lowkiq.rules.models import Disposition, LeaseState, QueueSpec
from celery_lowkiq.rules.shares import lease_splitter
from celery_lowkiq.worker import acquisition, lane
from celery_lowkiq.worker import lane as claim_cycle
from tests.unit.fakes import FakeStore
from tests.unit.nodes import SHARDS, Node, Q
from tests.waiting import eventually

AWAY = StoreUnavailable("Redis is not available: its master is unreachable")
HERE, THERE = SHARDS[1], SHARDS[0]


class Masters(FakeStore):
    """Answers for each shard alone; ``away``: the shards of a master that does not answer."""

    def __init__(self):
        super().__init__()
        self.away = set()
        self.tokens_away = False

    def observe(self, shards):
        return [
            None if s in self.away else state
            for s, state in zip(shards, super().observe(shards), strict=True)
        ]

    def acquire_all(self, wanted, owner):
        return [
            AWAY if one.shard in self.away else super(Masters, self).acquire_all([one], owner)[0]
            for one in wanted
        ]

    def renew(self, leases, stopping, turn):
        renewed = iter(super().renew([x for x in leases if x.shard not in self.away], stopping, turn))
        return [None if lease.shard in self.away else next(renewed) for lease in leases]

    def next_due(self, shards, in_hand=(), were_empty=()):
        dues = super().next_due(shards, in_hand, were_empty)
        return [None if s in self.away else due for s, due in zip(shards, dues, strict=True)]

    def release(self, lease, unsettled=False):
        return None if lease.shard in self.away else super().release(lease, unsettled)

    def tokens(self, asked):
        return AWAY if self.tokens_away else super().tokens(asked)

    def exchange(self, settle, claim):
        settled, claimed = (
            asked if asked is None or asked.lease.shard not in self.away else AWAY
            for asked in (settle, claim)
        )
        answers = super().exchange(None if settled is AWAY else settle, None if claimed is AWAY else claim)
        return tuple(a if a is AWAY else b for a, b in zip((settled, claimed), answers, strict=True))


@pytest.fixture
def one(node, monkeypatch):
    monkeypatch.setattr(claim_cycle, "PARKED", 0.02)
    monkeypatch.setattr(lane, "PARKED", 0.02)
    return node(store=Masters(), lanes=1, poll_interval=0.05, lease_seconds=5.0)


def ids(store):
    return [job_id for job_id, _ in store.settled]


def test_a_lane_goes_on_with_the_shards_of_other_masters(one):
    one.start()
    eventually(lambda: set(one.owns()) == {*SHARDS})
    one.store.away = {THERE}
    one.store.push(THERE, "waits")
    one.store.push(HERE, "runs")
    one.ran("runs")
    assert "waits" not in ids(one.store)
    one.store.away = set()
    one.ran("waits")


def test_a_claim_that_cannot_be_settled_is_set_aside_and_settled_once(one):
    one.start_with_run("1", THERE)
    one.store.away = {THERE}
    one.store.push(THERE, "next")
    one.gate.set()
    for number in range(3):
        one.store.push(HERE, f"here-{number}")
    one.ran("here-0", "here-1", "here-2")
    assert ids(one.store).count("1") == 0
    (only,) = one.runtime._lanes
    assert THERE in only.working
    one.store.away = set()
    one.ran("1", "next")
    assert [job_id for job_id, _ in one.runner.runs].count("1") == 1
    assert ids(one.store).count("1") == 1
    eventually(lambda: not only.working)


def test_what_is_aside_is_settled_though_nothing_else_is_due(one):
    """A poll shows no job: the only ones are in processing, and of open claims."""
    one.start_with_run("1", THERE)
    one.store.away = {THERE}
    one.gate.set()
    (only,) = one.runtime._lanes
    eventually(lambda: THERE in only._aside)
    polls = one.store.refreshes
    eventually(lambda: one.store.refreshes > polls + 2)
    one.store.away = set()
    polls = one.store.refreshes
    eventually(lambda: one.store.refreshes > polls + 2)
    one.ran("1")
    assert [job_id for job_id, _ in one.runner.runs] == ["1"]
    eventually(lambda: not only.working)


def test_what_is_aside_of_an_idle_lane_for_which_others_poll_is_settled(node, monkeypatch):
    monkeypatch.setattr(claim_cycle, "PARKED", 0.02)
    monkeypatch.setattr(lane, "PARKED", 0.02)
    one = node(store=Masters(), lanes=1, poll_interval=3600.0, lease_seconds=5.0)
    one.start_with_run("1", THERE)
    one.store.away = {THERE}
    one.gate.set()
    (only,) = one.runtime._lanes
    eventually(lambda: THERE in only._aside)
    one.store.away = set()
    one.ran("1")


def test_a_poll_that_waited_for_a_master_is_followed_by_no_rest(one):
    one.start()
    eventually(lambda: set(one.owns()) == {*SHARDS})
    (only,) = one.runtime._lanes
    seconds = []
    end_poll = only.end_poll
    only.end_poll = lambda answers, took: (seconds.append(took), end_poll(answers, took))
    eventually(lambda: seconds)
    assert min(seconds) > 0
    one.store.away = {THERE}
    eventually(lambda: seconds[-3:] == [0.0] * 3)


def test_a_queue_whose_tokens_are_away_waits_alone(node):
    """It is asked about now and then, not by each of its shards; and no outage is noted."""
    other = QueueSpec("others", shards=2)
    options = {"queues": [Q, other], "rates": {Q.name: 1000.0}, "lanes": 1, "poll_interval": 0.05}
    one = node(store=Masters(), lease_seconds=5.0, **options)
    one.store.bucket = 1000
    one.store.tokens_away = True
    one.start()
    for number, shard in enumerate(SHARDS):
        one.store.push(shard, f"limited-{number}")
    for number in range(5):
        one.store.push(other.shard_refs()[number % 2], f"other-{number}")
        one.ran(f"other-{number}")
    assert not [job_id for job_id in ids(one.store) if job_id.startswith("limited")]
    assert one.runtime._ctx.outage._since is None
    one.store.tokens_away = False
    one.ran(*(f"limited-{number}" for number in range(len(SHARDS))))


def test_two_claims_of_two_shards_are_aside_at_once(one):
    """As many as there are shards, one of each."""
    one.start_with_run("1", THERE)
    one.store.push(SHARDS[2], "2", announce=False)
    away = {THERE, SHARDS[2]}
    begun = one.runner.act

    def act(batch):
        begun(batch)
        if batch.jobs[0].id == "2":
            one.store.away = away

    one.runner.act = act
    one.store.away = {THERE}
    one.gate.set()
    (only,) = one.runtime._lanes
    eventually(lambda: set(only._aside) == away)
    one.store.push(HERE, "here")
    one.ran("here")
    one.store.away = set()
    one.ran("1", "2")
    assert sorted(job_id for job_id, _ in one.runner.runs) == ["1", "2", "here"]


def test_what_is_aside_is_given_up_when_the_shard_is_lost(one):
    one.start_with_run("1", THERE)
    one.store.away = {THERE}
    one.gate.set()
    (only,) = one.runtime._lanes
    eventually(lambda: THERE in only._aside)
    one.store.steal(THERE)
    one.store.away = set()
    eventually(lambda: THERE not in only.working)
    assert "1" not in ids(one.store)
    assert THERE not in one.owns()


def test_a_node_that_stops_settles_what_is_aside_when_its_master_is_back(one):
    one.start_with_run("1", THERE)
    one.store.away = {THERE}
    one.gate.set()
    (only,) = one.runtime._lanes
    eventually(lambda: THERE in only._aside)
    one.runtime.drain()
    one.store.away = set()
    assert one.runtime.join(10)
    assert ids(one.store) == ["1"]
    assert one.owns() == []


def test_a_lease_whose_master_is_away_runs_out_alone(node):
    one = node(store=Masters(), lease_seconds=2.0, poll_interval=0.05).start()
    eventually(lambda: set(one.owns()) == {*SHARDS})
    counters = {shard: one.store.leases[shard].counter for shard in SHARDS}
    one.store.away = {THERE}
    owned = {each.shard: each for each in one.runtime._ownership._table.owned()}
    eventually(owned[THERE].lost.is_set)
    assert not any(owned[shard].lost.is_set() for shard in SHARDS[1:])
    assert all(one.store.leases[shard].counter > counters[shard] for shard in SHARDS[1:])
    one.store.away = set()
    eventually(lambda: not owned[THERE].lost.is_set())


def test_shards_are_released_to_another_node_while_a_master_is_away(node):
    """Those of other masters, also behind one that cannot be released."""
    options = {"splitter": lease_splitter, "lease_seconds": 0.5, "poll_interval": 0.05}
    one = node(store=Masters(), **options).start()
    eventually(lambda: set(one.owns()) == {*SHARDS})
    one.store.away = {*SHARDS[2:3]}
    node(store=one.store, owner="other", **options).start()
    eventually(lambda: one.owns("other"))
    assert SHARDS[2] in one.owns()
    one.store.away = set()
    eventually(lambda: len(one.owns()) == len(one.owns("other")) == 2)


def test_a_node_that_stops_releases_the_shards_of_living_masters_at_once(node):
    one = node(store=Masters(), lease_seconds=0.5, poll_interval=0.05).start()
    eventually(lambda: set(one.owns()) == {*SHARDS})
    one.store.away = {THERE}
    one.runtime.drain()
    eventually(lambda: one.owns() == [THERE])
    one.store.away = set()
    assert one.runtime.join(10)
    assert one.owns() == []


def test_a_node_that_stops_while_the_queues_own_master_is_away_releases_its_shards(node):
    one = node(store=Masters(), lease_seconds=5.0, splitter=lease_splitter).start()
    eventually(lambda: set(one.owns()) == {*SHARDS})
    away = [True]

    def fail(after):
        if away[0]:
            raise AWAY

    one.store.fail["forget_members"] = fail
    one.runtime.drain()
    eventually(lambda: one.owns() == [], 3)
    away[0] = False
    assert one.runtime.join(10)


def test_a_dead_node_that_cannot_be_forgotten_yet_ends_no_turn(node):
    """The master with the queue's heartbeats became unreachable in between: shards are shared on."""
    store, asked = Masters(), []
    store.members[Q.name] = {"dead": (2, 1)}

    def fail(after):
        asked.append(after)
        raise AWAY

    store.fail["forget_members"] = fail
    one = node(store=store, lease_seconds=0.1, poll_interval=0.05, splitter=lease_splitter).start()
    eventually(lambda: len(asked) > 2)
    assert one.runtime._ctx.outage._since is None
    eventually(lambda: set(one.owns()) == {*SHARDS})
    store.fail.clear()


def test_what_was_seen_of_other_masters_is_not_doubted(node):
    """A shard that waits out its owner's silence waits on while another master is unreachable."""
    store = Masters()
    for shard in SHARDS[:2]:
        store.leases[shard] = LeaseState("dead", 1, 1)
    one = node(store=store, lease_seconds=0.5).start()
    eventually(lambda: HERE in one.owns() or one.runtime._ownership._table.watch(HERE).since)
    store.away = {THERE}
    eventually(lambda: HERE in one.owns(), 5)
    assert THERE not in one.owns()
    watch = one.runtime._ownership._table.watch(THERE)
    eventually(lambda: one.runtime._ownership._table.watch(THERE).since is None or watch.since is None)
    store.away = set()
    eventually(lambda: THERE in one.owns(), 5)


@pytest.mark.parametrize("asked", ["observe", "acquire_all"])
def test_a_shard_that_was_released_while_its_master_was_away_is_acquired_soon(node, asked, monkeypatch):
    """Its announcement was lost; the next turn of these nodes would come after 20 s."""
    store = Masters()
    if asked == "acquire_all":
        monkeypatch.setattr(store, "observe", partial(FakeStore.observe, store))
    store.away = {THERE}
    one = node(store=store, lease_seconds=100.0, poll_interval=0.05).start()
    eventually(lambda: set(one.owns()) == {*SHARDS} - {THERE})
    store.away = set()
    eventually(lambda: THERE in one.owns(), 10)


@pytest.mark.parametrize(
    "refusal, turns",
    [(None, 1), (AWAY, 2), (ShardDamaged("q", 0, "no meta"), 2)],
    ids=["away", "answers reads only", "damaged"],
)
def test_free_shards_that_cannot_be_acquired_leave_room_for_others(refusal, turns, monkeypatch):
    """They come first by name, and filled the node's share in each turn. It learns of a refusal in one."""
    monkeypatch.setattr(acquisition, "DAMAGED_RETRY", 0.0)
    first, second, kept, released = SHARDS
    store = Masters()
    store.leases = {shard: LeaseState("", 1, 1) for shard in (first, second)}
    store.leases |= {shard: LeaseState("other", 1, 1) for shard in (kept, released)}
    one = Node(store=store, splitter=lease_splitter, lease_seconds=600.0)
    looks, membership, table = _parts_of(one)
    for number in (1, 2):
        store.members = {Q.name: {"other": (2, number)}}
        membership.update()
    looks.observe(SHARDS)
    refused = {first, second}
    if refusal is None:
        store.away = refused
    acquire_all = store.acquire_all
    store.acquire_all = lambda wanted, owner: [
        refusal if refusal and each.shard in refused else acquire_all([each], owner)[0] for each in wanted
    ]

    def turn():
        wanted = table.wanted({Q.name})
        looks.observe(wanted)
        assert looks.acquire(wanted, go_on=lambda: True)
        return one.owns()

    store.leases[released] = LeaseState("", 1, 2)
    assert [turn() for _ in range(turns)] == [[]] * (turns - 1) + [[released]]
    # The others have their turn later, within the node's share.
    refused.clear()
    assert len(turn()) == 2
    store.members, store.leases[kept] = {Q.name: {}}, LeaseState("", 1, 2)
    membership.update()
    assert turn() == [*SHARDS]
    assert not looks._refused


def _parts_of(node):
    ownership = node.runtime._ownership
    return ownership._acquisition, ownership._membership, ownership._table


def test_a_lease_whose_master_was_away_is_renewed_soon(node):
    """The next turn of this node would come after 20 s: too late for a lease that is renewed each 20 s."""
    one = node(store=Masters(), lease_seconds=100.0, poll_interval=0.05).start()
    eventually(lambda: set(one.owns()) == {*SHARDS})
    one.store.away = {THERE}
    renewed = one.store.leases[HERE].counter, one.store.leases[THERE].counter
    one.runtime._ctx.mailbox.wake()
    eventually(lambda: one.store.leases[HERE].counter > renewed[0])
    one.store.away = set()
    eventually(lambda: one.store.leases[THERE].counter > renewed[1], 10)


def test_a_master_that_stays_away_costs_no_more_turns_after_a_lease_time(node, monkeypatch):
    monkeypatch.setattr(acquisition, "UNREACHABLE_RETRY", 0.0)
    store = Masters()
    store.away = {THERE}
    one = node(store=store, lease_seconds=1.0, poll_interval=0.05).start()
    looks = one.runtime._ownership._acquisition
    eventually(lambda: looks.seconds_to_observation(SHARDS) == 0.0)
    eventually(lambda: looks.seconds_to_observation(SHARDS) > 0.0)
    assert THERE not in one.owns()


def test_the_errors_of_others_are_no_outage_of_a_master(one):
    one.start_with_run("1", THERE)
    one.store.fail["settle"] = lambda after: (_ for _ in ()).throw(NotOwner("taken"))
    one.gate.set()
    (only,) = one.runtime._lanes
    eventually(lambda: THERE not in only.working)
    assert not only._aside
    assert (("1", Disposition.DONE)) not in one.store.settled
