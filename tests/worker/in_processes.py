"""The app of tests of ``run_in="process"``: each payload says what its process does."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from celery import Celery, current_task, signals
from celery.exceptions import SoftTimeLimitExceeded

from celery_lowkiq import ordered_task
from celery_lowkiq.integration.processes import child, child_runs
from tests.worker import proj
from tests.worker.proj import DEATHS, HERE, SETTINGS, note, pauses, wait_for_gate

child.MAX_IDLE = float(os.environ.get("PROJ_IDLE", child.MAX_IDLE))
child_runs.END_TIMEOUT = float(os.environ.get("PROJ_END_TIMEOUT", child_runs.END_TIMEOUT))


@signals.worker_process_init.connect
def note_start(**_: Any) -> None:
    note("process starts", group=os.getpgid(0))


@signals.worker_process_shutdown.connect
def note_end(**_: Any) -> None:
    note("process ends")


def starts_another() -> None:
    """The run waits for a process that it has started."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        note("other", other=other.pid, task_id=current_task.request.id)
        time.sleep(60)


def cleans_up() -> None:
    try:
        time.sleep(60)
    finally:
        note("cleaned up")


def stubborn() -> None:
    """No exception ends it."""
    while True:
        try:
            time.sleep(60)
        except BaseException as error:  # noqa: BLE001
            note("ignored", error=repr(error))


def softly() -> None:
    try:
        time.sleep(60)
    except SoftTimeLimitExceeded:
        note("soft limit")
        raise


def fails() -> None:
    raise ValueError("as asked")


def waits_for_loss(task: Any) -> None:
    lost = task.request.lowkiq.lease_lost
    note("lost", was_set=lost.wait(30))


def waits_for_first_loss(task: Any) -> None:
    """The first run of an id waits until its lease is lost; the next one ends."""
    (job_id,) = (job.id for job in task.request.lowkiq.jobs)
    first = HERE / f"first-{job_id}"
    if not first.exists():
        first.touch()
        note("waits", id=job_id, node=task.request.hostname)
        note("lost", id=job_id, was_set=task.request.lowkiq.lease_lost.wait(60))


def grows() -> None:
    grown.append(bytearray(60_000_000))


def terminates(method: str) -> None:
    """Start a process in another thread than that of the run, and end it."""

    def start_and_end() -> None:
        context: Any = multiprocessing.get_context(method)
        begun = context.Event()
        process = context.Process(target=pauses, args=(begun,))
        process.start()
        begun.wait(20)
        process.terminate()
        process.join(10)
        note("terminated", status=process.exitcode)
        process.kill()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(start_and_end).result()


def in_django() -> None:
    from django.apps import apps

    names = {getattr(receiver(), "__qualname__", "") for _, receiver in signals.task_prerun.receivers}
    note("django", ready=apps.ready, closes="DjangoWorkerFixup.on_task_prerun" in names)


grown: list[bytearray] = []
OF_LOSS: dict[str, Callable[[Any], None]] = {"lost": waits_for_loss, "lost once": waits_for_first_loss}
ACTIONS: dict[str, Callable[[], Any]] = {
    **DEATHS,
    "leave": lambda: sys.exit(3),
    "fail": fails,
    "start another": starts_another,
    "clean up": cleans_up,
    "stubborn": stubborn,
    "softly": softly,
    # A function of C that keeps the interpreter's lock.
    "hold": lambda: ctypes.PyDLL(None).sleep(60),
    "gate": lambda: wait_for_gate("gate"),
    "grow": grows,
    "django": in_django,
    "terminate a fork": lambda: terminates("fork"),
    "terminate one of a server": lambda: terminates("forkserver"),
    "nap": lambda: time.sleep(0.02),
    "compute": lambda: sum(number * number for number in range(3_000_000)),
}


def make_app(**settings: Any) -> Celery:
    """A new app with its own tasks."""
    app = proj.make_app(**{"lowkiq_run_in": "process", "task_ignore_result": False, **settings})
    ordered = {
        "app": app,
        "shared": False,
        "bind": True,
        "max_retries": 1,
        "retry_in": 0.05,
        "max_crashes": 2,
    }

    def run(self: Any, payloads_by_id: dict[str, list[Any]]) -> Any:
        ((job_id, (what, *_)),) = payloads_by_id.items()
        method = multiprocessing.get_start_method()
        note("start", id=job_id, task_id=self.request.id, known=current_task is not None, method=method)
        if what in OF_LOSS:
            OF_LOSS[what](self)
        else:
            ACTIONS.get(what, int)()
        note("end", id=job_id, lane=multiprocessing.current_process().name)
        return f"{what} done"

    async def run_async(self: Any, payloads_by_id: dict[str, list[Any]]) -> Any:
        ((job_id, (what, *_)),) = payloads_by_id.items()
        note("start", id=job_id, task_id=self.request.id)
        await asyncio.sleep(60 if what == "sleep" else 0)
        note("end", id=job_id)
        return f"{what} done"

    async def run_each_async(job_id: str, payloads: list[Any]) -> None:
        note("start", id=job_id)
        await asyncio.sleep(float(payloads[0]))
        note("end", id=job_id)

    def run_each(job_id: str, payloads: list[Any]) -> None:
        note("start", id=job_id)
        time.sleep(float(payloads[0]))
        note("end", id=job_id)

    def note_dead(jobs: list[Any]) -> None:
        note("exhausted", ids=[job.id for job in jobs], error=jobs[0].error)

    ordered_task(**ordered, name="act", shards=4, on_retries_exhausted=note_dead)(run)
    limits = {"time_limit": 2.5, "soft_time_limit": 1.0, "run_in": "process"}
    ordered_task(**ordered, name="limited", shards=1, on_retries_exhausted=note_dead, **limits)(run)
    short = {"time_limit": 0.8, "soft_time_limit": 0.3, "run_in": "process"}
    ordered_task(**ordered, name="short", shards=4, **short)(run)
    ordered_task(
        **ordered, name="cut short", queue_name="cut-short", shards=4, time_limit=0.5, run_in="process"
    )(run)
    ordered_task(**ordered, name="hard", shards=1, time_limit=1.0, run_in="process")(run)
    ordered_task(**ordered, name="in thread", queue_name="in-thread", shards=1, run_in="thread")(run)
    in_loop = {"name": "in loop", "queue_name": "in-loop", "shards": 1, "soft_time_limit": 1.0}
    ordered_task(**ordered, **in_loop, run_in="process")(run_async)
    each = {"app": app, "shared": False, "shards": 1, "batch_size": 5, "per_id": True, "max_retries": 0}
    for name, function in (("each async", run_each_async), ("each", run_each)):
        limited = {"queue_name": name.replace(" ", "-"), "soft_time_limit": 1.0, "run_in": "process"}
        ordered_task(**each, name=name, **limited)(function)
    return app


app = make_app(**SETTINGS)
