"""What the node process sends to the worker: events, answers, and counts of runs."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from celery.worker import state

from celery_lowkiq.rules.loggers import worker_logger as logger

#: Events that may wait for the worker; more are dropped: lanes never wait for it.
LIMIT = 10_000
#: Messages that are sent together.
PART = 100
#: Seconds between two reports of how many runs have begun.
COUNTS = 1.0

#: A kind, and its values; see ``NodeProxy``.
Message = tuple[Any, ...]


class Outbox:
    """Sends messages in the order in which threads of this process put them; none of them waits for that."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._counted: tuple[Counter[str], int] = Counter(), 0
        self._dropped = 0
        self._thread = threading.Thread(target=self._main, name="lowkiq-outbox", daemon=True)
        self._thread.start()

    def put(self, *message: Any) -> None:
        """Send a message."""
        self._waiting.put(message)

    def put_event(self, kind: str, fields: dict[str, Any]) -> None:
        """Send an event, unless too many wait."""
        if self._waiting.qsize() < LIMIT:
            self.put("event", kind, fields)
        elif not self._dropped:
            self._dropped = 1
            logger.warning("the worker is behind: task events of ordered queues are dropped")

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
                counts = self._counts()
                messages = [message for message in part if message is not None]
                if counts is not None:
                    messages.insert(0, ("counts", *counts))
                if messages:
                    self._send(messages)

    def _send(self, messages: list[Message]) -> None:
        """Send messages together; one by one, and without those that cannot be pickled, if that fails."""
        try:
            self._connection.send(messages)
        except OSError:
            raise
        except Exception:
            if len(messages) == 1:
                logger.exception("%r could not be sent to the worker", messages[0][0])
                return
            for message in messages:
                self._send([message])

    def _next_part(self) -> list[Message | None]:
        part: list[Message | None] = []
        with suppress(queue.Empty):
            part.append(self._waiting.get(timeout=COUNTS))
            while len(part) < PART and part[-1] is not None:
                part.append(self._waiting.get_nowait())
        return part

    def _counts(self) -> tuple[dict[str, int], int] | None:
        """The runs of each task that have begun since the last report, and how many go on; None: no news."""
        now, then = (Counter(state.total_count), len(state.active_requests)), self._counted
        self._counted = now
        return None if now == then else (dict(now[0] - then[0]), now[1])


class RelayedEvents:
    """``LaneConsumer.event_dispatcher``: the worker sends the events, under its own name."""

    def __init__(self, outbox: Outbox, enabled: bool, groups: frozenset[str]) -> None:
        self._outbox = outbox
        self.switch(enabled, groups)

    def switch(self, enabled: bool, groups: frozenset[str]) -> None:
        """Take over whether the worker sends events, and which groups (empty: all)."""
        self.enabled = enabled
        self.groups: frozenset[str] = groups

    def send(self, type: str, **fields: Any) -> None:  # noqa: A002 - as Celery's
        """Have the worker send an event."""
        group = type.partition("-")[0]
        if self.enabled and (not self.groups or group in self.groups):
            fields.setdefault("timestamp", time.time())
            self._outbox.put_event(type, fields)
