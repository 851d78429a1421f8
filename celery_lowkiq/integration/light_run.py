"""Light runs: without Celery's tracer while nothing observes them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, NoReturn

from celery.app import trace
from celery.app.task import Context
from celery.utils.saferepr import saferepr
from celery.worker import state

from celery_lowkiq.integration.call_form import Arguments
from celery_lowkiq.integration.current import StackTop, running_task
from celery_lowkiq.integration.decisions import ENDS_WORKER, ById, RunRules, call_user_code
from celery_lowkiq.integration.decode import DecodedBatch, decode_plain, is_small, plain_batch
from celery_lowkiq.integration.records import PLACE, CallRecord
from celery_lowkiq.integration.request import (
    IGNORED_RESULT,
    NO_EMBED,
    RunObservers,
    RunRequest,
    show_arguments,
    succeeded,
)
from celery_lowkiq.integration.result_writes import HeldResult, ResultBuffers, encode
from celery_lowkiq.integration.run import Observed, Run, report, requeued, was_requeued
from celery_lowkiq.integration.run_logs import log_success, plain_success
from celery_lowkiq.rules.basics import cached_property, compose
from celery_lowkiq.rules.errors import UndecodablePayload
from celery_lowkiq.rules.models import POISON_PILL_RETRY_COUNT, Batch, Disposition, Recorded, Settlement
from celery_lowkiq.worker.forks import staying

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

#: Attributes of the request of a run without a call that are the same for all such runs.
NO_CALL: dict[str, Any] = {**NO_EMBED, **IGNORED_RESULT, "group": None, "parent_id": None}
#: Headers that result backends read of each request.
READ_BY_BACKENDS = ("group", "parent_id", "ignore_result")
#: Attributes that are read when the function has returned; None unless the function has written them.
READ_AFTER_SUCCESS = frozenset({"callbacks", "chain", "chord", "shadow", "lowkiq_retry"})
#: A member of an enum takes longer to find than a global, and each run needs it.
DONE = Disposition.DONE


class PlainRequest(RunRequest):
    """A plain run as the worker sees it: ``inspect``, Flower, and the tracer if the function raises."""

    #: The request that the function had, of a run that Celery's tracer replays.
    context: Context | None = None
    batch: Batch

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
        self.task: Any = rules.task
        self.rules = rules
        self._consumer = consumer
        self._payloads_by_id = payloads_by_id
        if task_id is not None:
            self.__dict__["_id"] = task_id

    def keep_shown(self) -> None:
        """Keep how the arguments are shown now, before the function may change them."""
        shown = show_arguments(self.task, self.arguments, is_small(self.batch))
        self.__dict__["shown"] = shown

    @cached_property
    def shown(self) -> tuple[str, str]:
        """The arguments in events and logs."""
        # Decoded anew: the function may have changed them.
        arguments = self.task.call_form.of_run(self.run.decode_again())
        return show_arguments(self.task, arguments, is_small(self.batch))

    @cached_property
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

    @cached_property
    def constants(self) -> Mapping[str, Any]:
        """Attributes of the request that result backends read."""
        if self.call is None:
            return NO_CALL
        place = self.call.record.headers
        return {
            **NO_CALL,
            "ignore_result": bool(self.task.ignore_result),
            **{name: place[name] for name in READ_BY_BACKENDS if name in place},
        }

    @cached_property
    def run(self) -> Run:  # type: ignore[override]
        """The run, with the decision about its jobs."""
        return Run(self.decoded, self.rules, self.call.record if self.call else None)

    def replays(self, outcome: Callable[[], Any], context: Context) -> None:
        """Have Celery's tracer replay the run. ``outcome`` returns or raises what the function did."""
        self.run.replay, self.context = outcome, context

    @property
    def request_dict(self) -> dict[str, Any]:
        """The argument of Celery's tracer; with what the function has written into its request."""
        return self.fields() if self.context is None else {**vars(self.context), "_protected": 0}


#: Returns the attributes that a PlainContext has so far; ``vars()`` would complete it.
_attributes = Context.__dict__["__dict__"].__get__
#: Names in Celery's Context that are no attributes of a request: methods, properties, private names.
_NO_FIELDS = {name for name, value in vars(Context).items() if name[0] == "_" or hasattr(value, "__get__")}


class PlainContext(Context):
    """``self.request`` of a plain run. It becomes Celery's own Context when most of it is read."""

    def __init__(self, request: PlainRequest) -> None:
        self._plain: PlainRequest = request
        self.args: Any = request.arguments.args
        self.kwargs: Any = request.arguments.kwargs
        self.called_directly: Any = False
        self._protected: Any = 1

    def __getattribute__(self, name: str) -> Any:
        """An attribute; one that is not set yet is made, with all others, as Celery's tracer does."""
        own = _attributes(self)
        if name in own:
            return own[name]
        request = own.get("_plain")
        if request is not None and (name == "__dict__" or not (name[:2] == "__" or name in _NO_FIELDS)):
            if name == "id":
                return request.id
            if name in NO_CALL:
                return request.constants[name]
            _complete(self, own, request)
        # Another thread may have completed it meanwhile: then it is Celery's own.
        return object.__getattribute__(self, name)

    def __delattr__(self, name: str) -> None:
        vars(self)
        object.__delattr__(self, name)


def _complete(context: Context, own: dict[str, Any], request: PlainRequest) -> None:
    """Add the attributes that the function has not set."""
    whole = Context(request.fields(), args=own["args"], called_directly=False, kwargs=own["kwargs"])
    for name, value in vars(whole).items():
        own.setdefault(name, value)
    context.__class__ = Context
    own.pop("_plain", None)


def needs_tracer(context: Context) -> bool:
    """True if the function has written into its request what the tracer uses after a success."""
    own = _attributes(context)
    return any(map(own.get, READ_AFTER_SUCCESS & own.keys()))


# Plain runs: without Celery's tracer, request and signals, when nothing would notice them.
#
# If the function raises, Celery's tracer gets the same exception, under the same id: what becomes of a
# failure does not depend on how its run began.

#: Repeats a run through Celery's tracer, and returns the settlements.
Repeat = Callable[[PlainRequest], tuple[Settlement, ...]]


class PlainRuns:
    """The plain runs of a task."""

    def __init__(
        self,
        rules: RunRules,
        consumer: Any,
        observers: RunObservers,
        repeat: Repeat,
        buffers: ResultBuffers,
    ) -> None:
        self._rules = rules
        self._task = rules.task
        self._consumer = consumer
        self._repeat = repeat
        self._buffers = buffers
        self._observers = observers
        self._requests = StackTop(rules.task.request_stack)

    def run(self, batch: Batch, observed: Observed | None) -> tuple[Settlement, ...] | None:
        """The settlements of a batch; None, before anything has run, for one that needs Celery's tracer.

        There are none if its result is held back in a buffer, which has them.
        """
        rules, form = self._rules, self._task.call_form
        if observed or (requeued and was_requeued(batch)):
            return None
        call = plain_call(batch, rules)
        payloads_by_id = decode_plain(batch, rules.gate, form.check, call is not None)
        if payloads_by_id is None or form.eta_of(payloads_by_id, batch) > batch.claimed_at:
            return None
        task_id = form.task_id_of(payloads_by_id) if call is None else call.record.id
        if task_id is not None and task_id in state.revoked:
            return None
        task_id = task_id or batch.run_id or None
        request = PlainRequest(rules, self._consumer, batch, payloads_by_id, task_id, call)
        request.begins()
        try:
            context = PlainContext(request)
            settlements = self._call(request, context)
            return self._repeat(request) if settlements is None else settlements
        finally:
            request.ends()

    def _call(self, request: PlainRequest, context: PlainContext) -> tuple[Settlement, ...] | None:
        """Call the function. Returns the settlements; None when Celery's tracer is to replay the run."""
        logs = self._observers.logs_success and trace.logger.isEnabledFor(logging.INFO)
        if logs:
            report(request.keep_shown)
        began_at = time.monotonic() if logs else 0.0
        before = running_task.replace(self._task), self._requests.replace(context)
        try:
            try:
                result = staying(os.getpid(), self._call_function, request)
            except ENDS_WORKER:
                raise
            except BaseException as raised:  # noqa: BLE001 - also one that fails the run though no Exception
                request.replays(partial(raise_again, raised), context)
                return None
            settlements = None if needs_tracer(context) else self._succeed(request, context, result)
            if settlements is None:
                request.replays(lambda: result, context)
            elif logs:
                log = partial(self._log_success, request, result, time.monotonic() - began_at)
                report(call_user_code, log)
            return settlements
        finally:
            running_task.restore(before[0])
            self._requests.restore(before[1])

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
        # Read at once because each attribute of the context takes longer.
        read = {**request.constants, **_attributes(context)}
        if read["ignore_result"] or not buffer.accepts(backend):
            return False
        common = {} if read["group"] or read["parent_id"] else buffer.common
        encoded = encode(backend, request.id, request.result_of_call(result), context, common)
        if encoded is None:
            return False

        def repeat() -> tuple[Settlement, ...]:
            request.replays(lambda: result, context)
            return self._repeat(request)

        buffer.add(HeldResult(time.monotonic(), encoded, request.batch, request.done(), repeat))
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


def raise_again(raised: BaseException) -> NoReturn:
    """Raise what the function of a run has raised, or what its process ended by."""
    raise raised
