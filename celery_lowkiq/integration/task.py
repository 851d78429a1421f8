"""The ordered task: calls, runs, retries."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeAlias, overload
from uuid import UUID

from celery import Celery
from celery._state import (  # type: ignore[attr-defined]
    get_current_task,
    get_current_worker_task,
    pop_current_task,
    push_current_task,
)
from celery.exceptions import Ignore, Reject, Retry
from celery.result import AsyncResult, EagerResult
from celery.utils.serialization import raise_with_context
from celery.worker.strategy import default
from kombu.utils.uuid import uuid
from typing_extensions import TypeVar

from celery_lowkiq.integration import eager
from celery_lowkiq.integration.app import AppContext, OrderedTaskMarker, add_step, context_of, ordered_tasks
from celery_lowkiq.integration.broker_messages import BrokerMessageHandler
from celery_lowkiq.integration.call_form import Arguments, BatchForm, CallForm, SignatureForm
from celery_lowkiq.integration.call_threads import NoThreadFree
from celery_lowkiq.integration.calls import (
    WORDS,
    BulkEntry,
    bulk,
    due_now,
    read_delay,
    read_id,
    read_score,
    read_time,
    single,
)
from celery_lowkiq.integration.decisions import Again, BusinessFailure, may_fail, policy_of
from celery_lowkiq.integration.error_text import dump_error_text
from celery_lowkiq.integration.function_adapters import adapt_function
from celery_lowkiq.integration.messages import (
    PASSED_ON,
    UNSTORABLE,
    OnlyPassedOn,
    StoreProducer,
    StoreRouter,
    announced,
    beyond_message,
    install,
    is_mocked,
    lost,
    recorded_calls,
    take_header,
    with_header,
)
from celery_lowkiq.integration.options import (
    OPTIONS,
    check_caller,
    check_names_in_annotations,
    check_names_of,
    check_queue_name,
    check_task,
    check_values,
    data_names,
    function_of,
    naming,
    policies_of,
    read_rate,
    refuse_inline,
    take_ignored,
    warn_of_limits,
    warn_once,
)
from celery_lowkiq.integration.publish import (
    app_retry_intervals,
    as_celery_error,
    has_publish_listeners,
    may_skip_message,
    override_of,
    publish,
)
from celery_lowkiq.integration.queue import OrderedQueue
from celery_lowkiq.integration.records import DROPPED, NOTHING, finish_orphaned_calls, store_state
from celery_lowkiq.integration.results import CallResults, as_lazy, lazy_result
from celery_lowkiq.integration.run import CallChanges, Run, changed_call, report
from celery_lowkiq.integration.settings import celery_setting, read_setting
from celery_lowkiq.integration.task_classes import (
    CeleryTask,
    R,
    adapt_run,
    adopt_on_commit,
    given_options,
    guard_before_start,
    guard_call,
    set_options,
)
from celery_lowkiq.integration.tracing import link_calls
from celery_lowkiq.integration.tracking import Tracker, track, tracker_of
from celery_lowkiq.rules.basics import cached_property, compose
from celery_lowkiq.rules.diagnosis import Terms
from celery_lowkiq.rules.errors import ConfigurationError, InvalidCall, LowkiqError
from celery_lowkiq.rules.models import Call, Merge, QueueSpec, StoredRecord
from celery_lowkiq.rules.policies import LEAST_URGENT, MOST_URGENT
from celery_lowkiq.rules.validators import invalid, is_whole
from celery_lowkiq.worker.forks import staying


def read_progress(
    text: Any, current: Any, total: Any, job_id: Any
) -> tuple[str, float | None, float | None, str | None]:
    """The checked arguments of ``self.progress``. Raises InvalidCall."""
    if not isinstance(text, str):
        raise InvalidCall(
            f"progress({text!r:.100}) is invalid: expected a text. Pass numbers as current= and total="
        )
    only = None if job_id is None else read_id(job_id)
    return text, read_score(current, None, "current"), read_score(total, None, "total"), only


# The ordered task: calls go to the store, runs come from a lane.

install()

T = TypeVar("T")
TrackerOrId: TypeAlias = Tracker | str | None
#: Values of a call without options: see ``OrderedTask._take_own``.
NO_OPTIONS: tuple[dict[str, Any], Mapping[str, Any], str] = ({}, NOTHING, "")
#: Celery's own, which calls ``apply_async``. A user or a test may put another one in its place.
_DELAY = CeleryTask.delay
_ROUTED = "retry({name}=) is ignored, because the job goes back to its own queue"
_NO_CALL = (
    "retry({name}=) is ignored, because it takes a run of a single call whose arguments or record are stored"
)
#: The crash of the batch in which the job was, and for several payloads one of the job, come before.
POISON = (
    "poison pill: run alone as a suspect, it crashed its worker or process {max_crashes} times (max_crashes)"
)


class OrderedTask(CeleryTask, Generic[R], OrderedTaskMarker):  # type: ignore[misc, valid-type]
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
            # Options that other options need may come from a subclass, a decorator or an annotation.
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
        cls.__header__ = staticmethod(object.__new__(cls).call_form.header)
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

    @cached_property
    def queue_spec(self) -> QueueSpec:
        """Spec of the queue for store and worker. Raises ConfigurationError if another task has the queue."""
        app = self._get_app()
        context = context_of(app)
        # Raises when another task has the queue.
        ordered_tasks(app)
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

    def _finish_dropped(self, calls: Sequence[StoredRecord]) -> None:
        finish_orphaned_calls(self, calls, dead=False, reason=DROPPED)

    def _terms(self) -> Terms:
        return {
            "rate": read_rate(self.rate_limit),
            "max_retries": self.max_retries,
            "merges": self.by is None,
        }

    # -- one call

    if TYPE_CHECKING:
        # Celery's own calls apply_async, and may be patched for all tasks.

        @overload
        def delay(self, id: str | int | UUID, payload: Any = "") -> AsyncResult[R]: ...

        @overload
        def delay(self, payload: Any) -> AsyncResult[R]: ...

        def delay(self, *args: Any, **kwargs: Any) -> AsyncResult[R]:
            """Store one call: ``delay(id, payload)``, or ``delay(payload)`` of a task with ``key=``.

            Raises as :meth:`apply_async`.
            """

    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> AsyncResult[R]:
        """Store one call: ``apply_async((id, payload), score=, countdown=, eta=, priority=)``.

        Takes Celery's options, too. Raises TypeError for wrong arguments, InvalidCall for a wrong value,
        StoreError.
        """
        links = {"link": link, "link_error": link_error}
        if self.by is not None and self.is_plain:
            return super().apply_async(  # type: ignore[no-any-return]
                args, kwargs, task_id, producer, **links, shadow=shadow, **options
            )
        app = self._get_app()
        words, header, tracker = self._take_own(options) if options else NO_OPTIONS
        if celery_setting(app, "task_always_eager"):
            # With by= as a plain task, whose arguments Celery serializes first.
            run = self.apply if self.by is None else super().apply_async
            return run(args, kwargs, task_id=task_id, **links, **words, **options)
        if self.by is not None:
            args, kwargs, task_id = self._completed(args, kwargs, task_id)
        context = context_of(app)
        call = self.call_of(context, args, kwargs, task_id, header, **words)
        needs_message = options or link or link_error or shadow or tracker
        if not needs_message and may_skip_message(self, app, context.settings.track_calls):
            middlewares = context.settings.client_middlewares
            publish(context, self, (call,), app_retry_intervals(app), middlewares)
            return lazy_result(self, task_id)
        beyond = beyond_message(call, tracker, words.get("eta") is not None)
        given = {**options, **links, "shadow": shadow}
        result, _ = self._send(call._replace(task_id=task_id), args, kwargs, given, beyond, tracker)
        return result

    def _take_own(self, options: dict[str, Any]) -> tuple[dict[str, Any], Mapping[str, Any], str]:
        """Take out what is not Celery's: the words of a call, the values of its header, and its tracker's id.

        Raises InvalidCall for a wrong option.
        """
        app = self._get_app()
        words = {name: options.pop(name, None) for name in WORDS}
        take_ignored(self, options)
        return words, take_header(options, app.timezone), tracker_of(options.pop("tracker", None), app)

    def _completed(self, args: Any, kwargs: Any, task_id: str | None) -> tuple[Any, Any, str | None]:
        """With ``by=``: dump Pydantic arguments, and choose the id of the call, which its payload stores."""
        # Celery 5.5 lacks it.
        if (dump := getattr(self, "_dump_pydantic_arguments", None)) is not None:
            args, kwargs = dump(args, kwargs)
        return args, kwargs, str(task_id or uuid())

    def _send(
        self,
        call: Call,
        args: Any,
        kwargs: Any,
        options: dict[str, Any],
        beyond: Mapping[str, Any],
        tracker: str,
        pushes: bool = True,
    ) -> tuple[AsyncResult[Any], StoreProducer]:
        """Have Celery make and announce the message of a call, for a producer that ``pushes`` it.

        ``beyond``: arguments of the call that a message does not carry. Raises InvalidCall when an override
        of Celery's methods keeps the call from the producer, so that they would be lost.
        """
        app = self._get_app()
        if call.priority is not None:
            options["priority"] = call.priority
        producer = StoreProducer(self, call, announced(self, call, args, kwargs, options), tracker, pushes)
        override = override_of(app) if beyond else ""
        loses_nothing = not beyond or (override and is_mocked(app))
        if override and not loses_nothing:
            options[PASSED_ON] = OnlyPassedOn()
        try:
            result = super().apply_async(args, kwargs, call.task_id, producer, router=self._router, **options)
        except UNSTORABLE as error:
            if PASSED_ON not in options or producer.published or isinstance(error, LowkiqError):
                raise
            raise lost(self.name, beyond, override) from error
        if not (loses_nothing or producer.published):
            raise lost(self.name, beyond, override or "something")
        return result, producer

    def call_of(
        self,
        context: AppContext,
        args: Any,
        kwargs: Any,
        task_id: str | None,
        header: Mapping[str, Any] = NOTHING,
        **words: Any,
    ) -> Call:
        """Check and encode a call. Raises TypeError, like Celery, InvalidCall and PayloadError."""
        form: CallForm = self.call_form
        codec = context.codecs[form.merges]
        if words or header:
            call = self.checked_call(args, kwargs, task_id, header, **words)
            timed: Call = form.timed(call, time.time())
            return timed._replace(data=codec.dump(timed.payload))
        job_id, payload = form.read(args, kwargs, task_id, self.typing)
        return due_now(read_id(job_id), payload, codec)

    def checked_call(
        self, args: Any, kwargs: Any, task_id: str | None, header: Mapping[str, Any] = NOTHING, **words: Any
    ) -> Call:
        """Check the arguments of a call, without encoding them. Raises TypeError, InvalidCall."""
        job_id, payload = self.call_form.read(args, kwargs, task_id, self.typing)
        return with_header(single(job_id, payload, tz=self._get_app().timezone, **words), header)

    def signature(self, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        """A signature of a call. That of a batch has its payload by name: in a chain, the result of the task
        before becomes the payload.
        """
        return super().signature(*self.call_form.of_signature(args, kwargs), *rest, **options)

    # -- many calls

    @overload
    def perform_async(
        self, jobs: Iterable[BulkEntry], results: Literal[False] = False, tracker: Tracker | str | None = None
    ) -> None: ...

    @overload
    def perform_async(
        self, jobs: Iterable[BulkEntry], results: Literal[True], tracker: Tracker | str | None = None
    ) -> Sequence[AsyncResult[R]]: ...

    @overload
    def perform_async(
        self, jobs: Iterable[BulkEntry], results: bool, tracker: Tracker | str | None = None
    ) -> Sequence[AsyncResult[R]] | None: ...

    def perform_async(
        self, jobs: Iterable[BulkEntry], results: bool = False, tracker: Tracker | str | None = None
    ) -> Sequence[AsyncResult[R]] | None:
        """Store many calls at once: ``[{"id": 0}, {"id": 1, "payload": {}, "score": 7, "perform_in": 9.5}]``.

        ``payload`` is "" by default, ``score`` and ``perform_in`` (Unix s, datetime or timedelta) now.
        With ``results``, each call gets a task id, and the AsyncResults are returned. ``tracker`` (or its
        id) follows the calls. Celery makes a message of each call only if a signal or event needs one.
        Raises InvalidCall, which names the wrong job; then nothing is stored. Raises StoreError.
        """
        if self.by is not None:
            raise InvalidCall(
                f"{self.name}.perform_async is not supported: its payloads are arguments (by={self.by!r}). "
                "Call delay or apply_async for each"
            )
        app = self._get_app()
        context = context_of(app)
        calls: Sequence[Call] = bulk(jobs, context.codec, app.timezone, self.key)
        tracker_id = tracker_of(tracker, app)
        if celery_setting(app, "task_always_eager"):
            done = eager.run_bulk(self, calls)
            return done if results else None
        if has_publish_listeners(app):
            calls = [call._replace(task_id=uuid()) for call in calls]
            pushed: Sequence[Call] = self._messaged_calls(calls, results, tracker_id)
        else:
            pushed = calls = recorded_calls(self, calls, results, tracker_id)
        middlewares = context.settings.client_middlewares
        publish(context, self, pushed, app_retry_intervals(app), middlewares, tracker_id, refuse=True)
        return CallResults(self, [str(call.task_id) for call in calls]) if results else None

    def _messaged_calls(self, calls: Iterable[Call], results: bool, tracker: str) -> list[Call]:
        """The calls of a list as their messages, which signals and events see, leave them. None is pushed.

        Calls that an override of Celery's methods keeps are left out. Raises InvalidCall, PayloadError.
        """
        found = []
        ignored = {"ignore_result": self.ignore_result or not results, "add_to_parent": results}
        for call in calls:
            args = (call.id, call.payload) if self.key is None else (call.payload,)
            beyond = beyond_message(call, tracker)
            _, producer = self._send(call, args, {}, dict(ignored), beyond, tracker, pushes=False)
            if producer.published:
                found.append(producer.call)
        return found

    def track(self, jobs: Iterable[BulkEntry], name: str | None = None) -> Tracker:
        """Store many calls, as :meth:`perform_async`, in a tracker of their own. Raises InvalidCall."""
        with track(name or self.name, self._get_app()) as tracker:
            self.perform_async(jobs, tracker=tracker)
        return tracker

    def map(self, it: Any) -> Any:
        """Raise InvalidCall, like starmap and chunks: Celery would run the items in a plain task."""
        if self.is_plain:
            return super().map(it)
        return refuse_inline(self.name, "map")

    def starmap(self, it: Any) -> Any:
        """Raise InvalidCall, like map."""
        if self.is_plain:
            return super().starmap(it)
        return refuse_inline(self.name, "starmap")

    def chunks(self, it: Any, n: int) -> Any:
        """Raise InvalidCall, like map."""
        if self.is_plain:
            return super().chunks(it, n)
        return refuse_inline(self.name, "chunks")

    # -- calls from asyncio: each in a thread of the app, without blocking the event loop

    @overload
    async def adelay(self, id: str | int | UUID, payload: Any = "") -> AsyncResult[R]: ...

    @overload
    async def adelay(self, payload: Any) -> AsyncResult[R]: ...

    async def adelay(self, *args: Any, **kwargs: Any) -> AsyncResult[R]:
        """Store one call, as :meth:`delay`."""
        found = self.delay
        if getattr(found, "__func__", found) is not _DELAY:
            return await self._in_thread(found, args, kwargs)
        return await self.aapply_async(args, kwargs)

    async def aapply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        **options: Any,
    ) -> AsyncResult[R]:
        """Store one call, as :meth:`apply_async`, with the same options."""
        return await self._in_thread(self.apply_async, (args, kwargs, task_id), options)

    @overload
    async def aperform_async(
        self, jobs: Iterable[BulkEntry], results: Literal[False] = False, tracker: TrackerOrId = None
    ) -> None: ...

    @overload
    async def aperform_async(
        self, jobs: Iterable[BulkEntry], results: Literal[True], tracker: TrackerOrId = None
    ) -> Sequence[AsyncResult[R]]: ...

    @overload
    async def aperform_async(
        self, jobs: Iterable[BulkEntry], results: bool, tracker: TrackerOrId = None
    ) -> Sequence[AsyncResult[R]] | None: ...

    async def aperform_async(
        self, jobs: Iterable[BulkEntry], results: bool = False, tracker: TrackerOrId = None
    ) -> Sequence[AsyncResult[R]] | None:
        """Store many calls at once, as :meth:`perform_async`."""
        return await self._in_thread(self.perform_async, (jobs, results, tracker), {})

    async def _in_thread(self, call: Callable[..., T], args: tuple[Any, ...], options: Any) -> T:
        caller: Any = get_current_worker_task()
        request = None if caller is None else caller.request
        threads = context_of(self._get_app()).call_threads
        try:
            return await threads.run(self._make_here, caller, request, call, args, options)
        except NoThreadFree as error:
            raise as_celery_error(error) from None

    def _make_here(
        self, caller: Any, request: Any, call: Callable[..., T], args: tuple[Any, ...], options: Any
    ) -> T:
        """Make a call in this thread, as one of the run that makes it in another thread."""
        if caller is None:
            return as_lazy(self, call(*args, **options))
        push_current_task(caller)
        caller.request_stack.push(request)
        try:
            return as_lazy(self, call(*args, **options))
        finally:
            caller.request_stack.pop()
            pop_current_task()

    @cached_property
    def _router(self) -> StoreRouter:
        return StoreRouter(self.queue_spec.name)

    # -- messages that come by the broker

    def Strategy(self, task: Any, app: Celery, consumer: Any, **options: Any) -> Any:  # noqa: N802 - Celery's name
        """Handler of calls that a process without this code sent to the broker."""
        plain = None if self.by is None else default(task, app, consumer, **options)
        return BrokerMessageHandler(self, consumer, plain)

    @cached_property
    def call_form(self) -> CallForm:
        """Form of the calls and runs of the function."""
        cls = type(self)
        if self.by is None:
            return BatchForm(cls.__name__, self.key)
        return SignatureForm(*function_of(cls), self.by, self.merge is not None)

    @property
    def is_plain(self) -> bool:
        """True while calls go to the broker and run in a plain task: see ``lowkiq_plain``."""
        return self.by is not None and self.name in context_of(self._get_app()).settings.plain

    # -- runs

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """Run a batch for Celery's tracer, or the function alone in a direct call."""
        result: R
        request = self.request_stack.top
        if request is None or request.called_directly or request._protected:
            if not self.is_plain:
                check_caller(self.name, get_current_task())
            result = super().__call__(*args, **kwargs)
            return result
        request._protected = 1
        play, run = getattr(request, "lowkiq_play", None), getattr(request, "lowkiq_run", None)
        if play is not None:
            result = play()
        elif run is not None:
            result = self._run(run, partial(self.run, *args, **kwargs))
        elif self.by is not None:
            # An eager run, or one of a task that is a plain one for a while, which may have no valid id.
            with contextlib.suppress(InvalidCall):
                payloads: Any = self.call_form.to_payloads(Arguments(args, kwargs), request.id)
                request.lowkiq = eager.info(self.queue_spec, payloads)
            try:
                result = self.run(*args, **kwargs)
            except Again as again:
                result = self._call_again(again)
        else:
            request.lowkiq = eager.info(self.queue_spec, *args)
            result = eager.eager_outcome(lambda: self.run(*args, **kwargs), *args)
        return result

    #: The ``__call__`` of a task whose class has none of its own, see ``integration/request.py``.
    run_in_lane = __call__

    def _run(self, run: Run, function: Callable[[], Any]) -> Any:
        if run.replay is not None:
            replay = run.replay
            return run.capture(lambda: run.succeed(replay()))
        if run.callers is not None:
            report(link_calls, run.callers)
        # Inside the middlewares, which must not run in a process that the function forks.
        inner = partial(staying, run.pid, function)
        middlewares, jobs = run.settings.server_middlewares, run.decoded.jobs
        inside = hasattr(type(self).__call__, "guarded")
        return run.capture(lambda: run.succeed(compose(middlewares, self, jobs, inner)), inside)

    def _call_again(self, again: Again) -> Any:
        """Send the call of a plain run once more, without counting a retry, and raise Retry. Returns the
        result if ``Again`` leaves no payload.
        """
        if again.payloads_left is not None and not again.payloads_left:
            return again.result
        if not self.request.is_eager:
            self.signature_from_request(countdown=again.after).apply_async()
        when: Any = again.after
        raise Retry(str(again), when=when) from again

    def replace(self, sig: Any) -> Any:
        """Run a signature in place of this task. It takes over the task's id, links, chain and chord.

        In a run of several calls, it replaces each call that has a record.
        """
        run = getattr(self.request, "lowkiq_run", None)
        if self.per_id and run is not None and len(run.decoded.jobs) > 1:
            raise InvalidCall("self.replace() replaces the calls of all ids of a run: set batch_size=1")
        if run is None or not run.has_callers:
            return super().replace(sig)
        run.replace_calls(lambda: self.replace(sig.clone()))
        raise Ignore("each call is replaced by a new task")

    def update_state(
        self, task_id: str | None = None, state: str | None = None, meta: Any = None, **options: Any
    ) -> None:
        """Store a state, like Celery's method; in a run of several calls, for each with a stored result."""
        run = getattr(self.request, "lowkiq_run", None)
        if task_id is None and run is not None and run.callers is not None:
            store_state(self, run.callers(), state, meta, **options)
        else:
            super().update_state(task_id, state, meta, **options)

    def progress(self, text: str = "", current: Any = None, total: Any = None, job_id: Any = None) -> None:
        """Report the progress of the run to the trackers of its calls; ``job_id``: of this job's calls only.

        Without a tracker it does nothing. A text is kept among the call's messages; at most ten reports a
        second without a text are sent. What ``lowkiq_redact`` names is masked in it. Raises InvalidCall for a
        wrong type of any argument.
        """
        text, *numbers = read_progress(text, current, total, job_id)
        run = getattr(self.request, "lowkiq_run", None)
        if run is not None and run.tracked is not None:
            masked = run.settings.redactor.text(text, run.secrets) if text else ""
            run.tracked.progress(masked, *numbers)

    # -- run here and now

    def apply(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *positional: Any,
        **options: Any,
    ) -> EagerResult[R]:
        """Run the function in this process, like a worker, on ``{id: [payload]}``."""
        words = {name: options.pop(name, None) for name in WORDS}
        if self.by is not None:
            args, kwargs, _ = self._completed(args, kwargs, None)
            self.checked_call(args, kwargs, None, **words)
            result: EagerResult[R] = super().apply(args, kwargs, *positional, **options)
            return result
        call = self.call_of(context_of(self._get_app()), args, kwargs, None, **words)
        return self.apply_batch(eager.batch_of([call], self), *positional, **options)

    def apply_batch(
        self, payloads_by_id: dict[str, list[Any]], *positional: Any, **options: Any
    ) -> EagerResult[R]:
        """Run the function in this process on a whole batch."""
        result: EagerResult[R] = super().apply((payloads_by_id,), {}, *positional, **options)
        return result

    # -- retries

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: Any = None,
        countdown: Any = None,
        max_retries: Any = None,
        **options: Any,
    ) -> Any:
        """Fail the batch, to run it again: all payloads go back to the queue.

        Without ``countdown`` (s) or ``eta`` the delay is the task's ``retry_in``. ``max_retries`` replaces
        the task's for this failure. ``exc`` is by default the exception that is being handled.

        ``args`` and ``kwargs`` replace those of a call of a task with ``by=``, ``expires`` and ``headers``
        those of the run's only call, ``priority`` that of the job. Other options say how a message travels:
        they are ignored with a warning. With ``throw=False``, returns the Retry: the batch runs again when
        the function has returned.

        Raises Retry; when the retries are used up, ``exc`` or MaxRetriesExceededError; outside of a run,
        ``exc``. Raises Reject for arguments that no call of the same id can have. Raises InvalidCall for a
        wrong ``countdown``, ``eta`` or ``max_retries``.
        """
        if self._is_plain_run():
            given = {"args": args, "kwargs": kwargs, "exc": exc, "throw": throw, **options}
            return self._retry_plain_run(eta=eta, countdown=countdown, max_retries=max_retries, **given)
        if max_retries is not None and not is_whole(max_retries, 0):
            raise InvalidCall(invalid("max_retries", max_retries, "a whole number from 0, or None"))
        handled = sys.exc_info()[1]
        cause = exc or (handled if handled is not None and may_fail(type(handled)) else None)
        if self.request.called_directly:
            raise cause or Retry("Task can be retried", None)
        run: Run | None = getattr(self.request, "lowkiq_run", None)
        if self._gives_up(run, exc, max_retries):
            self._raise_last(exc, cause)
        message = None if cause else "asked for by self.retry()"
        retry: Any = Retry(message, exc=cause, when=self._delay(eta, countdown))  # type: ignore[arg-type]
        if max_retries is not None:
            retry.max_retries = max_retries
        if run is not None:
            self._change(run, retry, {"args": args, "kwargs": kwargs, **options})
        if throw or run is None or self.per_id:
            raise retry
        run.requested = retry
        # A run without Celery's tracer looks here.
        self.request.update(lowkiq_retry=retry)
        return retry

    def _raise_last(self, exc: Any, cause: BaseException | None) -> NoReturn:
        """Raise what a plain task raises when its retries are used up."""
        if exc is not None:
            raise_with_context(exc)
        request = self.request
        raise self.MaxRetriesExceededError(
            f"Can't retry {self.name}[{request.id}] args:{request.argsrepr} kwargs:{request.kwargsrepr}",
            task_args=request.args,
            task_kwargs=request.kwargs,
        ) from cause

    def _gives_up(self, run: Run | None, exc: BaseException | None, max_retries: int | None) -> bool:
        if run is not None:
            return run.gives_up(exc, max_retries)
        most = self.max_retries if max_retries is None else max_retries
        return most is not None and self.request.retries >= most

    def _change(self, run: Run, retry: Any, given: Mapping[str, Any]) -> None:
        """Add to the Retry what changes. Warns of what does not. Raises Reject."""
        options = {name: value for name, value in given.items() if value is not None}
        priority = options.pop("priority", None)
        if priority is not None:
            retry.priority = min(max(int(priority), MOST_URGENT), LEAST_URGENT)
        asked = {name: options.pop(name) for name in CallChanges._fields if name in options}
        for name in options:
            warn_once(self, f"retry({name}=)", _ROUTED.format(name=name))
        if not asked:
            return
        try:
            retry.change = changed_call(run, CallChanges(**asked))
        except Exception as error:
            # Celery does the same when it cannot publish the call again.
            raise Reject(error, requeue=False) from error
        if retry.change is None:
            for name in asked:
                warn_once(self, f"retry({name}=)", _NO_CALL.format(name=name))

    def _retry_plain_run(
        self, exc: BaseException | None, eta: Any, countdown: Any, max_retries: Any, **options: Any
    ) -> Any:
        if isinstance(exc, Again):
            # autoretry_for= matched it; ``__call__`` handles it.
            raise exc
        if eta is None and countdown is None:
            countdown = policy_of(self).retry_in(exc, self.request.retries)
        if countdown is False:
            countdown, max_retries = None, 0
        return super().retry(exc=exc, eta=eta, countdown=countdown, max_retries=max_retries, **options)

    def _is_plain_run(self) -> bool:
        """Test for a run of Celery's own: eager, or of a call that came by the broker."""
        in_lane = getattr(self.request, "lowkiq_run", None) is not None
        return self.by is not None and not (in_lane or self.request.called_directly)

    def _delay(self, eta: Any, countdown: Any) -> Any:
        if countdown is not None:
            return read_delay(countdown)
        if eta is None:
            return None
        app = self._get_app()
        now: datetime = app.now()
        return max(0.0, read_time("eta", eta, app.timezone) - now.timestamp())


for _name, _option in OPTIONS.items():
    setattr(OrderedTask, _name, _option.default)
