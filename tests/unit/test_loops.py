"""Event loops of async def tasks: begin, cancel, end, and what blocks or ends them."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import logging
import os
import signal
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from celery import Celery, current_task
from celery._state import _task_stack

from celery_lowkiq.integration import loops as bodies_module
from celery_lowkiq.integration import loops as watchdog
from celery_lowkiq.integration.loops import Bodies, Cancelled, ContextStack, Loops, NoLoop, run_alone
from celery_lowkiq.integration.settings import read_settings
from celery_lowkiq.rules.errors import InvalidCall
from tests.waiting import eventually

TASK = SimpleNamespace(name="sync", soft_time_limit=None)
HOOKS: list[str] = []


async def opens():
    HOOKS.append(f"start in {threading.current_thread().name}")


async def closes():
    HOOKS.append(f"stop in {threading.current_thread().name}")


def settings(**given):
    app = Celery("loops", set_as_current=False)
    app.conf.update({f"lowkiq_{name}": value for name, value in given.items()})
    return read_settings(app)


def new_batch():
    return SimpleNamespace(lost=threading.Event(), jobs=[SimpleNamespace(id="42")])


class Run:
    """A lane that runs one coroutine."""

    def __init__(self, loops, coroutine, task=TASK):
        self.batch = new_batch()
        self.bodies = Bodies(task, {"42": coroutine}, "lane-0", self.batch)
        self.body = self.bodies.by_id["42"]
        self.error = None
        self._loops = loops
        self.lane = threading.Thread(target=self._main, name="lane-0")
        self.lane.start()

    def _main(self):
        try:
            self._loops.run(self.bodies)
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.error = error

    def join(self):
        self.lane.join(60)
        assert not self.lane.is_alive()
        return self.body


@pytest.fixture
def loops():
    made = Loops(settings())
    yield made
    made.close()


async def sleeps():
    await asyncio.sleep(600)


def test_what_a_body_returns_and_raises(loops):
    async def returns():
        await asyncio.sleep(0)
        return 7

    async def raises():
        await asyncio.sleep(0)
        raise ValueError("x")

    bodies = Bodies(TASK, {"1": returns(), "2": raises()}, "lane-0", new_batch())
    loops.run(bodies)
    assert bodies.by_id["1"].value == 7
    assert repr(bodies.by_id["2"].error) == "ValueError('x')"


def test_bodies_of_a_run_wait_together(loops):
    together = []

    async def meets():
        together.append(1)
        while len(together) < 50:
            await asyncio.sleep(0)

    loops.run(Bodies(TASK, {str(n): meets() for n in range(50)}, "lane-0", new_batch()))
    assert len(together) == 50


def test_the_running_task_and_the_callers_context_are_those_of_each_step(loops):
    span = contextvars.ContextVar("span", default=None)
    found = []

    async def child():
        await asyncio.sleep(0)
        return span.get()

    async def looks():
        for _ in range(2):
            found.append((current_task.name, span.get(), *await asyncio.gather(child())))

    span.set("caller's")
    bodies = Bodies(TASK, {"1": looks(), "2": looks()}, "lane-0", new_batch())
    loops.run(bodies)
    assert [body.error for body in bodies.by_id.values()] == [None, None]
    assert found == [("sync", "caller's", "caller's")] * 4
    assert _task_stack.top is None


def test_a_stack_of_requests_is_inherited_by_tasks_and_not_shared():
    stack = ContextStack()

    async def child(name):
        stack.push(name)
        await asyncio.sleep(0)
        return stack.stack

    async def parent():
        found = await asyncio.gather(child("a"), child("b"))
        return [*found, stack.stack]

    stack.push("lane")
    assert asyncio.run(parent()) == [["lane", "a"], ["lane", "b"], ["lane"]]
    assert (len(stack), stack.pop(), stack.top, stack.pop()) == (1, "lane", None, None)


@pytest.mark.parametrize("reason", [Cancelled.LOST, Cancelled.REVOKED, Cancelled.TIMEOUT, Cancelled.STOPPING])
def test_a_body_is_cancelled_where_it_awaits(loops, reason):
    began, done = threading.Event(), []

    async def cleans_up():
        began.set()
        try:
            await asyncio.sleep(600)
        finally:
            done.append("cleaned up")

    limited = SimpleNamespace(name="sync", soft_time_limit=0.1 if reason is Cancelled.TIMEOUT else None)
    run = Run(loops, cleans_up(), limited)
    assert began.wait(60)
    if reason is Cancelled.LOST:
        run.batch.lost.set()
    elif reason is Cancelled.REVOKED:
        assert loops.cancel(run.batch, reason)
    elif reason is Cancelled.STOPPING:
        assert loops.close()
        assert not loops.close()
    assert isinstance(run.join().error, asyncio.CancelledError)
    assert (run.bodies.reason, done) == (reason, ["cleaned up"])
    assert not loops.cancel(run.batch, reason)


def test_a_limit_counts_from_the_beginning_of_its_bodies(loops):
    """Not from when their lane gave them to the loop, nor from when the loop, busy meanwhile, took them."""
    far, seen = time.monotonic() + 1e6, []

    async def waits():
        seen.append("began")
        await asyncio.sleep(600)

    limited = SimpleNamespace(name="sync", soft_time_limit=10)
    bodies = Bodies(limited, {"1": waits(), "2": waits()}, "lane-0", new_batch())
    begin = bodies.begin

    def looked_at_meanwhile(loop):
        bodies.check(far)
        begin(loop)
        bodies.check(far)
        seen.append(bodies.reason)
        loop.call_later(0.01, lambda: (seen.append(bodies.reason), bodies.check(far)))

    bodies.begin = looked_at_meanwhile
    loops.run(bodies)
    assert (seen, bodies.reason) == ([None, "began", "began", None], Cancelled.TIMEOUT)


def test_a_body_that_does_not_obey_is_logged_with_its_stack(loops, monkeypatch, caplog):
    monkeypatch.setattr(bodies_module, "PATIENCE", 0.1)
    go_on = threading.Event()

    async def stubborn_inside():
        while not go_on.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        return "went on"

    async def stubborn():
        return await stubborn_inside()

    run = Run(loops, stubborn())
    run.batch.lost.set()
    eventually(lambda: "goes on" in caplog.text)
    assert "ids ['42'] stay taken" in caplog.text
    assert "in stubborn_inside" in caplog.text
    assert run.lane.is_alive()
    go_on.set()
    assert run.join().value == "went on"
    assert caplog.text.count("goes on") == 1


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_no_exception_of_a_body_ends_the_loop(loops, error):
    async def raises():
        await asyncio.sleep(0)
        raise error

    assert Run(loops, raises()).join().error is error
    assert Run(loops, asyncio.sleep(0, "next")).join().value == "next"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_what_a_task_raises_that_a_body_has_made_does_not_end_the_loop(loops, error):
    async def exits():
        raise error

    async def gathers():
        await asyncio.gather(exits())

    assert Run(loops, gathers()).join().error is error
    assert Run(loops, asyncio.sleep(0, "next")).join().value == "next"


def test_lanes_end_and_the_node_stops_when_the_loop_has_ended(loops):
    died = []
    loops.died = died.append
    run = Run(loops, sleeps())
    eventually(lambda: run.bodies._tasks)
    loops._node.loop.call_soon_threadsafe(loops._node.loop.stop)
    run.join()
    assert repr(run.error) == "SystemExit(70)"
    assert died == [None]
    later = Run(loops, sleeps())
    later.join().close()
    assert repr(later.error) == "SystemExit(70)"


def test_frames_are_read_while_no_garbage_is_collected(monkeypatch):
    """A collection within it stopped all threads of the process for ever."""
    seen = []
    monkeypatch.setattr(sys, "_current_frames", lambda: seen.append(gc.isenabled()) or {})
    assert watchdog._frame_of(threading.current_thread()) is None
    assert seen == [False]
    assert gc.isenabled()


def test_what_blocks_the_loop_is_named_with_its_stack(loops, caplog):
    lags = []
    loops.meter = lags.append
    go_on = threading.Event()

    async def blocks():
        go_on.wait(60)

    began = time.monotonic()
    run = Run(loops, blocks())
    eventually(lambda: "has been blocked" in caplog.text)
    assert time.monotonic() - began < 20  # 2 s where nothing else runs.
    go_on.set()
    run.join()
    assert "by sync on lane-0" in caplog.text
    assert "in blocks" in caplog.text
    eventually(lambda: lags)
    assert max(lags) > 1


def test_hooks_are_called_once_in_each_loop():
    HOOKS.clear()
    where = f"{__name__}.opens", f"{__name__}.closes"
    loops = Loops(settings(loop_start=where[0], loop_stop=where[1]))
    for _ in range(2):
        Run(loops, asyncio.sleep(0)).join()
    assert HOOKS == ["start in lowkiq-loop"]
    loops.close()
    assert HOOKS == ["start in lowkiq-loop", "stop in lowkiq-loop"]


def test_a_hook_that_fails_runs_nothing_and_is_tried_again(caplog):
    tried = []

    async def fails():
        tried.append(1)
        if len(tried) == 1:
            raise OSError("no database")

    loops = Loops(settings(loop_start=fails))
    first = Run(loops, sleeps())
    first.join()
    assert isinstance(first.error, NoLoop)
    first.body.close()
    assert "no database" in caplog.text
    assert Run(loops, asyncio.sleep(0, "ran")).join().value == "ran"
    loops.close()


def test_a_closed_loop_has_ended_the_generators_of_its_bodies(loops):
    ended = []

    async def numbers():
        try:
            yield 1
        finally:
            ended.append("generator")

    async def forgets():
        async for _ in numbers():
            break
        loops.left = asyncio.create_task(sleeps())

    Run(loops, forgets()).join()
    loops.close()
    assert ended == ["generator"]
    assert loops.left.cancelled()


def test_outside_a_worker_a_signal_handler_may_end_the_run():
    """As Celery's in a process of its pool: it raises SystemExit wherever the main thread is."""
    ended = []

    async def waits():
        try:
            os.kill(os.getpid(), signal.SIGUSR2)
            await asyncio.sleep(600)
        finally:
            ended.append("cleaned up")

    def exits(number, frame):
        asyncio.get_running_loop().call_soon(sys.exit, 3)

    before = signal.signal(signal.SIGUSR2, exits)
    try:
        with pytest.raises(SystemExit):
            run_alone(settings(), Bodies(TASK, {"": waits()}, "MainThread"))
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert ended == ["cleaned up"]


def test_outside_a_worker_a_body_needs_a_thread_without_a_loop(caplog):
    caplog.set_level(logging.ERROR)
    bodies = Bodies(TASK, {"": asyncio.sleep(0, "ran")}, "MainThread")
    run_alone(settings(), bodies)
    assert bodies.by_id[""].value == "ran"

    async def inside():
        bodies = Bodies(TASK, {"": asyncio.sleep(0)}, "MainThread")
        with pytest.raises(InvalidCall, match=r"write await task\.run"):
            run_alone(settings(), bodies)
        bodies.by_id[""].close()

    asyncio.run(inside())
