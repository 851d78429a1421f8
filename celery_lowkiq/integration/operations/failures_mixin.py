"""The part of ``task.ordered_queue`` that groups failures, and finds the jobs of a group or an error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from threading import Event
from time import monotonic, time

from celery import Celery

from celery_lowkiq.integration.app.context import context_of
from celery_lowkiq.integration.app.error_text import load_error
from celery_lowkiq.rules.cached_property import cached_property
from celery_lowkiq.rules.fingerprints import read_mark, text_fingerprint
from celery_lowkiq.rules.job_filter import ANY, DEAD_STATES, WAITING_STATES, FailureFilter
from celery_lowkiq.rules.models import QueueSpec
from celery_lowkiq.rules.text import last_error_line
from celery_lowkiq.rules.views import FailedJob, StoredGroup
from celery_lowkiq.store.inspect.failures import PAGE, FailureReader
from celery_lowkiq.store.inspect.listings import Listing
from celery_lowkiq.store.inspect.shard_reads import ShardReads
from celery_lowkiq.store.scripts.progress import Progress, ShardTally, Tally

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

    On a cluster, ``away`` has the names of the shards whose jobs are in no count, by the address of their
    master. ``unknown``: the queue's own master is away, so that the groups are those of the jobs only.
    """

    groups: tuple[FailureGroup, ...]
    searched: int
    jobs: int
    away: Mapping[str, str] = field(default_factory=dict)
    unknown: bool = False


@dataclass(frozen=True)
class Matches:
    """How many of the ``searched`` jobs match, of all ``jobs``; ``ids`` of the first ones.

    ``away``: as of :class:`Failures`.
    """

    count: int
    searched: int
    jobs: int
    ids: tuple[str, ...]
    away: Mapping[str, str] = field(default_factory=dict)


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

    @property
    def line(self) -> str:
        return last_error_line(self.text)


@dataclass
class _Jobs:
    """What is counted of the jobs of a group; times are Unix s."""

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


class FailuresMixin:
    """Groups of failures, and actions on jobs that match a filter. Methods raise StoreError."""

    _app: Celery
    spec: QueueSpec

    def failures(self, fingerprint: str = "") -> Failures:
        """Return the groups of failures, or the one with a fingerprint.

        Jobs of errors without a group, such as poison pills, make groups of their own; ``count`` is then
        that of the jobs.
        """
        reads, stored = self._reads(), self._reader.groups(self.spec)
        groups = {one.fingerprint: self._shown(one) for one in stored or ()}
        tallies: dict[str, _Jobs] = {}
        for dead in (True, False):
            for found in self._search(reads, ANY, dead, SEARCHED):
                if (tally := tallies.get(found.fingerprint)) is None:
                    tally = tallies[found.fingerprint] = _Jobs(found)
                tally.add(found.job.at, dead)
        for name, tally in tallies.items():
            groups[name] = _with_jobs(groups.get(name) or _group_of(tally.example), tally)
        searched = sum(tally.failing + tally.dead for tally in tallies.values())
        shown = (one for one in groups.values() if fingerprint in ("", one.fingerprint))
        by_time = sorted(shown, key=lambda one: (-(one.last_seen or 0), one.fingerprint))
        jobs = sum(self._reader.count(reads, dead=dead) for dead in (True, False))
        return Failures(tuple(by_time), searched, jobs, reads.away, unknown=stored is None)

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
        return Matches(count, searched, self._reader.count(reads, dead=dead), tuple(ids), reads.away)

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

        ``progress`` may raise Stop after each step: the other jobs stay as they are. Raises ShardsAway when
        shards were left out.
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

        On a cluster, none while the queue's own master is away.
        """
        found = sorted(self._reader.groups(self.spec) or (), key=lambda one: -one.last_seen)
        return {one.fingerprint: self._description(one.about)[0] for one in found}

    def fingerprint_of(self, error: bytes) -> str:
        """Return the fingerprint of a stored error."""
        return read_mark(error)[0] or text_fingerprint(self._text_of(error)).id

    def frames_of(self, fingerprint: str) -> str:
        """Return the frames that the jobs of a group have in common; "" when the group is gone."""
        about = self._reader.about(self.spec, fingerprint) if fingerprint else None
        return self._description(about)[2] if about is not None else ""

    # -- helpers

    @property
    def _reader(self) -> FailureReader:
        return FailureReader(context_of(self._app).store.client)

    def _text_of(self, error: bytes) -> str:
        return load_error(context_of(self._app).settings, error) or ""

    def _reads(self) -> ShardReads:
        client = context_of(self._app).store.client
        return ShardReads(client, context_of(self._app).registry.as_stored([self.spec])[0])

    def _description(self, about: bytes) -> list[str]:
        """Error, place, frames and message of a group."""
        parts = (load_error(context_of(self._app).settings, about) or "").split("\0", 3)
        return [*parts, "", "", ""][:4]

    def _shown(self, one: StoredGroup) -> FailureGroup:
        error, where, frames, message = self._description(one.about)
        times = one.count, one.first_seen, one.last_seen
        return FailureGroup(one.fingerprint, error, where, *times, 0, 0, frames + message)

    def _search(
        self, reads: ShardReads, wanted: FailureFilter, dead: bool, limit: int | None
    ) -> Iterator[_Found]:
        """Yield at most ``limit`` jobs that may match."""
        listing = Listing(**wanted.listed(DEAD_STATES if dead else WAITING_STATES, time()))
        pages = self._reader.jobs(reads, dead=dead, since=wanted.since, wanted=listing)
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


def _matches(wanted: FailureFilter, found: _Found) -> bool:
    return found.job.fits and wanted.matches(found.line, found.fingerprint, found.job.at)


def _group_of(found: _Found) -> FailureGroup:
    """The group of a job whose error has none in the store."""
    error = text_fingerprint(found.text).error
    return FailureGroup(found.fingerprint, error, "", 0, None, None, 0, 0, found.text)


def _with_jobs(group: FailureGroup, jobs: _Jobs) -> FailureGroup:
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
