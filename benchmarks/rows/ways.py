"""Ways to run a task on four lanes, for one that computes and one that waits: docs/recommendations.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..bench import Bench
from ..cost import Cost, Measure, interleaved
from ..row import Row, Side, Target
from ..worker import Worker

#: Jobs after which all lanes have their child processes.
WARM = 80
LANES = 4
THREADS, TWO, CHILD, ASYNC = "threads", "two workers", "child", "async def"


@dataclass(frozen=True)
class Way:
    """How workers run a task."""

    nodes: int = 1
    options: tuple[str, ...] = ()
    run_in: str = "thread"
    is_async: bool = False


WAYS = {
    THREADS: Way(),
    TWO: Way(nodes=2),
    CHILD: Way(run_in="process"),
    "prefork": Way(options=("-P", "prefork")),
    "prefork, child": Way(options=("-P", "prefork"), run_in="process"),
    ASYNC: Way(is_async=True),
}


def ways(bench: Bench) -> Iterator[Row]:
    memory: dict[str, float] = {}
    yield _row(bench, "compute", bench.count(1_500, 240), memory, CHILD, Target(1.8, THREADS, at_least=True))
    yield _row(bench, "wait", bench.count(4_000, 800), {}, THREADS)
    ours, *others = (Side(name, memory[name]) for name in _with_first(WAYS, CHILD))
    assert ours.figure is not None
    yield Row(
        "ways-memory",
        f"PSS of all processes of {LANES} lanes ({ours.name})",
        "MiB",
        ours.figure,
        tuple(others),
    )


def _row(bench: Bench, what: str, count: int, memory: dict[str, float], first: str, *targets: Target) -> Row:
    """A row whose own side is the way ``first``; fills ``memory``, in MiB."""
    measures: dict[str, Measure] = {
        name: partial(_cost, bench, what, WAYS[name], count, partial(memory.__setitem__, name))
        for name in _with_first(WAYS, first)
    }
    costs = interleaved(bench.count(3, 1), measures)
    ours, *others = (_per_second(Side.of(name, found)) for name, found in costs.items())
    assert ours.figure is not None
    words = {"compute": "5 ms of computing in Python", "wait": "5 ms of waiting"}
    return Row(
        f"ways-{what}",
        f"{words[what]}, {LANES} lanes ({first})",
        "jobs/s",
        ours.figure,
        tuple(others),
        targets,
        cpu=ours.cpu,
        more_is_better=True,
        repeats=ours.repeats,
    )


def _with_first(ways: Mapping[str, Any], first: str) -> list[str]:
    return [first, *(name for name in ways if name != first)]


def _per_second(side: Side) -> Side:
    """The same side in jobs a second."""
    figure = None if side.figure is None else 1e6 / side.figure
    return Side(side.name, figure, side.cpu, tuple(1e6 / each for each in side.repeats))


def _cost(bench: Bench, what: str, way: Way, count: int, note_memory: Any) -> Cost:
    """All shards are dealt, and all lanes have run something, before the jobs come."""
    bench.empty()
    task = f"{what}s-async" if way.is_async else f"{what}s"
    queue = bench.spec(task)
    lanes, settings = LANES // way.nodes, {"lowkiq_run_in": way.run_in}
    with ExitStack() as stack:
        workers = [
            stack.enter_context(Worker(bench, task, *way.options, lanes=lanes, name=f"w{n}", **settings))
            for n in range(way.nodes)
        ]
        for worker in workers:
            worker.counts_children = True
        workers[0].beside = workers[1:]
        workers[0].until(lambda: bench.is_dealt(queue, way.nodes))
        bench.fill(queue, WARM)
        workers[0].until(lambda: bench.processed(queue) >= WARM)
        bench.fill(queue, count, start=WARM)
        cost = workers[0].cost(lambda: bench.processed(queue) - WARM, count, high=0.7)
        note_memory(workers[0].pss_mib())
    return cost
