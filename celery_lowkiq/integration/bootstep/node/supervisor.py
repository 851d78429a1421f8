"""The supervisor of a node process in Celery's worker: starts it, again after its death, and passes on."""

from __future__ import annotations

import itertools
import logging
import pickle
import select
import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from celery.platforms import EX_FAILURE
from celery.worker import state

from celery_lowkiq.integration.bootstep.command_line import WITHOUT_EFFECT
from celery_lowkiq.integration.bootstep.node.launch import NodeProcess, launch
from celery_lowkiq.integration.bootstep.node.options import (
    NodeOptions,
    Wanted,
    changed_settings,
    revoked_calls,
    task_limits,
)
from celery_lowkiq.integration.bootstep.shutdown import (
    call_at_shutdown,
    is_cold_shutdown,
    run_event_loop_until,
    warn_ended_by_celery,
)
from celery_lowkiq.integration.events import groups_of, send_event
from celery_lowkiq.integration.processes.app_reference import locate, modules_of
from celery_lowkiq.rules.basics import package_logger as logger
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.rules.models import QueueSpec

# The heartbeat that Celery sends: it counts the runs of the node process as active.


def count_in_heartbeats(dispatcher: Any, running: Callable[[], int]) -> None:
    """Add ``running()`` to the active tasks that heartbeats report."""
    celerys = dispatcher.send

    def send(type: str, *args: Any, **fields: Any) -> Any:  # noqa: A002 - as Celery's
        if type.startswith("worker-") and "active" in fields:
            fields["active"] += running()
        return celerys(type, *args, **fields)

    dispatcher.send = send


# The lanes of a worker with Celery's pool of processes: in a node process, which it starts and controls.

#: Seconds that the worker waits for an answer of its node process.
ANSWER = 5.0
#: Seconds between looks at the connection without Celery's event loop.
LOOK = 0.2
#: Seconds that the process has to end after a cold shutdown has begun.
COLD_END = 10.0
#: Seconds until a node process that has died is started again: the first one, and the longest.
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
#: Messages that are read before the event loop goes on.
PART = 20
NO_ANSWER = "the node process, which serves the ordered queues, does not answer"
NOT_READY = "the node process, which serves the ordered queues, is starting"


class NodeSupervisor:
    """Stands in for an ``Engine`` in the worker's process, which has neither lanes nor threads for them.

    Celery forks this process again and again. A fork of a process with lanes may hang, on a lock that a
    thread held at that moment; see docs/adr/0029.
    """

    def __init__(self, consumer: Any, tasks: Mapping[str, Any], served: Collection[str]) -> None:
        """``tasks`` by queue; ``served`` are names of queues."""
        #: Commands go to the runtime of an engine; here, to its process.
        self.runtime: NodeSupervisor = self
        self.is_quiet: bool = False
        #: All, until the process has reported its own.
        self.queue_names: frozenset[str] = frozenset(tasks)
        self._consumer = consumer
        self._tasks = dict(tasks)
        self._served = frozenset(served)
        self._modules = modules_of(consumer.app, tasks.values())
        self._process: NodeProcess | None = None
        self._connection: Connection | None = None
        #: A timer may be a thread of its own.
        self._lock = threading.RLock()
        self._tickets = itertools.count()
        self._replies: dict[int, tuple[Any, str]] = {}
        self._is_ready = self._was_ready = False
        self._running = 0
        self._is_stopping = False
        self._exitcode: int | None = None
        self._wait = 0.0
        self._launched_at = 0.0
        #: Entries of Celery's timer: the next start, and looks at the connection.
        self._next_launch: Any = None
        self._looks: Any = None

    # -- the process

    def start(self) -> None:
        """Start the process; it begins to serve by itself."""
        self._forget = call_at_shutdown(self._consumer.controller, self._on_shutdown)
        for name in ("SIGUSR1", "SIGTTIN"):
            self._relay_signal(getattr(signal, name, None))
        self._launch()
        self.reconnected()

    def reconnected(self) -> None:
        """Go on after a reconnect to the broker, which clears Celery's timer and renews its events."""
        with self._lock:
            self._cancel_timers()
            if self._connection is None and not self._is_stopping:
                self._launch_later()
            self.update()
            # Revoked ids that other workers broadcast when they connect.
            self._tell("revoke", list(state.revoked), None)
            # Each connection has a new dispatcher.
            if self._consumer.event_dispatcher is not None:
                count_in_heartbeats(self._consumer.event_dispatcher, lambda: self._running)
            if self._consumer.hub is None:
                self._looks = self._consumer.timer.call_repeatedly(LOOK, self._read)

    def _cancel_timers(self) -> None:
        for entry in (self._next_launch, self._looks):
            if entry is not None:
                self._consumer.timer.cancel(entry)

    def register(self, hub: Any) -> None:
        """Read what the process sends in Celery's event loop, if it has one."""
        if hub is not None and self._connection is not None:
            hub.add_reader(self._connection.fileno(), self._read)

    def _launch(self) -> None:
        with self._lock:
            if self._is_stopping or self._connection is not None:
                return
            self._launched_at = time.monotonic()
            try:
                self._process, self._connection = launch(self._options())
            except OSError:
                logger.exception("the node process, which serves the ordered queues, could not be started")
                self._launch_later()
                return
            logger.info("ordered queues are served by process %d, which starts now", self._process.pid)
            self.register(self._consumer.hub)

    def _options(self) -> NodeOptions:
        consumer, worker = self._consumer, self._consumer.controller
        app, no_color = consumer.app, getattr(worker, "no_color", None)
        location = locate(app)
        assert location is not None  # the bootstep has looked
        limits = {name: getattr(worker, name, None) for name in WITHOUT_EFFECT}
        rates = {"disable_rate_limits": bool(consumer.disable_rate_limits)}
        return NodeOptions(
            app=location,
            hostname=consumer.hostname,
            of_worker={"concurrency": worker.concurrency, **rates, **limits},
            colorize=None if no_color is None else not no_color,
            wanted=self._wanted(),
            modules=tuple(self._modules),
            changes=changed_settings(app),
            **revoked_calls(),
        )

    def _launch_later(self) -> None:
        """Start it again; soon, unless the last one has died soon, too."""
        if time.monotonic() - self._launched_at > LONGEST_WAIT:
            self._wait = 0.0
        wait, self._wait = self._wait, min(max(2 * self._wait, FIRST_WAIT), LONGEST_WAIT)
        self._next_launch = self._consumer.timer.call_after(wait, self._launch)

    def _on_end(self) -> None:
        """The process has ended: start another one, unless the worker stops."""
        connection, self._connection = self._connection, None
        self._is_ready, self._running = False, 0
        assert connection is not None
        assert self._process is not None
        if self._consumer.hub is not None:
            self._consumer.hub.remove_reader(connection.fileno())
        connection.close()
        status = self._process.wait()
        if self._is_stopping and status >= 0:
            return
        level = logging.ERROR if status else logging.INFO
        logger.log(
            level,
            "the node process %d has ended with status %d: its ordered queues are served again by the next "
            "one, or by other workers when its leases run out",
            self._process.pid,
            status,
        )
        if status == EX_FAILURE and not self._was_ready:
            self._stop_worker(EX_FAILURE)
        elif not self._is_stopping:
            self._launch_later()

    def _stop_worker(self, exitcode: int) -> None:
        self._exitcode = exitcode
        state.should_stop = exitcode  # type: ignore[assignment]

    def _relay_signal(self, number: int | None) -> None:
        """Have the process write its stacks, too, when this one does."""
        if number is None or threading.current_thread() is not threading.main_thread():
            return
        handler = signal.getsignal(number)

        def dump_both(*about: Any) -> None:
            if callable(handler):
                handler(*about)
            if self._process is not None:
                self._process.send_signal(number)

        signal.signal(number, dump_both)

    # -- its end

    def _on_shutdown(self, **_: Any) -> None:
        """Drain as soon as a signal arrives."""
        self._is_stopping = True
        self.restart()

    def end(self) -> int | None:
        """Stop the process, and wait for it while the worker's event loop runs.

        Returns the exit status of a worker that the process has stopped.
        """
        consumer = self._consumer
        self._forget()
        self._is_stopping = True
        self._cancel_timers()
        if not is_cold_shutdown():
            warn_ended_by_celery(consumer)
            self._tell("end", False)
            self.register(consumer.hub)
            run_event_loop_until(consumer, self._has_ended)
        if is_cold_shutdown():
            self._tell("end", True)
            deadline = time.monotonic() + COLD_END
            while not self._has_ended(0.1) and time.monotonic() < deadline:
                pass
        self._kill()
        return self._exitcode

    def _has_ended(self, timeout: float) -> bool:
        """Read until the process has ended, for at most ``timeout`` s. Returns whether it has."""
        with self._lock:
            if self._connection is not None and self._connection.poll(timeout):
                self._read()
            return self._connection is None

    def _kill(self) -> None:
        with self._lock:
            if self._connection is not None and self._process is not None:
                logger.error("the node process %d does not end: it is killed", self._process.pid)
                self._process.kill()
                self._on_end()

    # -- messages

    def _read(self) -> None:
        """Take over what the process has sent."""
        with self._lock:
            for _ in range(PART):
                if self._connection is None or not self._connection.poll():
                    return
                try:
                    # Written by a child of this process.
                    messages = [pickle.loads(message) for message in self._connection.recv()]  # noqa: S301
                except (EOFError, OSError):
                    self._on_end()
                    return
                except Exception:
                    logger.exception("what the node process has sent cannot be read")
                    continue
                for kind, *about in messages:
                    self._take[kind](self, *about)

    def _take_event(self, kind: str, fields: dict[str, Any]) -> None:
        send_event(self._consumer.event_dispatcher, kind, fields)

    def _take_reply(self, ticket: int, value: Any, error: str) -> None:
        self._replies[ticket] = value, error

    def _take_counts(self, runs: dict[str, int], running: int) -> None:
        state.total_count.update(runs)
        state.all_total_count[0] += sum(runs.values())
        self._running = running

    def _take_ready(self, queue_names: frozenset[str]) -> None:
        self._is_ready = self._was_ready = True
        self.queue_names = queue_names

    #: By the kind of a message.
    _take: Mapping[str, Callable[..., None]] = {
        "event": _take_event,
        "reply": _take_reply,
        "counts": _take_counts,
        "ready": _take_ready,
        "stop": _stop_worker,
    }

    def _tell(self, name: str, *about: Any, ticket: int | None = None) -> None:
        """Send a request; one without a ticket is not answered."""
        with self._lock:
            if self._connection is None:
                return
            try:
                # A process that is stopped reads nothing: then this one must not wait for it.
                if _can_send(self._connection):
                    self._connection.send((ticket, name, about))
            except OSError:
                self._on_end()

    def ask(self, name: str, *about: Any) -> Any:
        """Return the answer of the process. Raises ConfigurationError."""
        ticket, deadline = next(self._tickets), time.monotonic() + ANSWER
        with self._lock:
            if not self._is_ready:
                raise ConfigurationError(NOT_READY)
            self._replies.clear()
            self._tell(name, *about, ticket=ticket)
            while ticket not in self._replies:
                if self._connection is None or not self._connection.poll(deadline - time.monotonic()):
                    raise ConfigurationError(NO_ANSWER)
                self._read()
            value, error = self._replies.pop(ticket)
        if error:
            raise ConfigurationError(error)
        return value

    def ask_or(self, otherwise: Any, name: str, *about: Any) -> Any:
        """Return the answer, or ``otherwise`` when there is none, which is logged.

        A process that is starting obeys before its lanes begin, and does not answer.
        """
        if not self._is_ready:
            self._tell(name, *about)
            return otherwise
        try:
            return self.ask(name, *about)
        except ConfigurationError as error:
            logger.warning("%s: %s", name, error)
            return otherwise

    def command(self, name: str, arguments: dict[str, Any]) -> Any:
        """Execute a remote control command in the process."""
        try:
            return self.ask("command", name, arguments)
        except ConfigurationError as error:
            return {"error": str(error)}

    # -- what operators want

    def update(self) -> None:
        """Have the process do what operators want now; the next one does so from its start."""
        self._tell("obey", self._wanted())

    def _wanted(self) -> Wanted:
        limits = {queue: task_limits(task) for queue, task in self._tasks.items()}
        return Wanted(self._served, self.is_quiet, limits, groups_of(self._consumer.event_dispatcher))

    def add_tasks(self, new: Mapping[str, Any], specs: Sequence[QueueSpec]) -> None:
        """Have the process import the modules of new tasks; the next one, too. Raises ConfigurationError."""
        modules = sorted({task.__module__ for task in new.values()})
        self._modules += modules
        self._tasks.update(new)
        about = "add", modules, [spec.name for spec in specs]
        if self._is_ready:
            self.queue_names = self.ask(*about)
        else:
            self._tell(*about)
            self.queue_names |= set(new)

    def snapshot(self) -> dict[str, Any]:
        try:
            snapshot: dict[str, Any] = self.ask("snapshot")
        except ConfigurationError as error:
            return {"quiet": self.is_quiet, "lanes": [], "error": str(error)}
        return snapshot

    def quiet(self, yes: bool) -> None:
        """Stop claiming jobs, or go on; the next process, too."""
        self.is_quiet = yes
        self.update()

    def serve(self, queues: Collection[str]) -> None:
        """Serve these queues from now on; the next process, too."""
        self._served = frozenset(queues)
        self.update()

    def limit(self, queue: str) -> None:
        """Apply the current limits of the tasks; in the next process, too."""
        self.update()

    def restart(self) -> None:
        """Replace the process by one that imports all modules anew, after the running batches.

        Safe in a signal handler. When the worker stops, no other one follows.
        """
        if self._process is not None:
            self._process.order_stop()


def _can_send(connection: Connection) -> bool:
    # Not by `select`, which refuses the descriptors of a worker that has more than 1,024.
    writable = select.poll()
    writable.register(connection, select.POLLOUT)
    return bool(writable.poll(0))
