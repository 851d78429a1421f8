"""A rolling deploy: nodes at half of their load are restarted one after the other, while calls go on."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator

from ..bench import Bench
from ..proj import LONG_NAP
from ..row import Row, Side, Target
from ..statistics import percentile
from ..worker import Worker

NODES, LANES = 4, 2
#: Calls a second that keep half of all lanes busy.
RATE = NODES * LANES / LONG_NAP / 2
#: Seconds of calls before the first restart, and after each.
PAUSE = 3.0


def deploys(bench: Bench) -> Iterator[Row]:
    ordered, plain = bench.app.tasks["stamped-naps"], bench.app.tasks["plain-stamped-naps"]
    ours, twice = _restart_all(bench, "stamped-naps", ordered.delay)
    celerys, celerys_twice = _restart_all(bench, "celery", plain.delay)
    yield Row(
        "deploys",
        f"{NODES} nodes at half load, restarted in turn, call to start, p99 (p50 {percentile(ours, 50):.0f})",
        "ms",
        percentile(ours, 99),
        (Side("Celery", percentile(celerys, 99)),),
        (Target(250.0),),
        yardstick="machine",
        note=f"runs beyond one a call: {twice}, Celery's {celerys_twice}",
    )


class Caller(threading.Thread):
    """Calls at random intervals until it is stopped."""

    def __init__(self, call: Callable[[str], object]) -> None:
        super().__init__()
        self._call = call
        self._called: dict[str, float] = {}
        self._stopped = threading.Event()

    def run(self) -> None:
        """Make the calls."""
        chance, at = random.Random(1), time.monotonic()
        while not self._stopped.is_set():
            at += chance.expovariate(RATE)
            time.sleep(max(0.0, at - time.monotonic()))
            name = f"n{len(self._called)}"
            self._called[name] = time.monotonic()
            self._call(name)

    def stop(self) -> dict[str, float]:
        """End the calls. Returns when each was made (monotonic, s)."""
        self._stopped.set()
        self.join()
        return self._called


def _restart_all(bench: Bench, queue: str, call: Callable[[str], object]) -> tuple[list[float], int]:
    """Milliseconds from each call to the start of its function, and the number of runs that came twice."""
    bench.empty()
    caller = Caller(call)
    workers = [Worker(bench, queue, lanes=LANES, name=f"w{n}") for n in range(NODES)]
    everyone = list(workers)
    for worker in workers:
        worker.__enter__()
    if queue != "celery":
        spec = bench.spec(queue)
        fair = spec.shards // NODES
        workers[0].until(lambda: all(bench.owned(spec).count(owner) == fair for owner in bench.owned(spec)))
    caller.start()
    try:
        for place, old in enumerate(workers):
            time.sleep(PAUSE)
            old.__exit__()
            workers[place] = Worker(bench, queue, lanes=LANES, name=f"v{place}").__enter__()
            everyone.append(workers[place])
            workers[place].until(lambda new=workers[place]: bool(new.started()))  # type: ignore[misc]
        time.sleep(PAUSE)
        called = caller.stop()
        workers[0].until(lambda: {name for worker in everyone for name in worker.started()} >= called.keys())
    finally:
        caller.stop()
        for worker in workers:
            worker.__exit__()
    runs = [run for worker in everyone for run in worker.started().items()]
    return [(at - called[name]) * 1000 for name, (at, _) in runs], len(runs) - len(called)
