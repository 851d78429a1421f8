"""The queue of an ordered task: reads and actions."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from threading import Event
from time import monotonic
from typing import Any, TypeVar

from celery import Celery
from celery.utils.time import rate

from celery_lowkiq.integration.app import AppContext, context_of
from celery_lowkiq.integration.call_form import CallForm
from celery_lowkiq.integration.calls import read_id, read_score, read_time
from celery_lowkiq.integration.codec import Codec
from celery_lowkiq.integration.current import naming
from celery_lowkiq.integration.dumps import Loaded, dump_lines, load_lines
from celery_lowkiq.integration.error_text import dump_error_text, load_error
from celery_lowkiq.integration.gate import Gate
from celery_lowkiq.integration.json_records import (
    JobDecoder,
    PayloadMask,
    ShownDeadJob,
    ShownJob,
    ShownPlaces,
    value_text,
)
from celery_lowkiq.rules.basics import cached_property
from celery_lowkiq.rules.diagnosis import Terms, Why, why
from celery_lowkiq.rules.errors import (
    InvalidCall,
    NotMigrating,
    UndecodablePayload,
)
from celery_lowkiq.rules.fingerprints import read_mark, text_fingerprint
from celery_lowkiq.rules.health import Hint
from celery_lowkiq.rules.job_filter import ANY, DEAD_STATES, WAITING_STATES, FailureFilter, age_seconds
from celery_lowkiq.rules.models import Job, Layout, Payload, QueueSpec, ShardRef
from celery_lowkiq.rules.repairs import Damage, Repaired
from celery_lowkiq.rules.resharding import MigrationState, ReshardCost, cost
from celery_lowkiq.rules.signatures import split_record
from celery_lowkiq.rules.text import last_error_line
from celery_lowkiq.rules.validators import invalid
from celery_lowkiq.rules.views import (
    FailedJob,
    HeldId,
    Paused,
    PausedId,
    Sample,
    SearchPage,
    ShardReport,
    ShardsPage,
    Stats,
    StoredGroup,
    Try,
    span_of,
)
from celery_lowkiq.store import actions, counts, diagnosis, node_reports
from celery_lowkiq.store.actions import (
    DEAD,
    FAILED,
    UNSIGNED,
    Left,
    Signed,
    queue_damages,
    repair_queue,
    resume_all_ids,
    switch_holds,
    switch_ids,
    switch_queue,
    switch_shard,
)
from celery_lowkiq.store.call_records import digest, records_of
from celery_lowkiq.store.client import Client
from celery_lowkiq.store.counts import PAGE
from celery_lowkiq.store.listings import BY_TIME, Listing, ShardReads
from celery_lowkiq.store.progress import Progress, ShardTally, Tally
from celery_lowkiq.store.records import id_bytes
from celery_lowkiq.store.registry import as_known, as_stored, at_rest
from celery_lowkiq.store.resharding import Migrations, check_shards, memory_of, reshard

# Readers of filters, listings and rates, as users give them.

#: Maximum length of a filter, which is compiled.
MAX_FILTER = 2000
#: Options of a listing that its filter has, and those that bound the value of its sort.
LISTED, BOUNDS = ("prefix", "state", "age"), ("minimum", "maximum")
_RATE = re.compile(r"\d{1,9}(\.\d{1,6})?/[smh]")
_MOMENT = re.compile(r"\d{1,10}(\.\d{1,6})?")


def read_filter(values: Mapping[str, Any]) -> FailureFilter:
    """Return the filter of the values of FILTERS, each "" or missing for any.

    Raises InvalidCall.
    """
    since = values.get("since") or None
    time_of = None if since is None else read_since(since)
    error = values.get("error") or ""
    return FailureFilter(
        error and read_text(error), values.get("failure") or "", time_of, **_listed_values(values)
    )


def read_listing(app: Celery, by: str, options: Mapping[str, Any], states: Sequence[str]) -> Listing:
    """Return the listing sorted by ``by``, of jobs with these states. Raises InvalidCall."""
    bounds = {
        name: read_time(name, value, app.timezone) if by in BY_TIME else read_score(value, None, name)
        for name in BOUNDS
        if (value := options.get(name)) is not None
    }
    others = {name: value for name, value in options.items() if name not in LISTED}
    filters = FailureFilter(**_listed_values(options)).listed(states, time.time())
    return Listing(by, **{**others, **bounds, **filters})


def _listed_values(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values.get(name) or "" for name in LISTED}


def read_text(text: str) -> str:
    """Return the text of a filter. Raises InvalidCall, also for an empty one, which would match all."""
    if not text:
        raise InvalidCall("a filter is empty: expected a text. Nothing was changed")
    if len(text) > MAX_FILTER:
        raise InvalidCall(f"a filter is invalid: expected at most {MAX_FILTER} characters")
    return text


def read_since(text: str) -> float:
    """Return the Unix time (s) of an age, or of a time. Raises InvalidCall."""
    age = age_seconds(text)
    if age is not None:
        return time.time() - age
    if not _MOMENT.fullmatch(text):
        raise InvalidCall(invalid("since", text, "an age such as 30min, 2h or 7d, or a Unix time in s"))
    return float(text)


def read_rate(text: str) -> float:
    """Return jobs a second. Raises InvalidCall."""
    found = rate(text) if _RATE.fullmatch(text) else 0
    if not found:
        raise InvalidCall(invalid("rate", text, "a rate such as 50/s, 600/m or 1000/h"))
    return float(found)


# Groups of failures, and the jobs of a group or an error.

#: Jobs that are searched for the counts of groups, of failing and of dead ones each.
SEARCHED = 10_000
#: Ids that a search returns.
SHOWN_IDS = 100
#: Largest time in s between two looks at a request to stop.
PATIENCE = 0.25
#: Changes jobs by ids. Returns how many.
Change = Callable[[list[str]], int]


@dataclass(frozen=True)
class FailureGroup:
    """Failures with one fingerprint.

    ``count``: runs that failed since ``first_seen`` (Unix s; None: unknown). ``failing`` and ``dead``: its
    jobs now, as far as they were searched. ``example`` is a recent error with its traceback.
    """

    fingerprint: str
    error: str
    where: str
    count: int
    first_seen: float | None
    last_seen: float | None
    failing: int
    dead: int
    example: str


@dataclass(frozen=True)
class Failures:
    """The groups of a queue, the last seen first. ``searched`` of ``jobs`` failing and dead jobs were
    counted.

    On a cluster, ``unreachable`` has the names of the shards whose jobs are in no count, by the address of
    their master. ``unknown``: the queue's own master is unreachable, so only groups of the jobs are known.
    """

    groups: tuple[FailureGroup, ...]
    searched: int
    jobs: int
    unreachable: Mapping[str, str] = field(default_factory=dict)
    unknown: bool = False


@dataclass(frozen=True)
class Matches:
    """How many of the ``searched`` jobs match, of all ``jobs``; ``ids`` of the first ones.

    ``unreachable``: see :class:`Failures`.
    """

    count: int
    searched: int
    jobs: int
    ids: tuple[str, ...]
    unreachable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Found:
    """A failing or dead job with what a filter asks for."""

    job: FailedJob
    load: Callable[[bytes], str]

    @cached_property
    def text(self) -> str:
        return self.load(self.job.error)

    @cached_property
    def fingerprint(self) -> str:
        return read_mark(self.job.error)[0] or text_fingerprint(self.text).id


@dataclass
class _Jobs:
    """Counts of the jobs of a group; times are Unix s."""

    example: _Found
    failing: int = 0
    dead: int = 0
    first: float = math.inf
    last: float = 0.0

    def add(self, at: float, dead: bool) -> None:
        self.failing += not dead
        self.dead += dead
        if at:
            self.first, self.last = min(self.first, at), max(self.last, at)


def _matches(wanted: FailureFilter, found: _Found) -> bool:
    return found.job.fits and wanted.matches(last_error_line(found.text), found.fingerprint, found.job.at)


def _with_jobs(group: FailureGroup | None, jobs: _Jobs) -> FailureGroup:
    """Add jobs to their group; the store has none for some errors."""
    if group is None:
        found, error = jobs.example, text_fingerprint(jobs.example.text).error
        group = FailureGroup(found.fingerprint, error, "", 0, None, None, 0, 0, found.text)
    seen = (jobs.first, jobs.last) if jobs.last else ()
    times = [time for time in (group.first_seen, group.last_seen, *seen) if time]
    return replace(
        group,
        failing=jobs.failing,
        dead=jobs.dead,
        count=max(group.count, jobs.failing + jobs.dead),
        first_seen=min(times, default=None),
        last_seen=max(times, default=None),
    )


def _may_stop(tally: Tally) -> None:
    """Raises Stop after a request to stop."""
    tally.add(0)
    tally.begin()


def _wait_until(moment: float, tally: Tally) -> None:
    """Wait until a monotonic time. Raises Stop."""
    never = Event()
    while (left := moment - monotonic()) > 0:
        never.wait(min(left, PATIENCE))
        _may_stop(tally)


# Signatures of what operators change or vouch for.

#: Payloads of a job that are signed, or searched for one with a signed score: those with the smallest scores.
PAYLOADS_SEARCHED = 1000
#: Calls of a job that are made due.
CALLS = 100


# ``task.ordered_queue``: reads of a queue, and actions on it. Needs no worker.

BURIED = "moved to the morgue by hand"
Q = TypeVar("Q", bound="OrderedQueue")


class OrderedQueue:
    """Reads of the queue of one task, and actions on it.

    Every method may raise StoreError. The stored number of shards applies, not the declared one. While jobs
    move to another one, actions on jobs and ids, :meth:`why`, :meth:`tries`, :meth:`dump` and :meth:`load`
    raise QueueMigrating.

    A listing returns a :class:`Page`; pass its ``next`` as ``after`` for the following page. An action
    returns the number of changed jobs, works in bounded steps, is safe to repeat, and calls ``progress`` with
    the number of jobs done so far. On a cluster, an action on several jobs does what it can on the masters
    that answer, and raises ShardsUnreachable at the end when shards were left out.
    """

    _raw: bool = False
    _decodes: bool = False
    _mask: PayloadMask | None = None

    def __init__(
        self, app: Celery, spec: QueueSpec, left: Left, terms: Callable[[], Terms], form: CallForm
    ) -> None:
        self._app = app
        self._left = left
        self._terms = terms
        self._form = form
        self.spec = spec

    def __repr__(self) -> str:
        return f"<OrderedQueue {self.name} shards={self.spec.shards}>"

    @property
    def name(self) -> str:
        """Name of the queue."""
        return self.spec.name

    def stored_spec(self) -> QueueSpec:
        """Return the spec with the stored number of shards; the one of the code as long as none is stored."""
        return as_stored(self._client, [self.spec])[0]

    def _known_spec(self) -> QueueSpec:
        return as_known(self._client, [self.spec])[0]

    # -- what is shown of payloads

    def raw(self: Q, decoded: bool = False) -> Q:
        """Return the same queue with payloads as the stored bytes, not masked.

        ``decoded``: the verified ones that are not JSON are also decoded.
        """
        queue = copy(self)
        queue._raw, queue._decodes, queue._mask = True, decoded, None
        return queue

    def masked(self: Q, marks: bool = True) -> Q:
        """Return the same queue with payloads in which what ``lowkiq_redact`` names is masked.

        What is neither JSON nor decoded is masked whole. ``marks``: see PayloadMask.
        """
        queue = copy(self)
        queue._mask = self._masks(marks)
        return queue

    def _masks(self, marks: bool = True) -> PayloadMask:
        return PayloadMask(self._context.settings.redactor, self._form, marks)

    def shown_bytes(self, data: bytes) -> str:
        """Return stored bytes of a payload as text with masks."""
        return self._masks().stored(data).decode("utf-8", "backslashreplace")

    def shown_value(self, value: Any) -> str:
        """Return a decoded payload as text with masks."""
        return value_text(self._masks().value(value))

    def has_mask(self, payload: Any) -> bool:
        """Return whether a payload has a mask in the place of a secret."""
        redactor = self._context.settings.redactor
        return bool(redactor) and redactor.has_mask(payload)

    # -- reads

    def stats(self) -> Stats:
        """Return the counts of the queue, and its lag in s.

        On a cluster, ``missing`` is the number of shards that are not counted, because their masters are
        unreachable.
        """
        return counts.stats(self._client, self._known_spec())

    def shard_stats(self) -> list[Stats]:
        """Return the counts of each shard, by index; ``missing`` is 1 when its master is unreachable."""
        return counts.shard_stats(self._client, self._known_spec())

    def shard_of(self, job_id: Any) -> int:
        """Return the index of the shard of an id. Raises InvalidCall for an invalid id."""
        name = read_id(job_id)
        return self.stored_spec().shard_of(name).index

    def job(self, job_id: Any, payload_limit: int = 100, **options: Any) -> ShownPlaces:
        """Return the places of an id, with at most ``payload_limit`` payloads in each.

        The option ``payload_bytes`` cuts each payload; a cut payload is not decoded. Raises InvalidCall.
        """
        found = counts.job(self._client, self.stored_spec(), read_id(job_id), payload_limit, **options)
        return self._decoder.places(found)

    def jobs(self, by: str = "id", **options: Any) -> SearchPage[ShownJob]:
        """Return a page of waiting jobs, sorted by ``perform_in`` or ``retry_count`` (failed jobs only).

        ``by="id"`` (the default) is not sorted. Options:

        - ``prefix``: ids that begin with it.
        - ``minimum``, ``maximum``: bounds of the sort value. Times are Unix times in s, or datetimes.
        - ``reverse``: the largest value first.
        - ``limit`` (100) and ``after``: the size of the page, and the ``next`` of the page before.
        - ``payload_limit`` (10): maximum number of payloads of each job.
        - ``payload_bytes``: maximum size of each payload (default: no limit); a cut payload is not decoded.

        On a cluster, ``unreachable`` names the shards that this page, or a page before, lacks because their
        masters were unreachable. Begin again without ``after`` for a listing with all shards.

        Filters, for sorted pages: ``state`` (due, scheduled, paused or held), ``age`` (``">2h"``: due for
        more than 2 hours, ``"<30min"``: for less), and ``failure``, the fingerprint of its error. Where no
        index finds the jobs, a page has read 5,000 of the listing at most: see ``searched`` and ``total``.

        Raises InvalidCall.
        """
        listing = read_listing(self._app, by, options, WAITING_STATES)
        page = counts.jobs(self._client, self.stored_spec(), listing, self.fingerprint_of)
        return page.map(self._decoder.job)

    def morgue(self, by: str = "id", **options: Any) -> SearchPage[ShownDeadJob]:
        """Return a page of dead jobs, sorted by ``id`` or ``updated_at``; options as for :meth:`jobs`.

        ``age`` is the time since its last death, and the only ``state`` is held: it holds its id.
        """
        listing = read_listing(self._app, by, options, DEAD_STATES)
        page = counts.morgue(self._client, self.stored_spec(), listing, self.fingerprint_of)
        return page.map(self._decoder.dead_job)

    def processing(self, **options: Any) -> SearchPage[ShownJob]:
        """Return a page of the jobs in processing, the oldest claim of each shard first.

        Options ``limit``, ``after``, ``payload_limit`` and ``payload_bytes`` as for :meth:`jobs`.
        """
        return counts.processing(self._client, self.stored_spec(), **options).map(self._decoder.job)

    def shards(self) -> tuple[ShardReport, ...]:
        """Return each shard with its counts, its owner, and the batch that runs."""
        return diagnosis.shards(self._client, self._known_spec())

    def shard_hints(self, shards: Sequence[ShardReport]) -> list[Hint]:
        """Return why the given :meth:`shards` are late, and whether more of them would help.

        Nothing while the master with the queue's own keys, or with the reports of nodes, is unreachable, and
        others respond.
        """
        client = self._client
        found = client.unless_unreachable(lambda: diagnosis.hints(client, self.stored_spec(), shards)) or []
        return [hint._replace(advice=naming(hint.advice, self._app)) for hint in found]

    def tries(self, job_id: Any) -> tuple[Try, ...]:
        """Return the last ten failed runs of a waiting or dead job, oldest first. Raises InvalidCall."""
        return counts.tries(self._client, self.stored_spec(), read_id(job_id))

    def why(self, job_id: Any) -> Why:
        """Return where an id is and why it is not running, as text and facts. Raises InvalidCall."""
        read = partial(load_error, self._context.settings)
        facts = diagnosis.facts(self._client, self.stored_spec(), read_id(job_id), read=read, **self._terms())
        return why(facts)

    def history(self, span: str = "1h") -> tuple[Sample, ...]:
        """Return the counters of processed and failed jobs, and the lag, oldest first.

        ``span``: "1h", with a sample each ten seconds, or "24h", with one each ten minutes. Times without a
        worker are missing. ``rules.history.rates`` computes jobs per second. Raises InvalidCall.
        """
        found, errors = node_reports.histories(self._client, [self.spec], span_of(span))
        for error in errors.values():
            raise error
        return found[self.spec.name]

    def paused(self) -> Paused:
        """Return since when (Unix s) the queue and its shards are paused, and the number of paused ids.

        On a cluster, ``unreachable`` names the shards that are missing.
        """
        return counts.paused(self._client, self.stored_spec())

    def paused_ids(self, limit: int = 100, after: str | None = None) -> ShardsPage[PausedId]:
        """Return a page of the paused ids that are not held, the oldest pause first. Raises InvalidCall."""
        return counts.paused_ids(self._client, self.stored_spec(), limit=limit, after=after)

    # -- failures: their groups, and jobs that match a filter

    def failures(self, fingerprint: str = "") -> Failures:
        """Return the groups of failures, or the one with a fingerprint.

        Jobs of errors without a group, such as poison pills, make groups of their own; ``count`` is then
        that of the jobs.
        """
        reads, stored = self._reads(), counts.failure_groups(self._client, self.spec)
        groups = {one.fingerprint: self._shown(one) for one in stored or ()}
        tallies: dict[str, _Jobs] = {}
        for dead in (True, False):
            for found in self._search(reads, ANY, dead, SEARCHED):
                if (tally := tallies.get(found.fingerprint)) is None:
                    tally = tallies[found.fingerprint] = _Jobs(found)
                tally.add(found.job.at, dead)
        for name, tally in tallies.items():
            groups[name] = _with_jobs(groups.get(name), tally)
        searched = sum(tally.failing + tally.dead for tally in tallies.values())
        shown = (one for one in groups.values() if fingerprint in ("", one.fingerprint))
        by_time = sorted(shown, key=lambda one: (-(one.last_seen or 0), one.fingerprint))
        jobs = sum(counts.count_failures(reads, dead=dead) for dead in (True, False))
        return Failures(tuple(by_time), searched, jobs, reads.unreachable, unknown=stored is None)

    def matching(self, wanted: FailureFilter, *, dead: bool, limit: int | None = SEARCHED) -> Matches:
        """Find the dead jobs, or the waiting ones that failed, that match. Searches ``limit`` of them."""
        count = searched = 0
        ids: list[str] = []
        reads = self._reads()
        for found in self._search(reads, wanted, dead, limit):
            searched += 1
            if _matches(wanted, found):
                count += 1
                ids += [found.job.id] if count <= SHOWN_IDS else []
        return Matches(
            count, searched, counts.count_failures(reads, dead=dead), tuple(ids), reads.unreachable
        )

    def change_matching(
        self,
        change: Change,
        wanted: FailureFilter,
        *,
        dead: bool,
        limit: int | None = None,
        rate: float | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Change the jobs that match now, at most ``limit``, and ``rate`` a second. Returns how many.

        ``progress`` may raise Stop after each step: the other jobs stay as they are. Raises
        ShardsUnreachable when shards were left out.
        """
        reads, began_at, given = self._reads(), monotonic(), 0
        tally = ShardTally(reads.client, progress)
        step = PAGE if rate is None else max(1, min(PAGE, int(rate * PATIENCE)))
        for ids in self._batches(reads, wanted, dead, step, tally):
            part = ids if limit is None else ids[: limit - given]
            given += len(part)
            tally.begin()
            tally.add_part(partial(change, part))
            if given == limit:
                break
            if rate is not None:
                _wait_until(began_at + given / rate, tally)
        tally.left_out |= reads.missing
        return tally.total()

    def groups(self) -> dict[str, str]:
        """Return the errors of the groups by fingerprint, the last seen first, without a look at any job.

        On a cluster, none while the queue's own master is unreachable.
        """
        found = sorted(counts.failure_groups(self._client, self.spec) or (), key=lambda one: -one.last_seen)
        return {one.fingerprint: self._description(one.about)[0] for one in found}

    def fingerprint_of(self, error: bytes) -> str:
        """Return the fingerprint of a stored error."""
        return read_mark(error)[0] or text_fingerprint(self._text_of(error)).id

    def frames_of(self, fingerprint: str) -> str:
        """Return the frames that the jobs of a group have in common; "" when the group is gone."""
        about = counts.about_failure(self._client, self.spec, fingerprint) if fingerprint else None
        return self._description(about)[2] if about is not None else ""

    # -- pauses

    def pause(self, shard: int | None = None, job_id: Any = None) -> bool:
        """Pause the queue, or one shard (its index), or one id. Return whether this changed anything.

        Within a second, no node starts a paused job. Running jobs finish, and new calls wait, also those of
        an id without a job. Each pause is resumed by itself: a shard or an id stays paused when the queue is
        resumed. Raises InvalidCall.
        """
        return self._switch(shard, job_id, paused=True)

    def resume(self, shard: int | None = None, job_id: Any = None) -> bool:
        """Resume the queue, or one shard (its index), or one id. Return whether this changed anything.

        Its jobs are due at their own times. Raises InvalidCall.
        """
        return self._switch(shard, job_id, paused=False)

    def _switch(self, shard: int | None, job_id: Any, *, paused: bool) -> bool:
        if shard is not None and job_id is not None:
            raise InvalidCall(
                f"shard={shard!r} and job_id={job_id!r} are invalid: expected one of them, or none"
            )
        if job_id is not None:
            return (self.pause_ids if paused else self.resume_ids)([job_id]) == 1
        if shard is not None:
            return switch_shard(self._client, self._at_rest(), shard, paused=paused)
        return switch_queue(self._client, self.spec, paused=paused)

    def pause_ids(self, ids: Iterable[Any], progress: Progress | None = None) -> int:
        """Pause ids. Return how many were not paused before. Raises InvalidCall."""
        return switch_ids(self._client, self._at_rest(), map(read_id, ids), progress, paused=True)

    def resume_ids(self, ids: Iterable[Any], progress: Progress | None = None) -> int:
        """Resume ids. Return how many were paused. Raises InvalidCall."""
        return switch_ids(self._client, self._at_rest(), map(read_id, ids), progress, paused=False)

    def resume_all_ids(self, progress: Progress | None = None) -> int:
        """Resume all paused ids. Return how many were paused."""
        return resume_all_ids(self._client, self._at_rest(), progress)

    # -- holds: ids that a dead payload holds

    def held_ids(self, limit: int = 100, after: str | None = None) -> ShardsPage[HeldId]:
        """Return a page of the ids that a dead payload holds, the longest held first. Raises InvalidCall."""
        return counts.held_ids(self._client, self.stored_spec(), limit=limit, after=after)

    def hold(self, ids: Iterable[Any], progress: Progress | None = None) -> int:
        """Let dead payloads hold their ids: newer ones wait until somebody has decided about the dead ones.

        Return how many ids have dead payloads and were not held. Raises InvalidCall, also for a queue that
        drops payloads, by ``keep=``, ``latest=`` or ``drop_stale=``.
        """
        if not self.spec.policies.may_hold:
            raise InvalidCall(
                f"queue {self.spec.name!r} drops payloads, by keep=, latest= or drop_stale=, so that newer "
                "ones run over a gap anyway: pause the ids instead"
            )
        return switch_holds(self._client, self._at_rest(), map(read_id, ids), progress, held=True)

    def go_on(self, ids: Iterable[Any], progress: Progress | None = None) -> int:
        """Let held ids go on over the gap: their dead payloads stay in the morgue.

        Return how many were held. Raises InvalidCall.
        """
        return switch_holds(self._client, self._at_rest(), map(read_id, ids), progress, held=False)

    # -- actions

    def run_now_all(self, progress: Progress | None = None) -> int:
        """Make all waiting jobs due now. Jobs of paused ids run after their ids are resumed."""
        queue = self._at_rest()

        def make_calls_due(shard: ShardRef) -> None:
            for job in counts.waiting_of(self._client, shard, CALLS):
                self._make_calls_due(queue, job)

        before = make_calls_due if self._form.has_times else None
        return actions.run_now_all(self._client, queue, progress, before)

    def run_now(self, ids: Iterable[Any], progress: Progress | None = None) -> int:
        """Make waiting jobs due now, with ``by=`` also their first 100 calls. Return how many were due later.

        Raises InvalidCall.
        """
        queue = self._at_rest()

        def make_calls_due(job_id: str) -> None:
            if (job := counts.job(self._client, queue, job_id, CALLS).waiting) is not None:
                self._make_calls_due(queue, job)

        before = make_calls_due if self._form.has_times else None
        return actions.run_now(self._client, queue, map(read_id, ids), progress, before)

    def bury(self, ids: Iterable[Any], progress: Progress | None = None, *, only_failed: bool = False) -> int:
        """Move waiting jobs to the morgue; their calls end as FAILURE. Raises InvalidCall."""
        reason = dump_error_text(self._context.settings, BURIED)
        return actions.bury(
            self._client, self._at_rest(), map(read_id, ids), reason, progress, only_failed, self._left
        )

    def bury_failed(self, progress: Progress | None = None) -> int:
        """Move all waiting jobs that failed before to the morgue; their calls end as FAILURE."""
        return actions.bury(
            self._client, self._at_rest(), FAILED, b"", progress, only_failed=True, left=self._left
        )

    def delete(
        self, ids: Iterable[Any], progress: Progress | None = None, *, only_failed: bool = False
    ) -> int:
        """Delete waiting jobs; their calls end as REVOKED. Running jobs go on. Raises InvalidCall."""
        return actions.delete(
            self._client, self._at_rest(), map(read_id, ids), progress, only_failed, self._left
        )

    def delete_failed(self, progress: Progress | None = None) -> int:
        """Delete all waiting jobs that failed before; their calls end as REVOKED."""
        return actions.delete(
            self._client, self._at_rest(), FAILED, progress, only_failed=True, left=self._left
        )

    def delete_payload(self, job_id: Any, payload: Any) -> bool:
        """Delete one payload of a waiting job; its calls end as REVOKED. Return whether the job had it.

        On a :meth:`raw` queue, ``payload`` is the stored bytes. Raises InvalidCall.
        """
        queue, old = self._at_rest(), self._bytes_of(payload)
        return actions.edit(self._client, queue, read_id(job_id), old, None, left=self._left)

    def edit_payload(self, job_id: Any, payload: Any, value: Any) -> bool:
        """Replace one payload of a waiting job by ``value``, with the same score. Return whether it changed.

        The calls of the old payload end as REVOKED. Raises InvalidCall, with ``by=`` also for a value that
        is no call of the id; and PayloadError for one that cannot be serialized or is too large.
        """
        return self._edit(job_id, payload, value, dead=False)

    def delete_dead_payload(self, job_id: Any, payload: Any) -> bool:
        """Delete one payload of a dead job. Return whether the job had it.

        An id that it held goes on when no other payload of it is dead. On a :meth:`raw` queue, ``payload`` is
        the stored bytes. Raises InvalidCall.
        """
        queue, old = self._at_rest(), self._bytes_of(payload)
        return actions.edit_dead(self._client, queue, read_id(job_id), old)

    def edit_dead_payload(self, job_id: Any, payload: Any, value: Any) -> bool:
        """Replace one payload of a dead job by ``value``, with the same score. Return whether it changed.

        Requeue the job to run it. Raises as :meth:`edit_payload`.
        """
        return self._edit(job_id, payload, value, dead=True)

    def _edit(self, job_id: Any, payload: Any, value: Any, *, dead: bool) -> bool:
        name = read_id(job_id)
        self._form.check_edit(name, value)
        new, old = self._codec.dump(value), self._bytes_of(payload)
        signature = self._edit_signature(name, old, new, dead=dead)
        edit = actions.edit_dead if dead else partial(actions.edit, left=self._left)
        return old != new and edit(self._client, self._at_rest(), name, old, new, signature)

    def delete_dead(self, ids: Iterable[Any], progress: Progress | None = None) -> int:
        """Delete dead jobs. Raises InvalidCall."""
        return actions.delete_dead(self._client, self._at_rest(), map(read_id, ids), progress)

    def delete_dead_all(self, progress: Progress | None = None) -> int:
        """Delete all jobs that are dead now."""
        return actions.delete_dead(self._client, self._at_rest(), DEAD, progress)

    def requeue(self, ids: Iterable[Any], progress: Progress | None = None, force: bool = False) -> int:
        """Move dead jobs back to the queue, due now, as if they had never failed. Raises InvalidCall.

        With the policy ``drop_stale``, payloads older than the last run move only with ``force``.
        """
        return actions.requeue(self._client, self._at_rest(), map(read_id, ids), progress, force)

    def requeue_all(self, progress: Progress | None = None, force: bool = False) -> int:
        """Move all jobs that are dead now back to the queue; ``force`` as for :meth:`requeue`."""
        return actions.requeue(self._client, self._at_rest(), DEAD, progress, force)

    # -- Lowkiq's names of the actions: aliases that only this class has

    perform_now = run_now
    perform_all_now = run_now_all
    kill = bury
    kill_all_failed = bury_failed
    delete_all_failed = delete_failed
    morgue_queue_up = requeue
    morgue_queue_up_all = requeue_all
    morgue_delete = delete_dead
    morgue_delete_all = delete_dead_all

    # -- repairs

    def damages(self) -> tuple[Damage, ...]:
        """Return the damaged keys of each shard. Changes nothing."""
        return tuple(queue_damages(self._client, self.spec))

    def repair(self, progress: Progress | None = None) -> tuple[Repaired, ...]:
        """Restore lost keys from the others while workers go on, and return what was done in each shard.

        What cannot be restored is counted. ``progress`` gets the number of finished shards.
        """
        return tuple(repair_queue(self._client, self.spec, progress))

    # -- moving to another Redis

    def dump(self) -> Iterator[bytes]:
        """Yield all jobs as lines of JSON: waiting, in processing, and dead.

        A job that stays in one state is yielded once. A job that changes meanwhile may be missing or be
        yielded twice, so pause the queue first.
        """
        return dump_lines(self._context, self._at_rest())

    def load(
        self,
        lines: Iterable[bytes],
        *,
        renamed: bool = False,
        again: bool = False,
        progress: Callable[[Loaded], object] | None = None,
    ) -> Loaded:
        """Merge the lines of a dump into the queue. After an error, the loaded lines stay, and the next load
        skips them.

        ``renamed``: accept the dump of a queue with another name. ``again``: load all lines once more.
        Raises BadDump, which names the line, and QueueResharded.
        """
        return load_lines(
            self._context, self._at_rest(), lines, renamed=renamed, again=again, progress=progress
        )

    # -- signatures

    @property
    def is_signed(self) -> bool:
        """True when the app signs what it stores."""
        return self._context.signing.mode != "off"

    def sign_dead(self, ids: Iterable[str], progress: Progress | None = None) -> int:
        """Sign the dead payloads of ids as they are, so that they run once they are requeued.

        Look at them first: this vouches for them, whoever wrote them. Of an id with more than 1,000 dead
        payloads, those with the smallest scores are signed. Return how many jobs have any. Raises
        InvalidCall, also for an app that does not sign.
        """
        if not self.is_signed:
            raise InvalidCall("there is no key to sign with: set lowkiq_signing and lowkiq_signing_keys")
        queue = self._at_rest()
        tally = ShardTally(self._client, progress)
        for job_id in map(read_id, ids):
            tally.begin()
            with tally.of(queue.shard_of(job_id)):
                dead = counts.job(self._client, queue, job_id, PAYLOADS_SEARCHED).dead
                signed = [
                    actions.edit_dead(
                        self._client,
                        queue,
                        job_id,
                        one.data,
                        one.data,
                        self._signature(job_id, one.data, one.score),
                    )
                    for one in (dead.payloads if dead else ())
                ]
                tally.add(int(any(signed)))
        return tally.total()

    # -- another number of shards

    def reshard(self, shards: int, progress: Progress | None = None) -> int:
        """Move the queue to another number of shards while it is in use, and return when that has ended.

        Callers and workers follow without a restart. Repeat it after an error. Raises InvalidCall;
        QueueMigrating while the queue moves to yet another number; MigrationPaused; and MigrationAborted.
        """
        check_shards(shards)
        return reshard(self._context.store.mover(self.spec), self.spec, shards, progress, 1 + self.movers())

    def movers(self) -> int:
        """Return the number of living nodes that serve the queue, and so move it."""
        return sum(
            node.alive and self.spec.name in node.queues for node in node_reports.read_nodes(self._client)
        )

    def reshard_cost(self, shards: int) -> ReshardCost:
        """Estimate what :meth:`reshard` would cost, without a change. Raises InvalidCall, QueueMigrating."""
        check_shards(shards)
        queue = self._at_rest()
        now = counts.stats(self._client, queue)
        used = memory_of(self._client, queue)
        layout = Layout(shards, former=queue.shards)
        return cost(self.spec.name, layout, now.length + now.morgue_length, used)

    def pause_migration(self) -> bool:
        """Stop moving jobs, in all nodes; return whether it was not paused before.

        Jobs run where they are. An id is moved when a call comes for it. Raises NotMigrating without a
        migration, or when all jobs have moved.
        """
        return self._pause_migration(True)

    def resume_migration(self) -> bool:
        """Move jobs again after :meth:`pause_migration`; return whether it was. Raises NotMigrating."""
        return self._pause_migration(False)

    def abort_migration(self) -> int:
        """Begin to move all back to the former number of shards; return that number.

        Nodes do it; ``reshard`` to that number waits for it. A migration that takes another one back goes on,
        and this returns its own number. Raises NotMigrating without a migration, or when all jobs have moved;
        NotAbortable when a failover of Redis has lost whether the migration takes another one back.
        """
        former = self._migrations.abort()
        if former is None:
            raise NotMigrating(self.spec.name)
        return former

    def _pause_migration(self, wanted: bool) -> bool:
        changed = self._migrations.pause(wanted)
        if changed is None:
            raise NotMigrating(self.spec.name)
        return changed

    def migration(self) -> MigrationState | None:
        """Return the migration that is going on, with the counts of its shards; None without one."""
        return self._migrations.state()

    def migration_if_there(self) -> MigrationState | None:
        """Return :meth:`migration`; None while a master that it needs is unreachable, and others respond."""
        return self._client.unless_unreachable(self.migration)

    # -- helpers: the store, and what is read of it

    @property
    def _context(self) -> AppContext:
        return context_of(self._app)

    @property
    def _client(self) -> Client:
        return self._context.store.client

    def _at_rest(self) -> QueueSpec:
        return at_rest(self._client, self.spec)

    @property
    def _migrations(self) -> Migrations:
        return Migrations(self._client, self.spec.name)

    @property
    def _decoder(self) -> JobDecoder:
        of_queue = self._context, self.name, self._raw, self._decodes
        return JobDecoder(*of_queue, self.frames_of, self.fingerprint_of, self._mask)

    def _bytes_of(self, payload: Any) -> bytes:
        return bytes(payload) if self._raw else self._codec.dump(payload)

    @property
    def _codec(self) -> Codec:
        return self._context.codecs[self._form.merges]

    def _text_of(self, error: bytes) -> str:
        return load_error(self._context.settings, error) or ""

    def _reads(self) -> ShardReads:
        return ShardReads(self._client, self.stored_spec())

    def _description(self, about: bytes) -> list[str]:
        """Error, place, frames and message of a group."""
        parts = (load_error(self._context.settings, about) or "").split("\0", 3)
        return [*parts, "", "", ""][:4]

    def _shown(self, one: StoredGroup) -> FailureGroup:
        error, where, frames, message = self._description(one.about)
        return FailureGroup(
            one.fingerprint,
            error,
            where,
            count=one.count,
            first_seen=one.first_seen,
            last_seen=one.last_seen,
            failing=0,
            dead=0,
            example=frames + message,
        )

    def _search(
        self, reads: ShardReads, wanted: FailureFilter, dead: bool, limit: int | None
    ) -> Iterator[_Found]:
        """Yield at most ``limit`` jobs that may match."""
        listing = Listing(**wanted.listed(DEAD_STATES if dead else WAITING_STATES, time.time()))
        pages = counts.failed_jobs(reads, dead=dead, since=wanted.since, wanted=listing)
        for job in islice(chain.from_iterable(pages), limit):
            yield _Found(job, self._text_of)

    def _batches(
        self, reads: ShardReads, wanted: FailureFilter, dead: bool, size: int, tally: Tally
    ) -> Iterator[list[str]]:
        """Yield ids that match. Raises Stop between two pages."""
        ids: list[str] = []
        for number, found in enumerate(self._search(reads, wanted, dead, None)):
            if number % PAGE == 0:
                _may_stop(tally)
            if _matches(wanted, found):
                ids.append(found.job.id)
            if len(ids) == size:
                yield ids
                ids = []
        if ids:
            yield ids

    # -- helpers: signatures, and calls with a time of their own

    def _edit_signature(self, job_id: str, old: bytes, new: bytes, *, dead: bool) -> Signed:
        """Sign a payload that replaces another one."""
        if not self.is_signed:
            return UNSIGNED
        found = counts.job(self._client, self._at_rest(), job_id, PAYLOADS_SEARCHED)
        job = found.dead if dead else found.waiting
        for payload in job.payloads if job else ():
            if payload.data == old and self._gate.is_signed(job_id, payload):
                return self._signature(job_id, new, payload.score)
        # The operator vouches for the new payload, not for a score that anybody may have written.
        return self._signature(job_id, new, None)

    def _signature(self, job_id: str, new: bytes, score: float | None) -> Signed:
        """Sign a payload; the signature binds ``score`` if the signature of the replaced payload bound it."""
        signing, name, of = self._context.signing, self.spec.name, id_bytes(job_id)
        texts = signing.sign_payload(name, of, new, None) + signing.sign_payload(name, of, new, score)
        return Signed(texts, score or 0.0)

    def _make_calls_due(self, queue: QueueSpec, job: Job) -> None:
        context, now = self._context, time.time()
        for payload in job.payloads:
            with suppress(UndecodablePayload):
                due = self._form.made_due(self._gate.load(job.id, payload), now)
                if due is not None:
                    new = context.codecs[self._form.merges].dump(due)
                    signature = self._renewed(queue, job.id, payload, new)
                    actions.edit(
                        self._client,
                        queue,
                        job.id,
                        payload.data,
                        new,
                        signature,
                        keep_calls=True,
                        left=self._left,
                    )

    def _renewed(self, queue: QueueSpec, job_id: str, old: Payload, new: bytes) -> Signed:
        """Sign a payload that is changed unseen, only if the signature of the old payload verifies."""
        if not self._gate.is_signed(job_id, old):
            return UNSIGNED
        context, of = self._context, digest(new)
        records: list[bytes] = []
        for stored in records_of(context.store.client, queue.shard_of(job_id), job_id, old.data):
            if self._gate.is_signed_record(stored):
                record = split_record(stored.data)[1]
                signature = context.signing.sign_record(queue.name, id_bytes(job_id), of, record)
                records += (stored.data, signature + record)
        return self._signature(job_id, new, old.score)._replace(records=records)

    @property
    def _gate(self) -> Gate:
        return self._context.gate(self.spec.name)
