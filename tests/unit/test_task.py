"""The task: decorating, options, refused calls. No Redis."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from celery import Celery, shared_task, xmap
from celery._state import _task_stack, get_current_worker_task
from celery.exceptions import Retry
from celery.utils.threads import _LocalStack

from celery_lowkiq import ConfigurationError, InvalidCall, OrderedTask, PayloadError, ordered_task
from celery_lowkiq.integration import publish
from celery_lowkiq.integration.publish import may_skip_message
from celery_lowkiq.store.push import Pusher
from tests.unit.recording import recorder


class TestDecorating:
    def test_bare_before_any_app_exists(self):
        @ordered_task
        def early_bird(payloads_by_id):
            """Docs."""

        app = Celery("later", set_as_current=False)
        task = app.tasks[early_bird.name]
        assert isinstance(task, OrderedTask)
        assert (task.shards, task.batch_size, task.max_retries, task.merge) == (5, 1, 25, None)
        assert task.__doc__ == "Docs."

    def test_with_options_of_ours_and_celerys(self, app):
        task, _ = recorder(app, shards=24, batch_size=10, name="x", ignore_result=True, rate_limit="1/s")
        assert (task.shards, task.batch_size, task.name, task.ignore_result) == (24, 10, "x", True)
        assert (task.queue_spec.name, task.queue_spec.shards) == ("x", 24)

    def test_for_one_app_only(self, app):
        recorder(app, name="mine")
        assert "mine" in app.tasks
        assert "mine" not in Celery("other", set_as_current=False).tasks

    def test_as_app_task_with_base(self, app):
        @app.task(base=OrderedTask, bind=True, shards=3, retry_in=lambda n: n + 1, shared=False)
        def based(self, payloads_by_id):
            return self.name

        assert based.shards == 3
        assert based.retry_in(4) == 5
        assert based.apply(("1",)).get() == based.name

    def test_as_a_class(self, app):
        class Sync(OrderedTask):
            name = "sync"
            shards = 2

            def retry_in(self, retry_count):
                return 10 * (retry_count + 1)

            def run(self, payloads_by_id):
                return payloads_by_id

            def perform_async(self, jobs):
                super().perform_async([{**job, "id": job["payload"]["id"]} for job in jobs])

        sync = app.register_task(Sync())
        assert sync.retry_in(1) == 20
        assert sync.apply(("1", "x")).get() == {"1": ["x"]}
        sync.perform_async([{"payload": {"id": 3}}])

    def test_functions_given_as_options_stay_functions(self, app):
        task, _ = recorder(
            app, retry_in=lambda n: n, on_retries_exhausted=lambda jobs: jobs, key=lambda p: p["id"]
        )
        assert task.retry_in(7) == 7
        assert task.on_retries_exhausted([1]) == [1]
        assert task.key({"id": 9}) == 9

    def test_generators_are_refused(self):
        """Their body would never run, and the job count as done."""
        with pytest.raises(ConfigurationError, match="is a generator"):

            @ordered_task
            def wrong(payloads_by_id):
                yield

        with pytest.raises(ConfigurationError, match="is a generator"):

            @ordered_task
            async def wrong_too(payloads_by_id):
                yield

    def test_a_function_of_one_id_takes_an_id_and_payloads(self):
        with pytest.raises(
            ConfigurationError, match=r"an id and its payloads: write .*\(self, id, payloads\)"
        ):

            @ordered_task(per_id=True, bind=True)
            async def wrong(self, payloads_by_id):
                pass

        with pytest.raises(ConfigurationError, match=r"per_id=True is invalid: expected no by= beside it"):

            @ordered_task(per_id=True, by="order_id")
            def wrong_too(order_id):
                pass

    def test_only_an_async_function_has_a_soft_time_limit(self, app):
        @ordered_task(app=app, soft_time_limit=2.5)
        async def awaits(payloads_by_id):
            pass

        assert awaits.soft_time_limit == 2.5
        with pytest.raises(ConfigurationError, match="or an async def function"):

            @ordered_task(soft_time_limit=2.5)
            def wrong(payloads_by_id):
                pass

        with pytest.raises(
            ConfigurationError, match="soft_time_limit=0 is invalid: expected seconds above 0"
        ):

            @ordered_task(soft_time_limit=0)
            async def wrong_too(payloads_by_id):
                pass

        with pytest.raises(ConfigurationError, match="time_limit=5 is invalid: expected run_in='process'"):

            @ordered_task(time_limit=5)
            async def never(payloads_by_id):
                pass

    def test_a_class_may_borrow_functions_or_define_methods(self, app):
        def pause(retry_count):
            return retry_count + 5

        class Borrows(OrderedTask):
            name = "borrows"
            retry_in = pause
            key = lambda payload: payload["id"]  # noqa: E731

            def run(self, payloads_by_id):
                return payloads_by_id

        class Defines(OrderedTask):
            name = "defines"
            prefix = "id-"

            def key(self, payload):
                return f"{self.prefix}{payload}"

            def run(self, payloads_by_id):
                return payloads_by_id

        borrows = app.register_task(Borrows())
        assert borrows.retry_in(1) == 6
        assert borrows.delay({"id": 3}).get() == {"3": [{"id": 3}]}
        assert app.register_task(Defines()).delay(7).get() == {"id-7": [7]}

    @pytest.mark.parametrize(
        "function, bind",
        [(lambda: 0, False), (lambda a, b: 0, False), (lambda *, a: 0, False), (lambda self: 0, True)],
    )
    def test_functions_that_cannot_take_the_payloads_are_refused(self, function, bind):
        with pytest.raises(ConfigurationError, match="cannot be called with one argument"):
            ordered_task(bind=bind)(function)

    @pytest.mark.parametrize(
        "options, words",
        [
            ({"shards": 0}, "shards=0 is invalid: expected a whole number from 1 to 4096"),
            ({"shards": 4097}, "shards=4097"),
            ({"shards": True}, "shards=True"),
            ({"batch_size": 1001}, "batch_size=1001"),
            ({"max_retries": -1}, "max_retries=-1"),
            ({"max_crashes": 0}, "max_crashes=0"),
            ({"queue_name": "a b"}, "queue_name='a b'"),
            ({"queue_name": "a{b"}, "queue_name"),
            ({"queue_name": "x" * 256}, "queue_name"),
            ({"queue_name": "é"}, "queue_name"),
            ({"merge": []}, "merge="),
            ({"queue": "mine"}, "queue='mine' is invalid.*queue_name="),
            (
                {"time_limit": 5},
                "time_limit=5 is invalid: expected run_in='process' beside it, because a lane .*max_run=",
            ),
            ({"soft_time_limit": 5}, "soft_time_limit=5"),
            ({"soft_time_limit": 0, "run_in": "process"}, "soft_time_limit=0 is invalid: expected seconds"),
            ({"run_in": "fork"}, "run_in='fork' is invalid: expected 'thread' or 'process', or None"),
            (
                {"priority": 10},
                "priority=10 is invalid: expected a whole number from 0, the most urgent, to 9, or None",
            ),
            ({"priority": True}, "priority=True"),
            ({"retry_priority": -1}, "retry_priority=-1"),
            (
                {"retry_priority": 5, "max_retries": 0},
                "retry_priority=5 is invalid: expected max_retries= above 0",
            ),
            ({"compression": "gzip"}, "compression='gzip'"),
            ({"serializer": "yaml"}, "serializer='yaml'.*lowkiq_serializer"),
            ({"default_retry_delay": 5}, "default_retry_delay=5.*retry_in="),
            ({"retry_backoff": True}, "retry_backoff=True is invalid: expected autoretry_for="),
            ({"pydantic": True}, "pydantic=True"),
            ({"delivery_mode": 1}, "delivery_mode=1 is invalid: .*lowkiq_push_durability"),
            ({"Request": "mine:Request"}, "Request='mine:Request' is invalid: .*on_failure"),
            ({"rate_limit": "5/d"}, "rate_limit='5/d' is invalid: expected a number .runs a second."),
            ({"rate_limit": -1}, "rate_limit=-1"),
            ({"rate_limit": True}, "rate_limit=True"),
            (
                {"rate_limit_per_id": "x"},
                "rate_limit_per_id='x' is invalid: expected a number .runs a second.",
            ),
            ({"rate_limit_per_id": {}}, "rate_limit_per_id={} is invalid"),
            ({"rate_limit_per_id": 10**400}, "is invalid: expected a number .runs a second."),
            (
                {"rate_limit_per_id": "10/s", "rate_limit": "10/s"},
                "rate_limit_per_id='10/s' is invalid: expected less than rate_limit='10/s'",
            ),
            ({"merge": "sum"}, "merge='sum' is invalid: expected 'min' or 'max'"),
            ({"retry_in": -5}, "retry_in=-5 is invalid: expected seconds from 0, a timedelta"),
            ({"key": "id"}, "key='id'"),
            ({"base": Celery}, "a subclass of OrderedTask"),
        ],
    )
    def test_bad_options_are_refused(self, options, words):
        with pytest.raises(ConfigurationError, match=words.replace("(", r"\(")):

            @ordered_task(**options)
            def wrong(payloads_by_id):
                pass

    def test_bad_options_of_a_class_are_refused(self):
        with pytest.raises(ConfigurationError, match="shards='5'"):
            type("Wrong", (OrderedTask,), {"shards": "5"})

    @pytest.mark.parametrize("name", ["annotated", "*"])
    def test_bad_annotations_are_refused(self, name):
        app = Celery("unit", set_as_current=False)
        app.conf.task_annotations = {name: {"time_limit": 5}}
        recorder(app, name="annotated", shared=False)
        with pytest.raises(ConfigurationError, match="time_limit=5 is invalid"):
            app.finalize()

    def test_annotations_are_options(self):
        app = Celery("unit", set_as_current=False)
        app.conf.task_annotations = {"annotated": {"shards": 7, "retry_in": lambda n: n + 1}}
        task, _ = recorder(app, name="annotated", shared=False)
        assert (task.shards, task.retry_in(1)) == (7, 2)

    def test_arguments_are_checked_also_without_typing(self, app):
        task, _ = recorder(app, typing=False)
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'id'"):
            task.delay()

    def test_two_tasks_cannot_share_a_queue(self, app):
        one, _ = recorder(app, name="one", queue_name="same")
        recorder(app, name="two", queue_name="same")
        with pytest.raises(ConfigurationError, match="queue_name='same' belongs to one and to two"):
            _ = one.queue_spec

    def test_a_task_name_that_is_no_queue_name_asks_for_one(self, app):
        task, _ = recorder(app, name="my task", queue_name="mine")
        assert task.queue_spec.name == "mine"
        with pytest.raises(ConfigurationError, match=r"name='my other task' is invalid: .* Give queue_name="):
            recorder(app, name="my other task")


class TestRefusedCalls:
    @pytest.mark.parametrize(
        "call, error, words",
        [
            (lambda t: t.delay(), TypeError, "record.*missing 1 required positional argument: 'id'"),
            (lambda t: t.delay(1, 2, 3), TypeError, "record.*takes from 1 to 2 positional arguments"),
            (lambda t: t.delay(1, wrong=2), TypeError, "unexpected keyword argument 'wrong'"),
            (lambda t: t.delay(None), InvalidCall, "id=None"),
            # Not the id "4" with the payload "2".
            (lambda t: t.apply_async("42"), TypeError, "args='42' is invalid: expected a list or a tuple"),
            (lambda t: t.delay(1, object()), PayloadError, "cannot be serialized"),
            (
                lambda t: t.perform_async([{"id": 1, "priority": -1}]),
                InvalidCall,
                "job 0.*priority=-1 is invalid",
            ),
            (lambda t: t.apply_async((1,), expiration=5), InvalidCall, "expiration=5.*expires="),
            (lambda t: t.apply_async((1,), retries=3), InvalidCall, "retries=3 is invalid.*max_retries="),
            (
                lambda t: t.apply_async((1,), perform_in=3),
                InvalidCall,
                "perform_in=3 is invalid.*eta=.*countdown=",
            ),
            (lambda t: t.apply_async((1,), scores=1), InvalidCall, "scores= is invalid.*mean score="),
            (lambda t: t.apply_async((1,), prio=3), InvalidCall, "prio= is invalid.*mean priority="),
            (lambda t: t.apply_async((1,), countdwn=3), InvalidCall, "countdwn= is.*mean countdown="),
            (lambda t: t.s(1).set(ETA=3).delay(), InvalidCall, "ETA= is invalid.*mean eta="),
            (lambda t: t.apply_async((1,), trackers="x"), InvalidCall, "trackers= is.*mean tracker="),
            (lambda t: t.s(1).set(priority="3").delay(), InvalidCall, "priority='3'"),
            (lambda t: t.map([1]), InvalidCall, "record.map is not supported.*perform_async"),
            (lambda t: t.starmap([(1,)]), InvalidCall, "record.starmap is not supported"),
            (lambda t: t.chunks([(1,)], 1), InvalidCall, "record.chunks is not supported"),
            (
                lambda t: xmap(t.s(), ["1"], app=t.app).apply().get(),
                InvalidCall,
                "record.map is not supported",
            ),
            (lambda t: t.apply_async((1,), eta=1700000000000), InvalidCall, "milliseconds"),
            (lambda t: t.apply_async((1,), score=float("nan")), InvalidCall, "score=nan is invalid"),
            (lambda t: t.apply_async((1,), eta=5, countdown=5), InvalidCall, "exclude each other"),
            (
                lambda t: t.perform_async([{"id": 1}, {"id": 2, "payload": {1, 2}}]),
                PayloadError,
                "job 1 of the list",
            ),
        ],
    )
    @pytest.mark.parametrize("eager", [True, False])
    def test_bad_calls(self, app, call, error, words, eager):
        app.conf.task_always_eager = eager
        task, calls = recorder(app)
        with pytest.raises(error, match=words):
            call(task)
        assert calls == []

    def test_its_own_queue_may_be_named(self, app):
        task, calls = recorder(app, queue_name="mine")
        task.apply_async((1,), queue="mine")
        assert len(calls) == 1


def test_a_direct_call_is_the_function(app):
    task, calls = recorder(app)
    assert task({"1": ["x"]}) == ["1"]
    assert calls == [{"1": ["x"]}]


def test_retry_outside_of_a_run_raises_the_error(app):
    task, _ = recorder(app)
    with pytest.raises(KeyError):
        task.retry(exc=KeyError("x"))
    with pytest.raises(Retry):
        task.retry()


def test_ordinary_shared_tasks_are_untouched(app):
    @shared_task
    def plain(x):
        return x

    assert not isinstance(app.tasks[plain.name], OrderedTask)


def test_a_call_makes_up_no_broker_queue(monkeypatch):
    """Not even where Celery is told to refuse unknown queues; task_routes do not apply."""
    app = Celery("unit", broker="memory://", set_as_current=False)
    app.conf.update(task_create_missing_queues=False, task_routes={"*": {"queue": "elsewhere"}})
    app.conf.lowkiq_url = "redis://localhost:1/0"
    stored = []
    monkeypatch.setattr(Pusher, "push", lambda self, queue, jobs, pauses=(): stored.extend(jobs))

    @ordered_task(app=app, shared=False, name="record")
    def record(payloads_by_id):
        pass

    result = record.apply_async((1, "x"), task_id="known", headers={"of": "a message"})
    assert result.id == "known"
    assert [(job.id, job.data) for job in stored] == [("1", b'"x"')]
    assert set(app.amqp.queues) == {"celery"}


def test_a_client_does_not_import_celerys_worker():
    import subprocess
    import sys

    script = (
        "import sys; from celery import Celery; from celery_lowkiq import ordered_task; app = Celery();\n"
        "@ordered_task\ndef f(p): pass\n"
        "app.finalize(); assert f.shards == 5; print('celery.worker.consumer' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("is_usual", [True, False])
def test_a_call_of_a_running_task_has_a_message(app, is_usual, monkeypatch):
    if not is_usual:
        monkeypatch.setattr(publish, "_running", None)
    task, _ = recorder(app, ignore_result=True)
    running = SimpleNamespace(request=SimpleNamespace(called_directly=False), request_stack=_LocalStack())
    assert may_skip_message(task, app, False)
    _task_stack.push(running)
    try:
        assert get_current_worker_task() is running
        assert not may_skip_message(task, app, False)
        running.request.called_directly = True
        assert may_skip_message(task, app, False)
    finally:
        _task_stack.pop()
    assert may_skip_message(task, app, False)
