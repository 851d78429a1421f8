"""The parts of an action: what it is done to, what it takes, what it asks and says."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from celery_lowkiq.integration.app.codec import refuse_constant
from celery_lowkiq.integration.calls.validation import read_id
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.text import count_of
from celery_lowkiq.rules.views import Stats
from celery_lowkiq.store.scripts.progress import Progress

from .queue import OrderedQueue

#: Most ids of one change.
MAX_IDS = 1000
MAX_SHARD = 4095


@dataclass(frozen=True)
class Parameter:
    """A value that an action takes beside ids. ``kind``: int, str, or object for any JSON."""

    name: str
    kind: type
    text: str
    minimum: int = 0
    maximum: int = 2**31 - 1

    @property
    def expected(self) -> str:
        """What is allowed, in words."""
        if self.kind is int:
            return f"a whole number from {self.minimum} to {self.maximum}"
        return "a text" if self.kind is str else "JSON"

    def check(self, value: Any) -> Any:
        """The value itself. Raises InvalidCall."""
        if self.kind is object:
            return _json(self, json.dumps(value))
        right = isinstance(value, self.kind) and not isinstance(value, bool)
        if not right or (isinstance(value, int) and not self.minimum <= value <= self.maximum):
            raise self._invalid(value)
        return value

    def read(self, text: str) -> Any:
        """The value of a text, as in a form. Raises InvalidCall."""
        if self.kind is object:
            return _json(self, text)
        if self.kind is str:
            return text
        if not (text.isascii() and text.isdigit() and len(text) <= 10):
            raise self._invalid(text)
        return self.check(int(text))

    def write(self, value: Any) -> str:
        """The text that :meth:`read` reads."""
        return json.dumps(value) if self.kind is object else str(value)

    def _invalid(self, value: Any) -> InvalidCall:
        return InvalidCall(f"{self.name}={value!r:.100} is invalid: expected {self.expected}")


def _json(parameter: Parameter, text: str) -> Any:
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        raise InvalidCall(f"{parameter.name} is invalid: expected JSON. Nothing was changed") from None


SHARD = Parameter("shard", int, "number of the shard", maximum=MAX_SHARD)
MARK = Parameter("mark", str, "mark of the payload, as the job shows it")
VALUE = Parameter("value", object, "the new payload")


@dataclass(frozen=True)
class Target:
    """The ids and values that an action is given."""

    ids: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def given(self) -> set[str]:
        """Names of what is given."""
        return {*self.values, *(["ids"] if self.ids else [])}


@dataclass(frozen=True)
class Scope:
    """What an action is done to. ``kind`` and ``unit`` are what it counts (no unit: changed or not);
    ``total`` counts all of a kind.
    """

    name: str
    kind: str = ""
    unit: str = "job"
    ids: bool = False
    parameters: tuple[Parameter, ...] = ()
    total: Callable[[Stats], int] | None = None


QUEUE = Scope("queue", unit="")
ONE_SHARD = Scope("shard", unit="", parameters=(SHARD,))
NODE = Scope("node", unit="")
IDS = Scope("ids", unit="id", ids=True)
WAITING_IDS = Scope("ids", "waiting", ids=True)
DEAD_IDS = Scope("ids", "dead", ids=True)
PAYLOAD = Scope("payload", unit="payload", ids=True, parameters=(MARK,))
ALL_WAITING = Scope("all waiting", "waiting", total=lambda stats: stats.length)
ALL_FAILED = Scope("all failed", "failed", total=lambda stats: stats.retries)
ALL_DEAD = Scope("all dead", "dead", total=lambda stats: stats.morgue_length)
ALL_PAUSED_IDS = Scope("all paused ids", "paused", "id", total=lambda stats: stats.paused_jobs)

#: Gets the queue (of scope NODE: the bootstep of the worker), and returns how many it changed.
Run = Callable[[Any, Target, "Progress | None"], int]


@dataclass(frozen=True)
class Action:
    """A verb done to a scope. ``label`` stands on its button, ``effect`` in the question before it."""

    name: str
    scope: Scope
    label: str
    effect: str
    run: Run
    #: Options of the CLI command that choose this action among those of its verb.
    options: tuple[str, ...] = ()
    #: Listings of a queue's page that offer it.
    listings: tuple[str, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    #: Asked about first, and not offered where nothing can be asked: in Flower and by remote control.
    dangerous: bool = False
    #: Offered only for queues with this policy.
    policy: str = ""
    # What its verb adds.
    verb: str = ""
    done: str = ""
    unchanged: str = ""

    @property
    def takes(self) -> tuple[Parameter, ...]:
        """All its parameters."""
        return (*self.scope.parameters, *self.parameters)

    @property
    def on_command_line(self) -> bool:
        """Whether the CLI offers it: a payload is named by its mark, which only pages and the API show."""
        return MARK not in self.takes

    @property
    def needs(self) -> set[str]:
        """Names of all that must be given."""
        return {*(one.name for one in self.takes), *(["ids"] if self.scope.ids else [])}

    def target(self, queue: OrderedQueue, ids: Sequence[str], values: Mapping[str, Any]) -> Target:
        """The checked target. Raises InvalidCall."""
        target = Target(tuple(map(read_id, ids)), values)
        if target.given != self.needs:
            raise InvalidCall(
                f"action={self.name!r} is invalid with {_names(target.given)}: expected {_names(self.needs)}"
            )
        if len(ids) > MAX_IDS:
            raise InvalidCall(f"{len(ids)} ids are invalid: expected at most {MAX_IDS} at once")
        if MARK in self.takes and len(ids) != 1:
            raise InvalidCall(f"action={self.name!r} is invalid with {len(ids)} ids: expected one")
        checked = {one.name: one.check(values[one.name]) for one in self.takes}
        if checked.get(SHARD.name, 0) >= queue.spec.shards:
            last = queue.spec.shards - 1
            raise InvalidCall(f"shard={checked[SHARD.name]} is invalid: expected a shard from 0 to {last}")
        return Target(target.ids, checked)

    def total(self, queue: OrderedQueue, target: Target) -> int:
        """How many jobs it is done to, about. Raises StoreError."""
        return self.scope.total(queue.stats()) if self.scope.total else max(1, len(target.ids))

    def fits(self, queue: OrderedQueue) -> bool:
        """Whether the queue has the policy that it is for."""
        return not self.policy or bool(getattr(queue.spec.policies, self.policy))

    def question(self, queue: str, target: Target, count: int) -> str:
        """What is asked before a dangerous one."""
        return f"{self.label}: {self._things(queue, target, count)}?"

    def said(self, queue: str, target: Target, count: int) -> str:
        """What is said when it is done."""
        things = self._things(queue, target, count)
        return f"{self.done} {things}" if count or self.scope.unit else f"{things}: {self.unchanged}"

    def _things(self, queue: str, target: Target, count: int) -> str:
        if self.scope is ONE_SHARD:
            return f"shard {target.values[SHARD.name]} of queue {queue}"
        if not self.scope.unit:
            return f"queue {queue}"
        return f"{count_of(count, f'{self.scope.kind} {self.scope.unit}'.lstrip())} of queue {queue}"


def _names(found: set[str]) -> str:
    return " and ".join(sorted(found)) or "nothing but the queue"


@dataclass(frozen=True)
class Verb:
    """A CLI command and a remote control command, with the actions that they choose from."""

    name: str
    summary: str
    text: str
    actions: tuple[Action, ...]
    examples: tuple[str, ...] = ()

    def remote(self, ids: bool) -> Action | None:
        """The action that remote control may choose, for ids or for all."""
        found = (one for one in self.actions if one.scope.ids == ids and not (one.dangerous or one.takes))
        return next(found, None)
