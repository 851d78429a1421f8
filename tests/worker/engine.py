"""A node's engine in this process, over a real Redis: no Celery, and a runner that remembers."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.integration.redis_params import SOCKET_TIMEOUTS
from celery_lowkiq.rules.basics import SystemClock
from celery_lowkiq.rules.claims import lag
from celery_lowkiq.rules.models import Call, QueueSpec
from celery_lowkiq.rules.shares import lease_splitter
from celery_lowkiq.store.connect import connect
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.worker.runtime import Runtime
from tests.bound import Queries
from tests.unit.fakes import FakeHost, FakeRunner
from tests.waiting import eventually

QUEUE = QueueSpec("q", shards=4, batch_size=3)


def open_store(path: str, callers: int = 8, **login: str) -> RedisStore:
    return RedisStore(connect({"path": path, **login, **SOCKET_TIMEOUTS}, pool_size=callers, pool_timeout=5))


class Engine:
    """Jobs go straight to the server; the engine reaches it by ``path``, which may lead through a front."""

    def __init__(
        self,
        server: EmbeddedServer,
        path: str | None = None,
        runner: Any = None,
        queues: Sequence[QueueSpec] = (QUEUE,),
        login: Mapping[str, str] = MappingProxyType({}),
        **options: Any,
    ) -> None:
        self.pushes = open_store(server.socket_path)
        self.runner, self.host = runner or FakeRunner(), FakeHost()
        self._numbers = itertools.count()
        self._pushed: list[str] = []
        settings = {
            "lanes": 2,
            "owner": "me",
            "poll_interval": 1.0,
            "lease_seconds": 1.0,
            "window": 50,
            "scheduler_factory": lag,
            **options,
        }
        self.runtime = Runtime(
            open_store(path or server.socket_path, **login),
            self.runner,
            self.host,
            list(queues),
            clock=SystemClock(),
            splitter=lease_splitter,
            **settings,
        )

    def __enter__(self) -> Engine:
        self.runtime.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.runtime.drain()
        assert self.runtime.join(30), "the engine does not end"
        assert not self.host.stops

    def push(self, count: int) -> None:
        ids = [str(next(self._numbers)) for _ in range(count)]
        self.pushes.push(QUEUE, [Call(job_id, b"x") for job_id in ids])
        self._pushed += ids

    def all_done(self, seconds: float = 60.0) -> None:
        """Wait until all that was pushed has been settled."""
        eventually(self._idle, seconds)

    def _idle(self) -> bool:
        stats = Queries(self.pushes.client).stats(QUEUE)
        return stats.length == stats.busy == 0 and stats.processed == len(self._pushed)

    def lost_or_doubled(self) -> dict[str, int]:
        """Ids that did not run exactly once, and how often they did."""
        runs = Counter(self.runner.ids)
        return {job_id: runs[job_id] for job_id in self._pushed if runs[job_id] != 1}
