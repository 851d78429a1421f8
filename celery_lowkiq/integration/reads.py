"""Reads: the JSON API, its description and the commands are made from this table."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from celery_lowkiq.integration.actions import FILTERS, SHARDS, Parameter
from celery_lowkiq.integration.audit import Audit, AuditEntry
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.integration.json_records import (
    OverviewJson,
    PlacesJson,
    ShownDeadJob,
    ShownJob,
    places_json,
)
from celery_lowkiq.integration.queue import BOUNDS, Failures, Matches, OrderedQueue, read_filter
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.health import Hint
from celery_lowkiq.rules.job_filter import DEAD_STATES, WAITING_STATES
from celery_lowkiq.rules.resharding import MigrationState, ReshardCost
from celery_lowkiq.rules.topology import ServerInfo, Topology
from celery_lowkiq.rules.tracking import State, TrackedCall, TrackerView
from celery_lowkiq.rules.validators import is_whole, whole
from celery_lowkiq.rules.views import (
    HOUR,
    SPANS,
    Finding,
    HeldId,
    NodeReport,
    Page,
    PausedId,
    Sample,
    SearchPage,
    ShardReport,
    ShardsPage,
    Stats,
)

Schema = dict[str, Any]

# Parameters of reads. Each reads the text of a request, and raises InvalidCall for an invalid one.

DEFAULT_LIMIT, MAX_LIMIT = 50, 500
#: Maximum length of a cursor; cursors of listings are shorter.
MAX_CURSOR = 1200
#: Characters of an invalid value in an error.
SHOWN = 100
TEXT: Schema = {"type": "string"}
#: Listings whose jobs a filter of failures may match.
MATCHED = ("morgue", "retries")


@dataclass(frozen=True)
class Query:
    """A parameter of a read: its JSON schema, and the function that reads its text, "" when it is missing."""

    name: str
    schema: Schema
    required: bool = False
    read: Callable[[str], Any] = str


def short(value: Any) -> str:
    """Return an invalid value for an error, cut."""
    return repr(value)[:SHOWN]


def chosen(name: str, value: str, allowed: Collection[str]) -> str:
    """Return one of the allowed values. Raises InvalidCall."""
    if value not in allowed:
        names = ", ".join(filter(None, allowed))
        raise InvalidCall(f"{name}={short(value)} is invalid: expected one of {names}")
    return value


def whole_number(name: str, text: str, low: int, high: int) -> int:
    """Return the whole number that a text stands for. Raises InvalidCall."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
    if number is None or not is_whole(number, low, high):
        raise InvalidCall(f"{name}={short(text)} is invalid: expected {whole(low, high).expected}")
    return number


def _cursor(after: str) -> str | None:
    if len(after) > MAX_CURSOR:
        raise InvalidCall(f"after={short(after)} is invalid: expected the `next` of a page")
    return after or None


def flag(name: str, text: str) -> bool:
    """Return whether a flag is set. Raises InvalidCall."""
    return chosen(name, text, ("", "0", "1", "false", "true")) in ("1", "true")


def _number(name: str, text: str) -> float | None:
    """Return a number; None for an empty text."""
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidCall(f"{name}={short(text)} is invalid: expected a number")
    return number


def schema_of(parameter: Parameter) -> Schema:
    """The JSON schema of a parameter of an action."""
    kind: Schema = {str: TEXT, int: {"type": "integer"}}.get(parameter.kind, {})
    bounds = {"minimum": parameter.minimum, "maximum": parameter.maximum} if parameter.kind is int else {}
    return {**kind, **bounds, "description": parameter.text}


QUEUE = Query("queue", TEXT, required=True)
ID = Query("id", TEXT, required=True)
FAILURE = Query("failure", TEXT)
AFTER = Query("after", TEXT, read=_cursor)
LIMIT = Query(
    "limit",
    {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
    read=lambda text: whole_number("limit", text or str(DEFAULT_LIMIT), 1, MAX_LIMIT),
)
SPAN = Query("span", {"enum": list(SPANS)}, read=lambda text: text or HOUR.name)
#: States of a tracker's calls by their names; "" for all of them.
CALL_STATES = ("", *(state.value for state in State))
CALL_STATE = Query("state", {"enum": list(CALL_STATES)}, read=lambda text: chosen("state", text, CALL_STATES))
IN_LIST = Query("list", {"enum": list(MATCHED)}, True, lambda text: chosen("list", text, MATCHED))


@dataclass(frozen=True)
class Read:
    """A read. ``run(of, **values)`` returns its record: ``of`` is a queue, or without one the Inspector.

    ``text`` says what it returns, ``record`` is the type of that. A parameter in braces is part of the path.
    """

    name: str
    text: str
    record: Any
    run: Callable[..., Any]
    parameters: tuple[Query, ...] = ()


# The listings of a queue, and the query of one page.

#: Payloads of each job that a listing reads, and bytes of each payload.
LISTED = {"payload_limit": 3, "payload_bytes": 2048}
#: Sort keys of each listing; the first is the default.
SORTS: dict[str, tuple[str, ...]] = {
    "jobs": ("perform_in", "id"),
    "retries": ("retry_count",),
    "morgue": ("updated_at", "id"),
    "processing": ("claim",),
}
#: States that a listing filters by.
STATES: dict[str, tuple[str, ...]] = {
    "jobs": WAITING_STATES,
    "retries": WAITING_STATES,
    "morgue": DEAD_STATES,
    "processing": (),
}
#: Ages that a page offers.
AGES = ("<1min", "<1h", "<1d", ">1min", ">1h", ">1d", ">7d")


@dataclass(frozen=True)
class ListingQuery:
    """The query of one page of a listing: the values of its parameters by name."""

    listing: str
    values: Mapping[str, Any]
    #: Entries that the pages before have searched.
    searched: int = 0

    @property
    def sorts(self) -> tuple[str, ...]:
        return SORTS[self.listing]

    @property
    def query(self) -> dict[str, Any]:
        """The fields of the URL query, without the cursor and without defaults."""
        defaults = {"by": self.sorts[0], "limit": DEFAULT_LIMIT}
        values = {"list": self.listing, **self.values, "reverse": "1" if self.values.get("reverse") else ""}
        return {
            name: one for name, one in values.items() if name != AFTER.name and one != defaults.get(name, "")
        }

    @property
    def filters(self) -> dict[str, str]:
        """The filters that were given."""
        return {name: one for name in ("prefix", "state", "age", "failure") if (one := self.values.get(name))}

    @property
    def has_range(self) -> bool:
        """True if the listing is between two values of the sort, which no action takes."""
        return any(self.values.get(name) is not None for name in BOUNDS)

    @property
    def narrows(self) -> bool:
        """True if the listing leaves jobs out."""
        return bool(self.filters) or self.has_range

    @property
    def is_sorted(self) -> bool:
        """True if the order or the range was chosen."""
        chosen = self.values.get("reverse", False) or self.values.get("by", self.sorts[0]) != self.sorts[0]
        return chosen or self.has_range

    @property
    def is_filtered(self) -> bool:
        """True if a filter, an order or a range was chosen."""
        return bool(self.filters) or self.is_sorted

    def of_queue(self, queue: OrderedQueue) -> SearchPage[Any]:
        """Raises InvalidCall and StoreError."""
        named: dict[str, Any] = {"morgue": queue.morgue, "processing": queue.processing}
        page: SearchPage[Any] = named.get(self.listing, queue.jobs)(**self.values, **LISTED)
        return page


def listing_parameters(listing: str) -> tuple[Query, ...]:
    """The parameters of a listing: those that order and filter it, and those of a page."""
    bound = {"type": "number"}
    sorts, states = SORTS[listing], STATES[listing]
    if listing == "processing":
        return LIMIT, AFTER
    return (
        Query("by", {"enum": list(sorts)}, read=lambda text: chosen("by", text or sorts[0], sorts)),
        Query("prefix", TEXT),
        Query("minimum", bound, read=partial(_number, "minimum")),
        Query("maximum", bound, read=partial(_number, "maximum")),
        Query("reverse", {"enum": ["0", "1"]}, read=partial(flag, "reverse")),
        Query("state", {"enum": list(states)}, read=lambda text: chosen("state", text, ("", *states))),
        Query("age", {"type": "string", "pattern": "^[<>][0-9]{1,9}(s|m|min|h|d)$"}),
        FAILURE,
        LIMIT,
        AFTER,
    )


# Records of the API alone.


class LowkiqCounts(NamedTuple):
    """Counts of a queue in Lowkiq's form."""

    length: int
    morgue_length: int
    lag: float
    #: Shards that are not counted, because their masters are unreachable.
    missing: int

    @classmethod
    def of(cls, stats: Stats) -> LowkiqCounts:
        return cls(stats.length, stats.morgue_length, stats.lag, stats.missing)


class LowkiqStats(NamedTuple):
    total: LowkiqCounts
    by_worker: Mapping[str, LowkiqCounts]


class Shards(NamedTuple):
    """The shards of a queue with hints, the Unix time (s) of its pause, and the number of paused ids."""

    shards: tuple[ShardReport, ...]
    paused: float | None
    paused_ids: int
    hints: tuple[Hint, ...]


class Resharding(NamedTuple):
    """The migration of a queue to another number of shards; null without one."""

    migration: MigrationState | None


class Samples(NamedTuple):
    samples: tuple[Sample, ...]


class Nodes(NamedTuple):
    nodes: tuple[NodeReport, ...]


class Findings(NamedTuple):
    findings: tuple[Finding, ...]


def _lowkiq_stats(inspector: Inspector) -> LowkiqStats:
    found = inspector.partial().overview()
    by_queue = {name: LowkiqCounts.of(one) for name, one in found.by_queue.items()}
    return LowkiqStats(LowkiqCounts.of(found.total), by_queue)


def places(queue: OrderedQueue, id: str) -> PlacesJson:  # noqa: A002
    """Return everything about one id. Raises InvalidCall."""
    return places_json(queue.job(id), queue.why(id), queue.tries(id))


def _shards(queue: OrderedQueue) -> Shards:
    paused, found = queue.paused(), queue.shards()
    return Shards(found, paused.queue, paused.ids, tuple(queue.shard_hints(found)))


def _matches(queue: OrderedQueue, **given: str) -> Matches:
    dead = given.pop("list") == "morgue"
    return queue.matching(read_filter(given), dead=dead)


def _history(of: Inspector | OrderedQueue, span: str) -> Samples:
    return Samples(of.history(span) if isinstance(of, OrderedQueue) else of.history(span=span).total)


def _listing(name: str) -> Read:
    return Read(
        name,
        "A page of jobs of a queue; pass its `next` as `after` for the following one",
        SearchPage[ShownDeadJob] if name == "morgue" else SearchPage[ShownJob],
        lambda queue, **values: ListingQuery(name, values).of_queue(queue),
        (QUEUE, *listing_parameters(name)),
    )


READS = (
    Read(
        "stats",
        "Counts in Lowkiq's form: `total` and `by_worker`, each `length`, `morgue_length`, `lag`, `missing`",
        LowkiqStats,
        _lowkiq_stats,
    ),
    Read(
        "queues",
        "All queues with their counts; what is damaged, and which masters are unreachable or deny a right",
        OverviewJson,
        Inspector.overview_json,
    ),
    *map(_listing, SORTS),
    Read(
        "job",
        "Everything about one id: its jobs, why it is not running, and its tries",
        PlacesJson,
        places,
        (QUEUE, ID),
    ),
    Read(
        "shards",
        "The shards of a queue, who has each, what is paused, and whether more shards would help",
        Shards,
        _shards,
        (QUEUE,),
    ),
    Read(
        "migration",
        "The move of a queue to another number of shards, and what each shard has left to move",
        Resharding,
        lambda queue: Resharding(queue.migration()),
        (QUEUE,),
    ),
    Read(
        "reshard_cost",
        "An estimate of what the action `reshard` would cost",
        ReshardCost,
        OrderedQueue.reshard_cost,
        (QUEUE, Query(SHARDS.name, schema_of(SHARDS), True, SHARDS.read)),
    ),
    Read(
        "paused_ids",
        "A page of the paused ids of a queue",
        ShardsPage[PausedId],
        OrderedQueue.paused_ids,
        (QUEUE, AFTER),
    ),
    Read(
        "held_ids",
        "A page of the ids that a dead payload holds, the longest held first",
        ShardsPage[HeldId],
        OrderedQueue.held_ids,
        (QUEUE, AFTER),
    ),
    Read(
        "failures",
        "The groups of failures of a queue, or the one with a fingerprint, each with an example",
        Failures,
        lambda queue, failure: queue.failures(failure),
        (QUEUE, FAILURE),
    ),
    Read(
        "matches",
        "How many dead jobs, or waiting ones that failed, match a filter; the search is bounded",
        Matches,
        _matches,
        (QUEUE, IN_LIST, *(Query(one.name, schema_of(one)) for one in FILTERS)),
    ),
    Read(
        "history",
        "Counters and lag of the last hour or day, of one queue or of all",
        Samples,
        _history,
        (Query("queue", TEXT), SPAN),
    ),
    Read(
        "nodes",
        "The nodes, their lanes, and what each runs",
        Nodes,
        lambda inspector: Nodes(inspector.nodes()),
    ),
    Read("redis", "The report of Redis about itself", ServerInfo, Inspector.server),
    Read(
        "masters",
        "The masters of a cluster, or the only one, with the shards that each stores",
        Topology,
        Inspector.topology,
    ),
    Read(
        "doctor",
        "The results of the health checks, and what to do about them",
        Findings,
        lambda inspector: Findings(inspector.doctor()),
    ),
    Read(
        "audit",
        "The changes that people made, the latest first",
        Page[AuditEntry],
        lambda inspector, **page: Audit(inspector.app).read(**page),
        (LIMIT, AFTER),
    ),
    Read("trackers", "Trackers, the latest first", Page[TrackerView], Inspector.trackers, (LIMIT, AFTER)),
    Read(
        "trackers/{id}",
        "A tracker and its counts",
        TrackerView,
        lambda inspector, **given: inspector.tracker(given[ID.name]).view(),
        (ID,),
    ),
    Read(
        "trackers/{id}/calls",
        "A page of a tracker's calls, in the order in which they came",
        Page[TrackedCall],
        Inspector.tracked_calls,
        (ID, CALL_STATE, LIMIT, AFTER),
    ),
)
