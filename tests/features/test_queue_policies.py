"""Policies of a queue, through a real worker."""

from __future__ import annotations

import pytest
from celery import chord
from celery.exceptions import ChordError, TaskRevokedError

from celery_lowkiq import QueueFull, track
from celery_lowkiq.integration.records import DROPPED
from celery_lowkiq.rules.tracking import Counts
from tests.features.proj import TTL
from tests.waiting import eventually

WAIT = 30


def payloads(features, job_id):
    return [run["payloads"] for run in features.noted("run", id=job_id)]


def is_dropped(features, result):
    with pytest.raises(TaskRevokedError, match=DROPPED):
        result.get(WAIT)
    assert result.state == "REVOKED"


@pytest.fixture
def held(features, gate):
    """A run of an id that lasts until the test opens the gate; the call's result is "done"."""

    def hold(task, job_id, what=(), **options):
        call = task.apply_async((job_id, {"gate": gate, "return": "done", **dict(what)}), **options)
        features.wait_for("held", gate=gate)
        return call

    return hold


class TestKeep:
    def test_a_run_gets_the_highest_scores_and_the_other_calls_are_revoked(self, features, job_id):
        task = features.app.tasks["latest"]
        before = task.ordered_queue.stats().dropped
        with features.holding(task, job_id):
            calls = [task.apply_async((job_id, n), score=n) for n in (3, 9, 5)]
        assert calls[1].get(WAIT) == [job_id, [9]]
        is_dropped(features, calls[0])
        is_dropped(features, calls[2])
        assert features.wait_for("signal", signal="task_revoked", task_id=calls[0].id)
        assert eventually(lambda: task.ordered_queue.stats().dropped == before + 2)

    def test_what_nobody_hears_of_is_gone_at_once(self, features, job_id):
        task = features.app.tasks["latest"]
        with features.holding(task, job_id):
            for n in range(50):
                task.apply_async((job_id, n), score=n, ignore_result=True)
            assert task.ordered_queue.job(job_id).waiting.payload_count == 1
        features.wait_for("run", 2, id=job_id)
        assert payloads(features, job_id)[1:] == [[49]]

    def test_a_chord_of_a_dropped_call_fails(self, features, job_id):
        task = features.app.tasks["latest"]
        with features.holding(task, job_id):
            result = chord([task.s(job_id, {"return": n}) for n in (1, 2)])(features.app.tasks["total"].s())
        assert isinstance(result.get(WAIT, propagate=False), ChordError)


class TestDebounce:
    def test_calls_that_come_close_together_are_one_run(self, features, job_id):
        task = features.app.tasks["calm"]
        calls = [task.delay(job_id, "first")]
        due = task.ordered_queue.job(job_id).waiting.perform_in
        calls += [task.delay(job_id, n) for n in range(5)]
        assert task.ordered_queue.job(job_id).waiting.perform_in > due
        assert [call.get(WAIT) for call in calls] == [[job_id, ["first", *range(5)]]] * 6

    def test_calls_without_end_cannot_put_a_job_off_for_ever(self, features, job_id):
        task = features.app.tasks["bounded"]

        def ran():
            task.apply_async((job_id, "again"), ignore_result=True)
            return payloads(features, job_id)

        assert eventually(ran)


class TestStale:
    def test_3_that_comes_while_5_runs_is_dropped_and_5_again_is_not(self, features, held, gate, job_id):
        task = features.app.tasks["newer"]
        before = task.ordered_queue.stats().dropped
        five = held(task, job_id, score=5)
        three = task.apply_async((job_id, "three"), score=3)
        equal = task.apply_async((job_id, "also five"), score=5)
        features.open(gate)
        assert five.get(WAIT) == "done"
        assert equal.get(WAIT) == [job_id, ["also five"]]
        is_dropped(features, three)
        task.apply_async((job_id, "four"), score=4, ignore_result=True)
        assert task.ordered_queue.job(job_id).waiting is None
        assert eventually(lambda: task.ordered_queue.stats().dropped == before + 2)
        assert "four" not in str(payloads(features, job_id))

    def test_a_dead_payload_runs_by_force_only(self, features, job_id):
        task = features.app.tasks["newer"]
        queue = task.ordered_queue
        task.apply_async((job_id, {"reject": "dead"}), score=3)
        dead = eventually(lambda: queue.job(job_id).dead)
        assert task.apply_async((job_id, "newer"), score=5).get(WAIT) == [job_id, ["newer"]]
        # The mark is set when the run is settled, and its result is known before.
        eventually(lambda: queue.job(job_id).processing is None)
        assert queue.requeue([job_id]) == 0
        assert queue.job(job_id).dead.payloads == dead.payloads
        runs = len(payloads(features, job_id))
        assert queue.requeue([job_id], force=True) == 1
        assert features.wait_for("run", runs + 1, id=job_id)[-1]["payloads"] == [dead.payloads[0].value]


class TestAfterFailure:
    def test_early_runs_that_fail_burn_no_retries(self, features, job_id):
        task = features.app.tasks["impatient"]
        queue = task.ordered_queue
        first = task.delay(job_id, {"fail": "down"})

        def waiting():
            """The job, when it has failed and waits for its retry."""
            job = queue.job(job_id)
            return job.processing is None and job.waiting and job.waiting.retry_count >= 0 and job.waiting

        own = eventually(waiting).perform_in
        for n in range(1, 5):
            task.apply_async((job_id, {"fail": f"down {n}"}), ignore_result=True)
            features.wait_for("run", n + 1, id=job_id)
            job = eventually(lambda: (job := waiting()) and job.perform_in > own - 1 and job)
            assert (job.retry_count, job.perform_in) == (0, pytest.approx(own, abs=1e-3))
        assert first.state == "RETRY"
        up = task.delay(job_id, {"return": "up"})
        assert [up.get(WAIT), first.get(WAIT)] == ["up", "up"]
        assert [run["retries"] for run in features.noted("run", id=job_id)] == [0, 1, 1, 1, 1, 1]
        assert queue.job(job_id).dead is None


class TestLength:
    def test_a_full_queue_refuses_new_ids_and_merges(self, features, held, gate, new_id):
        task = features.app.tasks["refuse"]
        first, second, third = new_id(), new_id(), new_id()
        held(task, first)
        waits = task.delay(first, "waits")
        assert task.delay(first, "merged").id
        with pytest.raises(QueueFull, match="1 jobs wait in the shard, and the task's max_length allows 1"):
            task.delay(second, "x")
        with pytest.raises(QueueFull):
            task.perform_async([{"id": third}, {"id": first, "payload": "not stored"}])
        features.open(gate)
        assert waits.get(WAIT) == [first, ["waits", "merged"]]
        assert task.delay(second, "x").get(WAIT) == [second, ["x"]]

    @pytest.mark.parametrize("name, dropped", [("drop_newest", 1), ("drop_oldest", 0)])
    def test_a_full_queue_drops_and_tells(self, features, held, gate, new_id, name, dropped):
        task = features.app.tasks[name]
        ids = [new_id(), new_id()]
        held(task, new_id())
        calls = [task.delay(job_id, "x") for job_id in ids]
        is_dropped(features, calls[dropped])
        features.open(gate)
        assert calls[1 - dropped].get(WAIT) == [ids[1 - dropped], ["x"]]

    def test_a_chord_of_a_call_that_was_dropped_at_once_fails(self, features, held, gate, new_id):
        task = features.app.tasks["drop_newest"]
        held(task, new_id())
        result = chord([task.s(new_id(), {"return": n}) for n in (1, 2)])(features.app.tasks["total"].s())
        features.open(gate)
        assert isinstance(result.get(WAIT, propagate=False), ChordError)


def outlive(features):
    began = features.app.now()
    eventually(lambda: (features.app.now() - began).total_seconds() > TTL + 0.1)


class TestTimeToLive:
    def test_it_ends_what_has_not_started(self, features, gate, job_id):
        task = features.app.tasks["short"]
        before = task.ordered_queue.stats().dropped
        task.apply_async((job_id, {"gate": gate}), ignore_result=True)
        features.wait_for("held", gate=gate)
        late = task.delay(job_id, "late")
        outlive(features)
        features.open(gate)
        with pytest.raises(TaskRevokedError):
            late.get(WAIT)
        assert "late" not in str(payloads(features, job_id))
        assert eventually(lambda: task.ordered_queue.stats().dropped == before + 1)

    @pytest.mark.full
    def test_it_ends_no_retries(self, features, gate, job_id):
        task = features.app.tasks["short"]
        started = task.delay(job_id, {"gate": gate, "once": f"once-{job_id}", "return": "at last"})
        features.wait_for("held", gate=gate)
        outlive(features)
        features.open(gate)
        assert started.get(WAIT) == "at last"


def test_a_tracker_counts_a_dropped_call_as_failed(features, job_id):
    task = features.app.tasks["latest"]
    with features.holding(task, job_id), track("dropped", features.app) as tracker:
        gone = task.apply_async((job_id, 1), score=1, tracker=tracker)
        stays = task.apply_async((job_id, 2), score=2, tracker=tracker)
    assert stays.get(WAIT) == [job_id, [2]]
    is_dropped(features, gone)
    assert tracker.wait(WAIT)
    assert tracker.counts() == Counts(finished=1, failed=1)
    assert [m.text for call in tracker.jobs().items for m in call.messages] == [DROPPED]
