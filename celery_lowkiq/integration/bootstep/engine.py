"""The engine (``celery_lowkiq.worker``) in a Celery worker: made of its settings, started, ended."""

from __future__ import annotations

import gc
import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from celery import Celery
from celery.worker import state
from kombu.utils.imports import symbol_by_name

from celery_lowkiq.integration.app import AppContext, context_of
from celery_lowkiq.integration.bootstep.command_line import warn_unknown_plain, warn_unknown_weights
from celery_lowkiq.integration.bootstep.shutdown import (
    COLD_SHUTDOWN_TIMEOUT,
    drain,
    is_cold_shutdown,
    release_shards_at_exit,
    wake_event_loop,
)
from celery_lowkiq.integration.options import read_rate
from celery_lowkiq.integration.processes.child_runs import ChildRuns
from celery_lowkiq.integration.run_logs import set_up_log
from celery_lowkiq.integration.runner import CeleryRunner
from celery_lowkiq.rules.basics import SystemClock
from celery_lowkiq.rules.basics import package_logger as logger
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.rules.health import overdue_line
from celery_lowkiq.rules.models import QueueSpec
from celery_lowkiq.rules.shares import lease_splitter
from celery_lowkiq.rules.views import Running
from celery_lowkiq.store.call_records import CallReader
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.script import load_all
from celery_lowkiq.store.trackers import TrackerStore
from celery_lowkiq.worker.exclusion import Exclusion, KernelTimer, KillLogger, Strict
from celery_lowkiq.worker.ports import EXIT_CRASHED, Meter
from celery_lowkiq.worker.runtime import Runtime

#: Pooled connections of a worker besides one per lane: leases, the window reaper, and a spare one.
OTHER_CONNECTIONS = 3
#: Needs an extra package, so it is imported only when enabled.
NODE_METRICS = "celery_lowkiq.metrics.node:NodeMetrics"


class Metrics(Meter):
    """A meter with a server that exports its values. This one has neither."""

    def serve(self, runtime: Runtime) -> None:
        """Start the server."""

    def close(self) -> None:
        """Stop the server."""


class LaneConsumer(Protocol):
    """Parts of Celery's consumer that lanes and their runs use; it also sends the signal task_received."""

    app: Celery
    hostname: str
    #: ``send(type, **fields)``, ``enabled`` and ``groups``; None without a broker connection.
    event_dispatcher: Any
    disable_rate_limits: bool

    @property
    def controller(self) -> Any:
        """The worker, which has the limits of runs: ``time_limit`` and such."""

    def call_soon(self, p: Callable[[], None]) -> Any:
        """Call it in the main thread, which looks at ``celery.worker.state.should_stop`` then."""


class Shutdown(Protocol):
    """How the lanes of a process end."""

    #: True if the process serves nothing else. A worker in a user's test shares its process with the test.
    is_program: bool

    def watch(self, runtime: Runtime) -> Callable[[], Any]:
        """Stop claiming as soon as a signal asks for it. Return a function that does so."""

    def wake(self) -> None:
        """Have :meth:`wait` look."""

    def wait(self, ended: threading.Event) -> None:
        """Wait for the lanes, or a cold shutdown."""


#: Shards a lane to advise: ids of a lane meet rarely, and a lane more or less changes little.
SHARDS_A_LANE = 3


class CeleryHost:
    """``worker.ports.Host``: the worker process."""

    def __init__(self, consumer: LaneConsumer, runner: CeleryRunner) -> None:
        self.exitcode: int | None = None
        self._consumer = consumer
        self._runner = runner

    def stop(self, exitcode: int, reason: str) -> None:
        """Drain, then exit with the status; the first call wins."""
        if self.exitcode is None:
            self.exitcode = exitcode
            state.should_stop = exitcode  # type: ignore[assignment]
            wake_event_loop(self._consumer)
            # Last, because a handler of the log may raise anything.
            logger.critical("the worker stops: %s", reason)

    def alarm(self, lane: str, run: Running, waiting: int | None) -> None:
        """Log an overdue run and send the event ``lowkiq-overdue``."""
        logger.warning("%s", overdue_line(lane, run, waiting))
        dispatcher = self._consumer.event_dispatcher
        if dispatcher is None or not dispatcher.enabled:
            return
        fields = {
            "queue": run.shard.queue,
            "shard": run.shard.index,
            "ids": list(run.ids),
            "count": run.count,
            "seconds": run.seconds,
            "max_run": run.max_run,
            "usual": run.usual,
            "lane": lane,
            "waiting": waiting,
        }
        try:
            dispatcher.send("lowkiq-overdue", **fields)
        except Exception:
            logger.exception("could not send the event lowkiq-overdue")

    def last_words(self, error: BaseException) -> None:
        self._runner.last_words(error)


class Engine:
    """The runtime of a worker, and what it uses: made when the worker first serves an ordered queue."""

    def __init__(
        self,
        consumer: LaneConsumer,
        tasks: Mapping[str, Any],
        served: Collection[str],
        concurrency: int,
        shutdown: Shutdown,
    ) -> None:
        """``tasks`` by queue; ``served``: queues; ``concurrency``: -c. Raises ConfigurationError."""
        settings = (context := context_of(consumer.app)).settings
        lanes = settings.lanes or concurrency
        # Only the lease splitter can deal a queue that is added later.
        dealt = tasks if settings.splitter is lease_splitter else served
        specs = [task.queue_spec for name, task in tasks.items() if name in dealt]
        limited = {} if consumer.disable_rate_limits else tasks
        rates = {name: read_rate(task.rate_limit) for name, task in limited.items()}
        warn_unknown_weights(tasks, settings.queue_weights)
        warn_unknown_plain(consumer.app, settings.plain)
        _warn_idle_lanes(lanes, sum(spec.shards for spec in specs if spec.name in served))
        set_up_log()
        self._consumer, self._tasks, self._shutdown = consumer, tasks, shutdown
        self._store = _open_store(context, lanes)
        stores = CallReader(self._store.client), TrackerStore(self._store.client)
        self._runner = CeleryRunner(tasks, consumer, context, *stores)
        self._processes = ChildRuns(tasks, consumer, settings, self._runner)
        self._host = CeleryHost(consumer, self._runner)
        self._metrics = _open_metrics(consumer.app, consumer.hostname)
        self._exclusion = Exclusion()
        if settings.exclusion == "strict":
            self._exclusion = Strict(KernelTimer(), KillLogger(SystemClock()))
        self.runtime: Runtime = Runtime(
            self._store,
            self._runner,
            self._host,
            specs,
            lanes=lanes,
            owner=f"{consumer.hostname}-{uuid.uuid4().hex[:12]}",
            clock=SystemClock(),
            scheduler_factory=settings.scheduler,
            splitter=settings.splitter,
            served=served,
            rates={name: rate for name, rate in rates.items() if rate is not None},
            poll_interval=settings.poll_interval,
            lease_seconds=settings.lease_seconds,
            window=settings.window,
            meter=self._metrics,
            exclusion=self._exclusion,
            auto_reshard=settings.reshard == "auto",
        )

    def start(self) -> None:
        """Start the lanes, and the metrics server of ``lowkiq_metrics_port``."""
        self._stop = self._shutdown.watch(self.runtime)
        self._runner.loops.meter = self._metrics.loop_lag
        self._runner.loops.died = self._on_dead_loop
        if self._shutdown.is_program:
            freeze_objects()
        self.runtime.start()
        self._metrics.serve(self.runtime)

    def add_tasks(self, new: Mapping[str, Any], specs: Sequence[QueueSpec]) -> None:
        self._tasks = {**self._tasks, **new}
        self._runner.add_tasks(new)
        self._processes.add_tasks(new)
        self.runtime.add_queues(specs)

    def limit(self, queue: str) -> None:
        rate = read_rate(self._tasks[queue].rate_limit)
        if not self._consumer.disable_rate_limits:
            self.runtime.set_rate(queue, rate)

    def end(self) -> int | None:
        """Stop the lanes. The runtime stays readable for remote control until the last batch ends.

        Returns the exit status of a worker that a lane has stopped.
        """
        self._stop()
        runtime, was_cold = self.runtime, is_cold_shutdown()
        if was_cold:
            runtime.abandon()
        else:
            timeout = context_of(self._consumer.app).settings.shutdown_timeout
            self._shutdown.wait(drain(runtime, timeout, self._shutdown.wake))
        if self._runner.loops.close() or was_cold:
            # Cancelled batches go back to the queue.
            runtime.join(COLD_SHUTDOWN_TIMEOUT)
        self._metrics.close()
        if not runtime.join(0):
            runtime.abandon()
            release_shards_at_exit(runtime)
        else:
            # The process may go on, as in a test. Running batches would still need the connections.
            self._processes.close()
            self._store.close()
            self._exclusion.close()
        return self._host.exitcode

    def _on_dead_loop(self, error: BaseException | None) -> None:
        try:
            if error is not None:
                self._host.last_words(error)
        finally:
            self._host.stop(EXIT_CRASHED, f"the event loop of async def tasks has ended: {error!r}")


def _open_store(context: AppContext, lanes: int) -> RedisStore:
    load_all()
    store = context.open_store(lanes + OTHER_CONNECTIONS)
    if (cluster := store.client.cluster) is not None:
        cluster.waits_less = True
    return store


def freeze_objects() -> None:
    """Let the garbage collector leave out what was loaded before the first job.

    The objects of large batches make it look through all that lives, also through modules, which stops all
    lanes for some tens of ms.
    """
    gc.collect()
    gc.freeze()


def _warn_idle_lanes(lanes: int, shards: int) -> None:
    if shards < lanes:
        logger.warning(
            "%d lanes for %d shards: %d lanes stay idle. Declare more shards, @ordered_task(shards=%d), and "
            "move a queue with jobs to them by `lowkiq reshard`; or start fewer lanes, -c %d",
            lanes,
            shards,
            lanes - shards,
            SHARDS_A_LANE * lanes,
            shards,
        )


def _open_metrics(app: Celery, node: str) -> Metrics:
    settings = context_of(app).settings
    if settings.metrics_port is None:
        return Metrics()
    try:
        node_metrics: Any = symbol_by_name(NODE_METRICS)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"lowkiq_metrics_port={settings.metrics_port} needs {error.name}: "
            "pip install 'celery-lowkiq[metrics]'"
        ) from error
    metrics: Metrics = node_metrics(app, node, settings.metrics_host, settings.metrics_port)
    return metrics
