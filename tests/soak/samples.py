"""Samples of processes and of Redis, as JSON lines; all times are s from the start of the run."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from redis import Redis

from tests.chaos.nodes import Cluster

#: What is measured of a process, and of Redis.
OF_PROCESS = ("rss", "descriptors", "threads")
OF_REDIS = ("memory", "keys", "lasting_keys")
Sample = Mapping[str, Any]


class SampleFile:
    """Appends samples to a file, and marks of what was done."""

    def __init__(self, path: Path) -> None:
        self._began_at = time.monotonic()
        self._file = path.open("w", buffering=1)
        self._lock = threading.Lock()

    def begin(self, **options: Any) -> None:
        """Write the options, and count time from now."""
        self._began_at = time.monotonic()
        self.note("options", **options)

    def note(self, what: str, **values: Any) -> None:
        """One line."""
        line = {"what": what, "at": round(time.monotonic() - self._began_at, 3), **values}
        with self._lock:
            self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """No more lines."""
        self._file.close()


def read(path: Path) -> list[Sample]:
    """All samples of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def resident_of(samples: Sequence[Sample]) -> str:
    """Name of the node that lives through the run: the one after those that are deployed."""
    return f"node{samples[0]['nodes']}"


class Sampler:
    """Takes samples of nodes, producer and Redis until it is stopped, in a thread of its own."""

    def __init__(
        self,
        file: SampleFile,
        cluster: Cluster,
        numbers: Iterable[int],
        producer: int,
        redis: Redis,
        every: float,
    ) -> None:
        self._file = file
        self._cluster = cluster
        self._numbers = tuple(numbers)
        self._producer = producer
        self._redis = redis
        self._every = every
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._main, name="soak-sampler", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Take no more samples."""
        self._stopped.set()
        self._thread.join()

    def _main(self) -> None:
        while not self._stopped.wait(self._every):
            for sample in self._all():
                self._file.note(**sample)

    def _all(self) -> Iterator[dict[str, Any]]:
        pids: list[tuple[str, int, Callable[[], bool]]] = [("producer", self._producer, lambda: False)]
        for number in self._numbers:
            if node := self._cluster.get(number):
                pids.append((f"node{number}", node.pid, node.ended.is_set))
        for name, pid, ended in pids:
            values = _of_process(pid)
            if values and not ended():
                yield {"what": "process", "name": name, "pid": pid, **values}
        memory: Any = self._redis.info("memory")
        clients: Any = self._redis.info("clients")
        space: Any = self._redis.info("keyspace")
        keys, expiring = space["db0"]["keys"], space["db0"]["expires"]
        yield {
            "what": "redis",
            "memory": memory["used_memory"],
            "keys": keys,
            "lasting_keys": keys - expiring,
            "clients": clients["connected_clients"],
        }


def _of_process(pid: int) -> dict[str, float]:
    """Measures of a process; empty when it has just ended."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            return {
                "age": round(time.time() - process.create_time(), 3),
                "rss": process.memory_info().rss,
                "descriptors": process.num_fds(),
                "threads": process.num_threads(),
            }
    except psutil.Error:
        return {}
