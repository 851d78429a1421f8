"""The context of a node: what its threads share."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from celery_lowkiq.rules.basics import Clock
from celery_lowkiq.rules.basics import worker_logger as logger
from celery_lowkiq.rules.policies import TokenRequest, Tokens
from celery_lowkiq.worker.exclusion import Exclusion
from celery_lowkiq.worker.outage import OutageTracker
from celery_lowkiq.worker.owned_shard import OwnedShard
from celery_lowkiq.worker.ports import EXIT_CRASHED, Host, Meter, Runner, Store

# Rate limits of a node's queues, and when a queue without tokens may be polled again.


class RateLimiter:
    """Shared by the lanes of a node; the tokens are in Redis. Unlimited queues cost no request."""

    def __init__(self, clock: Clock, owner: str, poll_interval: float, rates: Mapping[str, float]) -> None:
        """``rates``: runs a second, by limited queue."""
        self._clock = clock
        self._owner = owner
        self._poll_interval = poll_interval
        self._rates = dict(rates)
        self._numbers = itertools.count(1)
        self._exhausted_until: dict[str, float] = {}

    def set_rate(self, queue: str, rate: float | None) -> None:
        """Limit a queue to ``rate`` runs a second; None removes the limit."""
        if rate is None:
            self._rates.pop(queue, None)
        else:
            self._rates[queue] = rate
        self._exhausted_until.pop(queue, None)

    def request(self, queue: str, lane: str, *, wanted: int = 0, surplus: int = 0) -> TokenRequest | None:
        """Return the request for the store; None for a queue that is not limited."""
        rate = self._rates.get(queue)
        if rate is None:
            return None
        return TokenRequest(queue, f"{self._owner} {lane}", next(self._numbers), rate, wanted, surplus)

    def record(self, queue: str, tokens: Tokens) -> None:
        """Record an answer of the store."""
        if tokens.wait > 0:
            # One poll at most, because other nodes may return tokens.
            self._exhausted_until[queue] = self._clock.monotonic() + min(tokens.wait, self._poll_interval)
        else:
            self._exhausted_until.pop(queue, None)

    def park(self, queue: str, seconds: float) -> None:
        """Leave a queue alone for ``seconds``: the master that has its tokens is unreachable."""
        self._exhausted_until[queue] = self._clock.monotonic() + seconds

    def exhausted_until(self, now: float) -> dict[str, float]:
        """Return the queues without a token, and the monotonic time at which to ask again."""
        if not self._exhausted_until:
            return {}
        return {queue: until for queue, until in list(self._exhausted_until.items()) if until > now}


# Parts that a whole engine shares: dependencies, settings, and messages of lanes to ownership.


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
    #: True if queues move to the number of shards that all nodes declare.
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
