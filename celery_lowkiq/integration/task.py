"""The base class of ordered tasks: calls go to the store, runs come from a lane."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property, partial
from typing import Any

from celery import Celery, Task
from celery.exceptions import Ignore, Reject, Retry
from celery.result import AsyncResult
from kombu.utils.uuid import uuid

from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.middleware import compose
from celery_lowkiq.rules.models import Merge, NewJob, QueueSpec

from . import eager
from .arguments import as_keywords, header_for
from .arrivals import Arrivals, MessagedCall, read_call
from .bases import adopt_on_commit, guard_call, inherited
from .call_records import note_of, store_state
from .calls import Entry, bulk, id_of, read_delay, read_time, single, to_jobs
from .errors import dump_error_text
from .leftovers import end_leftovers
from .options import (
    as_attributes,
    check_annotations,
    check_function,
    check_options,
    check_queue_name,
    read_rate,
)
from .outcomes import BusinessFailure
from .producer import StoreProducer, StoreRouter, StoresMessage, as_operational_errors
from .queue import OrderedQueue, Terms
from .queue_policies import QueuePolicies, policies_of
from .quick import is_heard, is_unheard, publish_pauses
from .refusals import check_call, refuse_inline
from .results import bulk_calls, heard_calls
from .run import Run, cause_of
from .selection import check_names
from .spans import link_calls
from .stores import Home, home_of
from .tracing import report
from .tracked_push import Push, tracked_bulk, tracked_single
from .trackers import Tracker, TracksCalls, tracker_of

BOOTSTEP = "celery_lowkiq.integration.bootstep:OrderedQueues"
POISON = "poison pill: the job took its worker down {max_crashes} times"

_spec_lock = threading.Lock()


# celery-types leaves out much of what a subclass may rely on.
_CeleryTask: Any = Task


class OrderedTask(QueuePolicies, TracksCalls, _CeleryTask):  # type: ignore[misc]
    """A task whose calls of one id are merged, kept in order, and never run twice at once.

    ``run`` gets ``{id: [payload, ...]}``, the payload with the smallest score first.
    """

    abstract = True

    #: Number of parts of the queue; all jobs of an id lie in one, and a part is worked by one lane.
    shards: int = 5
    #: How many jobs one run gets at most.
    batch_size: int = 1
    #: How often a failed job runs again; None means for ever.
    max_retries: int | None = 25
    #: Name of the ordered queue; None takes the task's name.
    queue_name: str | None = None
    #: The pause before the next run of a failed job, see ``rules.pauses``; None takes the default.
    retry_in: Any = None
    #: Errors that no retry mends.
    dont_retry: tuple[type[Exception], ...] | None = None
    #: How many payloads of an id one run gets at most; the others get runs of their own.
    max_payloads_per_run: int | None = None
    #: ``on_retries_exhausted(jobs)``: called with the jobs that died in a run.
    on_retries_exhausted: Callable[[list[Any]], Any] | None = None
    #: Which score stays when two payloads of an id are equal: "min" or "max".
    merge: str = Merge.MIN.value
    #: How many deaths of its worker a job may cause.
    max_crashes: int = 3
    #: A run that takes longer (s) raises an alarm in log, statistics and events; it goes on.
    max_run: float | None = None
    #: ``key(payload) -> id``; with it, calls take the payload alone.
    key: Callable[[Any], Any] | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        declared = dict(cls.__dict__)
        others = inherited(cls, OrderedTask)
        guard_call(cls, others, OrderedTask)
        run = declared.get("run")
        if run is not None:
            bound = not isinstance(run, staticmethod)
            check_function(run if bound else run.__func__, bound)
        for name, value in as_attributes(declared, cls.__qualname__).items():
            if value is not declared[name]:
                setattr(cls, name, value)
        # What is expected is logged as INFO, without a traceback.
        cls.throws = (*(kind for kind in cls.throws if kind is not BusinessFailure), BusinessFailure)
        # Looked up as at run time: a method has its self then.
        check_options({**others, **declared, "retry_in": object.__new__(cls).retry_in}, cls)
        cls.__header__ = staticmethod(header_for(cls.__name__, cls.key is not None))

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """Install what the worker needs; ``@ordered_task`` alone is the whole set-up."""
        check_annotations(cls, app)
        if cls.queue_name is None:
            check_queue_name(cls.name)
        # By name: only a worker imports Celery's worker, and whatever instruments that comes first.
        app.steps["consumer"].add(BOOTSTEP)
        adopt_on_commit(cls, app)

    # -- calls

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> AsyncResult[Any]:
        """Store one call: ``apply_async((id, payload), score=, countdown=, eta=)``, and Celery's options.

        Raises TypeError for wrong arguments, InvalidCall for a value that is not allowed, StoreError.
        """
        words = {name: options.pop(name, None) for name in ("score", "countdown", "eta")}
        check_call(self.name, self.queue_spec.name, options)
        app = self._get_app()
        tracker = tracker_of(options.pop("tracker", None), app)
        links = {"link": link, "link_error": link_error}
        if app.conf.task_always_eager:
            eager_result: AsyncResult[Any] = self.apply(
                args, kwargs, task_id=task_id, **links, **words, **options
            )
            return eager_result
        home = home_of(app)
        entry = self.entry_of(args, kwargs, **words)
        job = entry.job(home.codec)
        if not (options or link or link_error or shadow or tracker) and is_unheard(self, app, home):
            return self._call_unheard(home, entry, job, task_id or uuid())

        def store(body: Any, headers: Any, properties: Any, pauses: Iterable[float]) -> None:
            call = read_call(body, headers)
            record = self.record_of(home, call, properties, tracker)
            push = tracked_single(home, tracker, call.headers["id"])
            self._push(home, (entry,), [replace(job, record=record)], pauses, push)

        return self.make_message(args, kwargs, task_id, store, shadow=shadow, **links, **options)

    def make_message(
        self, args: Any, kwargs: Any, task_id: str | None, store: StoresMessage, **options: Any
    ) -> AsyncResult[Any]:
        """Have Celery make the message of a call, tell who listens to messages, and give it to ``store``."""
        producer = StoreProducer(self._get_app(), store)
        result: AsyncResult[Any] = super().apply_async(
            args, kwargs, task_id, producer, router=self._router, **options
        )
        return result

    def _call_unheard(self, home: Home, entry: Entry, job: NewJob, task_id: str) -> AsyncResult[Any]:
        app = self._get_app()
        with as_operational_errors():
            self._push(home, (entry,), [job], publish_pauses(app))
        result: AsyncResult[Any] = self.AsyncResult(task_id)
        result.ignored = bool(self.ignore_result)
        return result

    def record_of(self, home: Home, call: MessagedCall, properties: Any, tracker: str = "") -> bytes | None:
        """What is kept of a call with such a message, if anything. Raises PayloadError."""
        note = note_of(self, call.headers, call.embed, properties, home.settings.track_calls, tracker)
        return None if note is None else note.dump(home.record_codec)

    def signature(self, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        """Id and payload by name: in a chain, the result of the task before becomes the payload."""
        named = as_keywords(args or (), kwargs or {}, self.key is not None, self.name)
        return super().signature((), named, *rest, **options)

    def entry_of(self, args: Any, kwargs: Any, **words: Any) -> Entry:
        """The call that such arguments make. Raises TypeError, as Celery does, and InvalidCall."""
        job_id, payload = self.__header__(*(args or ()), **(kwargs or {}))
        if self.key is not None:
            job_id = id_of(self.key, payload)
        return single(job_id, payload, tz=self._get_app().timezone, **words)

    def perform_async(
        self, jobs: Iterable[Mapping[str, Any]], results: bool = False, tracker: Tracker | str | None = None
    ) -> Sequence[AsyncResult[Any]] | None:
        """Store many calls at once: ``[{"id": 0}, {"id": 1, "payload": {}, "score": 7, "perform_in": 9.5}]``.

        ``payload`` is "" by default, ``score`` and ``perform_in`` (Unix s, datetime or timedelta) now.
        With ``results``, each call has a task id, and the AsyncResults are returned, made when asked for.
        ``tracker`` (or its id) is told what becomes of the calls.
        Celery makes a message of each call where somebody listens to messages, and only there.
        Raises InvalidCall, which says which job is wrong; then none is stored. Raises StoreError.
        """
        app = self._get_app()
        home = home_of(app)
        entries = bulk(jobs, app.timezone, self.key)
        stored = to_jobs(entries, home.codec)
        tracker_id = tracker_of(tracker, app)
        if app.conf.task_always_eager:
            done = eager.run_bulk(self, entries, home)
            return done if results else None
        if is_heard(app):
            given = heard_calls(self, home, entries, stored, results, tracker_id)
        else:
            given = bulk_calls(self, home, stored, results, tracker_id)
        if stored:
            push = tracked_bulk(home, tracker_id, given.results.ids)
            with as_operational_errors():
                self._push(home, tuple(entries), given.jobs, publish_pauses(app), push)
        return given.results if results else None

    def map(self, it: Any) -> Any:
        """Refused, as starmap and chunks: Celery would run the items in a plain task."""
        refuse_inline(self.name, "map")

    def starmap(self, it: Any) -> Any:
        """Refused, as map."""
        refuse_inline(self.name, "starmap")

    def chunks(self, it: Any, n: int) -> Any:
        """Refused, as map."""
        refuse_inline(self.name, "chunks")

    def _push(
        self,
        home: Home,
        entries: tuple[Entry, ...],
        jobs: list[NewJob],
        pauses: Iterable[float] = (),
        push: Push | None = None,
    ) -> None:
        spec = self.queue_spec
        push = push or home.store.push
        compose(home.settings.client_middlewares, self, entries, lambda: push(spec, jobs, pauses))

    # -- the queue

    @property
    def queue_spec(self) -> QueueSpec:
        """What store and worker know of the queue. Raises ConfigurationError when another task has it."""
        spec: QueueSpec | None = self.__dict__.get("_queue_spec")
        if spec is None:
            with _spec_lock:
                spec = self.__dict__["_queue_spec"] = self._make_spec()
        return spec

    @cached_property
    def _router(self) -> StoreRouter:
        return StoreRouter(self.queue_spec.name)

    def _make_spec(self) -> QueueSpec:
        app = self._get_app()
        check_names(app)
        return QueueSpec(
            name=self.queue_name or self.name,
            shards=self.shards,
            batch_size=self.batch_size,
            merge=Merge(self.merge),
            max_crashes=self.max_crashes,
            max_run=self.max_run,
            poison_error=dump_error_text(home_of(app).settings, POISON.format(max_crashes=self.max_crashes)),
            policies=policies_of(self),
        )

    @property
    def ordered_queue(self) -> OrderedQueue:
        """Reads and actions on the task's queue."""
        return OrderedQueue(self._get_app(), self.queue_spec, partial(end_leftovers, self), self._terms)

    def _terms(self) -> Terms:
        return {"rate": read_rate(self.rate_limit), "max_retries": self.max_retries}

    # -- runs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Called by Celery's tracer for a batch, or directly by anyone."""
        request = self.request_stack.top
        if request is None or request.called_directly or request._protected:
            return super().__call__(*args, **kwargs)
        request._protected = 1
        ending = getattr(request, "lowkiq_ending", None)
        if ending is not None:
            return ending()
        run = getattr(request, "lowkiq_run", None)
        if run is None:
            request.lowkiq = eager.info(self.queue_spec, *args)
            return eager.seen(lambda: self.run(*args, **kwargs), *args)
        return self._run(run, partial(self.run, *args, **kwargs))

    def _run(self, run: Run, function: Callable[[], Any]) -> Any:
        if run.callers is not None:
            report(link_calls, run.callers)
        try:
            result = compose(run.middlewares, self, run.jobs, function)
        except Ignore as error:
            run.ignores(error)
            raise
        except Reject:
            raise
        except Exception as error:
            seen = run.fails(error)
            if seen is None:
                return run.value()
            if seen is error:
                raise
            raise seen from cause_of(error)
        return run.succeeds(result)

    def apply(self, args: Any = None, kwargs: Any = None, *positional: Any, **options: Any) -> Any:
        """Run the function here, as a worker would: ``(id, payload)`` becomes ``{id: [payload]}``."""
        words = {name: options.pop(name, None) for name in ("score", "countdown", "eta")}
        entry, home = self.entry_of(args, kwargs, **words), home_of(self._get_app())
        return self.apply_batch(eager.batch_of([entry], home, self.queue_spec), *positional, **options)

    def apply_batch(self, payloads_by_id: dict[str, list[Any]], *positional: Any, **options: Any) -> Any:
        """Run the function here on a whole batch."""
        return super().apply((payloads_by_id,), {}, *positional, **options)

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: Exception | None = None,
        throw: bool = True,
        eta: Any = None,
        countdown: Any = None,
        max_retries: Any = None,
        **options: Any,
    ) -> Any:
        """Run the batch again: it counts as a failure, and the lane puts every payload back.

        Without ``countdown`` (s) or ``eta`` the pause is the task's ``retry_in``; ``max_retries`` replaces
        the task's for this failure, and ``exc`` is by default what is being handled. Raises Retry; outside
        of a run, ``exc``. Raises InvalidCall for ``throw=False``: a run cannot succeed and be repeated.
        """
        if not throw:
            raise InvalidCall("retry(throw=False) is not supported: write raise self.retry(...)")
        handled = sys.exc_info()[1]
        exc = exc or (handled if isinstance(handled, Exception) else None)
        if self.request.called_directly:
            raise exc or Retry("Task can be retried", None)
        message = None if exc else "asked for by self.retry()"
        retry: Any = Retry(message, exc=exc, when=self._pause(eta, countdown))
        if max_retries is not None:
            retry.max_retries = max_retries
        raise retry

    def replace(self, sig: Any) -> Any:
        """Run a signature in place of this task, which takes over id, links, chain and chord.

        In a run of several calls it does so for each of them.
        """
        run = getattr(self.request, "lowkiq_run", None)
        if run is None or run.call is not None:
            return super().replace(sig)
        run.replacement = lambda: self.replace(sig.clone())
        raise Ignore("each call is replaced by a new task")

    def update_state(
        self, task_id: str | None = None, state: str | None = None, meta: Any = None, **options: Any
    ) -> None:
        """As Celery's; in a run of several calls, of each of them whose result is stored."""
        run = getattr(self.request, "lowkiq_run", None)
        if task_id is None and run is not None and run.callers is not None:
            store_state(self, run.callers(), state, meta, **options)
        else:
            super().update_state(task_id, state, meta, **options)

    def _pause(self, eta: Any, countdown: Any) -> Any:
        if countdown is not None:
            return read_delay(countdown)
        if eta is None:
            return None
        app = self._get_app()
        now: datetime = app.now()
        return max(0.0, read_time("eta", eta, app.timezone) - now.timestamp())

    # -- messages that come by the broker

    def Strategy(self, task: Any, app: Celery, consumer: Any, **options: Any) -> Any:  # noqa: N802 - Celery's name
        """What the worker does with a call that a process without this code sent to the broker."""
        return Arrivals(self, consumer)
