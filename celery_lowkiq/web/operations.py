"""Operations: changes that run in the background, shown and cancelled by their ids."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from celery_lowkiq.integration.actions import Action, Target
from celery_lowkiq.integration.audit import Audit, Change
from celery_lowkiq.rules.errors import LowkiqError, ShardsUnreachable
from celery_lowkiq.store.progress import Progress, Stop

#: Maximum number of running changes, and of changes that are kept.
MOST_RUNNING = 8
REMEMBERED = 100

Run = Callable[[Progress], int]


class TooBusy(LowkiqError):
    """Too many operations are running."""


@dataclass
class Operation:
    """One change. ``state``: running, done, cancelled or failed; ``total``: approximate number of jobs."""

    change: Change
    action: Action
    target: Target
    total: int
    audit: Audit
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    began_at: float = field(default_factory=time.time)
    ended_at: float | None = None
    count: int = 0
    state: str = "running"
    error: str = ""
    _cancel: threading.Event = field(default_factory=threading.Event, repr=False)
    _ended: threading.Event = field(default_factory=threading.Event, repr=False)

    def cancel(self) -> None:
        """Stop after the current step, unless it is the last."""
        self._cancel.set()

    def wait(self, timeout: float) -> bool:
        """Block until the change ends, at most ``timeout`` s. Return whether it has ended."""
        return self._ended.wait(timeout)

    @property
    def said(self) -> str:
        """A message with the number of changed jobs so far."""
        return self.action.said(self.change.queue, self.target, self.count)

    @property
    def running(self) -> bool:
        return self.state == "running"

    @property
    def cancelling(self) -> bool:
        return self.running and self._cancel.is_set()

    def run(self, run: Run) -> None:
        """Run the change. An error is stored in ``state`` and ``error``."""
        self.audit.write(self.change, "begins")
        try:
            self.count = run(self._progress)
            self._end("done")
        except Stop:
            self._end("cancelled")
        except LowkiqError as error:
            self.count = error.count if isinstance(error, ShardsUnreachable) else self.count
            self.error = str(error)
            self._end("failed")
        except Exception as error:
            self.error = f"{type(error).__name__}: see the log of the web process"
            self._end("failed")
            raise

    def _progress(self, count: int) -> None:
        self.count = count
        if self._cancel.is_set():
            raise Stop

    def _end(self, state: str) -> None:
        self.state, self.ended_at = state, time.time()
        self.audit.write(self.change, state, self.count, self.error)
        self._ended.set()


class Operations:
    """The operations of this process, and the errors of forms that it has refused."""

    def __init__(self) -> None:
        self._refusals: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Operation] = OrderedDict()

    def start(self, operation: Operation, run: Run) -> Operation:
        """Run an operation in a thread. Raises TooBusy."""
        with self._lock:
            if sum(other.running for other in self._known.values()) >= MOST_RUNNING:
                raise TooBusy(
                    f"{MOST_RUNNING} operations are running. Wait for the end of one, or cancel one"
                )
            self._known[operation.id] = operation
            ended = [other.id for other in self._known.values() if not other.running]
            for other_id in ended[: max(0, len(self._known) - REMEMBERED)]:
                del self._known[other_id]
        threading.Thread(target=operation.run, args=(run,), name="lowkiq-operation", daemon=True).start()
        return operation

    def get(self, operation_id: str) -> Operation | None:
        """Return the operation with an id, while it is kept."""
        return self._known.get(operation_id)

    def refuse(self, error: str) -> str:
        """Keep an error until the page of its form shows it; return its name."""
        with self._lock:
            name = secrets.token_urlsafe(12)
            self._refusals[name] = error
            while len(self._refusals) > REMEMBERED:
                self._refusals.popitem(last=False)
        return name

    def refusal(self, name: str) -> str:
        """Return a kept error; "" for another name."""
        return self._refusals.get(name, "")

    def all(self) -> list[Operation]:
        """Return the kept operations, newest first."""
        with self._lock:
            return list(reversed(self._known.values()))
