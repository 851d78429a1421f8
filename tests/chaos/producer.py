"""A caller that keeps pushing, as an application would, and writes down what was accepted."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Sequence
from typing import Any

from celery_lowkiq.rules.errors import StoreUnavailable
from tests.chaos.journal import Journal

#: Most ids of one call, and seconds between two calls.
CALL = 10
PAUSE = 0.05


class Producer:
    """Pushes payloads whose scores grow, in a thread of its own."""

    def __init__(
        self,
        task: Any,
        journal: Journal,
        *,
        ids: Sequence[str],
        seed: int,
        gives_up: float = 0.0,
        call: int = CALL,
        pause: float = PAUSE,
    ) -> None:
        """``gives_up``: part of the calls that are not made again after an error."""
        self._task = task
        self._gives_up = gives_up
        self._journal = journal
        self._ids = ids
        self._call = min(call, len(ids))
        self._pause = pause
        self._chance = random.Random(seed)
        self._numbers = itertools.count(1)
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._main, name="chaos-producer", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End when the current call is accepted. Raises what ended it before."""
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _main(self) -> None:
        try:
            while not self._stop.wait(self._pause):
                chosen = self._chance.sample(self._ids, self._call)
                self.push({job_id: next(self._numbers) for job_id in chosen})
        except Exception as error:  # noqa: BLE001 - for stop()
            self._error = error

    def push(self, payloads: dict[str, int]) -> None:
        """One call, repeated until it is accepted or given up; the time of the one that was, counts."""
        jobs = [{"id": job_id, "payload": n, "score": n} for job_id, n in payloads.items()]
        while True:
            called_at = time.monotonic()
            try:
                self._task.perform_async(jobs)
            except StoreUnavailable:
                self._journal.note("unconfirmed", payloads=payloads, called_at=called_at)
                if self._chance.random() < self._gives_up:
                    return
                threading.Event().wait(PAUSE)
            else:
                self._journal.note("push", payloads=payloads, called_at=called_at)
                return
