"""Sidekiq 6 with hiredis, where both are installed (``apt install ruby-sidekiq ruby-hiredis``)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path

from ..bench import Bench
from ..cost import Cost, Measure
from ..process import Process

HERE = Path(__file__).parent
VERSIONS = 'require "sidekiq"; require "redis/connection/hiredis"; print RUBY_VERSION, " ", Sidekiq::VERSION'


@cache
def versions() -> dict[str, str]:
    """Versions of Ruby and Sidekiq; empty where they, or hiredis, are not installed."""
    if not (shutil.which("ruby") and shutil.which("sidekiq")):
        return {}
    found = subprocess.run(["ruby", "-e", VERSIONS], capture_output=True, text=True, check=False)
    return dict(zip(("ruby", "sidekiq"), found.stdout.split(), strict=False)) if found.returncode == 0 else {}


def client(bench: Bench) -> AbstractContextManager[SidekiqClient | None]:
    """A process that makes calls; None where Sidekiq is not installed."""
    return SidekiqClient(bench) if versions() else nullcontext()


def if_installed(measure: Callable[[], Cost]) -> Measure:
    """The measure; None where Sidekiq is not installed."""
    return measure if versions() else None


def _env(bench: Bench, level: str = "WARN") -> dict[str, str]:
    return {"BENCH_REDIS": bench.url.replace("redis+socket://", "unix://"), "BENCH_LEVEL": level}


class SidekiqWorker(Process):
    """A ``sidekiq`` with five threads."""

    def __init__(self, bench: Bench, level: str = "WARN") -> None:
        command = ["sidekiq", "-e", "production", "-c", "5", "-q", "default", "-r", str(HERE / "jobs.rb")]
        super().__init__(bench, "sidekiq", command, _env(bench, level))


class SidekiqClient:
    """A process that makes calls, until the end of the ``with`` block."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def __enter__(self) -> SidekiqClient:
        self._process = subprocess.Popen(
            ["ruby", str(HERE / "calls.rb")],
            env={**os.environ, **_env(self._bench)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def call(self, kind: str, count: int = 1, first: int = 0) -> tuple[float, float, float]:
        """Make ``count`` calls of a kind (``bulk``, ``single`` or ``stamped``), with ids from ``first``.

        Returns in s when they began (monotonic), their wall time, and their processor time.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{kind} {first} {count}\n")
        self._process.stdin.flush()
        began, wall, cpu = map(float, self._process.stdout.readline().split())
        return began, wall, cpu

    def stamped(self, number: int) -> float:
        """Make a call of a job that notes when it started. Returns when the call began (monotonic)."""
        return self.call("stamped", first=number)[0]

    def cost(self, kind: str, count: int) -> Cost:
        """The cost of a call."""
        redis = self._bench.redis_cpu()
        _, wall, client = self.call(kind, count)
        took = (wall, client, self._bench.redis_cpu() - redis)
        wall, client, redis = (seconds / count * 1e6 for seconds in took)
        return Cost(wall, client=client, redis=redis)


def worked(bench: Bench, count: int, level: str = "WARN") -> Cost:
    """A queue is filled, then a worker goes through it."""
    bench.empty()
    with SidekiqClient(bench) as client:
        client.call("bulk", count)
    with SidekiqWorker(bench, level) as worker:
        return worker.cost(lambda: count - int(bench.direct.llen("queue:default")), count)
