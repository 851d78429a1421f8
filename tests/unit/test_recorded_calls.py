"""Tests of ``integration/recorded_calls.py``."""

from __future__ import annotations

import logging
from typing import ClassVar

import pytest
from celery import Task, signals
from celery.exceptions import Reject
from celery.worker import state
from kombu.exceptions import OperationalError

from celery_lowkiq import BusinessFailure, OrderedTask, RunAborted
from celery_lowkiq.integration.records import TTL_ENDS, CallRecord
from celery_lowkiq.rules.models import (
    POISON_PILL_RETRY_COUNT,
    ClaimedCallRecords,
    Disposition,
    PayloadRemoval,
    Recorded,
)
from tests.unit.lanes import Lane, job

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def last_payload(self, payloads_by_id):
    return {job_id: payloads[-1] for job_id, payloads in payloads_by_id.items()}


def boom(self, payloads_by_id):
    raise ValueError("boom")


def dies(self, payloads_by_id):
    raise BusinessFailure("no")


EVENTS = {"SUCCESS": "task-succeeded", "RETRY": "task-retried", "FAILURE": "task-failed"}


def test_the_record_of_a_call_goes_with_its_settle():
    lane = Lane(last_payload)
    (settlement,) = lane.run(job(b"7", calls=[(0, "a")]))
    assert (settlement.disposition, settlement.ended) == (Disposition.DONE, ((b"key 0", b"key 0"),))
    assert (lane.state("a"), lane.result("a")) == ("SUCCESS", {"1": 7})
    assert lane.reader.ended == []


def test_calls_of_one_payload_are_one_run_of_keys():
    lane = Lane(last_payload)
    (settlement,) = lane.run(job(b"7", b"8", calls=[(0, "a"), (0, "b"), (1, "c")]))
    assert settlement.ended == ((b"key 0", b"key 1"), (b"key 2", b"key 2"))
    assert [lane.result(task_id) for task_id in "abc"] == [{"1": 8}] * 3


def test_a_call_that_runs_again_keeps_its_record():
    lane = Lane(boom)
    (settlement,) = lane.run(job(b"7", b"8", calls=[(0, "a"), (1, "b")]))
    assert (settlement.disposition, settlement.ended) == (Disposition.RETRY, ())
    assert [lane.state(task_id) for task_id in "ab"] == ["RETRY", "RETRY"]


@pytest.mark.parametrize("has_events", [True, False])
@pytest.mark.parametrize("function, ends", [(last_payload, "SUCCESS"), (boom, "RETRY"), (dies, "FAILURE")])
def test_calls_end_and_count_alike_whether_or_not_events_are_sent(has_events, function, ends):
    lane = Lane(function)
    lane.runner._consumer.event_dispatcher.enabled = has_events
    before = state.total_count["t"]
    lane.run(job(b"7", b"8", calls=[(0, "a"), (1, "b")]))
    assert [lane.state(task_id) for task_id in "ab"] == [ends, ends]
    # The calls and the run itself.
    assert state.total_count["t"] - before == 3
    assert not {"a", "b"} & state.requests.keys()
    assert not [each for each in state.active_requests if each.id in ("a", "b")]
    assert [kind for kind, fields in lane.events if fields["uuid"] in ("a", "b")] == (
        [each for _ in "ab" for each in ("task-received", "task-started", EVENTS[ends])] if has_events else []
    )


def test_of_a_job_that_dies_only_the_first_payloads_calls_have_failed():
    lane = Lane(boom, max_retries=0)
    (settlement,) = lane.run(job(b"7", b"8", calls=[(0, "a"), (1, "b")]))
    assert (settlement.disposition, settlement.ended) == (Disposition.DIE, ((b"key 0", b"key 0"),))
    assert [lane.state(task_id) for task_id in "ab"] == ["FAILURE", "RETRY"]
    assert repr(lane.result("a")) == "ValueError('boom')"


def test_a_call_behind_a_dead_payload_that_holds_its_id_is_said_to_wait_for_it(caplog):
    """Its line said "Retry in 0.0s"."""
    caplog.set_level(logging.INFO, "celery.app.trace")
    lane = Lane(boom, max_retries=0, when_dead="hold")
    lane.run(job(b"7", b"8", calls=[(0, "a"), (1, "b")]))
    assert [lane.state(task_id) for task_id in "ab"] == ["FAILURE", "RETRY"]
    (line,) = [line for line in caplog.messages if "[b]" in line]
    assert "retry: waits behind a dead payload: ValueError('boom')" in line


def test_a_payload_that_nobody_can_read_fails_its_calls():
    lane = Lane(last_payload)
    (settlement,) = lane.run(job(b"\xff", b"8", calls=[(0, "a"), (1, "b")]))
    assert settlement.disposition is Disposition.DONE
    assert [bad.position for bad in settlement.bad] == [0]
    assert [lane.state(task_id) for task_id in "ab"] == ["FAILURE", "SUCCESS"]
    assert "undecodable payload" in str(lane.result("a"))


def test_a_run_with_a_call_that_nobody_knows_has_an_id_of_its_own():
    seen = []

    def notes(self, payloads_by_id):
        seen.append(self.request.id)

    lane = Lane(notes)
    lane.run(job(b"7", calls=[(0, "a")]))
    lane.run(job(b"7", calls=[(0, "b")], recorded=Recorded.SOME))
    lane.run(job(b"7", b"8", calls=[(0, "c")]))
    assert seen[0] == "a"
    assert not {"a", "b", "c"} & set(seen[1:])
    assert [lane.state(task_id) for task_id in "abc"] == ["SUCCESS"] * 3


def test_many_calls_are_ended_page_by_page_before_the_settle():
    lane = Lane(last_payload)
    ids = [f"call {n}" for n in range(5)]
    few = job(b"7", calls=[(0, task_id) for task_id in ids])
    lane.reader.records = list(few.calls.records)
    (settlement,) = lane.run(few._replace(calls=None))
    assert settlement.ended == ()
    assert lane.reader.ended == [(b"key 0", b"key 1"), (b"key 2", b"key 3"), (b"key 4", b"key 4")]
    assert {lane.state(task_id) for task_id in ids} == {"SUCCESS"}


def test_a_job_whose_calls_cannot_all_be_ended_runs_again():
    """Results are written before the settle; who has his already, may get it twice."""
    lane = Lane(last_payload)
    few = job(b"7", calls=[(0, f"call {n}") for n in range(5)])
    lane.reader.records, lane.reader.away = list(few.calls.records), True
    (settlement,) = lane.run(few._replace(calls=None))
    assert (settlement.disposition, settlement.delay, settlement.ended) == (Disposition.RETURN, 1.0, ())


@pytest.mark.parametrize("few", [True, False])
def test_a_run_ends_the_time_to_live_of_its_calls(few):
    """However often its job has failed."""
    lane = Lane(last_payload)
    ends = {TTL_ENDS: "2100-01-01T00:00:00+00:00"}
    found = job(b"7", b"8", calls=[(0, "a", ends), (1, "b"), (1, "c", ends | {"x": 1})], retry_count=2)
    lane.reader.records = list(found.calls.records)
    lane.run(found if few else found._replace(calls=None))
    assert lane.reader.started == [(b"key 0", CallRecord("a")), (b"key 2", CallRecord("c", {"x": 1}))]


class Halt(BaseException):
    """No ``Exception``."""


@pytest.mark.parametrize("signal", [signals.task_prerun, signals.task_postrun], ids=["prerun", "postrun"])
@pytest.mark.parametrize("function", [last_payload, boom], ids=["returns", "raises"])
@pytest.mark.parametrize("ids", ["a", "ab"])
def test_a_base_exception_of_a_receiver_leaves_no_call_without_a_result(ids, function, signal):
    """With a plain task, ``get()`` waits for ever."""

    def halt(**_):
        raise Halt("now")

    signal.connect(halt)
    try:
        # The lane is made after it, because a tracer of Celery 5.5 keeps the receivers of its beginning.
        lane = Lane(function, max_retries=0)
        (settlement,) = lane.run(job(*[b"7", b"8"][: len(ids)], calls=list(enumerate(ids))))
    finally:
        signal.disconnect(halt)
    if settlement.disposition is Disposition.DIE:
        assert lane.state("a") == "FAILURE"
        assert type(lane.result("a")) is (RunAborted if signal is signals.task_prerun else ValueError)
    else:
        # What has succeeded runs again until its result is stored, which it may be.
        assert signal is signals.task_postrun
        assert function is last_payload
        assert lane.state("a") == "SUCCESS"


def test_a_poison_pill_does_not_run_and_its_calls_have_failed():
    ran = []

    def kills(self, payloads_by_id):
        ran.append(payloads_by_id)

    lane = Lane(kills)
    (settlement,) = lane.run(job(b"7", calls=[(0, "a")], retry_count=POISON_PILL_RETRY_COUNT))
    assert (settlement.disposition, settlement.error) == (Disposition.BURY, lane.task.queue_spec.poison_error)
    assert settlement.ended == ((b"key 0", b"key 0"),)
    assert lane.state("a") == "FAILURE"
    assert "poison pill" in str(lane.result("a"))
    assert ran == []


class TestRevoked:
    @pytest.fixture(autouse=True)
    def revoked(self):
        state.revoked.add("gone")
        yield
        state.revoked.discard("gone")

    def test_its_payload_is_dropped_without_the_morgue(self):
        lane = Lane(last_payload)
        (settlement,) = lane.run(job(b"7", b"8", calls=[(0, "gone"), (1, "b")]))
        assert settlement.bad == (PayloadRemoval(0, None),)
        assert settlement.ended == ((b"key 1", b"key 1"),)
        assert lane.reader.ended == [(b"key 0", b"key 0")]
        assert (lane.state("gone"), lane.result("b")) == ("REVOKED", {"1": 8})

    def test_what_is_left_is_the_run_of_one_call(self):
        seen = []

        def notes(self, payloads_by_id):
            seen.append(self.request.id)

        lane = Lane(notes)
        lane.run(job(b"7", calls=[(0, "gone"), (0, "b")]))
        assert seen == ["b"]

    def test_a_batch_waits_when_nobody_can_be_told(self):
        lane = Lane(last_payload)
        lane.reader.away = True
        (settlement,) = lane.run(job(b"7", calls=[(0, "gone")]))
        assert settlement.disposition is Disposition.RETURN


def test_events_are_sent_for_each_call():
    lane = Lane(last_payload)
    lane.run(job(b"7", b"8", calls=[(0, "a"), (1, "b")], retry_count=2))
    for task_id in "ab":
        told = [(kind, fields) for kind, fields in lane.events if fields["uuid"] == task_id]
        assert [kind for kind, _ in told] == ["task-received", "task-started", "task-succeeded"]
        assert told[0][1]["retries"] == 3
        assert told[0][1]["name"] == "t"


def test_events_show_ids_and_payloads_cut_short():
    lane = Lane(last_payload, batch_size=100)
    lane.run(job(b"7", b'"%s"' % (b"x" * 5000), calls=[(0, "a")]))
    run, call = (fields["args"] for kind, fields in lane.events if kind == "task-received")
    assert run.startswith("'1' (2): [7, 'xxx")
    assert len(run) < 1100
    assert call == "'1' (1): [7]"
    lane.events.clear()
    lane.run(*(job(b'"%s"' % (b"y" * 200), job_id=f"id {n}", recorded=Recorded.NONE) for n in range(50)))
    (args,) = (fields["args"] for kind, fields in lane.events if kind == "task-received")
    assert args.startswith("'id 0' (1): ['yyy")
    assert args.endswith("... (50 ids)")
    assert len(args) < 1200


def test_a_record_that_does_not_name_its_call_is_forgotten(caplog):
    lane = Lane(last_payload)
    broken = job(b"7", calls=[(0, "a")])
    record = broken.calls.records[0]._replace(data=b"\xff")
    (settlement,) = lane.run(broken._replace(calls=ClaimedCallRecords((record,), True)))
    assert settlement.disposition is Disposition.DONE
    assert "because its id is unknown: the record of the call cannot be read" in caplog.text


@pytest.mark.parametrize("data", [b'["a"', b'["a",5]', b'["a",{},[]]', b'["a",{},{},1]', b'["a",{},{},"",1]'])
@pytest.mark.parametrize("few", [True, False])
def test_s1_a_call_whose_record_cannot_be_read_has_failed_and_its_payload_runs(data, few):
    """S1: it stayed PENDING for ever, and a record of another shape held up its job for ever."""
    lane = Lane(last_payload)
    found = job(b"7", calls=[(0, "x"), (0, "b")])
    broken, sound = found.calls.records
    records = (broken._replace(data=data), sound)
    lane.reader.records = list(records)
    (settlement,) = lane.run(found._replace(calls=ClaimedCallRecords(records, True) if few else None))
    assert (settlement.disposition, lane.state("a"), lane.state("b")) == (
        Disposition.DONE,
        "FAILURE",
        "SUCCESS",
    )
    assert "the record of the call cannot be read" in str(lane.result("a"))
    assert lane.reader.ended[0] == (b"key 0", b"key 0")


def test_hooks_are_called_for_the_run_and_for_each_call():
    told = []

    def hook(name, place):
        def note(self, *args):
            told.append((name, args[place]))

        return note

    hooks = {"before_start": hook("before", 0), "on_success": hook("success", 1)}
    hooks |= {"after_return": hook("after", 2)}
    lane = Lane(last_payload, base=type("Hooked", (OrderedTask,), {"abstract": True, **hooks}))
    lane.run(job(b"7", b"8", calls=[(0, "a"), (1, "b")]))
    run_id = told[0][1]
    names = ["before", "success", "after"]
    assert told == [(name, task_id) for task_id in (run_id, "a", "b") for name in names]


class TestBackendsThatAreAway:
    @pytest.fixture
    def lane(self, monkeypatch):
        made = Lane(last_payload, max_retries=0)

        def gone(*args, **kwargs):
            raise OSError("the backend is gone")

        monkeypatch.setattr(made.task.backend, "store_result", gone)
        return made

    @pytest.mark.parametrize(
        "calls", [[(0, "a")], [(0, "a"), (1, "b")]], ids=["a run of one call", "a run of several"]
    )
    def test_a_job_whose_results_cannot_be_written_runs_again_and_never_dies_of_it(self, lane, calls):
        payloads = [b"7", b"8"][: len(calls)]
        (settlement,) = lane.run(job(*payloads, calls=calls))
        assert (settlement.disposition, settlement.retry_count, settlement.ended) == (
            Disposition.RETRY,
            0,
            (),
        )
        assert b"the backend is gone" in settlement.error

    def test_who_could_be_told_is_not_told_again(self, lane):
        quiet = {"ignore_result": True}
        (settlement,) = lane.run(job(b"7", b"8", calls=[(0, "a", quiet), (1, "b")]))
        assert (settlement.disposition, settlement.ended) == (Disposition.RETRY, ((b"key 0", b"key 0"),))

    def test_a_call_without_its_result_keeps_its_record_between_others(self, monkeypatch):
        lane = Lane(last_payload)
        store_result = lane.task.backend.store_result

        def fails_once(task_id, *args, **kwargs):
            if task_id == "b":
                raise OSError("the backend is gone")
            return store_result(task_id, *args, **kwargs)

        monkeypatch.setattr(lane.task.backend, "store_result", fails_once)
        (settlement,) = lane.run(job(b"7", calls=[(0, "a"), (0, "b"), (0, "c")]))
        ended = ((b"key 0", b"key 0"), (b"key 2", b"key 2"))
        assert (settlement.disposition, settlement.ended) == (Disposition.RETRY, ended)

    def test_a_failure_that_cannot_be_told_is_one(self, lane):
        (settlement,) = lane.run(job(b"\xff", calls=[(0, "a")]))
        assert (settlement.disposition, len(settlement.ended)) == (Disposition.DONE, 1)


def test_a_broken_link_fails_its_call_as_celery_has_it():
    lane = Lane(last_payload)
    broken = {"callbacks": [{"task": "t", "args": [], "kwargs": {}, "options": {"expiration": 7}}]}
    (settlement,) = lane.run(job(b"7", calls=[(0, "a", {}, broken)]))
    assert (settlement.disposition, len(settlement.ended)) == (Disposition.DONE, 1)
    assert lane.state("a") == "FAILURE"
    assert "expiration=7" in str(lane.result("a"))


class TestACallOfTheUsers:
    """``__call__`` of a base class is around each run, and around nothing else."""

    @pytest.mark.parametrize("payloads", [(b"1",), (b"1", b"2")])
    def test_it_is_around_the_run_only(self, payloads):
        around = []

        class Base(Task):
            abstract = True

            def __call__(self, *args, **kwargs):
                around.append(args)
                return super().__call__(*args, **kwargs)

        lane = Lane(total, base=Base)
        calls = [(n, f"call {n}") for n in range(len(payloads))]
        lane.run(job(*payloads, calls=calls))
        assert len(around) == 1
        assert [lane.result(task_id) for _, task_id in calls] == [sum(map(int, payloads))] * len(calls)

    @pytest.mark.parametrize("payloads", [(b"1",), (b"1", b"2")])
    def test_that_of_flasks_documentation_is_around_the_run(self, flask_task, payloads):
        lane = Lane(in_context, base=flask_task)
        calls = [(n, f"call {n}") for n in range(len(payloads))]
        (settlement,) = lane.run(job(*payloads, calls=calls))
        assert settlement.disposition is Disposition.DONE
        assert [lane.result(task_id) for _, task_id in calls] == ["context 1"] * len(calls)
        assert flask_task.contexts == ["context 1"]

    @pytest.mark.parametrize(
        ("options", "retry_count", "disposition", "state"),
        [
            ({"max_retries": 1}, -1, Disposition.RETRY, "RETRY"),
            ({"max_retries": 1}, 0, Disposition.DIE, "FAILURE"),
            ({"autoretry_for": (ValueError,), "max_retries": 1}, -1, Disposition.RETRY, "RETRY"),
            ({"autoretry_for": (ValueError,), "max_retries": 1}, 0, Disposition.DIE, "FAILURE"),
            ({"dont_retry": (ValueError,)}, -1, Disposition.DIE, "FAILURE"),
        ],
    )
    def test_a_failure_in_it_is_one_of_the_task(self, flask_task, options, retry_count, disposition, state):
        def fails(self, payloads_by_id):
            raised.append(1)
            raise ValueError("boom")

        raised: list[int] = []
        lane = Lane(fails, base=flask_task, **options)
        (settlement,) = lane.run(job(b"1", calls=[(0, "a")], retry_count=retry_count))
        assert (settlement.disposition, lane.state("a")) == (disposition, state)
        assert b"ValueError: boom" in settlement.error
        assert raised == [1]

    def test_middlewares_are_in_it_and_around_the_function(self, flask_task):
        def middleware(task, jobs, call):
            seen.append(flask_task.contexts[-1])
            return [call()]

        seen: list[str] = []
        lane = Lane(in_context, {"lowkiq_server_middlewares": [middleware]}, base=flask_task)
        lane.run(job(b"1", calls=[(0, "a")]))
        assert (seen, lane.result("a")) == (["context 1"], ["context 1"])

    def test_one_that_skips_a_run_makes_it_a_success_as_with_a_plain_task(self):
        class Skipping(Task):
            abstract = True

            def __call__(self, *args, **kwargs):
                return "skipped"

        lane = Lane(boom, base=Skipping)
        (settlement,) = lane.run(job(b"1", calls=[(0, "a")]))
        assert (settlement.disposition, lane.result("a")) == (Disposition.DONE, "skipped")
        plain = lane.app.task(base=Skipping, shared=False, name="plain")(last_payload)
        assert plain.apply((1,)).get() == "skipped"

    @pytest.mark.parametrize("by", [None, "order_id"])
    def test_eager_runs_and_direct_calls_are_in_it(self, flask_task, by):
        def save(self, order_id):
            return flask_task.contexts[-1], order_id

        options = {"by": by} if by else {}
        lane = Lane(save, {"task_always_eager": True}, base=flask_task, **options)
        assert lane.task("1") == ("context 1", "1")
        eager = lane.task.delay("1", *([] if by else ["x"]))
        assert eager.get() == ("context 2", "1" if by else {"1": ["x"]})

    def test_a_call_of_itself_is_the_function(self, flask_task):
        def calls_itself(self, payloads_by_id):
            return "inner" if payloads_by_id is None else [self(None), len(flask_task.contexts)]

        lane = Lane(calls_itself, base=flask_task)
        (settlement,) = lane.run(job(b"1", calls=[(0, "a")]))
        assert (settlement.disposition, lane.result("a")) == (Disposition.DONE, ["inner", 2])


@pytest.fixture
def flask_task():
    """The task class of Flask's documentation, with a context in place of an app's."""

    class FlaskTask(Task):
        abstract = True
        contexts: ClassVar[list[str]] = []

        def __call__(self, *args, **kwargs):
            self.contexts.append(f"context {len(self.contexts) + 1}")
            return self.run(*args, **kwargs)

    return FlaskTask


def in_context(self, payloads_by_id):
    return self.contexts[-1]


def total(self, payloads_by_id):
    (payloads,) = payloads_by_id.values()
    return sum(payloads)


@pytest.mark.parametrize("calls", [(), [(0, "revoked")]])
def test_a_run_of_which_no_call_has_a_record_is_replaced_once(calls):
    ran = []

    def replaces(self, payloads_by_id):
        return self.replace(self.app.signature("other"))

    lane = Lane(replaces)

    @lane.app.task(name="other", shared=False)
    def other():
        ran.append("other")

    lane.app.conf.task_always_eager = True
    state.revoked.update(["revoked"])
    recorded = Recorded.SOME if calls else Recorded.NONE
    (settlement,) = lane.run(job(b"1", calls=calls, recorded=recorded))
    assert (settlement.disposition, ran) == (Disposition.DONE, ["other"])


@pytest.mark.parametrize("calls", [1, 2], ids=["alone", "merged"])
@pytest.mark.parametrize("field", ["callbacks", "chain"])
def test_links_that_can_never_be_sent_end_their_call(caplog, field, calls):
    """As a plain task: the errback of a broken link is broken, too, so that Celery's tracer gives up."""
    broken = {**_signature("celery.group"), "subtask_type": "group", "kwargs": {"tasks": ["a text"]}}
    records = [(0, "a", {}, {field: [broken], "errbacks": [broken]}), (1, "b")]
    lane = Lane(last_payload)
    (settlement,) = lane.run(job(*[b"7", b"8"][:calls], calls=records[:calls]))
    assert settlement.disposition is Disposition.DONE
    assert {stored for first_and_last in settlement.ended for stored in first_and_last} == {
        b"key %d" % n for n in range(calls)
    }
    assert lane.state("a") == "FAILURE"
    assert "call a ends as FAILURE, because its links cannot be sent" in caplog.messages


def test_links_whose_broker_is_unreachable_are_sent_later(monkeypatch):
    lane = Lane(last_payload)

    def unreachable(*args, **options):
        raise OperationalError("connection refused")

    monkeypatch.setattr(lane.app, "send_task", unreachable)
    monkeypatch.setattr(lane.app.amqp, "send_task_message", unreachable)
    record = (0, "a", {}, {"callbacks": [_signature("other")], "errbacks": [_signature("other")]})
    (settlement,) = lane.run(job(b"7", b"8", calls=[record, (1, "b")]))
    assert settlement.disposition is Disposition.RETRY


@pytest.mark.parametrize("requeue", [True, False])
def test_a_rejected_job_that_goes_to_the_morgue_is_logged(caplog, requeue):
    def rejects(self, payloads_by_id):
        raise Reject("not mine", requeue=requeue)

    lane = Lane(rejects)
    (settlement,) = lane.run(job(b"7"))
    assert settlement.disposition is (Disposition.RETURN if requeue else Disposition.BURY)
    found = [line for line in caplog.messages if "morgue" in line]
    assert found == ([] if requeue else ["job 1 of t: Reject, to the morgue"])


def _signature(task):
    return {"task": task, "args": (), "kwargs": {}, "options": {}, "subtask_type": None, "immutable": True}


def test_events_that_are_enabled_during_the_run_tell_of_its_calls():
    """A monitor that was switched on during a long run missed its calls."""

    def enables(self, payloads_by_id):
        dispatcher.enabled = True

    lane = Lane(enables)
    dispatcher = lane.runner._consumer.event_dispatcher
    dispatcher.enabled = False
    lane.run(job(b"7", b"8", calls=[(0, "a"), (1, "b")]))
    assert {(kind, fields["uuid"]) for kind, fields in lane.events if kind == "task-succeeded"} == {
        ("task-succeeded", "a"),
        ("task-succeeded", "b"),
    }
