"""The app that worker tests run: tasks that write what they do into a ledger file."""

from __future__ import annotations

import asyncio
import atexit
import builtins
import ctypes
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery import Celery, signals
from celery.exceptions import Ignore, Reject

from celery_lowkiq import ordered_task
from celery_lowkiq.integration.app import context_of
from celery_lowkiq.integration.bootstep import remote_control
from celery_lowkiq.integration.bootstep.node.options import NodeWorker
from tests.foreign import drop_shared

#: Where tasks write. A task that runs in the tests' own process writes nothing.
HERE = Path(os.environ["PROJ_DIRECTORY"]) if "PROJ_DIRECTORY" in os.environ else None
SETTINGS = json.loads(os.environ.get("PROJ_SETTINGS", "{}"))

# A command is no long one because the machine is busy.
remote_control.REPLY = 2.0


#: Ways for a payload to end its process; the last as the kernel does when memory runs out.
DEATHS = {
    "exit": lambda: os._exit(9),
    "segfault": lambda: ctypes.string_at(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


def note(event: str, **fields: Any) -> None:
    """Append one whole line, with a clock that all processes of the machine share."""
    if HERE is None:
        return
    line = json.dumps({"event": event, "at": time.monotonic(), "pid": os.getpid(), **fields})
    with (HERE / "ledger").open("a") as ledger:
        ledger.write(line + "\n")


def wait_for_gate(name: str) -> None:
    """Until the test makes the file."""
    while not (HERE / name).exists():
        time.sleep(0.005)


def forked(come_back: Callable[[], Any]) -> None:
    """Fork; in the new process do what brings it back into the run, and wait for its end in the other."""
    child = os.fork()
    if child == 0:
        note("child")
        come_back()
        return
    deadline = time.monotonic() + 20
    ended = 0
    while not ended and time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)
    note("reaped", child=child, status=os.waitstatus_to_exitcode(status) if ended else None)


def calls(app: Celery, how: str) -> None:
    app.tasks["record"].delay(how)


def pauses(begun: Any) -> None:
    begun.set()
    while True:
        signal.pause()


def in_a_process(app: Celery) -> None:
    context = multiprocessing.get_context("fork")
    process = context.Process(target=calls, args=(app, "from a process"))
    process.start()
    process.join()
    begun = context.Event()
    ended = context.Process(target=pauses, args=(begun,))
    ended.start()
    begun.wait(20)
    ended.terminate()
    ended.join(20)
    with context.Pool(1) as pool:
        squares = pool.map(int.bit_length, [7])
    with subprocess.Popen([sys.executable, "-c", "print(1)"], stdout=subprocess.PIPE) as python:
        printed = python.communicate()[0].decode()
    note("processes", status=process.exitcode, ended=ended.exitcode, squares=squares, printed=printed)


def for_ever(app: Celery) -> None:
    """The other process leaves its run for good, and lives until the test lets it go."""
    if os.fork() == 0:
        note("child")
        wait_for_gate("gate")
        os._exit(0)


def fails() -> None:
    raise ValueError("in a fork")


def halts() -> None:
    raise Halt("in a fork")


#: What the task "forks" does with its payload.
FORKS = {
    "return": lambda app: forked(int),
    "raise": lambda app: forked(fails),
    "halt": lambda app: forked(halts),
    "exit": lambda app: forked(sys.exit),
    "processes": in_a_process,
    "for ever": for_ever,
}


class Halt(BaseException):
    """What a library raises past every ``except Exception``."""


async def awaits_a_cancelled_task() -> None:
    task = asyncio.create_task(asyncio.sleep(60))
    await asyncio.sleep(0)
    task.cancel()
    await task


def add_more(app: Celery) -> None:
    """Tasks of single tests: those that count shards, or name queues, do without them."""
    ordered = {"app": app, "shared": False}

    def charge(payloads_by_id: dict[str, list[Any]]) -> None:
        note("charge", ids=list(payloads_by_id))
        if any("bad" in payloads for payloads in payloads_by_id.values()):
            raise ValueError("one of them is bad")

    charges = {**ordered, "shards": 1, "retry_in": 0.05}
    ordered_task(**charges, name="charge", batch_size=5, max_retries=2)(charge)
    ordered_task(**charges, name="charge once", queue_name="once", batch_size=5, max_retries=0)(charge)
    ordered_task(**charges, name="charge many", queue_name="many", batch_size=100, max_retries=2)(charge)
    ordered_task(
        **charges,
        name="as lowkiq",
        queue_name="as-lowkiq",
        batch_size=5,
        max_retries=2,
        isolate_failures=False,
    )(charge)

    @ordered_task(**ordered, name="forks", shards=1)
    def forks(payloads_by_id: dict[str, list[Any]]) -> None:
        ((job_id, (what, *_)),) = payloads_by_id.items()
        note("start", id=job_id)
        FORKS.get(what, print)(app)
        note("end", id=job_id)

    @ordered_task(**ordered, name="awaits", shards=1, per_id=True, batch_size=2, max_crashes=2)
    async def awaits(job_id: str, payloads: list[Any]) -> None:
        note("start", id=job_id)
        what = payloads[0]
        try:
            await asyncio.sleep(0.01)
            if what == "exit":
                raise SystemExit(3)
            if what == "stop":
                asyncio.get_running_loop().stop()
                await asyncio.sleep(60)
            if what == "fork":
                forked(int)
            if what == "sleep":
                await asyncio.sleep(60)
        finally:
            note("end", id=job_id)


def make_app(**settings: Any) -> Celery:
    """A new app with its own tasks."""
    app = Celery("proj", set_as_current=False)
    defaults = {
        "broker_connection_retry_on_startup": True,
        "lowkiq_lease_seconds": 1.0,
        "task_ignore_result": True,
    }
    app.conf.update({**defaults, **settings})
    ordered = {"app": app, "shared": False}

    @ordered_task(**ordered, name="record", shards=8, max_crashes=1000)
    def record(payloads_by_id: dict[str, list[Any]]) -> None:
        for job_id, payloads in payloads_by_id.items():
            note("start", id=job_id, payloads=payloads)
            time.sleep(float(os.environ.get("PROJ_WORK", "0")))
            note("end", id=job_id, payloads=payloads)

    @ordered_task(**ordered, name="batches", shards=1, batch_size=3, bind=True, max_crashes=2)
    def batches(self: Any, payloads_by_id: dict[str, list[Any]]) -> None:
        info = self.request.lowkiq
        jobs = [[job.id, list(job.scores), job.retry_count] for job in info.jobs]
        note(
            "batch", payloads=payloads_by_id, queue=info.queue, shard=info.shard, jobs=jobs, fence=info.fence
        )
        for payloads in payloads_by_id.values():
            DEATHS.get(payloads[0], time.monotonic)()
        note("survived", ids=list(payloads_by_id))

    @ordered_task(**ordered, name="gated", shards=4, max_crashes=2, max_run=0.5)
    def gated(payloads_by_id: dict[str, list[Any]]) -> None:
        (job_id,) = payloads_by_id
        note("start", id=job_id, thread=threading.current_thread().name)
        wait_for_gate("gate")
        note("end", id=job_id)

    @ordered_task(
        **ordered,
        name="outcome",
        shards=1,
        bind=True,
        max_retries=1,
        retry_in=lambda retry_count: 0.05,
        on_retries_exhausted=lambda jobs: note("exhausted", jobs=[[*job[:4], job.error] for job in jobs]),
    )
    def outcome(self: Any, payloads_by_id: dict[str, list[Any]]) -> None:
        ((job_id, payloads),) = payloads_by_id.items()
        note("run", id=job_id, payloads=payloads, retries=self.request.retries, task_id=self.request.id)
        what = payloads[0]
        if what == "fail":
            raise ValueError("as asked")
        if what == "retry":
            raise self.retry(countdown=0.01, exc=KeyError("again"))
        if what == "ignore":
            raise Ignore
        if what == "reject":
            raise Reject("not mine", requeue=False)
        if what == "requeue" and not (HERE / "requeued").exists():
            (HERE / "requeued").touch()
            raise Reject("later", requeue=True)
        if what == "exit":
            raise SystemExit(3)
        if what == "interrupt":
            raise KeyboardInterrupt
        if what == "memory":
            raise MemoryError("too much")
        if what == "cancelled":
            asyncio.run(awaits_a_cancelled_task())
        if what == "own":
            raise Halt("mine")
        if what == "group":
            raise builtins.BaseExceptionGroup("several", [Halt("mine"), ValueError("theirs")])

    if os.environ.get("PROJ_MORE"):
        add_more(app)

    @app.task(shared=False, name="plain")
    def plain(value: Any) -> None:
        note("plain", value=value)

    drop_shared(app, __name__)
    return app


app = make_app(**SETTINGS)


def note_owner() -> None:
    """Whether a shard is left to this process."""
    gated = app.tasks["gated"]
    owners = [lease.owner for lease in context_of(app).store.observe(gated.queue_spec.shard_refs())]
    note("at exit", owned=any(owners))


def hold_node_process(sender: Any, **_: Any) -> None:
    """Until the test makes the file."""
    if isinstance(sender, NodeWorker):
        note("node process")
        wait_for_gate("node process")


if "PROJ_HOLD_NODE" in os.environ:
    signals.worker_init.connect(hold_node_process)
if "PROJ_AT_EXIT" in os.environ:
    atexit.register(note_owner)
