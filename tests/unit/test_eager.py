"""Eager calls: the rules of a job without Redis."""

from __future__ import annotations

import asyncio

import pytest
from celery import Task
from kombu.exceptions import EncodeError
from pydantic import BaseModel

from celery_lowkiq import ById, InvalidCall, JobsFailed, RunAborted, ordered_task
from tests.unit.recording import recorder


class TestEager:
    def test_a_call_gets_the_real_shape(self, app):
        task, calls = recorder(app)
        assert task.delay("42", {"v": 1}).get() == ["42"]
        task.apply_async((7,), countdown=5, score=3)
        task.apply(("8", "p"))
        assert calls == [{"42": [{"v": 1}]}, {"7": [""]}, {"8": ["p"]}]

    def test_a_bulk_call_is_grouped_in_score_order_batch_by_batch(self, app):
        task, calls = recorder(app, batch_size=2)
        jobs = [(1, "b", 2), (2, "x", 1), (1, "a", 1), (3, "y", 0), (1, "b", 3)]
        assert task.perform_async([{"id": i, "payload": p, "score": s} for i, p, s in jobs]) is None
        assert calls == [{"1": ["a", "b"], "2": ["x"]}, {"3": ["y"]}]

    @pytest.mark.parametrize("merge, order", [("min", ["b", "c", "a"]), ("max", ["c", "a", "b"])])
    def test_equal_payloads_merge_by_rule_2(self, app, merge, order):
        task, calls = recorder(app, merge=merge)
        jobs = [("b", 1), ("c", 2), ("a", 3), ("b", 4)]
        task.perform_async([{"id": 1, "payload": p, "score": s} for p, s in jobs])
        assert calls == [{"1": order}]

    def test_without_scores_the_order_of_calls_is_kept(self, app):
        task, calls = recorder(app)
        task.perform_async([{"id": 1, "payload": p} for p in "zyxa"])
        assert calls == [{"1": ["z", "y", "x", "a"]}]

    def test_propagation_is_obeyed(self, app):
        @ordered_task(app=app)
        def fails(payloads_by_id):
            raise KeyError("boom")

        assert fails.delay("1").state == "FAILURE"
        fails.perform_async([{"id": 1}])
        app.conf.task_eager_propagates = True
        with pytest.raises(KeyError):
            fails.delay("1")
        with pytest.raises(KeyError):
            fails.perform_async([{"id": 1}])

    def test_a_base_exception_of_the_function_is_a_failure(self, app):
        """O5: as in a worker."""

        @ordered_task(app=app)
        def cancelled(payloads_by_id):
            raise asyncio.CancelledError

        result = cancelled.delay("1")
        assert (result.state, type(result.result)) == ("FAILURE", RunAborted)
        app.conf.task_eager_propagates = True
        with pytest.raises(RunAborted) as raised:
            cancelled.delay("1")
        assert isinstance(raised.value.__cause__, asyncio.CancelledError)

    def test_the_request_is_celerys(self, app):
        @ordered_task(app=app, bind=True)
        def asks(self, payloads_by_id):
            return self.request.id, self.request.is_eager

        assert asks.apply_async(("1",), task_id="known").get() == ("known", True)

    def test_the_request_says_where_the_batch_comes_from(self, app):
        @ordered_task(app=app, bind=True, name="asks")
        def asks(self, payloads_by_id):
            info = self.request.lowkiq
            return info.queue, info.fence, [(job.id, job.payloads, job.scores) for job in info.jobs]

        assert asks.delay("1", "x").get() == ("asks", 0, [("1", ("x",), (0.0,))])

    def test_retry_is_a_retry(self, app):
        @ordered_task(app=app, bind=True)
        def again(self, payloads_by_id):
            raise self.retry(countdown=7)

        assert again.delay("1").state == "RETRY"

    def test_values_are_what_a_worker_would_see(self, app):
        task, calls = recorder(app)
        task.delay("1", (1, 2))
        assert calls == [{"1": [[1, 2]]}]

    def test_a_key_is_asked_once_a_call(self, app):
        asked = []
        task, _ = recorder(app, key=lambda payload: asked.append(payload) or payload)
        task.delay("a")
        assert asked == ["a"]

    def test_a_payload_without_its_key_is_refused(self, app):
        task, calls = recorder(app, key=lambda payload: payload["id"])
        with pytest.raises(InvalidCall, match=r"key= finds no id in payload=\{'v': 1\}: KeyError"):
            task.delay({"v": 1})
        assert calls == []

    def test_key(self, app):
        task, calls = recorder(app, key=lambda payload: payload["id"])
        task.delay({"id": 5, "v": 1})
        task.perform_async([{"payload": {"id": 6}}])
        assert calls == [{"5": [{"id": 5, "v": 1}]}, {"6": [{"id": 6}]}]


class TestEagerResults:
    def test_each_id_has_its_own(self, app):
        @ordered_task(app=app, batch_size=10)
        def sums(payloads_by_id):
            return ById({job_id: sum(payloads) for job_id, payloads in payloads_by_id.items()})

        assert sums.delay("1", 5).get() == 5
        results = sums.perform_async([{"id": n, "payload": n} for n in (1, 2, 3)], results=True)
        assert [result.get() for result in results] == [1, 2, 3]

    def test_each_id_has_its_own_error(self, app):
        @ordered_task(app=app, batch_size=10)
        def picky(payloads_by_id):
            wrong = {job_id: ValueError(job_id) for job_id in payloads_by_id if job_id != "1"}
            if wrong:
                raise JobsFailed(wrong)

        assert repr(picky.delay("2").result) == "ValueError('2')"
        results = picky.perform_async([{"id": n} for n in (1, 2)], results=True)
        assert [result.state for result in results] == ["SUCCESS", "FAILURE"]

    def test_links_and_chains(self, app):
        @ordered_task(app=app)
        def keeps(payloads_by_id):
            seen.append(payloads_by_id)
            return "kept"

        @app.task(shared=False)
        def add(x, y):
            return x + y

        seen = []
        assert (add.s(1, 2) | keeps.s("42") | add.s("!")).delay().get() == "kept!"
        keeps.apply_async(("1",), link=keeps.s("2"))
        assert seen == [{"42": [3]}, {"1": [""]}, {"2": ["kept"]}]


class Order(BaseModel):
    id: int


class TestInPlace:
    """As a plain task."""

    @pytest.mark.skipif(not hasattr(Task, "_dump_pydantic_arguments"), reason="since Celery 5.6")
    @pytest.mark.parametrize("call", ["delay", "apply"])
    def test_by_gets_what_a_model_is_dumped_to(self, app, call):
        """It got the model itself, as it does in no other call."""

        @ordered_task(app=app, by=lambda arguments: arguments["order"]["id"], pydantic=True)
        def save(order: Order):
            return type(order).__name__, order.id

        order = Order(id=7)
        result = save.delay(order) if call == "delay" else save.apply((order,))
        assert result.get() == ("Order", 7)

    def test_its_arguments_are_serialized(self, app):
        """A call that no worker could have been sent succeeded."""

        @ordered_task(app=app, by="order_id", bind=True)
        def save(self, order_id, what):
            return what, self.request.lowkiq.jobs[0].id

        assert save.delay(7, (1, 2)).get() == ([1, 2], "7")
        assert save.apply_async((7,), {"what": 1}, countdown=3, score=2).get() == (1, "7")
        with pytest.raises(EncodeError):
            save.delay(7, object())
