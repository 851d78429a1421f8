"""Requests: a run as Celery's worker shows it."""

from __future__ import annotations

import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from celery import signals
from celery.app import trace
from celery.app.task import Context
from celery.backends import base as backends
from celery.exceptions import Reject
from celery.loaders import base as loaders
from celery.utils.collections import LimitedSet
from celery.utils.saferepr import saferepr
from celery.worker import state
from celery.worker.request import Request
from kombu.utils.encoding import safe_repr

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.call_form import ARGUMENTS_SHOWN, Arguments, PayloadsById
from celery_lowkiq.integration.decode import is_small
from celery_lowkiq.integration.loops import Cancelled
from celery_lowkiq.integration.messages import covers_positions, masked_arguments, payload_secrets
from celery_lowkiq.integration.records import NOT_KEPT, CallRecord
from celery_lowkiq.integration.run import Observed, Run
from celery_lowkiq.integration.safe_logging import safe_logger
from celery_lowkiq.rules.basics import cached_property, is_defined_in, monotonic, package_logger
from celery_lowkiq.rules.models import Batch
from celery_lowkiq.worker.forks import at_fork

# Ids of runs that have succeeded in this process, for ``celery.worker.state.successful_requests``.

#: Ids that nothing has looked for yet: to put one into Celery's set takes 50 times as long.
succeeded: deque[str] = deque(maxlen=state.SUCCESSFUL_MAX)


class Successes(LimitedSet):
    """Celery's set, which takes the ids of runs in lanes when something reads it."""

    def _take(self) -> None:
        while succeeded:
            self.add(succeeded.popleft())

    def __contains__(self, task_id: object) -> bool:
        self._take()
        return super().__contains__(task_id)

    def __iter__(self) -> Iterator[Any]:
        self._take()
        return super().__iter__()

    def __len__(self) -> int:
        self._take()
        return super().__len__()


# Modules of Celery have the object by its name.
state.successful_requests.__class__ = Successes


# Presents a run, or one call of it, as a request of the worker: to inspect, Flower and signals.

NO_EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
#: Seeded by the system. Ids need only differ.
_random = random.Random()  # noqa: S311 - an id, no secret
# Forks of one process must not make the same ids.
at_fork(_random.seed)
#: The bits of a UUID that give its version, 4 (RFC 9562).
_FIXED = 0x4 << 76 | 0x8 << 60
_NOT_FIXED = ~(0xF << 76 | 0xC << 60)
IGNORED_RESULT = {"ignore_result": True}


def _rejection(info: Any) -> Any:
    """The Reject of an ExceptionInfo; None for another error."""
    error = getattr(info.exception, "exc", info.exception)
    return error if isinstance(error, Reject) else None


class LaneRequest(Request):
    """The full form of a RunRequest: Celery's own, of a run that no pool can stop."""

    #: Celery's consumer: the sender of signals.
    consumer: Any
    #: There is no message to acknowledge. Celery cancels unacknowledged runs when it loses the broker.
    acknowledged = True

    def reject(self, requeue: bool = False) -> Any:
        """Send the event; the settlement of its job does the rest."""
        self.send_event("task-rejected", requeue=requeue)

    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:
        """Do nothing: a thread cannot be cancelled; after a cold shutdown the job is recovered."""

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """Cancel the bodies of an ``async def`` task; else warn that ``terminate=True`` has no effect."""
        run: Run | None = self.request_dict.get("lowkiq_run")
        if run is not None and run.rules.loops and run.rules.loops.cancel(run.batch, Cancelled.REVOKED):
            return
        package_logger.warning(
            "%s[%s] goes on: a lane is a thread, which nothing can end from outside (max_run= raises an "
            "alarm)",
            self.name,
            self.id,
        )

    def terminated(self, signum: int | None = None) -> None:
        """End as REVOKED: ``revoke(terminate=True)`` has ended its run, or its process by this signal."""
        self._announce_revoked("terminated", True, signum, False)  # type: ignore[attr-defined]

    def dropped(self, reason: str) -> None:
        """End as REVOKED: a policy has dropped the payload."""
        self._announce_revoked(reason, False, None, False)  # type: ignore[attr-defined]

    def begins(self) -> None:
        """Send signal and events, as Celery does for a broker message, and count the request as active."""
        if signals.task_received.receivers:
            signals.task_received.send(sender=self.consumer, request=self)
        self.send_event(
            "task-received",
            name=self.name,
            args=self.argsrepr,
            kwargs=self.kwargsrepr,
            root_id=self.root_id,
            parent_id=self.parent_id,
            retries=self.request_dict["retries"],
            eta=self.request_dict.get("eta"),
            expires=self.request_dict.get("expires"),
        )
        pid: Any = os.getpid()
        self.on_accepted(pid, time.monotonic())

    def send_event(self, type: str, **fields: Any) -> None:  # noqa: A002 - Celery's name
        """Send an event, without what the error of a failed run says of secrets."""
        if names := [name for name in ("exception", "traceback") if isinstance(fields.get(name), str)]:
            task: Any = self.task
            redactor = context_of(task.app).settings.redactor
            given = {"args": self.args, "kwargs": self.kwargs}
            secrets = payload_secrets(task.call_form, (given,), redactor)
            fields |= {name: redactor.text(fields[name], secrets) for name in names}
        super().send_event(type, **fields)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """End as FAILURE with a Reject that does not requeue, as Celery does from 5.7 on."""
        error = _rejection(exc_info)
        if error is None:
            return super().on_failure(exc_info, send_failed_event, return_ok)
        state.task_ready(self)
        if not error.requeue:
            self._fail(error, exc_info)
        return self.reject(error.requeue)

    def _fail(self, error: Exception, info: Any) -> None:
        task: Any = self.task
        context: Any = self._context  # type: ignore[attr-defined]
        task.backend.mark_as_failure(self.id, error, request=context, store_result=self.store_errors)
        signals.task_failure.send(
            task,
            task_id=self.id,
            exception=error,
            args=self.args,
            kwargs=self.kwargs,
            traceback=info.traceback,
            einfo=info,
        )
        self.send_event("task-failed", exception=safe_repr(error), traceback=info.traceback)

    def ends(self) -> None:
        """End without an event."""
        state.task_ready(self)


class RunRequest:
    """A run as the worker sees it, in a light form. It makes the full form when something needs that."""

    acknowledged = True
    batch: Batch | None = None
    _is_active = False

    def __init__(self, run: Run, consumer: Any) -> None:
        """``run``: under the id of its single call, or with an id of its own."""
        task, payloads_by_id = run.task, run.decoded.payloads_by_id
        self.run: Run = run
        self.task: Any = task
        self.batch = run.batch
        self.arguments: Arguments = task.call_form.of_run(payloads_by_id)
        self._consumer = consumer
        found = run.call.id if run.call else task.call_form.task_id_of(payloads_by_id) or run.batch.run_id
        self.__dict__["_id"] = found or new_id()

    @property
    def id(self) -> str:
        """Celery's id of the run; of a plain run made when it is read: nothing can look for it before."""
        found: str | None = self.__dict__.get("_id")
        if found is None:
            found = self.__dict__.setdefault("_id", new_id())
            self._register(found)
        return found

    def _register(self, task_id: str) -> None:
        if self._is_active:
            state.requests[task_id] = self
            # It may have ended meanwhile, in its lane's thread.
            if not self._is_active:
                state.requests.pop(task_id, None)

    @property
    def name(self) -> str:
        name: str = self.task.name
        return name

    @property
    def args(self) -> tuple[Any, ...]:
        return self.arguments.args

    @property
    def kwargs(self) -> Mapping[str, Any]:
        return self.arguments.kwargs

    @cached_property
    def shown(self) -> tuple[str, str]:
        """The arguments in events and logs."""
        return show_arguments(self.task, self.arguments, self.batch is not None and is_small(self.batch))

    @cached_property
    def headers(self) -> dict[str, Any]:
        """The headers of the message that Celery would have sent."""
        run = self.run
        own = {"lowkiq": run.decoded.info, "lowkiq_run": run, "eta": _eta(run)}
        record = run.call or CallRecord(self.id, IGNORED_RESULT)
        return _headers(record, self.task, self.shown, run.decoded.retries, own)

    def fields(self) -> dict[str, Any]:
        """The fields of ``self.request``, as Celery's own request has them."""
        headers = self.headers
        return {
            **headers,
            "properties": _properties(headers),
            "reply_to": headers.get("reply_to"),
            "correlation_id": self.id,
            "hostname": self._consumer.hostname,
            "delivery_info": _delivery_info(self.task, headers),
            "args": self.args,
            "kwargs": self.kwargs,
        }

    @property
    def request_dict(self) -> dict[str, Any]:
        """The argument of Celery's tracer."""
        return self.fields()

    def begins(self) -> None:
        """Count the run as active, as Celery's ``task_accepted`` does; this takes half the time."""
        name = self.task.name
        state.active_requests.add(self)
        state.total_count[name] += 1
        state.all_total_count[0] += 1
        self._is_active = True
        if "_id" in self.__dict__:
            state.requests[self.id] = self

    def ends(self) -> None:
        """Count the run as ended."""
        self._is_active = False
        state.active_requests.discard(self)
        if "_id" in self.__dict__:
            state.requests.pop(self.__dict__["_id"], None)

    def on_success(self, outcome: tuple[Any, ...]) -> None:
        """Count the run as ended."""
        self.ends()
        if not outcome[0]:
            succeeded.append(self.id)
        elif _rejection(outcome[1]) is not None:
            # The tracer stores no result.
            self.full().on_failure(outcome[1])

    def form(self, observed: Observed | None) -> LaneRequest | RunRequest:
        """The form for Celery's tracer."""
        return self.full() if observed is Observed.REQUEST else self

    def full(self) -> LaneRequest:
        """Return the full form."""
        headers, consumer = self.headers, self._consumer
        no_message = SimpleNamespace(
            content_type=None,
            content_encoding=None,
            body=None,
            payload=None,
            headers=headers,
            properties=_properties(headers),
            delivery_info=_delivery_info(self.task, headers),
        )
        embed = {name: headers[name] for name in NO_EMBED}
        body: tuple[Any, ...] = (*self.arguments, embed)
        full = LaneRequest(
            no_message,
            app=consumer.app,
            hostname=consumer.hostname,
            eventer=consumer.event_dispatcher,
            task=self.task,
            body=body,
            decoded=True,
            headers=headers,
        )
        full.consumer = consumer
        return full

    def __getattr__(self, name: str) -> Any:
        """An attribute of the full form."""
        if name.startswith("__"):
            raise AttributeError(name)
        full, ran = self.full(), monotonic() - self.batch.began_at if self.batch else 0.0
        pid: Any = os.getpid()
        full.time_start, full.worker_pid = time.time() - ran, pid
        return getattr(full, name)


class CallRequest(RunRequest):
    """One call of a merged job, as the worker sees it."""

    def __init__(
        self,
        record: CallRecord,
        task: Any,
        consumer: Any,
        payloads: PayloadsById,
        retries: int,
        play: Callable[[], Any] | None = None,
    ) -> None:
        """``play`` replaces the task function: it returns or raises the outcome of the call."""
        self.task: Any = task
        self.arguments: Arguments = task.call_form.of_run(payloads)
        self._consumer = consumer
        self.headers = _headers(record, task, self.shown, retries, {"lowkiq_play": play})
        self.__dict__["_id"] = record.id


def show_arguments(task: Any, arguments: Arguments, small: bool = False) -> tuple[str, str]:
    """Return positional and keyword arguments as text for events and logs, cut short, with secrets masked.

    ``small``: the payloads are small (``decode.is_small``).
    """
    form, redactor = task.call_form, context_of(task.app).settings.redactor
    kwargs = redactor.text(saferepr(arguments.kwargs, ARGUMENTS_SHOWN)) if arguments.kwargs else "{}"
    if covers_positions(form.parameters, redactor):
        arguments = Arguments(tuple(masked_arguments(form, arguments.args, redactor)), {})
    return redactor.text(form.shown(arguments, small)), kwargs


def new_id() -> str:
    """A random UUID of version 4 as text, without a system call."""
    digits = f"{_random.getrandbits(128) & _NOT_FIXED | _FIXED:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _headers(
    record: CallRecord, task: Any, shown: tuple[str, str], retries: int, own: dict[str, Any]
) -> dict[str, Any]:
    return {
        "lang": "py",
        "task": task.name,
        "id": record.id,
        "root_id": record.id,
        "parent_id": None,
        "retries": retries,
        "argsrepr": shown[0],
        "kwargsrepr": shown[1],
        "origin": "lowkiq",
        "ignore_result": bool(task.ignore_result),
        "timelimit": (task.time_limit, task.soft_time_limit),
        "is_eager": False,
        **NO_EMBED,
        **record.headers,
        **_links(record.embed),
        "headers": _users(record.headers),
        "eta": None,
        **own,
    }


def _links(embed: Mapping[str, Any]) -> Mapping[str, Any]:
    """Links of a call. Its chain is a copy, because the tracer of an older Celery pops its steps."""
    return {**embed, "chain": list(embed["chain"])} if embed.get("chain") else embed


def _users(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The user's own headers of a call, for ``request.headers``. Tools such as Sentry send them as one."""
    given = headers.get("headers")
    own = (name for name in headers if not (hasattr(Context, name) or name in NOT_KEPT))
    return dict(given or {name: headers[name] for name in own})


def _eta(run: Run) -> str | None:
    """The time for which the run was asked: of the last retry, or else of a call with ``by=``."""
    batch, form = run.batch, run.task.call_form
    if batch.jobs[0].retry_count >= 0:
        eta = batch.jobs[0].perform_in
    else:
        eta = form.eta_of(run.decoded.payloads_by_id, batch)
    return datetime.fromtimestamp(eta, run.task.app.timezone).isoformat() if eta else None


def _properties(headers: Mapping[str, Any]) -> dict[str, Any]:
    run: Run | None = headers.get("lowkiq_run")
    return {
        "correlation_id": headers["id"],
        "reply_to": headers.get("reply_to"),
        "priority": None if run is None else min(job.priority for job in run.batch.jobs),
        **(headers.get("properties") or {}),
    }


def _delivery_info(task: Any, headers: Mapping[str, Any]) -> dict[str, Any]:
    run: Run | None = headers.get("lowkiq_run")
    return {
        "exchange": "",
        "routing_key": task.queue_spec.name,
        "priority": _properties(headers)["priority"],
        "redelivered": run is not None and run.redelivered,
    }


# Decides whether anything could notice that a run does not go through Celery's tracer: asked once a run.

#: Hooks of a task class that the tracer calls for a run that succeeds.
HOOKS = ("before_start", "on_success", "after_return")


class RunObservers:
    """Observers of each run of a task: signals, events, hooks, and tools that replace parts of Celery.

    Sentry and New Relic wrap the tracer or the task in it; Datadog, OpenTelemetry and Django connect signals;
    Flower and exporters of metrics receive events.
    """

    def __init__(self, task: Any, consumer: Any) -> None:
        self._task = task
        self._consumer = consumer
        #: The tracer that was examined.
        self._tracer: Any = None
        self._is_observed = True
        #: True if the tracer logs how each run ends.
        self.logs_success: bool = False

    def look(self) -> Observed | None:
        """Return which part of a run that begins now is observed; None for nothing."""
        tracer = self._task.__trace__
        if tracer is not self._tracer:
            self._examine(tracer)
        if signals.task_received.receivers or self._sends_events():
            return Observed.REQUEST
        if (
            self._is_observed
            or signals.task_prerun.receivers
            or signals.task_postrun.receivers
            or signals.task_success.receivers
        ):
            return Observed.RUN
        return None

    def _sends_events(self) -> bool:
        events = self._consumer.event_dispatcher
        if events is None or not events.enabled or not self._task.send_events:
            return False
        # Without -E a worker sends only events about itself.
        return not events.groups or "task" in events.groups

    def _examine(self, tracer: Any) -> None:
        """Look at what changes only with the tracer, which Celery builds at each connect to the broker."""
        self._is_observed = True
        try:
            cells = _variables(tracer)
            # Another function than Celery's, or another task than this one in it, is a tool's.
            if cells.get("fun") is self._task:
                self.logs_success = cells["_does_info"]
                self._is_observed = self._has_hooks()
        except Exception:
            safe_logger.exception(
                "runs of %s go through Celery's tracer: its hooks cannot be read", self._task.name
            )
        self._tracer = tracer

    def _has_hooks(self) -> bool:
        task, app = self._task, self._consumer.app
        backend, loader = task.backend, app.loader
        acks_late = task.acks_late or app.conf.task_acks_late
        return bool(
            type(task).__call__ is not getattr(type(task), "run_in_lane", None)
            or any(trace.task_has_custom(task, hook) for hook in HOOKS)
            or (acks_late and app.conf.worker_deduplicate_successful_tasks)
            or not is_defined_in(backend.mark_as_done, backends)
            or not is_defined_in(backend.process_cleanup, backends)
            or not is_defined_in(loader.on_task_init, loaders)
            or not is_defined_in(loader.on_process_cleanup, loaders)
        )


def _variables(tracer: Any) -> dict[str, Any]:
    """The variables of Celery's ``build_tracer`` in its tracer; none for any other function."""
    if not is_defined_in(tracer, trace):
        return {}
    cells = zip(tracer.__code__.co_freevars, tracer.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells}
