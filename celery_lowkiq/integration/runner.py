"""Runs batches as Celery runs tasks: through the task's tracer, with signals, events and worker state."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from celery.exceptions import Reject
from celery.states import FAILURE, IGNORED, REJECTED, RETRY

from celery_lowkiq.rules.models import Batch, Verdict
from celery_lowkiq.rules.retry import RetryPolicy

from .codec import Codec
from .request import LaneRequest, lane_request
from .run import Run, guarded
from .settings import Settings

logger = logging.getLogger("celery_lowkiq")


class CeleryRunner:
    """``worker.ports.Runner`` for the ordered tasks of an app, by the names of their queues."""

    def __init__(self, tasks: Mapping[str, Any], consumer: Any, codec: Codec, settings: Settings) -> None:
        self._tasks = tasks
        self._consumer = consumer
        self._codec = codec
        self._settings = settings
        self._last = threading.local()
        self._policies = {
            name: RetryPolicy(task.max_retries, guarded(task.retry_in)) for name, task in tasks.items()
        }

    def run(self, batch: Batch) -> tuple[Verdict, ...]:
        """Verdicts of a batch; an error of ours counts as a failed run."""
        run = Run(batch, self._policies[batch.queue.name], self._codec, self._settings)
        self._last.run = run
        if run.jobs:
            try:
                self._execute(self._tasks[batch.queue.name], run)
            except Exception as error:
                logger.exception("a run of %s failed outside its function", batch.queue.name)
                self.last_words(error)
                if not run.decided:
                    run.fails(error)
        return run.verdicts

    def settled(self, batch: Batch, accepted: frozenset[str]) -> None:
        """Tell the task which of its jobs died for good."""
        run: Run = self._last.run
        dead = run.exhausted(accepted)
        callback = self._tasks[batch.queue.name].on_retries_exhausted
        if dead and callback is not None:
            try:
                callback(dead)
            except Exception as error:
                logger.exception("on_retries_exhausted of %s failed", batch.queue.name)
                self.last_words(error)

    def last_words(self, error: BaseException) -> None:
        """Call ``lowkiq_last_words``."""
        try:
            self._settings.last_words(error)
        except Exception:
            logger.exception("lowkiq_last_words failed")

    def _execute(self, task: Any, run: Run) -> None:
        request = lane_request(run, task, self._consumer)
        self._report(lambda: request.received(self._consumer))
        self._report(request.begins)
        try:
            result, info, runtime, text = task.__trace__(
                request.id, request.args, request.kwargs, request.request_dict
            )
        except Reject as error:
            # Celery's tracer lets a Reject out that on_success raised.
            self._report(request.vanishes)
            run.rejected(error, getattr(error, "requeue", False))
            return
        except BaseException:
            self._report(request.vanishes)
            raise
        if info is not None:
            self._decide(run, info)
        outcome = (0, text, runtime) if info is None else (1, result, runtime)
        self._report(lambda: self._finish(request, info, outcome))

    def _decide(self, run: Run, info: Any) -> None:
        """What the task's own ``__call__`` has not decided: Reject, and failures around the function."""
        if info.state == REJECTED:
            run.rejected(info.retval, info.retval.requeue)
        elif info.state in (FAILURE, RETRY) and not run.decided:
            run.fails(info.retval)

    def _finish(self, request: LaneRequest, info: Any, outcome: tuple[Any, ...]) -> None:
        """Celery logs, counts and sends the event of the outcome."""
        if info is not None and info.state == IGNORED:
            request.vanishes()
        else:
            request.on_success(outcome)

    def _report(self, tell: Callable[[], Any]) -> None:
        """Reporting must not change what becomes of a job."""
        try:
            tell()
        except Exception:
            logger.exception("a run could not be reported")
