"""Where the time of a job goes: stop watches around the functions where one group calls another.

A profiler slows down short Python functions most, and so blames the wrong side; a dozen watches for each job
cost a few microseconds. One lane, so that no lane waits for another's turn in the interpreter.
"""

from __future__ import annotations

import functools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import worker_shutdown

IDLE = "idle"
#: Where each group begins, as module:class.function. Time in a function counts for the innermost group.
BORDERS = {
    IDLE: ("threading:Condition.wait",),
    "ours: lane": ("celery_lowkiq.worker.lane:Lane._next", "celery_lowkiq.worker.lane:Lane._run"),
    "ours: store": (
        "celery_lowkiq.store.redis_store:RedisStore.exchange",
        "celery_lowkiq.store.redis_store:RedisStore.next_due",
    ),
    "client (redis-py)": ("celery_lowkiq.store.client:Client._send",),
    "Redis and network": (
        "redis.connection:AbstractConnection.send_packed_command",
        "redis._parsers.hiredis:_HiredisParser.read_from_socket",
    ),
    "ours: runner": (
        "celery_lowkiq.integration.runner:CeleryRunner.run",
        "celery_lowkiq.integration.runner:CeleryRunner.settled",
    ),
    "Celery: state": (
        "celery_lowkiq.integration.request:RunRequest.begins",
        "celery_lowkiq.integration.request:RunRequest.ends",
    ),
}
USER = "user"


class Watches:
    """Time by group, without what inner groups took; only of lanes."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: Counter[str] = Counter()
        self._clock = clock
        self._inner = threading.local()

    def around(self, group: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with its time counted for the group."""
        clock, seconds = self._clock, self.seconds

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            inner = self._stack()
            if inner is None:
                return function(*args, **kwargs)
            inner.append(0.0)
            began = clock()
            try:
                return function(*args, **kwargs)
            finally:
                took = clock() - began
                seconds[group] += took - inner.pop()
                if inner:
                    inner[-1] += took

        return watched

    def _stack(self) -> list[float] | None:
        """The inner groups' time, by depth; None in a thread that is no lane."""
        try:
            stack: list[float] | None = self._inner.stack
        except AttributeError:
            lane = threading.current_thread().name.startswith("lane-")
            stack = self._inner.stack = [] if lane else None
        return stack


def watch_lanes(app: Celery, path: str) -> None:
    """In a worker: watch every border, and write the seconds by group when it stops."""
    watches = Watches()
    for group, borders in BORDERS.items():
        for border in borders:
            _replace(border, lambda function, group=group: watches.around(group, function))
    app.tasks["blank"].run = watches.around(USER, app.tasks["blank"].run)
    worker_shutdown.connect(lambda **_: Path(path).write_text(json.dumps(watches.seconds)), weak=False)


def _replace(border: str, make: Callable[[Any], Any]) -> None:
    module, _, name = border.partition(":")
    *owners, last = name.split(".")
    owner = functools.reduce(getattr, owners, import_module(module))
    setattr(owner, last, make(getattr(owner, last)))


def text(seconds: Mapping[str, float], jobs: int, bare: float) -> str:
    """The groups of a job, most expensive first; ``bare``: what it takes without watches (us)."""
    costs = {group: took / jobs * 1e6 for group, took in seconds.items() if group != IDLE}
    total = sum(costs.values())
    lines = [f"{total:6.1f} us a job with watches ({bare:.1f} without)"]
    lines += [
        f"{costs[group]:6.1f} us {costs[group] / total:6.1%}  {group}"
        for group in sorted(costs, key=lambda group: -costs[group])
    ]
    return "\n".join(lines)
