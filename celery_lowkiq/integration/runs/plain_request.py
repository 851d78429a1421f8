"""The request of a plain run, for the task function and for the worker: made when something asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from celery.app.task import Context
from celery.worker import state

from celery_lowkiq.integration.calls.call_form import Arguments
from celery_lowkiq.integration.records.call_record import CallRecord
from celery_lowkiq.rules.models import Batch, Disposition, Settlement

from .decisions import RunRules
from .decode import DecodedBatch, is_small, plain_batch
from .outcomes import ById
from .plain_call import PlainCall
from .request import IGNORED_RESULT, NO_EMBED, QuietRequest, new_id, quiet_request, show_arguments
from .run import Run
from .successes import succeeded

T = TypeVar("T")


#: Attributes of the request of a run without a call that are the same for all such runs.
NO_CALL: dict[str, Any] = {**NO_EMBED, **IGNORED_RESULT, "group": None, "parent_id": None}
#: What result backends read of each request.
READ_BY_BACKENDS = ("group", "parent_id", "ignore_result")
#: What is read of a request when its function has returned; None unless the function has written it.
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
        """What the call gets of what the function returned; all of it in a run without a call."""
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
        """What result backends read of each request."""
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
        """What is decided of its jobs."""
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
        """As of a Context made by the tracer: for ``vars()``, ``repr()``, copies and pickles."""
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
    """Whether the function has written into its request what the tracer uses after a success."""
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
