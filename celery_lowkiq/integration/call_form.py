"""Forms of calls: how arguments become an id and a payload, and payloads the arguments of a run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from celery.utils.functional import head_from_fun
from celery.utils.saferepr import saferepr

from celery_lowkiq.integration.calls import LATEST, id_of, read_id
from celery_lowkiq.rules.errors import ConfigurationError, InvalidCall, UndecodablePayload
from celery_lowkiq.rules.models import Batch, Call
from celery_lowkiq.rules.validators import invalid, is_number

# The arguments of a call: an id and a payload, or with ``key=`` a payload alone.
#
# A signature keeps them by name, so that what a chain or a chord puts in front becomes the payload.

#: Maximum length of wrong arguments in an error.
SHOWN = 200

Header = Callable[..., tuple[Any, Any]]


def by_id(id: Any, payload: Any = "") -> tuple[Any, Any]:  # noqa: A002 - what callers write
    return id, payload


def by_key(payload: Any) -> tuple[Any, Any]:
    return None, payload


def header_for(name: str, keyed: bool) -> Header:
    """Make Celery's argument check of a task, which returns id and payload, or raises TypeError.

    The check is a partial: Celery runs an errback whose check takes two arguments here and now, outside of
    any queue, unless it is a partial.
    """
    plain: Header = _named(by_key if keyed else by_id, name)

    def header(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if args and "payload" in kwargs and (keyed or "id" in kwargs):
            raise TypeError(
                f"{name}() has a payload, and gets another one from the task before it: write "
                f"{name}.si(...) to keep its own, or leave the payload out"
            )
        if args and "id" in kwargs and not keyed:
            return plain(kwargs["id"], *args, **{k: v for k, v in kwargs.items() if k != "id"})
        return plain(*args, **kwargs)

    return partial(_named(header, name))


def check_arguments(args: Any, kwargs: Any) -> None:
    """Raise TypeError unless they are what Celery takes: a list or tuple, a mapping, or None.

    Python itself takes a text as a list of letters.
    """
    if args is not None and not isinstance(args, (list, tuple)):
        raise TypeError(f"args={saferepr(args, SHOWN)} is invalid: expected a list or a tuple")
    if kwargs is not None and not (isinstance(kwargs, Mapping) and all(isinstance(k, str) for k in kwargs)):
        raise TypeError(f"kwargs={saferepr(kwargs, SHOWN)} is invalid: expected a mapping with names as keys")


def as_keywords(args: Sequence[Any], kwargs: Mapping[str, Any], keyed: bool, name: str) -> dict[str, Any]:
    """Arguments of a signature by their names. Raises TypeError for too many."""
    names = ("payload",) if keyed else ("id", "payload")
    if len(args) > len(names):
        raise TypeError(f"{name}() takes {' and '.join(names)}, got {len(args)} positional arguments")
    twice = [given for given in names[: len(args)] if given in kwargs]
    if twice:
        raise TypeError(f"{name}() got multiple values for argument {twice[0]!r}")
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _named(function: Any, name: str) -> Any:
    named = type(function)(
        function.__code__, function.__globals__, name, function.__defaults__, function.__closure__
    )
    named.__qualname__ = name
    return named


# The id of a call of a task with ``by=``, found among its arguments.

#: The argument that has a call's id, by name, position or path; or a function of all arguments by name.
By = str | int | Callable[[dict[str, Any]], Any]
EMPTY = inspect.Parameter.empty
ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class IdFinder:
    """Finds ids by one ``by=`` of a function."""

    def __init__(
        self, by: By, parameters: Sequence[inspect.Parameter], hidden: Sequence[inspect.Parameter] | None
    ) -> None:
        """``parameters``: filled by callers. ``hidden``: parameters of the function behind a decorator, which
        may fill some itself. Raises ConfigurationError when ``by`` names no argument.
        """
        self._by = by
        self.signature: inspect.Signature = inspect.Signature(parameters)
        self.names: tuple[str, ...] = tuple(self.signature.parameters)
        self._hidden = None if hidden is None else [each.name for each in hidden if each.kind in POSITIONAL]
        position = by if isinstance(by, int) and by < len(self.names) else None
        #: Name of the id in errors: of its argument, where that is known.
        self.label: str = by if isinstance(by, str) else "id" if position is None else self.names[position]
        #: Returns the id for args and kwargs. Raises InvalidCall when they have none.
        self.find: Callable[[tuple[Any, ...], Mapping[str, Any]], Any] = self._finder(by)

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments | None:
        """The arguments with defaults; None, which only typing=False lets pass, when they do not fit."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError:
            return None
        bound.apply_defaults()
        return bound

    def _finder(self, by: By) -> Callable[[tuple[Any, ...], Mapping[str, Any]], Any]:
        if callable(by):
            return self._computed
        name, *path = by.split(".") if isinstance(by, str) else (by,)
        position, parameter = self._by_name(name) if isinstance(name, str) else self._by_position(name)
        keyword = name if parameter is None else parameter.name
        default = EMPTY if parameter is None else parameter.default
        before: Sequence[str] = ()
        if parameter is None and self._hidden and position is not None and position < len(self._hidden):
            *before, keyword = self._hidden[: position + 1]
        return partial(self._found, position, keyword, default, [str(part) for part in path], before)

    def _by_name(self, name: str) -> tuple[int | None, inspect.Parameter | None]:
        parameters = list(self.signature.parameters.values())
        parameter = self.signature.parameters.get(name)
        if parameter is None and self._hidden is not None:
            raise self._unknown("a position or a function, because a decorator hides the arguments")
        takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
        if parameter.kind in ANY_NUMBER if parameter is not None else not takes_any:
            raise self._unknown("the name of an argument, as " + ", ".join(self.names))
        positional = [each for each in parameters if each.kind in POSITIONAL]
        return positional.index(parameter) if parameter in positional else None, parameter

    def _by_position(self, position: int) -> tuple[int, inspect.Parameter | None]:
        parameters = self.signature.parameters.values()
        positional = [each for each in parameters if each.kind in POSITIONAL]
        if position < len(positional):
            return position, positional[position]
        if not any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters):
            raise self._unknown(f"a position below {len(positional)}")
        return position, None

    def _found(
        self,
        position: int | None,
        keyword: Any,
        default: Any,
        path: Sequence[str],
        before: Sequence[str],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """``before``: names of hidden arguments that a call gives, too, unless a decorator fills them: then
        the position is not that of the keyword.
        """
        if position is not None and position < len(args):
            value = args[position]
        elif before and not kwargs.keys() >= set(before[len(args) :]):
            value = EMPTY
        else:
            value = kwargs.get(keyword, default)
        if value is EMPTY:
            raise InvalidCall(
                f"by={self._by!r} finds no id: the call has no such argument. Give the argument by "
                f"{'name' if isinstance(self._by, str) else 'position'}, or give by= a function of all "
                "arguments"
            )
        for part in path:
            try:
                value = value[part] if isinstance(value, Mapping) else getattr(value, part)
            except (KeyError, AttributeError):
                raise InvalidCall(
                    f"by={self._by!r} finds no id: {saferepr(value, SHOWN)} has no {part!r}"
                ) from None
        return value

    def _loosely_bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        parameters = self.signature.parameters.values()
        defaults = {each.name: each.default for each in parameters if each.default is not EMPTY}
        return {**defaults, **dict(zip(self.names, args, strict=False)), **kwargs}

    def _computed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        bound = self.bound(args, kwargs)
        named = self._loosely_bound(args, kwargs) if bound is None else bound.arguments
        try:
            return self._by(named)  # type: ignore[operator]
        except Exception as error:
            shown = saferepr(named, SHOWN)
            raise InvalidCall(f"by= finds no id in {shown}: {type(error).__name__}: {error}") from error

    def _unknown(self, expected: str) -> ConfigurationError:
        signature = f"({', '.join(self.names)})"
        return ConfigurationError(invalid("by", self._by, f"{expected}, of the function with {signature}"))


# Call forms: how the arguments of a call become an id and a payload, and a payload those of a run.
#
# The function of a task takes payloads by id, or, with ``by=``, the arguments that its callers give. In the
# second form a payload is one call: ``{"args": [...], "kwargs": {...}, "task_id": ...}``, with ``"eta"``
# (Unix s) when it must not run before. With ``merge=`` it has arguments only, so that equal calls are one
# payload.

#: Where Celery wraps the function of a task with ``pydantic=True``.
PYDANTIC_WRAPPER = "celery.app.base"
BY_NAME = inspect.Parameter.POSITIONAL_OR_KEYWORD
BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, BY_NAME, inspect.Parameter.VAR_POSITIONAL)
#: The type of a compiled function.
CYTHON = "cython_function_or_method"
#: Keys of a payload with its own time: a Unix time, or how long after its score, in s.
TIMES = ("eta", "countdown")
#: A score that a push makes may be some us after the push, in s.
SCORE_SLACK = 0.001
PayloadsById = Mapping[str, Sequence[Any]]
#: Maximum length of a batch in events and listings; Celery's own limit for arguments.
ARGUMENTS_SHOWN = 1024


class Arguments(NamedTuple):
    """The arguments of a function."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class BatchForm:
    """``f(payloads_by_id)``, called with an id and a payload, or with ``key=`` a payload alone."""

    #: True if equal calls are one payload.
    merges = True
    #: True if a payload may have a time of its own.
    has_times = False
    #: Names of the arguments by position; the last one is that of all further ones.
    parameters: tuple[str, ...] = ()
    #: Raises UndecodablePayload for a payload of another form; None: any payload is valid.
    check: Callable[[Any], None] | None = None

    def __init__(self, name: str, key: Callable[[Any], Any] | None) -> None:
        #: Celery's check of the arguments of a call.
        self.header: Callable[..., Any] = header_for(name, key is not None)
        self._name = name
        self._key = key

    def read(self, args: Any, kwargs: Any, task_id: str | None, typing: bool = True) -> tuple[Any, Any]:
        """Find id and payload of a call. ``typing``: whether arguments are checked against the signature.

        Raises TypeError for wrong arguments, and InvalidCall.
        """
        if self._key is None and type(args) is tuple and len(args) == 2 and not kwargs:
            return args
        check_arguments(args, kwargs)
        job_id, payload = self.header(*(args or ()), **(kwargs or {}))
        if self._key is not None:
            return id_of(self._key, payload), payload
        if isinstance(job_id, (dict, list)):
            read_id(job_id, ". Call delay(id, payload)")
        return job_id, payload

    def timed(self, call: Call, now: float) -> Call:
        """Give a payload the time of its call, where that of the job is not enough. ``now``: Unix s."""
        return call

    def of_signature(self, args: Any, kwargs: Any) -> Arguments:
        """Arguments that a signature keeps: by name, so that in a chain the result of the task before becomes
        the payload. Raises TypeError for too many.
        """
        return Arguments((), as_keywords(args or (), kwargs or {}, self._key is not None, self._name))

    def of_run(self, payloads_by_id: PayloadsById) -> Arguments:
        """Arguments of the function for these payloads."""
        return Arguments((payloads_by_id,), {})

    def to_payloads(self, arguments: Arguments, task_id: str) -> PayloadsById:
        """Payloads of a run with these arguments."""
        payloads_by_id: PayloadsById = arguments.args[0]
        return payloads_by_id

    def shown(self, arguments: Arguments, small: bool) -> str:
        """Positional arguments in events and logs, cut short: each id, the number of its payloads, and the
        payloads; ``small`` ones whole, which is faster.
        """
        parts: list[str] = []
        left = ARGUMENTS_SHOWN
        (payloads_by_id,) = arguments.args
        for job_id, payloads in payloads_by_id.items():
            if left <= 0:
                parts.append(f"... ({len(payloads_by_id)} ids)")
                break
            text = repr(payloads) if small else saferepr(payloads, left)
            parts.append(f"{job_id!r} ({len(payloads)}): {text}")
            left -= len(parts[-1])
        return ", ".join(parts)

    def task_id_of(self, payloads_by_id: PayloadsById) -> str | None:
        """Id of the call in the payloads; None when they do not name it."""
        return None

    def eta_of(self, payloads_by_id: PayloadsById, batch: Batch) -> float:
        """Unix time (s) before which the payloads of a batch must not run; 0: now."""
        return 0.0

    def made_due(self, payload: Any, now: float) -> Any:
        """Payload without its time; None when it may run ``now`` (Unix s). Raises UndecodablePayload."""
        return None

    def fits(self, payload: Any) -> bool:
        """Test whether the function takes the arguments of a payload."""
        return True

    def check_edit(self, job_id: str, payload: Any) -> None:
        """Raise InvalidCall unless the payload may replace one of the job."""


class SignatureForm:
    """``by=``: the function keeps its signature, and each call runs alone, with its own arguments."""

    def __init__(self, function: Callable[..., Any], bound: bool, by: By, merges: bool = False) -> None:
        """``bound``: the function takes ``self``. ``merges``: calls with equal arguments are one payload.

        Raises ConfigurationError when ``by`` names no argument of the function.
        """
        if getattr(function, "__globals__", {}).get("__name__") == PYDANTIC_WRAPPER:
            function = inspect.unwrap(function)
        check_readable(function)
        if inspect.ismethod(function):
            # Its self is no argument, and a task gives it none.
            function, bound = function.__func__, True
        header = head_from_fun(function, bound=bound)
        # Not of a function that a decorator wraps: the decorator may give it other arguments than callers do.
        parameters = _parameters_of(function, bound, follow_wrapped=False)
        wraps = hasattr(function, "__wrapped__") and not hasattr(function, "__signature__")
        self._ids = IdFinder(by, parameters, _parameters_of(function, bound) if wraps else None)
        self._find = self._ids.find
        self.merges: bool = merges
        self.parameters: tuple[str, ...] = tuple(each.name for each in parameters if each.kind in BY_POSITION)
        self.has_times: bool = not merges
        # Celery calls an errback at once, outside any queue, unless its check is a partial or takes one
        # argument. One with (request, exc, traceback) can only run so: no queue takes these.
        takes_request = [each.name for each in parameters[:1]] == ["request"]
        self.header: Callable[..., Any] = header if takes_request else partial(header)

    def read(self, args: Any, kwargs: Any, task_id: str | None, typing: bool = True) -> tuple[Any, Any]:
        check_arguments(args, kwargs)
        args, kwargs = tuple(args or ()), dict(kwargs or {})
        if typing:
            self.header(*args, **kwargs)
        job_id = self._find(args, kwargs)
        read_id(job_id, name=self._ids.label)
        if not self.merges:
            return job_id, {"args": args, "kwargs": kwargs, "task_id": task_id}
        return job_id, dict(zip(("args", "kwargs"), self.bound(args, kwargs), strict=True))

    def bound(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Write arguments in one spelling, with defaults; unchanged when they do not fit."""
        bound = self._ids.bound(args, kwargs)
        return (args, kwargs) if bound is None else (bound.args, bound.kwargs)

    def timed(self, call: Call, now: float) -> Call:
        # A call that meets a job which is due waits for its own time, and the calls behind it with it. A call
        # that merges has the time of the job.
        if self.merges or (call.perform_in is None and call.delay is None):
            return call
        if call.delay is None:
            time = {"eta": call.perform_in}
        elif call.score is None:
            # Counts from the score that the push makes, which is a time of Redis's clock.
            time = {"countdown": call.delay}
        else:
            time = {"eta": now + call.delay}
        return call._replace(payload={**call.payload, **time})

    def of_signature(self, args: Any, kwargs: Any) -> Arguments:
        return Arguments(args, kwargs)

    def of_run(self, payloads_by_id: PayloadsById) -> Arguments:
        # No arguments when the payload cannot run.
        call = _only(payloads_by_id)
        return Arguments(tuple(call.get("args", ())), call.get("kwargs", {}))

    def to_payloads(self, arguments: Arguments, task_id: str) -> PayloadsById:
        job_id, payload = self.read(*arguments, task_id)
        return {read_id(job_id): [payload]}

    def shown(self, arguments: Arguments, small: bool) -> str:
        return saferepr(arguments.args, ARGUMENTS_SHOWN)

    def task_id_of(self, payloads_by_id: PayloadsById) -> str | None:
        return _only(payloads_by_id).get("task_id")

    def eta_of(self, payloads_by_id: PayloadsById, batch: Batch) -> float:
        call = _only(payloads_by_id)
        if "countdown" in call:
            return float(batch.jobs[0].payloads[0].score + call["countdown"]) - SCORE_SLACK
        return float(call.get("eta", 0.0))

    def check(self, payload: Any) -> None:
        if not (
            isinstance(payload, Mapping)
            and isinstance(payload.get("args"), (list, tuple))
            and isinstance(payload.get("kwargs"), Mapping)
            and isinstance(payload.get("task_id", ""), str)
            and all(is_number(payload.get(name, 0.0), 0, LATEST) for name in TIMES)
        ):
            raise UndecodablePayload(
                f"{saferepr(payload, SHOWN)} is not a call of a task with by=: expected "
                '{"args": [...], "kwargs": {...}}'
            )

    def made_due(self, payload: Any, now: float) -> Any:
        self.check(payload)
        if "countdown" not in payload and payload.get("eta", 0.0) <= now:
            return None
        return {name: value for name, value in payload.items() if name not in TIMES}

    def check_edit(self, job_id: str, payload: Any) -> None:
        # The payload must be a call of this id: under another id it would run beside the calls of that id.
        try:
            self.check(payload)
            found, _ = self.read(payload["args"], payload["kwargs"], None)
        except (UndecodablePayload, TypeError) as error:
            raise InvalidCall(f"the new payload is invalid: {error}") from error
        if read_id(found) != job_id:
            expected = f"{job_id!r}, the id of the job, in the arguments of the new payload"
            fix = "Delete the payload, and call the task again"
            raise InvalidCall(invalid("id", found, expected, fix))

    def with_arguments(self, job_id: str, payload: Any, args: Any, kwargs: Any) -> Any:
        """Replace arguments of a call; an argument given by position replaces the keyword of its name."""
        signature = self._ids.signature
        bound = signature.bind_partial(*(payload["args"] if args is None else args))
        kept = payload["kwargs"] if kwargs is None else kwargs
        by_name = [name for name in bound.arguments if signature.parameters[name].kind is BY_NAME]
        if args is None:
            bound.arguments.update({name: kept[name] for name in by_name if name in kept})
        left = {name: value for name, value in kept.items() if name not in by_name}
        changed = {**payload, "args": bound.args, "kwargs": {**bound.kwargs, **left}}
        self.check_edit(job_id, changed)
        return changed

    def fits(self, payload: Any) -> bool:
        return self._ids.bound(payload["args"], payload["kwargs"]) is not None


#: Arguments of the function of a task, for its calls and its runs.
CallForm = BatchForm | SignatureForm


def _only(payloads_by_id: PayloadsById) -> Mapping[str, Any]:
    return next((payload for payloads in payloads_by_id.values() for payload in payloads), {})


def check_readable(function: Callable[..., Any]) -> None:
    """Raise ConfigurationError unless Celery can make a task of it: it reads name and arguments."""
    is_function = inspect.isfunction(function) or inspect.ismethod(function)
    if not (is_function or type(function).__name__ == CYTHON) or not function.__name__.isidentifier():
        expected = "a function or a method, with a name and arguments that Celery can read"
        fix = "Write a function, def save(order_id): ..., that calls it"
        raise ConfigurationError(f"{function!r} is invalid: expected {expected}. {fix}")


def _parameters_of(
    function: Callable[..., Any], bound: bool, follow_wrapped: bool = True
) -> list[inspect.Parameter]:
    found = list(inspect.signature(function, follow_wrapped=follow_wrapped).parameters.values())
    # A decorator's (*args, **kwargs) takes self as one of many.
    return found[1:] if bound and found and found[0].kind in POSITIONAL else found
