"""The node process: answers its proxy."""

from __future__ import annotations

import os
import pickle
import queue
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from types import SimpleNamespace
from typing import Any, NoReturn

from celery.app import trace
from celery.platforms import EX_FAILURE, EX_OK
from celery.worker import state
from celery.worker.control import Panel

from celery_lowkiq.integration.app import ordered_tasks
from celery_lowkiq.integration.bootstep import remote_control as celery_commands  # noqa: F401 - remote commands
from celery_lowkiq.integration.bootstep.engine import Engine
from celery_lowkiq.integration.bootstep.node.options import (
    NodeOptions,
    StopOrder,
    Wanted,
    task_limits,
)
from celery_lowkiq.integration.bootstep.shutdown import is_cold_shutdown, stopper
from celery_lowkiq.integration.events import RemoteConsumer
from celery_lowkiq.rules.basics import package_logger, worker_logger
from celery_lowkiq.rules.errors import ConfigurationError, LowkiqError
from celery_lowkiq.worker import forks
from celery_lowkiq.worker.runtime import Runtime

# Messages of the node process to the worker: events, answers, and counts of runs.

#: Events that may wait for the worker; more are dropped: lanes never wait for it.
LIMIT = 10_000
#: Messages that are sent together.
PART = 100
#: Seconds between two reports of how many runs have begun.
COUNTS = 1.0


class Outbox:
    """Sends messages in the order in which threads of this process put them; none of them waits for that."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        #: Pickles; None at the end.
        self._waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._counted: tuple[Counter[str], int] = Counter(), 0
        self._dropped = 0
        self._thread = threading.Thread(target=self._main, name="lowkiq-outbox", daemon=True)
        self._thread.start()

    def put(self, *message: Any) -> None:
        """Send a message: its kind, and its values; see ``NodeSupervisor``."""
        try:
            self._waiting.put(pickle.dumps(message))
        except Exception:
            worker_logger.exception("%r could not be sent to the worker", message[0])

    def put_event(self, kind: str, fields: dict[str, Any]) -> None:
        """Send an event, unless too many wait."""
        if self._waiting.qsize() < LIMIT:
            self.put("event", kind, fields)
        elif not self._dropped:
            self._dropped = 1
            worker_logger.warning("the worker is behind: task events of ordered queues are dropped")

    def close(self) -> None:
        """Send what waits."""
        self._waiting.put(None)
        self._thread.join()

    def _main(self) -> None:
        last = False
        with suppress(OSError):  # The worker has died.
            while not last:
                part = self._next_part()
                last = None in part
                messages = [message for message in (self._counts(), *part) if message is not None]
                if messages:
                    self._connection.send(messages)

    def _next_part(self) -> list[bytes | None]:
        part: list[bytes | None] = []
        with suppress(queue.Empty):
            part.append(self._waiting.get(timeout=COUNTS))
            while len(part) < PART and part[-1] is not None:
                part.append(self._waiting.get_nowait())
        return part

    def _counts(self) -> bytes | None:
        """A report of the runs of each task that have begun since the last one, and of how many go on.

        None if that has not changed.
        """
        now, then = (Counter(state.total_count), len(state.active_requests)), self._counted
        self._counted = now
        return None if now == then else pickle.dumps(("counts", dict(now[0] - then[0]), now[1]))


# Serves the ordered queues in the node process, controlled by the worker's bootstep.

#: Seconds that idle lanes, then the others, have to release their shards when the worker has died.
IDLE_TIMEOUT, BUSY_TIMEOUT = 0.4, 0.2


class NodeServer:
    """The lanes, and the commands that the worker sends them; ``engine.Shutdown`` of their engine.

    For remote control commands, which the worker relays, it stands in for the bootstep.
    """

    #: The bootstep's, which has lanes elsewhere then.
    node: Any = None
    is_program: bool = True

    def __init__(self, worker: Any, connection: Connection, options: NodeOptions, order: StopOrder) -> None:
        """Raises ConfigurationError."""
        self._connection = connection
        self._order = order
        forks.close_in_forks(connection)
        self._wakes, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        self._outbox = Outbox(connection)
        self._consumer = RemoteConsumer(
            worker.app,
            worker.hostname,
            self._outbox.put_event,
            disable_rate_limits=worker.disable_rate_limits,
            controller=worker,
            # The main thread looks.
            call_soon=lambda _: self.wake(),
        )
        self._is_serving = self._is_stopping = False
        self._told_status: int | None = None
        self.tasks: dict[str, Any] = ordered_tasks(worker.app)
        state.revoked.update(options.revoked)
        state.revoked_stamps.update(options.revoked_stamps)
        served, lanes = self._known(options.wanted.served), worker.concurrency
        self._engine = Engine(self._consumer, self.tasks, served, lanes, self)  # type: ignore[arg-type]
        self._obey(options.wanted)
        self._answers: dict[str, Callable[..., Any]] = {
            "snapshot": self.snapshot,
            "obey": self._obey,
            "add": self._add,
            "command": self._command,
            "revoke": self._revoke,
            "end": self._end,
        }

    def run(self) -> int:
        """Serve until the worker, or a signal, ends it. Returns the exit status."""
        # Commands that came meanwhile: no lane begins a call that was revoked.
        while self._connection.poll():
            self._turn()
        self._is_serving = True
        self._engine.start()
        self._outbox.put("ready", self._engine.runtime.queue_names)
        while not self._is_stopping:
            self._turn()
        status = self._engine.end()
        self._outbox.close()
        return status or EX_OK

    def wake(self) -> None:
        """Have the main thread look; also in a signal handler."""
        # A full pipe wakes, too.
        try:
            os.write(self._waker, b"-")
        except BlockingIOError:
            return

    def _turn(self) -> None:
        ready = wait([self._connection, self._wakes])
        if self._wakes in ready:
            os.read(self._wakes, 4096)
        # Written by CeleryHost.
        wanted: Any = state.should_stop
        if wanted is not None and self._told_status is None:
            self._told_status = wanted
            self._outbox.put("stop", wanted)
        if self._connection in ready:
            try:
                message = self._connection.recv()
            except (EOFError, OSError):
                self._leave()
            self._answer(*message)

    def _answer(self, ticket: int | None, name: str, about: tuple[Any, ...]) -> None:
        value, error = None, ""
        try:
            value = self._answers[name](*about)
        except LowkiqError as refused:
            error = str(refused)
            if ticket is None:
                package_logger.error("%s: %s", name, error)
        except Exception as failed:
            package_logger.exception("%s failed in the node process", name)
            error = f"{name} failed in the node process: {failed!r}"
        if ticket is not None:
            self._outbox.put("reply", ticket, value, error)

    def _leave(self) -> NoReturn:
        """End at once: no process must outlive its worker. The next owners run what is left, as no crash."""
        package_logger.critical("the worker has died: its ordered queues are left to other workers")
        runtime = self._engine.runtime
        runtime.abandon()
        if self._is_serving and not runtime.join(IDLE_TIMEOUT):
            runtime.release_at_exit(BUSY_TIMEOUT)
        os._exit(EX_FAILURE)

    # -- Shutdown

    def watch(self, runtime: Runtime) -> Callable[[], Any]:
        """Stop claiming, and end, at the order of the worker. Return a function that stops claiming."""
        stop_claiming = stopper(runtime)

        def stop() -> None:
            stop_claiming()
            self._is_stopping = True
            self.wake()

        self._order.stop = stop
        return stop_claiming

    def wait(self, ended: threading.Event) -> None:
        """Wait for the lanes; the worker may ask for a cold shutdown meanwhile."""
        while not ended.is_set() and not is_cold_shutdown():
            self._turn()

    def _end(self, is_cold: bool) -> None:
        self._is_stopping = True
        if is_cold:
            state.should_terminate = True  # type: ignore[assignment]

    # -- commands of the worker

    @property
    def served(self) -> list[str]:
        runtime = self._engine.runtime
        return [] if runtime.is_quiet or self._is_stopping else sorted(runtime.served)

    def snapshot(self) -> dict[str, Any]:
        """Return the shards and the running batch of each lane, and this process."""
        return {**self._engine.runtime.snapshot(), "pid": os.getpid()}

    def _known(self, queues: frozenset[str]) -> frozenset[str]:
        missing = queues - set(self.tasks)
        if missing:
            package_logger.error(
                "ordered queues (%s) are not served: no module that the node process imports has their tasks",
                ", ".join(sorted(missing)),
            )
        return queues - missing

    def _obey(self, wanted: Wanted) -> None:
        self._consumer.event_dispatcher.switch(wanted.events)
        runtime = self._engine.runtime
        if wanted.is_quiet != runtime.is_quiet:
            runtime.quiet(wanted.is_quiet)
        if wanted.served & self.tasks.keys() != runtime.served:
            runtime.serve(self._known(wanted.served))
        for name in wanted.task_limits.keys() & self.tasks.keys():
            limits, task = wanted.task_limits[name], self.tasks[name]
            if limits != task_limits(task):
                vars(task).update(limits)
                self._engine.limit(name)

    def _add(self, modules: list[str], queues: list[str]) -> frozenset[str]:
        """Import modules that register ordered tasks. Returns the queues that may be served."""
        app = self._consumer.app
        for module in modules:
            app.loader.import_task_module(module)
        found = ordered_tasks(app)
        missing = sorted(set(queues) - set(found))
        if missing:
            raise ConfigurationError(
                f"their modules do not register {', '.join(missing)} in the node process"
            )
        new = {queue: found[queue] for queue in queues}
        for task in new.values():
            hostname = self._consumer.hostname
            task.__trace__ = trace.build_tracer(task.name, task, app.loader, hostname, app=app)
        self.tasks.update(new)
        self._engine.add_tasks(new, [task.queue_spec for task in new.values()])
        return self._engine.runtime.queue_names

    def _command(self, name: str, arguments: dict[str, Any]) -> Any:
        """Execute a remote control command here."""
        consumer = SimpleNamespace(ordered_queues=self, pool=None)
        context = SimpleNamespace(
            app=self._consumer.app, hostname=self._consumer.hostname, consumer=consumer, tset=set
        )
        return Panel.data[name](context, **arguments)

    def _revoke(self, ids: list[str], signal_name: str | None) -> list[str]:
        """Do not run these calls; stop those that run, if a signal is named. Returns the latter's ids."""
        state.revoked.update(ids)
        running = [state.requests[task_id] for task_id in ids if task_id in state.requests]
        if signal_name is not None:
            for request in running:
                request.terminate(None, signal=signal_name)
        return [request.id for request in running]
