"""The form of calls with ``by=``."""

from __future__ import annotations

import functools
import inspect
import threading
from dataclasses import dataclass

import pytest
from celery import Celery

from celery_lowkiq import OrderedTask, ordered_task
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.call_form import Arguments, SignatureForm
from celery_lowkiq.rules.errors import ConfigurationError, InvalidCall, UndecodablePayload
from celery_lowkiq.rules.models import Batch, Call, Job, Lease, Payload, QueueSpec, ShardRef


@dataclass
class Order:
    id: int


def save(order_id, status="new", *, note=None, **more): ...


def rest(*orders): ...


class Methods:
    def of_object(self, order_id, status="new"):
        return [order_id, status]

    @classmethod
    def of_class(cls, order_id, status="new"):
        return [order_id, status]

    @staticmethod
    def of_nothing(order_id, status="new"):
        return [order_id, status]

    def __call__(self, order_id): ...


def batch_of(data, score):
    job = Job("1", (Payload(data, score),), 0.0)
    return Batch(QueueSpec("q"), Lease(ShardRef("q", 0), "node", 1), 1, (job,), threading.Event())


def id_of(function, by, *args, bound=False, **kwargs):
    return SignatureForm(function, bound, by).read(args, kwargs, "task-id")[0]


class TestTheId:
    @pytest.mark.parametrize(
        ("by", "expected"),
        [
            ("order_id", 1),
            (0, 1),
            ("status", "paid"),
            (1, "paid"),
            ("note", "n"),
            ("shop", "s"),
            (lambda arguments: f"{arguments['order_id']}/{arguments['status']}", "1/paid"),
        ],
    )
    def test_it_is_one_of_the_arguments(self, by, expected):
        assert id_of(save, by, 1, "paid", note="n", shop="s") == expected
        assert id_of(save, by, status="paid", order_id=1, note="n", shop="s") == expected

    def test_it_may_be_a_default(self):
        assert id_of(save, "status", 1) == "new"
        assert id_of(save, lambda arguments: arguments["status"], 1) == "new"

    def test_it_may_lie_in_an_argument(self):
        assert id_of(save, "order_id.id", Order(7)) == 7
        assert id_of(save, "order_id.head.id", {"head": {"id": 7}}) == 7

    def test_it_may_be_one_of_any_number(self):
        assert id_of(rest, 2, "a", "b", "c") == "c"

    def test_self_is_no_argument(self):
        def method(self, order_id): ...

        assert id_of(method, 0, 5, bound=True) == 5
        with pytest.raises(ConfigurationError, match=r"by='self' is invalid: .* order_id"):
            SignatureForm(method, True, "self")

    def test_a_decorator_that_hides_the_arguments_needs_more_than_a_name(self):
        def inner(session, order_id, status="new"): ...

        @functools.wraps(inner)
        def wrapper(*args, **kwargs):
            return inner("session", *args, **kwargs)

        with pytest.raises(
            ConfigurationError, match="expected a position or a function, because a decorator"
        ):
            SignatureForm(wrapper, False, "order_id")
        assert id_of(wrapper, 0, 42, "paid") == 42
        assert id_of(wrapper, lambda arguments: arguments["args"][0], 42, "paid") == 42

        def shown(order_id, status="new"): ...

        wrapper.__signature__ = inspect.signature(shown)
        assert id_of(wrapper, "order_id", 42, "paid") == 42

    def test_a_position_finds_it_by_name_and_a_name_by_position(self):
        assert id_of(save, 0, order_id=7) == 7
        assert id_of(save, "order_id", 7) == 7

        def behind(order_id, status="new"): ...

        @functools.wraps(behind)
        def wrapper(*args, **kwargs): ...

        assert id_of(wrapper, 0, order_id=7) == 7
        assert id_of(wrapper, 1, 7, status="paid") == "paid"
        assert id_of(wrapper, 1, status="paid", order_id=7) == "paid"

        @functools.wraps(save)
        def method(*args, **kwargs): ...

        method.__wrapped__ = lambda self, order_id: None
        assert id_of(method, 0, 7, bound=True) == 7
        assert id_of(method, 0, order_id=7, bound=True) == 7

    def test_behind_a_decorator_that_fills_arguments_a_position_is_no_name(self):
        """By position and by name, another argument would be the id."""

        def behind(session, order_id, status="new"): ...

        @functools.wraps(behind)
        def injecting(*args, **kwargs): ...

        find = SignatureForm(injecting, False, 1).read
        assert find((7, "paid"), {}, None)[0] == "paid"
        for args, kwargs in (((), {"order_id": 7, "status": "paid"}), ((7,), {"status": "paid"})):
            with pytest.raises(InvalidCall, match=r"by=1 finds no id: .* Give the argument by position, or"):
                find(args, kwargs, None)

    @pytest.mark.parametrize("by", ["order_id", 0, lambda arguments: arguments["order_id"]])
    @pytest.mark.parametrize("bind", [False, True])
    @pytest.mark.parametrize("method", [Methods().of_object, Methods.of_class, Methods.of_nothing])
    def test_a_bound_method_is_a_function(self, app, method, bind, by):
        if bind and inspect.isfunction(method):
            pytest.skip("a function that is bound takes a task")
        app.conf.task_always_eager = True
        task = ordered_task(app=app, name="method", by=by, bind=bind)(method)
        assert task.delay(7).get() == [7, "new"]
        assert task.delay(status="paid", order_id=7).get() == [7, "paid"]

    @pytest.mark.parametrize("options", [{}, {"by": 0}, {"by": "order_id"}, {"by": len}])
    @pytest.mark.parametrize(
        "function",
        [
            functools.partial(save, status="x"),
            functools.update_wrapper(functools.partial(save, status="x"), save),
            functools.lru_cache(save),
            Methods(),
            print,
            Methods,
            lambda order_id: None,
        ],
    )
    def test_what_celery_can_make_no_task_of_is_refused(self, function, options):
        with pytest.raises(ConfigurationError, match=r"^task: .*is invalid: expected|cannot be called with"):
            ordered_task(name="task", **options)(function)

    def test_it_is_not_any_number_of_arguments(self):
        with pytest.raises(ConfigurationError, match="by='orders' is invalid"):
            SignatureForm(rest, False, "orders")

    @pytest.mark.parametrize("by", ["x", "x.id", 2])
    def test_an_argument_that_the_function_lacks_is_refused(self, by):
        def function(order_id, status): ...

        with pytest.raises(ConfigurationError, match=r"by=.* is invalid: expected .*\(order_id, status\)"):
            SignatureForm(function, False, by)

    @pytest.mark.parametrize(
        ("by", "text"),
        [
            ("shop", "by='shop' finds no id: the call has no such argument"),
            ("order_id.x", "by='order_id.x' finds no id: 1 has no 'x'"),
            (lambda arguments: arguments["x"], "by= finds no id in .*KeyError"),
        ],
    )
    def test_a_call_without_one_is_refused(self, by, text):
        with pytest.raises(InvalidCall, match=text):
            id_of(save, by, 1)

    @pytest.mark.parametrize(
        ("by", "name"), [("status", "status"), (1, "status"), (lambda arguments: arguments["status"], "id")]
    )
    @pytest.mark.parametrize(
        ("value", "expected"), [(None, "a str, an int or a UUID"), ("", "1 to 256 bytes of UTF-8, not 0")]
    )
    def test_an_invalid_one_is_refused_by_the_name_of_its_argument(self, by, name, value, expected):
        with pytest.raises(InvalidCall, match=f"^{name}={value!r} is invalid: expected {expected}$"):
            id_of(save, by, 1, value)


class TestCalls:
    def test_arguments_are_checked_against_the_signature(self):
        def function(order_id): ...

        with pytest.raises(TypeError):
            id_of(function, 0)
        with pytest.raises(TypeError):
            id_of(function, 0, 1, 2)
        with pytest.raises(TypeError, match="args='42' is invalid"):
            SignatureForm(function, False, 0).read("42", {}, "task-id")

    def test_equal_ones_differ_by_their_ids_unless_they_merge(self):
        form, merging = SignatureForm(save, False, 0), SignatureForm(save, False, 0, merges=True)
        expected = {"args": (1,), "kwargs": {"note": "n"}}
        assert form.read((1,), {"note": "n"}, "task-id") == (1, {**expected, "task_id": "task-id"})
        assert merging.read((1,), {"note": "n"}, "task-id") == (
            1,
            {"args": (1, "new"), "kwargs": {"note": "n"}},
        )
        spelled = [((1, "new"), {}), ((), {"order_id": 1}), ((1,), {"status": "new", "note": None})]
        assert len({str(merging.read(args, kwargs, None)) for args, kwargs in spelled}) == 1

    def test_the_payload_says_when_it_may_run(self):
        form = SignatureForm(save, False, 0)
        assert form.timed(Call("1", payload={}), 100.0).payload == {}
        assert form.timed(Call("1", payload={}, perform_in=103.0), 100.0).payload == {"eta": 103.0}
        assert form.eta_of({"1": [{"eta": 105.0}]}, batch_of(b"", 7.0)) == 105.0
        assert form.eta_of({"1": []}, batch_of(b"", 7.0)) == 0.0
        merging = SignatureForm(save, False, 0, merges=True)
        assert merging.timed(Call("1", payload={}, delay=5.0), 100.0).payload == {}

    def test_a_countdown_counts_from_the_score_that_the_push_makes(self):
        """The clock of the caller has no part in it, unless the call has a score of its own."""
        form = SignatureForm(save, False, 0)
        assert form.timed(Call("1", payload={}, delay=5.0), 100.0).payload == {"countdown": 5.0}
        assert form.eta_of({"1": [{"countdown": 5.0}]}, batch_of(b"", 7.0)) == pytest.approx(12.0, abs=0.01)
        assert form.made_due({"args": [], "kwargs": {}, "countdown": 5.0}, 100.0) == {
            "args": [],
            "kwargs": {},
        }
        assert form.timed(Call("1", payload={}, score=3.0, delay=5.0), 100.0).payload == {"eta": 105.0}

    def test_a_run_gets_them_back(self):
        form = SignatureForm(save, False, 0)
        payloads = form.to_payloads(Arguments((1, "paid"), {"note": "n"}), "task-id")
        assert form.of_run(payloads) == ((1, "paid"), {"note": "n"})
        assert form.task_id_of(payloads) == "task-id"

    @pytest.mark.parametrize(
        "payload",
        [
            1,
            {},
            {"args": 1, "kwargs": {}},
            {"args": [], "kwargs": []},
            {"args": [], "kwargs": {}, "task_id": 1},
            {"args": [], "kwargs": {}, "eta": 1e300},
            {"args": [], "kwargs": {}, "eta": True},
        ],
    )
    def test_a_payload_of_another_form_is_refused(self, payload):
        with pytest.raises(UndecodablePayload, match="is not a call of a task with by="):
            SignatureForm(save, False, 0).check(payload)


class TestOptions:
    @pytest.mark.parametrize(
        "options",
        [
            {"by": "nothing"},
            {"by": -1},
            {"by": True},
            {"by": ""},
            {"by": "order_id."},
            {"by": 0, "key": len},
            {"by": 0, "batch_size": 2},
            {"by": 0, "max_payloads_per_run": 1},
            {"by": 0, "keep": 1},
            {"latest": True},
            {"by": 0, "latest": True, "merge": "max"},
        ],
    )
    def test_what_makes_no_sense_is_refused(self, options):
        with pytest.raises(ConfigurationError, match="is invalid: expected"):

            @ordered_task(**options)
            def function(order_id): ...

    def test_a_class_may_have_it(self):
        app = Celery("classes", set_as_current=False)

        class Save(OrderedTask):
            name = "save"
            by = "order_id"

            def run(self, order_id, status="new"): ...

        task = app.register_task(Save())
        assert app.tasks["save"].call_form.read((5,), {}, "task-id")[0] == 5
        with pytest.raises(TypeError):
            task.call_of(context_of(app), (), {"status": 1}, None)

    def test_a_payload_alone_is_no_id(self):
        @ordered_task(app=Celery("alone", set_as_current=False))
        def function(payloads_by_id): ...

        message = r"id={'id': 1} is invalid: expected a str, an int or a UUID. Call delay\(id, payload\)"
        with pytest.raises(InvalidCall, match=message):
            function.delay({"id": 1})

    def test_a_bulk_call_is_refused(self):
        @ordered_task(app=Celery("bulk", set_as_current=False), by=0)
        def function(order_id): ...

        with pytest.raises(InvalidCall, match="perform_async is not supported"):
            function.perform_async([{"id": 1}])
