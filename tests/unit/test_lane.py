"""Tests of ``worker/lane.py``."""

from __future__ import annotations

import logging
import threading
import time
from types import SimpleNamespace

import pytest

from celery_lowkiq.rules.basics import SystemClock
from celery_lowkiq.rules.claims import Due, OpenClaims, lag
from celery_lowkiq.rules.errors import StoreError, StoreUnavailable
from celery_lowkiq.rules.models import Disposition, QueueSpec, ShardRef
from celery_lowkiq.store.keys import channel
from celery_lowkiq.store.listener import _announcement
from celery_lowkiq.worker.lane import DueTable, Lane
from celery_lowkiq.worker.outage import OutageTracker
from celery_lowkiq.worker.waker import Waker
from tests.unit.fakes import FakeStore
from tests.unit.nodes import SHARDS
from tests.waiting import eventually

# What a lane knows and when it may begin, where replies, announcements and leases cross.

ONE, TWO = QueueSpec("q", shards=1), QueueSpec("q", shards=2)
SHARD, OTHER = SHARDS[:2]


class TestDueTable:
    @pytest.fixture
    def table(self):
        return DueTable(SystemClock())

    def test_what_is_heard_while_a_question_is_out_outlives_the_reply(self, table):
        table.begin_query(SHARD)
        table.announce(SHARD, 50.0)
        table.record(SHARD, Due(None, 100.0))
        assert table.due() == {SHARD: 50.0}

    @pytest.mark.parametrize("replied, heard, known", [(40.0, 50.0, 40.0), (60.0, 50.0, 50.0)])
    def test_the_earlier_of_reply_and_announcement_counts(self, table, replied, heard, known):
        table.begin_query(SHARD)
        table.announce(SHARD, heard)
        table.record(SHARD, Due(replied, 100.0))
        assert table.due() == {SHARD: known}

    def test_a_shard_with_a_far_due_time_is_tried_soon_and_a_deferred_one_is_left(self, table):
        """A damaged shard whose next job was far was not tried, so nobody reported the damage."""
        table.record(SHARD, Due(9e9, 100.0))
        table.try_soon(SHARD, 5.0)
        assert table.due()[SHARD] <= table.now()
        table.defer(SHARD, 5.0)
        deferred = table.due()
        table.try_soon(SHARD, 5.0)
        assert table.due() == deferred

    def test_what_was_heard_before_the_question_is_in_its_reply(self, table):
        table.announce(SHARD, 50.0)
        table.begin_query(SHARD)
        table.record(SHARD, Due(None, 100.0))
        assert table.due() == {}

    def test_what_is_heard_outlives_both_replies_of_a_settle_with_a_claim(self, table):
        """The second reply removed it: a resume was found only by the next poll."""
        table.begin_change(SHARD)
        table.begin_change(SHARD)
        table.announce(SHARD, 50.0)
        table.record(SHARD, Due(None, 100.0))
        table.record(SHARD, Due(None, 100.0))
        assert table.due() == {SHARD: 50.0}

    def test_nothing_heard_outlives_the_reply_to_a_later_question(self, table):
        table.begin_query(SHARD)
        table.announce(SHARD, 50.0)
        table.record(SHARD, Due(None, 100.0))
        table.begin_query(SHARD)
        table.record(SHARD, Due(None, 101.0))
        assert table.due() == {}

    @pytest.fixture
    def frozen(self):
        """A table in a moment that does not pass."""
        return DueTable(SimpleNamespace(monotonic=lambda: 7.0))

    @pytest.mark.parametrize("ahead", [30.0, -30.0])
    def test_due_times_of_masters_are_compared_on_one_clock(self, frozen, ahead):
        """A job of a master whose clock was ahead ran late by the difference."""
        for shard, now in ((SHARD, 100.0), (OTHER, 100.0 + ahead)) * 2:
            frozen.begin_change(shard)
            frozen.record(shard, Due(now + 10.0, now))
        assert (frozen.now(), frozen.now(SHARD), frozen.now(OTHER)) == (100.0, 100.0, 100.0 + ahead)
        assert frozen.due() == {SHARD: 110.0, OTHER: 110.0}
        frozen.announce(OTHER, 100.0 + ahead)
        assert frozen.due() == {SHARD: 110.0, OTHER: 100.0}
        frozen.defer(OTHER, 20.0)
        assert frozen.due() == {SHARD: 110.0, OTHER: 120.0}
        frozen.try_soon(OTHER, 20.0)
        assert frozen.due() == {SHARD: 110.0, OTHER: 120.0}
        frozen.try_soon(OTHER, 5.0)
        assert frozen.due() == {SHARD: 110.0, OTHER: 100.0}

    def test_a_clock_that_is_set_is_that_of_all_its_shards_again(self, frozen):
        for now in (100.0, 100.0, 1000.0, 1000.0):
            for shard in (SHARD, OTHER):
                frozen.record(shard, Due(now + 30.0, now), frozen.begin_query(shard))
        assert frozen.now() == frozen.now(SHARD) == frozen.now(OTHER) == 1000.0
        assert frozen.due() == {SHARD: 1030.0, OTHER: 1030.0}

    def test_replies_that_take_long_are_no_difference_of_clocks(self):
        moments = iter([7.0, 7.5, 7.5, 8.0])
        table = DueTable(SimpleNamespace(monotonic=lambda: next(moments)))
        for shard, now in ((SHARD, 100.5), (OTHER, 100.6)):
            table.record(shard, Due(130.0, now), table.begin_query(shard))
        assert table.due() == {SHARD: 130.0, OTHER: 130.0}

    @pytest.fixture
    def empty(self, table):
        """A table to which a poll showed that the shard is empty, and the owner's open claims then."""
        claims = OpenClaims()
        table.record(SHARD, Due(None, 100.0), table.begin_query(SHARD), claims)
        assert table.was_empty(SHARD, claims)
        return table, claims

    def test_a_shard_with_a_due_time_was_not_empty(self, table):
        claims = OpenClaims()
        table.record(SHARD, Due(50.0, 100.0), table.begin_query(SHARD), claims)
        assert not table.was_empty(SHARD, claims)

    def test_it_stays_empty_while_polls_find_nothing(self, empty):
        table, claims = empty
        query = table.begin_query(SHARD)
        assert table.was_empty(SHARD, claims)
        table.record(SHARD, Due(None, 101.0), query, claims)
        assert table.was_empty(SHARD, claims)

    @pytest.mark.parametrize(
        "happens",
        [
            lambda table: table.announce(SHARD, 50.0),
            lambda table: table.begin_change(SHARD),
            lambda table: table.record(SHARD, Due(None, 101.0)),
            lambda table: table.record(SHARD, Due(50.0, 101.0), table.begin_query(SHARD), OpenClaims()),
            lambda table: table.defer(SHARD, 5.0),
            lambda table: table.remove(SHARD),
            lambda table: table.doubt(),
        ],
    )
    def test_what_may_leave_jobs_there_asks_for_a_full_answer(self, empty, happens):
        table, claims = empty
        happens(table)
        assert not table.was_empty(SHARD, claims)

    def test_other_open_claims_ask_for_a_full_answer(self, empty):
        """Also an equal set of them: a claim was opened and given up since."""
        table, _ = empty
        assert not table.was_empty(SHARD, OpenClaims())

    def test_a_reply_from_before_the_doubt_shows_nothing_empty(self, table):
        claims, query = OpenClaims(), table.begin_query(SHARD)
        table.doubt()
        table.record(SHARD, Due(None, 100.0), query, claims)
        assert not table.was_empty(SHARD, claims)

    def test_a_reply_from_before_a_claim_shows_nothing_empty(self, table):
        claims, query = OpenClaims(), table.begin_query(SHARD)
        table.begin_change(SHARD)
        table.record(SHARD, Due(None, 100.0), query, claims)
        assert not table.was_empty(SHARD, claims)


class TestCrossing:
    """A push between an answer of Redis and its reading is claimed without a later poll."""

    @pytest.fixture
    def one(self, node):
        return node(lanes=1, queues=[ONE])

    def crosses(self, one, name):
        method, crossed = getattr(one.store, name), []

        def answers_slowly(*args):
            reply = method(*args)
            if not crossed:
                crossed.append(name)
                one.store.push(SHARD, "crossing", announce=False)
                one.runtime._on_announcement(SHARD, time.time())
            return reply

        setattr(one.store, name, answers_slowly)
        return crossed

    def test_a_push_during_a_settle_is_claimed(self, one):
        crossed = self.crosses(one, "settle")
        one.store.push(SHARD, "first", announce=False)
        one.start()
        one.ran("first", "crossing")
        assert crossed == ["settle"]
        assert [job_id for job_id, _ in one.store.settled] == ["first", "crossing"]

    def test_a_push_during_a_poll_is_claimed(self, one):
        crossed = self.crosses(one, "next_due")
        one.start()
        one.ran("crossing")
        assert crossed == ["next_due"]
        assert one.runner.ids == ["crossing"]

    def test_a_push_during_a_claim_that_found_nothing_is_claimed(self, one):
        crossed = self.crosses(one, "claim")
        one.start()
        eventually(lambda: crossed or one.runtime._on_announcement(SHARD, time.time()))
        one.ran("crossing")

    def test_an_announcement_from_before_the_question_costs_one_claim(self, one):
        one.store.push(SHARD, "first")
        one.start()
        one.ran("first")
        eventually(lambda: not one.store.pushed and not one.runtime._lanes[0]._refresh)
        before = len(one.store.claims)
        one.runtime._on_announcement(SHARD, time.time())
        eventually(lambda: len(one.store.claims) > before)
        one.store.push(SHARD, "second")
        one.ran("second")
        assert len(one.store.claims) == before + 2


def test_a_shard_that_was_empty_is_only_looked_into_until_something_happens_there(node):
    one = node(lanes=1, queues=[ONE], poll_interval=0.01, lease_seconds=5.0)
    one.start()
    eventually(lambda: one.store.asked_of_empty > 3)
    one.store.push(SHARD, "unheard", announce=False)
    one.ran("unheard")
    eventually(lambda: one.store.settled)
    looks, full = one.store.asked_of_empty, one.store.asked - one.store.asked_of_empty
    eventually(lambda: one.store.asked_of_empty > looks + 3)
    again = one.store.asked - one.store.asked_of_empty
    assert again > 1
    one.runtime._refresh()
    eventually(lambda: one.store.asked - one.store.asked_of_empty > max(full, again))


def test_a_backlog_in_one_shard_does_not_hide_another_whose_announcement_was_lost(node):
    one = node(lanes=1, queues=[TWO], poll_interval=0.1, lease_seconds=5.0)
    one.runner.act = lambda batch: time.sleep(0.002)
    for number in range(20_000):
        one.store.push(SHARDS[0], str(number), perform_in=1e9 + number, announce=False)
    one.start()
    eventually(lambda: one.store.settled)
    one.store.push(SHARDS[1], "unheard", perform_in=1.0, announce=False)
    one.ran("unheard")
    assert one.store.waiting[SHARDS[0]]


def test_a_scheduler_that_wants_nothing_is_asked_again_at_each_poll_and_not_in_between(node):
    offers = []

    def wants_nothing(due, now):
        if any(when <= now for when in due.values()):
            offers.append(time.monotonic())

    one = node(lanes=1, queues=[ONE], poll_interval=0.1, scheduler=lambda: wants_nothing)
    one.store.push(SHARD, "1", announce=False)
    one.start()
    eventually(lambda: len(offers) >= 8)
    assert offers[7] - offers[0] > 0.3
    assert one.store.claims == []


def test_a_claim_that_is_answered_after_the_deadline_begins_nothing(node):
    one = node(lanes=1, queues=[ONE]).start()
    held = eventually(lambda: one.runtime._ownership._table.get(SHARD))
    eventually(lambda: one.store.refreshes)
    asked = []

    def unavailable(after):
        raise StoreUnavailable("gone")

    one.store.fail["renew"] = unavailable
    one.store.fail["claim"] = lambda after: (asked.append(after), unavailable(after))
    one.store.push(SHARD, "1")
    eventually(lambda: asked and time.monotonic() > held.deadline)
    del one.store.fail["claim"]
    eventually(lambda: one.store.settled)
    assert one.store.settled[0] == ("1", Disposition.RETURN)
    assert one.runner.ids == []


def test_what_was_claimed_but_not_begun_goes_back_when_the_node_stops(node):
    one = node(lanes=1, queues=[ONE])
    claim = one.store.claim

    def stops_meanwhile(*args):
        reply = claim(*args)
        one.runtime.stop_claiming()
        return reply

    one.store.claim = stops_meanwhile
    one.store.push(SHARD, "1", announce=False)
    one.start()
    one.ran("1")
    one.runtime.drain()
    assert one.runtime.join(10)
    assert (one.store.settled, one.runner.ids) == ([("1", Disposition.RETURN)], [])


def test_a_refused_question_about_all_shards_is_no_crash(node, caplog):
    """Each shard is tried instead."""

    def refuse(after):
        raise StoreError("Redis refused a command: WRONGTYPE")

    one = node()
    one.store.fail["next_due"] = refuse
    for shard in SHARDS:
        one.store.push(shard, str(shard), announce=False)
    one.start()
    one.ran(*map(str, SHARDS))
    assert one.host.stops == []
    assert "WRONGTYPE" in caplog.text


def test_a_settle_that_fails_as_a_whole_is_no_crash(node, caplog):
    """A lane ended for it, and with it the worker."""
    one = node(lanes=1, queues=[ONE])
    exchange, refused = one.store.exchange, []

    def refuses_one_settle(settle, claim):
        if settle is not None and not refused:
            refused.append(settle)
            raise StoreError("Redis refused a command: NOPERM")
        return exchange(settle, claim)

    one.store.exchange = refuses_one_settle
    one.store.push(SHARD, "1", announce=False)
    one.start()
    eventually(lambda: refused and one.runtime._lanes[0]._window is None)
    one.runtime.drain()
    assert one.runtime.join(10)
    assert one.host.stops == []
    assert "NOPERM" in caplog.text


class TestOutage:
    def test_a_thread_that_fares_well_does_not_end_the_outage_of_another(self, caplog):
        caplog.set_level(logging.WARNING)
        outage = OutageTracker(SystemClock())
        for _ in range(3):
            outage.failed(StoreError("NOPERM"))
            other = threading.Thread(target=outage.recovered)
            other.start()
            other.join()
        assert caplog.text.count("wait until it is back") == 1
        assert "is back after" not in caplog.text
        outage.recovered()
        assert caplog.text.count("is back after") == 1


def test_the_waker_may_lose_its_subscription_while_it_is_stopped():
    """Between the look at the subscription and its closing: Redis became unreachable just then."""
    store = FakeStore()
    looks = iter([store, None])

    class Vanishing(Waker):
        _subscription = property(lambda self: next(looks), lambda self, value: None)

    outage = OutageTracker(SystemClock())
    ctx = SimpleNamespace(store=store, outage=outage, thread=lambda name, main: None)
    Vanishing(ctx, [ONE], announced=lambda *_: None, connected=lambda: None).stop()
    assert not store.open


@pytest.mark.parametrize("text", [b"0 nan", b"0 inf", b"0 -inf", b"0 ", b"x 1", b"0 soon"])
def test_only_a_time_is_an_announcement(text):
    """Anyone may publish; a lane that is told ``nan`` would wait 0 s for it, for ever."""
    assert _announcement(channel("q").encode(), text) is None


def test_a_time_or_a_release_is_an_announcement():
    name = channel("q").encode()
    assert _announcement(name, b"2 1.5") == (ShardRef("q", 2), 1.5)
    assert _announcement(name, b"2 released") == (ShardRef("q", 2), None)


# What a lane may claim from.


class Name(str):
    """Counts how often names are compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        Name.compared += 1
        return str.__eq__(self, other)


def test_queues_that_wait_for_tokens_are_looked_up_and_not_searched():
    """With 1,000 of them, each look of a lane compared a million names."""
    shards = [ShardRef(Name(f"q{n}"), 0) for n in range(300)]
    exhausted = {shard.queue: 1e12 for shard in shards[1:]}
    limiter = SimpleNamespace(exhausted_until=lambda now: exhausted)
    ctx = SimpleNamespace(
        clock=SystemClock(), poll_interval=1.0, rate_limiter=limiter, thread=lambda name, main: None
    )
    lane = Lane("lane", ctx, lag(), [])
    for shard in shards:
        lane.serve(SimpleNamespace(shard=shard, may_claim=lambda now: True))
        lane.announce(shard, 0.0)
    Name.compared = 0
    found = lane._claimable()
    assert [shard for shard, when in found.items() if when == 0.0] == shards[:1]
    assert Name.compared < 30 * len(shards)
