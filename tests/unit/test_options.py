"""Tests of ``integration/options.py``."""

from __future__ import annotations

from inspect import getattr_static, signature

import pytest
from celery import Celery
from celery.app.amqp import AMQP
from celery.app.task import Task
from kombu import Producer

from celery_lowkiq import ConfigurationError, InvalidCall, OrderedTask, ordered_task
from celery_lowkiq.integration.options import CELERYS, OPTIONS, check_call_names


def function(payloads_by_id):
    """Takes a batch."""


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("shard", 24, "shards"),
        ("max_retry", 3, "max_retries"),
        ("batchsize", 1, "batch_size"),
        ("on_retry_exhausted", print, "on_retries_exhausted"),
        ("maxlength", 10, "max_length"),
        ("ratelimit", "1/s", "rate_limit"),
        ("shards_count", 24, "shards"),
        ("max_retry_count", 3, "max_retries"),
        ("on_death", "hold", "when_dead"),
        ("on_push_after_failure", "now", "when_pushed_after_failure"),
    ],
)
class TestMisspelt:
    """F4: such an option was kept as an attribute, and changed nothing."""

    def test_at_the_decorator(self, name, value, meant):
        with pytest.raises(
            ConfigurationError, match=rf"^function: {name}= is invalid: .* Did you mean {meant}=\?"
        ):
            ordered_task(**{name: value})(function)

    def test_in_a_class_or_at_app_task(self, app, name, value, meant):
        if callable(value):
            pytest.skip("a function in a class body is a method of the user's")
        with pytest.raises(ConfigurationError, match=rf"Did you mean {meant}=\?"):
            type("Sync", (OrderedTask,), {"name": "sync", "run": function, name: value})
        with pytest.raises(ConfigurationError, match=rf"Did you mean {meant}=\?"):
            app.task(base=OrderedTask, shared=False, lazy=False, **{name: value})(function)

    def test_in_annotations(self, name, value, meant):
        app = Celery("annotated", set_as_current=False)
        app.conf.task_annotations = {"sync": {name: value}}
        ordered_task(app=app, name="sync")(function)
        with pytest.raises(ConfigurationError, match=rf"Did you mean {meant}=\?"):
            app.finalize()


#: What a task class of Celery's may be given, looked up without asking it for its app.
CELERYS_DATA = {
    name
    for name, value in ((name, getattr_static(Task, name)) for name in dir(Task))
    if not (name.startswith("_") or callable(value) or hasattr(value, "__get__"))
}
#: What only a task class has, and what only some versions of Celery know.
INNER = {"abstract", "name", "request_stack", "from_config", "max_retries", "Request", "Strategy"}
OF_SOME_VERSIONS = {"acks_on_failure", "acks_on_timeout", "retry_on_worker_lost", "store_eager_result"}
#: Refused with what to use instead.
REFUSED = {"default_retry_delay", "serializer", "time_limit", "soft_time_limit"}


def test_attributes_of_celerys_task_and_of_the_users_pass(app):
    """F4: what else Celery's Task accepts is no typing error, nor is what is not similar to an option."""
    own = {"tenant": "a", "title": "b", "timeout": 3, "queue_label": "c", "once": {}, "verbose_name": "d"}
    task = ordered_task(app=app, name="own", **own)(function)
    assert {name: getattr(task, name) for name in own} == own
    for name in sorted({*CELERYS_DATA, "acks_on_failure_or_timeout", "autoretry_for"} - INNER - REFUSED):
        value = getattr_static(Task, name, None)
        ordered_task(app=app, name=f"with.{name}", **{name: value})(function)


def test_attributes_of_a_base_and_methods_pass(app):
    """F4: a name that a base declares is known, and so are methods, whatever they are called."""

    class Base(OrderedTask):
        abstract = True

        def keys(self):
            """No option."""

        @property
        def merged(self):
            """No option."""

    Base.shard = None
    ordered_task(app=app, base=Base, name="based", shard=3)(function)


def test_the_list_of_celerys_options_is_whole():
    """F4: a suggestion, and an option that passes, come from the same list."""
    assert {*CELERYS, *OPTIONS} >= CELERYS_DATA - INNER - OF_SOME_VERSIONS


class TestAtACall:
    def test_celerys_own_options_pass(self):
        """Those of a call, of its message, and of what kombu publishes."""
        takers = (
            Celery.send_task,
            AMQP.as_task_v2,
            AMQP._create_task_sender(Celery("names", set_as_current=False).amqp),
            Producer.publish,
        )
        names = {name for taker in takers for name in signature(taker).parameters}
        assert {"queue", "expires", "headers", "link", "shadow", "serializer", "retry", "chain"} <= names
        check_call_names("sync", dict.fromkeys(names, "x"))

    @pytest.mark.parametrize("name", ["store", "scope", "meta", "etag", "trace", "count", "my_option"])
    def test_other_names_pass(self, name):
        check_call_names("sync", {name: 1})

    def test_what_is_not_said_and_stamps_pass(self):
        """A caller may pass its own parameters on, and a stamp may have any name."""
        check_call_names("sync", {"scores": None})
        check_call_names("sync", {"scores": 1, "stamped_headers": ["scores"]})
        with pytest.raises(InvalidCall, match=r"option of a call of sync\. Did you mean score=\?"):
            check_call_names("sync", {"scores": 1, "stamped_headers": ["tenant"]})
