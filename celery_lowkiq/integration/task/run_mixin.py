"""Runs of an ordered task: begun by a lane, and what its function may say while one goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, Generic

from celery._state import get_current_task
from celery.exceptions import Ignore, Retry

from celery_lowkiq.integration.calls.validation import read_delay, read_time
from celery_lowkiq.integration.records.call_record import store_state
from celery_lowkiq.integration.runs import eager
from celery_lowkiq.integration.runs.aborts import may_fail
from celery_lowkiq.integration.runs.otel import link_calls
from celery_lowkiq.integration.runs.run import Run
from celery_lowkiq.integration.runs.tracing import report
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.middleware import compose
from celery_lowkiq.rules.validators import invalid, is_whole
from celery_lowkiq.worker.forks import staying

from .base_classes import CeleryTask, R
from .unsupported import check_caller, check_retry


class RunsBatches(CeleryTask, Generic[R]):  # type: ignore[misc, valid-type]
    """What Celery's tracer calls, and the methods of Celery's that mean a whole batch here."""

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """Called by Celery's tracer for a batch, or directly by anyone."""
        result: R
        request = self.request_stack.top
        if request is None or request.called_directly or request._protected:
            check_caller(self.name, get_current_task())
            result = super().__call__(*args, **kwargs)
            return result
        request._protected = 1
        ending, run = getattr(request, "lowkiq_ending", None), getattr(request, "lowkiq_run", None)
        if ending is not None:
            result = ending()
        elif run is not None:
            result = self._run(run, partial(self.run, *args, **kwargs))
        else:
            request.lowkiq = eager.info(self.queue_spec, *args)
            result = eager.seen(lambda: self.run(*args, **kwargs), *args)
        return result

    def _run(self, run: Run, function: Callable[[], Any]) -> Any:
        if run.callers is not None:
            report(link_calls, run.callers)
        # Within the middlewares: in a process that the function forks, they have nothing to do.
        inner = partial(staying, run.pid, function)
        return run.watched(lambda: run.succeeds(compose(run.middlewares, self, run.jobs, inner)))

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
        """Run the batch again: it counts as a failure, and the lane puts every payload back.

        Without ``countdown`` (s) or ``eta`` the pause is the task's ``retry_in``; ``max_retries`` replaces
        the task's for this failure, and ``exc`` is by default what is being handled. Raises Retry; outside
        of a run, ``exc``. Raises InvalidCall for ``throw=False``: a run cannot succeed and be repeated; for a
        ``max_retries`` that is no whole number; and for whatever would change the call.
        """
        if not throw:
            raise InvalidCall("retry(throw=False) is not supported: write raise self.retry(...)")
        check_retry({"args": args, "kwargs": kwargs, **options})
        if max_retries is not None and not is_whole(max_retries, 0):
            raise InvalidCall(invalid("max_retries", max_retries, "a whole number from 0, or None"))
        handled = sys.exc_info()[1]
        exc = exc or (handled if handled is not None and may_fail(type(handled)) else None)
        if self.request.called_directly:
            raise exc or Retry("Task can be retried", None)
        message = None if exc else "asked for by self.retry()"
        cause: Any = exc
        retry: Any = Retry(message, exc=cause, when=self._pause(eta, countdown))
        if max_retries is not None:
            retry.max_retries = max_retries
        raise retry

    def replace(self, sig: Any) -> Any:
        """Run a signature in place of this task, which takes over id, links, chain and chord.

        In a run of several calls it does so for each of them that has a record.
        """
        run = getattr(self.request, "lowkiq_run", None)
        if run is None or not run.has_callers:
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
