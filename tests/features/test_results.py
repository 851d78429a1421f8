"""Each call has its result, also when calls were merged into one run."""

from __future__ import annotations

import celery
import pytest
from celery import exceptions

from celery_lowkiq import RunAborted, ordered_task
from celery_lowkiq.rules.text import last_error_line
from tests.waiting import eventually

WAIT = 30


def test_a_call_has_its_result_and_runs_under_its_own_id(features, work, job_id):
    result = work.delay(job_id, "x")
    assert result.get(WAIT) == [job_id, ["x"]]
    assert result.state == "SUCCESS"
    (run,) = features.noted("run", id=job_id)
    assert run["task_id"] == result.id


def test_merged_calls_each_have_the_result_of_the_run(features, work, job_id):
    with features.holding(work, job_id):
        results = [work.delay(job_id, n) for n in range(3)] + [work.delay(job_id, 2)]
        assert {result.state for result in results} == {"PENDING"}
    for result in results:
        assert result.get(WAIT) == [job_id, [0, 1, 2]]
    _held, run = features.noted("run", id=job_id)
    assert run["task_id"] not in {result.id for result in results}
    for result in results:
        for signal in ("task_prerun", "task_success", "task_postrun"):
            assert len(features.wait_for("signal", signal=signal, task_id=result.id)) == 1
    assert len(features.wait_for("signal", signal="task_prerun", task_id=run["task_id"])) == 1


@pytest.mark.parametrize("merged", [False, True], ids=["alone", "merged"])
def test_the_children_of_a_call_are_those_of_its_own_run(features, work, job_id, merged):
    with features.holding(work, job_id) if merged else features.nothing():
        first = work.delay(job_id, "first") if merged else None
        result = work.delay(job_id, {"adds": 2})
    child = result.get(WAIT)
    assert features.app.AsyncResult(child).get(WAIT) == 3
    assert [found.id for found in result.children or ()] == ([] if merged else [child])
    assert first is None or first.get(WAIT) == child


def test_a_call_that_failed_for_good(features, work, job_id):
    result = work.delay(job_id, {"fail": "boom"})
    with pytest.raises(ValueError, match="boom"):
        result.get(WAIT)
    assert result.state == "FAILURE"
    assert "act" in result.traceback
    assert len(features.noted("run", id=job_id)) == 3
    assert len(features.wait_for("signal", signal="task_retry", task_id=result.id)) == 2
    assert len(features.wait_for("signal", signal="task_failure", task_id=result.id)) == 1


@pytest.mark.parametrize("merged", [False, True], ids=["alone", "merged"])
def test_a_call_whose_function_raised_no_exception(features, work, job_id, merged):
    """O5: its state is FAILURE, as of any error, after its retries."""
    with features.holding(work, job_id) if merged else features.nothing():
        results = [work.delay(job_id, {"halt": f"boom {n}"}) for n in range(2 if merged else 1)]
    for result in results:
        with pytest.raises(RunAborted, match="boom"):
            result.get(WAIT)
        assert result.state == "FAILURE"
        assert "Halt" in result.traceback
        assert len(features.wait_for("signal", signal="task_failure", task_id=result.id)) == 1
    assert features.node.container.status == "running"


def test_merged_calls_die_one_payload_after_the_other(features, work, job_id):
    with features.holding(work, job_id):
        first = work.apply_async((job_id, {"fail": "one"}), {}, score=1)
        again = work.apply_async((job_id, {"fail": "one"}), {}, score=1)
        second = work.apply_async((job_id, {"fail": "two"}), {}, score=2)
    for result, error in ((first, "two"), (again, "two"), (second, "two")):
        with pytest.raises(ValueError, match=error):
            result.get(WAIT)
    assert len(features.noted("run", id=job_id)) == 1 + 3 + 3


def test_a_merged_call_is_retried_and_then_succeeds(features, work, job_id):
    with features.holding(work, job_id):
        results = [work.delay(job_id, "rest"), work.delay(job_id, {"once": f"once-{job_id}"})]
    for result in results:
        assert result.get(WAIT)[0] == job_id
        assert len(features.noted("signal", signal="task_retry", task_id=result.id)) == 1


@pytest.mark.parametrize("merged", [False, True])
def test_states_on_the_way(features, work, job_id, merged, gate):
    """STARTED while it runs, and RETRY between two runs."""
    with features.holding(work, job_id):
        first = work.apply_async((job_id, {"x": 1}), {}, score=1) if merged else None
        second = work.apply_async((job_id, {"gate": gate, "once": f"once-{job_id}"}), {}, score=2)
        assert second.state == "PENDING"
    for result in (second,) if first is None else (second, first):
        eventually(lambda result=result: result.state == "STARTED")
    features.open(gate)
    assert second.get(WAIT)[0] == job_id
    assert len(features.noted("signal", signal="task_retry", task_id=second.id)) == 1


def test_a_call_that_waits_for_its_retry_says_so(features, work, job_id):
    hopeful = features.app.tasks["backoff"]
    result = hopeful.delay(job_id, {"io": "away"})
    eventually(lambda: result.state == "RETRY")
    with pytest.raises(OSError, match="away"):
        result.get(WAIT)
    assert len(features.wait_for("signal", signal="task_retry", task_id=result.id)) == 1


def test_results_that_nobody_asks_for_cost_nothing(features, job_id):
    quiet = features.app.tasks["quiet"]
    result = quiet.delay(job_id, "x")
    (run,) = features.wait_for("run", id=job_id)
    assert run["task_id"] != result.id
    assert result.state == "PENDING"


@pytest.mark.parametrize("merged", [False, True], ids=["alone", "merged"])
def test_errors_are_stored_even_if_results_are_ignored(features, job_id, new_id, merged):
    errors = features.app.tasks["errors"]
    with features.holding(errors, job_id) if merged else features.nothing():
        first = errors.apply_async((job_id, "first"), score=1) if merged else None
        result = errors.apply_async((job_id, {"fail": "boom"}), score=2)
    for failed in (first, result) if merged else (result,):
        with pytest.raises(ValueError, match="boom"):
            features.app.AsyncResult(failed.id).get(WAIT)
    good = errors.delay(new_id(), "x")
    assert features.wait_for("run", task_id=good.id)
    assert good.state == "PENDING"


#: Until 5.7 Celery itself takes the task's word for it.
MAY_STORE = celery.VERSION >= (5, 7)


@pytest.mark.parametrize("task, ignore", [("work", True), *([("quiet", False)] if MAY_STORE else [])])
def test_ignore_result_of_one_call(features, job_id, task, ignore):
    result = features.app.tasks[task].apply_async((job_id, "x"), ignore_result=ignore)
    features.wait_for("run", id=job_id)
    if ignore:
        with pytest.raises(exceptions.TimeoutError):
            features.app.AsyncResult(result.id).get(0.3)
    else:
        assert result.get(WAIT) == [job_id, ["x"]]


def test_a_bulk_call_returns_its_results_when_asked_to(features, work, new_id):
    ids = [new_id() for _ in range(20)]
    results = work.perform_async([{"id": i, "payload": n} for n, i in enumerate(ids)], results=True)
    assert len(results) == 20
    assert [result.get(WAIT) for result in results] == [[i, [n]] for n, i in enumerate(ids)]
    assert results[3:5][1].id == results[4].id
    assert work.perform_async([{"id": new_id()}]) is None


@pytest.mark.parametrize("neighbours", [0, 2])
def test_a_state_on_the_way_is_that_of_each_call(features, work, job_id, new_id, neighbours, gate):
    with features.holding(work, job_id):
        results = [work.delay(job_id, {"n": n}) for n in range(neighbours)]
        results.append(work.delay(job_id, {"progress": 3, "gate": gate, "return": 7}))
    for result in results:
        eventually(lambda result=result: result.state == "PROGRESS")
        assert result.info == {"done": 3}
    features.open(gate)
    assert [result.get(WAIT) for result in results] == [7] * (neighbours + 1)


class TestBatches:
    @pytest.fixture
    def batch(self, features):
        return features.app.tasks["batch"]

    def call(self, features, batch, new_id, whats):
        """Calls that run in one batch."""
        with features.holding(batch, new_id()):
            ids = [new_id() for _ in whats]
            results = batch.perform_async(
                [{"id": i, "payload": what} for i, what in zip(ids, whats, strict=True)], results=True
            )
        return ids, results

    def outcomes(self, results):
        return [repr(result.get(WAIT, propagate=False)) for result in results]

    def test_each_id_has_its_own_value(self, features, batch, new_id):
        _, results = self.call(features, batch, new_id, [{"value": 1}, {"value": 2}, {}])
        assert self.outcomes(results) == ["1", "2", "None"]
        assert len(features.noted("batch")[-1]["payloads"]) == 3

    def test_any_other_value_is_everyones(self, features, batch, new_id):
        ids, results = self.call(features, batch, new_id, [{"same": 1}, {}])
        assert self.outcomes(results) == [repr(sorted(ids))] * 2

    def test_the_named_jobs_fail_and_the_others_are_done(self, features, batch, new_id):
        ids, results = self.call(features, batch, new_id, [{"fail": "a"}, {"value": 2}, {"fail": "c"}])
        assert self.outcomes(results) == ["ValueError('a')", "None", "ValueError('c')"]
        assert [result.state for result in results] == ["FAILURE", "SUCCESS", "FAILURE"]
        places = [eventually(lambda i=i: batch.ordered_queue.job(i).dead) for i in (ids[0], ids[2])]
        assert batch.ordered_queue.job(ids[1]).dead is None
        assert {dead.id: last_error_line(dead.error) for dead in places} == {
            ids[0]: "ValueError: a",
            ids[2]: "ValueError: c",
        }

    @pytest.mark.parametrize("what", ["unknown", "none"])
    def test_an_unknown_id_or_none_fails_them_all_and_each_runs_alone(self, features, batch, new_id, what):
        ids, results = self.call(features, batch, new_id, [{what: 1}, {}])
        guilty, innocent = self.outcomes(results)
        assert guilty.startswith("JobsFailed")
        assert innocent == "None"
        runs = [set(run["payloads"]) for run in features.noted("batch")]
        assert [run for run in runs if ids[1] in run] == [set(ids), {ids[1]}]

    def test_of_a_batch_of_one_the_error_itself_is_seen(self, features, batch, new_id):
        (result,) = batch.perform_async([{"id": new_id(), "payload": {"fail": "alone"}}], results=True)
        with pytest.raises(ValueError, match="alone"):
            result.get(WAIT)


def test_a_drained_job_is_done_with_a_result_in_redis(lowkiq, lowkiq_app):
    lowkiq_app.conf.result_backend = lowkiq_app.conf.broker_url

    @ordered_task(app=lowkiq_app, name="drained")
    def drained(payloads_by_id):
        return payloads_by_id

    result = drained.delay("1", "x")
    assert lowkiq.drain() == 1
    assert result.get(WAIT) == {"1": ["x"]}
    assert drained.ordered_queue.stats().busy == 0
