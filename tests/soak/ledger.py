"""Judges the ledger of a soak run: the checks of a chaos run for each queue, and what policies dropped."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from celery_lowkiq.rules.views import Stats
from tests.chaos.checker import check
from tests.chaos.history import Drain, history_of
from tests.chaos.journal import Reader
from tests.chaos.report import EXAMPLES, Gate, Report

#: Gates of a chaos run that a soak run takes over. Payloads that are lost are counted with those dropped.
TAKEN_OVER = (
    "overlapping executions",
    "accepted stale writes",
    "epochs that do not grow",
    "order inversions",
)
LOST = "lost payloads"
FIGURES = ("payloads", "executions")
#: Seconds that the queues may take to get empty at the end.
NEVER = 120.0
Line = Mapping[str, Any]


def judge_ledger(directory: Path, stats: Mapping[str, Stats], lease: float, drained: bool) -> Report:
    """The gates and figures of all queues together. ``stats`` are those of the drained queues."""
    queues, of_nodes, unanswered = _by_queue(Reader(directory).new_lines())
    deaths = [line for line in of_nodes if line["event"] == "death"]
    total = Total()
    for name, counts in stats.items():
        lines = [*_each_id(map(json.loads, queues.pop(name, ()))), *of_nodes]
        report = check(history_of(lines, lease=lease, strict=True, drain=Drain(0.0)))
        total.add(name, report, counts.dropped + counts.dead)
    unexpected = [
        f"pid {line['dead']} at {line['at']:.3f}" for line in deaths if line["cause"] == "unexpected"
    ]
    gates = [
        *total.gates(),
        _none("unexpected ends of workers", unexpected),
        _none("calls without a result", unanswered),
        _none("queues without a run", total.idle),
        _none("queues that did not drain", [] if drained else [f"{NEVER:.0f} s were not enough"]),
    ]
    dropped, dead = (sum(getattr(one, name) for one in stats.values()) for name in ("dropped", "dead"))
    deadlines = sum(line["cause"] == "deadline" for line in deaths)
    figures = {"dropped by policies": dropped, "dead": dead, "ends at a strict deadline": deadlines}
    return Report(tuple(gates), {**total.figures, **figures})


class Total:
    """The sum of the reports of queues."""

    def __init__(self) -> None:
        self.figures = dict.fromkeys(FIGURES, 0)
        self.idle: list[str] = []
        self._counts = dict.fromkeys((LOST, *TAKEN_OVER), 0.0)
        self._examples: dict[str, list[str]] = defaultdict(list)

    def add(self, queue: str, report: Report, excused: int) -> None:
        """Add a queue; ``excused`` of its payloads may be without a run."""
        for gate in report.gates:
            beyond = (gate.figure or 0.0) - (excused if gate.name == LOST else 0)
            if gate.name in self._counts and beyond > 0:
                self._counts[gate.name] += beyond
                self._examples[gate.name] += [f"{queue}: {example}" for example in gate.examples]
        for name in FIGURES:
            self.figures[name] += report.figures[name]
        if not report.figures["executions"]:
            self.idle.append(queue)

    def gates(self) -> list[Gate]:
        """The gates of all queues."""
        return [Gate(name, n, 0, tuple(self._examples[name][:EXAMPLES])) for name, n in self._counts.items()]


def _none(name: str, found: list[str]) -> Gate:
    return Gate(name, len(found), 0, tuple(found[:EXAMPLES]))


def _by_queue(lines: Iterable[Line]) -> tuple[dict[str, list[str]], list[Line], list[str]]:
    """The lines of each queue, as text since they are many; those of nodes; ids of calls without a result."""
    queues: dict[str, list[str]] = defaultdict(list)
    of_nodes: list[Line] = []
    unanswered = []
    for line in lines:
        if line["event"] in ("death", "watch"):
            of_nodes.append(line)
        elif line["event"] == "unanswered":
            unanswered.append(f"{line['queue']}: {line['task_id']}")
        else:
            queues[line["queue"]].append(json.dumps(line))
    return queues, of_nodes, unanswered


def _each_id(lines: Iterable[Line]) -> Iterator[Line]:
    """The same lines with a run of its own for each id of a batch, because a batch may fail in part."""
    started: dict[tuple[int, int], Iterable[str]] = {}
    for line in lines:
        if line["event"] == "start":
            started[line["pid"], line["run"]] = line["payloads"]
            for job_id, payloads in line["payloads"].items():
                yield {**line, "run": (line["run"], job_id), "payloads": {job_id: payloads}}
        elif line["event"] == "end":
            for job_id in started.pop((line["pid"], line["run"]), ()):
                yield {**line, "run": (line["run"], job_id), "failed": job_id in line["failed"]}
        else:
            yield line
