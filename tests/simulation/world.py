"""Virtual time, and threads that run one at a time in an order that a seed decides.

The worker's modules get :class:`Threading` in place of the standard library's module: what they call a
thread is a greenlet here, and waiting moves the clock.
"""

from __future__ import annotations

import contextlib
import heapq
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet


class World:
    """The clock, and all that is going to happen."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.over = False
        self.violations: list[str] = []
        self.trace: list[str] = []
        self._queue: list[tuple[float, float, Callable[[], Any]]] = []
        self.tasks: list[Task] = []
        self._hub = getcurrent()

    def at(self, when: float, action: Callable[[], Any]) -> None:
        """Let something happen; what happens at the same moment happens in any order."""
        heapq.heappush(self._queue, (max(when, self.now), self.random.random(), action))

    def later(self, delay: float, action: Callable[[], Any]) -> None:
        self.at(self.now + delay, action)

    def run(self, until: float, stop: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass; True when ``stop()`` came true."""
        while self._queue and self._queue[0][0] <= until and not self.violations:
            self.now, _, action = heapq.heappop(self._queue)
            action()
            if stop():
                return True
        self.now = max(self.now, until)
        return False

    def violated(self, what: str) -> None:
        if not self.over:
            self.violations.append(f"{self.now:.3f} {what}")

    def note(self, text: str) -> None:
        self.trace.append(f"{self.now:.3f} {text}")

    def switch_to_hub(self) -> Any:
        return self._hub.switch()

    def end(self) -> None:
        """Unwind all that still waits."""
        self.over = True
        for task in self.tasks:
            task.throw_away()


class Machine:
    """What lives, freezes and dies as one: a node's process. Its clock runs at its own rate."""

    def __init__(self, world: World, name: str, rate: float = 1.0, offset: float = 0.0) -> None:
        self.world = world
        self.name = name
        self.rate = rate
        self.offset = offset
        self.dead = False
        self.frozen_until = 0.0

    def die(self) -> None:
        self.dead = True

    def freeze(self, seconds: float) -> None:
        self.frozen_until = max(self.frozen_until, self.world.now + seconds)

    # -- the clock (rules.clock.Clock)

    def time(self) -> float:
        return 1e9 + self.monotonic()

    def monotonic(self) -> float:
        """Reading the clock is where a thread may lose its turn: the worst moment there is."""
        read = self.world.now * self.rate + self.offset
        task = Task.current
        if task is not None and task.machine is self and self.world.random.random() < 0.01:
            task.park(self.world.random.random() * 0.02)
        return read

    def when(self, monotonic: float) -> float:
        """The world's time at which this clock shows that."""
        return (monotonic - self.offset) / self.rate


class Task:
    """A thread."""

    current: Task | None = None

    def __init__(self, machine: Machine, target: Callable[[], Any], name: str = "") -> None:
        self.machine = machine
        self.world = machine.world
        self.name = name
        self.done = False
        self.joiners: list[Task] = []
        self._ticket = 0
        self._greenlet = greenlet(partial(self._run, target))
        self.world.tasks.append(self)

    def _run(self, target: Callable[[], Any], _: Any = None) -> None:
        try:
            target()
        finally:
            self.done = True
            for joiner in self.joiners:
                joiner.wake()

    def start(self) -> None:
        self.wake()

    def wake(self) -> None:
        """From any task: go on soon."""
        self.world.at(self.world.now, partial(self._resume, self._ticket, True))

    def park(self, timeout: float | None = None) -> bool:
        """Wait for :meth:`wake`, at most so long (s of this machine's clock); whether it came."""
        if self.world.over:
            raise GreenletExit
        self._ticket += 1
        if timeout is not None:
            self.world.later(
                max(0.0, timeout) / self.machine.rate, partial(self._resume, self._ticket, False)
            )
        return bool(self.world.switch_to_hub())

    def _resume(self, ticket: int, woken: bool) -> None:
        if self.machine.dead or self.done or ticket != self._ticket:
            return
        if self.machine.frozen_until > self.world.now:
            self.world.at(self.machine.frozen_until, partial(self._resume, ticket, woken))
            return
        self._ticket += 1
        before, Task.current = Task.current, self
        self._greenlet.switch(woken)
        Task.current = before

    def throw_away(self) -> None:
        """Unwinding in any order releases locks that others still seem to hold: of no interest any more."""
        if not self._greenlet.dead and self._greenlet:
            with contextlib.suppress(AssertionError):
                self._greenlet.throw(GreenletExit)


def me() -> Task:
    assert Task.current is not None
    return Task.current


class Lock:
    def __init__(self) -> None:
        self._held = False
        self._waiting: list[Task] = []

    def acquire(self, blocking: bool = True) -> bool:
        while self._held:
            if not blocking:
                return False
            self._waiting.append(me())
            me().park()
        self._held = True
        return True

    def release(self) -> None:
        assert self._held
        self._held = False
        if self._waiting:
            self._waiting.pop(0).wake()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition(Lock):
    def __init__(self) -> None:
        super().__init__()
        self._sleeping: list[Task] = []

    def wait(self, timeout: float | None = None) -> bool:
        self._sleeping.append(me())
        self.release()
        woken = me().park(timeout)
        if me() in self._sleeping:
            self._sleeping.remove(me())
        self.acquire()
        return woken

    def notify(self) -> None:
        if self._sleeping:
            self._sleeping.pop(0).wake()

    def notify_all(self) -> None:
        while self._sleeping:
            self.notify()


class Event:
    def __init__(self) -> None:
        self._set = False
        self._waiting: list[Task] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        for task in self._waiting:
            task.wake()
        self._waiting.clear()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            self._waiting.append(me())
            me().park(timeout)
            if me() in self._waiting:
                self._waiting.remove(me())
        return self._set


class Threading:
    """What the worker uses of the module ``threading``, on one machine."""

    Lock = Lock
    Condition = Condition
    Event = Event

    def __init__(self) -> None:
        self.machine: Machine | None = None

    def Thread(self, target: Callable[[], Any], name: str, daemon: bool) -> Thread:  # noqa: N802
        assert daemon
        assert self.machine is not None
        return Thread(self.machine, target, name)

    def current_thread(self) -> Task:
        return me()

    def get_ident(self) -> int:
        return id(Task.current)


class Thread(Task):
    def join(self, timeout: float | None = None) -> None:
        if not self.done:
            self.joiners.append(me())
            me().park(timeout)
