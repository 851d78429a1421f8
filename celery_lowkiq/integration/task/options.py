"""Options of an ordered task: declared once, and checked when a function is decorated or a class is made."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, TypedDict

from celery import Celery
from celery.app.annotations import resolve_all as resolve_all_annotations

from celery_lowkiq.integration.app.option_names import check_option_names
from celery_lowkiq.integration.app.rate_limits import read_rate
from celery_lowkiq.integration.app.settings import RunIn
from celery_lowkiq.integration.calls.call_form import PYDANTIC_WRAPPER, SignatureForm
from celery_lowkiq.integration.calls.id_finder import By
from celery_lowkiq.integration.runs.task_function import is_async
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.rules.layout import MAX_SHARDS
from celery_lowkiq.rules.validators import (
    Option,
    boolean,
    invalid,
    is_whole,
    matching,
    one_of,
    options_of,
    run_limit,
    whole,
)

from .queue_options import QueueOptions, queue_conflicts
from .retry_options import RetryOptions, retry_conflicts
from .unsupported import ENDLESS, REFUSED, check_celery_options

MAX_BATCH = 1000
MAX_PAYLOADS = 1000
QUEUE_NAME = matching(
    "1 to 255 printable ASCII characters without space and braces",
    lambda value: isinstance(value, str) and bool(re.fullmatch(r"[!-z|~]{1,255}", value)),
)

MergeRule = Literal["min", "max"]


def _names_argument(value: Any) -> bool:
    return callable(value) or is_whole(value, 0) or (isinstance(value, str) and all(value.split(".")))


Exceptions = tuple[type[BaseException], ...]


def _is_switch(value: Any) -> bool:
    return isinstance(value, bool) or callable(value)


class CeleryOptions(TypedDict, total=False):
    """Options of Celery's that an ordered task takes."""

    acks_late: bool
    acks_on_failure_or_timeout: bool
    app: Celery | None
    autoretry_for: Exceptions
    dont_autoretry_for: Exceptions
    expires: float | datetime | None
    ignore_result: bool
    name: str | None
    rate_limit: str | float | None
    reject_on_worker_lost: bool | None
    resultrepr_maxsize: int
    retry_backoff: bool | int
    retry_backoff_max: int
    retry_jitter: bool
    retry_kwargs: dict[str, Any]
    send_events: bool
    shared: bool
    store_errors_even_if_ignored: bool
    throws: Exceptions
    track_started: bool
    trail: bool
    typing: bool


class BasicOptions(TypedDict, total=False):
    """Options that are neither of retries nor of what the queue does with a call."""

    shards: Annotated[
        int,
        Option(
            5,
            whole(1, MAX_SHARDS),
            "Number of parts of the queue. An id lies in part `crc32(id) % shards`. See [changing the number]"
            "(changing-shards.md).",
        ),
    ]
    batch_size: Annotated[int, Option(1, whole(1, MAX_BATCH), "Largest number of ids in one run.")]
    queue_name: Annotated[
        str | None,
        Option(None, QUEUE_NAME.or_none(), "Name of the ordered queue. None: the name of the task."),
    ]
    key: Annotated[
        Callable[[Any], Any] | None,
        Option(
            None,
            matching("a function", callable).or_none(),
            "`key(payload)` returns the id. Calls then take the payload alone.",
        ),
    ]
    merge: Annotated[
        MergeRule | None,
        Option(
            None,
            one_of(MergeRule).or_none(),
            "Which score stays when two payloads of an id are equal.",
            default_words='`"min"`; with `by=`: equal calls do not merge',
        ),
    ]
    max_payloads_per_run: Annotated[
        int | None,
        Option(
            None,
            whole(1, MAX_PAYLOADS).or_none(),
            "Largest number of payloads of an id in one run, lowest scores first. The others get runs of "
            "their own. See [large backlogs](policies.md#large-backlogs-of-an-id).",
        ),
    ]
    max_crashes: Annotated[
        int,
        Option(
            3,
            whole(1),
            "Number of crashes, within 72 hours, of its worker or process that make a payload which runs "
            "alone a poison pill; it goes to the morgue. The crash that first made its job suspect does not "
            "count, nor does one of the job's payloads together: with 3, a job of one payload runs 4 times, "
            "one of several 5 times.",
        ),
    ]
    max_run: Annotated[
        float | None,
        Option(
            None,
            run_limit,
            "Seconds after which a run is overdue: it is logged once as a warning, shown by `doctor`, "
            "`nodes`, `why` and `inspect stats`, counted by `lowkiq_runs_overdue`, and sent as the event "
            "`lowkiq-overdue`. With None, after 10 times the usual duration of the queue's runs, and 60 s at "
            "least. A thread cannot be stopped, so the run goes on. With `max_run` and "
            '[`lowkiq_exclusion = "strict"`](fencing.md#strict-exclusion) its lease is not renewed '
            "any more: its worker process ends, and other workers go on.",
        ),
    ]

    run_in: Annotated[
        RunIn | None,
        Option(
            None,
            one_of(RunIn).or_none(),
            'Where a lane runs the function. `"thread"`: in its thread. `"process"`: in [a child process]'
            "(processes.md), which has a GIL of its own, may be killed, and may die alone.",
            default_words="`lowkiq_run_in`",
        ),
    ]
    soft_time_limit: Annotated[
        float | None,
        Option(
            None,
            run_limit,
            "Seconds after which the function gets a SoftTimeLimitExceeded. With "
            '`run_in="process"`, see [time limits](processes.md#time-limits), and of '
            "[an `async def` function](async-tasks.md#what-ends-a-body).",
        ),
    ]
    time_limit: Annotated[
        float | None,
        Option(None, run_limit, 'Seconds after which a run is killed, and fails. With `run_in="process"`.'),
    ]


class KeptSignatureOptions(TypedDict, total=False):
    """Options of a task with ``by=``, whose function keeps its signature. See docs/in-place.md."""

    enabled: Annotated[
        bool | Callable[[], bool],
        Option(
            True,
            matching("True, False, or a function that returns one", _is_switch),
            "With `by=`: whether the task is ordered. False: it runs as [a plain one]"
            "(in-place.md#there-and-back), as with `lowkiq_plain`.",
        ),
    ]
    latest: Annotated[
        bool,
        Option(
            False,
            boolean,
            "With `by=`: only the newest of the calls that wait for an id runs. The others end as "
            "superseded.",
        ),
    ]
    pydantic: bool
    pydantic_context: dict[str, Any] | None
    pydantic_dump_kwargs: dict[str, Any] | None
    pydantic_strict: bool


class TaskOptions(BasicOptions, RetryOptions, QueueOptions, CeleryOptions, total=False):
    """Options of ``@ordered_task``, and attributes of an ``OrderedTask`` class."""


class InPlaceOptions(TaskOptions, KeptSignatureOptions, total=False):
    """All options but ``by`` and ``per_id``, which change what a function takes."""


class _AllOptions(InPlaceOptions, total=False):
    per_id: Annotated[
        bool,
        Option(
            False,
            boolean,
            "Whether the function is called for each id of a batch, as `f(id, payloads)`. It returns the "
            "result of the id, and its exception fails this id only. See [a function of one id]"
            "(async-tasks.md#a-function-of-one-id).",
        ),
    ]
    by: Annotated[
        By | None,
        Option(
            None,
            matching("the name, position or path of an argument, or a function", _names_argument).or_none(),
            "The function keeps its signature, and this argument has the id of a call. Each call then runs "
            "alone. See [an existing task](in-place.md).",
        ),
    ]


OPTIONS = options_of(_AllOptions)
#: Names of Celery's options, which a misspelt name may mean. ``Request`` names a class.
CELERYS = (
    *CeleryOptions.__annotations__,
    *("base", "bind", "pydantic_context", "pydantic_dump_kwargs", "pydantic_strict"),
    *(name for name in REFUSED if name != "Request"),
)
#: Options of Celery's that may contradict one of ours.
RELATED = ("expires", "rate_limit")


def check_values(options: Mapping[str, Any]) -> None:
    """Raises ConfigurationError for the first option whose value is invalid by itself."""
    given = {name: _unwrapped(value) for name, value in options.items()}
    for name, option in OPTIONS.items():
        if name in given:
            option.valid.check(name, given[name])
    read_rate(given.get("rate_limit"))


def check_task(options: Mapping[str, Any], function: Callable[..., Any], bound: bool) -> None:
    """Check all options of a final task, wherever each is given, with its function; see check_function.

    Raises ConfigurationError for the first option whose value is invalid, that contradicts another one, or
    that an ordered task refuses.
    """
    check_values(options)
    given = {name: _unwrapped(value) for name, value in options.items()}
    all_options = {name: given.get(name, option.default) for name, option in OPTIONS.items()}
    all_options.update({name: given.get(name) for name in RELATED}, run=function)
    conflicts = (*_call_conflicts(all_options), *queue_conflicts(all_options), *retry_conflicts(given))
    for name, expected, fix in conflicts:
        raise ConfigurationError(invalid(name, all_options[name], expected, fix))
    check_celery_options(options, keeps_signature=all_options["by"] is not None)
    check_function(function, bound, all_options["by"], all_options["per_id"])


_ALONE = "Each call of a task with by= runs alone: take it out"
#: Options that say nothing beside by=: their default, and what to do.
_WITHOUT_BY = {
    "key": (None, "Both say where the id of a call is: take one of them out"),
    "batch_size": (1, _ALONE),
    "max_payloads_per_run": (None, _ALONE),
    "keep": ("all", "Use latest=True to run the newest call alone"),
    "per_id": (False, _ALONE),
}
#: Options that need by=: their default, and what to do.
_WITH_BY = {
    "latest": (False, "Give by=, or use keep=1 for a function that gets payloads by id"),
    "enabled": (True, "A function that gets payloads by id cannot run as a plain task"),
}


def _call_conflicts(options: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Options of calls that contradict others: the name of one, what it should be, and what to do."""
    has_by = options["by"] is not None
    for name, (default, fix) in (_WITHOUT_BY if has_by else _WITH_BY).items():
        if options[name] != default:
            yield name, "no by= beside it" if has_by else "by= beside it", fix
    if options["run_in"] != "process":
        if options["time_limit"] is not None:
            yield "time_limit", "run_in='process' beside it, since a lane is a thread", ENDLESS
        if options["soft_time_limit"] is not None and not is_async(options["run"]):
            expected = "run_in='process' beside it, or an async def function, since a lane is a thread"
            yield "soft_time_limit", expected, ENDLESS
    if options["latest"] and options["merge"] is not None:
        yield "merge", "no latest= beside it", "With latest=True one call of an id waits: take merge= out"


def check_names_of(given: Iterable[str], *bases: Any) -> None:
    """Raises ConfigurationError for a misspelt option; the attributes of ``bases`` are known."""
    check_option_names(given, {name for base in bases for name in dir(base)}, OPTIONS, CELERYS)


def check_names_in_annotations(task: Any, app: Celery) -> None:
    """Raises ConfigurationError for a misspelt option in ``task_annotations``."""
    found: Iterable[Any] = resolve_all_annotations(app.annotations, task)
    for given in found:
        # Celery has set them on the class itself.
        check_names_of((name for name in given if not name.startswith("@")), *task.__bases__)


def check_queue_name(name: str) -> None:
    """Raises ConfigurationError when a task's name cannot be its queue's."""
    if not QUEUE_NAME.accepts(name):
        expected = f"{QUEUE_NAME.expected}, since the queue has it, too"
        raise ConfigurationError(invalid("name", name, expected, "Give queue_name=, or another name="))


def function_of(cls: type) -> tuple[Callable[..., Any], bool]:
    """Return the function of a task class, and whether it takes the task as ``self``."""
    run = inspect.getattr_static(cls, "run")
    run = getattr(run, "lowkiq_own", run)
    return (run.__func__, False) if isinstance(run, staticmethod) else (run, True)


def check_function(
    function: Callable[..., Any], bound: bool, by: By | None = None, per_id: bool = False
) -> None:
    """Raises ConfigurationError unless a lane can call the function: with the payloads by id; ``per_id``,
    with an id and its payloads; or with ``by``, with the arguments of a call.
    """
    name = getattr(function, "__qualname__", repr(function))
    if by is None and getattr(function, "__globals__", {}).get("__name__") == PYDANTIC_WRAPPER:
        check_celery_options({"pydantic": True})
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(
            f"{name} is a generator, whose body would never run: write a function without yield"
        )
    if by is not None:
        SignatureForm(function, bound, by)
        return
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    taken = "an id and its payloads" if per_id else "one argument, the payloads by id"
    given = [*(["self"] if bound else []), *(["id", "payloads"] if per_id else ["payloads_by_id"])]
    try:
        signature.bind(*given)
    except TypeError:
        form = f"def sync_order({', '.join(given)}): ..."
        names = [one.name for one in signature.parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
        first = names[bound : bound + 1] if not per_id else []
        hint = f", or name the argument that has the id: by={first[0]!r}" if first else ""
        message = f"{name}{signature} cannot be called with {taken}: write {form}{hint}"
        raise ConfigurationError(message) from None


def as_attributes(options: Mapping[str, Any], owner: str = "") -> dict[str, Any]:
    """Options as class attributes.

    A function does not become a method, unless the body of the class ``owner`` (a qualified name) defines it.
    """
    return {
        name: staticmethod(value) if name in OPTIONS and _is_given(value, f"{owner}.{name}") else value
        for name, value in options.items()
    }


def _is_given(value: Any, method: str) -> bool:
    if isinstance(value, (staticmethod, classmethod)):
        return False
    return callable(value) and getattr(value, "__qualname__", None) != method


def _unwrapped(value: Any) -> Any:
    return value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
