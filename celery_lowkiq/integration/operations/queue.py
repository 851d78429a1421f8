"""``task.ordered_queue``: reads of a queue, and actions on it. Needs no worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from celery import Celery

from celery_lowkiq.integration.app.app_argument import naming
from celery_lowkiq.integration.app.error_text import dump_error_text, load_error
from celery_lowkiq.integration.calls.call_form import CallForm
from celery_lowkiq.integration.calls.validation import read_id
from celery_lowkiq.rules.diagnosis import Terms, Why, why
from celery_lowkiq.rules.errors import InvalidCall, StoreUnavailable
from celery_lowkiq.rules.history import Sample, span_of
from celery_lowkiq.rules.job_filter import DEAD_STATES, WAITING_STATES
from celery_lowkiq.rules.models import QueueSpec
from celery_lowkiq.rules.repairs import Damage, Repaired
from celery_lowkiq.rules.reports import ShardReport
from celery_lowkiq.rules.shard_hints import Hint
from celery_lowkiq.rules.views import Paused, PausedId, SearchPage, ShardsPage, Stats, Try
from celery_lowkiq.store.admin.actions import Actions, Left, Progress
from celery_lowkiq.store.admin.repair import queue_damages, repair_queue

from .dump_load import Loaded, dump_lines, load_lines
from .failures_mixin import FailuresMixin
from .holds_mixin import HoldsMixin
from .job_filters import read_listing
from .masked import MaskMixin
from .reshard_mixin import ReshardMixin
from .shown_jobs import JobDecoder, ShownDeadJob, ShownJob, ShownPlaces

BURIED = "moved to the morgue by hand"


class OrderedQueue(MaskMixin, HoldsMixin, FailuresMixin, ReshardMixin):
    """Reads of the queue of one task, and actions on it.

    Every method may raise StoreError. The stored number of shards applies, not the declared one. While jobs
    move to another one, actions on jobs and ids, :meth:`why`, :meth:`tries`, :meth:`dump` and :meth:`load`
    raise QueueMigrating.

    A listing returns a :class:`Page`; pass its ``next`` as ``after`` for the following page. An action
    returns the number of changed jobs, works in bounded steps, is safe to repeat, and calls ``progress`` with
    the number of jobs done so far. On a cluster, an action on several jobs does what it can on the masters
    that answer, and raises ShardsAway at the end when shards were left out.
    """

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

    @property
    def _actions(self) -> Actions:
        return Actions(self._context.store, self._left)

    def stored_spec(self) -> QueueSpec:
        """Return the spec with the stored number of shards; the one of the code as long as none is stored."""
        return self._context.registry.as_stored([self.spec])[0]

    def _known_spec(self) -> QueueSpec:
        return self._context.registry.as_known([self.spec])[0]

    # -- reads

    def stats(self) -> Stats:
        """Return the counts of the queue, and its lag in s.

        On a cluster, ``missing`` is the number of shards that are not counted, since their masters are away.
        """
        return self._context.queries.stats(self._known_spec())

    def shard_stats(self) -> list[Stats]:
        """Return the counts of each shard, by index; ``missing`` is 1 for one whose master is away."""
        return self._context.queries.shard_stats(self._known_spec())

    def shard_of(self, job_id: Any) -> int:
        """Return the index of the shard of an id. Raises InvalidCall for an invalid id."""
        name = read_id(job_id)
        return self.stored_spec().shard_of(name).index

    def job(self, job_id: Any, payload_limit: int = 100, **options: Any) -> ShownPlaces:
        """Return the places of an id, with at most ``payload_limit`` payloads in each.

        The option ``payload_bytes`` cuts each payload; a cut payload is not decoded. Raises InvalidCall.
        """
        found = self._context.queries.job(self.stored_spec(), read_id(job_id), payload_limit, **options)
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

        On a cluster, the page names the shards in ``away`` that it, or a page before, lacks since their
        masters were away. Begin again without ``after`` for a listing with all shards.

        Filters, for sorted pages: ``state`` (due, scheduled, paused or held), ``age`` (``">2h"``: due for
        more than 2 hours, ``"<30min"``: for less), and ``failure``, the fingerprint of its error. Where no
        index finds the jobs, a page has read 5,000 of the listing at most: see ``searched`` and ``total``.

        Raises InvalidCall.
        """
        listing = read_listing(self._app, by, options, WAITING_STATES)
        page = self._context.queries.jobs(self.stored_spec(), listing, self.fingerprint_of)
        return page.map(self._decoder.job)

    def morgue(self, by: str = "id", **options: Any) -> SearchPage[ShownDeadJob]:
        """Return a page of dead jobs, sorted by ``id`` or ``updated_at``; options as for :meth:`jobs`.

        ``age`` is the time since its last death, and the only ``state`` is held: it holds its id.
        """
        listing = read_listing(self._app, by, options, DEAD_STATES)
        page = self._context.queries.morgue(self.stored_spec(), listing, self.fingerprint_of)
        return page.map(self._decoder.dead_job)

    def processing(self, **options: Any) -> SearchPage[ShownJob]:
        """Return a page of the jobs in processing, the oldest claim of each shard first.

        Options ``limit``, ``after``, ``payload_limit`` and ``payload_bytes`` as for :meth:`jobs`.
        """
        return self._context.queries.processing(self.stored_spec(), **options).map(self._decoder.job)

    def shards(self) -> tuple[ShardReport, ...]:
        """Return each shard with its counts, its owner, and the batch that runs."""
        return self._context.node_reports.shards(self._known_spec())

    def shard_hints(self, shards: Sequence[ShardReport]) -> list[Hint]:
        """Return why the given :meth:`shards` are late, and whether more of them would help.

        On a cluster, nothing while the master with the queue's own keys, or the reports of nodes, is away.
        """
        reports, client = self._context.node_reports, self._context.store.client
        found = client.unless_away(lambda: reports.hints(self.stored_spec(), shards)) or []
        return [hint._replace(advice=naming(hint.advice, self._app)) for hint in found]

    def tries(self, job_id: Any) -> tuple[Try, ...]:
        """Return the last ten failed runs of a waiting or dead job, oldest first. Raises InvalidCall."""
        return self._context.queries.tries(self.stored_spec(), read_id(job_id))

    def why(self, job_id: Any) -> Why:
        """Return where an id is and why it is not running, as text and facts. Raises InvalidCall."""
        read = partial(load_error, self._context.settings)
        facts = self._context.node_reports.facts(
            self.stored_spec(), read_id(job_id), read=read, **self._terms()
        )
        return why(facts)

    def history(self, span: str = "1h") -> tuple[Sample, ...]:
        """Return the counters of processed and failed jobs, and the lag, oldest first.

        ``span``: "1h", with a sample each ten seconds, or "24h", with one each ten minutes. Times without a
        worker are missing. ``rules.history.rates`` computes jobs per second. Raises InvalidCall.
        """
        (found,) = self._context.node_reports.histories([self.spec], span_of(span))
        if isinstance(found, StoreUnavailable):
            raise found
        return found

    def paused(self) -> Paused:
        """Return since when (Unix s) the queue and its shards are paused, and the number of paused ids.

        On a cluster, ``away`` names the shards that are missing.
        """
        return self._context.queries.paused(self.stored_spec())

    def paused_ids(self, limit: int = 100, after: str | None = None) -> ShardsPage[PausedId]:
        """Return a page of the paused ids that are not held, the oldest pause first. Raises InvalidCall."""
        return self._context.queries.paused_ids(self.stored_spec(), limit=limit, after=after)

    # -- pauses

    def pause(self, shard: int | None = None, job_id: Any = None) -> bool:
        """Pause the queue, or one shard (its index), or one id. Return whether this changed anything.

        Within a second, no node starts a paused job. Running jobs finish, and new calls wait, also those of
        an id without a job. Each pause is resumed by itself: a shard or an id stays paused when the queue is
        resumed. Raises InvalidCall.
        """
        _check_one(shard, job_id)
        if job_id is not None:
            return self.pause_ids([job_id]) == 1
        if shard is not None:
            return self._context.pausing.pause_shard(self._at_rest(), shard)
        return self._context.pausing.pause(self.spec)

    def resume(self, shard: int | None = None, job_id: Any = None) -> bool:
        """Resume the queue, or one shard (its index), or one id. Return whether this changed anything.

        Its jobs are due at their own times. Raises InvalidCall.
        """
        _check_one(shard, job_id)
        if job_id is not None:
            return self.resume_ids([job_id]) == 1
        if shard is not None:
            return self._context.pausing.resume_shard(self._at_rest(), shard)
        return self._context.pausing.resume(self.spec)

    def pause_ids(self, ids: Iterable[Any], progress: Progress | None = None) -> int:
        """Pause ids. Return how many were not paused before. Raises InvalidCall."""
        return self._context.pausing.pause_ids(self._at_rest(), map(read_id, ids), progress)

    def resume_ids(self, ids: Iterable[Any], progress: Progress | None = None) -> int:
        """Resume ids. Return how many were paused. Raises InvalidCall."""
        return self._context.pausing.resume_ids(self._at_rest(), map(read_id, ids), progress)

    def resume_all_ids(self, progress: Progress | None = None) -> int:
        """Resume all paused ids. Return how many were paused."""
        return self._context.pausing.resume_all_ids(self._at_rest(), progress)

    # -- actions

    def run_now_all(self, progress: Progress | None = None) -> int:
        """Make all waiting jobs due now. Jobs of paused ids run after their ids are resumed."""
        queue = self._at_rest()
        before = partial(self._make_calls_of_shard_due, queue) if self._form.has_times else None
        return self._actions.run_now_all(queue, progress, before)

    def run_now(self, ids: Iterable[Any], progress: Progress | None = None) -> int:
        """Make waiting jobs due now, with ``by=`` also their first 100 calls. Return how many were due later.

        Raises InvalidCall.
        """
        queue = self._at_rest()
        before = partial(self._make_calls_of_id_due, queue) if self._form.has_times else None
        return self._actions.run_now(queue, map(read_id, ids), progress, before)

    def bury(self, ids: Iterable[Any], progress: Progress | None = None, *, only_failed: bool = False) -> int:
        """Move waiting jobs to the morgue; their calls end as FAILURE. Raises InvalidCall."""
        reason = dump_error_text(self._context.settings, BURIED)
        return self._actions.bury(self._at_rest(), map(read_id, ids), reason, progress, only_failed)

    def bury_failed(self, progress: Progress | None = None) -> int:
        """Move all waiting jobs that failed before to the morgue; their calls end as FAILURE."""
        return self._actions.bury_failed(self._at_rest(), progress)

    def delete(
        self, ids: Iterable[Any], progress: Progress | None = None, *, only_failed: bool = False
    ) -> int:
        """Delete waiting jobs; their calls end as REVOKED. Running jobs go on. Raises InvalidCall."""
        return self._actions.delete(self._at_rest(), map(read_id, ids), progress, only_failed)

    def delete_failed(self, progress: Progress | None = None) -> int:
        """Delete all waiting jobs that failed before; their calls end as REVOKED."""
        return self._actions.delete_failed(self._at_rest(), progress)

    def delete_payload(self, job_id: Any, payload: Any) -> bool:
        """Delete one payload of a waiting job; its calls end as REVOKED. Return whether the job had it.

        On a :meth:`raw` queue, ``payload`` is the stored bytes. Raises InvalidCall.
        """
        return self._actions.edit(self._at_rest(), read_id(job_id), self._bytes_of(payload), None)

    def edit_payload(self, job_id: Any, payload: Any, value: Any) -> bool:
        """Replace one payload of a waiting job by ``value``, with the same score. Return whether it changed.

        The calls of the old payload end as REVOKED. Raises InvalidCall, with ``by=`` also for a value that
        is no call of the id; and PayloadError for one that cannot be serialized or is too large.
        """
        name = read_id(job_id)
        self._form.check_edit(name, value)
        new, old = self._codec.dump(value), self._bytes_of(payload)
        signature = self._edit_signature(name, old, new, dead=False)
        return old != new and self._actions.edit(self._at_rest(), name, old, new, signature)

    def delete_dead(self, ids: Iterable[Any], progress: Progress | None = None) -> int:
        """Delete dead jobs. Raises InvalidCall."""
        return self._actions.delete_dead(self._at_rest(), map(read_id, ids), progress)

    def delete_dead_all(self, progress: Progress | None = None) -> int:
        """Delete all jobs that are dead now."""
        return self._actions.delete_dead_all(self._at_rest(), progress)

    def requeue(self, ids: Iterable[Any], progress: Progress | None = None, force: bool = False) -> int:
        """Move dead jobs back to the queue, due now, as if they had never failed. Raises InvalidCall.

        With the policy ``drop_stale``, payloads older than the last run move only with ``force``.
        """
        return self._actions.requeue(self._at_rest(), map(read_id, ids), progress, force)

    def requeue_all(self, progress: Progress | None = None, force: bool = False) -> int:
        """Move all jobs that are dead now back to the queue; ``force`` as for :meth:`requeue`."""
        return self._actions.requeue_all(self._at_rest(), progress, force)

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
        return tuple(queue_damages(self._context.store.client, self.spec))

    def repair(self, progress: Progress | None = None) -> tuple[Repaired, ...]:
        """Restore lost keys from the others while workers go on, and return what was done in each shard.

        What cannot be restored is counted. ``progress`` gets the number of finished shards.
        """
        return tuple(repair_queue(self._context.store.client, self.spec, progress))

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
        """Merge the lines of a dump into the queue. A repeated load skips the lines that are loaded.

        ``renamed``: accept the dump of a queue with another name. ``again``: load all lines once more.
        Raises BadDump, which names the line.
        """
        return load_lines(
            self._context, self._at_rest(), lines, renamed=renamed, again=again, progress=progress
        )

    # -- arguments and decoding

    @property
    def _decoder(self) -> JobDecoder:
        of_queue = self._context, self.name, self._raw, self._decodes
        return JobDecoder(*of_queue, self.frames_of, self.fingerprint_of, self._mask)


def _check_one(shard: Any, job_id: Any) -> None:
    if shard is not None and job_id is not None:
        raise InvalidCall(f"shard={shard!r} and job_id={job_id!r} are invalid: expected one of them, or none")
