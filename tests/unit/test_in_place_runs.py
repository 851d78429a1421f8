"""Runs of tasks with ``by=``, drained in this process."""

from __future__ import annotations

from uuid import UUID

import pytest
from celery import Celery, signals
from celery.worker import state

from celery_lowkiq import Again, InvalidCall, ordered_task
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.rules.models import Call

runs = []


@pytest.fixture
def lowkiq_app(lowkiq_server):
    runs.clear()
    return Celery("in_place", broker=lowkiq_server.url, backend="cache+memory://", set_as_current=False)


@pytest.fixture
def save(lowkiq_app):
    @ordered_task(app=lowkiq_app, shared=False, by="order_id", bind=True, max_retries=1, retry_in=0.0)
    def save(self, order_id, state=None):
        runs.append((self.request.id, state, self.request.retries))
        return state

    return save


def test_a_uuid_may_be_the_id_of_a_call(lowkiq, save):
    result = save.apply_async((1, "x"), task_id=UUID(int=1))
    lowkiq.drain()
    assert runs == [(str(UUID(int=1)), "x", 0)]
    assert (result.id, result.get()) == (str(UUID(int=1)), "x")


def test_the_time_of_a_call_holds_though_its_job_was_due(lowkiq, save):
    save.delay(1, "now")
    late = save.apply_async((1, "late"), countdown=100)
    save.delay(1, "behind")
    lowkiq.drain()
    assert [state for _, state, _ in runs] == ["now"]
    assert 90 < lowkiq.due_in(save, 1) <= 100
    lowkiq.clock.move(100)
    lowkiq.drain()
    assert [state for _, state, _ in runs] == ["now", "late", "behind"]
    assert late.get() == "late"


def test_arguments_are_checked_by_the_run_with_typing_off(lowkiq, lowkiq_app):
    """As those of a plain task, a call that has an id is stored, and fails at once."""
    called = []

    def save(order_id, status):
        called.append(order_id)

    by = {"name": "order_id", "function": lambda arguments: arguments["order_id"]}
    for name, one in by.items():
        ordered_task(app=lowkiq_app, name=name, by=one, typing=False)(save)
        task = lowkiq_app.tasks[name]
        results = [task.delay(42), task.delay(42, "paid", "more"), task.delay(42, "paid", unknown=1)]
        task.delay(42, "paid")
        lowkiq.drain(propagate=False)
        assert [type(result.get(propagate=False)) for result in results] == [TypeError] * 3
        for without in ({}, {"status": "paid"}):
            with pytest.raises(InvalidCall, match="finds no id"):
                task.apply_async((), without)
    assert called == [42, 42]


def test_new_arguments_of_a_retry_keep_the_order_of_their_keys(lowkiq, lowkiq_app):
    seen = []

    @ordered_task(app=lowkiq_app, name="save", by="order_id", bind=True, max_retries=1, retry_in=0)
    def save(self, order_id, order):
        seen.append(list(order))
        raise self.retry(args=[order_id, {"z": 1, "b": 2, "a": 3}])

    lowkiq_app.tasks["save"].delay(1, {"y": 1, "c": 2})
    lowkiq.drain(propagate=False)
    assert seen == [["y", "c"], ["z", "b", "a"]]


def test_an_error_of_a_run_that_fits_is_retried_with_typing_off(lowkiq, lowkiq_app):
    def save(order_id):
        raise TypeError("inside")

    ordered_task(app=lowkiq_app, name="save", by="order_id", typing=False, max_retries=2, retry_in=0)(save)
    lowkiq_app.tasks["save"].delay(42)
    lowkiq.drain(propagate=False)
    assert lowkiq_app.tasks["save"].ordered_queue.stats().dead == 1


class TestRetriesOfEachCall:
    @pytest.fixture
    def make(self, lowkiq_app):
        def make(**options):
            @ordered_task(
                app=lowkiq_app, shared=False, by=0, bind=True, max_retries=2, retry_in=100, **options
            )
            def failing(self, order_id, what):
                runs.append((what, self.request.retries))
                raise KeyError(what)

            return failing

        return make

    def test_a_call_that_gets_in_front_of_a_failed_one(self, lowkiq, make):
        failing = make()
        failing.apply_async((1, "failed"), score=5)
        lowkiq.drain(propagate=False)
        lowkiq.clock.move(100)
        lowkiq.drain(propagate=False)
        first = failing.apply_async((1, "first"), score=3)
        lowkiq.clock.move(100)
        lowkiq.drain(propagate=False)
        assert runs == [("failed", 0), ("failed", 1), ("first", 0)]
        assert first.state == "RETRY"

    @pytest.mark.parametrize("ignore_result", [False, True])
    def test_the_newest_call(self, lowkiq, make, ignore_result):
        failing = make(latest=True, ignore_result=ignore_result)
        failing.delay(1, "older")
        lowkiq.drain(propagate=False)
        failing.delay(1, "newer")
        lowkiq.drain(propagate=False)
        assert 90 < lowkiq.due_in(failing, 1) <= 100
        lowkiq.clock.move(100)
        lowkiq.drain(propagate=False)
        lowkiq.clock.move(100)
        lowkiq.drain(propagate=False)
        assert runs == [("older", 0), ("newer", 0), ("newer", 1), ("newer", 2)]
        assert failing.ordered_queue.job(1).dead is not None


class TestRevokedCalls:
    @pytest.fixture(params=[False, True], ids=["result", "no result"])
    def save(self, lowkiq_app, request):
        @ordered_task(app=lowkiq_app, shared=False, by=0, bind=True, ignore_result=request.param)
        def save(self, order_id, state):
            runs.append((self.request.id, state, self.request.retries))

        return save

    @pytest.fixture
    def revoke(self):
        revoked = []

        def revoke(result):
            state.revoked.add(result.id)
            revoked.append(result.id)

        yield revoke
        for task_id in revoked:
            state.revoked.discard(task_id)

    def test_a_call_ends_also_when_it_is_not_due(self, lowkiq, save, revoke):
        calls = [save.delay(1, "first"), save.apply_async((1, "late"), countdown=100)]
        calls += [save.delay(1, name) for name in ("due", "last")]
        revoke(calls[1])
        revoke(calls[2])
        ended = []
        signals.task_revoked.connect(receiver := lambda request, **_: ended.append(request.id))
        lowkiq.drain()
        signals.task_revoked.disconnect(receiver)
        assert [what for _, what, _ in runs] == ["first", "last"]
        assert ended == [calls[1].id, calls[2].id]
        assert save.ordered_queue.stats().dropped == 2
        assert save.ignore_result or calls[1].state == "REVOKED"

    def test_one_whose_end_cannot_be_stored_waits(self, lowkiq, lowkiq_app, revoke, monkeypatch, caplog):
        """The lane ended, and with it the worker."""

        @ordered_task(app=lowkiq_app, shared=False, by=0, ignore_result=True)
        def save(order_id, state): ...

        revoke(save.delay(1, "gone"))
        # A deploy has changed it since the call.
        save.store_errors_even_if_ignored = True

        def refuse(*args, **kwargs):
            raise OSError("the backend is unreachable")

        with monkeypatch.context() as patch:
            patch.setattr(save.backend, "mark_as_revoked", refuse)
            lowkiq.drain()
        assert "cannot be revoked" in caplog.text
        assert save.ordered_queue.stats().dropped == 0
        lowkiq.clock.move(100)
        lowkiq.drain()
        assert save.ordered_queue.stats().dropped == 1

    def test_run_now_ends_the_call_that_the_others_wait_for(self, lowkiq, save, revoke):
        late = save.apply_async((1, "late"), countdown=100)
        save.delay(1, "behind")
        lowkiq.drain()
        revoke(late)
        save.ordered_queue.run_now([1])
        lowkiq.drain()
        assert [what for _, what, _ in runs] == ["behind"]


class TestRunNow:
    """It runs calls before their time."""

    @pytest.mark.parametrize("size", [1, 2000])
    @pytest.mark.parametrize("run_now", [lambda queue: queue.run_now([1]), lambda queue: queue.run_now_all()])
    def test_a_call_keeps_its_result(self, lowkiq, save, size, run_now):
        due = save.delay(1, "due" * size)
        late = save.apply_async((1, "late" * size), countdown=100)
        later = save.apply_async((1, "later" * size), countdown=1000)
        lowkiq.drain()
        assert (due.state, late.state) == ("SUCCESS", "PENDING")
        assert run_now(save.ordered_queue) == 1
        lowkiq.drain()
        assert (late.get(5), later.get(5)) == ("late" * size, "later" * size)
        assert [task_id for task_id, _, _ in runs] == [due.id, late.id, later.id]

    def test_a_call_that_waits_alone(self, lowkiq, save):
        late = save.apply_async((1, "late"), countdown=100)
        assert save.ordered_queue.run_now([1, 2]) == 1
        lowkiq.drain()
        assert late.get(5) == "late"


@pytest.mark.parametrize("payload", [b"5", b'{"args": [1]}', b'{"args": 1, "kwargs": {}}'])
def test_a_payload_of_another_form_goes_to_the_morgue(lowkiq, lowkiq_app, save, payload):
    context_of(lowkiq_app).store.push(save.queue_spec, [Call("1", payload)])
    lowkiq.drain()
    assert "is not a call of a task with by=" in save.ordered_queue.job(1).dead.error
    assert runs == []


class TestEditedPayloads:
    @pytest.mark.parametrize(
        ("payload", "error"),
        [
            (5, "expected {.args.:"),
            ({"args": [2], "kwargs": {}}, "id=2 is invalid: expected '1', the id of the job"),
            ({"args": [], "kwargs": {"order_id": "2"}}, "id='2' is invalid"),
            ({"args": [1], "kwargs": {"other": 5}}, "unexpected keyword argument 'other'"),
            ({"args": [[1]], "kwargs": {}}, "expected a str, an int or a UUID"),
        ],
    )
    def test_one_that_is_no_call_of_the_id_is_refused(self, lowkiq, save, payload, error):
        result = save.delay(1, "x")
        ((data,),) = lowkiq.enqueued(save).values()
        with pytest.raises(InvalidCall, match=error):
            save.ordered_queue.edit_payload(1, data, payload)
        lowkiq.drain()
        assert result.get() == "x"

    def test_another_call_of_the_id_runs(self, lowkiq, save):
        save.apply_async((1, "x"), countdown=100)
        ((data,),) = lowkiq.enqueued(save).values()
        assert save.ordered_queue.edit_payload(1, data, {"args": ["1", "new"], "kwargs": {}})
        save.ordered_queue.run_now([1])
        lowkiq.drain()
        assert [state for _, state, _ in runs] == ["new"]


class TestErrbacks:
    @pytest.fixture
    def failing(self, lowkiq_app):
        @ordered_task(app=lowkiq_app, shared=False, by="order_id", max_retries=0)
        def failing(order_id):
            raise KeyError("boom")

        return failing

    def test_one_for_request_and_error_gets_them_as_a_plain_one(self, lowkiq, lowkiq_app, failing):
        @ordered_task(app=lowkiq_app, shared=False, by=lambda arguments: arguments["request"].args[0])
        def mourn(request, exc, traceback):
            runs.append((request.id, repr(exc)))

        result = failing.apply_async((1,), link_error=mourn.s())
        lowkiq.drain(propagate=False)
        assert runs == [(result.id, "KeyError('boom')")]
        assert isinstance(result.result, KeyError)

    @pytest.mark.parametrize("own", [None, (42, "failed")])
    def test_another_one_runs_in_order(self, lowkiq, save, failing, own):
        link = save.s() if own is None else save.si(*own)
        result = failing.apply_async((1,), link_error=link)
        lowkiq.drain(failing, propagate=False)
        ((order_id, (payload,)),) = lowkiq.enqueued(save).items()
        assert order_id == (result.id if own is None else "42")
        assert tuple(payload["args"]) == (own or (result.id,))


class TestEagerRuns:
    """As of any task of Celery's."""

    def test_a_result_and_a_retry(self, lowkiq_app):
        lowkiq_app.conf.task_always_eager = True

        @ordered_task(app=lowkiq_app, shared=False, by=0, bind=True, autoretry_for=(KeyError,), retry_in=0)
        def save(self, order_id):
            if self.request.retries < 2:
                raise KeyError
            return [order_id, self.request.retries, self.request.lowkiq.fence]

        assert save.delay(5).get() == [5, 2, 0]


class TestPlainTasks:
    @pytest.fixture
    def lowkiq_app(self, lowkiq_app):
        lowkiq_app.conf.lowkiq_plain = ["plain"]
        return lowkiq_app

    def test_calls_go_to_the_broker(self, lowkiq, lowkiq_app):
        @ordered_task(app=lowkiq_app, shared=False, by=0, name="plain")
        def plain(order_id): ...

        assert plain.is_plain
        plain.delay(1)
        lowkiq.assert_nothing_enqueued(plain)

    def test_celery_maps_them(self, lowkiq_app):
        """In a plain task, as those of other plain tasks."""

        @ordered_task(app=lowkiq_app, shared=False, by=0, name="plain")
        def plain(order_id, status="new"):
            return f"{order_id} {status}"

        assert plain.map([1, 2]).apply().get() == ["1 new", "2 new"]
        assert plain.starmap([(1, "paid")]).apply().get() == ["1 paid"]
        assert plain.chunks([(1,), (2,)], 1).group().apply().get() == [["1 new"], ["2 new"]]

    @pytest.mark.parametrize("autoretry_for", [(), (Exception,)])
    def test_again_repeats_a_plain_run_without_counting_it_as_a_failure(
        self, lowkiq, lowkiq_app, autoretry_for
    ):
        options = {"max_retries": 1, "autoretry_for": autoretry_for}

        @ordered_task(app=lowkiq_app, shared=False, by=0, name="plain", bind=True, **options)
        def repeated(self, order_id, left=None, result=None):
            runs.append(self.request.retries)
            if len(runs) < 4:
                raise Again(left, result=result)
            return order_id

        with lowkiq.worker():
            assert repeated.delay(1).get(30) == 1
            assert runs == [0, 0, 0, 0]
            runs.clear()
            assert repeated.delay(1, [], "done").get(30) == "done"
            assert runs == [0]

    def test_again_in_an_eager_run(self, lowkiq_app):
        lowkiq_app.conf.task_always_eager = True

        @ordered_task(app=lowkiq_app, shared=False, by=0, name="plain")
        def plain(order_id):
            raise Again(after=5)

        assert plain.delay(1).state == "RETRY"
