"""The command line on an empty Redis: within this process, and as a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import redis
from celery.bin.celery import celery
from click.testing import CliRunner, Result

from celery_lowkiq.embedded import EmbeddedServer
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.inspector import Inspector
from celery_lowkiq.rules.models import Disposition, QueueSpec, Settlement
from tests.bound import Actions
from tests.cli import proj
from tests.foreign import drop_shared
from tests.processes import ROOT, Process

APP = "tests.cli.proj"


@pytest.fixture
def server(redis_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> EmbeddedServer:
    """An empty Redis, which the app uses."""
    with redis.Redis(unix_socket_path=redis_server.socket_path) as client:
        client.flushall()
    monkeypatch.setenv("CELERY_BROKER_URL", redis_server.url)
    drop_shared(proj.app, proj.__name__)
    # A store remembers the numbers of shards of another test's queues.
    if context := proj.app.__dict__.pop("_lowkiq_context", None):
        context.store.close()
    return redis_server


Run = Callable[..., Result]


@pytest.fixture
def run(server: EmbeddedServer) -> Run:
    """``run("jobs", "sync_order")`` within this process; ``.output`` has both streams."""

    def run(*words: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(celery, ["-A", APP, "lowkiq", *words], input=stdin, prog_name="celery")

    return run


def start(*words: str, app: str = APP, **more: Any) -> subprocess.Popen[bytes]:
    """The same as a process."""
    command = [sys.executable, "-m", "celery", "-A", app, "lowkiq", *words]
    return Process(command, cwd=ROOT, **{"stdin": subprocess.DEVNULL, **more})


def done(*words: str, stdin: bytes = b"", **more: Any) -> subprocess.CompletedProcess[str]:
    """Such a process when it has ended."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = start(*words, **pipes, **more)
    out, err = process.communicate(stdin, timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, out.decode(), err.decode())


@pytest.fixture
def queue(server: EmbeddedServer):
    return proj.sync_order.ordered_queue


@pytest.fixture
def inspector(server: EmbeddedServer) -> Inspector:
    return Inspector(proj.app)


@pytest.fixture
def actions(server: EmbeddedServer) -> Actions:
    return Actions(context_of(proj.app).store.client)


def end_all(
    task: Any,
    disposition: Disposition,
    error: bytes = b"ValueError: boom",
    retry_count: int = 0,
    spec: QueueSpec | None = None,
) -> int:
    """Claim what is due and end it so, as a worker would; how many jobs it were."""
    store, spec, count = context_of(proj.app).store, spec or task.queue_spec, 0
    for shard in spec.shard_refs():
        lease = store.acquire(spec, shard, "tester@here", store.observe([shard])[0], 0)
        request = 0
        while (claim := store.claim(spec, lease, request := request + 1)).jobs:
            settlements = [
                Settlement(job.id, claim.number, disposition, retry_count, 9e8, error) for job in claim.jobs
            ]
            count += len(store.settle(spec, lease, settlements).accepted)
        store.release(lease)
    return count


def holds(known: Any, found: Any) -> bool:
    """Whether all that programs knew to be there still is: fields may be added, none may go or change."""
    if isinstance(known, dict):
        return isinstance(found, dict) and all(
            name in found and holds(value, found[name]) for name, value in known.items()
        )
    if isinstance(known, list):
        return len(known) == len(found) and all(map(holds, known, found))
    return bool(known == found)
