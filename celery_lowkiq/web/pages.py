"""Pages: what the overview, queues, nodes and trackers show; the markup is in `templates/`."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from celery_lowkiq.integration.actions import ACTIONS, FILTERS, Action, offered, offered_for_matches
from celery_lowkiq.integration.inspector import FoundId, Inspector
from celery_lowkiq.integration.queue import OrderedQueue, read_filter
from celery_lowkiq.integration.reads import (
    AFTER,
    AGES,
    CALL_STATE,
    CALL_STATES,
    LIMIT,
    MATCHED,
    SORTS,
    STATES,
    ListingQuery,
)
from celery_lowkiq.rules.errors import InvalidCall
from celery_lowkiq.rules.health import by_load
from celery_lowkiq.rules.job_filter import FailureFilter, job_state
from celery_lowkiq.rules.models import Layout, ShardRef
from celery_lowkiq.rules.text import by_master, ranges_by_queue
from celery_lowkiq.rules.topology import Kind
from celery_lowkiq.rules.views import (
    HOUR,
    LaneReport,
    SearchPage,
    ShardsPage,
    ShardState,
    Span,
    Stats,
    rates,
    span_of,
    sum_of_states,
)
from celery_lowkiq.web import charts
from celery_lowkiq.web.charts import lane_map, picture_of
from celery_lowkiq.web.endpoints import Params, listing_query
from celery_lowkiq.web.formatting import bytes_text
from celery_lowkiq.web.forms import operation_of
from celery_lowkiq.web.render import link, page
from celery_lowkiq.web.site import queue_of, site_of

# The queues as the first page shows them.


@dataclass(frozen=True)
class QueueLook:
    """Counts of a queue; ``unowned``: number of its shards without a living owner.

    For a queue with a damaged shard both are unknown, and ``damage`` is the error. Both lack the shards of
    masters that are ``unreachable``.
    """

    name: str
    shards: int
    stats: Stats
    unowned: int
    damage: str = ""
    #: While its jobs move to another number of shards.
    migrating: Layout | None = None
    #: Addresses of masters, with the names of the shards.
    unreachable: Mapping[str, str] = field(default_factory=dict)

    @property
    def unread(self) -> bool:
        """True if no count is known."""
        return bool(self.damage) or self.stats.missing == self.shards

    @property
    def unserved(self) -> bool:
        return self.unowned == self.shards - self.stats.missing > 0

    @property
    def troubled(self) -> bool:
        """True if it needs attention."""
        stats = self.stats
        return bool(
            self.unowned or stats.paused or stats.held or stats.backlog or self.damage or self.unreachable
        )

    @property
    def paused(self) -> bool:
        """True if the whole queue is paused."""
        return self.stats.paused == self.shards - self.stats.missing > 0


def queues_look(
    names: Iterable[str],
    states: Iterable[ShardState],
    owners: Collection[str] | None,
    migrating: Mapping[str, Layout],
) -> list[QueueLook]:
    """Return the queues, the largest lag first; ``owners`` are those of the living nodes, if known."""
    by_queue: dict[str, list[ShardState]] = {name: [] for name in names}
    for state in states:
        by_queue[state.shard.queue].append(state)
    found = [
        replace(_queue(name, shards, owners), migrating=migrating.get(name))
        for name, shards in by_queue.items()
    ]
    return sorted(found, key=lambda queue: (-queue.stats.lag, queue.name))


def _queue(name: str, shards: list[ShardState], owners: Collection[str] | None) -> QueueLook:
    stats = sum_of_states(shards)
    if not isinstance(stats, Stats):
        return QueueLook(name, len(shards), Stats(), 0, str(stats))
    there = [state for state in shards if state.unreachable is None]
    unowned = sum(state.lease.owner not in owners for state in there) if owners is not None else 0
    unreachable = by_master({state.shard: state.unreachable for state in shards})
    return QueueLook(name, len(shards), stats, unowned, unreachable=unreachable)


# The pages that read.

#: Levels of findings, the worst first.
LEVELS = ("error", "warning", "ok")
#: Maximum number of queues that are shown of a lane.
MAX_PARTS = 10
#: Entries of the audit log on a page.
AUDITED = 100


def _span(request: Request) -> Span:
    return span_of(Params.query(request).text("span", HOUR.name))


def overview(request: Request) -> Response:
    """All queues, the largest lag first."""
    inspector, now, span = site_of(request).inspector.partial(), time.time(), _span(request)
    history = inspector.history()
    nodes = inspector.nodes_if_there()
    alive = None if nodes is None else [node for node in nodes if node.alive]
    owners = None if alive is None else {node.owner for node in alive}
    queues = queues_look(history.by_queue, inspector.shard_states(), owners, inspector.migrating())
    return page(
        request,
        "overview.html",
        total=sum((queue.stats for queue in queues), Stats()),
        queues=queues,
        alive=None if alive is None else len(alive),
        lanes=sum(len(node.lanes) for node in alive or ()),
        unknown=history.unknown,
        denied=inspector.denied,
        rates=history.rates(now),
        chart=charts.chart_of(
            history.total if span == HOUR else inspector.history(span=span.name).total, now, span
        ),
        sparks={
            name: charts.chart_of(one, now, step=charts.SPARK_STEP) for name, one in history.by_queue.items()
        },
    )


def search(request: Request) -> Response:
    """The queues that know an id; the job itself when there is just one."""
    typed, inspector = Params.query(request).text("id", ""), site_of(request).inspector
    sought = typed.strip()
    if not sought:
        return RedirectResponse(link(request, "/"), 303)
    try:
        found = inspector.find(sought)
    except InvalidCall as error:
        return page(request, "search.html", status=400, sought=typed, found=FoundId(), refused=str(error))
    # An id may begin or end with a space, which mostly is one copied too many.
    if not found and typed != sought and (other := inspector.find(typed)):
        sought, found = typed, other
    if len(found) == 1 and not found.unreachable:
        return RedirectResponse(link(request, "/job", queue=next(iter(found)), id=sought), 303)
    return page(request, "search.html", sought=sought, found=found)


def queue(request: Request) -> Response:
    """One queue and a listing of it, or its shards."""
    params = Params.query(request)
    shown, span = queue_of(request), _span(request)
    listed = params.choice("list", (*SORTS, "shards", "paused", "held"), "jobs")
    search, found, refused = _listing(params, shown, listed)
    inspector, shards, now = site_of(request).inspector, shown.shards(), time.time()
    nodes = inspector.nodes_if_there()
    # Its counts are watched: they are read last.
    migration = shown.migration_if_there()
    return page(
        request,
        "queue.html",
        status=400 if refused else 200,
        refused=refused,
        queue=shown,
        listed=listed,
        shards=shards,
        stats=sum((shard.stats for shard in shards), Stats()),
        hints=shown.shard_hints(shards) if listed == "shards" else (),
        by_load=by_load,
        map=lane_map(shown.name, shards, nodes or (), migration),
        unreachable=by_master({ShardRef(shown.name, one.index): one.unreachable for one in shards}),
        nodes_unknown=nodes is None,
        state_of=lambda job: job_state(job.perform_in, paused=job.paused, held=job.held, now=now),
        states=STATES.get(listed, ()),
        ages=AGES,
        groups=shown.groups() if search and listed != "processing" else {},
        paused=shown.paused(),
        migration=migration,
        picture=picture_of(migration) if migration else None,
        search=search,
        typed=partial(params.text, default=""),
        found=found,
        **_past(inspector, shown.name, span, now),
        actions=ACTIONS,
        offered=offered,
        for_all=_for_all(listed, shown, search),
        moving=migration is not None,
        bytes_text=bytes_text,
    )


def _for_all(listed: str, shown: OrderedQueue, search: ListingQuery | None) -> list[Action]:
    """The actions on all jobs of a listing, or on all that its filters match: on none but these."""
    if search is None or not search.narrows:
        return [one for one in offered(listed, shown, ids=False) if not one.takes]
    return [] if search.has_range else offered_for_matches(listed, shown)


def _listing(
    params: Params, shown: OrderedQueue, listed: str
) -> tuple[ListingQuery | None, SearchPage[Any] | ShardsPage[Any] | None, str]:
    """The query of a listing, its page, and what is wrong with the query."""
    ids = {"paused": shown.paused_ids, "held": shown.held_ids}.get(listed)
    if listed not in SORTS:
        return None, ids(after=params.value(AFTER)) if ids else None, ""
    try:
        search = listing_query(params, listed)
        return search, search.of_queue(shown), ""
    except InvalidCall as error:
        return listing_query(Params([]), listed), SearchPage((), None), str(error)


def _past(inspector: Inspector, name: str, span: Span, now: float) -> dict[str, Any]:
    """The rates and the chart of a queue, and whether its history is unknown."""
    history = inspector.history([name])
    shown = history if span == HOUR else inspector.history([name], span.name)
    return {
        "rates": rates(history.by_queue[name], now),
        "chart": charts.chart_of(shown.by_queue[name], now, span),
        "history_unknown": bool(history.unknown),
    }


def shard_parts(lane: LaneReport) -> list[tuple[str, str]]:
    """The shards of a lane as ranges, ``0-3,7``, by their queue, MAX_PARTS at most."""
    return list(ranges_by_queue(lane.shards).items())[:MAX_PARTS]


def failures(request: Request) -> Response:
    """The groups of failures of a queue, or the jobs that match a tracker, an error or a time."""
    params, shown = Params.query(request), queue_of(request)
    given = {one.name: params.text(one.name, "") for one in FILTERS}
    try:
        wanted, refused = read_filter(given), ""
    except InvalidCall as error:
        wanted, refused = FailureFilter(failure=given["failure"]), str(error)
    searched = any(given.values()) and not refused
    found = shown.failures(wanted.failure)
    return page(
        request,
        "failures.html",
        moving=shown.migration_if_there() is not None,
        status=400 if refused else 200,
        refused=refused,
        queue=shown,
        found=found,
        given=given,
        matches={
            listed: shown.matching(wanted, dead=listed == "morgue")
            for listed in (MATCHED if searched else ())
        },
        offered_for_matches=offered_for_matches,
    )


def nodes(request: Request) -> Response:
    """The workers, their lanes, and what each runs."""
    found = site_of(request).inspector.nodes()
    busy = sum(lane.running is not None for node in found if node.alive for lane in node.lanes)
    return page(request, "nodes.html", nodes=found, busy=busy, shard_parts=shard_parts)


def doctor(request: Request) -> Response:
    """The findings, and what Redis reports about itself."""
    inspector = site_of(request).inspector
    found = sorted(inspector.doctor(), key=lambda finding: LEVELS.index(finding.level))
    topology = inspector.topology()
    server = None if topology.kind is Kind.CLUSTER else inspector.server()
    return page(request, "doctor.html", server=server, topology=topology, findings=found)


def audit(request: Request) -> Response:
    """The changes that people made, the latest first."""
    after = Params.query(request).value(AFTER)
    return page(request, "audit.html", found=site_of(request).audit.read(AUDITED, after), after=after)


def operations(request: Request) -> Response:
    """The changes made through this process."""
    return page(request, "operations.html", operations=site_of(request).operations.all())


def operation(request: Request) -> Response:
    """One change, running or ended."""
    found = operation_of(site_of(request), Params.query(request).text("id"))
    return page(request, "operation.html", operation=found)


#: Maximum length of a payload of a tracked call, in characters.
PEEK = 160


def trackers(request: Request) -> Response:
    """All trackers, the latest first."""
    params = Params.query(request)
    found = site_of(request).inspector.trackers(params.value(LIMIT), params.value(AFTER))
    return page(request, "trackers.html", found=found)


def tracker(request: Request) -> Response:
    """One tracker, and a listing of its calls."""
    params, inspector = Params.query(request), site_of(request).inspector
    tracker_id = params.text("id")
    state, limit, after = (params.value(one) for one in (CALL_STATE, LIMIT, AFTER))
    return page(
        request,
        "tracker.html",
        view=inspector.tracker(tracker_id).view(),
        state=state,
        states=CALL_STATES,
        found=inspector.tracked_calls(tracker_id, state, limit, after),
        after=after,
        payload_text=lambda call: bytes_text(call.payload)[:PEEK],
    )
