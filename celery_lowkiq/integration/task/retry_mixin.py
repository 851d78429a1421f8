"""``self.retry``: what a run asks for beside another run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Generic, NoReturn

from celery.exceptions import Reject, Retry
from celery.utils.serialization import raise_with_context

from celery_lowkiq.integration.calls.validation import read_delay, read_time
from celery_lowkiq.integration.runs.base_exceptions import may_fail
from celery_lowkiq.integration.runs.call_changes import CallChanges, changed_call
from celery_lowkiq.integration.runs.outcomes import Again
from celery_lowkiq.integration.runs.retry_policy import policy_of
from celery_lowkiq.integration.runs.run import Run
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.priorities import LEAST_URGENT, MOST_URGENT
from celery_lowkiq.rules.validators import invalid, is_whole

from .base_classes import CeleryTask, R
from .call_options import IGNORED_AT_A_CALL, REFUSED_AT_A_CALL, warn_once

_ROUTED = "retry({name}=) is ignored, because the job goes back to its own queue"
_NO_CALL = (
    "retry({name}=) is ignored, because it takes a run of a single call whose arguments or record are stored"
)


class RetryMixin(CeleryTask, Generic[R]):  # type: ignore[misc, valid-type]
    """Retries of runs in a lane, and of Celery's own runs of a task with ``by=``."""

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
        """Whether no job of the run would run again."""
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
            # As Celery when it cannot publish the call again.
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
        """Whether the current run is one of Celery's own: eager, or of a call that came by the broker."""
        in_lane = getattr(self.request, "lowkiq_run", None) is not None
        return self.by is not None and not (in_lane or self.request.called_directly)

    def signature_from_request(self, *args: Any, **options: Any) -> Any:
        """As Celery's. The retry of a plain run goes to the store when the task is an ordered one by then."""
        signature = super().signature_from_request(*args, **options)
        if self.by is not None and not self.is_plain:
            for name in (*IGNORED_AT_A_CALL, *REFUSED_AT_A_CALL):
                signature.options.pop(name, None)
        return signature

    def _delay(self, eta: Any, countdown: Any) -> Any:
        if countdown is not None:
            return read_delay(countdown)
        if eta is None:
            return None
        app = self._get_app()
        now: datetime = app.now()
        return max(0.0, read_time("eta", eta, app.timezone) - now.timestamp())
