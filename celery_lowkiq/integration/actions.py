"""Actions: each declared once, for code, CLI, API, pages and remote control."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from celery_lowkiq.integration.calls import read_id
from celery_lowkiq.integration.codec import refuse_constant
from celery_lowkiq.integration.json_records import mark_of
from celery_lowkiq.integration.queue import (
    Matches,
    OrderedQueue,
    read_filter,
    read_rate,
    read_since,
    read_text,
)
from celery_lowkiq.rules.errors import InvalidCall, LowkiqError
from celery_lowkiq.rules.job_filter import age_bounds
from celery_lowkiq.rules.models import MAX_SHARDS
from celery_lowkiq.rules.redaction import MASK
from celery_lowkiq.rules.text import count_of, duration, lacking
from celery_lowkiq.rules.validators import is_whole, whole
from celery_lowkiq.rules.views import Stats
from celery_lowkiq.store.progress import Progress

# The parts of an action: its scope, its parameters, its target, and its texts.

#: Maximum number of ids of one change.
MAX_IDS = 1000


@dataclass(frozen=True)
class Parameter:
    """A value that an action takes beside ids. ``kind``: str, object for any JSON, or int."""

    name: str
    kind: type
    text: str
    maximum: int = 0
    minimum: int = 0
    #: Raises InvalidCall for a text that is invalid.
    read_text: Callable[[str], object] | None = None

    def check(self, value: Any) -> Any:
        """Return the value. Raises InvalidCall."""
        if self.kind is object:
            return _json(self, json.dumps(value))
        if self.kind is int and not is_whole(value, self.minimum, self.maximum):
            raise self._invalid(value, whole(self.minimum, self.maximum).expected)
        if self.kind is str and not isinstance(value, str):
            raise self._invalid(value, "a text")
        if self.read_text is not None:
            self.read_text(value)
        return value

    def read(self, text: str) -> Any:
        """Return the value that a text, as in a form, stands for. Raises InvalidCall."""
        if self.kind is object:
            return _json(self, text)
        is_digits = text.isascii() and text.isdigit() and len(text) <= 10
        return self.check(int(text) if self.kind is int and is_digits else text)

    def write(self, value: Any) -> str:
        """The text that :meth:`read` reads."""
        return json.dumps(value) if self.kind is object else str(value)

    def _invalid(self, value: Any, expected: str) -> InvalidCall:
        return InvalidCall(f"{self.name}={value!r:.100} is invalid: expected {expected}")


def _json(parameter: Parameter, text: str) -> Any:
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        raise InvalidCall(f"{parameter.name} is invalid: expected JSON. Nothing was changed") from None


SHARD = Parameter("shard", int, "number of the shard", maximum=MAX_SHARDS - 1)
SHARDS = Parameter("shards", int, "number of shards", minimum=1, maximum=MAX_SHARDS)
MARK = Parameter("mark", str, "mark of the payload, as the job shows it")
VALUE = Parameter("value", object, "the new payload")


#: Parameters of actions on the jobs that match; at least one of FILTERS is given.
ERROR = Parameter(
    "error", str, "error of the jobs: its type, or a pattern of its line with * and ?", read_text=read_text
)
FAILURE = Parameter("failure", str, "fingerprint of the group of failures", read_text=read_text)
SINCE = Parameter(
    "since",
    str,
    "time since when the jobs failed: 30min, 2h, 7d ago, or a Unix time in s",
    read_text=read_since,
)
PREFIX = Parameter("prefix", str, "beginning of the ids of the jobs", read_text=read_text)
STATE = Parameter("state", str, "state of the jobs: due, scheduled, paused or held", read_text=read_text)
AGE = Parameter(
    "age",
    str,
    "time for which the jobs are due or dead: `>2h` or `<30min`",
    read_text=lambda text: age_bounds(text, time.time()),
)
LIMIT = Parameter("limit", int, "maximum number of jobs", minimum=1, maximum=10**9)
RATE = Parameter("rate", str, "maximum rate, as 50/s or 600/m", read_text=read_rate)
FILTERS = (ERROR, FAILURE, SINCE, PREFIX, STATE, AGE)
MATCHING = (*FILTERS, LIMIT, RATE)


@dataclass(frozen=True)
class Target:
    """The ids and values that an action gets."""

    ids: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def given(self) -> set[str]:
        """Names of what is given."""
        return {*self.values, *(["ids"] if self.ids else [])}


@dataclass(frozen=True)
class Scope:
    """Things that an action changes. It counts ``kind`` and ``unit`` (without a unit: changed or not).

    ``total`` returns the number of all jobs or ids of the scope.
    """

    kind: str = ""
    unit: str = "job"
    ids: bool = False
    parameters: tuple[Parameter, ...] = ()
    total: Callable[[Stats], int] | None = None
    #: Option of CLI commands that chooses it.
    option: str = ""
    #: Listings of a queue's page that offer its actions.
    listings: tuple[str, ...] = ()


QUEUE = Scope(unit="")
ONE_SHARD = Scope(unit="", parameters=(SHARD,), listings=("shards",))
IDS = Scope(unit="id", ids=True, listings=("jobs",))
PAUSED_IDS = Scope(unit="id", ids=True, listings=("paused",))
HELD_IDS = Scope("held", "id", ids=True, listings=("held",))
WAITING_IDS = Scope("waiting", ids=True, listings=("jobs", "retries"))
DEAD_IDS = Scope("dead", ids=True, listings=("morgue",))
DEAD_OR_HELD_IDS = Scope("dead", ids=True, listings=("morgue", "held"))
#: The move of a queue to another number of shards, begun or going on. The CLI has a command of its own.
RESHARD = Scope(total=lambda stats: stats.length)
MIGRATION = Scope(unit="")
PAYLOAD = Scope(unit="payload", ids=True, parameters=(MARK,))
DEAD_PAYLOAD = Scope("dead", "payload", ids=True, parameters=(MARK,))
ALL_WAITING = Scope("waiting", total=lambda stats: stats.length, option="all", listings=("jobs",))
ALL_FAILED = Scope("failed", total=lambda stats: stats.retries, option="failed", listings=("retries",))
ALL_DEAD = Scope("dead", total=lambda stats: stats.morgue_length, option="all", listings=("morgue",))
#: Jobs that match a filter; the ones of dead jobs need no option.
MATCHING_FAILED = Scope("failed")
MATCHING_DEAD = Scope("dead")
ALL_PAUSED_IDS = Scope(
    "paused", "id", total=lambda stats: stats.paused_ids, option="all-ids", listings=("paused",)
)

#: Returns how many jobs or ids changed.
Call = Callable[["OrderedQueue", Target, "Progress | None"], int]


@dataclass(frozen=True)
class Action:
    """A verb applied to a scope. ``label`` is the text of its button, ``effect`` explains it."""

    name: str
    scope: Scope
    label: str
    effect: str
    #: None: the method of OrderedQueue that has the name of the action.
    call: Call | None = None
    #: Options of the CLI command that choose this action, beside the one of its scope.
    options: tuple[str, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    #: Further parameters that may be left out.
    optional: tuple[Parameter, ...] = ()
    #: Returns the number of jobs that it would change; None: all of its scope.
    count: Callable[[OrderedQueue, Target], int] | None = None
    #: Needs a confirmation; not offered in Flower and by remote control, which cannot ask.
    dangerous: bool = False
    #: Offered only for queues with this policy.
    policy: str = ""
    #: True if it is offered for a queue; None: for each.
    available: Callable[[OrderedQueue], bool] | None = None
    #: Returns what it would do now, for the question before a dangerous action. Raises LowkiqError.
    plan: Callable[[OrderedQueue, Target], str] | None = None
    # Words after its verb.
    verb: str = ""
    done: str = ""
    unchanged: str = "nothing to change"

    @property
    def takes(self) -> tuple[Parameter, ...]:
        """All its parameters."""
        return (*self.scope.parameters, *self.parameters, *self.optional)

    @property
    def asks(self) -> bool:
        """True when pages ask before it: it is dangerous, or changes all jobs, or all that match."""
        return self.dangerous or bool(self.optional) or self.scope.total is not None

    @property
    def waits_for_moves(self) -> bool:
        """True when it is refused while the queue moves to another number of shards."""
        return self.scope not in (QUEUE, RESHARD, MIGRATION)

    @property
    def all_options(self) -> tuple[str, ...]:
        """CLI options that choose this action among the actions of its verb."""
        return (self.scope.option, *self.options) if self.scope.option else self.options

    @property
    def asks_on_command_line(self) -> bool:
        """True when the CLI asks for confirmation: it is dangerous, or makes jobs of a whole queue run."""
        return self.dangerous or self.scope.option == "all"

    @property
    def on_command_line(self) -> bool:
        """True when the CLI has a command for it. Only pages and the API show the mark of a payload."""
        return MARK not in self.takes and self.scope is not RESHARD and self.scope is not MIGRATION

    @property
    def needs(self) -> set[str]:
        """Names of all that must be given."""
        needed = (one.name for one in self.takes if one not in self.optional)
        return {*needed, *(["ids"] if self.scope.ids else [])}

    def suits(self, given: set[str]) -> bool:
        """Test that all required names are given, at least one filter, and nothing else."""
        filters = {one.name for one in FILTERS if one in self.optional}
        extra = {one.name for one in self.optional}
        return self.needs <= given <= self.needs | extra and (not filters or bool(filters & given))

    def target(self, queue: OrderedQueue, ids: Sequence[str], values: Mapping[str, Any]) -> Target:
        """The checked target. Raises InvalidCall."""
        target = Target(tuple(map(read_id, ids)), values)
        if not self.suits(target.given):
            expected = _names(self.needs) if not self.optional else f"at least one of {filter_names()}"
            raise InvalidCall(
                f"action={self.name!r} is invalid with {_names(target.given)}: expected {expected}"
            )
        if len(ids) > MAX_IDS:
            raise InvalidCall(f"{len(ids)} ids are invalid: expected at most {MAX_IDS} at once")
        if MARK in self.takes and len(ids) != 1:
            raise InvalidCall(f"action={self.name!r} is invalid with {len(ids)} ids: expected one")
        checked = {one.name: one.check(values[one.name]) for one in self.takes if one.name in values}
        if SHARD in self.takes and checked[SHARD.name] > (last := queue.stored_spec().shards - 1):
            raise InvalidCall(f"shard={checked[SHARD.name]} is invalid: expected a shard from 0 to {last}")
        return Target(target.ids, checked)

    def run(self, queue: OrderedQueue, target: Target, progress: Progress | None = None) -> int:
        """Do it to the checked target. Returns how many jobs or ids changed. Raises StoreError."""
        if self.call is not None:
            return self.call(queue, target, progress)
        ids = (target.ids,) if self.scope.ids else ()
        return int(getattr(queue, self.name)(*ids, progress))

    def total(self, queue: OrderedQueue, target: Target) -> int:
        """Return the approximate number of its jobs. Raises StoreError."""
        if self.count is not None:
            return self.count(queue, target)
        return self.scope.total(queue.stats()) if self.scope.total else max(1, len(target.ids))

    def fits(self, queue: OrderedQueue) -> bool:
        """Test whether it is offered for the queue."""
        if self.available is not None and not self.available(queue):
            return False
        return not self.policy or bool(getattr(queue.spec.policies, self.policy))

    def question(self, queue: str, target: Target, count: int) -> str:
        """The question before a dangerous action."""
        if self.scope is HELD_IDS:
            # Some of them may not be held.
            return f"{self.label}: {count_of(count, 'id')} of queue {queue}?"
        return f"{self.label}: {self._things(queue, target, count)}?"

    def said(self, queue: str, target: Target, count: int) -> str:
        """The message after the action."""
        things = self._things(queue, target, count)
        return f"{self.done} {things}" if count or self.scope.unit else f"{things}: {self.unchanged}"

    def _things(self, queue: str, target: Target, count: int) -> str:
        if self.scope is ONE_SHARD:
            return f"shard {target.values[SHARD.name]} of queue {queue}"
        if SHARDS.name in target.values:
            return f"queue {queue} to {count_of(target.values[SHARDS.name], 'shard')}"
        if self.scope is MIGRATION:
            return f"the move of queue {queue}"
        if not self.scope.unit:
            return f"queue {queue}"
        return f"{count_of(count, f'{self.scope.kind} {self.scope.unit}'.lstrip())} of queue {queue}"


def filter_names(prefix: str = "", last: str = "and") -> str:
    """Return the names of all filters in a sentence."""
    *names, end = (f"{prefix}{one.name}" for one in FILTERS)
    return f"{', '.join(names)} {last} {end}"


def _names(found: set[str]) -> str:
    return " and ".join(sorted(found)) or "nothing but the queue"


@dataclass(frozen=True)
class Verb:
    """A CLI command and a remote control command: for a queue with actions to choose from, or for a node."""

    name: str
    summary: str
    text: str
    examples: tuple[str, ...]
    actions: tuple[Action, ...] = ()
    #: The answer of a node; "" when the verb is for queues.
    node_reply: str = ""

    @property
    def moves(self) -> bool:
        """True when its action moves the queue to another number of shards, or stops that."""
        return any(one.scope is RESHARD or one.scope is MIGRATION for one in self.actions)

    def remote(self, ids: bool) -> Action | None:
        """The action that remote control may choose, for ids or for all."""
        found = (one for one in self.actions if one.scope.ids == ids and not (one.dangerous or one.takes))
        return next(found, None)


def verb(
    name: str, summary: str, text: str, *actions: Action, examples: tuple[str, ...], **shared: Any
) -> Verb:
    """``shared``: fields that all actions of the verb have."""
    lines = tuple(f"{name.replace('_', '-')} {one}" for one in examples)
    return Verb(name, summary, text, lines, tuple(replace(one, verb=name, **shared) for one in actions))


# Actions on the failing or dead jobs that match a filter.


def _matches(queue: OrderedQueue, target: Target, *, dead: bool) -> Matches:
    return queue.matching(read_filter(target.values), dead=dead)


def _match_plan(queue: OrderedQueue, target: Target, *, dead: bool) -> str:
    found = _matches(queue, target, dead=dead)
    kind = "dead" if dead else "failed"
    plan = f"{found.count:,} {kind} jobs match: searched {found.searched:,} of {found.jobs:,}."
    return " ".join([plan, *lacking(found.unreachable)])


def matching(
    name: str, label: str, change: str, effect: str, *, dead: bool, options: tuple[str, ...] = ()
) -> Action:
    """An action on the jobs that match a filter; ``change`` is the method that changes ids."""

    def call(queue: OrderedQueue, target: Target, progress: Progress | None) -> int:
        only_failed = {} if dead else {"only_failed": True}
        rate = target.values.get(RATE.name)
        return queue.change_matching(
            partial(getattr(queue, change), **only_failed),
            read_filter(target.values),
            dead=dead,
            limit=target.values.get(LIMIT.name),
            rate=read_rate(rate) if rate else None,
            progress=progress,
        )

    def count(queue: OrderedQueue, target: Target) -> int:
        found = _matches(queue, target, dead=dead).count
        return min(found, target.values.get(LIMIT.name) or found)

    return Action(
        name,
        MATCHING_DEAD if dead else MATCHING_FAILED,
        label,
        effect,
        call=call,
        options=options,
        optional=MATCHING,
        count=count,
        plan=partial(_match_plan, dead=dead),
    )


# Actions on one payload of a waiting or dead job.

#: Payloads of a job that are searched for a mark, those with the smallest scores.
SEARCHED = 1000
#: Characters of a payload in the audit log.
SHOWN = 200


class PayloadGone(LowkiqError):
    """The job has no such payload any more."""


def _payload(queue: OrderedQueue, target: Target, *, dead: bool = False) -> bytes:
    """The payload with the target's mark. Raises PayloadGone."""
    places = queue.raw().job(target.ids[0], payload_limit=SEARCHED)
    job = places.dead if dead else places.waiting
    for payload in job.payloads if job else ():
        if mark_of(payload) == target.values[MARK.name]:
            return bytes(payload.value)
    there = "is not dead" if dead else "does not wait"
    raise PayloadGone(f"the job {there} any more, or has no such payload any more. Nothing was changed")


def payload_change(queue: OrderedQueue, action: Action, target: Target) -> str:
    """Describe the change of a payload, with masks, for the audit log. Raises StoreError."""
    try:
        old = _payload(queue, target, dead=action.scope is DEAD_PAYLOAD)
    except PayloadGone:
        return ""
    shown = queue.shown_bytes(old)[:SHOWN]
    if VALUE.name not in target.values:
        return shown
    return f"{shown} -> {queue.shown_value(target.values[VALUE.name])[:SHOWN]}"


def _new(queue: OrderedQueue, target: Target) -> Any:
    """The new payload. Raises InvalidCall for one with a mask: the secret would be lost."""
    value = target.values[VALUE.name]
    if queue.has_mask(value):
        raise InvalidCall(
            f"{VALUE.name} is invalid: expected a payload without {MASK!r}, which stands for a secret that "
            "was not shown. Read the job without masks, and edit that. Nothing was changed"
        )
    return value


# The actions of operators, declared once.
#
# The CLI commands, the actions of the JSON API, the buttons of the pages, the actions in Flower and the
# remote control commands are made from VERBS. A new action is one entry in it.


def _reshard_plan(queue: OrderedQueue, target: Target) -> str:
    cost = queue.reshard_cost(target.values[SHARDS.name])
    return (
        f"The queue has {count_of(cost.former, 'shard')}. {cost.leaving} of {count_of(cost.jobs, 'job')}, "
        f"{cost.leaving_bytes / 2**20:.1f} MiB, would change shards: about {duration(cost.seconds)}."
    )


VERBS = (
    verb(
        "run_now",
        "Make waiting jobs due now.",
        """Make waiting jobs of QUEUE due now, also retries and jobs that were to run later: some IDS (-: from
        stdin), or all.
        """,
        Action("run_now", WAITING_IDS, "Run now", "These waiting jobs become due now."),
        Action("run_now_all", ALL_WAITING, "Run all now", "All waiting jobs become due now."),
        done="made due",
        examples=("sync_order 42", "sync_order --all"),
    ),
    verb(
        "pause",
        "Pause a queue, a shard or ids.",
        """Pause QUEUE, or one shard or some IDS of it (-: from stdin).

        Within a second no node starts anything new of it. Running jobs finish, new calls wait. The pause
        stays in Redis until `resume`. An id can be paused before it has a job. Status 1 when it was paused
        before.
        """,
        Action(
            "pause",
            QUEUE,
            "Pause",
            "No node starts anything new of the queue; running jobs finish.",
            call=lambda queue, *_: int(queue.pause()),
        ),
        Action(
            "pause_shard",
            ONE_SHARD,
            "Pause",
            "No node starts anything new of the shard; running jobs finish.",
            call=lambda queue, target, _: int(queue.pause(shard=target.values["shard"])),
        ),
        Action(
            "pause_ids", IDS, "Pause", "Jobs of these ids, also new ones, wait until the ids are resumed."
        ),
        done="paused",
        unchanged="paused before",
        examples=("sync_order", "sync_order --shard 3", "sync_order 42 43"),
    ),
    verb(
        "resume",
        "Resume a queue, a shard or ids.",
        """Resume QUEUE, or one shard or some IDS of it (-: from stdin): its jobs are due at their own time.

        Each is resumed by itself: a paused id stays paused when its queue is resumed. Status 1 when it was
        not paused.
        """,
        Action(
            "resume", QUEUE, "Resume", "The queue runs again.", call=lambda queue, *_: int(queue.resume())
        ),
        Action(
            "resume_shard",
            ONE_SHARD,
            "Resume",
            "The shard runs again, unless its queue is paused.",
            call=lambda queue, target, _: int(queue.resume(shard=target.values["shard"])),
        ),
        Action("resume_ids", PAUSED_IDS, "Resume", "Jobs of these ids are due at their own time again."),
        Action("resume_all_ids", ALL_PAUSED_IDS, "Resume all ids", "All paused ids are resumed."),
        done="resumed",
        unchanged="not paused",
        examples=("sync_order", "sync_order 42", "sync_order --all-ids"),
    ),
    verb(
        "requeue",
        "Move dead jobs back to the queue.",
        """Move dead jobs of QUEUE back to the queue: due now, as if they had never failed.

        IDS may be -: they come from stdin, one a line. With --error or another filter: all that
        match.
        """,
        Action(
            "requeue",
            DEAD_OR_HELD_IDS,
            "Requeue",
            "These dead jobs go back to the queue, due now, as new.",
        ),
        Action(
            "requeue_all",
            ALL_DEAD,
            "Requeue all",
            "All jobs that are dead now go back to the queue, due now, as new.",
        ),
        matching(
            "requeue_matching",
            "Requeue all that match",
            "requeue",
            "All dead jobs that match go back to the queue, due now, as new.",
            dead=True,
        ),
        Action(
            "requeue_forced",
            DEAD_IDS,
            "Force requeue",
            "These dead jobs go back to the queue, with payloads older than what ran since.",
            call=lambda queue, target, progress: queue.requeue(target.ids, progress, force=True),
            options=("force",),
            dangerous=True,
            policy="drop_stale",
        ),
        Action(
            "requeue_all_forced",
            ALL_DEAD,
            "Force requeue all",
            "All dead jobs go back to the queue, with payloads older than what ran since.",
            call=lambda queue, _, progress: queue.requeue_all(progress, force=True),
            options=("force",),
            dangerous=True,
            policy="drop_stale",
        ),
        done="requeued",
        examples=(
            "sync_order --all",
            "sync_order --all --yes",
            "sync_order 42 43",
            "sync_order - < ids.txt",
            "sync_order --error 'ValueError: bad sku*' --since 2h --dry-run",
            "sync_order --failure 9f86d081884c7d65 --limit 100 --rate 50/s",
        ),
    ),
    verb(
        "bury",
        "Move waiting jobs to the morgue.",
        """Move waiting jobs of QUEUE to the morgue: some IDS (-: from stdin), or all that failed before.

        Their calls end as FAILURE. `requeue` brings the jobs back.
        """,
        Action(
            "bury", WAITING_IDS, "Bury", "These waiting jobs move to the morgue; their calls end as FAILURE."
        ),
        Action(
            "bury_failed",
            ALL_FAILED,
            "Bury all",
            "Waiting jobs that failed before move to the morgue; their calls end as FAILURE.",
        ),
        matching(
            "bury_matching",
            "Bury all that match",
            "bury",
            "Waiting jobs whose failure matches move to the morgue; their calls end as FAILURE.",
            dead=False,
            options=("failed",),
        ),
        dangerous=True,
        done="buried",
        examples=("sync_order --failed", "sync_order 42 43"),
    ),
    verb(
        "delete",
        "Delete jobs.",
        """Delete waiting jobs of QUEUE, or dead ones. Running jobs go on.

        IDS may be -: they come from stdin, one a line. The calls of waiting jobs end as REVOKED.
        """,
        Action(
            "delete",
            WAITING_IDS,
            "Delete",
            "These waiting jobs are deleted; their calls end as REVOKED. Running jobs go on.",
        ),
        Action(
            "delete_failed",
            ALL_FAILED,
            "Delete all",
            "Waiting jobs that failed before are deleted; their calls end as REVOKED.",
        ),
        matching(
            "delete_matching",
            "Delete all failing that match",
            "delete",
            "Waiting jobs whose failure matches are deleted; their calls end as REVOKED.",
            dead=False,
            options=("failed",),
        ),
        matching(
            "delete_dead_matching",
            "Delete all dead that match",
            "delete_dead",
            "All dead jobs that match are deleted.",
            dead=True,
            options=("morgue",),
        ),
        Action("delete_dead", DEAD_IDS, "Delete", "These dead jobs are deleted.", options=("morgue",)),
        Action(
            "delete_dead_all",
            ALL_DEAD,
            "Delete all",
            "All jobs that are dead now are deleted.",
            options=("morgue",),
        ),
        Action(
            "delete_payload",
            PAYLOAD,
            "Delete payload",
            "This payload is deleted; its calls end as REVOKED. The other payloads of the job stay.",
            call=lambda queue, target, _: int(
                queue.raw().delete_payload(target.ids[0], _payload(queue, target))
            ),
        ),
        Action(
            "delete_dead_payload",
            DEAD_PAYLOAD,
            "Delete payload",
            "This dead payload is deleted. If it was the last dead one of an id that it held, the id goes "
            "on.",
            call=lambda queue, target, _: int(
                queue.raw().delete_dead_payload(target.ids[0], _payload(queue, target, dead=True))
            ),
        ),
        dangerous=True,
        done="deleted",
        examples=(
            "sync_order 42 43",
            "sync_order --failed",
            "sync_order --morgue --all --yes",
            "sync_order --morgue --yes - < ids.txt",
        ),
    ),
    verb(
        "hold",
        "Let dead payloads hold their ids.",
        """Let the dead payloads of some IDS of QUEUE (-: from stdin) hold them, as after a death with
        when_dead="hold".

        Newer payloads wait until `requeue`, `delete --morgue` or `go-on`. Status 1 when no id was changed.
        """,
        Action(
            "hold",
            DEAD_IDS,
            "Hold",
            "Newer payloads of these ids wait until somebody has decided about the dead ones.",
            policy="may_hold",
        ),
        done="held",
        unchanged="held before, or without dead payloads",
        examples=("sync_order 42",),
    ),
    verb(
        "go_on",
        "Let held ids go on.",
        """Let some IDS of QUEUE (-: from stdin) go on that a dead payload holds: it stays in the morgue, and
        newer payloads run. Status 1 when none was held.
        """,
        Action(
            "go_on",
            HELD_IDS,
            "Let the id go on",
            "The dead payloads of these ids stay in the morgue, and newer ones run over the gap.",
        ),
        dangerous=True,
        done="released",
        unchanged="not held",
        examples=("sync_order 42", "sync_order --yes - < ids.txt"),
    ),
    verb(
        "sign",
        "Sign dead payloads that were refused.",
        """Sign the dead payloads of IDS (-: from stdin) of QUEUE as they are: look at them first.

        `requeue` then runs them. The app needs lowkiq_signing_keys.
        """,
        Action(
            "sign_dead",
            DEAD_IDS,
            "Sign",
            "The payloads of these dead jobs are signed as they are: look at them first. Requeued, they run.",
            call=lambda queue, target, progress: queue.sign_dead(target.ids, progress),
            dangerous=True,
            available=lambda queue: queue.is_signed,
        ),
        done="signed",
        examples=("sync_order 42",),
    ),
    verb(
        "edit",
        "Replace a payload.",
        "",
        Action(
            "edit_payload",
            PAYLOAD,
            "Save",
            "This payload is replaced and keeps its score; the calls of the old one end as REVOKED.",
            call=lambda queue, target, _: int(
                queue.raw().edit_payload(
                    target.ids[0], value=_new(queue, target), payload=_payload(queue, target)
                )
            ),
            parameters=(VALUE,),
        ),
        Action(
            "edit_dead_payload",
            DEAD_PAYLOAD,
            "Save",
            "This dead payload is replaced and keeps its score. Requeue the job to run it.",
            call=lambda queue, target, _: int(
                queue.raw().edit_dead_payload(
                    target.ids[0], value=_new(queue, target), payload=_payload(queue, target, dead=True)
                )
            ),
            parameters=(VALUE,),
        ),
        done="replaced",
        examples=(),
    ),
    verb(
        "reshard",
        "Move a queue to another number of shards.",
        "",
        Action(
            "reshard",
            RESHARD,
            "Reshard",
            "Jobs move to the new number of shards while calls and workers go on; each id keeps its order.",
            call=lambda queue, target, progress: queue.reshard(target.values["shards"], progress),
            parameters=(SHARDS,),
            dangerous=True,
            plan=_reshard_plan,
        ),
        done="moved",
        examples=(),
    ),
    verb(
        "pause_migration",
        "Stop moving the jobs of a queue to other shards.",
        "",
        Action(
            "pause_migration",
            MIGRATION,
            "Pause the move",
            "No more jobs move: they run where they are. An id is moved when a call comes for it.",
            call=lambda queue, *_: int(queue.pause_migration()),
        ),
        done="paused",
        unchanged="paused before",
        examples=(),
    ),
    verb(
        "resume_migration",
        "Move the jobs of a queue to other shards again.",
        "",
        Action(
            "resume_migration",
            MIGRATION,
            "Resume the move",
            "Jobs move again.",
            call=lambda queue, *_: int(queue.resume_migration()),
        ),
        done="resumed",
        unchanged="not paused",
        examples=(),
    ),
    verb(
        "abort_migration",
        "Move a queue back to its former number of shards.",
        "",
        Action(
            "abort_migration",
            MIGRATION,
            "Abort the move",
            "Jobs go back to the former number of shards; each id keeps its order.",
            call=lambda queue, *_: int(queue.abort_migration() > 0),
            dangerous=True,
        ),
        done="aborted",
        examples=(),
    ),
    Verb(
        "quiet",
        "Let a node finish and start nothing new.",
        """Ask NODE to finish what it runs of ordered queues and to start nothing new: others get its shards.

        Its ordinary tasks go on. `unquiet`, or a restart, ends it. Status 1 when the node does not answer.
        """,
        ("quiet celery@host",),
        node_reply="quiet: running jobs finish, and nothing new starts",
    ),
    Verb(
        "unquiet",
        "Let a quiet node serve again.",
        "Ask NODE to serve ordered queues again, after `quiet`. Status 1 when it does not answer.",
        ("unquiet celery@host",),
        node_reply="serves ordered queues again",
    ),
)

#: All actions on queues by their names.
ACTIONS = {one.name: one for verb in VERBS for one in verb.actions}


def action_of(name: str) -> Action:
    """The action of that name. Raises InvalidCall, which lists all."""
    if name not in ACTIONS:
        raise InvalidCall(f"action={name[:100]!r} is invalid: expected one of {', '.join(ACTIONS)}")
    return ACTIONS[name]


def offered_for_matches(listing: str, queue: OrderedQueue) -> list[Action]:
    """The actions that a listing of failing or dead jobs offers for all jobs that its filters match."""
    kind = {"retries": MATCHING_FAILED, "morgue": MATCHING_DEAD}.get(listing)
    return [one for one in ACTIONS.values() if one.scope is kind and one.fits(queue)]


def offered(listing: str, queue: OrderedQueue, *, ids: bool) -> list[Action]:
    """The actions that a listing of the queue's page offers, for chosen ids or for all."""
    found = (one for one in ACTIONS.values() if listing in one.scope.listings and one.scope.ids == ids)
    return [one for one in found if one.fits(queue)]
