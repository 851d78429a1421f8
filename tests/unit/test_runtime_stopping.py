"""A node that stops, or that something goes wrong in."""

from __future__ import annotations

import time

import pytest

from celery_lowkiq.rules.basics import worker_logger
from celery_lowkiq.rules.errors import StoreError, StoreUnavailable
from celery_lowkiq.rules.models import Disposition, Settlement
from celery_lowkiq.worker import lane as claim_window
from celery_lowkiq.worker import runtime
from celery_lowkiq.worker.exclusion import Exclusion, Strict
from celery_lowkiq.worker.lane import Lane
from tests.unit.meters import Tally
from tests.unit.nodes import SHARDS
from tests.waiting import eventually


def _raise(error):
    raise error


class NoTimer:
    def set(self, at):
        """Ends nothing."""


class TestStopping:
    def test_a_drain_finishes_what_runs_and_begins_nothing(self, node):
        one = node(lanes=1)
        one.start_with_run("runs")
        one.store.push(SHARDS[0], "waits")
        one.runtime.drain()
        assert not one.runtime.join(0.05)
        assert one.runtime.busy() == 1
        one.gate.set()
        assert one.runtime.join(10)
        assert one.store.settled == [("runs", Disposition.DONE)]
        assert one.owns() == []
        assert one.owns("") == list(SHARDS)

    def test_a_process_that_ends_in_a_drain_counts_no_crash(self, node):
        """A process manager kills what is left of a worker that it stops, and one process dies first."""
        one = node(lanes=1)

        def dies(batch):
            one.gate.wait(10)
            return (Settlement("runs", batch.jobs[0].claim, Disposition.CRASH, 3, error=b"poison pill"),)

        one.runner.act = dies
        one.store.push(SHARDS[0], "runs", announce=False)
        one.start()
        eventually(lambda: one.runner.ids)
        one.runtime.drain()
        one.gate.set()
        assert one.runtime.join(10)
        assert one.store.settled == [("runs", Disposition.RETURN)]

    def test_join_waits_no_longer_than_its_timeout(self, node):
        one = node(lanes=1)
        one.start_with_run("runs")
        one.runtime.drain()
        began = time.monotonic()
        assert not one.runtime.join(0.05)
        assert time.monotonic() - began < 5
        one.gate.set()
        assert one.runtime.join(10)

    def test_an_idle_node_stops_at_once(self, node):
        one = node(lease_seconds=60.0).start()
        eventually(lambda: len(one.owns()) == 4)
        began = time.monotonic()
        one.runtime.drain()
        assert one.runtime.join(10)
        assert time.monotonic() - began < 5

    def test_a_master_that_was_away_is_waited_for_no_longer_than_it_takes_to_come_back(self, node):
        """The next attempt came a fifth of the lease time later."""
        one = node(lease_seconds=600.0).start()
        eventually(lambda: len(one.owns()) == 4)
        asked = []
        renew = one.store.renew

        def away_at_first(leases, stopping, turn):
            asked.append([lease.shard for lease in leases])
            answers = renew(leases, stopping, turn)
            return [None, *answers[1:]] if len(asked) < 9 else answers

        one.store.renew = away_at_first
        released = []
        release = one.store.release
        one.store.release = lambda lease, unsettled: (
            released.append((len(asked), lease.shard)),
            release(lease, unsettled),
        )[1]
        one.runtime.drain()
        assert one.runtime.join(10)
        assert one.owns("") == list(SHARDS)
        # Before its lease was renewed there, a new master would have refused the release.
        first = asked[0][0]
        assert {shard for turn, shard in released if turn < 9} == {*SHARDS} - {first}
        assert released[-1] == (9, first)

    def test_a_long_run_keeps_no_other_shard_from_the_next_owner(self, node):
        one = node(lanes=1)
        one.start_with_run("runs")
        one.runtime.drain()
        eventually(lambda: one.owns("") == list(SHARDS[1:]))
        assert one.owns() == [SHARDS[0]]
        one.gate.set()
        assert one.runtime.join(10)
        assert one.owns("") == list(SHARDS)

    def test_a_shard_is_released_in_the_round_trip_that_settles_its_batch(self, node):
        one = node(lanes=1)
        one.start_with_run("runs")
        one.runtime.drain()
        eventually(lambda: one.owns() == [SHARDS[0]])
        owned, releases = [], []
        one.store.fail["settle"] = lambda after: owned.append(one.owns())
        one.store.fail["release"] = lambda after: releases.append(after)
        one.gate.set()
        assert one.runtime.join(10)
        assert owned == [[SHARDS[0]], []]
        assert releases == []

    def test_no_shard_is_released_while_the_node_goes_on(self, node):
        one = node(lanes=1)
        one.start_with_run("runs")
        one.gate.set()
        eventually(lambda: one.store.settled)
        assert one.owns() == list(SHARDS)

    @pytest.mark.parametrize("reply_is_lost", [False, True])
    def test_a_renewal_that_comes_after_such_a_release_is_no_loss(self, node, reply_is_lost, caplog):
        meter = Tally()
        one = node(lanes=1, meter=meter)
        one.start_with_run("runs")
        one.runtime.drain()
        eventually(lambda: one.owns() == [SHARDS[0]])

        def answer_late(after):
            if after:
                # After a refused renewal, no shard is left.
                assert one.runtime._ownership.finished.wait(10)
                del one.store.fail["settle"]
                if reply_is_lost:
                    raise StoreUnavailable("gone")

        one.store.fail["settle"] = answer_late
        one.gate.set()
        assert one.runtime.join(10)
        assert one.store.settled == [("runs", Disposition.DONE)]
        assert one.owns("") == list(SHARDS)
        assert meter.losses == 0
        assert "changed hands" not in caplog.text

    def test_a_settle_that_fails_keeps_its_shard_until_the_next_owner_recovers_it(self, node, caplog):
        one = node(lanes=1)
        one.start_with_run("runs")
        one.runtime.drain()
        eventually(lambda: one.owns() == [SHARDS[0]])
        one.store.fail["settle"] = lambda after: _raise(StoreError("refused"))
        one.gate.set()
        assert one.runtime.join(10)
        assert one.owns() == [SHARDS[0]]
        assert list(one.store.processing[SHARDS[0]]) == ["runs"]
        assert SHARDS[0] in one.store.stopping
        assert "q/0 keeps unsettled jobs" in caplog.text

    def test_a_node_that_is_told_to_stop_while_it_looks_takes_nothing(self, node):
        one = node()
        one.store.fail["observe"] = lambda after: one.runtime.drain()
        one.start()
        assert one.runtime.join(10)
        assert one.store.acquired == []

    def test_a_lease_is_renewed_while_a_drain_waits_for_its_run(self, node):
        one = node(lanes=1, lease_seconds=2.0)
        one.start_with_run("runs")
        one.runtime.drain()
        eventually(lambda: one.owns("") == list(SHARDS[1:]))
        renewed = one.store.leases[SHARDS[0]].counter
        eventually(lambda: one.store.leases[SHARDS[0]].counter >= renewed + 2)
        assert one.runtime.busy() == 1
        one.gate.set()
        assert one.runtime.join(10)

    def test_what_runs_at_an_abandon_is_left_and_marked_as_stopping(self, node):
        one = node()
        one.start_with_run("runs")
        one.runtime.abandon()
        eventually(lambda: one.store.stopping)
        eventually(lambda: one.owns("") == list(SHARDS[1:]))
        assert SHARDS[0] in one.owns()
        assert one.store.settled == []
        one.gate.set()

    @pytest.mark.parametrize(
        "exclusion, given_up",
        [(Exclusion(), True), (Strict(NoTimer()), False)],
        ids=["cooperative", "strict"],
    )
    def test_what_still_runs_when_the_process_ends_is_given_up(self, node, exclusion, given_up):
        """Where a run could go on beside the next owner's, the lease has to run out instead."""
        one = node(exclusion=exclusion)
        batch = one.start_with_run("runs")
        one.runtime.drain()
        assert not one.runtime.join(0.05)
        one.runtime.abandon()
        one.runtime.release_at_exit(5 if given_up else 0.05)
        assert (SHARDS[0] in one.owns(""), batch.lost.is_set()) == (given_up, given_up)
        assert list(one.store.processing[SHARDS[0]]) == ["runs"]
        assert SHARDS[0] in one.store.stopping
        one.gate.set()
        assert one.runtime.join(10)
        assert one.store.settled == ([] if given_up else [("runs", Disposition.DONE)])

    def test_a_release_at_exit_waits_for_no_renewal(self, node):
        one = node(lease_seconds=60.0)
        one.start_with_run("runs")
        one.runtime.abandon()
        eventually(lambda: SHARDS[0] in one.store.stopping)
        one.runtime.release_at_exit(5)
        assert one.owns("") == list(SHARDS)
        one.gate.set()

    def test_a_drain_without_redis_ends_after_a_lease_time(self, node, caplog):
        one = node()
        one.start_with_run()

        def unavailable(after):
            raise StoreUnavailable("gone")

        for name in ("claim", "settle", "renew", "release", "next_due", "observe"):
            one.store.fail[name] = unavailable
        one.gate.set()
        one.runtime.drain()
        assert one.runtime.join(20)
        assert "will be recovered" in caplog.text
        assert "could not be released" in caplog.text

    def test_a_node_that_owned_nothing_stops_without_a_line_about_shards(self, node, caplog):
        """As with a wrong URL, which its log has named."""
        one = node()
        for name in ("renew", "observe", "beat"):
            one.store.fail[name] = lambda after: _raise(StoreUnavailable("never there"))
        one.start()
        eventually(lambda: "never there" in caplog.text)
        one.runtime.drain()
        assert one.runtime.join(20)
        assert "could not be released" not in caplog.text

    def test_stopping_before_anything_was_taken(self, node):
        one = node()
        one.store.fail["observe"] = lambda after: (_ for _ in ()).throw(StoreUnavailable("never there"))
        one.start()
        one.runtime.drain()
        assert one.runtime.join(10)


class TestCrashes:
    @pytest.mark.parametrize(
        "error, code", [(SystemExit(3), 3), (SystemExit(0), 70), (KeyboardInterrupt(), 70)]
    )
    def test_what_is_no_exception_stops_the_host_and_leaves_the_job(self, node, error, code):
        one = node()

        def act(batch):
            raise error

        one.runner.act = act
        one.store.push(SHARDS[0], "1", announce=False)
        one.start()
        eventually(lambda: one.host.stops and len(one.owns()) == 4)
        assert one.host.stops[0][0] == code
        assert one.host.words == [error]
        one.runtime.drain()
        assert one.runtime.join(10)
        assert one.store.settled == []
        assert one.owns() == [SHARDS[0]]
        assert one.store.stopping == set(SHARDS[1:])

    def test_a_bug_in_a_scheduler_stops_nothing_and_is_logged(self, node, caplog):
        """P6: the lane picks for itself then."""

        def broken():
            return lambda due, now: 1 / 0

        one = node(scheduler=broken)
        one.store.push(SHARDS[0], "1", announce=False)
        one.start()
        eventually(lambda: one.store.settled)
        assert not one.host.stops
        assert "ZeroDivisionError" in caplog.text

    @pytest.mark.parametrize("name", ["observe", "subscribe"])
    def test_a_bug_in_a_helper_thread_is_no_silent_death(self, node, name):
        one = node()
        one.store.fail[name] = lambda after: 1 / 0
        one.start()
        eventually(lambda: one.host.stops)
        assert one.host.stops[0][0] == 70

    def test_a_bug_in_the_reaper_of_windows_is_no_silent_death(self, node, monkeypatch):
        bug = ZeroDivisionError("a bug")
        monkeypatch.setattr(runtime, "MAX_WAIT_BEHIND_RUN", 0.02)
        monkeypatch.setattr(Lane, "return_unstarted", lambda lane, now: _raise(bug))
        one = node().start()
        ((code, reason),) = eventually(lambda: one.host.stops)
        assert (code, one.host.words) == (70, [bug])
        assert "a bug" in reason

    @pytest.mark.parametrize("name", ["observe", "subscribe"])
    def test_a_helper_thread_that_is_told_to_exit_is_no_silent_death(self, node, name):
        """As by a handler of the log that exits at an error: the worker renewed no lease any more."""
        one = node()
        one.store.fail[name] = lambda after: _raise(SystemExit(1))
        one.start()
        eventually(lambda: one.host.stops)

    @pytest.mark.parametrize("what", ["last words", "log", "text"])
    def test_a_lane_that_ends_stops_the_worker_whatever_users_code_raises(self, node, monkeypatch, what):
        """The lane was gone, and the worker went on without it."""

        class Untold(SystemExit):
            def __repr__(self):
                raise SystemExit(1)

        one = node()
        one.runner.act = lambda batch: _raise(Untold(3) if what == "text" else SystemExit(3))
        if what == "last words":
            one.host.last_words = lambda error: _raise(SystemExit(1))
        if what == "log":
            monkeypatch.setattr(worker_logger, "critical", lambda *about, **options: _raise(SystemExit(1)))
        one.store.push(SHARDS[0], "1", announce=False)
        one.start()
        eventually(lambda: one.host.stops)
        assert one.host.stops[0][0] == 3

    def test_a_refused_settle_beside_a_run_is_no_crash(self, node, monkeypatch):
        """The thread that returns what waits behind a long run ended, and the worker with it."""
        monkeypatch.setattr(runtime, "MAX_WAIT_BEHIND_RUN", 0.02)
        monkeypatch.setattr(claim_window, "MAX_WAIT_BEHIND_RUN", 0.02)
        one = node(lanes=1)
        exchange, refused = one.store.exchange, []

        def refuses_one_settle(settle, claim):
            if not (refused or one.gate.is_set()):
                refused.append(settle)
                raise StoreError("Redis refused a command: NOPERM")
            return exchange(settle, claim)

        one.store.push(SHARDS[0], "fast", announce=False)
        one.start()
        one.ran("fast")

        def act(batch):
            if batch.jobs[0].id == "long":
                one.store.exchange = refuses_one_settle
                one.gate.wait(10)

        one.runner.act = act
        with one.store.lock:
            for job_id in ("long", "waits"):
                one.store.push(SHARDS[0], job_id)
        eventually(lambda: refused)
        one.gate.set()
        one.ran("long", "waits")
        assert one.host.stops == []

    def test_a_shard_with_a_broken_script_does_not_stop_the_others(self, node, caplog):
        one = node(lanes=1)
        claim = one.store.claim

        def broken_for_one(wish):
            if wish.lease.shard == SHARDS[0]:
                raise StoreError("WRONGTYPE")
            return claim(wish)

        one.store.claim = broken_for_one
        one.store.push(SHARDS[0], "broken", announce=False)
        one.store.push(SHARDS[1], "fine", announce=False)
        one.start()
        one.ran("fine")
        eventually(lambda: "q/0 is skipped for 5 s" in caplog.text)


class TestSuspects:
    def test_one_suspect_at_a_time_runs_on_a_node_and_is_settled_before_the_next_claim(self, node):
        one = node(lanes=2)
        claimed, claims_beside_a_settle, exchange = [], [], one.store.exchange

        def act(batch):
            time.sleep(0.02)
            claimed.append(sum(map(len, one.store.processing.values())))

        def watched(settle, claim):
            claims_beside_a_settle.extend([claim] if settle and claim else [])
            return exchange(settle, claim)

        one.store.exchange = watched

        one.runner.act = act
        for shard in SHARDS:
            one.store.push(shard, f"suspect-{shard.index}", announce=False)
            one.store.suspects.add(f"suspect-{shard.index}")
        one.start()
        one.ran(*one.store.suspects)
        assert claimed == [1] * len(SHARDS)
        assert claims_beside_a_settle == []

    def test_other_jobs_of_other_shards_go_on_beside_one(self, node):
        one = node(lanes=4)
        one.store.suspects.add("suspect")
        one.start_with_run("suspect")
        one.store.push(SHARDS[1], "other")
        one.ran("other")
        assert one.store.settled == [("other", Disposition.DONE)]
        one.gate.set()
        one.ran("suspect")

    def test_a_node_that_lost_a_shard_alive_says_so(self, node):
        one = node()
        one.start_with_run()
        one.store.steal(SHARDS[0])
        one.gate.set()
        eventually(lambda: [lease.shard for lease in one.store.forgiven] == [SHARDS[0]])

    def test_a_crash_that_cannot_be_undone_is_a_warning(self, node, caplog):
        one = node()
        one.start_with_run()
        one.store.fail["retract_crashes"] = lambda after: _raise(StoreUnavailable("gone"))
        one.store.steal(SHARDS[0])
        one.gate.set()
        eventually(lambda: "q/0 could not be undone: gone" in caplog.text)
        one.store.push(SHARDS[1], "other")
        one.ran("other")


class TestLeaseLost:
    def test_a_run_is_told_that_its_shard_changed_hands(self, node):
        one = node()
        batch = one.start_with_run()
        assert not batch.lost.is_set()
        one.store.steal(SHARDS[0])
        assert batch.lost.wait(10)
        one.gate.set()

    def test_a_run_is_told_while_the_lease_cannot_be_renewed(self, node):
        one = node()
        batch = one.start_with_run()

        def unavailable(after):
            raise StoreUnavailable("gone")

        one.store.fail["renew"] = unavailable
        assert batch.lost.wait(10)
        del one.store.fail["renew"]
        eventually(lambda: not batch.lost.is_set())
        one.gate.set()
        one.ran("1")
