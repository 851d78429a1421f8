"""The base class of ordered tasks: calls go to the store, runs come from a lane."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from celery import Celery
from celery.worker.strategy import default

from celery_lowkiq.integration.app.context import context_of
from celery_lowkiq.integration.app.error_text import dump_error_text
from celery_lowkiq.integration.app.option_names import data_names, naming
from celery_lowkiq.integration.app.rate_limits import read_rate
from celery_lowkiq.integration.app.registry import OrderedTaskMarker, add_step, check_names
from celery_lowkiq.integration.app.settings import read_setting
from celery_lowkiq.integration.calls.call_form import BatchForm, CallForm, SignatureForm
from celery_lowkiq.integration.calls.sent_times import install
from celery_lowkiq.integration.operations.queue import OrderedQueue
from celery_lowkiq.integration.records.orphans import finish_orphaned_calls
from celery_lowkiq.integration.runs.outcomes import BusinessFailure
from celery_lowkiq.integration.runs.task_function import adapt_function
from celery_lowkiq.rules.cached_property import cached_property
from celery_lowkiq.rules.diagnosis import Terms
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.rules.models import Merge, QueueSpec
from celery_lowkiq.rules.validators import invalid
from celery_lowkiq.worker.forks import ProcessLock

from .async_call_mixin import AsyncCallMixin
from .base_classes import (
    R,
    adapt_run,
    adopt_on_commit,
    given_options,
    guard_before_start,
    guard_call,
    set_options,
)
from .broker_messages import BrokerMessageHandler, SwitchingHandler
from .call_options import warn_of_limits
from .options import (
    OPTIONS,
    check_names_in_annotations,
    check_names_of,
    check_queue_name,
    check_task,
    check_values,
    function_of,
)
from .queue_options import policies_of
from .run_mixin import RunMixin

install()

#: The crash of the batch in which the job was, and for several payloads one of the job, come before.
POISON = (
    "poison pill: run alone as a suspect, it crashed its worker or process {max_crashes} times (max_crashes)"
)

_spec_lock = ProcessLock()


class OrderedTask(AsyncCallMixin[R], RunMixin[R], OrderedTaskMarker):
    """A task whose calls of one id are merged, kept in order, and never run twice at once.

    ``run`` gets ``{id: [payload, ...]}``, the payload with the smallest score first. The options of
    ``TaskOptions`` are attributes of the class.
    """

    abstract = True
    throws: tuple[type[Exception], ...]
    #: The arguments of a call, as id and payload.
    __header__: Callable[..., tuple[Any, Any]]
    #: Options that it had as a plain task, and that have no effect where its runs cannot keep them.
    _unchecked: frozenset[str] = frozenset()
    #: Only a declaration: it tells type checkers that options are attributes.
    __getattr__: Callable[[str], Any]  # type: ignore[misc]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        declared = dict(cls.__dict__)
        guard_call(cls, OrderedTask)
        guard_before_start(cls)
        set_options(cls, OrderedTask)
        with naming(str(declared.get("name") or cls.__qualname__)):
            names = data_names(declared)
            check_names_of(names, *cls.__bases__)
            # What options need beside them may be given by a subclass, a decorator or an annotation.
            check_values(
                {**{name: declared[name] for name in names}, "retry_in": object.__new__(cls).retry_in}
            )

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """Check the options of the final task, and install what the worker needs; ``@ordered_task`` alone is
        the whole set-up. Raises ConfigurationError.
        """
        try:
            with naming(cls.name):
                cls._check(app)
        except ConfigurationError:
            registered: Any = vars(app)["_tasks"]
            if type(registered.get(cls.name)) is cls:
                # Celery has registered it, and would use it from the second call on.
                del registered[cls.name]
            raise
        # Celery logs exceptions of ``throws`` as INFO, without a traceback.
        cls.throws = (*(kind for kind in cls.throws if kind is not BusinessFailure), BusinessFailure)
        cls.__header__ = staticmethod(_call_form(object.__new__(cls)).header)
        adapt_function(cls)
        adapt_run(cls, OrderedTask)
        add_step(app, cls.queue_name or cls.name)
        adopt_on_commit(cls, app)

    @classmethod
    def _check(cls, app: Celery) -> None:
        check_names_in_annotations(cls, app)
        set_options(cls, OrderedTask)
        given = given_options(cls, OrderedTask, app)
        checked = {name: value for name, value in given.items() if name not in cls._unchecked}
        run_in = cls.run_in or read_setting(app, "run_in")
        check_task({**checked, "run_in": run_in}, *function_of(cls))
        if cls.queue_name is None:
            check_queue_name(cls.name)

    # -- the queue

    @property
    def queue_spec(self) -> QueueSpec:
        """What store and worker know of the queue. Raises ConfigurationError when another task has it."""
        spec: QueueSpec | None = self.__dict__.get("_queue_spec")
        if spec is None:
            with _spec_lock:
                spec = self.__dict__["_queue_spec"] = self._make_spec()
        return spec

    def _make_spec(self) -> QueueSpec:
        app = self._get_app()
        context = context_of(app)
        check_names(app)
        if self.by is None and self.name in context.settings.plain:
            expected, fix = "names of tasks with by=", f"Give {self.name} a by=, or take its name out"
            raise ConfigurationError(invalid("lowkiq_plain", sorted(context.settings.plain), expected, fix))
        with naming(self.name):
            policies = policies_of(self)
        warn_of_limits(self, {name: getattr(self, name) for name in self._unchecked})
        return QueueSpec(
            name=self.queue_name or self.name,
            shards=self.shards,
            batch_size=self.batch_size,
            merge=Merge(self.merge or "min"),
            max_crashes=self.max_crashes,
            max_run=self.max_run,
            poison_error=dump_error_text(context.settings, POISON.format(max_crashes=self.max_crashes)),
            policies=policies,
        )

    @property
    def ordered_queue(self) -> OrderedQueue:
        """Reads and actions on the task's queue."""
        left = partial(finish_orphaned_calls, self)
        return OrderedQueue(self._get_app(), self.queue_spec, left, self._terms, self.call_form)

    def _terms(self) -> Terms:
        return {
            "rate": read_rate(self.rate_limit),
            "max_retries": self.max_retries,
            "merges": self.by is None,
        }

    # -- messages that come by the broker

    def Strategy(self, task: Any, app: Celery, consumer: Any, **options: Any) -> Any:  # noqa: N802 - Celery's name
        """What the worker does with a call that a process without this code sent to the broker."""
        ordered = BrokerMessageHandler(self, consumer)
        if self.by is None:
            return ordered
        return SwitchingHandler(self, ordered, default(task, app, consumer, **options))

    @cached_property
    def call_form(self) -> CallForm:
        """What the function takes."""
        return _call_form(self)

    @property
    def is_plain(self) -> bool:
        """Whether calls go to the broker, and run as those of a plain task: by ``lowkiq_plain`` or
        ``enabled=``.
        """
        if self.by is None:
            return False
        if self.name in context_of(self._get_app()).settings.plain:
            return True
        return not (self.enabled() if callable(self.enabled) else self.enabled)


def _call_form(task: Any) -> CallForm:
    cls = type(task)
    if task.by is None:
        return BatchForm(cls.__name__, task.key)
    return SignatureForm(*function_of(cls), task.by, task.merge is not None)


for _name, _option in OPTIONS.items():
    setattr(OrderedTask, _name, _option.default)
