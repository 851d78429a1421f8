"""Which leases of other nodes a node reads: those that may be free, and not those that a heartbeat covers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_lowkiq.rules.errors import StoreUnavailable
from celery_lowkiq.rules.models import LeaseState
from celery_lowkiq.rules.shares import lease_splitter
from tests.unit.fakes import FakeStore
from tests.unit.nodes import SHARDS, Node, once

OURS, THEIRS = list(SHARDS[:2]), list(SHARDS[2:])
#: Lease time and turns, in s.
T, TURN = 10.0, 2.0


class Pair:
    """A node, turn by turn, and the other node of its cluster, which is played."""

    def __init__(self) -> None:
        self.now = 100.0
        self.store = store = FakeStore()
        self.node = Node(store, splitter=lease_splitter, lease_seconds=T, clock=self)
        self._ownership = self.node.runtime._ownership
        self.turn = 0
        self.read: list[list] = []
        observe = store.observe
        store.observe = lambda shards: self.read.append(list(shards)) or observe(shards)
        store.leases = {shard: LeaseState("other", 1, 1) for shard in THEIRS}

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def others_turn(self, renewed=THEIRS, beats=True) -> None:
        self.turn += 1
        leases = self.store.leases
        leases.update((s, replace(leases[s], counter=leases[s].counter + 1, turn=self.turn)) for s in renewed)
        if beats:
            self.store.members.setdefault("q", {})["other"] = (2, self.turn)

    def our_turn(self) -> list:
        """What it reads; time passes until its next turn."""
        self.read.clear()
        wait = self._ownership._turn()
        self.now += wait
        return [shard for shards in self.read for shard in shards]

    def turns(self, count: int, **others: object) -> list[int]:
        """How many leases were read in each turn."""
        found = []
        for _ in range(count):
            self.others_turn(**others)
            found.append(len(self.our_turn()))
        return found

    def announce(self, shard) -> None:
        self.node.runtime._on_announcement(shard, None)
        self._ownership._woken = self.node.runtime._ctx.mailbox.begin_turn()

    def owned(self) -> list:
        return self.node.owns("me")

    def until_owned(self, shard) -> float:
        """When it takes the shard, while the other node does nothing."""
        while shard not in self.owned():
            assert self.now < 200.0
            at = self.now
            self.our_turn()
        return at


@pytest.fixture
def pair():
    """Both have their share, and have had it for a while."""
    pair = Pair()
    pair.turns(6)
    pair.announce(THEIRS[0])
    pair.turns(1)
    assert pair.owned() == OURS
    return pair


def test_leases_are_read_once_in_their_time_while_the_heartbeat_of_their_owner_moves(pair):
    assert pair.turns(12) == [0, 0, 0, 0, 0, 2] * 2
    assert pair.owned() == OURS


def test_leases_of_a_node_that_died_are_read_and_free_as_soon_as_if_they_always_were(pair):
    pair.turns(3)
    last_beat = pair.now - TURN
    assert pair.our_turn() == THEIRS[:1]
    assert pair.our_turn() == THEIRS
    assert pair.until_owned(THEIRS[1]) == last_beat + 1.05 * T
    assert pair.owned() == OURS + THEIRS


def test_a_shard_that_was_released_for_a_node_that_died_is_taken_when_that_is_silent(pair):
    """Not a turn later: nothing announces that a node is silent."""
    pair.turns(3)
    last_beat = pair.now - TURN
    pair.our_turn()
    pair.store.leases[THEIRS[0]] = LeaseState("", 1, 99)
    pair.announce(THEIRS[0])
    assert pair.until_owned(THEIRS[0]) == pytest.approx(last_beat + 0.3 * T)


def test_a_renewal_after_the_last_heartbeat_counts(pair):
    """The node died in between."""
    pair.turns(3)
    pair.others_turn(beats=False)
    renewed = pair.now
    assert pair.our_turn() == THEIRS
    assert pair.until_owned(THEIRS[1]) == renewed + 1.05 * T


def test_a_heartbeat_that_comes_a_little_later_than_ours_is_none_that_is_missing(pair):
    pair.turns(2)
    assert pair.our_turn() == THEIRS[:1]
    pair.others_turn()
    assert pair.turns(2) == [0, 0]


def test_leases_are_read_in_each_turn_while_only_heartbeats_fail(pair):
    assert pair.turns(12, beats=False) == [2] * 12
    assert pair.turns(3, beats=True)[1:] == [0, 0]


def test_a_lease_that_alone_is_not_renewed_is_found_when_its_time_is_up(pair):
    """Its owner may have dropped it, or it was refused: the heartbeat moves on."""
    since = pair.now - TURN
    kept, left = THEIRS
    read = {}
    while pair.now < since + 3 * T + TURN:
        pair.others_turn([kept])
        at = pair.now
        read[at] = left in pair.our_turn()
    found = min(at for at, was_read in read.items() if was_read)
    assert since + T < found <= since + 1.05 * T + TURN
    assert all(was_read for at, was_read in read.items() if found <= at <= since + 3 * T)
    # There was no room for it: after three lease times it is taken all the same.
    assert pair.owned() == [*OURS, left]


def test_leases_are_read_in_each_turn_while_there_is_room(pair):
    """A shard of ours was lost: somewhere there is one to take."""
    pair.store.steal(OURS[0])
    pair.turns(1)
    assert pair.turns(3) == [3, 3, 3]


def test_a_release_that_is_announced_is_read_at_once(pair):
    released = THEIRS[0]
    pair.store.leases[released] = LeaseState("", 1, 99)
    assert pair.turns(1, renewed=THEIRS[1:]) == [0]
    pair.announce(released)
    assert pair.turns(3, renewed=THEIRS[1:]) == [2, 1, 1]


def test_all_leases_are_read_after_an_outage(pair):
    pair.store.fail["renew"] = once(StoreUnavailable("away"))
    assert pair.turns(3) == [0, 2, 0]
