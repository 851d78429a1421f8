"""The runs of an ordered task: its call by Celery's tracer, and the methods that a run may use."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, Generic

from celery._state import get_current_task
from celery.exceptions import Ignore, Retry

from celery_lowkiq.integration.calls.call_form import Arguments
from celery_lowkiq.integration.calls.validation import read_id, read_score
from celery_lowkiq.integration.records.call_record import store_state
from celery_lowkiq.integration.runs import eager
from celery_lowkiq.integration.runs.otel import link_calls
from celery_lowkiq.integration.runs.outcomes import Again
from celery_lowkiq.integration.runs.run import Run
from celery_lowkiq.integration.runs.tracing import report
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.middleware import compose
from celery_lowkiq.worker.forks import staying

from .base_classes import R
from .retry_mixin import RetryMixin
from .unsupported import check_caller


class RunMixin(RetryMixin[R], Generic[R]):
    """Methods of Celery's task that act on a whole batch here."""

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
                payloads = self.call_form.to_payloads(Arguments(args, kwargs), request.id)
                request.lowkiq = eager.info(self.queue_spec, payloads)
            try:
                result = self.run(*args, **kwargs)
            except Again as again:
                result = self._call_again(again)
        else:
            request.lowkiq = eager.info(self.queue_spec, *args)
            result = eager.eager_outcome(lambda: self.run(*args, **kwargs), *args)
        return result

    #: The ``__call__`` of a task whose class has none of its own, see ``runs/observers.py``.
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
        return run.capture(lambda: run.succeed(compose(middlewares, self, jobs, inner)))

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
        """Store a state, as Celery's method; in a run of several calls, of each whose result is stored."""
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
