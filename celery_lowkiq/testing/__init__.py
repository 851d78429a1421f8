"""A pytest plugin: ordered tasks in tests, on a private server, with a clock that the test moves.

It is there in every pytest run where celery-lowkiq is installed; fixtures start nothing before a test
asks for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, cast

import pytest
from celery import Celery, current_app

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.integration.app.context import Home
from celery_lowkiq.integration.app.registry import ordered_tasks
from celery_lowkiq.integration.calls.validation import read_id
from celery_lowkiq.integration.operations.queue import ShownJob
from celery_lowkiq.rules.errors import ConfigurationError
from celery_lowkiq.store.redis_store import RedisStore
from celery_lowkiq.store.scripts.clocked import ClockedClient
from celery_lowkiq.store.scripts.connect import connect

from .draining import drain

__all__ = ["Clock", "Lowkiq"]

#: As many payloads of a job are compared.
PAYLOADS = 1000
#: More runs in one drain are taken for a task that calls itself without end.
MOST_RUNS = 10_000


class Clock:
    """The clock of the test's store. It goes on by itself, as clocks do, and can be moved."""

    def __init__(self, client: ClockedClient) -> None:
        self._client = client

    def now(self) -> float:
        """Unix time in s."""
        return self._client.now()

    def move(self, by: float | timedelta) -> None:
        """Move it forward, by s or a timedelta."""
        self._client.move(by.total_seconds() if isinstance(by, timedelta) else by)

    def move_to(self, when: float | datetime) -> None:
        """Move it to a Unix time in s, or to an aware datetime."""
        self.move((when.timestamp() if isinstance(when, datetime) else when) - self.now())


class EmbeddedHome(Home):
    """A home whose store is the test's, whatever the app's settings say."""

    def __init__(self, app: Celery, server: EmbeddedServer) -> None:
        super().__init__(app)
        self._server = server

    def open_store(self, connections: int) -> RedisStore:
        """A store with so many connections at most."""
        client = connect(
            {"path": self._server.socket_path},
            pool_size=connections,
            pool_timeout=self.settings.pool_timeout,
        )
        return RedisStore(client, sending=ClockedClient)


class Lowkiq:
    """What the fixture ``lowkiq`` gives: an empty store for the calls of an app, and ways to run them."""

    def __init__(self, app: Celery, home: Home) -> None:
        self.app = app
        self.clock = Clock(cast(ClockedClient, home.store.client))
        self._home = home

    # -- running

    def drain(self, *tasks: Any, most: int = MOST_RUNS) -> int:
        """Run all that is due, of these tasks or of all ordered ones, in this thread and as a worker would,
        until nothing is. Returns the number of runs. An error of a task is a failed job, as in a worker.

        Raises AssertionError when a worker serves one of the queues, and after ``most`` runs.
        """
        return drain(self.app, self._home, self._named(tasks), most)

    @contextlib.contextmanager
    def worker(self, concurrency: int = 1, **options: Any) -> Iterator[Any]:
        """A real worker in threads of this process, on the app's broker; ``options`` are those of
        ``celery.contrib.testing.worker.start_worker``.
        """
        from celery.contrib.testing.worker import start_worker

        options = {"pool": "threads", "perform_ping_check": False, **options}
        with start_worker(self.app, concurrency=concurrency, **options) as worker:
            yield worker

    # -- what was enqueued

    def enqueued(self, task: Any) -> dict[str, list[Any]]:
        """The payloads of each waiting job, due or not, smallest score first, by id."""
        return {job.id: _values(job) for job in self._waiting(task)}

    def due_in(self, task: Any, job_id: Any) -> float:
        """Seconds until a waiting job is due, by the test's clock. Raises AssertionError when none waits."""
        job = self._one(task).ordered_queue.job(job_id).waiting
        assert job is not None, f"no job {job_id!r} of {task.name} waits: {self.enqueued(task)}"
        return float(job.perform_in) - self.clock.now()

    def assert_enqueued(self, task: Any, job_id: Any, *payloads: Any) -> None:
        """A job waits: with exactly these payloads, in their order, when any is given."""
        found = self.enqueued(task)
        wanted = read_id(job_id)
        assert wanted in found, f"no job {wanted!r} of {task.name} waits: {found}"
        assert not payloads or found[wanted] == list(payloads), (
            f"job {wanted!r} of {task.name} has the payloads {found[wanted]}, not {list(payloads)}"
        )

    def assert_nothing_enqueued(self, *tasks: Any) -> None:
        """No job waits, of these tasks or of any ordered one."""
        found = {task.name: self.enqueued(task) for task in self._named(tasks).values()}
        waiting = {name: jobs for name, jobs in found.items() if jobs}
        assert not waiting, f"jobs wait: {waiting}"

    def _waiting(self, task: Any) -> Iterator[ShownJob]:
        queue, after = self._one(task).ordered_queue, None
        while True:
            page = queue.jobs(limit=PAYLOADS, payload_limit=PAYLOADS, after=after)
            yield from page.items
            after = page.next
            if after is None:
                return

    def _one(self, task: Any) -> Any:
        (found,) = self._named((task,)).values()
        return found

    def _named(self, tasks: tuple[Any, ...]) -> dict[str, Any]:
        """The tasks by queue; without any, all of the app. Raises ConfigurationError for another app's."""
        ordered = ordered_tasks(self.app)
        for task in tasks:
            if not any(known.name == task.name for known in ordered.values()):
                raise ConfigurationError(
                    f"{task.name} is no ordered task of {self.app!r}: write a fixture lowkiq_app that "
                    "returns the app of your tasks"
                )
        names = {task.name for task in tasks}
        return {queue: task for queue, task in ordered.items() if not tasks or task.name in names}


def _values(job: ShownJob) -> list[Any]:
    return [payload.value for payload in job.payloads]


@pytest.fixture(scope="session")
def lowkiq_server() -> Iterator[EmbeddedServer]:
    """The private server of the test run; ``lowkiq_server.url`` may be broker and result backend, too."""
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def lowkiq_app() -> Celery:
    """The app whose ordered tasks are tested: the current one. Overwrite it to name another."""
    proxy: Any = current_app
    return cast(Celery, proxy._get_current_object())


@pytest.fixture
def lowkiq(lowkiq_app: Celery, lowkiq_server: EmbeddedServer) -> Iterator[Lowkiq]:
    """An empty store, which all calls of the app's ordered tasks go to while the test runs.

    Raises ConfigurationError with ``task_always_eager``: then calls run at once, and nothing is stored.
    """
    if lowkiq_app.conf.task_always_eager:
        raise ConfigurationError("task_always_eager=True stores nothing: set it to False in these tests")
    home = EmbeddedHome(lowkiq_app, lowkiq_server)
    cast(ClockedClient, home.store.client).empty()
    former = lowkiq_app.__dict__.get("_lowkiq_home")
    lowkiq_app.__dict__["_lowkiq_home"] = home
    try:
        yield Lowkiq(lowkiq_app, home)
    finally:
        lowkiq_app.__dict__["_lowkiq_home"] = former
        home.store.close()
