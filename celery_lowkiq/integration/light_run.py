"""Light runs: without Celery's tracer while nothing observes them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

from celery._state import _task_stack  # type: ignore[attr-defined]
from celery.app import trace
from celery.app.task import Context
from celery.utils.saferepr import saferepr
from celery.worker import state

from celery_lowkiq.integration.call_form import Arguments
from celery_lowkiq.integration.current import storage_of
from celery_lowkiq.integration.decisions import ENDS_WORKER, ById, RunRules, call_user_code
from celery_lowkiq.integration.decode import DecodedBatch, decode_plain, is_small, plain_batch
from celery_lowkiq.integration.held_results import HeldResult, ResultBuffers, encode
from celery_lowkiq.integration.records import PLACE, CallRecord
from celery_lowkiq.integration.request import (
    IGNORED_RESULT,
    NO_EMBED,
    QuietRequest,
    RunObservers,
    new_id,
    quiet_request,
    show_arguments,
    succeeded,
)
from celery_lowkiq.integration.run import Run, report, was_requeued
from celery_lowkiq.integration.run_logs import log_success, plain_success
from celery_lowkiq.rules.basics import compose
from celery_lowkiq.rules.errors import UndecodablePayload
from celery_lowkiq.rules.models import POISON_PILL_RETRY_COUNT, Batch, Disposition, Recorded, Settlement
from celery_lowkiq.worker.forks import staying

# Celery's stacks of running tasks, and of requests of a task, by thread or greenlet.


class _Storage(NamedTuple):
    """The running tasks and requests of Celery's stacks, by thread or greenlet."""

    identify: Callable[[], Any]
    tasks: dict[Any, Any]
    requests: dict[Any, Any]


class RunStacks:
    """Makes a task the running one of a lane, with its request."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self._stacks = (_task_stack, task.request_stack)
        self._storage = _storage(*self._stacks)

    def push(self, request: Any) -> bool:
        """Make the task run with this request. Return whether no task ran; ``pop`` takes the answer."""
        if self._storage is not None:
            identify, tasks, requests = self._storage
            thread = identify()
            # Both are empty in a lane. Writing to the storage takes a fifth of the time of two pushes.
            if thread not in tasks and thread not in requests:
                tasks[thread] = {"stack": [self._task]}
                requests[thread] = {"stack": [request]}
                return True
        for stack, item in zip(self._stacks, (self._task, request), strict=True):
            stack.push(item)
        return False

    def pop(self, was_empty: bool) -> None:
        """Restore what ``push`` found."""
        if was_empty and self._storage is not None:
            identify, tasks, requests = self._storage
            thread = identify()
            tasks.pop(thread, None)
            requests.pop(thread, None)
        else:
            for stack in self._stacks:
                stack.pop()


def _storage(tasks: Any, requests: Any) -> _Storage | None:
    of_tasks, of_requests = storage_of(tasks), storage_of(requests)
    if of_tasks is None or of_requests is None or tasks.__ident_func__ is not requests.__ident_func__:
        return None
    return _Storage(tasks.__ident_func__, of_tasks, of_requests)


# The recorded call of a plain run, which needs nothing but its result to be stored, or not even that.


class PlainCall(NamedTuple):
    """A call without links, chord, tracker, expiry and headers of the user's."""

    #: Key of its record.
    key: bytes
    record: CallRecord
    #: True if its result is stored.
    stores_result: bool


def only_call(batch: Batch, rules: RunRules) -> tuple[bytes, CallRecord] | None:
    """Key and record of the only call of a batch with one payload; None when there is none."""
    if len(batch.jobs) != 1:
        return None
    (job,) = batch.jobs
    found = job.calls
    if found is None or not found.complete or len(found.records) != 1 or len(job.payloads) != 1:
        return None
    if job.payloads[0].recorded is not Recorded.ALL or job.retry_count == POISON_PILL_RETRY_COUNT:
        return None
    try:
        return found.records[0].key, rules.read_record(found.records[0])
    except UndecodablePayload:
        return None


def plain_call(batch: Batch, rules: RunRules) -> PlainCall | None:
    """The only call of a batch with one payload; None when there is none, or it needs Celery's tracer."""
    found = only_call(batch, rules)
    if found is None:
        return None
    key, record = found
    if record.embed or record.tracker or not PLACE.issuperset(record.headers):
        return None
    stores_result = not record.headers.get("ignore_result", rules.task.ignore_result)
    # Celery's tracer also stores the state STARTED.
    if stores_result and rules.task.track_started:
        return None
    return PlainCall(key, record, stores_result)


# The request of a plain run, for the task function and for the worker: made when something asks for it.

T = TypeVar("T")


#: Attributes of the request of a run without a call that are the same for all such runs.
NO_CALL: dict[str, Any] = {**NO_EMBED, **IGNORED_RESULT, "group": None, "parent_id": None}
#: Headers that result backends read of each request.
READ_BY_BACKENDS = ("group", "parent_id", "ignore_result")
#: Attributes that are read when the function has returned; None unless the function has written them.
READ_AFTER_SUCCESS = ("callbacks", "chain", "chord", "shadow", "lowkiq_retry")
#: A member of an enum takes longer to find than a global, and each run needs it.
DONE = Disposition.DONE


class _Once(Generic[T]):
    """An attribute that is made when it is first read; all threads get the same value."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._name = make.__name__

    def __get__(self, owner: Any, kind: Any = None) -> T:
        value: T = owner.__dict__.setdefault(self._name, self._make(owner))
        return value


class PlainRequest:
    """A plain run as the worker sees it: ``inspect``, Flower, and the tracer if the function raises."""

    acknowledged = True

    def __init__(
        self,
        rules: RunRules,
        consumer: Any,
        batch: Batch,
        payloads_by_id: dict[str, list[Any]],
        task_id: str | None,
        call: PlainCall | None,
    ) -> None:
        """``task_id``: None when it is made when it is read."""
        self.batch = batch
        self.call = call
        # The function may change the lists that it gets.
        given = {job_id: payloads[:] for job_id, payloads in payloads_by_id.items()}
        self.arguments: Arguments = rules.task.call_form.of_run(given)
        self.rules = rules
        self._consumer = consumer
        self._payloads_by_id = payloads_by_id
        self._is_active = False
        if task_id is not None:
            self.__dict__["_id"] = task_id

    def begins(self) -> None:
        """Count the run as active."""
        name = self.rules.task.name
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

    @property
    def id(self) -> str:
        """Celery's id of the run, made when it is read: nothing can look for it before."""
        found: str | None = self.__dict__.get("_id")
        if found is None:
            found = self.__dict__.setdefault("_id", self.batch.run_id or new_id())
            self._register(found)
        return found

    def _register(self, task_id: str) -> None:
        if self._is_active:
            state.requests[task_id] = self
            # It may have ended meanwhile, in its lane's thread.
            if not self._is_active:
                state.requests.pop(task_id, None)

    def keep_shown(self) -> None:
        """Keep how the arguments are shown now, before the function may change them."""
        shown = show_arguments(self.rules.task, self.arguments, is_small(self.batch))
        self.__dict__["shown"] = shown

    @_Once
    def shown(self) -> tuple[str, str]:
        """The arguments in events and logs."""
        # Decoded anew: the function may have changed them.
        arguments = self.rules.task.call_form.of_run(self.run.decode_again())
        return show_arguments(self.rules.task, arguments, is_small(self.batch))

    @_Once
    def decoded(self) -> DecodedBatch:
        """The batch as the function and its callbacks see it."""
        return plain_batch(self.batch, self._payloads_by_id, self.rules.settings)

    def result_of_call(self, result: Any) -> Any:
        """Return the call's part of the function's result; all of it in a run without a call."""
        by_id = self.call is not None and isinstance(result, ById)
        return result.get(self.batch.jobs[0].id) if by_id else result

    def done(self) -> tuple[Settlement, ...]:
        """The settlements when it has succeeded."""
        if "_id" in self.__dict__:
            succeeded.append(self.__dict__["_id"])
        if self.call is None:
            return tuple([Settlement(job.id, job.claim, DONE) for job in self.batch.jobs])
        (job,) = self.batch.jobs
        return (Settlement(job.id, job.claim, DONE, ended=((self.call.key, self.call.key),)),)

    @_Once
    def constants(self) -> Mapping[str, Any]:
        """Attributes of the request that result backends read."""
        if self.call is None:
            return NO_CALL
        place = self.call.record.headers
        return {
            **NO_CALL,
            "ignore_result": bool(self.rules.task.ignore_result),
            **{name: place[name] for name in READ_BY_BACKENDS if name in place},
        }

    @_Once
    def run(self) -> Run:
        """The run, with the decision about its jobs."""
        return Run(self.decoded, self.rules, self.call.record if self.call else None)

    @_Once
    def quiet(self) -> QuietRequest:
        """The request that a run in the tracer has."""
        record = self.call.record if self.call else CallRecord(self.id, IGNORED_RESULT)
        quiet = quiet_request(self.run, record, self.shown, self.arguments, self._consumer)
        quiet.began_at = self.batch.began_at
        return quiet

    def __getattr__(self, name: str) -> Any:
        """An attribute of the full request."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.quiet, name)


class RepeatedRequest:
    """A plain run, for the tracer: its function has run, and the run is counted as active already."""

    def __init__(self, request: PlainRequest, context: PlainContext) -> None:
        self.id: str = request.id
        self.args: tuple[Any, ...] = request.arguments.args
        self.kwargs: Mapping[str, Any] = request.arguments.kwargs
        #: With what the function wrote into its request.
        self.request_dict: dict[str, Any] = {**vars(context), "_protected": 0}

        self._request = request

    def vanishes(self) -> None:
        """Its PlainRequest counts its end."""

    def on_success(self, outcome: tuple[Any, ...]) -> None:
        """Its PlainRequest counts its end; a Reject has a result."""
        self._request.quiet.on_success(outcome)


class PlainContext(Context):
    """``self.request`` of a plain run. It becomes Celery's own Context when most of it is read."""

    called_directly: Any = False
    _protected: Any = 1

    def __init__(self, request: PlainRequest) -> None:
        self._plain: PlainRequest = request
        self.args: Any = request.arguments.args
        self.kwargs: Any = request.arguments.kwargs

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        """Attributes of a Context made by the tracer: for ``vars()``, ``repr()``, copies and pickles."""
        PlainContext._complete(self)
        own: dict[str, Any] = _attributes(self)
        return own

    def __getattr__(self, name: str) -> Any:
        """An attribute that Celery's Context does not have until it is set."""
        # Another thread may have completed it meanwhile: then it is Celery's own.
        if name.startswith("__") or not (PlainContext._complete(self) or type(self) is Context):
            raise AttributeError(f"{Context.__name__!r} object has no attribute {name!r}")
        return getattr(self, name)

    def __delattr__(self, name: str) -> None:
        PlainContext._complete(self)
        object.__delattr__(self, name)

    def _complete(self) -> bool:
        """Add the attributes that the function has not set. Returns False if that was done before."""
        own = _attributes(self)
        request = own.get("_plain")
        if request is None:
            return False
        whole = Context(request.quiet.request_dict, args=self.args, called_directly=False, kwargs=self.kwargs)
        for name, value in vars(whole).items():
            own.setdefault(name, value)
        own.setdefault("_protected", 1)
        self.__class__ = Context  # type: ignore[assignment]
        own.pop("_plain", None)
        return True


#: Returns the attributes that a PlainContext has so far; ``vars()`` would complete it.
_attributes = Context.__dict__["__dict__"].__get__


def needs_tracer(context: Context) -> bool:
    """True if the function has written into its request what the tracer uses after a success."""
    own = _attributes(context)
    return any(own.get(name) for name in READ_AFTER_SUCCESS)


class _Completing:
    """An attribute of Celery's Context, which completes a PlainContext when it is read."""

    def __init__(self, name: str, default: Any) -> None:
        self._name = name
        self._default = default

    def __get__(self, context: Any, kind: Any = None) -> Any:
        if context is None:
            return self._default
        own = _attributes(context)
        request = own.get("_plain")
        if request is not None:
            if self._name == "id":
                return request.id
            if self._name in NO_CALL:
                return request.constants[self._name]
        PlainContext._complete(context)
        return own.get(self._name, self._default)


for _name, _value in vars(Context).items():
    if not (_name.startswith("_") or _name in vars(PlainContext) or hasattr(type(_value), "__get__")):
        setattr(PlainContext, _name, _Completing(_name, _value))


# Plain runs: without Celery's tracer, request and signals, when nothing would notice them.
#
# If the function raises, Celery's tracer gets the same exception, under the same id: what becomes of a
# failure does not depend on how its run began.

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
