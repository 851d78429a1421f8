"""The parts of an action: its scope, its parameters, its target, and its texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from celery_lowkiq.integration.app.codec import refuse_constant
from celery_lowkiq.integration.calls.validation import read_id
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.layout import MAX_SHARDS
from celery_lowkiq.rules.text import count_of
from celery_lowkiq.rules.validators import is_whole, whole
from celery_lowkiq.rules.views import Stats
from celery_lowkiq.store.scripts.progress import Progress

from .job_filters import read_job_age, read_rate, read_since, read_text
from .queue import OrderedQueue

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
    "age", str, "time for which the jobs are due or dead: `>2h` or `<30min`", read_text=read_job_age
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
    """What an action changes. It counts ``kind`` and ``unit`` (without a unit: changed or not).

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
    #: Whether it is offered for a queue; None: for each.
    available: Callable[[OrderedQueue], bool] | None = None
    #: Returns what it would do now, for the question before a dangerous action. Raises LowkiqError.
    plan: Callable[[OrderedQueue, Target], str] | None = None
    # What its verb adds.
    verb: str = ""
    done: str = ""
    unchanged: str = "nothing to change"

    @property
    def takes(self) -> tuple[Parameter, ...]:
        """All its parameters."""
        return (*self.scope.parameters, *self.parameters, *self.optional)

    @property
    def asks(self) -> bool:
        """Whether pages ask before it: what is dangerous, and what changes all jobs, or all that match."""
        return self.dangerous or bool(self.optional) or self.scope.total is not None

    @property
    def waits_for_moves(self) -> bool:
        """Whether it is refused while the queue moves to another number of shards."""
        return self.scope not in (QUEUE, RESHARD, MIGRATION)

    @property
    def all_options(self) -> tuple[str, ...]:
        """The CLI options that choose this action among those of its verb."""
        return (self.scope.option, *self.options) if self.scope.option else self.options

    @property
    def asks_on_command_line(self) -> bool:
        """Whether the CLI asks before it: a dangerous action, or one that makes jobs of a whole queue run."""
        return self.dangerous or self.scope.option == "all"

    @property
    def on_command_line(self) -> bool:
        """Whether the CLI makes a command of it. Only pages and the API show the mark of a payload."""
        return MARK not in self.takes and self.scope is not RESHARD and self.scope is not MIGRATION

    @property
    def needs(self) -> set[str]:
        """Names of all that must be given."""
        needed = (one.name for one in self.takes if one not in self.optional)
        return {*needed, *(["ids"] if self.scope.ids else [])}

    def suits(self, given: set[str]) -> bool:
        """Whether all that must be given is there, and nothing else; of filters at least one."""
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
        """Whether it is offered for the queue."""
        if self.available is not None and not self.available(queue):
            return False
        return not self.policy or bool(getattr(queue.spec.policies, self.policy))

    def question(self, queue: str, target: Target, count: int) -> str:
        """The question before a dangerous action."""
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
