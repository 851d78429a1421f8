"""One server denies the right to settle what has run of a shard."""

from __future__ import annotations

import itertools
import logging

import pytest

from celery_lowkiq.rules.errors import AccessDenied, NotOwner, StoreUnavailable
from celery_lowkiq.store.claims import SettleCalls
from celery_lowkiq.worker import lane
from celery_lowkiq.worker import lane as claim_cycle
from tests.unit.fakes import FakeStore
from tests.unit.nodes import SHARDS
from tests.waiting import eventually

DENIED, OTHER, THIRD = SHARDS[:3]


class Denying(FakeStore):
    """Denies settles of the shards in ``denied``; their claims are answered."""

    def __init__(self):
        super().__init__()
        self.denied = set()
        self.error = AccessDenied("Redis does not permit this (NOPERM): no")
        #: Shards of the claims that were sent while their settles were denied.
        self.claimed_meanwhile = []
        self.denials = 0

    def settle(self, asked):
        if asked.lease.shard in self.denied:
            self.denials += 1
            raise self.error
        return super().settle(asked)

    def claim(self, wish):
        if wish.lease.shard in self.denied:
            self.claimed_meanwhile.append(wish.lease.shard)
        return super().claim(wish)


@pytest.fixture
def one(node, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(claim_cycle, "PARKED", 0.02)
    monkeypatch.setattr(lane, "PARKED", 0.02)
    return node(store=Denying(), lanes=1, poll_interval=0.05, lease_seconds=5.0)


def denied_with_run(one):
    """A run has ended whose settle is denied."""
    one.start_with_run("1", DENIED)
    one.store.denied = {DENIED}
    one.gate.set()
    eventually(lambda: one.store.denials > 3)


def ids(store):
    return [job_id for job_id, _ in store.settled]


def of_denied(caplog):
    """What the lines of the log say of the shard."""
    start = f"what ran of shard {DENIED} "
    lines = [record.getMessage() for record in caplog.records]
    return [line.removeprefix(start) for line in lines if str(DENIED) in line]


def test_a_denied_settle_is_tried_again_and_the_other_shards_go_on(one, caplog):
    """It was dropped, and its job ran once more."""
    denied_with_run(one)
    one.store.push(OTHER, "other")
    one.ran("other")
    assert "1" not in ids(one.store)
    one.store.denied = set()
    one.ran("1")
    # The lane logs the end after the store has the settle.
    begin, end = eventually(lambda: len(lines := of_denied(caplog)) > 1 and lines)
    assert one.runner.ids.count("1") == 1
    assert begin.startswith("is not settled until Redis permits it: Redis does not permit this (NOPERM)")
    assert end.startswith("is settled after ")


def test_nothing_is_claimed_of_a_shard_until_its_settle_is_permitted(one):
    """Its next claim would have to be settled, too, and would take the place of this one."""
    denied_with_run(one)
    claims = len(one.store.claimed_meanwhile)
    one.store.push(DENIED, "next")
    denials = one.store.denials
    eventually(lambda: one.store.denials > denials + 5)
    assert len(one.store.claimed_meanwhile) == claims
    assert "next" not in one.runner.ids
    one.store.denied = set()
    one.ran("1", "next")


def test_a_lane_that_always_has_jobs_settles_a_shard_that_it_leaves(one):
    """It tried that only when nothing was due: the shard's next owner waited for it."""
    denied_with_run(one)
    numbers = itertools.count()
    one.runner.act = lambda batch: one.store.push(OTHER, f"other {next(numbers)}", 1.0)
    for number in range(200):
        one.store.push(OTHER, str(-number), 1.0)
    one.ran("other 5")
    one.runtime._ownership._table.leave(DENIED)
    one.store.denied = set()
    one.ran("1")


@pytest.mark.parametrize("error, lines", [(AccessDenied, 0), (StoreUnavailable, 0), (NotOwner, 1)])
def test_what_failed_beside_a_settle_is_logged_when_that_is_not_sent_again(error, lines, caplog):
    """It was a line for each try of a denied settle."""
    settling = SettleCalls(DENIED, [], tracker_calls=1, side_calls=1, done=frozenset(), releases=False)
    answer = error("no")
    with pytest.raises(error) as raised:
        settling.reply([AccessDenied("no"), answer])
    assert raised.value is answer
    assert len(caplog.records) == lines


def test_a_denied_settle_is_given_up_when_the_lease_is_lost(one):
    denied_with_run(one)
    one.store.steal(DENIED)
    one.store.denied = set()
    (only,) = one.runtime._lanes
    eventually(lambda: DENIED not in only.working)
    assert "1" not in ids(one.store)


def test_a_lane_that_ends_tries_once_more(one):
    """It settled its other batches only: the next owner counted a crash of what had run."""
    denied_with_run(one)

    def end(batch):
        one.store.denied = set()
        raise SystemExit(3)

    one.runner.act = end
    one.store.push(OTHER, "other")
    eventually(lambda: one.host.stops)
    assert ids(one.store) == ["1"]


@pytest.mark.parametrize("error, tries", [(AccessDenied("no"), 2), (StoreUnavailable("no"), 1)])
def test_a_lane_that_ends_waits_for_one_server_that_is_away(one, error, tries):
    """The worker stops only after the lane's last settles, which may each wait for a timeout."""
    denied_with_run(one)
    one.store.denied |= {THIRD}
    one.store.push(THIRD, "3")
    eventually(lambda: len(one.runtime._lanes[0]._aside) == 2)
    before = []

    def end(batch):
        one.store.error = error
        before.append(one.store.denials)
        raise SystemExit(3)

    one.runner.act = end
    one.store.push(OTHER, "other")
    eventually(lambda: one.host.stops)
    assert one.store.denials == before[0] + tries


def test_a_node_that_stops_waits_for_it_for_a_lease_time(one):
    denied_with_run(one)
    one.runtime.drain()
    one.store.denied = set()
    assert one.runtime.join(10)
    assert ids(one.store) == ["1"]
