"""Options of tasks: declared once, with checks and texts."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from types import SimpleNamespace
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, TypedDict

from celery import Celery
from celery.app.annotations import resolve_all as resolve_all_annotations
from celery.exceptions import TaskPredicate
from celery.utils.time import rate as celery_rate

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.call_form import PYDANTIC_WRAPPER, By, SignatureForm
from celery_lowkiq.integration.calls import PRIORITIES, is_priority
from celery_lowkiq.integration.decisions import Again, BusinessFailure, JobsFailed, may_fail
from celery_lowkiq.integration.function_adapters import is_async
from celery_lowkiq.integration.records import seconds_of
from celery_lowkiq.integration.settings import RunIn
from celery_lowkiq.rules.basics import package_logger as logger
from celery_lowkiq.rules.errors import ConfigurationError, InvalidCall
from celery_lowkiq.rules.models import MAX_SHARDS
from celery_lowkiq.rules.policies import (
    DROP_STALE_SECONDS,
    MOST_URGENT,
    NONE,
    AfterFailure,
    Policies,
    WhenFull,
)
from celery_lowkiq.rules.retry import ALLOWED, MAX_RETRY_DELAY, is_list, read_delay_function
from celery_lowkiq.rules.validators import (
    Option,
    Validator,
    boolean,
    invalid,
    is_whole,
    matching,
    one_of,
    options_of,
    run_limit,
    whole,
)

# Misspelt names of options. Celery would keep them as attributes of a task, without effect.

#: How similar (0 to 1) a name is to the option that it is taken for.
SIMILAR = 0.8
#: Other names of options, of which the spelling gives no hint: Lowkiq's, and earlier ones of ours.
RENAMED = {
    "shards_count": "shards",
    "max_retry_count": "max_retries",
    "on_death": "when_dead",
    "on_push_after_failure": "when_pushed_after_failure",
}
#: Our options of a call.
OF_A_CALL = ("score", "priority", "countdown", "eta", "tracker")
#: Their short forms.
SHORT = {"prio": "priority"}
#: A name at a call must be more similar: callers may have options of their own, as ``store=`` or ``etag=``.
SIMILAR_AT_A_CALL = 0.86


def check_call_names(task: str, options: Mapping[str, Any]) -> None:
    """Raises InvalidCall for the first option of a call that looks like a misspelt one of ours.

    Celery puts stamps among the options; their names are free.
    """
    for name, value in options.items():
        meant = _meant_at_a_call(name)
        if meant is not None and value is not None and name not in (options.get("stamped_headers") or ()):
            raise InvalidCall(
                f"{name}= is invalid: expected the name of an option of a call of {task}. "
                f"Did you mean {meant}=?"
            )


@lru_cache(maxsize=1024)
def _meant_at_a_call(name: str) -> str | None:
    if name in OF_A_CALL:
        return None
    return SHORT.get(name.lower()) or _similar(name.lower(), OF_A_CALL, SIMILAR_AT_A_CALL)


def _similar(name: str, options: Collection[str], cutoff: float = SIMILAR) -> str | None:
    return next(iter(difflib.get_close_matches(name, options, n=1, cutoff=cutoff)), None)


@contextlib.contextmanager
def naming(task: str) -> Iterator[None]:
    """Put the name of the task in front of a ConfigurationError, for where no traceback is shown."""
    try:
        yield
    except ConfigurationError as error:
        if str(error).startswith(f"{task}: "):
            raise
        raise ConfigurationError(f"{task}: {error}") from error


def data_names(declared: Mapping[str, Any]) -> list[str]:
    """Names in a class body that may be options: no methods, properties or private names."""
    return [
        name
        for name, value in declared.items()
        if not (name.startswith("_") or callable(value) or hasattr(value, "__get__"))
    ]


# Rates, as Celery writes them.


def _runs_a_second(value: Any) -> float | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, (str, int, float))):
        raise ValueError
    try:
        found = float(celery_rate(value))  # type: ignore[arg-type] # celery-types knows text only
    except (ValueError, TypeError, KeyError, OverflowError):
        raise ValueError from None
    if not 0 <= found < math.inf:
        raise ValueError
    return found or None


#: Reads a rate as runs a second; None for no limit.
RATE = Validator(
    "a number (runs a second) or text as '10/s', '100/m', '1000/h'; 0 or None for no limit", _runs_a_second
)


def read_rate(value: Any) -> float | None:
    """Runs a second of a ``rate_limit``; None for no limit. Raises ConfigurationError."""
    rate: float | None = RATE.check("rate_limit", value)
    return rate


# Options of Celery's that an ordered task refuses: each with the reason, and what to use instead.

FIXED = "the number of lanes is fixed when the worker starts. Use -c, or lowkiq_lanes"
ENDLESS = "A thread cannot be stopped from outside. Give run_in='process', or max_run= for an alarm"
THREADS = (
    "its lane runs it in a thread, which cannot be stopped. Use run_in='process', or max_run= for an alarm"
)
_MERGED = "calls of one id are merged into one job"
_STORED = "calls go to the store, not to a broker"
#: Refused at the decorator, and in a class.
REFUSED = {
    "compression": "payloads are stored as their serializer writes them. Send a reference to large data",
    "serializer": f"{_MERGED}, so all have one serializer. Set lowkiq_serializer",
    "exchange": f"{_STORED}. Use queue_name= to name the ordered queue",
    "routing_key": f"{_STORED}. Use queue_name= to name the ordered queue",
    "delivery_mode": f"{_STORED}. Set lowkiq_push_durability, which says what a call waits for",
    "mandatory": f"{_STORED}, which always takes them",
    "immediate": f"{_STORED}, which always takes them",
    "queue": "an ordered task has a queue of its own. Use queue_name= to name it",
    "default_retry_delay": "retry_in= is the delay before a retry. Use it, or self.retry(countdown=)",
    "pydantic": "the function gets payloads by id. Give by=, or validate each payload in the function",
    "Request": "runs come from a lane, not as messages. Use on_failure and the other methods, or signals",
}
#: Refused only of a function that gets payloads by id.
_OF_PLAIN_TASKS = ("pydantic", "default_retry_delay")
#: Tasks of Celery that call another task for each item.
_INLINE = {"celery.map": "map", "celery.starmap": "starmap"}


def check_celery_options(options: Mapping[str, Any], keeps_signature: bool = False) -> None:
    """Raises ConfigurationError for the first option of the decorator, or of a class, that is refused."""
    for name, reason in REFUSED.items():
        if options.get(name) not in (None, False) and not (keeps_signature and name in _OF_PLAIN_TASKS):
            raise ConfigurationError(invalid(name, options[name], f"no {name}=, because {reason}"))
    if options.get("retry_backoff") and not (options.get("autoretry_for") or keeps_signature):
        fix = "Give autoretry_for=, or compute the delay in retry_in="
        expected = "autoretry_for= beside it, without which it has no effect"
        raise ConfigurationError(invalid("retry_backoff", options["retry_backoff"], expected, fix))


def check_caller(task: str, caller: Any) -> None:
    """Raises InvalidCall when Celery's map or starmap calls a task directly."""
    way = _INLINE.get(getattr(caller, "name", ""))
    if way is not None:
        refuse_inline(task, way)


def refuse_inline(task: str, way: str) -> NoReturn:
    """Raises InvalidCall for map, starmap and chunks."""
    raise InvalidCall(
        f"{task}.{way} is not supported: Celery would run the items in one plain task, unordered. Use "
        "a group of signatures, or, without by=, perform_async([...], results=True)"
    )


# Retry options of an ordered task.

RetryDelay = float | timedelta | Literal["exponential"]
RetryIn = RetryDelay | Sequence[RetryDelay] | Callable[[int], Any] | Callable[[Any, int], Any] | None

#: Exceptions by which a task function itself decides about a job: they are no errors.
DECISIONS: tuple[type[BaseException], ...] = (TaskPredicate, Again, BusinessFailure, JobsFailed)


def _are_errors(value: Any) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(kind, type)
        and issubclass(kind, BaseException)
        and may_fail(kind)
        and not issubclass(kind, DECISIONS)
        for kind in value
    )


class RetryOptions(TypedDict, total=False):
    """Options that say whether and when a failed job runs again."""

    max_retries: Annotated[
        int | None,
        Option(25, whole(0).or_none(), "Number of retries of a failed job. 0: no retry. None: no limit."),
    ]
    retry_in: Annotated[
        RetryIn,
        Option(
            None,
            Validator(ALLOWED, read_delay_function),
            "Delay before the next run of a failed job, see [retries](policies.md#retries). None: `n**4 + "
            "15 + randint(0, 29) * (n + 1)` seconds.",
        ),
    ]
    dont_retry: Annotated[
        tuple[type[Exception], ...] | None,
        Option(
            None,
            matching("a tuple of exception classes", _are_errors).or_none(),
            "Exceptions that no retry can fix. The payload with the smallest score goes to the morgue at "
            "once.",
        ),
    ]
    isolate_failures: Annotated[
        bool,
        Option(
            True,
            boolean,
            "A batch that failed as a whole runs again in halves, so that a job dies only when it fails "
            "alone or is named. False: all jobs of the batch are retried and die together, as in "
            "Lowkiq. See [a bad payload among others](policies.md#a-bad-payload-among-others).",
        ),
    ]
    on_retries_exhausted: Annotated[
        Callable[[list[Any]], Any] | None,
        Option(
            None,
            matching("a function", callable).or_none(),
            "Called with a list of the jobs that died in a run: `id`, `payloads` and `scores` (of [the dead "
            "payload only](outcomes.md)), `retry_count`, `error`.",
        ),
    ]


# Queue options of an ordered task: what its queue does with a call, and the policies made of them.

LARGEST_KEEP = 1000

Duration = float | timedelta
WhenPushedAfterFailure = Literal["wait", "now"]
WhenQueueFull = Literal["refuse", "drop_newest", "drop_oldest"]
WhenDead = Literal["go_on", "hold"]
HOLD = "hold"
#: Default of ``hold_max``.
HOLD_MAX = 10_000


DURATION = matching(
    f"seconds above 0 up to {MAX_RETRY_DELAY:,.0f}, or a timedelta",
    lambda value: seconds_of(value) is not None,
)
PRIORITY = matching(PRIORITIES, lambda value: value is None or is_priority(value))


class QueueOptions(TypedDict, total=False):
    """Options that say what the queue does with a call. See docs/policies.md."""

    keep: Annotated[
        int | Literal["all"],
        Option(
            "all",
            matching(
                f"'all', or a whole number of payloads from 1 to {LARGEST_KEEP}",
                lambda value: value == "all" or is_whole(value, 1, LARGEST_KEEP),
            ),
            "Number of payloads that a waiting job keeps, those with the highest scores. See [policies of a "
            "queue](policies.md#policies-of-a-queue) for this and the options down to `job_ttl`.",
        ),
    ]
    debounce: Annotated[
        Duration | None, Option(None, DURATION.or_none(), "Each call makes its job due this long after it.")
    ]
    debounce_max: Annotated[
        Duration | None,
        Option(None, DURATION.or_none(), "A `debounce` ends this long after the first call that waits."),
    ]
    drop_stale: Annotated[
        bool | Duration,
        Option(
            False,
            matching(
                f"True, False, or for how long an id is remembered: {DURATION.expected}",
                lambda value: isinstance(value, bool) or DURATION.accepts(value),
            ),
            "Payloads with a score below one that was processed with success for their id are dropped. True "
            "remembers an id for a week.",
        ),
    ]
    when_pushed_after_failure: Annotated[
        WhenPushedAfterFailure,
        Option(
            "wait",
            one_of(WhenPushedAfterFailure),
            'A call for a job that waits for its retry waits with it (`"wait"`), or makes the job due '
            '`"now"`.',
        ),
    ]
    max_length: Annotated[
        int | None,
        Option(
            None,
            whole(1, of="jobs").or_none(),
            "Number of jobs that may wait in the queue. A shard has its part of it, rounded up.",
        ),
    ]
    when_full: Annotated[
        WhenQueueFull,
        Option(
            "refuse",
            one_of(WhenQueueFull),
            'A new job in a full shard: `"refuse"` raises `QueueFull`; `"drop_newest"` drops the new job, '
            '`"drop_oldest"` one that waits.',
        ),
    ]
    when_dead: Annotated[
        WhenDead,
        Option(
            "go_on",
            one_of(WhenDead),
            'Newer payloads of an id when one goes to the morgue. `"go_on"`: they run. '
            '`"hold"`: they wait until an operator has decided about the dead one, see [order after a '
            "failure](order-after-failure.md).",
        ),
    ]
    hold_max: Annotated[
        int,
        Option(
            HOLD_MAX,
            whole(1, of="payloads"),
            "Number of payloads of an id that may wait behind a dead one. Further calls raise `QueueFull`.",
        ),
    ]
    job_ttl: Annotated[
        Duration | None,
        Option(
            None,
            DURATION.or_none(),
            "A payload is dropped when it has not started to run this long after its call. It does not apply "
            "once the job has failed.",
        ),
    ]
    priority: Annotated[
        int | None,
        Option(
            None,
            PRIORITY,
            "Priority of calls that give none, see [priority of a call](policies.md#priority-of-a-call). "
            "None: `task_default_priority`, or 0.",
        ),
    ]
    retry_priority: Annotated[
        int | None,
        Option(None, PRIORITY, "Priority of a job that waits for its retry. None: the job keeps its own."),
    ]
    rate_limit_per_id: Annotated[
        str | float | None,
        Option(
            None,
            RATE,
            "How often each id may run, as Celery's `rate_limit`. See [limits](policies.md#limits).",
        ),
    ]


def _usual_priority(task: Any) -> int:
    """Celery has filled in task_default_priority. Raises ConfigurationError."""
    if not PRIORITY.accepts(task.priority):
        fix = f"Give {task.name} a priority= of its own"
        raise ConfigurationError(invalid("task_default_priority", task.priority, PRIORITIES, fix))
    return task.priority or MOST_URGENT


def policies_of(task: Any) -> Policies:
    """The policies that the store applies. Raises ConfigurationError."""
    app = task._get_app()
    limited = not app.conf.worker_disable_rate_limits
    # The newest call does not wait for the retry of one that it supersedes.
    newest_runs = task.latest and task.max_retries != 0
    stale = DROP_STALE_SECONDS if task.drop_stale is True else seconds_of(task.drop_stale)
    found = Policies(
        keep=1 if task.latest else None if task.keep == "all" else task.keep,
        debounce=seconds_of(task.debounce),
        debounce_max=seconds_of(task.debounce_max),
        drop_stale=stale,
        when_pushed_after_failure=AfterFailure.NOW
        if newest_runs
        else AfterFailure(task.when_pushed_after_failure),
        max_length=task.max_length,
        when_full=WhenFull(task.when_full),
        priority=_usual_priority(task),
        retry_priority=task.retry_priority,
        priority_max_wait=context_of(app).settings.priority_max_wait,
        rate_per_id=read_rate(task.rate_limit_per_id) if limited else None,
        anew_on_push=newest_runs,
        hold=task.hold_max if task.when_dead == HOLD else None,
        per_run=1 if task.by is not None and not task.latest else task.max_payloads_per_run,
    )
    return NONE if found == NONE else found


# Options of an ordered task: declared once, and checked when a function is decorated or a class is made.

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
            "The score that stays when two payloads of an id are equal.",
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
            "The function is called for each id of a batch, as `f(id, payloads)`. It returns the "
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
RELATED = ("autoretry_for", "dont_autoretry_for", "expires", "rate_limit")


# Options that contradict others.


class Conflict(NamedTuple):
    """A row of CONFLICTS."""

    option: str
    #: The value that contradicts nothing.
    idle: Any
    #: True if any other value contradicts the options, which are attributes.
    contradicts: Callable[[Any], Any]
    #: Both texts may have the values of options.
    expected: str
    fix: str


def _has_by(o: Any) -> Any:
    return o.by is not None


def _holds(o: Any) -> Any:
    return o.when_dead == HOLD


def _never_retries(o: Any) -> Any:
    return o.max_retries == 0


def _derived(options: Mapping[str, Any]) -> dict[str, Any]:
    """Values that conflicts depend on, beside those of options."""
    retried = options["autoretry_for"] or ()
    return {
        "both": ", ".join(kind.__name__ for kind in options["dont_retry"] or () if kind in retried),
        "delays": len(options["retry_in"]) if is_list(options["retry_in"]) else None,
        "seconds": {n: seconds_of(options[n]) or 0.0 for n in ("debounce", "debounce_max", "job_ttl")},
        "rate": read_rate(options["rate_limit"]) or math.inf,
        "rate_per_id": read_rate(options["rate_limit_per_id"]) or 0.0,
    }


_ALONE = "Each call of a task with by= runs alone: take it out"
_NO_BY = "no by= beside it"
_UNHELD = "beside when_dead='hold'"
_GAP = "for newer ones, which then run over a gap: take one of them out"
_NO_RETRIES = ("max_retries= above 0", "Without retries it has no effect: take it out")
#: The first one is reported, so a row may rely on those above it.
CONFLICTS = (
    Conflict("key", None, _has_by, _NO_BY, "Both say where the id of a call is: take one of them out"),
    Conflict("batch_size", 1, _has_by, _NO_BY, _ALONE),
    Conflict("max_payloads_per_run", None, _has_by, _NO_BY, _ALONE),
    Conflict("keep", "all", _has_by, _NO_BY, "Use latest=True to run the newest call alone"),
    Conflict("per_id", False, _has_by, _NO_BY, _ALONE),
    Conflict(
        "latest",
        False,
        lambda o: o.by is None,
        "by= beside it",
        "Give by=, or use keep=1 for a function that gets payloads by id",
    ),
    Conflict(
        "time_limit",
        None,
        lambda o: o.run_in != "process",
        "run_in='process' beside it, because a lane is a thread",
        ENDLESS,
    ),
    Conflict(
        "soft_time_limit",
        None,
        lambda o: o.run_in != "process" and not is_async(o.run),
        "run_in='process' beside it, or an async def function, because a lane is a thread",
        ENDLESS,
    ),
    Conflict(
        "merge",
        None,
        lambda o: o.latest,
        "no latest= beside it",
        "With latest=True one call of an id waits: take merge= out",
    ),
    Conflict(
        "debounce_max",
        None,
        lambda o: o.debounce is None,
        "debounce= beside it",
        "Give debounce=, which it limits",
    ),
    Conflict(
        "debounce_max",
        None,
        lambda o: o.seconds["debounce_max"] < o.seconds["debounce"],
        "at least debounce={debounce!r}",
        "With less, no call would put its job off",
    ),
    Conflict(
        "job_ttl",
        None,
        lambda o: o.seconds["job_ttl"] <= o.seconds["debounce"],
        "more than debounce={debounce!r}",
        "With less, each payload would be dropped before it may start",
    ),
    Conflict(
        "job_ttl",
        None,
        lambda o: o.expires is not None,
        "no expires= beside it",
        "expires={expires!r} limits each call, also after a failure: take one of them out",
    ),
    Conflict(
        "rate_limit_per_id",
        None,
        lambda o: o.rate_per_id >= o.rate,
        "less than rate_limit={rate_limit!r}",
        "All ids together run no more often, so it limits nothing: give a lower one",
    ),
    Conflict(
        "max_payloads_per_run",
        None,
        lambda o: o.keep != "all" and o.max_payloads_per_run >= o.keep,
        "less than keep={keep!r}",
        "A job never has more payloads than that: take one of them out",
    ),
    Conflict(
        "when_full",
        "refuse",
        lambda o: o.max_length is None,
        "max_length= beside it",
        "Give max_length=: without it no queue is ever full",
    ),
    Conflict("retry_priority", None, _never_retries, *_NO_RETRIES),
    Conflict("when_pushed_after_failure", "wait", _never_retries, *_NO_RETRIES),
    Conflict(
        "hold_max",
        HOLD_MAX,
        lambda o: not _holds(o),
        "when_dead='hold' beside it",
        "Without it no payload waits for a dead one",
    ),
    Conflict("keep", "all", _holds, f"'all' {_UNHELD}", f"It drops payloads {_GAP}"),
    Conflict("latest", False, _holds, f"False {_UNHELD}", f"It drops calls {_GAP}"),
    Conflict(
        "drop_stale",
        False,
        _holds,
        f"False {_UNHELD}",
        "It would drop a dead payload that is requeued: take one of them out",
    ),
    Conflict(
        "when_full",
        "refuse",
        lambda o: _holds(o) and o.when_full == WhenFull.DROP_OLDEST.value,
        f"'refuse' or 'drop_newest' {_UNHELD}",
        f"It drops payloads {_GAP}",
    ),
    Conflict(
        "max_retries",
        ...,
        lambda o: o.delays is not None and o.given.get("max_retries", o.delays) != o.delays,
        "{delays}, the number of delays in retry_in={retry_in!r}",
        "Leave max_retries= out",
    ),
    Conflict(
        "dont_retry",
        None,
        lambda o: o.dont_retry and o.dont_autoretry_for,
        "no dont_autoretry_for= beside it, which means the same",
        "Name all exceptions in dont_retry=",
    ),
    Conflict(
        "dont_retry",
        None,
        lambda o: o.both,
        "exceptions that are not in autoretry_for=, as {both} is",
        "Take it out of one of them",
    ),
)


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
    known = {**all_options, **_derived(all_options), "given": given}
    for name, idle, contradicts, *texts in CONFLICTS:
        if known[name] != idle and contradicts(SimpleNamespace(**known)):
            expected, fix = (text.format_map(known) for text in texts)
            raise ConfigurationError(invalid(name, known[name], expected, fix))
    check_celery_options(options, keeps_signature=all_options["by"] is not None)
    check_function(function, bound, all_options["by"], all_options["per_id"])


def check_names_of(given: Iterable[str], *bases: Any) -> None:
    """Raises ConfigurationError for the first name that looks like an option, ours or Celery's.

    Any other name is an attribute of the user's own; those of ``bases`` are known.
    """
    known = {name for base in bases for name in dir(base)}.union(OPTIONS, CELERYS)
    for name in given:
        if name not in known and (
            meant := RENAMED.get(name) or _similar(name, OPTIONS) or _similar(name, CELERYS)
        ):
            raise ConfigurationError(
                f"{name}= is invalid: expected the name of an option. Did you mean {meant}=? An attribute of "
                "your own needs a name that is less similar"
            )


def check_names_in_annotations(task: Any, app: Celery) -> None:
    """Raises ConfigurationError for a misspelt option in ``task_annotations``."""
    found: Iterable[Any] = resolve_all_annotations(app.annotations, task)
    for given in found:
        # Celery has set them on the class itself.
        check_names_of((name for name in given if not name.startswith("@")), *task.__bases__)


def check_queue_name(name: str) -> None:
    """Raises ConfigurationError when a task's name cannot be its queue's."""
    if not QUEUE_NAME.accepts(name):
        expected = f"{QUEUE_NAME.expected}, because the queue has it, too"
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


# Options of a call that a broker would need: what they mean for an ordered task, or why they are refused.

_ROUTED = "calls of one id must stay in one queue, which queue_name= at the decorator names"
_SERIALIZED = "calls of one id are merged, so all have one serializer: lowkiq_serializer"
#: Without effect, because they only say how a message travels: logged once for each task.
IGNORED_AT_A_CALL = {
    "queue": _ROUTED,
    "exchange": _ROUTED,
    "routing_key": _ROUTED,
    "router": _ROUTED,
    "serializer": _SERIALIZED,
    "compression": "payloads are stored as their serializer writes them",
    "delivery_mode": f"{_STORED}. lowkiq_push_durability says what a call waits for",
    "mandatory": f"{_STORED}, which always takes them",
    "immediate": f"{_STORED}, which always takes them",
    "connection": f"{_STORED}. lowkiq_url says where that is",
}
#: Refused, because the call would mean something else.
REFUSED_AT_A_CALL = {
    "expiration": f"{_STORED}. Use expires= to say until when a call may run",
    "retries": "the store counts them. Use max_retries= at the decorator, or self.retry(max_retries=)",
    "perform_in": "only perform_async() takes it. Use eta= for a time, or countdown= for seconds from now",
}
#: Values that Celery itself passes with a call.
_CELERYS_DEFAULTS = {"retries": 0}
_BY_NAME = (
    "send_task() makes it a property of the message, which some brokers drop. Write "
    "headers={{'lowkiq': {{'{name}': ...}}}}"
)
#: In the order of Celery's header ``timelimit``.
LIMITS = ("time_limit", "soft_time_limit")


def take_ignored(task: Any, options: dict[str, Any]) -> None:
    """Take out the options of a call that have no effect, and warn of them.

    Raises InvalidCall for the first refused one.
    """
    queue = task.queue_spec.name
    for name, reason in IGNORED_AT_A_CALL.items():
        value = options.pop(name, None)
        if value and getattr(value, "name", value) != queue:
            warn_once(task, name, f"{name}= of a call is ignored, because {reason}")
    for name, reason in REFUSED_AT_A_CALL.items():
        if options.get(name) not in (None, _CELERYS_DEFAULTS.get(name)):
            _refuse(name, options[name], task.name, reason)
    check_call_names(task.name, options)
    for name in LIMITS:
        if not run_limit.accepts(options.get(name)):
            raise InvalidCall(invalid(name, options[name], run_limit.expected))
    warn_of_limits(task, options)


def check_message(task: str, properties: Mapping[str, Any]) -> None:
    """Raises InvalidCall for what a call by name may not ask for; its sender does not know the task."""
    for name in ("score", "perform_in"):
        if properties.get(name) is not None:
            _refuse(name, properties[name], task, _BY_NAME.format(name=name))


def warn_of_limits(task: Any, limits: Mapping[str, Any]) -> None:
    """Warn of the time limits of a call, or of a task, that its runs cannot keep."""
    for name in LIMITS:
        value = limits.get(name)
        if value is not None and not _keeps(task, name):
            warn_once(
                task,
                name,
                f"{name}={value!r} has no effect, because a lane runs the task in a thread, which nothing "
                "can stop. Give the task run_in='process', or max_run= for an alarm",
            )


def _keeps(task: Any, limit: str) -> bool:
    in_process = (task.run_in or context_of(task._get_app()).settings.run_in) == "process"
    return in_process or (limit == "soft_time_limit" and is_async(task.run))


def warn_once(task: Any, option: str, text: str) -> None:
    """Log a warning about an option, once in this process for each task."""
    warned: set[str] = task.__dict__.setdefault("_warned_options", set())
    if option not in warned:
        warned.add(option)
        logger.warning("%s: %s", task.name, text)


def _refuse(name: str, value: Any, task: str, reason: str) -> NoReturn:
    raise InvalidCall(invalid(name, value, f"no {name}= in a call of {task}, because {reason}"))
