"""Every option at every place where it may stand: it holds, and is checked for the final task only."""

from __future__ import annotations

import itertools

import pytest
from celery import Celery, Task

from celery_lowkiq import ConfigurationError, OrderedTask, ordered_task
from celery_lowkiq.integration.options import LIMITS, OPTIONS


def find(value):
    return value


BY = {"by": "order_id"}
#: Values of which the first valid one is tried of an option that GIVEN lacks.
SUITING = (2, True, False, (KeyError,), find)
#: Option -> a value, and the options that must stand beside it.
GIVEN = {
    "queue_name": ("mine", {}),
    "merge": ("max", {}),
    "run_in": ("process", {}),
    "soft_time_limit": (8, {"run_in": "process"}),
    "time_limit": (9, {"run_in": "process"}),
    "debounce_max": (60, {"debounce": 5}),
    "when_pushed_after_failure": ("now", {}),
    "when_full": ("drop_newest", {"max_length": 10}),
    "when_dead": ("hold", {}),
    "hold_max": (5, {"when_dead": "hold"}),
    "by": ("order_id", {}),
    "latest": (True, BY),
    "default_retry_delay": (30, BY),
    "acks_late": (False, {}),
    "autoretry_for": ((OSError,), {}),
    "dont_autoretry_for": ((OSError,), {}),
    "expires": (50, {}),
    "ignore_result": (True, {}),
    "rate_limit": ("5/s", {}),
    "retry_backoff": (True, {"autoretry_for": (OSError,)}),
    "retry_backoff_max": (70, {}),
    "retry_jitter": (False, {}),
    "retry_kwargs": ({"countdown": 4}, {}),
    "send_events": (False, {}),
    "store_errors_even_if_ignored": (True, {}),
    "track_started": (True, {}),
    "trail": (False, {}),
    "typing": (False, {}),
}
VALUES = {
    name: (next(value for value in SUITING if value != option.default and option.valid.accepts(value)), {})
    for name, option in OPTIONS.items()
    if name not in GIVEN
} | GIVEN
#: Values of Celery's options that say nothing.
OFF = {"default_retry_delay": None, "retry_backoff": False, "expires": None, "rate_limit": None}


def of_a_batch(payloads_by_id):
    return payloads_by_id


def of_a_call(order_id):
    return order_id


def of_an_id(job_id, payloads):
    return job_id


def function_for(options):
    return of_a_call if "by" in options else of_an_id if "per_id" in options else of_a_batch


def task_class(options, bases=(Task,)):
    return type("Base", bases, {"abstract": True, **options})


class Place:
    """Makes tasks with an option in one place, and others in another one. They have an app in common."""

    def __init__(self, **settings):
        self.app = Celery("places", broker="memory://", set_as_current=False, **settings)
        self.numbers = itertools.count()

    def new_name(self):
        return f"save{next(self.numbers)}"

    def decorate(self, function, **options):
        name = self.new_name()
        return ordered_task(app=self.app, name=name, **options)(function)._get_current_object()

    def plain(self, function, **options):
        return self.app.task(name=self.new_name(), shared=False, lazy=False, **options)(function)

    def register(self, function, options, bases):
        fields = {"name": self.new_name(), "run": staticmethod(function), **options}
        return self.app.register_task(type("Save", bases, fields)())


def at_the_decorator(place, option, others, function):
    return place.decorate(function, **option, **others)


def in_a_base_of_celerys(place, option, others, function):
    return place.decorate(function, base=task_class(option), **others)


def in_an_abstract_ordered_class(place, option, others, function):
    return place.decorate(function, base=task_class(option, (OrderedTask,)), **others)


def in_a_base_behind_ours(place, option, others, function):
    base = type("Both", (OrderedTask, task_class(option)), {"abstract": True})
    return place.decorate(function, base=base, **others)


def beside_a_base(place, option, others, function):
    return place.decorate(function, base=task_class(others, (OrderedTask,)), **option)


def in_the_class_of_the_app(place, option, others, function):
    return Place(task_cls=task_class(option)).decorate(function, **others)


def beside_the_class_of_the_app(place, option, others, function):
    return Place(task_cls=task_class(others)).decorate(function, **option)


def in_annotations(place, option, others, function):
    place = Place()
    place.app.conf.task_annotations = {"save0": option}
    return place.decorate(function, **others)


def beside_annotations(place, option, others, function):
    place = Place()
    place.app.conf.task_annotations = {"*": others}
    return place.decorate(function, **option)


def of_a_plain_task(place, option, others, function):
    return ordered_task(**others)(place.plain(function, **option))


def for_a_plain_task(place, option, others, function):
    return ordered_task(**option)(place.plain(function, **others))


def in_the_class_of_a_task(place, option, others, function):
    return place.register(function, others, (task_class(option, (OrderedTask,)),))


def in_the_last_class_of_a_task(place, option, others, function):
    return in_the_class_of_a_task(place, others, option, function)


PLACES = [
    at_the_decorator,
    in_a_base_of_celerys,
    in_an_abstract_ordered_class,
    in_a_base_behind_ours,
    beside_a_base,
    in_the_class_of_the_app,
    beside_the_class_of_the_app,
    in_annotations,
    beside_annotations,
    of_a_plain_task,
    for_a_plain_task,
    in_the_class_of_a_task,
    in_the_last_class_of_a_task,
]


@pytest.mark.parametrize("make", PLACES)
def test_each_option_holds_wherever_it_stands(make):
    place, held = Place(), {}
    for name, (value, others) in VALUES.items():
        task = make(place, {name: value}, others, function_for({name: value, **others}))
        assert isinstance(task, OrderedTask)
        held[name] = (getattr(task, name), {other: getattr(task, other) for other in others})
    assert held == VALUES


@pytest.mark.parametrize("make", PLACES)
def test_an_option_that_needs_another_one_is_refused_without_it(make):
    place = Place()
    for name, (value, others) in VALUES.items():
        if not others:
            continue
        if name in LIMITS and make is of_a_plain_task:
            # Its callers and its function stay as they are: see tests/unit/test_existing_tasks.py.
            make(place, {name: value}, {}, of_a_batch)
            continue
        with pytest.raises(ConfigurationError, match=rf"^save\d+: {name}="):
            make(place, {name: value}, {}, of_a_batch)


def test_the_decorator_takes_an_option_of_a_base_off():
    place = Place()
    for name in (OPTIONS.keys() | OFF.keys()) - {"by", "per_id"}:
        off = OPTIONS[name].default if name in OPTIONS else OFF[name]
        base = task_class({name: VALUES[name][0]})
        assert getattr(place.decorate(of_a_batch, base=base, **{name: off}), name) == off
        plain = place.plain(of_a_batch, base=base)
        assert getattr(ordered_task(**{name: off})(plain), name) == off


@pytest.mark.parametrize("name", ["time_limit", "soft_time_limit"])
def test_the_setting_of_where_tasks_run_counts_as_their_option(name):
    def in_processes(**options):
        place = Place()
        place.app.conf.lowkiq_run_in = "process"
        return place.decorate(of_a_batch, **{name: 8}, **options)

    assert getattr(in_processes(), name) == 8
    with pytest.raises(ConfigurationError, match=f"^save0: {name}=8 is invalid: expected run_in='process'"):
        in_processes(run_in="thread")


@pytest.mark.parametrize("bases", [(Task,), (OrderedTask,)])
@pytest.mark.parametrize("place", ["decorator", "annotations", "class"])
def test_a_value_that_is_wrong_by_itself_is_refused_everywhere(bases, place):
    with pytest.raises(ConfigurationError, match="max_retries=-1 is invalid"):
        base = task_class({"max_retries": -1} if place == "class" else {}, bases)
        final = Place()
        if place == "annotations":
            final.app.conf.task_annotations = {"save0": {"max_retries": -1}}
        final.decorate(function_for({}), base=base, **({"max_retries": -1} if place == "decorator" else {}))


def test_a_task_that_is_refused_is_not_there():
    """Celery would take it as it is from the second time on."""
    app = Place().app
    app.conf.task_annotations = {"save": {"time_limit": 5}}
    save = ordered_task(app=app, name="save")(of_a_batch)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="time_limit=5 is invalid"):
            save.delay("1", "x")
