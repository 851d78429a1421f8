"""``python -m benchmarks.paced QUEUE RATE``: calls of a queue at a steady rate, until it is ended."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Iterator

from celery_lowkiq.integration.app import context_of
from celery_lowkiq.rules.models import Call

from . import proj
from .bench import PAYLOAD

#: Jobs of a call.
CHUNK = 10
#: Calls that are sent at the same time, over a connection each.
CONNECTIONS = 4
#: Seconds until the jobs are due, so that none leaves meanwhile.
LATER = 1e6


def new_jobs(numbers: Iterator[int]) -> list[Call]:
    """Return the jobs of the next call, with ids of their own."""
    due = time.time() + LATER
    return [Call(f"new {number}", PAYLOAD, perform_in=due) for number in itertools.islice(numbers, CHUNK)]


def main() -> None:
    queue, rate = sys.argv[1], float(sys.argv[2])
    app = proj.make_app(**proj.SETTINGS, lowkiq_client_pool_size=CONNECTIONS)
    store, spec = context_of(app).store, app.tasks[queue].queue_spec
    moments = itertools.count()
    began_at = time.perf_counter()

    def call() -> None:
        """Make the next call at its moment; one that is late is made at once."""
        for moment in moments:
            time.sleep(max(0.0, began_at + moment / rate - time.perf_counter()))
            store.push(spec, new_jobs(itertools.count(moment * CHUNK)))

    for _ in range(CONNECTIONS - 1):
        threading.Thread(target=call, daemon=True).start()
    call()


if __name__ == "__main__":
    main()
