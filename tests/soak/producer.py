"""The producer, a process of its own: ``python -m tests.soak.producer`` with the environment of a stage.

It calls all queues at a steady rate until it gets SIGTERM, and writes down what was accepted.
"""

from __future__ import annotations

import heapq
import random
import signal
import threading
import time
from collections import deque
from typing import Any

from celery import states
from celery.result import denied_join_result

from celery_lowkiq import track
from tests.chaos.journal import Journal
from tests.soak.app import add_tasks, make_app, stage_here
from tests.soak.kinds import IDS, Kind

#: Seconds from a call until its result is asked for, and after which it counts as unanswered.
ASK = 2.0
UNANSWERED = 45.0
#: Seconds of missed calls that a late producer makes up for: more would be a burst.
CATCH_UP = 5.0
#: Seconds between two emptyings of the morgue.
SWEEP = 30.0


class Caller:
    """Calls one queue, and asks for the results of its calls."""

    def __init__(self, task: Any, kind: Kind, journal: Journal, chance: random.Random) -> None:
        self._task = task
        self._kind = kind
        self._journal = journal
        self._chance = chance
        self._turns = 0
        self._results: deque[tuple[float, Any]] = deque()
        self._swept_at = time.monotonic()

    def turn(self) -> None:
        """Make the next calls, and look after the earlier ones."""
        self._turns += 1
        numbers = self._kind.numbers(self._turns)
        # Results are polled: what Celery subscribes to, it reads only in get(), and it keeps what is REVOKED.
        with denied_join_result():
            if self._kind.bulk:
                self._bulk(numbers[0])
            else:
                job_id = str(self._chance.randrange(IDS))
                for number in numbers:
                    self._one(job_id, number)
        self._ask(ASK)
        self._sweep()

    def finish(self) -> None:
        """Wait for all results."""
        while self._results:
            self._ask(0.0)
            threading.Event().wait(0.05)

    def _one(self, job_id: str, number: int) -> None:
        called_at = time.monotonic()
        result = self._task.apply_async((job_id, number), **self._kind.call(number))
        self._note({job_id: number}, called_at)
        self._keep([result])

    def _bulk(self, number: int) -> None:
        chosen = self._chance.sample(range(IDS), self._kind.bulk)
        jobs = [{"id": job_id, "payload": number} for job_id in chosen]
        called_at = time.monotonic()
        if self._kind.tracked:
            with track(self._task.name, self._task.app) as tracker:
                self._task.perform_async(jobs, tracker=tracker)
        else:
            results = self._task.perform_async(jobs, results=self._kind.has_results)
            self._keep(results or ())
        self._note({str(job_id): number for job_id in chosen}, called_at)

    def _note(self, payloads: dict[str, int], called_at: float) -> None:
        self._journal.note("push", queue=self._task.name, payloads=payloads, called_at=called_at)

    def _keep(self, results: Any) -> None:
        if self._kind.has_results:
            self._results.extend((time.monotonic(), result) for result in results)

    def _ask(self, after: float) -> None:
        """Look whether the results have come, oldest first."""
        while self._results and self._results[0][0] < time.monotonic() - after:
            called_at, result = self._results[0]
            if result.state not in states.READY_STATES:
                if time.monotonic() - called_at < UNANSWERED:
                    return
                self._journal.note("unanswered", queue=self._task.name, task_id=result.id)
            self._results.popleft()

    def _sweep(self) -> None:
        """What an operator does about dead jobs: the morgue has no limit."""
        if self._kind.dies and time.monotonic() - self._swept_at > SWEEP:
            self._swept_at = time.monotonic()
            self._task.ordered_queue.delete_dead_all()


def call_all(callers: list[tuple[Caller, Kind]], rate: float, stopped: threading.Event) -> None:
    """Give each queue its turns, so that all get the same number of calls a second."""
    began_at = time.monotonic()
    interval = len(callers) / rate
    turns = [(began_at + interval * n / len(callers), n) for n in range(len(callers))]
    while not stopped.is_set():
        at, number = turns[0]
        if stopped.wait(max(0.0, at - time.monotonic())):
            return
        caller, kind = callers[number]
        caller.turn()
        next_at = max(at, time.monotonic() - CATCH_UP) + interval * kind.calls_a_turn()
        heapq.heapreplace(turns, (next_at, number))


def main() -> None:
    """Call until SIGTERM."""
    stage, stopped = stage_here(), threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stopped.set())
    journal, chance = Journal(stage.directory), random.Random(stage.seed)
    tasks = add_tasks(make_app(stage), stage).values()
    callers = [(Caller(task, kind, journal, chance), kind) for task, kind in tasks]
    call_all(callers, stage.rate, stopped)
    for caller, _ in callers:
        caller.finish()


if __name__ == "__main__":
    main()
