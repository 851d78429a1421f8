"""Ordered tasks that derive from task classes of the user's, and tasks of libraries. No Redis."""

from __future__ import annotations

import contextlib

import pytest
from celery import Celery, Task, shared_task

from celery_lowkiq import ConfigurationError, OrderedTask, ordered_task


@pytest.fixture
def app():
    app = Celery("unit", broker="redis://localhost:1/0", set_as_current=False)
    app.conf.task_always_eager = True
    return app


class Noting(Task):
    """A base as many projects have one."""

    abstract = True
    max_retries = 3
    seen: list

    def apply_async(self, args=None, kwargs=None, **options):
        self.seen.append("apply_async")
        return super().apply_async(args, kwargs, **options)

    def __call__(self, *args, **kwargs):
        self.seen.append("call")
        return super().__call__(*args, **kwargs)

    def before_start(self, task_id, args, kwargs):
        self.seen.append("before_start")

    def helped(self):
        return "helped"


class Ordered(Noting, OrderedTask):
    """The same, written by hand."""

    abstract = True


@pytest.mark.parametrize("base", [Noting, Ordered])
def test_a_base_of_celerys_is_made_ordered(app, base):
    @ordered_task(app=app, base=base, bind=True, shards=3, seen=[])
    def work(self, payloads_by_id):
        return self.helped(), payloads_by_id

    task = app.tasks[work.name]
    assert isinstance(task, OrderedTask)
    assert isinstance(task, base)
    assert work.delay("1", "x").get() == ("helped", {"1": ["x"]})
    assert work.seen == ["apply_async", "before_start", "call"]
    assert work.max_retries == 3


def test_a_call_that_would_never_be_called_is_refused():
    with pytest.raises(
        ConfigurationError, match=r"Noting.__call__ would not be called: .* before OrderedTask"
    ):
        type("WrongWayRound", (OrderedTask, Noting), {})


@pytest.mark.parametrize("base", [Task, OrderedTask])
def test_the_plainest_base(app, base):
    @ordered_task(app=app, base=base)
    def work(payloads_by_id):
        return payloads_by_id

    assert work.delay("1", "x").get() == {"1": ["x"]}


def test_the_apps_own_class_is_a_base(app):
    @ordered_task(app=app, base=app.Task)
    def work(payloads_by_id):
        return payloads_by_id

    assert work.delay("1", "x").get() == {"1": ["x"]}


@pytest.fixture
def app_of_noting():
    app = Celery("unit", broker="redis://localhost:1/0", task_cls=Noting, set_as_current=False)
    app.conf.task_always_eager = True
    app.Task.seen = []
    yield app
    # Tasks of libraries, which other tests make, would belong to it too.
    app.close()


@pytest.mark.parametrize("of_a_library", [False, True])
def test_the_class_that_an_app_has_for_all_tasks_is_the_base_of_those_that_name_none(
    app_of_noting, of_a_library
):
    with only_for_this_test():

        @ordered_task(app=None if of_a_library else app_of_noting, bind=True, shards=3)
        def of_its_app(self, payloads_by_id):
            return self.helped(), payloads_by_id

        task = app_of_noting.tasks[f"{__name__}.of_its_app"]
    assert isinstance(task, app_of_noting.Task)
    assert isinstance(task, OrderedTask)
    assert task.delay("1", "x").get() == ("helped", {"1": ["x"]})
    assert (task.seen, task.shards, task.max_retries) == (["apply_async", "before_start", "call"], 3, 3)


def test_that_class_may_be_celerys_own(app):
    app.Task = Task

    @ordered_task(app=app)
    def work(payloads_by_id):
        return payloads_by_id

    assert work.delay("1", "x").get() == {"1": ["x"]}


def test_a_base_that_is_named_is_in_its_place(app_of_noting):
    @ordered_task(app=app_of_noting, base=OrderedTask)
    def work(payloads_by_id):
        return payloads_by_id

    assert not isinstance(app_of_noting.tasks[work.name], Noting)


def test_what_that_class_may_not_ask_for_is_refused(app):
    app.Task = type("Limited", (Task,), {"abstract": True, "time_limit": 3})

    @ordered_task(app=app)
    def work(payloads_by_id):
        """Never run here."""

    with pytest.raises(ConfigurationError, match="time_limit=3 is invalid"):
        app.finalize()
    app.close()


@pytest.mark.parametrize("base", [dict, "celery.Task", Noting()])
def test_no_task_class_is_no_base(base):
    with pytest.raises(ConfigurationError, match="base="):
        ordered_task(base=base)(lambda payloads_by_id: None)


@pytest.mark.parametrize(
    "option, value", [("time_limit", 5), ("default_retry_delay", 3), ("max_retries", -1)]
)
def test_options_of_a_base_are_checked(app, option, value):
    base = type("Base", (Task,), {"abstract": True, option: value})
    with pytest.raises(ConfigurationError, match=f"{option}={value}"):
        ordered_task(app=app, base=base)(lambda payloads_by_id: None)
    by_hand = type("ByHand", (OrderedTask, base), {"run": lambda self, payloads_by_id: None})
    with pytest.raises(ConfigurationError, match=f"{option}={value}"):
        app.register_task(by_hand())


def test_retry_backoff_of_a_base_with_the_errors_at_the_decorator(app):
    class Backing(OrderedTask):
        abstract = True
        autoretry_for = (OSError,)

    @ordered_task(app=app, base=Backing, retry_backoff=True, autoretry_for=(OSError,))
    def work(payloads_by_id):
        pass

    assert work.retry_backoff is True


@pytest.mark.parametrize(
    "decorate", [ordered_task(name="library-1"), shared_task(base=OrderedTask, name="library-2")]
)
def test_a_task_of_a_library_belongs_to_every_app(decorate):
    apps = [Celery("before", set_as_current=False)]

    def library_task(payloads_by_id):
        return payloads_by_id

    with only_for_this_test():
        name = decorate(library_task).name
        apps.append(Celery("after", set_as_current=False))
        tasks = [made.tasks[name] for made in apps]
        assert tasks[0] is not tasks[1]
        for task, made in zip(tasks, apps, strict=True):
            assert isinstance(task, OrderedTask)
            assert task.app is made
            assert task.queue_spec.name == name


@contextlib.contextmanager
def only_for_this_test():
    """A shared task would belong to the apps of other tests, too."""
    from celery import _state

    before = set(_state._on_app_finalizers)
    try:
        yield
    finally:
        _state._on_app_finalizers.intersection_update(before)


@pytest.mark.parametrize("bind", [False, True])
def test_pydantic_is_refused_however_it_is_given(app, bind):
    pytest.importorskip("pydantic")

    def plain(payloads_by_id): ...

    def bound(self, payloads_by_id): ...

    function = bound if bind else plain
    with pytest.raises(ConfigurationError, match=r"pydantic=True is invalid: .*validate"):
        ordered_task(app=app, bind=bind, pydantic=True)(function)
    with pytest.raises(ConfigurationError, match=r"pydantic=True is invalid: .*validate"):
        app.task(base=OrderedTask, bind=bind, pydantic=True, lazy=False, shared=False)(function)
