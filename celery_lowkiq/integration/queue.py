"""``task.ordered_queue``: what is in a queue, and what an operator may do with it. Needs no worker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from celery import Celery

from celery_lowkiq.rules.errors import UndecodablePayload
from celery_lowkiq.rules.history import Sample
from celery_lowkiq.rules.models import Job, Payload, QueueSpec, Stats, shard_of
from celery_lowkiq.rules.views import DeadJob, Page
from celery_lowkiq.store.actions import Actions, Left, Progress

from .calls import read_id, read_score, read_time
from .errors import load_error
from .stores import Home, home_of

BOUNDS = ("minimum", "maximum")
TIMES = ("perform_in", "updated_at")


@dataclass(frozen=True)
class ShownPayload:
    """A payload as it was given, and its score. ``readable`` is false for bytes that no codec reads."""

    value: Any
    score: float
    readable: bool = True


@dataclass(frozen=True)
class ShownJob:
    """A waiting or processing job. ``perform_in`` is a Unix time in s."""

    id: str
    payloads: tuple[ShownPayload, ...]
    payload_count: int
    perform_in: float
    retry_count: int
    error: str | None


@dataclass(frozen=True)
class ShownDeadJob:
    """A job in the morgue. ``updated_at`` is the Unix time (s) of its last death."""

    id: str
    payloads: tuple[ShownPayload, ...]
    payload_count: int
    updated_at: float
    error: str | None


@dataclass(frozen=True)
class ShownPlaces:
    """Where an id is; it may wait while it is processed, and be dead as well."""

    waiting: ShownJob | None
    processing: ShownJob | None
    dead: ShownDeadJob | None


class OrderedQueue:
    """Reads and actions on the queue of one task. Every method may raise StoreError.

    Listings are pages: pass ``after=page.next`` for the following one, until that is None.
    """

    def __init__(self, app: Celery, spec: QueueSpec, left: Left) -> None:
        self._app = app
        self._left = left
        self.spec = spec

    def __repr__(self) -> str:
        return f"<OrderedQueue {self.name} shards={self.spec.shards}>"

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def _home(self) -> Home:
        return home_of(self._app)

    @property
    def _actions(self) -> Actions:
        return self._home.actions(self._left)

    # -- reads

    def stats(self) -> Stats:
        """Counts of the queue, and its lag in s."""
        return self._home.queries.stats(self.spec)

    def shard_stats(self) -> list[Stats]:
        """Counts of each shard."""
        return self._home.queries.shard_stats(self.spec)

    def shard_of(self, job_id: Any) -> int:
        """The shard that an id lies in."""
        return shard_of(read_id(job_id), self.spec.shards)

    def owners(self) -> list[str | None]:
        """Which node has each shard; None where none has it."""
        return [state.owner or None for state in self._home.store.observe(self.spec.shard_refs())]

    def job(self, job_id: Any, payload_limit: int = 100) -> ShownPlaces:
        """Where an id is."""
        found = self._home.queries.job(self.spec, read_id(job_id), payload_limit)
        return ShownPlaces(
            waiting=self._shown(found.waiting) if found.waiting else None,
            processing=self._shown(found.processing) if found.processing else None,
            dead=self._shown_dead(found.dead) if found.dead else None,
        )

    def jobs(self, by: str = "id", **options: Any) -> Page[ShownJob]:
        """A page of waiting jobs, ``by`` id, perform_in or retry_count (failed jobs only).

        Options: ``prefix`` (of the id), ``minimum``, ``maximum`` (times as Unix s or datetime),
        ``reverse``, ``limit`` (100), ``after``, ``payload_limit`` (10 a job). By id they come in no order.
        Raises InvalidCall.
        """
        page = self._home.queries.jobs(self.spec, by, **self._bounded(by, options))
        return Page(tuple(self._shown(job) for job in page.items), page.next)

    def morgue(self, by: str = "id", **options: Any) -> Page[ShownDeadJob]:
        """A sorted page of dead jobs, ``by`` id or updated_at; options as for :meth:`jobs`."""
        page = self._home.queries.morgue(self.spec, by, **self._bounded(by, options))
        return Page(tuple(self._shown_dead(job) for job in page.items), page.next)

    def processing(self, **options: Any) -> Page[ShownJob]:
        """A page of the jobs that are being processed; options ``limit``, ``after``, ``payload_limit``."""
        page = self._home.queries.processing(self.spec, **options)
        return Page(tuple(self._shown(job) for job in page.items), page.next)

    def history(self) -> tuple[Sample, ...]:
        """What was processed and failed up to each ten seconds of the last hour, oldest first; where no
        worker was at work, it has a gap. ``rules.history.rates`` makes jobs a second of it.
        """
        (found,) = self._home.lookout.histories([self.spec])
        return found

    # -- actions; each returns the number of jobs, and tells `progress` how many are done so far

    def perform_all_now(self, progress: Progress | None = None) -> int:
        """Make all waiting jobs due now."""
        return self._actions.perform_all_now(self.spec, progress)

    def delete(self, ids: Iterable[Any], progress: Progress | None = None) -> int:
        """Delete waiting jobs; their calls end as REVOKED."""
        return self._actions.delete(self.spec, map(read_id, ids), progress)

    def delete_all_failed(self, progress: Progress | None = None) -> int:
        """Delete waiting jobs that failed before."""
        return self._actions.delete_all_failed(self.spec, progress)

    def kill_all_failed(self, progress: Progress | None = None) -> int:
        """Move waiting jobs that failed before to the morgue; their calls end as FAILURE."""
        return self._actions.kill_all_failed(self.spec, progress)

    def morgue_delete(self, ids: Iterable[Any], progress: Progress | None = None) -> int:
        """Delete dead jobs."""
        return self._actions.morgue_delete(self.spec, map(read_id, ids), progress)

    def morgue_delete_all(self, progress: Progress | None = None) -> int:
        """Delete all jobs that are dead now."""
        return self._actions.morgue_delete_all(self.spec, progress)

    def morgue_queue_up(self, ids: Iterable[Any], progress: Progress | None = None) -> int:
        """Move dead jobs back to the queue."""
        return self._actions.morgue_queue_up(self.spec, map(read_id, ids), progress)

    def morgue_queue_up_all(self, progress: Progress | None = None) -> int:
        """Move all jobs that are dead now back to the queue."""
        return self._actions.morgue_queue_up_all(self.spec, progress)

    def _bounded(self, by: str, options: dict[str, Any]) -> dict[str, Any]:
        read = partial(read_time, tz=self._app.timezone) if by in TIMES else _read_number
        bounds = {name: read(name, options[name]) for name in BOUNDS if options.get(name) is not None}
        return {**options, **bounds}

    # -- payloads

    def _payloads(self, payloads: tuple[Payload, ...]) -> tuple[ShownPayload, ...]:
        return tuple(self._payload(payload) for payload in payloads)

    def _payload(self, payload: Payload) -> ShownPayload:
        try:
            return ShownPayload(self._home.codec.load(payload.data), payload.score)
        except UndecodablePayload:
            return ShownPayload(payload.data, payload.score, readable=False)

    def _shown(self, job: Job) -> ShownJob:
        error = load_error(self._home.settings, job.error)
        payloads = self._payloads(job.payloads)
        return ShownJob(job.id, payloads, job.payload_count, job.perform_in, job.retry_count, error)

    def _shown_dead(self, job: DeadJob) -> ShownDeadJob:
        error = load_error(self._home.settings, job.error)
        return ShownDeadJob(job.id, self._payloads(job.payloads), job.payload_count, job.updated_at, error)


def _read_number(name: str, value: Any) -> float | None:
    return read_score(value, None, name)
