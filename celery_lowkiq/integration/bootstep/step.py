"""The worker's bootstep: starts the lanes with the worker, and drains them at its shutdown."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from typing import Any

from celery import bootsteps
from celery.concurrency.thread import TaskPool as ThreadPool
from celery.exceptions import ImproperlyConfigured, WorkerShutdown
from celery.worker import state
from celery.worker.consumer import Agent, Control, Gossip, Heart, Tasks
from celery.worker.consumer.delayed_delivery import DelayedDelivery

from celery_lowkiq.integration.app.context import context_of
from celery_lowkiq.integration.app.rate_limits import read_rate
from celery_lowkiq.integration.app.redis_params import source_of
from celery_lowkiq.integration.app.registry import ordered_tasks, worker_options
from celery_lowkiq.integration.runs.log_filter import install_batch_filter
from celery_lowkiq.integration.runs.runner import CeleryRunner
from celery_lowkiq.rules.clock import SystemClock
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.rules.loggers import package_logger as logger
from celery_lowkiq.rules.models import Batch
from celery_lowkiq.rules.splitters import lease_splitter
from celery_lowkiq.store.jobs.call_records import CallReader
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.tracking.tracker_store import TrackerStore
from celery_lowkiq.worker.exclusion import Cooperative, Exclusion, Strict
from celery_lowkiq.worker.kernel_timer import KernelTimer
from celery_lowkiq.worker.last_line import LastLine
from celery_lowkiq.worker.ports import NULL_METER
from celery_lowkiq.worker.runtime import Runtime

from . import banner, celery_commands, remote_control  # noqa: F401 - remote control commands, a part of the banner
from .drain_loop import DRAIN_LOOK, turns
from .exit_release import release_shards_at_exit
from .late_tasks import LateTasks
from .metrics import Metrics, open_metrics
from .queue_selection import (
    chosen,
    deselect_from_broker,
    named,
    warn_short_names,
    warn_unknown_weights,
)
from .signal_handlers import dump_stacks_on_ttin, stop_claiming_on_signal
from .thread_pool import check_threads

#: Timeout in s of a cold shutdown for idle lanes to release their shards.
COLD_SHUTDOWN_TIMEOUT = 2.0
#: Connections of a worker besides one per lane: announcements, leases, the window reaper, and a spare one.
OTHER_CONNECTIONS = 4
#: Logged when no signal, command or lane stopped the worker, but a broker error that Celery gives up at.
ENDED_BY_CELERY = (
    "the worker exits with status %s, for the reason that Celery has logged: running batches of ordered "
    "queues end first, and other workers take the shards. Its supervisor must restart it (systemd: "
    "Restart=always)"
)


class CeleryHost:
    """``worker.ports.Host``: the worker process."""

    def __init__(self, consumer: Any, runner: CeleryRunner) -> None:
        self.exitcode: int | None = None
        self._consumer = consumer
        self._runner = runner

    def stop(self, exitcode: int, reason: str) -> None:
        """Drain, then exit with the status; the first call wins."""
        if self.exitcode is None:
            self.exitcode = exitcode
            logger.critical("the worker stops: %s", reason)
            state.should_stop = exitcode  # type: ignore[assignment]
            self._consumer.call_soon(_wake_event_loop)

    def alarm(self, batch: Batch, seconds: float) -> None:
        """Log an overdue batch and send the event ``lowkiq-overdue``."""
        ids = [job.id for job in batch.jobs]
        logger.error("shard %s: the run of %s takes %.1f s so far", batch.shard, ids, seconds)
        dispatcher = self._consumer.event_dispatcher
        if dispatcher is None or not dispatcher.enabled:
            return
        fields = {"queue": batch.queue.name, "shard": batch.shard.index, "ids": ids, "seconds": seconds}
        try:
            dispatcher.send("lowkiq-overdue", **fields)
        except Exception:
            logger.exception("could not send the event lowkiq-overdue")

    def last_words(self, error: BaseException) -> None:
        """Call ``lowkiq_last_words``."""
        self._runner.last_words(error)


class OrderedQueues(bootsteps.StartStopStep):
    """Serves ordered queues beside the worker's pool.

    It starts last, so that it stops first, while events, heartbeat and remote control still work.
    """

    requires: tuple[type, ...] = (Tasks, Control, Heart, Gossip, DelayedDelivery, Agent)

    def __init__(self, consumer: Any, **options: Any) -> None:
        """Raises ImproperlyConfigured when -Q names an ordered queue but the pool is not a thread pool or the
        app has no Redis, and for --autoscale with a thread pool.
        """
        super().__init__(consumer, **options)
        self._runtime: Runtime | None = None
        #: A test may call ``reload()`` in another thread.
        self._starting = threading.Lock()
        self._stopping = False
        self._host: CeleryHost | None = None
        self._runner: CeleryRunner | None = None
        self._store: RedisStore | None = None
        self._metrics: Metrics | None = None
        self._exclusion: Exclusion = Cooperative()
        consumer.ordered_queues = self
        self._without_redis = ""
        self._consumer = consumer
        self._tasks = ordered_tasks(consumer.app)
        options = worker_options(consumer.app)
        self._served = frozenset(chosen(self._tasks, options))
        self._threads = issubclass(consumer.controller.pool_cls, ThreadPool)
        if self._tasks and not self._served:
            logger.info("no ordered queue is served: -Q and -X leave none of %s", ", ".join(self._tasks))
        explicit = named(self._tasks, options)
        self._prepare(self._served, explicit)
        warn_short_names(consumer.app, self._tasks, options)
        deselect_from_broker(consumer.app, explicit)
        dump_stacks_on_ttin()
        self._late = LateTasks(consumer, self._tasks, self._begin_with)

    def _prepare(self, served: frozenset[str], explicit: list[str]) -> None:
        """Check the requirements of queues to serve; ``explicit``: those named by -Q."""
        if not self._threads:
            self._without_threads(served, explicit)
        elif served and self._runtime is None:
            check_threads(self._consumer.controller)
            self._check_redis(served, explicit)

    def _without_threads(self, served: frozenset[str], explicit: list[str]) -> None:
        advice = "start a worker with -P threads for them"
        if explicit:
            raise ImproperlyConfigured(
                f"-Q names the ordered queues {', '.join(explicit)}, which need a thread pool: {advice}"
            )
        if served:
            names = ", ".join(sorted(served))
            logger.warning(
                "ordered queues (%s) are not served by this pool, their calls wait: %s", names, advice
            )

    def _check_redis(self, served: frozenset[str], explicit: list[str]) -> None:
        """Without Redis, serve only plain tasks, unless -Q names ordered queues."""
        settings = context_of(self._consumer.app).settings
        try:
            source_of(self._consumer.app, settings)
        except ConfigurationError as error:
            if explicit:
                raise ImproperlyConfigured(
                    f"-Q names the ordered queues {', '.join(explicit)}: {error}"
                ) from error
            logger.error("ordered queues (%s) are not served: %s", ", ".join(sorted(served)), error)
            self._served, self._without_redis = frozenset(), str(error)

    # -- bootstep

    def start(self, consumer: Any) -> None:
        """Start the lanes. Celery calls this at the start and after each reconnect to the broker."""
        with self._starting:
            if self._runtime is None and self._threads and self._served and not self._stopping:
                self._runtime = self._make_runtime(consumer)
                stop_claiming_on_signal(consumer.controller, self._runtime)
                self._runtime.start()
                if self._metrics is not None:
                    self._metrics.serve(self._runtime)
        self._late.watch()

    def stop(self, consumer: Any) -> None:
        """Drain when the worker stops. A reconnect to the broker leaves the lanes alone."""
        if consumer.blueprint.state != bootsteps.RUN:  # type: ignore[attr-defined]
            self._end(consumer)

    def shutdown(self, consumer: Any) -> None:
        """Drain when the worker stops while it reconnects; Celery does not call ``stop`` then."""
        self._end(consumer)

    def info(self, consumer: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return the lanes' state for ``celery inspect stats`` and Flower."""
        return {"lowkiq": self.snapshot()} if self._tasks else {}

    # -- remote control

    @property
    def tasks(self) -> Mapping[str, Any]:
        """All ordered tasks by the names of their queues."""
        return self._tasks

    def finds(self, queue: str) -> bool:
        """Whether the app has this ordered queue, also if its task was registered after the start."""
        return self._late.finds(queue)

    @property
    def obstacle(self) -> str:
        """Why this worker cannot serve ordered queues, for the banner; "" when it can."""
        if not self._threads:
            return "they need -P threads"
        return "they need Redis, see lowkiq_url" if self._without_redis else ""

    @property
    def has_lanes(self) -> bool:
        """Whether lanes were started; they stay when the last queue is removed."""
        return self._runtime is not None

    @property
    def served(self) -> list[str]:
        """The ordered queues that this node serves now."""
        runtime = self._runtime
        return [] if runtime is None or runtime.is_quiet or self._stopping else sorted(self._served)

    def snapshot(self) -> dict[str, Any]:
        """Return the shards and the running batch of each lane, as plain values."""
        return self._runtime.snapshot() if self._runtime else {"quiet": False, "lanes": []}

    def quiet(self, yes: bool) -> None:
        """Stop claiming jobs, or go on. Raises ConfigurationError without lanes, and during a shutdown."""
        self._check_running()
        if self._runtime is None:
            raise ConfigurationError("this worker serves no ordered queue")
        self._runtime.quiet(yes)

    def serve(self, queue: str, yes: bool) -> None:
        """Start or stop serving an ordered queue. Raises ConfigurationError when that is impossible."""
        if not self._threads:
            raise ConfigurationError("ordered queues need a thread pool: start a worker with -P threads")
        if self._without_redis:
            raise ConfigurationError(self._without_redis)
        self._check_running()
        self._serve(self._served | {queue} if yes else self._served - {queue})

    def limit(self, queue: str) -> None:
        """Apply the current ``rate_limit`` of the queue's task. Raises ConfigurationError."""
        rate = read_rate(self._tasks[queue].rate_limit)
        if self._runtime is not None and not self._consumer.disable_rate_limits:
            self._runtime.set_rate(queue, rate)

    def _check_running(self) -> None:
        if self._stopping or self._consumer.blueprint.state != bootsteps.RUN:  # type: ignore[attr-defined]
            raise ConfigurationError("the worker stops")

    def _begin_with(self, new: Mapping[str, Any]) -> None:
        """Serve the selected queues of tasks (by queue) that were registered after the start."""
        served = frozenset(chosen(new, worker_options(self._consumer.app)))
        try:
            specs = [task.queue_spec for task in new.values()]
            self._tasks = dict(sorted({**self._tasks, **new}.items()))
            self._prepare(served, [])
            if self._runtime is not None and self._runner is not None:
                self._runner.learn(new)
                self._runtime.add_queues(specs)
                for queue in new:
                    self.limit(queue)
            if served and self._threads and not self._without_redis:
                self._check_running()
                self._serve(self._served | served)
        except (ConfigurationError, ImproperlyConfigured) as error:
            logger.error("ordered queues (%s) are not served: %s", ", ".join(sorted(new)), error)

    def _serve(self, served: frozenset[str]) -> None:
        if self._runtime is None:
            self._served = served
            self.start(self._consumer)
            return
        if not served <= self._runtime.queue_names:
            raise ConfigurationError(
                "the splitter of this worker deals shards once, when it starts: name the queue with -Q then"
            )
        self._served = served
        self._runtime.serve(served)

    # -- the runtime

    def _make_runtime(self, consumer: Any) -> Runtime:
        context = context_of(consumer.app)
        settings = context.settings
        lanes = settings.lanes or consumer.controller.concurrency
        splitter = settings.make_splitter()
        warn_unknown_weights(self._tasks, settings.queue_weights)
        # Only the lease splitter can deal a queue that is added later.
        dealt = self._tasks if splitter is lease_splitter else self._served
        limited = not consumer.disable_rate_limits
        rates = {n: read_rate(t.rate_limit) for n, t in self._tasks.items() if limited}
        specs = [task.queue_spec for name, task in self._tasks.items() if name in dealt]
        shards = sum(spec.shards for spec in specs if spec.name in self._served)
        if shards < lanes:
            logger.warning("%d lanes for %d shards: %d lanes stay idle", lanes, shards, lanes - shards)
        install_batch_filter()
        self._store = context.open_store(lanes + OTHER_CONNECTIONS)
        runner = self._runner = CeleryRunner(
            self._tasks, consumer, context, CallReader(self._store.client), TrackerStore(self._store.client)
        )
        self._host = CeleryHost(consumer, runner)
        self._metrics = open_metrics(consumer.app, consumer.hostname)
        if settings.exclusion == "strict":
            self._exclusion = Strict(KernelTimer(), LastLine(SystemClock()))
        return Runtime(
            self._store,
            runner,
            self._host,
            specs,
            lanes=lanes,
            owner=f"{consumer.hostname}-{uuid.uuid4().hex[:12]}",
            clock=SystemClock(),
            scheduler_factory=settings.scheduler,
            splitter=splitter,
            served=self._served,
            rates={name: rate for name, rate in rates.items() if rate is not None},
            poll_interval=settings.poll_interval,
            lease_seconds=settings.lease_seconds,
            window=settings.window,
            meter=self._metrics or NULL_METER,
            exclusion=self._exclusion,
        )

    def _end(self, consumer: Any) -> None:
        """Stop the lanes, once. The runtime stays readable for remote control until the last batch ends."""
        runtime = self._runtime
        if runtime is None or self._stopping:
            return
        self._stopping = True
        if _is_cold_shutdown():
            runtime.abandon()
            runtime.join(COLD_SHUTDOWN_TIMEOUT)
        else:
            self._drain(consumer, runtime)
        if self._metrics is not None:
            self._metrics.close()
        if not runtime.join(0):
            runtime.abandon()
            release_shards_at_exit(runtime)
        elif self._store is not None:
            # The process may go on, as in a test. Running batches would still need the connections.
            self._store.close()
            self._exclusion.close()
        if self._host is not None and self._host.exitcode is not None:
            consumer.controller.exitcode = self._host.exitcode

    def _drain(self, consumer: Any, runtime: Runtime) -> None:
        """Wait for the lanes for ``lowkiq_shutdown_timeout``, or until a cold shutdown.

        Heartbeat and remote control go on.
        """
        timeout = context_of(consumer.app).settings.shutdown_timeout
        status = consumer.controller.exitcode
        # After a shutdown by remote control, it is a text.
        if isinstance(status, int) and status and not state.should_stop:
            logger.warning(ENDED_BY_CELERY, status)
        logger.info("ordered queues stop: %d batches are running", runtime.busy())
        runtime.drain()
        ended = threading.Event()

        def wait_for_lanes() -> None:
            if not runtime.join(timeout):
                running = [lane["running"] for lane in runtime.snapshot()["lanes"] if lane["running"]]
                logger.warning("left to the next worker after %.1f s: %s", timeout, running)
            ended.set()
            consumer.call_soon(_wake_event_loop)

        threading.Thread(target=wait_for_lanes, name="lowkiq-drain", daemon=True).start()
        run_event_loop = turns(consumer)
        while not ended.is_set() and not _is_cold_shutdown():
            if run_event_loop is None:
                ended.wait(DRAIN_LOOK)
                continue
            try:
                run_event_loop()
            except WorkerShutdown:
                # Raised by remote control in an event loop, which ends with it.
                logger.info("received another shutdown command: the running batches end first")
                run_event_loop = turns(consumer)
            except Exception:
                logger.debug("the event loop failed during the drain", exc_info=True)
                run_event_loop = None


def _is_cold_shutdown() -> bool:
    return state.should_terminate is not None and state.should_terminate is not False


def _wake_event_loop() -> None:
    """Do nothing; scheduling a callback wakes the event loop."""
