"""Splitters and schedulers; the dealing is Lowkiq's, from its README."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from celery_lowkiq.rules import claims
from celery_lowkiq.rules.basics import compose
from celery_lowkiq.rules.leases import LeaseWatch
from celery_lowkiq.rules.models import LeaseState, QueueSpec, ShardRef
from celery_lowkiq.rules.shares import Member, default_splitter

A0, A1, A2 = (ShardRef("A", n) for n in range(3))


def test_lowkiqs_splitter_table():
    shards = [
        ShardRef(queue, n) for queue, count in (("A", 3), ("B", 4), ("C", 1), ("D", 2)) for n in range(count)
    ]
    dealt = [[f"{ref.queue}{ref.index}" for ref in lane] for lane in default_splitter(shards, 3)]
    assert dealt == [["A0", "B0", "B3", "D1"], ["A1", "B1", "C0"], ["A2", "B2", "D0"]]


def test_more_lanes_than_shards_leaves_lanes_idle():
    assert default_splitter([A0], 3) == [(A0,), (), ()]


def test_lag_picks_the_oldest_due_job():
    pick = claims.lag()
    assert pick({A0: 50, A1: 10, A2: 30}, 100) == A1
    assert pick({A0: 101}, 100) is None
    assert pick({}, 100) is None
    assert pick({A1: 10, A0: 10}, 100) == A0


def test_seq_takes_turns_and_passes_by_what_is_not_due():
    pick = claims.seq()
    due = {A0: 1, A1: 200, A2: 1}
    assert [pick(due, 100) for _ in range(4)] == [A0, A2, A0, A2]
    assert pick({A1: 200}, 100) is None
    due[A1] = 1
    assert [pick(due, 100) for _ in range(3)] == [A0, A1, A2]


def test_two_seq_schedulers_do_not_share_their_turn():
    one, two = claims.seq(), claims.seq()
    assert one({A0: 1, A1: 1}, 9) == two({A0: 1, A1: 1}, 9) == A0


class TestWeighted:
    BOTH = {ShardRef("critical", 0): 50, ShardRef("critical", 1): 40, ShardRef("default", 0): 10}

    def shares(self, weights, due, picks=10_000):
        pick = claims.weighted(weights, random.Random(8).random)
        found = Counter(pick(due, 100) for _ in range(picks))
        return {ref: count / picks for ref, count in found.items()}

    @pytest.mark.parametrize(
        "weights, share", [({"critical": 3}, 0.75), ({"critical": 3, "default": 7}, 0.3), ({}, 0.5)]
    )
    def test_a_queue_gets_its_share_of_10000_picks_and_its_shards_go_by_lag(self, weights, share):
        found = self.shares(weights, self.BOTH)
        assert set(found) == {ShardRef("critical", 1), ShardRef("default", 0)}
        assert found[ShardRef("critical", 1)] == pytest.approx(share, abs=0.02)

    def test_of_many_queues(self):
        weights = {"A": 0.5, "B": 1, "C": 2.5, "D": 6}
        found = self.shares(weights, {ShardRef(name, 0): 1 for name in weights})
        assert {ref.queue: share for ref, share in found.items()} == pytest.approx(
            {name: weight / 10 for name, weight in weights.items()}, abs=0.02
        )

    def test_the_smallest_weight_does_not_starve(self):
        found = self.shares({"critical": 1000, "default": 0.9}, self.BOTH)
        assert found[ShardRef("default", 0)] > 0

    def test_what_is_not_due_takes_no_part(self):
        pick = claims.weighted({"critical": 1000})
        assert pick({ShardRef("critical", 0): 200, A0: 50}, 100) == A0
        assert pick({ShardRef("critical", 0): 200}, 100) is None
        assert pick({}, 100) is None


def test_the_first_middleware_is_outermost():
    seen = []

    def named(name):
        def middleware(task, batch, call):
            seen.append(f"{name} {task} {batch}")
            answer = call()
            seen.append(f"after {name}")
            return answer

        return middleware

    assert compose([named("a"), named("b")], "t", "jobs", lambda: 42) == 42
    assert seen == ["a t jobs", "b t jobs", "after b", "after a"]


class TestWatch:
    """Rule 8's guard: nobody takes a shard from the living, judged by one's own clock only."""

    start = LeaseWatch(QueueSpec("q"), ShardRef("q", 0))
    alive = LeaseState("other", 5, 1)

    def test_an_owner_gets_1_05_lease_times(self):
        watch = self.start.observed(self.alive, now=100.0)
        assert not watch.may_take(now=100.0 + 10.49, lease_seconds=10)
        assert watch.may_take(now=100.0 + 10.5, lease_seconds=10)

    def test_a_moved_counter_starts_the_time_anew(self):
        watch = self.start.observed(self.alive, now=100.0).observed(LeaseState("other", 5, 2), now=109.0)
        assert not watch.may_take(now=110.6, lease_seconds=10)

    @staticmethod
    def heartbeat(turn, since, moved=True):
        return Member("other", 2, turn, since, moved)

    def test_a_heartbeat_tells_since_when_a_lease_is_unchanged(self):
        """The owner sent it after the renewals of its turn."""
        first = self.start.observed(replace(self.alive, turn=3), now=100.0)
        last = LeaseState("other", 5, 5, turn=7)
        assert first.observed(last, 109.0, self.heartbeat(7, since=105.0)).since == 105.0
        assert first.observed(last, 109.0, self.heartbeat(8, since=107.0)).since == 107.0
        assert first.observed(last, 109.0, self.heartbeat(8, since=99.0)).since == 100.0

    @pytest.mark.parametrize(
        "state",
        [
            LeaseState("other", 5, 6, "a", turn=8),
            LeaseState("other", 6, 5, "a", turn=0),
            LeaseState("third", 6, 5, "a", turn=7),
            LeaseState("other", 5, 5, "b", turn=7),
        ],
        ids=["renewed later", "without a turn", "of another owner", "on another server"],
    )
    def test_a_heartbeat_tells_nothing_of_a_lease(self, state):
        first = self.start.observed(LeaseState("other", 5, 1, "a", turn=3), now=100.0)
        assert first.observed(state, 109.0, self.heartbeat(7, since=105.0)).since == 109.0

    def test_a_heartbeat_from_before_an_outage_tells_nothing(self):
        first = self.start.observed(replace(self.alive, turn=3), now=100.0).doubted()
        last = LeaseState("other", 5, 5, turn=7)
        assert first.observed(last, 109.0, self.heartbeat(7, since=105.0)).since == 109.0

    def test_a_lease_need_not_be_read_while_the_heartbeat_of_its_owner_moves(self):
        watch = self.start.observed(self.alive, now=100.0)
        assert watch.renewed_by(self.heartbeat(7, since=106.0), 108.9, 10)
        assert not watch.renewed_by(self.heartbeat(7, since=106.0), 109.1, 10)
        assert not watch.renewed_by(self.heartbeat(7, since=106.0, moved=False), 108.9, 10)
        assert not watch.renewed_by(None, 108.9, 10)
        # A heartbeat proves no single lease.
        assert watch.renewed_by(self.heartbeat(7, since=110.4), 110.4, 10)
        assert not watch.renewed_by(self.heartbeat(7, since=110.4), 110.5, 10)
        assert not self.start.renewed_by(self.heartbeat(7, since=106.0), 108.9, 10)
        assert not watch.doubted().renewed_by(self.heartbeat(7, since=106.0), 108.9, 10)

    def test_an_unmoved_counter_does_not(self):
        watch = self.start.observed(self.alive, now=100.0).observed(self.alive, now=109.0)
        assert watch.may_take(now=110.6, lease_seconds=10)

    def test_a_released_shard_is_free_at_once(self):
        assert self.start.observed(LeaseState("", 5, 3), now=100.0).may_take(now=100.0, lease_seconds=10)

    def test_one_that_an_ending_process_gave_up_is_free_when_that_is_gone(self):
        watch = self.start.observed(LeaseState("", 5, 3, leaving=True), now=100.0)
        assert not watch.may_take(now=100.4, lease_seconds=10)
        assert watch.seconds_to_observation(now=100.4, lease_seconds=10) == pytest.approx(0.1)
        assert watch.may_take(now=100.5, lease_seconds=10)

    def test_x_an_outage_begins_the_wait_for_an_owner_anew_and_no_other(self):
        """X: nobody can renew a lease without an owner; an owner could not while Redis was unreachable."""
        owned = self.start.observed(self.alive, now=100.0).doubted().observed(self.alive, now=109.0)
        assert owned.waits_until(10) is None
        assert not owned.may_take(now=111.0, lease_seconds=10)
        released = LeaseState("", 5, 3, server="b", given_on="a")
        free = self.start.observed(released, now=100.0).doubted().observed(released, now=109.0)
        assert free.waits_until(10) == pytest.approx(110.5)
        assert free.may_take(now=110.5, lease_seconds=10)
        # Yet another process: what it forgot, nobody knows.
        again = free.doubted().observed(LeaseState("", 5, 3, server="c", given_on="a"), now=109.0)
        assert not again.may_take(now=111.0, lease_seconds=10)

    def test_x_a_restart_during_an_outage_is_noticed_where_nobody_had_the_shard(self):
        """X: a first lease may have been lost with it."""
        watch = self.start.observed(LeaseState(server="a"), now=100.0).doubted()
        assert not watch.observed(LeaseState(server="b"), now=105.0).may_take(now=105.0, lease_seconds=10)

    def test_a_shard_that_nobody_ever_had_is_free_at_once(self):
        assert self.start.observed(LeaseState(server="a"), now=100.0).may_take(now=100.0, lease_seconds=10)

    @pytest.mark.parametrize(
        "looks",
        [
            # Redis came back as another process: a later lease may be lost.
            [LeaseState("", 5, 3, server="b", given_on="a")],
            # Its data went back to before anybody had the shard.
            [LeaseState("other", 5, 3, "a", "a"), LeaseState(server="b")],
            [LeaseState(server="a"), LeaseState(server="b")],
        ],
    )
    def test_a_shard_that_only_an_older_copy_shows_as_free_is_not(self, looks):
        watch = self.start
        for state in looks:
            watch = watch.observed(state, now=100.0)
        assert not watch.may_take(now=110.4, lease_seconds=10)
        assert watch.may_take(now=110.5, lease_seconds=10)

    def test_another_server_starts_the_time_anew(self):
        watch = self.start.observed(LeaseState("other", 5, 1, "a", "a"), now=100.0)
        watch = watch.observed(LeaseState("other", 5, 1, "b", "a"), now=109.0)
        assert not watch.may_take(now=110.6, lease_seconds=10)

    def test_our_own_lease_is_ours_only_on_the_server_that_gave_it(self):
        assert self.start.observed(LeaseState("me", 5, 1, "a", "a"), now=1.0).ours("me")
        assert not self.start.observed(LeaseState("me", 5, 1, "b", "a"), now=1.0).ours("me")
        assert not self.start.observed(LeaseState("other", 5, 1, "a", "a"), now=1.0).ours("me")

    def test_what_was_never_seen_is_not_taken(self):
        assert not self.start.may_take(now=1e9, lease_seconds=10)

    def test_the_largest_epoch_is_remembered(self):
        watch = self.start.observed(LeaseState("other", 9, 1), now=1.0).observed(
            LeaseState("other", 4, 1), now=2.0
        )
        assert watch.known_epoch == 9

    @pytest.mark.parametrize("now, seconds", [(100.0, 2.0), (109.5, 1.0), (110.5, 2.0)])
    def test_the_next_observation_is_when_the_shard_becomes_free(self, now, seconds):
        assert self.start.observed(self.alive, now=100.0).seconds_to_observation(now, 10) == pytest.approx(
            seconds
        )
