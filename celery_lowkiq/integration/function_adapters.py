"""Calls the function of a task that is ``async def``, or has ``per_id=True``, as a function of a batch."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from celery.app.task import Context
from celery.exceptions import Ignore, SoftTimeLimitExceeded

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.decisions import ENDS_WORKER, RETURN_DELAY, Again, ById, JobsFailed, as_failure
from celery_lowkiq.integration.loops import Bodies, Cancelled, ContextStack, NoLoop, run_alone
from celery_lowkiq.integration.records import limits_of

#: Key of the only body of a function that is called once for all.
WHOLE = ""
#: Returns the attributes that a request has; ``vars()`` would complete one of a plain run.
_attributes = Context.__dict__["__dict__"].__get__


class RunRevoked(Ignore):
    """The run was ended by ``revoke(terminate=True)``: its calls end as REVOKED."""


def is_async(function: Any) -> bool:
    """True if a function, or what its decorators wrap, is ``async def``."""
    found = function.__func__ if isinstance(function, staticmethod) else function
    return inspect.iscoroutinefunction(inspect.unwrap(found))


def adapt_function(cls: Any) -> None:
    """Give a task class a ``run`` that its lane can call, if its function is none."""
    own = inspect.getattr_static(cls, "run")
    if hasattr(own, "lowkiq_own") or not (cls.per_id or is_async(own)):
        return

    @functools.wraps(own)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _call(self, own.__get__(self, type(self)), args, kwargs)

    run.__dict__["lowkiq_own"] = own
    cls.run = run
    if is_async(own):
        cls.request_stack = ContextStack()


def _call(task: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call the function in a run, to its end. A direct call is the function's own."""
    request = task.request_stack.top
    if request is None or request.called_directly:
        return function(*args, **kwargs)
    attributes = _attributes(request)
    if "lowkiq_began" in attributes:
        # ``await self.run(...)`` in the function.
        return function(*args, **kwargs)
    request.lowkiq_began = True
    run = attributes.get("_plain") or attributes.get("lowkiq_run")
    if task.per_id:
        return _call_per_id(task, function, args[0], run)
    result = function(*args, **kwargs)
    if not asyncio.iscoroutine(result):
        return result
    values, errors = _run(task, {WHOLE: result}, run)
    if errors:
        raise errors[WHOLE]
    return values[WHOLE]


def _call_per_id(
    task: Any, function: Callable[..., Any], payloads_by_id: Mapping[str, Any], run: Any
) -> ById:
    values, errors = _call_each(function, payloads_by_id)
    coroutines = {job_id: value for job_id, value in values.items() if asyncio.iscoroutine(value)}
    if coroutines:
        found, failed = _run(task, coroutines, run)
        values = ById({job_id: found.get(job_id, value) for job_id, value in values.items()})
        errors |= failed
    for failure in errors.values():
        if len(payloads_by_id) == 1 or isinstance(failure, (RunRevoked, *ENDS_WORKER)):
            raise failure
    if errors:
        results = {job_id: value for job_id, value in values.items() if job_id not in errors}
        raise JobsFailed({job_id: as_failure(error) for job_id, error in errors.items()}, results)
    return values


def _call_each(
    function: Callable[..., Any], payloads_by_id: Mapping[str, Any]
) -> tuple[ById, dict[str, BaseException]]:
    """Call the function for one id after another. Returns what it returned and raised."""
    values = ById()
    errors: dict[str, BaseException] = {}
    for job_id, payloads in payloads_by_id.items():
        try:
            values[job_id] = function(job_id, payloads)
        except ENDS_WORKER:
            raise
        except SoftTimeLimitExceeded as error:
            # The time is that of all: the others do not begin.
            errors.update({other: error for other in payloads_by_id if other not in {*values, *errors}})
            break
        except BaseException as error:  # noqa: BLE001 - it fails one id
            errors[job_id] = error
    return values, errors


def _run(
    task: Any, coroutines: Mapping[str, Coroutine[Any, Any, Any]], run: Any
) -> tuple[dict[str, Any], dict[str, BaseException]]:
    """Run coroutines together. Returns what they returned and raised. ``run``: None outside a worker."""
    name = threading.current_thread().name
    try:
        if run is None:
            bodies = Bodies(task, coroutines, name)
            run_alone(context_of(task._get_app()).settings, bodies)
        else:
            bodies = Bodies(task, coroutines, name, run.batch, limits_of(run.call)[1])
            run.rules.loops.run(bodies)
    except NoLoop as error:
        raise Again(after=RETURN_DELAY) from error
    finally:
        for coroutine in coroutines.values():
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()
    values, errors = {}, {}
    for key, body in bodies.by_id.items():
        if body.error is None:
            values[key] = body.value
        else:
            errors[key] = _meaning(body.error, bodies)
    return values, errors


def _meaning(error: BaseException, bodies: Bodies) -> BaseException:
    """The error of a body; if it was cancelled and obeyed, what that means for its run."""
    reason = bodies.reason
    if reason is None or not isinstance(error, asyncio.CancelledError):
        return error
    meaning: Exception
    if reason is Cancelled.TIMEOUT:
        meaning = SoftTimeLimitExceeded(bodies.limit)
    elif reason is Cancelled.REVOKED:
        meaning = RunRevoked("terminated")
    else:
        meaning = Again(after=RETURN_DELAY)
    return meaning.with_traceback(error.__traceback__)
