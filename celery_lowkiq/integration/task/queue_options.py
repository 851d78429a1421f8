"""Queue options of an ordered task: what its queue does with a call, and the policies made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, TypedDict

from celery_lowkiq.integration.app.context import context_of
from celery_lowkiq.integration.app.durations import seconds_of
from celery_lowkiq.integration.app.rate_limits import RATE, read_rate
from celery_lowkiq.integration.calls.validation import PRIORITIES, is_priority
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.rules.policies import DROP_STALE_SECONDS, NONE, AfterFailure, Policies, WhenFull
from celery_lowkiq.rules.priorities import MOST_URGENT
from celery_lowkiq.rules.retry_delays import MAX_RETRY_DELAY
from celery_lowkiq.rules.validators import Option, invalid, is_whole, matching, one_of, whole

LARGEST_KEEP = 1000

Duration = float | timedelta
OnPushAfterFailure = Literal["wait", "now"]
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
            "Whether payloads are dropped whose score is below one that was processed with success for their "
            "id. True remembers an id for a week.",
        ),
    ]
    on_push_after_failure: Annotated[
        OnPushAfterFailure,
        Option(
            "wait",
            one_of(OnPushAfterFailure),
            'Whether a call for a job that waits for its retry waits with it (`"wait"`), or makes the job '
            'due `"now"`.',
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
            'What happens to a new job in a full shard. `"refuse"` raises `QueueFull`; `"drop_newest"` '
            'drops the new job, `"drop_oldest"` one that waits.',
        ),
    ]
    on_death: Annotated[
        WhenDead,
        Option(
            "go_on",
            one_of(WhenDead),
            'What happens to newer payloads of an id when one goes to the morgue. `"go_on"`: they run. '
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


def queue_conflicts(options: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Queue options that contradict others: the name of one, what it should be, and what to do."""
    yield from _conflicts_of_time(options)
    yield from _conflicts_of_rates(options)
    keep, portion, retries = options["keep"], options["max_payloads_per_run"], options["max_retries"]
    if keep != "all" and portion is not None and portion >= keep:
        fix = "A job never has more payloads than that: take one of them out"
        yield "max_payloads_per_run", f"less than keep={keep!r}", fix
    if options["when_full"] != WhenFull.REFUSE.value and options["max_length"] is None:
        yield "when_full", "max_length= beside it", "Give max_length=: without it no queue is ever full"
    for name, without_effect in (("retry_priority", None), ("on_push_after_failure", "wait")):
        if options[name] != without_effect and retries == 0:
            yield name, "max_retries= above 0", "Without retries it has no effect: take it out"
    yield from _conflicts_of_death(options)


#: Options that would remove payloads behind a dead one, or the dead one: their value without effect, and why.
_AGAINST_HOLD = {
    "keep": ("all", "It drops payloads for newer ones, which then run over a gap"),
    "latest": (False, "It drops calls for newer ones, which then run over a gap"),
    "drop_stale": (False, "It would drop a dead payload that is requeued"),
}


def _conflicts_of_death(options: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    if options["on_death"] != HOLD:
        if options["hold_max"] != HOLD_MAX:
            yield "hold_max", "on_death='hold' beside it", "Without it no payload waits for a dead one"
        return
    for name, (without_effect, why) in _AGAINST_HOLD.items():
        if options[name] != without_effect:
            yield name, f"{without_effect!r} beside on_death='hold'", f"{why}: take one of them out"
    if options["when_full"] == WhenFull.DROP_OLDEST.value:
        fix = "It drops payloads for newer ones, which then run over a gap: take one of them out"
        yield "when_full", "'refuse' or 'drop_newest' beside on_death='hold'", fix


def _conflicts_of_time(options: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    debounce, longest, ttl = (seconds_of(options[name]) for name in ("debounce", "debounce_max", "job_ttl"))
    if longest is not None and debounce is None:
        yield "debounce_max", "debounce= beside it", "Give debounce=, which it limits"
    if longest is not None and debounce is not None and longest < debounce:
        fix = "With less, no call would put its job off"
        yield "debounce_max", f"at least debounce={options['debounce']!r}", fix
    if ttl is not None and debounce is not None and ttl <= debounce:
        fix = "With less, each payload would be dropped before it may start"
        yield "job_ttl", f"more than debounce={options['debounce']!r}", fix
    if ttl is not None and options["expires"] is not None:
        fix = f"expires={options['expires']!r} limits each call, also after a failure: take one of them out"
        yield "job_ttl", "no expires= beside it", fix


def _conflicts_of_rates(options: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    each, all_ids = read_rate(options["rate_limit_per_id"]), read_rate(options["rate_limit"])
    if each is not None and all_ids is not None and each >= all_ids:
        fix = "All ids together run no more often, so it limits nothing: give a lower one"
        yield "rate_limit_per_id", f"less than rate_limit={options['rate_limit']!r}", fix


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
        on_push_after_failure=AfterFailure.NOW if newest_runs else AfterFailure(task.on_push_after_failure),
        max_length=task.max_length,
        when_full=WhenFull(task.when_full),
        priority=_usual_priority(task),
        retry_priority=task.retry_priority,
        priority_max_wait=context_of(app).settings.priority_max_wait,
        rate_per_id=read_rate(task.rate_limit_per_id) if limited else None,
        anew_on_push=newest_runs,
        hold=task.hold_max if task.on_death == HOLD else None,
        per_run=1 if task.by is not None and not task.latest else task.max_payloads_per_run,
    )
    return NONE if found == NONE else found
