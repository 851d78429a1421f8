"""The child process of a lane: runs the batches that its lane sends, one at a time."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import pickle
import signal
import socket
import threading
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, NoReturn

from billiard.compat import mem_rss
from celery import Celery
from celery.app import trace
from celery.concurrency.prefork import process_destructor, process_initializer
from celery.exceptions import SoftTimeLimitExceeded
from celery.worker import state

from celery_lowkiq.integration.app import context_of, ordered_tasks
from celery_lowkiq.integration.events import RemoteConsumer
from celery_lowkiq.integration.loops import Cancelled
from celery_lowkiq.integration.processes import protocol
from celery_lowkiq.integration.processes.app_reference import import_app, import_modules
from celery_lowkiq.integration.processes.protocol import Channel, OutcomeMessage, RunMessage
from celery_lowkiq.integration.run_logs import install_batch_filter
from celery_lowkiq.integration.runner import CeleryRunner
from celery_lowkiq.integration.safe_logging import safe_logger as logger
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.rules.models import Batch
from celery_lowkiq.store.call_records import CallReader
from celery_lowkiq.store.trackers import TrackerStore
from celery_lowkiq.worker import forks
from celery_lowkiq.worker.ports import EXIT_CRASHED

#: A child ends when its lane has sent nothing for this many s.
MAX_IDLE = 300.0
#: Connections to the store of a run: for itself, and for a thread of the task.
CONNECTIONS = 2


class ChildOptions(NamedTuple):
    """Options of a child, sent when it starts."""

    #: ``module:attribute`` of the app.
    app: str
    #: Modules to import after that of the app: see :func:`.app_reference.modules_of`.
    modules: tuple[str, ...]
    hostname: str
    #: Celery's limits, after which a child ends; None: no limit.
    max_tasks: int | None
    max_memory_kib: int | None
    #: How ``multiprocessing`` starts the processes of a run; None: as by default.
    start_method: str | None


def main(end: socket.socket, control: Connection, lifeline: Connection, options: ChildOptions) -> None:
    """Run batches until the lane or the worker ends, or this process is spent."""
    # Programs that a run starts belong to this group, and end with it.
    os.setsid()
    # In a child of a fork server, it would be by this fork server, which the child would have to start.
    multiprocessing.set_start_method(options.start_method, force=True)
    _end_with_worker(lifeline)
    orders = Orders()
    forks.handle(orders.on_signal)
    threading.Thread(target=orders.watch, args=(control,), name="lowkiq-control", daemon=True).start()
    app: Any = import_app(options.app)
    for fixup in getattr(app, "_fixups", ()):
        # Celery's own children have this from their parent, before the fork.
        if hasattr(fixup, "worker_fixup"):
            fixup.worker_fixup.install()
    import_modules(app, options.modules, "a child process")
    trace.setup_worker_optimizations(app, options.hostname)
    process_initializer(app, options.hostname)
    install_batch_filter()
    # Celery has reset them.
    forks.handle(orders.on_signal)
    with contextlib.ExitStack() as at_end, contextlib.suppress(EOFError):
        at_end.callback(process_destructor, os.getpid(), 0)
        child = Child(app, Channel(end, MAX_IDLE), orders, options)
        at_end.callback(child.close)
        child.serve()


def _end_with_worker(lifeline: Connection) -> None:
    """Let the kernel end this process group when the worker has died, also while no thread can run Python.

    Elsewhere than on Linux a thread does so (:meth:`LostLease.watch`).
    """
    if hasattr(fcntl, "F_SETSIG"):
        fd = lifeline.fileno()
        fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpgid(0))
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)


def _crash(error: BaseException | None) -> NoReturn:
    logger.critical("the event loop of async def tasks has ended: %r", error)
    os._exit(EXIT_CRASHED)


class Orders:
    """Messages of the lane about the running batch."""

    def __init__(self) -> None:
        #: Set while another worker may own the shard of the running batch.
        self.lost: threading.Event = threading.Event()
        self._number = 0
        #: The last ones: the number of their run, and what is said of it.
        self._last: tuple[int, bool, int] = (0, False, 0)
        self._lock = threading.Lock()

    def begin(self, number: int, is_lost: bool) -> None:
        with self._lock:
            self._number = number
            # They may come before the run does.
            self._obey(*(self._last if self._last[0] == number else (number, is_lost, 0)))

    def _obey(self, _: int, is_lost: bool, signum: int) -> None:
        if is_lost:
            self.lost.set()
        elif self.lost.is_set():
            self.lost.clear()
        if signum:
            os.killpg(0, signum)

    def watch(self, control: Connection) -> None:
        """Receive changes. When the worker is dead, end this process and all that its run has started."""
        try:
            while True:
                last = protocol.read(control.recv_bytes())
                with self._lock:
                    self._last = last
                    if last[0] == self._number:
                        self._obey(*last)
        except (EOFError, OSError):
            os.killpg(0, signal.SIGKILL)

    def on_signal(self, signum: int, _: Any) -> None:
        """End the run at a stop signal, if that is an order."""
        if self._last == (self._number, self._last[1], signum):
            # SIGKILL follows. Another signal must not interrupt what cleans up.
            signal.signal(signum, signal.SIG_IGN)
            raise SystemExit(128 + signum)


class SoftLimit:
    """Handler of SIGUSR1: ends a task's function, and nothing else."""

    def __init__(self, tasks: Iterable[Any], cancel: Callable[[], bool]) -> None:
        """``cancel`` cancels the coroutines of the run, and returns whether there are any."""
        self._is_running = self._is_due = False
        self._cancel = cancel
        for task in tasks:
            task.run = self._around(task.run)
        signal.signal(signal.SIGUSR1, self._on_signal)

    def begin(self) -> None:
        self._is_due = False

    def _around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self._is_running = True
            try:
                if self._is_due:
                    raise SoftTimeLimitExceeded
                return function(*args, **kwargs)
            finally:
                self._is_running = False

        return run

    def _on_signal(self, *_: Any) -> None:
        if not self._is_running:
            # The time ran out before the function began.
            self._is_due = True
        elif not self._cancel():
            self._is_running = False
            raise SoftTimeLimitExceeded


class Child:
    """Answers the messages of the lane."""

    def __init__(self, app: Celery, work: Channel, orders: Orders, options: ChildOptions) -> None:
        context = context_of(app)
        client = context.open_store(CONNECTIONS).client
        self._work = work
        self._orders = orders
        self._options = options
        self._runs = 0
        self._consumer = RemoteConsumer(app, options.hostname, self._send_event)
        self._tasks = ordered_tasks(app)
        stores = CallReader(client), TrackerStore(client)
        self._runner = CeleryRunner(self._tasks, self._consumer, context, *stores)
        self._runner.loops.died = _crash
        self._soft_limit = SoftLimit(self._tasks.values(), self._cancel)
        self._batch: Batch | None = None

    def close(self) -> None:
        """Close the event loop of ``async def`` tasks."""
        self._runner.loops.close()

    def serve(self) -> None:
        """Answer until there is nothing to do, or a limit of Celery's is reached."""
        self._send((protocol.READY,))
        while (data := self._work.receive()) is not None:
            message = protocol.read(data)
            kind = message[0]
            if kind == protocol.RUN:
                if self._run(RunMessage._make(message)):
                    return
            elif kind == protocol.EXHAUSTED:
                _, number, queue, dead = message
                self._runner.report_dead(queue, pickle.loads(dead))  # noqa: S301 - written by the lane
                self._send(OutcomeMessage(protocol.OUTCOME, number, False))
            else:
                return
        self._send((protocol.ENDED,))

    def _send_event(self, kind: str, fields: dict[str, Any]) -> None:
        """Have the lane send an event. Raises the errors of ``pickle``."""
        self._send((protocol.EVENT, kind, pickle.dumps(fields)))

    def _send(self, message: tuple[Any, ...]) -> None:
        self._work.send(protocol.write(message))

    def _run(self, message: RunMessage) -> bool:
        """Run a batch. Returns whether this process is spent."""
        self._runs += 1
        self._consumer.event_dispatcher.switch(message.events)
        state.revoked.update(message.revoked)
        if message.stamps:
            state.revoked_stamps.update(pickle.loads(message.stamps))  # noqa: S301 - written by the lane
        self._orders.begin(message.number, message.is_lost)
        self._soft_limit.begin()
        reply: tuple[Any, ...]
        try:
            batch = protocol.read_batch(message, self._task(message.queue).queue_spec, self._orders.lost)
            reply = self._outcome(message.number, batch)
        except Exception as error:
            logger.exception("a batch of %s could not run in this process", message.queue)
            reply = protocol.FAILED, message.number, repr(error)
        self._send(reply)
        return isinstance(reply, OutcomeMessage) and reply.is_spent

    def _task(self, queue: str) -> Any:
        if queue not in self._tasks:
            raise ConfigurationError(
                f"the module of the task of queue {queue} does not register it when it is imported here: "
                "define the task at the top of a module"
            )
        return self._tasks[queue]

    def _cancel(self) -> bool:
        batch = self._batch
        return batch is not None and self._runner.loops.cancel(batch, Cancelled.TIMEOUT)

    def _outcome(self, number: int, batch: Batch) -> OutcomeMessage:
        self._batch = batch
        settlements = self._runner.run(batch)
        if held := self._runner.take_result():
            # One write of the lane costs less than one of this process for each run.
            return protocol.held_outcome(number, held, self._is_spent())
        dead = self._runner.dead_jobs(batch)
        try:
            return protocol.outcome(number, settlements, dead, self._is_spent())
        except Exception as error:
            if not dead:
                raise
            # Payloads are the user's. The run has ended, and must not be repeated for the hook.
            logger.error("on_retries_exhausted of %s failed: %s", batch.queue.name, error)
            return protocol.outcome(number, settlements, [], self._is_spent())

    def _is_spent(self) -> bool:
        most, kib = self._options.max_tasks, self._options.max_memory_kib
        return (most is not None and self._runs >= most) or (kib is not None and mem_rss() > kib)
