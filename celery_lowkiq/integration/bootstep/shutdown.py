"""The end of a worker's lanes: at a signal, in the drain, and at the exit of the process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

from celery import signals
from celery.apps.worker import Worker
from celery.exceptions import WorkerShutdown
from celery.worker import state

from celery_lowkiq.rules.basics import package_logger as logger
from celery_lowkiq.rules.leases import EXIT_TIMEOUT
from celery_lowkiq.rules.views import counted
from celery_lowkiq.worker.runtime import Runtime

#: Timeout in s of a cold shutdown for idle lanes to release their shards.
COLD_SHUTDOWN_TIMEOUT = 2.0
#: Seconds between checks for a second signal when the worker's event loop cannot run.
DRAIN_LOOK = 0.2
#: Logged when no signal, command or lane stopped the worker, but a broker error that Celery gives up at.
ENDED_BY_CELERY = (
    "the worker exits with status %s, for the reason that Celery has logged: running batches of ordered "
    "queues end first, and other workers take the shards. Its supervisor must restart it (systemd: "
    "Restart=always)"
)

#: ``logging`` has only weak references to handlers.
_exit_hooks: list[_ExitHook] = []


def stopper(runtime: Runtime, forget: Callable[[], Any] = lambda: None) -> Callable[..., None]:
    """Return a function that stops claiming and begins to drain; ``forget`` is called before that, once.

    A signal handler may call it, so it takes no lock: a thread drains, and ``SimpleQueue.put`` is reentrant.
    """
    requests: SimpleQueue[None] = SimpleQueue()

    def drain_on_request() -> None:
        requests.get()
        forget()
        runtime.drain()

    def stop(**_: Any) -> None:
        runtime.stop_claiming()
        requests.put(None)

    threading.Thread(target=drain_on_request, name="lowkiq-stop", daemon=True).start()
    return stop


def call_at_shutdown(controller: Any, stop: Callable[..., None]) -> Callable[[], Any]:
    """Call ``stop`` as soon as a shutdown signal arrives. Return a function that ends this.

    Celery's handlers only notify the event loop, which may wait for 1 s, or sleep through a soft shutdown.
    """

    def stop_and_wait() -> Any:
        stop()
        return celerys_wait()

    celerys_wait = controller.wait_for_soft_shutdown
    controller.wait_for_soft_shutdown = stop_and_wait
    signals.worker_shutting_down.connect(stop, weak=False)
    return partial(signals.worker_shutting_down.disconnect, stop)


def is_cold_shutdown() -> bool:
    """True if the worker must end without waiting for its batches."""
    return state.should_terminate is not None and state.should_terminate is not False


def wake_event_loop(consumer: Any) -> None:
    """Have the worker's event loop look at what has changed: a scheduled callback wakes it."""
    consumer.call_soon(_do_nothing)


def _do_nothing() -> None: ...


def drain(runtime: Runtime, timeout: float | None, wake: Callable[[], None]) -> threading.Event:
    """Drain the lanes for at most ``timeout`` s (None: any time). The returned event is set after that.

    ``wake`` is called then, in another thread.
    """
    logger.info("ordered queues stop: %s running", counted(runtime.busy(), "batch is", "batches are"))
    runtime.drain()
    ended = threading.Event()

    def wait_for_lanes() -> None:
        if not runtime.join(timeout):
            running = [lane["running"] for lane in runtime.snapshot()["lanes"] if lane["running"]]
            logger.warning("left to the next worker after %.1f s: %s", timeout, running)
        ended.set()
        wake()

    threading.Thread(target=wait_for_lanes, name="lowkiq-drain", daemon=True).start()
    return ended


def warn_ended_by_celery(consumer: Any) -> None:
    """Log it when Celery gave up, for a reason of its own."""
    status = consumer.controller.exitcode
    # It is a text after a shutdown by remote control.
    if isinstance(status, int) and status and not state.should_stop:
        logger.warning(ENDED_BY_CELERY, status)


def run_event_loop_until(consumer: Any, ended: Callable[[float], bool]) -> None:
    """Run the worker's event loop until ``ended(0)``, or a cold shutdown: heartbeat and remote control go on.

    ``ended`` waits for at most the given time (s), in place of an event loop that cannot run.
    """
    run_event_loop = _event_loop(consumer)
    while not ended(0) and not is_cold_shutdown():
        if run_event_loop is None:
            ended(DRAIN_LOOK)
            continue
        try:
            run_event_loop()
        except WorkerShutdown:
            # Raised by remote control in an event loop, which ends with it.
            logger.info("received another shutdown command: the running batches end first")
            run_event_loop = _event_loop(consumer)
        except Exception:
            logger.debug("the event loop failed during the drain", exc_info=True)
            run_event_loop = None


class ConsumerShutdown:
    """``engine.Shutdown`` of lanes in the worker's own process."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self.is_program: bool = isinstance(consumer.controller, Worker)

    def watch(self, runtime: Runtime) -> Callable[[], Any]:
        """Stop claiming and begin to drain at the first signal. Return a function that does so."""
        stop = stopper(runtime, lambda: forget())
        forget = call_at_shutdown(self._consumer.controller, stop)
        return stop

    def wake(self) -> None:
        """Have the worker's event loop look."""
        wake_event_loop(self._consumer)

    def wait(self, ended: threading.Event) -> None:
        """Wait for the lanes while the worker's event loop runs."""
        warn_ended_by_celery(self._consumer)
        run_event_loop_until(self._consumer, ended.wait)


def _event_loop(consumer: Any) -> Callable[[], Any] | None:
    """A function that runs one iteration without new tasks; None without a broker connection."""
    if consumer.connection is None:
        return None
    if consumer.task_consumer is not None:
        try:
            consumer.task_consumer.cancel()
        except Exception:  # noqa: BLE001 - a broken connection delivers no messages
            return None
    _restart_heartbeat(consumer)
    if consumer.hub is not None:
        loop = consumer.hub.create_loop()
        return lambda: next(loop)
    return lambda: _synchronous_iteration(consumer)


def _restart_heartbeat(consumer: Any) -> None:
    # Celery before 5.7 clears the timer, and the heartbeat in it, when a worker begins to stop.
    heart, timer = getattr(consumer, "heart", None), consumer.timer
    if heart is None or heart.tref is None:
        return
    if heart.tref not in [due.entry for due in timer.queue]:
        heart.tref = timer.call_repeatedly(heart.interval, heart._send, ("worker-heartbeat",))


def _synchronous_iteration(consumer: Any) -> None:
    consumer.perform_pending_operations()
    try:
        consumer.connection.drain_events(timeout=DRAIN_LOOK)
    except TimeoutError:
        return


def release_shards_at_exit(runtime: Runtime) -> None:
    """Release the shards of an abandoned runtime when the process exits.

    This runs as late as possible: batches run until Python stops all threads, right after the ``atexit``
    functions, and no other node may begin them before that.
    """
    _exit_hooks.append(_ExitHook(runtime))


class _ExitHook(logging.NullHandler):
    """A logging handler used only as a late exit hook.

    A function registered with ``atexit`` now would run before those registered earlier, which may take long,
    such as Sentry's flush. ``logging`` was imported before them, and closes all handlers in its own function.
    """

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime
        self._begun = False

    def close(self) -> None:
        super().close()
        # While the main thread is alive, this is a reconfiguration of logging: batches go on.
        if self._begun or threading.main_thread().is_alive():
            return
        self._begun = True
        # Close the other handlers first, because they may take long; closing them again takes no time.
        try:
            logging.shutdown()
        finally:
            if not self._runtime.join(0):
                self._runtime.release_at_exit(EXIT_TIMEOUT)
