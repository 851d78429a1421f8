"""``ordered_task`` of a task that exists: its references and its callers stay."""

from __future__ import annotations

import pytest
from celery import Celery, Task, shared_task

from celery_lowkiq import OrderedTask, ordered_task
from celery_lowkiq.rules.errors import ConfigurationError

runs = []


@pytest.fixture
def lowkiq_app():
    runs.clear()
    return Celery("existing", broker="memory://", backend="cache+memory://", set_as_current=False)


def test_a_decorated_task(lowkiq, lowkiq_app):
    @lowkiq_app.task(bind=True, max_retries=1, autoretry_for=(KeyError,), retry_kwargs={"countdown": 0})
    def save(self, order_id, status="new"):
        """Saves."""
        runs.append((order_id, status, self.request.retries))
        if status == "fails" and not self.request.retries:
            raise KeyError
        return status

    before = save.name
    assert ordered_task(by="order_id", shards=3)(save) is save._get_current_object()
    assert isinstance(save, OrderedTask)
    assert lowkiq_app.tasks[before] is save._get_current_object()
    assert (save.name, save.__doc__, save.max_retries, save.shards) == (before, "Saves.", 1, 3)
    results = [save.delay(1, status="fails"), save.delay(1), save.s(2).apply_async()]
    assert lowkiq.enqueued(save)
    lowkiq.drain(propagate=False)
    assert [result.get() for result in results] == ["fails", "new", "new"]
    assert [run for run in runs if run[0] == 1] == [(1, "fails", 0), (1, "fails", 1), (1, "new", 0)]


def test_retry_options_from_outside_hold(lowkiq, lowkiq_app):
    @lowkiq_app.task(autoretry_for=(OSError,), retry_kwargs={"countdown": 500})
    def save(order_id):
        raise KeyError

    ordered_task(by=0, autoretry_for=(KeyError,), retry_kwargs={"countdown": 7})(save)
    save.delay(1)
    lowkiq.drain(propagate=False)
    assert 5 < lowkiq.due_in(save, 1) <= 7


def test_its_own_retry_delay_holds(lowkiq, lowkiq_app):
    @lowkiq_app.task(default_retry_delay=40, retry_backoff=True)
    def save(order_id):
        raise KeyError

    ordered_task(by=0)(save)
    save.delay(1)
    lowkiq.drain(propagate=False)
    assert 35 < lowkiq.due_in(save, 1) <= 40

    @ordered_task(by=0, app=lowkiq_app, name="other", default_retry_delay=9)
    def other(order_id):
        raise KeyError

    other.delay(1)
    lowkiq.drain(other, propagate=False)
    assert 5 < lowkiq.due_in(other, 1) <= 9


def test_a_task_class(lowkiq, lowkiq_app):
    class Base(Task):
        abstract = True

        def on_success(self, retval, task_id, args, kwargs):
            runs.append(("on_success", args))

    class Save(Base):
        name = "save"

        def run(self, order_id):
            return [self.name, order_id]

        def on_success(self, *args):
            super().on_success(*args)

    save = lowkiq_app.register_task(Save())
    ordered_task(by=0)(save)
    result = save.delay(5)
    lowkiq.drain()
    assert result.get() == ["save", 5]
    assert runs == [("on_success", (5,))]


def test_a_shared_task_and_a_pydantic_one(lowkiq, lowkiq_app):
    @shared_task(name="shared")
    def shared(order_id):
        return order_id

    ordered_task(by="order_id")(lowkiq_app.tasks["shared"])
    result = lowkiq_app.tasks["shared"].delay(5)
    lowkiq.drain()
    assert result.get() == 5


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"by": "x"}, "save: by='x' is invalid"),
        ({"buy": "order_id"}, "buy"),
        ({"by": "order_id", "time_limit": 5}, "time_limit=5 is invalid"),
        ({}, "cannot be called with one argument.*, or name the argument that has the id: by='order_id'$"),
        ({"by": "order_id", "name": "other"}, "name='other' is invalid: expected no such option"),
        ({"by": "order_id", "pydantic": True}, "pydantic=True is invalid: expected no such option"),
        ({"by": "order_id", "bind": True}, "bind=True is invalid: expected no such option"),
        ({"by": "order_id", "app": 5}, "app=5 is invalid: expected no such option"),
    ],
)
def test_what_is_refused_leaves_a_plain_task(lowkiq_app, options, text):
    @lowkiq_app.task(name="save", shared=False)
    def save(order_id, status): ...

    before = type(save._get_current_object())
    with pytest.raises(ConfigurationError, match=text):
        ordered_task(**options)(save)
    assert type(save._get_current_object()) is before


def test_annotations_that_are_refused_leave_a_plain_task_as_it_was(lowkiq_app):
    lowkiq_app.conf.task_annotations = {"save": {"shards": "many"}}

    @lowkiq_app.task(name="save", shared=False)
    def save(order_id): ...

    before, serializer = type(save._get_current_object()), save.serializer
    with pytest.raises(ConfigurationError, match="shards='many' is invalid"):
        ordered_task(by=0)(save)
    assert (type(save._get_current_object()), save.serializer) == (before, serializer)
    assert not hasattr(save, "by")


def test_an_option_of_the_task_that_it_could_not_have_is_refused(lowkiq_app):
    @lowkiq_app.task(name="save", shared=False, serializer="yaml")
    def save(order_id): ...

    with pytest.raises(ConfigurationError, match="serializer='yaml' is invalid"):
        ordered_task(by=0)(save)
    ordered_task(by=0, serializer=None)(save)
    with pytest.raises(ConfigurationError, match="it is an ordered task already"):
        ordered_task(by=0)(save)


@pytest.mark.parametrize(
    ("options", "warned"), [({}, 2), ({"run_in": "process"}, 0), ({"time_limit": None}, 1)]
)
def test_time_limits_that_the_task_has_stay_or_have_no_effect(lowkiq_app, lowkiq, caplog, options, warned):
    @lowkiq_app.task(name="save", shared=False, time_limit=5, soft_time_limit=4)
    def save(order_id): ...

    ordered_task(by=0, **options)(save)
    assert caplog.messages == []
    save.delay(1)
    save.delay(2)
    assert len([text for text in caplog.messages if " has no effect, because a lane runs" in text]) == warned
    assert (save.time_limit, save.soft_time_limit) == (options.get("time_limit", 5), 4)


def test_an_option_that_its_base_class_gives_is_refused_by_the_name_of_the_task(lowkiq_app):
    """The error named the function."""

    class Keyed(Task):
        abstract = True
        key = "x"

    @lowkiq_app.task(name="proj.save", shared=False, base=Keyed)
    def save(order_id): ...

    with pytest.raises(ConfigurationError, match=r"^proj\.save: key='x' is invalid"):
        ordered_task(by=0)(save)
    ordered_task(by=0, key=None)(save)
