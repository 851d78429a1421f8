"""Tests of ``integration/decisions.py``."""

from __future__ import annotations

import pickle
import traceback
from datetime import datetime, timedelta, timezone

import pytest
from celery.exceptions import Ignore, Reject, Retry

from celery_lowkiq import Again, BusinessFailure, ConfigurationError, InvalidCall, JobsFailed, ordered_task
from celery_lowkiq.rules.fingerprints import read_mark
from celery_lowkiq.rules.models import Disposition, PayloadRemoval, Recorded, RemovalReason
from tests.unit.lanes import Lane, job


def raising(error):
    """A function that raises what ``error`` makes of its payloads."""

    def function(self, payloads_by_id):
        raise error(payloads_by_id) if callable(error) else error

    return function


def dropped(settlement):
    """Positions of payloads that are done with."""
    assert {bad.error for bad in settlement.bad} <= {None}
    return [bad.position for bad in settlement.bad]


def three(**options):
    return job(b"1", b"2", b"3", calls=[(0, "a"), (1, "b"), (2, "c")], **options)


def states(lane):
    return [lane.state(task_id) for task_id in "abc"]


class TestAgain:
    def test_what_is_left_goes_back_as_it_was_and_the_rest_is_done(self):
        lane = Lane(raising(lambda batch: Again(batch["1"][2:], after=5, result="so far")))
        (settlement,) = lane.run(three(retry_count=3))
        assert (settlement.disposition, settlement.delay, dropped(settlement)) == (
            Disposition.RETURN,
            5.0,
            [0, 1],
        )
        assert states(lane) == ["SUCCESS", "SUCCESS", "PENDING"]
        assert (lane.result("a"), lane.result("b")) == ("so far", "so far")
        assert settlement.ended == ((b"key 0", b"key 0"), (b"key 1", b"key 1"))

    def test_at_once_is_behind_what_is_due_already(self):
        (settlement,) = Lane(raising(lambda batch: Again(batch["1"][1:]))).run(three())
        assert 0 < settlement.delay < 0.001

    def test_all_of_it(self):
        lane = Lane(raising(Again(after=timedelta(minutes=1))))
        (settlement,) = lane.run(three())
        assert (settlement.disposition, settlement.delay, dropped(settlement), settlement.ended) == (
            Disposition.RETURN,
            60.0,
            [],
            (),
        )
        assert states(lane) == ["PENDING"] * 3

    def test_nothing_of_it(self):
        lane = Lane(raising(Again([], result=7)))
        (settlement,) = lane.run(three())
        assert (settlement.disposition, settlement.bad) == (Disposition.DONE, ())
        assert [lane.result(task_id) for task_id in "abc"] == [7, 7, 7]

    def test_of_a_single_call_celery_sees_a_retry_and_then_the_result(self):
        lane = Lane(raising(Again()))
        (settlement,) = lane.run(job(b"1", calls=[(0, "a")]))
        assert (settlement.disposition, settlement.ended, lane.state("a")) == (
            Disposition.RETURN,
            (),
            "RETRY",
        )
        lane = Lane(raising(Again([], result=7)))
        (settlement,) = lane.run(job(b"1", calls=[(0, "a")]))
        assert (settlement.disposition, lane.result("a")) == (Disposition.DONE, 7)

    def test_equal_payloads_are_found(self):
        stored = job(b'{"a":1,"b":[2]}', b"1.0", b"1", b'"x"', recorded=Recorded.NONE)
        lane = Lane(raising(Again([{"b": [2], "a": 1}, 1.0, "x"])))
        (settlement,) = lane.run(stored)
        assert dropped(settlement) == [2]

    @pytest.mark.parametrize("left, words", [(["new"], "Again: 'new' was not handed"), ([{1}], "serialized")])
    def test_something_else_fails_the_batch(self, left, words):
        lane = Lane(raising(Again(left)), batch_size=2)
        settlements = lane.run(
            job(b"1", recorded=Recorded.NONE), job(b"2", job_id="2", recorded=Recorded.NONE)
        )
        assert [settlement.disposition for settlement in settlements] == [
            Disposition.RETRY,
            Disposition.RETRY,
        ]
        assert all(words in settlement.error.decode() for settlement in settlements)

    def test_raised_bare_each_job_keeps_its_own(self):
        lane = Lane(raising(Again([2, 3])), batch_size=3)
        jobs = [job(b"1", b"2", job_id="x"), job(b"3", b"4", job_id="y"), job(b"5", job_id="z")]
        settlements = lane.run(*jobs)
        assert [settlement.disposition for settlement in settlements] == [
            Disposition.RETURN,
            Disposition.RETURN,
            Disposition.DONE,
        ]
        assert [dropped(settlement) for settlement in settlements] == [[0], [1], []]

    def test_raised_bare_with_payloads_of_one_job_it_is_not_for_equal_ones_of_others(self):
        lane = Lane(raising(lambda batch: Again(batch["x"])), batch_size=2)
        settlements = lane.run(job(b"[1]", job_id="x"), job(b"[1]", job_id="y"))
        assert [settlement.disposition for settlement in settlements] == [
            Disposition.RETURN,
            Disposition.DONE,
        ]

    def test_payloads_that_nobody_can_read_are_no_part_of_it(self):
        lane = Lane(raising(lambda batch: Again(batch["1"][1:])))
        (settlement,) = lane.run(job(b"\xff", b"2", b"3", calls=[(0, "a"), (1, "b"), (2, "c")]))
        assert [bad.position for bad in settlement.bad] == [0, 1]
        assert (b"undecodable" in settlement.bad[0].error, settlement.bad[1].error) == (True, None)
        assert states(lane) == ["FAILURE", "SUCCESS", "PENDING"]

    @pytest.mark.parametrize(
        "arguments, error", [(("abc",), TypeError), (({"1": []},), TypeError), (([], "soon"), InvalidCall)]
    )
    def test_what_is_none_is_refused_where_it_is_made(self, arguments, error):
        with pytest.raises(error):
            Again(*arguments)

    def test_autoretry_for_all_exceptions_leaves_it_alone(self):
        lane = Lane(raising(lambda batch: Again(batch["1"][1:])), autoretry_for=(Exception,))
        (settlement,) = lane.run(three(retry_count=3))
        assert (settlement.disposition, dropped(settlement)) == (Disposition.RETURN, [0])

    def test_it_can_be_pickled(self):
        again = pickle.loads(pickle.dumps(Again([1], 5, "x")))
        assert (again.payloads_left, again.after, again.result) == ([1], 5.0, "x")


class TestBusinessFailure:
    ERROR = BusinessFailure("not eligible")

    @pytest.mark.parametrize("function", [raising(ERROR), raising(JobsFailed({"1": ERROR}))])
    def test_no_retry_no_morgue_and_its_message_is_the_result(self, function, caplog):
        lane = Lane(function)
        (settlement,) = lane.run(three())
        assert (settlement.disposition, settlement.bad) == (
            Disposition.BURY,
            tuple(PayloadRemoval(n, None, RemovalReason.OVER) for n in range(3)),
        )
        assert len(settlement.ended) == 3
        assert states(lane) == ["FAILURE"] * 3
        assert isinstance(lane.result("b"), BusinessFailure)
        assert str(lane.result("b")) == "not eligible"
        assert {record.levelname for record in caplog.records} <= {"INFO"}

    def test_of_a_single_call(self, caplog):
        caplog.set_level("INFO")
        lane = Lane(raising(self.ERROR), throws=[KeyError], autoretry_for=(Exception,))
        (settlement,) = lane.run(job(b"1", calls=[(0, "a")]))
        assert (settlement.disposition, lane.state("a"), str(lane.result("a"))) == (
            Disposition.BURY,
            "FAILURE",
            "not eligible",
        )
        (line,) = [record for record in caplog.records if "not eligible" in record.getMessage()]
        assert (line.levelname, line.exc_info) == ("INFO", None)

    def test_a_batch_of_them_is_logged_as_one(self, caplog):
        lane = Lane(raising(JobsFailed({"1": self.ERROR, "2": BusinessFailure("too late")})), batch_size=2)
        lane.run(*(job(b"1", job_id=job_id, recorded=Recorded.NONE) for job_id in "12"))
        ours = [record for record in caplog.records if record.name.startswith("celery_lowkiq")]
        assert {record.levelname for record in ours} <= {"INFO"}

    def test_it_calls_nobody_about_exhausted_retries(self):
        dead = []
        lane = Lane(raising(self.ERROR), on_retries_exhausted=dead.append)
        lane.run(job(b"1", recorded=Recorded.NONE))
        assert dead == []


class TestOnRetriesExhausted:
    @pytest.mark.parametrize("max_retries", [0, 1, 25])
    def test_it_gets_what_died_and_nothing_else(self, max_retries):
        """O8: the dead payload, its score, and the retry_count at which it died."""
        dead = []
        lane = Lane(raising(ValueError("boom")), max_retries=max_retries, on_retries_exhausted=dead.append)
        lane.run(three(retry_count=max_retries - 1))
        ((found,),) = dead
        assert (found.id, found.payloads, found.scores, found.retry_count) == ("1", (1,), (0.0,), max_retries)
        assert found.error.endswith("ValueError: boom")

    def test_payloads_that_nobody_can_read_did_not_die_of_it(self):
        dead = []
        lane = Lane(raising(ValueError("boom")), max_retries=0, on_retries_exhausted=dead.append)
        lane.run(job(b"\xff", b"2", b"3", recorded=Recorded.NONE))
        assert [(found.payloads, found.scores) for (found,) in dead] == [((2,), (1.0,))]

    def test_of_a_batch_only_the_jobs_that_died(self):
        dead = []
        lane = Lane(raising(ValueError("boom")), max_retries=1, on_retries_exhausted=dead.append)
        jobs = [
            job(b"%d" % count, job_id=f"at {count}", recorded=Recorded.NONE, retry_count=count)
            for count in (-1, 0)
        ]
        lane.run(*jobs)
        assert [[(found.id, found.retry_count) for found in jobs] for jobs in dead] == [[("at 0", 1)]]


class TestEachJob:
    def test_the_results_of_the_others_can_be_pickled(self):
        failed = pickle.loads(pickle.dumps(JobsFailed({"1": ValueError("boom")}, {"2": "done"})))
        assert (repr(failed.errors), failed.results) == ("{'1': ValueError('boom')}", {"2": "done"})

    def test_every_kind_in_one_batch(self):
        def function(self, payloads_by_id):
            raise JobsFailed(
                {
                    "again": Again(payloads_by_id["again"][1:], after=9),
                    "retry": Retry(exc=KeyError("busy"), when=7),
                    "business": BusinessFailure("not eligible"),
                    "error": ValueError("boom"),
                }
            )

        lane = Lane(function, batch_size=5, retry_in=300)
        names = ["again", "retry", "business", "error", "done"]
        jobs = [job(b"1", b"2", job_id=name, recorded=Recorded.NONE) for name in names]
        settlements = dict(zip(names, lane.run(*jobs), strict=True))
        assert {name: settlement.disposition for name, settlement in settlements.items()} == {
            "again": Disposition.RETURN,
            "retry": Disposition.RETRY,
            "business": Disposition.BURY,
            "error": Disposition.RETRY,
            "done": Disposition.DONE,
        }
        assert (settlements["retry"].delay, read_mark(settlements["retry"].error)[1]) == (
            7.0,
            b"KeyError: 'busy'",
        )
        assert (settlements["error"].delay, settlements["again"].delay) == (300.0, 9.0)

    def test_a_retry_at_a_time(self):
        when = datetime.now(timezone.utc) + timedelta(hours=1)
        for at in (when, when.astimezone().replace(tzinfo=None)):
            (settlement,) = Lane(raising(Retry(when=at))).run(job(b"1", recorded=Recorded.NONE))
            assert settlement.delay == pytest.approx(3600, abs=60)


@pytest.mark.parametrize("most", [0, 1001, 2.5, "all"])
def test_a_bad_max_payloads_per_run_is_refused(most):
    with pytest.raises(ConfigurationError, match=r"max_payloads_per_run=.*1 to 1000"):
        ordered_task(max_payloads_per_run=most)(lambda payloads_by_id: None)


class Secretive(Exception):
    """Like an error that finds its attributes in the answer of a service."""

    def __getattr__(self, name):
        raise KeyError(name)


class Limited(Exception):
    """An error of a service that gave up after tries of its own."""

    def __init__(self, max_retries):
        super().__init__("gave up")
        self.max_retries = max_retries


class Unhashable(Again):
    __hash__ = None


def retry_with(max_retries):
    error = Retry(exc=ValueError("x"))
    error.max_retries = max_retries
    return error


class TestStrangeErrors:
    """Whatever a function raises, its job is not done."""

    @pytest.mark.parametrize(
        "make",
        [
            lambda _: Secretive("x"),
            lambda _: retry_with("3"),
            lambda _: Retry(when=10**400),
            lambda _: Limited(0),
            lambda _: Limited("3"),
            lambda _: Limited(None),
        ],
    )
    def test_each_is_a_failure(self, make):
        lane = Lane(raising(make), max_retries=1)
        (settlement,) = lane.run(job(b"1", calls=[(0, "a")]))
        assert (settlement.disposition, lane.state("a")) == (Disposition.RETRY, "RETRY")
        (settlement,) = lane.run(job(b"1", retry_count=0, recorded=Recorded.NONE))
        assert settlement.disposition is Disposition.DIE

    def test_only_what_says_so_itself_changes_how_often_a_job_is_retried(self):
        (settlement,) = Lane(raising(retry_with(0))).run(job(b"1"))
        assert settlement.disposition is Disposition.DIE

    def test_an_again_that_is_no_key(self):
        (settlement,) = Lane(raising(Unhashable())).run(job(b"1"))
        assert settlement.disposition is Disposition.RETURN

    @pytest.mark.parametrize("error", [BusinessFailure("no"), Ignore("no")])
    def test_it_costs_no_more_for_the_last_of_many_calls(self, error):
        """Each raise of an error makes its traceback longer."""
        lane = Lane(raising(error))
        lane.run(job(b"1", calls=[(0, f"call-{n}") for n in range(20)]))
        frames = sum(1 for _ in traceback.walk_tb(error.__traceback__))
        assert frames < 15


def test_at_once_nothing_runs_again(app):
    """``task_always_eager``: as with ``self.retry``."""
    for error in (Again(after=5), JobsFailed({"1": Again(after=5)})):
        task = ordered_task(app=app, shared=False, bind=True, name="eager")(raising(error))
        assert task.delay("1", "x").state == "RETRY"
        del app.tasks["eager"]


def test_at_once_autoretry_leaves_them_alone(app):
    expected = {Again(after=5): "RETRY", BusinessFailure("no"): "FAILURE", ValueError(): "RETRY"}
    for error, state in expected.items():
        options = {"app": app, "shared": False, "bind": True, "autoretry_for": (Exception,)}
        task = ordered_task(name="eager", **options)(raising(error))
        assert task.delay("1", "x").state == state
        del app.tasks["eager"]


@pytest.mark.parametrize("kind", [Again, BusinessFailure, JobsFailed, Retry, Reject])
def test_they_are_no_errors_that_a_retry_could_mend_or_not(kind):
    with pytest.raises(ConfigurationError, match="dont_retry="):
        ordered_task(dont_retry=(kind,))(lambda payloads_by_id: None)
