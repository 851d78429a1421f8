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

from celery.app import trace
from celery.utils.saferepr import saferepr
from celery.worker import state

from celery_lowkiq.rules.middleware import compose
from celery_lowkiq.rules.models import Batch, Settlement
from celery_lowkiq.worker.forks import staying

from .base_exceptions import ENDS_WORKER, call_user_code
from .decisions import RunRules
from .decode import decode_plain
from .late_results import ResultBuffers
from .log_filter import plain_success
from .log_lines import log_success
from .observers import RunObservers
from .plain_call import plain_call
from .plain_request import PlainContext, PlainRequest, RepeatedRequest, needs_tracer
from .redis_results import encode
from .result_buffer import HeldResult
from .run import Run, was_requeued
from .stacks import RunStacks
from .tracing import report

#: Repeats a run through Celery's tracer, with the request that it is given, and returns the settlements.
Repeat = Callable[[Run, Callable[[], RepeatedRequest]], tuple[Settlement, ...]]


class PlainRuns:
    """The plain runs of a task."""

    def __init__(self, rules: RunRules, consumer: Any, repeat: Repeat, buffers: ResultBuffers) -> None:
        self._rules = rules
        self._task = rules.task
        self._consumer = consumer
        self._repeat = repeat
        self._buffers = buffers
        self._observers = RunObservers(rules.task, consumer)
        self._stacks = RunStacks(rules.task)

    def run(self, batch: Batch) -> tuple[Settlement, ...] | None:
        """The settlements of a batch; None, before anything has run, for one that needs Celery's tracer.

        There are none if its result is held back in a buffer, which has them.
        """
        rules, form = self._rules, self._task.call_form
        if was_requeued(batch) or self._observers.exist():
            return None
        call = plain_call(batch, rules)
        payloads_by_id = decode_plain(batch, rules.gate, form.check, call is not None)
        if payloads_by_id is None or form.eta_of(payloads_by_id, batch) > batch.claimed_at:
            return None
        task_id = form.task_id_of(payloads_by_id) if call is None else call.record.id
        if task_id is not None and task_id in state.revoked:
            return None
        request = PlainRequest(rules, self._consumer, batch, payloads_by_id, task_id, call)
        request.begins()
        try:
            context = PlainContext(request)
            settlements = self._call(request, context)
            if settlements is None:
                return self._repeat(request.run, partial(RepeatedRequest, request, context))
            return settlements
        finally:
            request.ends()

    def _call(self, request: PlainRequest, context: PlainContext) -> tuple[Settlement, ...] | None:
        """Call the function. Returns the settlements; None, and sets ``replay``, for Celery's tracer."""
        logs = self._observers.logs_success and trace.logger.isEnabledFor(logging.INFO)
        if logs:
            report(request.keep_shown)
        began_at = time.monotonic() if logs else 0.0
        was_empty = self._stacks.push(context)
        try:
            try:
                result = staying(os.getpid(), self._call_function, request)
            except ENDS_WORKER:
                raise
            except BaseException as raised:  # noqa: BLE001 - also one that fails the run though no Exception
                request.run.replay = partial(_raise, raised)
                return None
            settlements = None if needs_tracer(context) else self._succeed(request, context, result)
            if settlements is None:
                request.run.replay = lambda: result
            elif logs:
                log = partial(self._log_success, request, result, time.monotonic() - began_at)
                report(call_user_code, log)
            return settlements
        finally:
            self._stacks.pop(was_empty)

    def _succeed(
        self, request: PlainRequest, context: PlainContext, result: Any
    ) -> tuple[Settlement, ...] | None:
        """Store the result of the call, if it has one. Returns the settlements; None when that failed."""
        if request.call is None or not request.call.stores_result:
            return request.done()
        try:
            if self._hold_result(request, context, result):
                return ()
            self._task.backend.mark_as_done(request.id, request.result_of_call(result), context, True)
        except Exception:  # noqa: BLE001 - the tracer stores it again, and handles the error
            return None
        return request.done()

    def _hold_result(self, request: PlainRequest, context: PlainContext, result: Any) -> bool:
        """Hold the result back, to be written with others of the lane. Returns whether that is possible."""
        backend, buffer = self._task.backend, self._buffers.own
        if context.ignore_result or not buffer.accepts(backend):
            return False
        encoded = encode(backend, request.id, request.result_of_call(result), context, buffer.common)
        if encoded is None:
            return False

        def repeat() -> tuple[Settlement, ...]:
            request.run.replay = lambda: result
            return self._repeat(request.run, partial(RepeatedRequest, request, context))

        buffer.add(HeldResult(time.monotonic(), encoded, request.batch, request.done(), repeat))
        self._buffers.watch()
        return True

    def _call_function(self, request: PlainRequest) -> Any:
        args, kwargs = request.arguments
        middlewares = self._rules.settings.server_middlewares
        if not middlewares:
            return self._task.run(*args, **kwargs)
        # Inside the middlewares, which must not run in a process that the function forks.
        inner = partial(staying, os.getpid(), self._task.run, *args, **kwargs)
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
        log_success(*plain_success(about, request.batch))


def _raise(raised: BaseException) -> NoReturn:
    raise raised
