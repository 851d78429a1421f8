"""A store for tests, drained by the test."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

from celery import Celery, _state
from celery.app import trace
from celery.exceptions import MaxRetriesExceededError, Reject, Retry
from celery.signals import setup_logging

from celery_lowkiq.integration.app import AppContext, ordered_tasks
from celery_lowkiq.integration.call_form import SignatureForm
from celery_lowkiq.integration.calls import read_id
from celery_lowkiq.integration.json_records import ShownJob
from celery_lowkiq.integration.run import Run
from celery_lowkiq.integration.runner import CeleryRunner
from celery_lowkiq.rules.basics import monotonic
from celery_lowkiq.rules.claims import Claim
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.rules.models import Batch, Disposition, Lease, QueueSpec, Settlement, ShardRef
from celery_lowkiq.rules.views import all_items
from celery_lowkiq.store.call_records import CallReader
from celery_lowkiq.store.client import FakeClockClient
from celery_lowkiq.store.connect import connect
from celery_lowkiq.store.redis_store import RedisStore

# Runs due jobs in the calling thread, through Celery's tracer as a worker's lane does.

#: Value of ``self.request.hostname``, and prefix of the owner of a drained shard.
HOSTNAME = "drain@test"


def drain(app: Celery, context: AppContext, tasks: Mapping[str, Any], most: int, propagate: bool) -> int:
    """Run the due jobs of tasks, by queue, until none is due. Return the number of runs.

    Raises AssertionError when a worker serves a queue, or after ``most`` runs; with ``propagate`` also what a
    run has raised, when it is settled.
    """
    store = context.store
    consumer = SimpleNamespace(app=app, hostname=HOSTNAME, event_dispatcher=None)
    runner = _Runner(tasks, consumer, context, CallReader(store.client), context.tracker_store)
    specs = [task.queue_spec for task in tasks.values()]
    runs = 0
    with contextlib.closing(runner.loops), _traced(app, tasks.values()), _shards(store, specs) as shards:
        while sum(shard.run(runner, propagate) for shard in shards):
            runs = sum(shard.runs for shard in shards)
            assert runs < most, f"something is still due after {runs} runs: does a task call itself?"
    return runs


class _Runner(CeleryRunner):
    """Keeps what the last batch has raised: its jobs have only the text."""

    #: True if Celery's tracer had the batch. A plain run that succeeds leaves nothing.
    was_traced = False
    error: BaseException | None = None
    _traceback: Any = None

    def run(self, batch: Batch) -> tuple[Settlement, ...]:
        """See CeleryRunner."""
        self.was_traced, self.error = False, None
        return super().run(batch)

    def _end(self, run: Run, settlements: tuple[Settlement, ...]) -> tuple[Settlement, ...]:
        self.was_traced = True
        # Rejected payloads are where the task wants them, and a retry that names no error is no failure.
        raised = (each for each in run.decision.jobs.values() if each.error and not each.is_requested)
        self.error = next((each.error for each in raised if not isinstance(each.error, Reject)), None)
        if isinstance(self.error, Retry):
            self.error = MaxRetriesExceededError(str(self.error))
        self._traceback = self.error and self.error.__traceback__
        return super()._end(run, settlements)

    def propagate(self) -> None:
        """Raise what the last batch has raised."""
        if self.error is not None:
            raise self.error.with_traceback(self._traceback)


class _Shard:
    """A shard owned by the test."""

    def __init__(self, store: RedisStore, queue: QueueSpec, lease: Lease) -> None:
        self.runs = 0
        self._store = store
        self._queue = queue
        self._lease = lease
        self._requests = 0

    def run(self, runner: _Runner, propagate: bool) -> bool:
        """Run a batch if one is due. Return whether one was."""
        claim = self._claim()
        if not claim.jobs:
            return False
        batch = Batch(
            self._queue,
            self._lease,
            claim.number,
            claim.jobs,
            threading.Event(),
            monotonic(),
            claim.now,
            suspect=claim.suspect,
        )
        settlements = (*runner.run(batch), *runner.flush())
        settled = self._store.settle(self._queue, self._lease, settlements)
        runner.settled(batch, settled.accepted)
        # Not a batch that only goes back, because its time has not come by the caller's clock.
        self.runs += runner.was_traced or any(
            one.disposition is not Disposition.RETURN for one in settlements
        )
        if propagate:
            runner.propagate()
        return True

    def _claim(self) -> Claim:
        # A claim skips a limited number of due ids without a token; the next claim goes on after them.
        while True:
            self._requests += 1
            claim = self._store.claim(self._queue, self._lease, self._requests)
            if claim.jobs or claim.next_due is None or claim.next_due > claim.now:
                return claim

    def release(self) -> None:
        self._store.release(self._lease)


@contextlib.contextmanager
def _shards(store: RedisStore, specs: Iterable[QueueSpec]) -> Iterator[list[_Shard]]:
    owner = f"{HOSTNAME}-{uuid.uuid4().hex[:12]}"
    with contextlib.ExitStack() as releases:
        shards = []
        for spec in specs:
            refs = [ShardRef(spec.name, index) for index in range(spec.shards)]
            for ref, seen in zip(refs, store.observe(refs), strict=True):
                assert seen is not None
                # A shard that another drain left, when its task raised a BaseException, is recovered.
                assert not seen.owner or seen.owner.startswith(HOSTNAME), f"a worker serves {spec.name!r}"
                shards.append(_Shard(store, spec, store.acquire(spec, ref, owner, seen, seen.epoch)))
                releases.callback(shards[-1].release)
        yield shards


@contextlib.contextmanager
def _traced(app: Celery, tasks: Iterable[Any]) -> Iterator[None]:
    """Build the tasks' tracers as a starting worker does, from the module that Sentry patches."""
    with contextlib.ExitStack() as restores:
        for task in tasks:
            restores.callback(setattr, task, "__trace__", task.__trace__)
            task.__trace__ = trace.build_tracer(task.name, task, app.loader, HOSTNAME, app=app)
        yield


# A store for a test, the clock of that store, and ways to run and check its jobs.

#: Maximum number of payloads of a job that are compared.
PAYLOADS = 1000
#: Maximum number of runs in one drain; more indicate a task that calls itself endlessly.
MOST_RUNS = 10_000


@contextlib.contextmanager
def _current_app_unchanged() -> Iterator[None]:
    """Restore Celery's current and default app: a worker makes its own app both."""
    state: Any = _state
    current, default = state._tls.current_app, state.default_app
    try:
        yield
    finally:
        state._tls.current_app, state.default_app = current, default


@contextlib.contextmanager
def _logging_unchanged() -> Iterator[None]:
    """Keep Celery from setting up logging: it removes the handlers of the root logger, ``caplog`` too."""

    def leave_logging(**_options: Any) -> None:
        """Do nothing: a receiver of this signal takes the place of Celery's own set-up."""

    setup_logging.connect(leave_logging)
    try:
        yield
    finally:
        setup_logging.disconnect(leave_logging)


class Clock:
    """The clock of the test's store: it runs normally, and can be moved."""

    def __init__(self, client: FakeClockClient) -> None:
        self._client = client

    def now(self) -> float:
        """Return the Unix time in s."""
        return self._client.now()

    def move(self, by: float | timedelta) -> None:
        """Move the clock forward by seconds or a timedelta."""
        self._client.move(by.total_seconds() if isinstance(by, timedelta) else by)

    def move_to(self, when: float | datetime) -> None:
        """Move the clock to a Unix time in s or an aware datetime."""
        self.move((when.timestamp() if isinstance(when, datetime) else when) - self.now())


class Server(Protocol):
    """A server for tests: an :class:`.EmbeddedServer`, or whatever ``lowkiq_server`` is replaced by."""

    @property
    def url(self) -> str:
        """``redis+socket://path``, or ``redis://host:port/0`` without a password."""


class EmbeddedContext(AppContext):
    """An app context whose store is the test's, instead of the one in the app's settings."""

    def __init__(self, app: Celery, server: Server) -> None:
        super().__init__(app)
        self._server = server

    def redis_parameters(self) -> dict[str, Any]:
        """Return the arguments of a connection to the test's server."""
        url = urlsplit(self._server.url)
        return (
            {"path": url.path} if url.scheme == "redis+socket" else {"host": url.hostname, "port": url.port}
        )

    def open_store(self, connections: int) -> RedisStore:
        """Return a store with at most ``connections`` connections."""
        client = connect(
            self.redis_parameters(), pool_size=connections, pool_timeout=self.settings.pool_timeout
        )
        return RedisStore(client, sending=FakeClockClient)


class Lowkiq:
    """An empty store for the calls of an app, and ways to run them: the fixture ``lowkiq``."""

    def __init__(self, app: Celery, context: AppContext) -> None:
        self.app = app
        self.clock: Clock = Clock(cast(FakeClockClient, context.store.client))
        self._context = context

    # -- running

    def drain(self, *tasks: Any, most: int = MOST_RUNS, propagate: bool = True) -> int:
        """Run due jobs in this thread until none is due; of the given tasks, or of all ordered tasks.

        Returns the number of runs. Raises the first error that a run raises, after its jobs were settled as
        in a worker; other due jobs stay. With ``propagate=False`` an error is a failed job, and no more.
        Raises AssertionError when a worker serves one of the queues, and after ``most`` runs.
        """
        return drain(self.app, self._context, self._by_queue(tasks), most, propagate)

    @contextlib.contextmanager
    def worker(self, concurrency: int = 1, **options: Any) -> Iterator[Any]:
        """Run a real worker in threads of this process, on the app's broker.

        ``options`` are those of ``celery.contrib.testing.worker.start_worker``. Logging stays as the test
        set it up, unless they have ``loglevel`` or ``logfile``. Afterwards the current app is what it was.
        """
        from celery.contrib.testing.worker import start_worker

        logs = contextlib.nullcontext() if {"loglevel", "logfile"} & options.keys() else _logging_unchanged()
        options = {"pool": "threads", "perform_ping_check": False, **options}
        start = start_worker(self.app, concurrency=concurrency, **options)
        with _current_app_unchanged(), logs, start as worker:
            yield worker

    # -- assertions

    def enqueued(self, task: Any) -> dict[str, list[Any]]:
        """Return the payloads of waiting jobs, due or not, by id; the smallest score first."""
        return {job.id: _values(job) for job in self._waiting(task)}

    def due_in(self, task: Any, job_id: Any) -> float:
        """Return the seconds until a waiting job is due. Raises AssertionError when it does not wait."""
        job = self._one(task).ordered_queue.job(job_id).waiting
        assert job is not None, f"no job {job_id!r} of {task.name} waits: {self.enqueued(task)}"
        return float(job.perform_in) - self.clock.now()

    def assert_enqueued(self, task: Any, job_id: Any, *payloads: Any) -> None:
        """Assert that a job waits and, if payloads are given, has exactly these, in this order.

        Of a call of a task with ``by=``, the arguments that the function gets are compared, whether given by
        position, by name or by default; ``task_id``, ``eta``, ``countdown`` only if the given one has them.
        """
        enqueued = self.enqueued(task)
        name = read_id(job_id)
        assert name in enqueued, f"no job {name!r} of {task.name} waits: {enqueued}"
        found = enqueued[name]
        form = self._one(task).call_form
        assert not payloads or (
            len(found) == len(payloads)
            and all(_is_meant(form, *pair) for pair in zip(found, payloads, strict=True))
        ), f"job {name!r} of {task.name} has the payloads {found}, not {list(payloads)}"

    def assert_nothing_enqueued(self, *tasks: Any) -> None:
        """Assert that no job waits; of the given tasks, or of all ordered tasks."""
        enqueued = {task.name: self.enqueued(task) for task in self._by_queue(tasks).values()}
        waiting = {name: jobs for name, jobs in enqueued.items() if jobs}
        assert not waiting, f"jobs wait: {waiting}"

    def _waiting(self, task: Any) -> Iterator[ShownJob]:
        return all_items(self._one(task).ordered_queue.jobs, limit=PAYLOADS, payload_limit=PAYLOADS)

    def _one(self, task: Any) -> Any:
        (ordered,) = self._by_queue((task,)).values()
        return ordered

    def _by_queue(self, tasks: tuple[Any, ...]) -> dict[str, Any]:
        """Return the tasks, or all ordered tasks of the app. Raises ConfigurationError for another app's."""
        ordered = ordered_tasks(self.app)
        names = {task.name for task in tasks}
        for name in names - {task.name for task in ordered.values()}:
            raise ConfigurationError(
                f"{name} is not an ordered task of {self.app!r}: write a fixture lowkiq_app that returns the "
                "app of your tasks"
            )
        return {queue: task for queue, task in ordered.items() if not tasks or task.name in names}


def _is_meant(form: Any, found: Any, given: Any) -> bool:
    """Return True if a stored payload is the given one, or a call that is the same to the function."""
    if not (isinstance(form, SignatureForm) and isinstance(given, dict)):
        return bool(found == given)
    arguments = [form.bound(call.get("args", ()), call.get("kwargs", {})) for call in (found, given)]
    others = given.keys() - {"args", "kwargs"}
    return arguments[0] == arguments[1] and all(found.get(name) == given[name] for name in others)


def _values(job: ShownJob) -> list[Any]:
    return [payload.value for payload in job.payloads]


@contextlib.contextmanager
def lowkiq_store(app: Celery, server: Server) -> Iterator[Lowkiq]:
    """Give an app's ordered tasks an empty store on that server until the end of the block.

    Raises ConfigurationError with ``task_always_eager``, because calls are not stored then.
    """
    if app.conf.task_always_eager:
        raise ConfigurationError("task_always_eager=True stores nothing: set it to False in these tests")
    context = EmbeddedContext(app, server)
    cast(FakeClockClient, context.store.client).empty()
    former = app.__dict__.get("_lowkiq_context")
    app.__dict__["_lowkiq_context"] = context
    try:
        yield Lowkiq(app, context)
    finally:
        app.__dict__["_lowkiq_context"] = former
        context.store.close()
