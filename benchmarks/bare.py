"""The limit: the same data moved by bare Redis commands, in loops without any decision.

A queue that keeps each id in order and loses nothing in a crash stores a job in an index by due time and with
its payload, moves it to those in processing, and deletes it there. Here nothing checks, retries or counts.

``python -m benchmarks.bare <redis url>`` pops single jobs, as a worker without a task.
"""

from __future__ import annotations

import itertools
import json
import socket
import sys
import time
from collections.abc import Callable
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

import hiredis

from .bench import Bench
from .cost import Cost, called
from .process import Process
from .proj import stamp

NAME = "limit"
#: Jobs of one round trip, as a worker takes by default; and of one bulk push.
WINDOW = 50
BULK = 1000


class BareRedis:
    """A connection that packs commands and parses replies in C, and does nothing else."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.hostname:
            self._socket = socket.create_connection((parts.hostname, parts.port or 6379))
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.connect(parts.path)
        self._reader = hiredis.Reader()
        self._ids = itertools.count()

    def ask(self, *commands: tuple[Any, ...]) -> list[Any]:
        """The replies to some commands, in one round trip."""
        self._socket.sendall(b"".join(map(hiredis.pack_command, commands)))
        replies: list[Any] = []
        while len(replies) < len(commands):
            reply = self._reader.gets()
            if reply is False:
                self._reader.feed(self._socket.recv(65536))
            else:
                replies.append(reply)
        return replies

    def push(self, count: int) -> None:
        """Jobs that wait, with new ids."""
        now, due, jobs = time.time(), [], []
        for n in islice(self._ids, count):
            due += [now, n]
            jobs += [n, json.dumps({"v": n})]
        self.ask(("HSET", "jobs", *jobs), ("ZADD", "due", *due))

    def take(self) -> list[tuple[bytes, bytes]]:
        """Ids with their payloads, which are then in processing."""
        ((popped),) = self.ask(("ZPOPMIN", "due", WINDOW))
        ids = popped[::2]
        if not ids:
            return []
        (payloads,) = self.ask(("HMGET", "jobs", *ids))
        taken = list(zip(ids, payloads, strict=True))
        self.ask(("HDEL", "jobs", *ids), ("HSET", "processing", *(part for pair in taken for part in pair)))
        return taken


def pushed(bench: Bench, redis: BareRedis, count: int, at_once: int = 1) -> Cost:
    """The cost of a job that is pushed."""
    return called(bench, lambda: [redis.push(at_once) for _ in range(count // at_once)], count)


def worked(bench: Bench, count: int, function: Callable[[dict[str, Any]], object], batch: int = 1) -> Cost:
    """The cost of a job that is taken, run, and forgotten."""
    bench.empty()
    redis = BareRedis(bench.url)
    for _ in range(count // BULK):
        redis.push(BULK)

    def work() -> None:
        while taken := redis.take():
            jobs = [(job.decode(), [json.loads(payload)]) for job, payload in taken]
            for start in range(0, len(jobs), batch):
                function(dict(jobs[start : start + batch]))
            redis.ask(("HDEL", "processing", *(job for job, _ in taken)))

    cost = called(bench, work, count)
    return Cost(cost.wall, worker=cost.client, redis=cost.redis)


def popper(bench: Bench) -> Process:
    """A process that waits for single jobs."""
    return Process(bench, NAME, [sys.executable, "-m", "benchmarks.bare", bench.url], {})


def main() -> None:
    redis = BareRedis(sys.argv[1])
    while True:
        ((_, value),) = redis.ask(("BRPOP", NAME, 0))
        stamp(value.decode())


if __name__ == "__main__":
    main()
