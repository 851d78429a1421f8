"""Calls of an ordered task: they go to the store, as Celery's own calls go to a broker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Generic, Literal, overload
from uuid import UUID

from celery.result import AsyncResult, EagerResult
from kombu.utils.uuid import uuid

from celery_lowkiq.integration.app.context import Home, home_of
from celery_lowkiq.integration.calls.arguments import as_keywords, check_arguments
from celery_lowkiq.integration.calls.fast_path import is_heard, is_unheard, publish_pauses
from celery_lowkiq.integration.calls.message_header import take_asked
from celery_lowkiq.integration.calls.producer import (
    StoreProducer,
    StoreRouter,
    StoresMessage,
    as_operational_errors,
)
from celery_lowkiq.integration.calls.send_task_overrides import sent_whole
from celery_lowkiq.integration.calls.validation import (
    WORDS,
    BulkEntry,
    Entry,
    bulk,
    id_of,
    priority_of,
    single,
    to_jobs,
)
from celery_lowkiq.integration.records.call_record import note_of
from celery_lowkiq.integration.runs import eager
from celery_lowkiq.integration.runs.batch_results import bulk_calls, heard_calls
from celery_lowkiq.integration.tracking.announce import Push, tracked_bulk, tracked_single
from celery_lowkiq.integration.tracking.tracker import Tracker, tracker_of
from celery_lowkiq.rules.middleware import compose
from celery_lowkiq.rules.models import NewJob

from .base_classes import CeleryTask, R
from .broker_messages import MessagedCall, read_call
from .unsupported import check_call, refuse_inline


class StoresCalls(CeleryTask, Generic[R]):  # type: ignore[misc, valid-type]
    """The ways to call an ordered task, and those that Celery has and an ordered task refuses."""

    # -- one call

    @overload
    def delay(self, id: str | int | UUID, payload: Any = "") -> AsyncResult[R]: ...

    @overload
    def delay(self, payload: Any) -> AsyncResult[R]: ...

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult[R]:
        """Store one call: ``delay(id, payload)``, or ``delay(payload)`` of a task with ``key=``.

        Raises as :meth:`apply_async`.
        """
        return self.apply_async(args, kwargs)

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
        """Store one call: ``apply_async((id, payload), score=, countdown=, eta=, priority=)``, and Celery's.

        Raises TypeError for wrong arguments, InvalidCall for a value that is not allowed, StoreError.
        """
        words = {name: options.pop(name, None) for name in WORDS}
        check_call(self.name, self.queue_spec.name, options)
        app = self._get_app()
        asked = take_asked(options, app.timezone)
        tracker = tracker_of(options.pop("tracker", None), app)
        links = {"link": link, "link_error": link_error}
        if app.conf.task_always_eager:
            return self.apply(args, kwargs, task_id=task_id, **links, **words, **options)
        home = home_of(app)
        entry = asked.added_to(self.entry_of(args, kwargs, **words))
        job = entry.job(home.codec)
        if not (options or link or link_error or shadow or tracker) and is_unheard(self, app, home):
            return self._call_unheard(home, entry, job, task_id or uuid())

        def store(body: Any, headers: Any, properties: Any, pauses: Iterable[float]) -> None:
            call = read_call(body, headers)
            record = self.record_of(home, call, properties, tracker)
            stored = replace(job, record=record, priority=priority_of(properties))
            self._push(home, (entry,), [stored], pauses, tracked_single(home, tracker, call.headers["id"]))

        links |= entry.for_message()
        said = entry.beyond_message() | ({"tracker": tracker} if tracker else {})
        if words["eta"] is not None:
            said["eta"] = said.pop("perform_in")
        return self.make_message(args, kwargs, task_id, store, said, shadow=shadow, **links, **options)

    def _call_unheard(self, home: Home, entry: Entry, job: NewJob, task_id: str) -> AsyncResult[Any]:
        app = self._get_app()
        with as_operational_errors():
            self._push(home, (entry,), [job], publish_pauses(app))
        result: AsyncResult[Any] = self.AsyncResult(task_id)
        result.ignored = bool(self.ignore_result)
        return result

    def make_message(
        self,
        args: Any,
        kwargs: Any,
        task_id: str | None,
        store: StoresMessage,
        said: Mapping[str, Any],
        **options: Any,
    ) -> AsyncResult[Any]:
        """Have Celery make the message of a call, tell who listens to messages, and give it to ``store``.

        What the call ``said`` is in no message. Raises InvalidCall when it would be lost.
        """
        app = self._get_app()
        producer = StoreProducer(app, store)
        send = partial(super().apply_async, args, kwargs, task_id, producer, router=self._router, **options)
        result: AsyncResult[Any] = sent_whole(app, self.name, said, producer, send)
        return result

    def record_of(self, home: Home, call: MessagedCall, properties: Any, tracker: str = "") -> bytes | None:
        """What is kept of a call with such a message, if anything. Raises PayloadError."""
        note = note_of(self, call.headers, call.embed, properties, home.settings.track_calls, tracker)
        return None if note is None else note.dump(home.record_codec)

    def entry_of(self, args: Any, kwargs: Any, **words: Any) -> Entry:
        """The call that such arguments make. Raises TypeError, as Celery does, and InvalidCall."""
        try:
            job_id, payload = self.__header__(*(args or ()), **(kwargs or {}))
        except TypeError:
            # Python's own words for what is no list or mapping name the insides of a task.
            check_arguments(args, kwargs)
            raise
        if self.key is not None:
            job_id = id_of(self.key, payload)
        return single(job_id, payload, tz=self._get_app().timezone, **words)

    def signature(self, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        """Id and payload by name: in a chain, the result of the task before becomes the payload."""
        named = as_keywords(args or (), kwargs or {}, self.key is not None, self.name)
        return super().signature((), named, *rest, **options)

    # -- many calls

    @overload
    def perform_async(
        self,
        jobs: Iterable[BulkEntry],
        results: Literal[False] = False,
        tracker: Tracker | str | None = None,
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

    # -- to the store

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
        """Run the function here, as a worker would: ``(id, payload)`` becomes ``{id: [payload]}``."""
        words = {name: options.pop(name, None) for name in WORDS}
        entry, home = self.entry_of(args, kwargs, **words), home_of(self._get_app())
        return self.apply_batch(eager.batch_of([entry], home, self.queue_spec), *positional, **options)

    def apply_batch(
        self, payloads_by_id: dict[str, list[Any]], *positional: Any, **options: Any
    ) -> EagerResult[R]:
        """Run the function here on a whole batch."""
        result: EagerResult[R] = super().apply((payloads_by_id,), {}, *positional, **options)
        return result
