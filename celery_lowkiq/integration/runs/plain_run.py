"""Plain runs: without Celery's tracer, request and signals, when nothing would notice them.

If the function raises, Celery's tracer gets the same exception, under the same id: what becomes of a failure
does not depend on how its run began.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from celery._state import _task_stack  # type: ignore[attr-defined]
from celery.app import trace
from celery.utils.saferepr import saferepr
from celery.utils.threads import _LocalStack

from celery_lowkiq.rules.middleware import compose
from celery_lowkiq.rules.models import Batch, Disposition, Settlement
from celery_lowkiq.worker.forks import staying

from .base_exceptions import ENDS_WORKER, call_user_code
from .decisions import RunRules
from .decode import decode_plain
from .log_filter import whole_success
from .observers import RunObservers
from .plain_call import plain_call
from .plain_request import PlainContext, PlainRequest, RepeatedRequest
from .run import Run
from .tracing import report

#: Repeats a run through Celery's tracer, with the request that it is given, and returns the verdicts.
Repeat = Callable[[Run, Callable[[], RepeatedRequest]], tuple[Settlement, ...]]


class PlainRuns:
    """The plain runs of a task."""

    def __init__(self, rules: RunRules, consumer: Any, repeat: Repeat) -> None:
        self._rules = rules
        self._task = rules.task
        self._consumer = consumer
        self._repeat = repeat
        self._observers = RunObservers(rules.task, consumer)
        self._stacks = RunStacks(rules.task)

    def run(self, batch: Batch) -> tuple[Settlement, ...] | None:
        """The verdicts on a batch; None, before anything has run, for one that needs Celery's tracer."""
        if self._observers.exist():
            return None
        rules, form = self._rules, self._task.call_form
        call = plain_call(batch, rules)
        payloads_by_id = decode_plain(batch, rules.codec, form.check, call is not None)
        if payloads_by_id is None or form.eta_of(payloads_by_id) > batch.claimed_at:
            return None
        request = PlainRequest(rules, self._consumer, batch, payloads_by_id, call)
        request.begins()
        try:
            replay = self._call(request)
            if replay is not None:
                return self._repeat(request.run, replay)
        finally:
            request.ends()
        ended = () if call is None else ((call.key, call.key),)
        return tuple([Settlement(job.id, job.claim, Disposition.DONE, ended=ended) for job in batch.jobs])

    def _call(self, request: PlainRequest) -> Callable[[], RepeatedRequest] | None:
        """Call the function. Returns what the tracer needs, if the run did not succeed as a whole."""
        context = PlainContext(request)
        logs = self._observers.logs_success and trace.logger.isEnabledFor(logging.INFO)
        if logs:
            report(request.show_arguments)
        began_at = time.monotonic() if logs else 0.0
        was_empty = self._stacks.push(context)
        try:
            try:
                result = staying(os.getpid(), partial(self._call_function, request))
            except ENDS_WORKER:
                raise
            except BaseException as raised:  # noqa: BLE001 - also one that fails the run though no Exception
                request.run.replay = partial(_raise, raised)
                return partial(RepeatedRequest, request, context)
            if not self._store_result(request, context, result):
                request.run.replay = lambda: result
                return partial(RepeatedRequest, request, context)
            if logs:
                log = partial(self._log_success, request, result, time.monotonic() - began_at)
                report(call_user_code, log)
        finally:
            self._stacks.pop(was_empty)
        return None

    def _store_result(self, request: PlainRequest, context: PlainContext, result: Any) -> bool:
        """Store the result of the call, if it has one. Returns False when that failed."""
        if request.call is None or not request.call.stores_result:
            return True
        try:
            self._task.backend.mark_as_done(request.id, request.result_of_call(result), context, True)
        except Exception:  # noqa: BLE001 - the tracer meets it again, and decides
            return False
        return True

    def _call_function(self, request: PlainRequest) -> Any:
        args, kwargs = request.arguments
        middlewares = self._rules.settings.server_middlewares
        if not middlewares:
            return self._task.run(*args, **kwargs)
        # Inside the middlewares, which must not run in a process that the function forks.
        inner = partial(staying, os.getpid(), partial(self._task.run, *args, **kwargs))
        return compose(middlewares, self._task, request.decoded.jobs, inner)

    def _log_success(self, request: PlainRequest, result: Any, runtime: float) -> None:
        """Log as Celery's tracer does."""
        args, kwargs = request.shown
        result = request.result_of_call(result)
        about = {
            "id": request.id,
            "name": self._task.name,
            # Most functions return nothing.
            "return_value": "None" if result is None else saferepr(result, self._task.resultrepr_maxsize),
            "runtime": runtime,
            "args": args,
            "kwargs": kwargs,
        }
        trace.info(*whole_success(about, request.batch))


def _raise(raised: BaseException) -> NoReturn:
    raise raised


class RunStacks:
    """Celery's stacks of running tasks, and of requests of a task."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self._stacks = (_task_stack, task.request_stack)
        self._identify: Callable[[], Any] = _task_stack.__ident_func__
        #: What the stacks hold of each thread or greenlet; None for other stacks than those of Celery 5.
        self._storages: tuple[dict[Any, Any], dict[Any, Any]] | None = None
        if all(type(stack) is _LocalStack for stack in self._stacks):
            tasks, requests = self._stacks
            if requests.__ident_func__ is self._identify:
                self._storages = tasks._local.__storage__, requests._local.__storage__

    def push(self, request: Any) -> bool:
        """The task runs with this request. Returns what ``pop`` is called with."""
        if self._storages is not None:
            tasks, requests = self._storages
            thread = self._identify()
            # In a lane they are empty: to write the storage takes a fifth of the time of a push.
            if thread not in tasks and thread not in requests:
                tasks[thread] = {"stack": [self._task]}
                requests[thread] = {"stack": [request]}
                return True
        for stack, item in zip(self._stacks, (self._task, request), strict=True):
            stack.push(item)
        return False

    def pop(self, was_empty: bool) -> None:
        """The task has run."""
        if was_empty and self._storages is not None:
            thread = self._identify()
            for storage in self._storages:
                storage.pop(thread, None)
        else:
            for stack in self._stacks:
                stack.pop()
