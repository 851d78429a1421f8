"""The boot step of a worker, and tasks that it finds later."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

from celery import bootsteps
from celery.apps.worker import install_cry_handler  # type: ignore[attr-defined]
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.concurrency.thread import TaskPool as ThreadPool
from celery.exceptions import ImproperlyConfigured
from celery.worker.consumer import Agent, Control, Gossip, Heart, Tasks
from celery.worker.consumer.delayed_delivery import DelayedDelivery
from click import ClickException

from celery_lowkiq.integration.app import LATE, context_of, ordered_tasks, worker_options
from celery_lowkiq.integration.bootstep import remote_control as celery_commands  # noqa: F401 - remote control commands
from celery_lowkiq.integration.bootstep.command_line import (
    Service,
    check_threads,
    chosen,
    deselect_from_broker,
    named,
    reasons,
    warn_short_names,
)
from celery_lowkiq.integration.bootstep.engine import Engine
from celery_lowkiq.integration.bootstep.node.launch import NO_MODULE
from celery_lowkiq.integration.bootstep.node.supervisor import NodeSupervisor
from celery_lowkiq.integration.bootstep.shutdown import ConsumerShutdown
from celery_lowkiq.integration.processes.app_reference import locate
from celery_lowkiq.integration.processes.child_runs import runs_in_process
from celery_lowkiq.integration.redis_params import shown_address, source_of
from celery_lowkiq.rules.basics import package_logger as logger
from celery_lowkiq.rules.errors import ConfigurationError

# Ordered tasks that the app registers while the worker runs.

#: Seconds between checks for tasks that the worker does not serve yet.
LOOK = 5.0


class LateTasks:
    """Starts to serve ordered tasks that are registered while the worker runs.

    It does so when Celery does with plain tasks: on ``reload()``, and after a reconnect to the broker. Until
    then a warning names them.
    """

    def __init__(
        self, consumer: Any, known: Collection[str], begin: Callable[[dict[str, Any]], None]
    ) -> None:
        """``known`` are the queues of the start; ``begin(tasks)`` is called with the new tasks by queue."""
        self._app = consumer.app
        self._timer = consumer.timer
        self._known = set(known)
        self._begin = begin
        self._lock = threading.Lock()
        self._entry: Any = None
        #: Number of the app's tasks at the last update; new queues at the last check.
        self._registered = len(self._app.tasks)
        self._seen: frozenset[str] = frozenset()
        self._logged: set[str] = set()
        self._celerys: Callable[[], None] = consumer.update_strategies
        # reload() and each connection to the broker call this: it makes the tracers of the tasks.
        consumer.update_strategies = self.update

    def update(self) -> None:
        """Make the tracers of all tasks, and start to serve the new ordered ones."""
        self._celerys()
        with self._lock:
            self._registered = len(self._app.tasks)
            new = self._new()
            if new:
                self._known.update(new)
                self._begin(new)

    def finds(self, queue: str) -> bool:
        """True if the app has this ordered queue now. Starts to serve a new one."""
        if queue in self._new():
            self.update()
        return queue in self._known

    def watch(self) -> None:
        """Check at intervals. Call it again after a reconnect to the broker, which clears Celery's timer."""
        if self._entry is not None:
            self._timer.cancel(self._entry)
        self._entry = self._timer.call_repeatedly(LOOK, self.look)

    def look(self) -> None:
        """Warn once about each queue that was new at the previous check: ``reload()`` may still come."""
        if len(self._app.tasks) == self._registered:
            return
        seen, self._seen = self._seen, frozenset(chosen(self._new(), worker_options(self._app)))
        late = sorted((seen & self._seen) - self._logged)
        if late:
            self._logged.update(late)
            logger.warning(LATE, ", ".join(late))

    def _new(self) -> dict[str, Any]:
        try:
            found = ordered_tasks(self._app)
        except ConfigurationError as error:
            if str(error) not in self._logged:
                self._logged.add(str(error))
                logger.error("ordered tasks that were registered after the start are not served: %s", error)
            return {}
        return {queue: task for queue, task in found.items() if queue not in self._known}


# The worker's bootstep: starts the lanes with the worker, and drains them at its shutdown.

NO_THREADS = "ordered queues need the pool threads or prefork: start a worker with -P threads"


class WorkerRefused(ClickException, ConfigurationError):
    """A wrong setting ends a worker that starts: its command line shows the text without a traceback."""


class OrderedQueues(bootsteps.StartStopStep):
    """Serves ordered queues beside the worker's pool: by lanes in this process beside threads, in a node
    process beside Celery's own processes.

    It starts last, so that it stops first, while events, heartbeat and remote control still work.
    """

    requires: tuple[type, ...] = (Tasks, Control, Heart, Gossip, DelayedDelivery, Agent)

    def __init__(self, consumer: Any, **options: Any) -> None:
        """Raises ImproperlyConfigured when -Q names an ordered queue but the pool cannot serve it or the app
        has no Redis, and for --autoscale with a thread pool; WorkerRefused for a wrong setting.
        """
        super().__init__(consumer, **options)
        self._engine: Engine | NodeSupervisor | None = None
        #: A test may call ``reload()`` in another thread.
        self._starting = threading.Lock()
        self._stopping = False
        consumer.ordered_queues = self
        self._consumer = consumer
        #: All ordered tasks by the names of their queues.
        self.tasks: Mapping[str, Any] = ordered_tasks(consumer.app)
        options = worker_options(consumer.app)
        self._served = frozenset(chosen(self.tasks, options))
        pool = consumer.controller.pool_cls
        self._threads, self._processes = issubclass(pool, ThreadPool), issubclass(pool, PreforkPool)
        #: Why this worker cannot serve ordered queues; "" when it can.
        self._obstacle = "" if self._threads or self._processes else NO_THREADS
        self._logged = ""
        explicit = named(self.tasks, options)
        try:
            self._prepare(self._served, explicit)
        except ConfigurationError as error:
            raise WorkerRefused(str(error)) from error
        warn_short_names(consumer.app, self.tasks, options)
        deselect_from_broker(consumer.app, self.tasks, options)
        _dump_stacks_on_ttin()
        self._list_in_banner(consumer.controller)
        self._late = LateTasks(consumer, self.tasks, self._begin_with)

    def _prepare(self, served: frozenset[str], explicit: list[str]) -> None:
        """Check the requirements of queues to serve; ``explicit``: those named by -Q."""
        if served and not self._obstacle and self._engine is None:
            # A wrong setting ends the worker; without a Redis, its other tasks may run.
            settings = context_of(self._consumer.app).settings
            if self._threads:
                any_process = any(runs_in_process(task, settings) for task in self.tasks.values())
                check_threads(self._consumer.controller, any_process)
            elif locate(self._consumer.app) is None:
                self._obstacle = NO_MODULE
            try:
                source_of(self._consumer.app, settings)
            except ConfigurationError as error:
                self._obstacle = str(error)
            else:
                specs = [task.queue_spec for name, task in self.tasks.items() if name in served]
                context_of(self._consumer.app).check_server(specs)
        if self._obstacle and explicit:
            raise ImproperlyConfigured(f"-Q names the ordered queues {', '.join(explicit)}: {self._obstacle}")
        if self._obstacle and served:
            # Another worker of the app may have threads. None serves the queues without Redis.
            log = logger.warning if self._obstacle == NO_THREADS else logger.error
            log("ordered queues (%s) are not served: %s", ", ".join(sorted(served)), self._obstacle)

    def _list_in_banner(self, worker: Any) -> None:
        celerys_text: Any = getattr(worker, "startup_info", None)  # A worker of a test has none.

        def startup_info(*args: Any, **options: Any) -> str:
            return "\n".join([celerys_text(*args, **options), *self._service().banner(), ""])

        if celerys_text is not None:
            worker.startup_info = startup_info

    def _service(self) -> Service:
        """The queues that this worker serves, and why it leaves the other ones out."""
        app, served = self._consumer.app, frozenset[str]() if self._obstacle else self._served
        left = reasons(set(self.tasks) - self._served, worker_options(app))
        left |= dict.fromkeys(self._served - served, self._obstacle)
        shards = {name: self.tasks[name].shards for name in sorted(served)}
        if not served:
            return Service(shards, left)
        context = context_of(app)
        lanes = context.settings.lanes or self._consumer.controller.concurrency
        store, prefix = shown_address(context.redis_parameters()), context.key_prefix()
        store += f" with keys that begin with {prefix}" if prefix else ""
        return Service(shards, left, lanes, context.settings.exclusion, store)

    def _log_service(self) -> None:
        """Write what is served, if that is new. With an obstacle, a warning has said it."""
        if self.tasks and not (self._obstacle and self._served):
            service = self._service()
            text = service.sentence()
            if text != self._logged:
                self._logged = text
                # With -Q of a time before the ordered tasks, nothing else would tell why their calls wait.
                log = logger.warning if service.is_overlooked else logger.info
                log("%s", text)

    # -- bootstep

    def start(self, consumer: Any) -> None:
        """Start the lanes. Celery calls this at the start and after each reconnect to the broker."""
        with self._starting:
            if self._engine is None and self._served and not (self._obstacle or self._stopping):
                self._engine = self._make_engine(consumer)
                self._engine.start()
            elif self.node is not None:
                self.node.reconnected()
        self._log_service()
        self._late.watch()

    def _make_engine(self, consumer: Any) -> Engine | NodeSupervisor:
        if self._processes:
            return NodeSupervisor(consumer, self.tasks, self._served)
        concurrency = consumer.controller.concurrency
        return Engine(consumer, self.tasks, self._served, concurrency, ConsumerShutdown(consumer))

    def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
        """Read from the node process. Celery calls this before each start of its event loop."""
        if self.node is not None:
            self.node.register(hub)

    def stop(self, consumer: Any) -> None:
        """Drain when the worker stops. A reconnect to the broker leaves the lanes alone."""
        if consumer.blueprint.state != bootsteps.RUN:  # type: ignore[attr-defined]
            self._end()

    def shutdown(self, consumer: Any) -> None:
        """Drain when the worker stops while it reconnects; Celery does not call ``stop`` then."""
        self._end()

    def info(self, consumer: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return the lanes' state for ``celery inspect stats`` and Flower."""
        return {"lowkiq": self.snapshot()} if self.tasks else {}

    # -- remote control

    def finds(self, queue: str) -> bool:
        """True if the app has this ordered queue, also if its task was registered after the start."""
        return self._late.finds(queue)

    @property
    def has_lanes(self) -> bool:
        """True if this process has lanes; they stay when the last queue is removed."""
        return isinstance(self._engine, Engine)

    @property
    def node(self) -> NodeSupervisor | None:
        """The node process, if the lanes are in one."""
        return self._engine if isinstance(self._engine, NodeSupervisor) else None

    @property
    def served(self) -> list[str]:
        """The ordered queues that this node serves now."""
        engine = self._engine
        return [] if engine is None or engine.runtime.is_quiet or self._stopping else sorted(self._served)

    def snapshot(self) -> dict[str, Any]:
        """Return the shards and the running batch of each lane, as plain values."""
        return self._engine.runtime.snapshot() if self._engine else {"quiet": False, "lanes": []}

    def quiet(self, yes: bool) -> None:
        """Stop claiming jobs, or go on. Raises ConfigurationError without lanes, and during a shutdown."""
        self._check_running()
        if self._engine is None:
            raise ConfigurationError("this worker serves no ordered queue")
        self._engine.runtime.quiet(yes)

    def serve(self, queue: str, yes: bool) -> None:
        """Start or stop serving an ordered queue. Raises ConfigurationError when that is impossible."""
        if self._obstacle:
            raise ConfigurationError(self._obstacle)
        self._check_running()
        self._serve(self._served | {queue} if yes else self._served - {queue})

    def limit(self, queue: str) -> None:
        """Apply the current ``rate_limit`` of the queue's task. Raises ConfigurationError."""
        if self._engine is not None:
            self._engine.limit(queue)

    def _check_running(self) -> None:
        if self._stopping or self._consumer.blueprint.state != bootsteps.RUN:  # type: ignore[attr-defined]
            raise ConfigurationError("the worker stops")

    def _begin_with(self, new: Mapping[str, Any]) -> None:
        """Serve the selected queues of tasks (by queue) that were registered after the start."""
        served = frozenset(chosen(new, worker_options(self._consumer.app)))
        try:
            specs = [task.queue_spec for task in new.values()]
            self.tasks = dict(sorted({**self.tasks, **new}.items()))
            self._prepare(served, [])
            if self._engine is not None:
                self._engine.add_tasks(new, specs)
                for queue in new:
                    self.limit(queue)
            if served and not self._obstacle:
                self._check_running()
                self._serve(self._served | served)
        except (ConfigurationError, ImproperlyConfigured) as error:
            logger.error("ordered queues (%s) are not served: %s", ", ".join(sorted(new)), error)

    def _serve(self, served: frozenset[str]) -> None:
        if self._engine is None:
            self._served = served
            self.start(self._consumer)
            return
        if not served <= self._engine.runtime.queue_names:
            raise ConfigurationError(
                "the splitter of this worker deals shards once, when it starts: name the queue with -Q then"
            )
        self._served = served
        self._engine.runtime.serve(served)
        self._log_service()

    def _end(self) -> None:
        """Stop the lanes, once."""
        if self._engine is not None and not self._stopping:
            self._stopping = True
            status = self._engine.end()
            if status is not None:
                self._consumer.controller.exitcode = status


def _dump_stacks_on_ttin() -> None:
    """Write the stacks of all threads on SIGTTIN, as Celery does on SIGUSR1.

    By default the signal stops the process: leases expire, and other nodes take the shards. Does nothing
    without such a signal, outside the main thread, and when the app has its own handler.
    """
    number = getattr(signal, "SIGTTIN", None)
    if number is not None and signal.getsignal(number) is signal.SIG_DFL:
        install_cry_handler("SIGTTIN")
