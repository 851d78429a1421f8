"""``task.ordered_queue``: what is in a queue, and what an operator may do with it. Needs no worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict

from celery import Celery

from celery_lowkiq.integration.app.context import AppContext, context_of
from celery_lowkiq.integration.app.error_text import dump_error_text, load_error
from celery_lowkiq.integration.calls.validation import read_id, read_score, read_time
from celery_lowkiq.rules.diagnosis import Why, why
from celery_lowkiq.rules.errors import InvalidCall, UndecodablePayload
from celery_lowkiq.rules.history import Sample
from celery_lowkiq.rules.models import Job, Payload, QueueSpec, shard_of
from celery_lowkiq.rules.priorities import MOST_URGENT
from celery_lowkiq.rules.repairs import Damage, Repaired
from celery_lowkiq.rules.reports import ShardReport
from celery_lowkiq.rules.views import DeadJob, Page, Paused, PausedId, Stats, Try
from celery_lowkiq.store.admin.actions import Actions, Left, Progress
from celery_lowkiq.store.inspect.pages import Listing

from .dump_load import Loaded, dump_lines, load_lines

BOUNDS = ("minimum", "maximum")
TIMES = ("perform_in", "updated_at")
#: Error of a job that never failed, but was moved to the morgue by hand.
BURIED = "moved to the morgue by hand"


@dataclass(frozen=True)
class ShownPayload:
    """A payload as it was given, and its score. ``readable`` is false for bytes that no codec reads."""

    value: Any
    score: float
    readable: bool = True
    #: Bytes of the whole, where ``value`` is only its beginning.
    cut_from: int | None = None


@dataclass(frozen=True)
class ShownJob:
    """A waiting or processing job. ``perform_in`` is a Unix time in s; ``paused``: its id is paused;
    ``priority`` goes from 0, the most urgent, to 9.
    """

    id: str
    payloads: tuple[ShownPayload, ...]
    payload_count: int
    perform_in: float
    retry_count: int
    error: str | None
    paused: bool = False
    priority: int = MOST_URGENT


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


class Terms(TypedDict):
    """What the task says of its runs: how many a second, and how often a failed one is tried again."""

    rate: float | None
    max_retries: int | None


class OrderedQueue:
    """Reads and actions on the queue of one task. Every method may raise StoreError, and ShardCountMismatch
    when the queue is stored with another number of shards, but for the pause of all of it, and a dump.

    Listings are pages: pass ``after=page.next`` for the following one, until that is None.
    """

    def __init__(self, app: Celery, spec: QueueSpec, left: Left, terms: Callable[[], Terms]) -> None:
        self._app = app
        self._left = left
        self._terms = terms
        self._raw = False
        self.spec = spec

    def raw(self) -> OrderedQueue:
        """The same queue; its payloads are the bytes as stored, and nothing is decoded."""
        queue = OrderedQueue(self._app, self.spec, self._left, self._terms)
        queue._raw = True
        return queue

    def __repr__(self) -> str:
        return f"<OrderedQueue {self.name} shards={self.spec.shards}>"

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def _context(self) -> AppContext:
        return context_of(self._app)

    @property
    def _actions(self) -> Actions:
        return self._context.actions(self._left)

    def _checked(self) -> QueueSpec:
        """What ids and shards are found by, after a look at what is stored. Raises ShardCountMismatch."""
        self._context.registry.check(self.spec)
        return self.spec

    # -- reads

    def stats(self) -> Stats:
        """Counts of the queue, and its lag in s."""
        return self._context.queries.stats(self._checked())

    def shard_stats(self) -> list[Stats]:
        """Counts of each shard."""
        return self._context.queries.shard_stats(self._checked())

    def shard_of(self, job_id: Any) -> int:
        """The shard that an id lies in."""
        return shard_of(read_id(job_id), self.spec.shards)

    def job(self, job_id: Any, payload_limit: int = 100, **options: Any) -> ShownPlaces:
        """Where an id is; option ``payload_bytes``."""
        found = self._context.queries.job(self._checked(), read_id(job_id), payload_limit, **options)
        return ShownPlaces(
            waiting=self._shown(found.waiting) if found.waiting else None,
            processing=self._shown(found.processing) if found.processing else None,
            dead=self._shown_dead(found.dead) if found.dead else None,
        )

    def jobs(self, by: str = "id", **options: Any) -> Page[ShownJob]:
        """A page of waiting jobs, ``by`` id, perform_in or retry_count (failed jobs only).

        Options: ``prefix`` (of the id), ``minimum``, ``maximum`` (times as Unix s or datetime),
        ``reverse``, ``limit`` (100), ``after``, ``payload_limit`` (10 a job), ``payload_bytes`` (of each:
        all; what is cut is not decoded). By id they come in no order.
        Raises InvalidCall.
        """
        page = self._context.queries.jobs(self._checked(), self._listing(by, options))
        return Page(tuple(self._shown(job) for job in page.items), page.next)

    def morgue(self, by: str = "id", **options: Any) -> Page[ShownDeadJob]:
        """A sorted page of dead jobs, ``by`` id or updated_at; options as for :meth:`jobs`."""
        page = self._context.queries.morgue(self._checked(), self._listing(by, options))
        return Page(tuple(self._shown_dead(job) for job in page.items), page.next)

    def processing(self, **options: Any) -> Page[ShownJob]:
        """A page of the jobs that are being processed; options ``limit``, ``after``, ``payload_limit``."""
        page = self._context.queries.processing(self._checked(), **options)
        return Page(tuple(self._shown(job) for job in page.items), page.next)

    def shards(self) -> tuple[ShardReport, ...]:
        """Each shard with its counts, who has it, and what runs of it."""
        return self._context.node_reports.shards(self._checked())

    def tries(self, job_id: Any) -> tuple[Try, ...]:
        """The last ten failed runs of a job that waits or is dead, oldest first. Raises InvalidCall."""
        return self._context.queries.tries(self._checked(), read_id(job_id))

    def why(self, job_id: Any) -> Why:
        """Where an id is and why it does not run, in words. Raises InvalidCall."""
        read = partial(load_error, self._context.settings)
        facts = self._context.node_reports.facts(self._checked(), read_id(job_id), read=read, **self._terms())
        return why(facts)

    def history(self) -> tuple[Sample, ...]:
        """What was processed and failed up to each ten seconds of the last hour, oldest first; where no
        worker was at work, it has a gap. ``rules.history.rates`` makes jobs a second of it.
        """
        (found,) = self._context.node_reports.histories([self.spec])
        return found

    def paused(self) -> Paused:
        """Since when (Unix s) the queue is paused, which shards are by themselves, and how many ids are."""
        return self._context.queries.paused(self._checked())

    def paused_ids(self, limit: int = 100, after: str | None = None) -> Page[PausedId]:
        """A page of the paused ids, the longest paused first. Raises InvalidCall."""
        return self._context.queries.paused_ids(self._checked(), limit=limit, after=after)

    # -- pauses: within a second nothing new of it begins on any node; what runs is finished, what comes waits

    def pause(self, shard: int | None = None, job_id: Any = None) -> bool:
        """Pause the queue, or one shard (its number), or one id. Whether this changed anything.

        Each is resumed by itself: a shard or an id stays paused when the queue is resumed. An id may have no
        job: those that come wait. Raises InvalidCall.
        """
        _check_one(shard, job_id)
        if job_id is not None:
            return self.pause_ids([job_id]) == 1
        pausing = self._context.pausing
        return pausing.pause(self.spec) if shard is None else pausing.pause_shard(self._checked(), shard)

    def resume(self, shard: int | None = None, job_id: Any = None) -> bool:
        """End the pause of the queue, of one shard, or of one id. Whether this changed anything.

        What waited is due at its own time. Raises InvalidCall.
        """
        _check_one(shard, job_id)
        if job_id is not None:
            return self.resume_ids([job_id]) == 1
        pausing = self._context.pausing
        return pausing.resume(self.spec) if shard is None else pausing.resume_shard(self._checked(), shard)

    def pause_ids(self, ids: Iterable[Any], progress: Progress | None = None) -> int:
        """Pause many ids, in bounded steps. Returns how many were not paused. Raises InvalidCall."""
        return self._context.pausing.pause_ids(self._checked(), map(read_id, ids), progress)

    def resume_ids(self, ids: Iterable[Any], progress: Progress | None = None) -> int:
        """Resume many ids, in bounded steps. Returns how many were paused. Raises InvalidCall."""
        return self._context.pausing.resume_ids(self._checked(), map(read_id, ids), progress)

    def resume_all_ids(self, progress: Progress | None = None) -> int:
        """Resume all ids that are paused."""
        return self._context.pausing.resume_ids(self._checked(), self._all_paused_ids(), progress)

    def _all_paused_ids(self) -> Iterator[str]:
        after: str | None = None
        while True:
            page = self.paused_ids(limit=1000, after=after)
            yield from (paused.id for paused in page.items)
            after = page.next
            if after is None:
                return

    # -- actions; each returns the number of jobs, and tells `progress` how many are done so far

    def run_now_all(self, progress: Progress | None = None) -> int:
        """Make all waiting jobs due now. Paused ids stay paused: theirs run when they are resumed."""
        return self._actions.run_now_all(self._checked(), progress)

    def run_now(self, ids: Iterable[Any], progress: Progress | None = None) -> int:
        """Make waiting jobs due now; counts those that were due later."""
        return self._actions.run_now(self._checked(), map(read_id, ids), progress)

    def bury(self, ids: Iterable[Any], progress: Progress | None = None) -> int:
        """Move waiting jobs to the morgue; their calls end as FAILURE."""
        reason = dump_error_text(self._context.settings, BURIED)
        return self._actions.bury(self._checked(), map(read_id, ids), reason, progress)

    def delete_payload(self, job_id: Any, payload: Any) -> bool:
        """Delete one payload of a waiting job; its calls end as REVOKED. Whether the job had it.

        ``payload`` is as the queue shows it: bytes for a :meth:`raw` one. Raises InvalidCall.
        """
        return self._actions.edit(self._checked(), read_id(job_id), self._bytes_of(payload), None)

    def edit_payload(self, job_id: Any, payload: Any, value: Any) -> bool:
        """Put ``value`` in the place of one payload of a waiting job, with its score; the calls of what stood
        there end as REVOKED. Whether the job had it. Raises InvalidCall.
        """
        new, old = self._context.codec.dump(value), self._bytes_of(payload)
        return old != new and self._actions.edit(self._checked(), read_id(job_id), old, new)

    def delete(self, ids: Iterable[Any], progress: Progress | None = None) -> int:
        """Delete waiting jobs; their calls end as REVOKED."""
        return self._actions.delete(self._checked(), map(read_id, ids), progress)

    def delete_failed(self, progress: Progress | None = None) -> int:
        """Delete waiting jobs that failed before."""
        return self._actions.delete_failed(self._checked(), progress)

    def bury_failed(self, progress: Progress | None = None) -> int:
        """Move waiting jobs that failed before to the morgue; their calls end as FAILURE."""
        return self._actions.bury_failed(self._checked(), progress)

    def delete_dead(self, ids: Iterable[Any], progress: Progress | None = None) -> int:
        """Delete dead jobs."""
        return self._actions.delete_dead(self._checked(), map(read_id, ids), progress)

    def delete_dead_all(self, progress: Progress | None = None) -> int:
        """Delete all jobs that are dead now."""
        return self._actions.delete_dead_all(self._checked(), progress)

    def requeue(self, ids: Iterable[Any], progress: Progress | None = None, force: bool = False) -> int:
        """Move dead jobs back to the queue; of a task with drop_stale, stale payloads only with ``force``."""
        return self._actions.requeue(self._checked(), map(read_id, ids), progress, force)

    def requeue_all(self, progress: Progress | None = None, force: bool = False) -> int:
        """Move all jobs that are dead now back to the queue; ``force`` as for :meth:`requeue`."""
        return self._actions.requeue_all(self._checked(), progress, force)

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
        """What is wrong with the keys of each shard, in words; nothing is changed."""
        return tuple(self._context.repairs.damages(self.spec))

    def repair(self, progress: Progress | None = None) -> tuple[Repaired, ...]:
        """Write lost keys again from those that tell the same, beside workers that go on. What is lost for
        good is counted. ``progress`` is told how many shards are done.
        """
        return tuple(self._context.repairs.repair(self.spec, progress))

    # -- moving to another Redis

    def dump(self) -> Iterator[bytes]:
        """All jobs as lines: waiting, being processed, and dead. What is in one state from beginning to end
        is there once; what changes meanwhile may be missed, or come twice. Pause the queue first.
        """
        return dump_lines(self._context, self.spec)

    def load(
        self,
        lines: Iterable[bytes],
        *,
        renamed: bool = False,
        again: bool = False,
        progress: Callable[[Loaded], object] | None = None,
    ) -> Loaded:
        """Merge the lines of a dump into the queue, each once, also when that is begun again after a break.

        ``renamed``: the dump may be of a queue with another name; ``again``: what was loaded before is loaded
        once more. Raises BadDump, which names the line, ShardCountMismatch.
        """
        return load_lines(self._context, self.spec, lines, renamed=renamed, again=again, progress=progress)

    def _listing(self, by: str, options: dict[str, Any]) -> Listing:
        read = partial(read_time, tz=self._app.timezone) if by in TIMES else _read_number
        bounds = {name: read(name, options[name]) for name in BOUNDS if options.get(name) is not None}
        return Listing(by, **{**options, **bounds})

    # -- payloads

    def _payloads(self, payloads: tuple[Payload, ...]) -> tuple[ShownPayload, ...]:
        return tuple(self._payload(payload) for payload in payloads)

    def _bytes_of(self, payload: Any) -> bytes:
        return bytes(payload) if self._raw else self._context.codec.dump(payload)

    def _payload(self, payload: Payload) -> ShownPayload:
        if self._raw or payload.cut_from:
            return ShownPayload(payload.data, payload.score, readable=False, cut_from=payload.cut_from)
        try:
            return ShownPayload(self._context.codec.load(payload.data), payload.score)
        except UndecodablePayload:
            return ShownPayload(payload.data, payload.score, readable=False)

    def _shown(self, job: Job) -> ShownJob:
        error = load_error(self._context.settings, job.error)
        payloads = self._payloads(job.payloads)
        told = (job.perform_in, job.retry_count, error, job.paused, job.priority)
        return ShownJob(job.id, payloads, job.payload_count, *told)

    def _shown_dead(self, job: DeadJob) -> ShownDeadJob:
        error = load_error(self._context.settings, job.error)
        return ShownDeadJob(job.id, self._payloads(job.payloads), job.payload_count, job.updated_at, error)


def _check_one(shard: Any, job_id: Any) -> None:
    if shard is not None and job_id is not None:
        raise InvalidCall(f"shard={shard!r} and job_id={job_id!r}: pass one of them, or none for the queue")


def _read_number(name: str, value: Any) -> float | None:
    return read_score(value, None, name)
