"""The calls of an ordered task: ``apply_async``, ``perform_async`` and the like push to the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload
from uuid import UUID

from celery import signals
from celery.result import AsyncResult, EagerResult
from kombu.utils.uuid import uuid

from celery_lowkiq.integration.app.celery_settings import celery_setting
from celery_lowkiq.integration.app.context import context_of
from celery_lowkiq.integration.calls.bulk_results import bulk_with_messages, bulk_without_messages
from celery_lowkiq.integration.calls.call_form import CallForm
from celery_lowkiq.integration.calls.fast_path import (
    has_publish_listeners,
    may_skip_message,
)
from celery_lowkiq.integration.calls.lazy_result import lazy_result
from celery_lowkiq.integration.calls.message import NO_VALUES, HeaderValues, MessagedCall, take_header
from celery_lowkiq.integration.calls.producer import (
    StoreProducer,
    StoreRouter,
    app_retry_intervals,
    as_celery_error,
    retry_intervals,
)
from celery_lowkiq.integration.calls.published import announced, as_published, shown_arguments
from celery_lowkiq.integration.calls.send_task_overrides import send_whole
from celery_lowkiq.integration.calls.validation import (
    WORDS,
    BulkEntry,
    Entry,
    bulk,
    priority_of,
    read_id,
    single,
    to_jobs,
)
from celery_lowkiq.integration.records.call_record import make_record
from celery_lowkiq.integration.runs import eager
from celery_lowkiq.integration.tracking.announce import Push, TrackedPush
from celery_lowkiq.integration.tracking.tracker import Tracker, track, tracker_of
from celery_lowkiq.rules.cached_property import cached_property
from celery_lowkiq.rules.errors import InvalidCall, StoreFull, StoreUnavailable
from celery_lowkiq.rules.middleware import compose
from celery_lowkiq.rules.models import NewJob

from .base_classes import CeleryTask, R
from .call_options import take_ignored
from .unsupported import refuse_inline

T = TypeVar("T")

#: What a call has that gives no options: see ``CallMixin._take_own``.
NO_OPTIONS: tuple[dict[str, Any], HeaderValues, str] = ({}, NO_VALUES, "")


class CallMixin(CeleryTask, Generic[R]):  # type: ignore[misc, valid-type]
    """Methods of an ordered task that make calls; those of Celery's that it does not support raise."""

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
        entry = self.entry_of(args, kwargs, task_id, header, **words)
        context = context_of(app)
        job = entry.job(context.codec_for(self.call_form.merges))
        needs_message = options or link or link_error or shadow or tracker
        if not needs_message and may_skip_message(self, app, context.settings.track_calls):
            self._publish((entry,), [job], app_retry_intervals(app))
            return lazy_result(self, task_id)
        beyond = entry.beyond_message(tracker, words.get("eta") is not None)
        store = partial(self._store_message, entry, job, tracker)
        options |= {**links, "shadow": shadow}
        return self.make_message(args, kwargs, task_id, entry, store, beyond, **options)

    def _take_own(self, options: dict[str, Any]) -> tuple[dict[str, Any], HeaderValues, str]:
        """Take out what is not Celery's: the words of a call, the values of its header, and its tracker's id.

        Raises InvalidCall for a wrong option.
        """
        app = self._get_app()
        words = {name: options.pop(name, None) for name in WORDS}
        take_ignored(self, options)
        return words, take_header(options, app.timezone), tracker_of(options.pop("tracker", None), app)

    def _store_message(
        self, entry: Entry, job: NewJob, tracker: str, made: Mapping[str, Any], call: MessagedCall
    ) -> None:
        intervals = retry_intervals(call.properties.get("retry"), call.properties.get("retry_policy"))
        push: Push | None = None
        if tracker:
            push = TrackedPush(context_of(self._get_app()), tracker, (call.headers["id"],), refuse=False)
        entry, job = self.stored_call(entry, job, made, call, tracker)
        self._publish((entry,), [job], intervals, push)

    def _completed(self, args: Any, kwargs: Any, task_id: str | None) -> tuple[Any, Any, str | None]:
        """With ``by=``: dump Pydantic arguments, and choose the id of the call, which its payload stores."""
        # Celery 5.5 lacks it.
        if (dump := getattr(self, "_dump_pydantic_arguments", None)) is not None:
            args, kwargs = dump(args, kwargs)
        return args, kwargs, str(task_id or uuid())

    def make_message(
        self,
        args: Any,
        kwargs: Any,
        task_id: str | None,
        entry: Entry,
        store: Callable[[Mapping[str, Any], MessagedCall], None],
        beyond: Mapping[str, Any],
        **options: Any,
    ) -> AsyncResult[Any]:
        """Have Celery make and announce the message of a call, and pass it to ``store``, with what receivers
        may replace.

        ``beyond``: arguments of the call that a message does not carry. Raises InvalidCall if they would be
        lost.
        """
        app = self._get_app()
        options |= entry.for_message()
        producer = StoreProducer(app, partial(store, announced(self, entry, args, kwargs, options)))
        send = partial(super().apply_async, args, kwargs, task_id, producer, router=self._router, **options)
        result: AsyncResult[Any] = send_whole(app, self.name, beyond, producer, send)
        return result

    def stored_call(
        self, entry: Entry, job: NewJob, made: Mapping[str, Any], call: MessagedCall, tracker: str = ""
    ) -> tuple[Entry, NewJob]:
        """The call and its job with what its message says. Raises TypeError, InvalidCall, PayloadError."""
        if signals.before_task_publish.receivers:
            entry = as_published(self, entry, made, call)
            job = entry.job(context_of(self._get_app()).codec_for(self.call_form.merges))
        record = self.record_of(call, tracker, shown_arguments(self, made, call) if made else {})
        return entry, job._replace(record=record, priority=priority_of(call.properties))

    def record_of(self, call: MessagedCall, tracker: str, shown: Mapping[str, str]) -> bytes | None:
        """The record of a call; None when nothing needs one. Raises PayloadError.

        ``shown``: what events and logs show in place of its arguments.
        """
        context = context_of(self._get_app())
        track = context.settings.track_calls
        record = make_record(self, call.headers, call.embed, call.properties, track, tracker, shown)
        return None if record is None else record.dump(context.record_codec)

    def entry_of(
        self, args: Any, kwargs: Any, task_id: str | None, header: HeaderValues = NO_VALUES, **words: Any
    ) -> Entry:
        """The checked call that the arguments make. Raises TypeError, as Celery does, and InvalidCall."""
        form: CallForm = self.call_form
        job_id, payload = form.read(args, kwargs, task_id, self.typing)
        if not words and header is NO_VALUES:
            return Entry(read_id(job_id), payload)
        entry = header.added_to(single(job_id, payload, tz=self._get_app().timezone, **words))
        return form.timed(entry, time.time())

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
        entries = bulk(jobs, app.timezone, self.key)
        stored = to_jobs(entries, context.codec)
        tracker_id = tracker_of(tracker, app)
        if celery_setting(app, "task_always_eager"):
            done = eager.run_bulk(self, entries)
            return done if results else None
        if has_publish_listeners(app):
            stored, calls = bulk_with_messages(self, entries, stored, results, tracker_id)
        else:
            stored, calls = bulk_without_messages(self, stored, results, tracker_id)
        push = TrackedPush(context, tracker_id, calls.ids, refuse=True) if tracker_id else None
        self._publish(tuple(entries), stored, app_retry_intervals(app), push)
        return calls if results else None

    def track(self, jobs: Iterable[BulkEntry], name: str | None = None) -> Tracker:
        """Store many calls, as :meth:`perform_async`, in a tracker of their own. Raises InvalidCall."""
        with track(name or self.name, self._get_app()) as tracker:
            self.perform_async(jobs, tracker=tracker)
        return tracker

    def map(self, it: Any) -> Any:
        """Not supported, as starmap and chunks: Celery would run the items in a plain task."""
        if self.is_plain:
            return super().map(it)
        return refuse_inline(self.name, "map")

    def starmap(self, it: Any) -> Any:
        """Not supported, as map."""
        if self.is_plain:
            return super().starmap(it)
        return refuse_inline(self.name, "starmap")

    def chunks(self, it: Any, n: int) -> Any:
        """Not supported, as map."""
        if self.is_plain:
            return super().chunks(it, n)
        return refuse_inline(self.name, "chunks")

    # -- to the store

    def _publish(
        self,
        entries: tuple[Entry, ...],
        jobs: list[NewJob],
        intervals: Iterable[float],
        push: Push | None = None,
    ) -> None:
        """Store jobs, inside the client middlewares, which see their entries.

        Raises what callers of Celery catch: CallUnavailable, CallRefused.
        """
        if not jobs:
            return
        context, spec = context_of(self._get_app()), self.queue_spec
        store = push or context.store.push
        middlewares = context.settings.client_middlewares
        try:
            if not middlewares:
                store(spec, jobs, intervals)
            else:
                compose(middlewares, self, entries, lambda: store(spec, jobs, intervals))
        except (StoreFull, StoreUnavailable) as error:
            raise as_celery_error(error) from error

    @cached_property
    def _router(self) -> StoreRouter:
        return StoreRouter(self.queue_spec.name)

    # -- run here and now

    def apply(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *positional: Any,
        **options: Any,
    ) -> EagerResult[R]:
        """Run the function in this process, as a worker would, on ``{id: [payload]}``."""
        words = {name: options.pop(name, None) for name in WORDS}
        if self.by is not None:
            args, kwargs, _ = self._completed(args, kwargs, None)
        entry = self.entry_of(args, kwargs, None, **words)
        if self.by is not None:
            result: EagerResult[R] = super().apply(args, kwargs, *positional, **options)
            return result
        return self.apply_batch(eager.batch_of([entry], self), *positional, **options)

    def apply_batch(
        self, payloads_by_id: dict[str, list[Any]], *positional: Any, **options: Any
    ) -> EagerResult[R]:
        """Run the function in this process on a whole batch."""
        result: EagerResult[R] = super().apply((payloads_by_id,), {}, *positional, **options)
        return result
