"""What task functions, middlewares and options of tasks do, for tests that compare two ways to run them."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import pickle
import re
import threading

from celery._state import _task_stack, get_current_worker_task
from celery.app.task import Context
from celery.exceptions import Ignore, Reject, Retry
from celery.worker import state

from celery_lowkiq import Again, BusinessFailure, ById, JobsFailed


def boom(*_):
    raise ValueError("boom")


class Halt(BaseException):
    """No ``Exception``."""


class Secretive(Exception):
    """Cannot be shown."""

    def __repr__(self):
        raise KeyError("secret")

    __str__ = __repr__


def own(attributes):
    """The attributes of a request that can be compared."""
    return {
        name: type(value) if name == "lowkiq_run" else value for name, value in sorted(attributes.items())
    }


# -- what a function may do


def reads_vars(play, task, args):
    play.note(own(vars(task.request)), type(copy.copy(task.request)) is type(task.request))


def reads_repr(play, task, args):
    play.note(sorted(re.findall(r"'(\w+)':", repr(task.request))))


def pickles(play, task, args):
    own_run = task.request.__dict__.pop("lowkiq_run")
    info = task.request.__dict__.pop("lowkiq")
    play.note(own(vars(pickle.loads(pickle.dumps(task.request)))))
    task.request.update(lowkiq_run=own_run, lowkiq=info)


def reads_attributes(play, task, args):
    request = task.request
    play.note(request.id, request.root_id, request.retries, request.delivery_info, request.get("lang"))
    play.note(hasattr(request, "nothing"), request.get("nothing", 5), request.eta, request.chord)
    play.note(request.called_directly, request.is_eager, request.children, isinstance(request, Context))


def reads_lowkiq(play, task, args):
    play.note(task.request.lowkiq, task.request.lowkiq.jobs[0].payloads)


def writes(play, task, args):
    task.request.seen_by_user = "note"
    task.request.headers = {"mine": 1}
    task.request.update(correlation_id="changed")


def writes_first(play, task, args):
    task.request.argsrepr = "hidden"
    task.request.shadow = "renamed"


def deletes(play, task, args):
    with contextlib.suppress(AttributeError):
        del task.request.hostname
    play.note(task.request.hostname)


def adds_links(play, task, args):
    task.request.callbacks = [play.app.signature("next", args=("called back",))]
    task.request.chain = [play.app.signature("next", args=("chained",))]


def adds_trail(play, task, args):
    task.add_trail(task.AsyncResult("child"))


def changes_arguments(play, task, args):
    if isinstance(args[0], dict):
        for payloads in args[0].values():
            payloads[0].update(changed=True)
            payloads.pop()
        args[0].clear()


def asks_worker(play, task, args):
    found = []

    def ask():
        for request in list(state.active_requests):
            info = request.info()
            info.pop("time_start")
            found.append((info, request.acknowledged, state.requests[request.id] is request))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    play.note(found)


def asks_celery(play, task, args):
    play.note(get_current_worker_task() is task, len(_task_stack.stack), len(task.request_stack))
    play.note(dict(state.total_count), list(state.all_total_count), len(state.active_requests))


def stores_a_state(play, task, args):
    task.update_state(state="HALF", meta={"n": 1})
    play.note(task.AsyncResult(task.request.id).state)


def reports_progress(play, task, args):
    task.progress("half", 1, 2)


def calls_itself(play, task, args):
    if not play.is_nested:
        play.is_nested = True
        try:
            play.note(task(*args))
        except BaseException as error:  # noqa: BLE001 - whatever it is
            play.note(type(error).__name__)
        play.is_nested = False


STEPS = [
    reads_vars,
    reads_repr,
    pickles,
    reads_attributes,
    reads_lowkiq,
    writes,
    writes_first,
    deletes,
    adds_links,
    adds_trail,
    changes_arguments,
    asks_worker,
    asks_celery,
    stores_a_state,
    reports_progress,
    calls_itself,
]


# -- how a function may end


def raises(*errors):
    def end(task, args):
        raise errors[0] from (errors[1] if len(errors) > 1 else None)

    end.__name__ = f"raises_{errors[0]!s:.20}"
    return end


def returns(value):
    return lambda task, args: value


def leaves_a_payload(task, args):
    raise Again(
        [payload for job in task.request.lowkiq.jobs for payload in job.payloads][:1], after=3, result=7
    )


def retries(task, args):
    raise task.retry(countdown=9)


def retries_for_an_error(task, args):
    try:
        boom()
    except ValueError as error:
        raise task.retry(exc=error, max_retries=0) from error


def fails_while_handling(task, args):
    try:
        boom()
    except ValueError:
        {}["missing"]


ENDS = {
    "returns None": returns(None),
    "returns a value": returns({"a": [1]}),
    "returns ById": returns(ById({"1": 5})),
    "returns an object": returns(Halt),
    "raises": lambda task, args: boom(),
    "raises from": lambda task, args: raises(KeyError("outer"), ValueError("inner"))(task, args),
    "while handling": fails_while_handling,
    "cannot be shown": lambda task, args: raises(Secretive("x"))(task, args),
    "retry": retries,
    "retry for an error": retries_for_an_error,
    "Retry": lambda task, args: raises(Retry("later", when=4))(task, args),
    "Reject": lambda task, args: raises(Reject("no", requeue=False))(task, args),
    "Reject, requeue": lambda task, args: raises(Reject("no", requeue=True))(task, args),
    "Ignore": lambda task, args: raises(Ignore())(task, args),
    "Again": lambda task, args: raises(Again(after=2))(task, args),
    "Again for a payload": leaves_a_payload,
    "BusinessFailure": lambda task, args: raises(BusinessFailure("no"))(task, args),
    "JobsFailed": lambda task, args: raises(JobsFailed({"1": ValueError("one")}))(task, args),
    "CancelledError": lambda task, args: raises(asyncio.CancelledError())(task, args),
    "Halt": lambda task, args: raises(Halt("now"))(task, args),
    "MemoryError": lambda task, args: raises(MemoryError())(task, args),
    "SystemExit": lambda task, args: raises(SystemExit(3))(task, args),
    "KeyboardInterrupt": lambda task, args: raises(KeyboardInterrupt())(task, args),
}

# -- what stands around it


def passes(task, batch, call):
    return call()


def replaces_result(task, batch, call):
    call()
    return [job.id for job in batch]


def fails_afterwards(task, batch, call):
    call()
    raise LookupError(f"after {len(batch)}")


def forgives(task, batch, call):
    try:
        return call()
    except Exception:  # noqa: BLE001 - whatever it is
        return "forgiven"


MIDDLEWARES = [[], [passes], [passes, replaces_result], [fails_afterwards], [forgives]]
OPTIONS = [
    {},
    {"max_retries": 0},
    {"autoretry_for": (ValueError,), "retry_kwargs": {"countdown": 7}},
    {"throws": (ValueError,), "max_retries": 0},
    {"dont_retry": (ValueError,)},
    {"ignore_result": True},
    {"track_started": True, "acks_late": True},
]
