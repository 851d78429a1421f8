"""What all parts of a node's engine share: dependencies, settings, and messages of lanes to ownership."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from celery_lowkiq.rules.clock import Clock
from celery_lowkiq.rules.loggers import worker_logger as logger

from .exclusion import Exclusion
from .outage import OutageTracker
from .owned_shard import OwnedShard
from .ports import EXIT_CRASHED, Host, Meter, Runner, Store
from .rate_limiter import RateLimiter


class OwnershipMailbox:
    """Shards that are gone, and an event that wakes the ownership thread. Safe to use in any thread."""

    def __init__(self) -> None:
        self._gone: deque[OwnedShard] = deque()
        self._wake = threading.Event()

    def report_gone(self, owned: OwnedShard) -> None:
        """Report that another node may own the shard, which was lost or released; read in the next turn."""
        self._gone.append(owned)

    def take_gone(self) -> list[OwnedShard]:
        """Remove and return the shards that are gone."""
        return [self._gone.popleft() for _ in range(len(self._gone))]

    def wake(self) -> None:
        """Start the next turn now: a lane ended, a shard is free, or the node is to change what it serves."""
        self._wake.set()

    def begin_turn(self) -> bool:
        """Forget earlier wake-ups, and return whether there was one: the turn that starts now answers it."""
        woken = self._wake.is_set()
        self._wake.clear()
        return woken

    def wait(self, seconds: float) -> None:
        """Wait for the next turn, at most ``seconds``."""
        self._wake.wait(seconds)


@dataclass(frozen=True)
class WorkerContext:
    """Passed to lanes, ownership and waker."""

    store: Store
    runner: Runner
    host: Host
    clock: Clock
    outage: OutageTracker
    exclusion: Exclusion
    rate_limiter: RateLimiter
    meter: Meter
    mailbox: OwnershipMailbox
    #: Locked by the lane that runs a suspect: one at a time in a node.
    suspect_lock: threading.Lock
    owner: str
    poll_interval: float
    lease_seconds: float
    #: Maximum number of batches in one claim.
    window: int
    #: Whether queues move to the number of shards that all nodes declare.
    auto_reshard: bool

    def thread(self, name: str, main: Callable[[], None]) -> threading.Thread:
        """Return a daemon thread. An exception that ends it is a bug of ours, and stops the worker."""

        def run() -> None:
            try:
                main()
            except BaseException as error:  # noqa: BLE001 - such as the SystemExit of a handler of the log
                log = partial(logger.critical, "thread %s ends: the worker stops", name, exc_info=True)
                self.stop_worker(name, error, EXIT_CRASHED, log)

        return threading.Thread(target=run, name=name, daemon=True)

    def stop_worker(self, thread: str, error: BaseException, exitcode: int, log: Callable[[], None]) -> None:
        """Stop the worker for an error that ends a thread, after a line and the user's last words.

        It stops whatever these raise: a worker without one of its threads would wait for ever.
        """
        with suppress(BaseException):
            log()
        with suppress(BaseException):
            self.host.last_words(error)
        self.host.stop(exitcode, f"{thread}: {_text(error)}")


def _text(error: BaseException) -> str:
    try:
        return repr(error)
    except BaseException:  # noqa: BLE001 - the class is the user's
        return type(error).__name__
