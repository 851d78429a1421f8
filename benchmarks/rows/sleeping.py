"""Tasks that wait for I/O (5 ms each): more nodes and more lanes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from ..bench import Bench
from ..proj import AWAITED, NAP
from ..row import Row, Side, Target
from ..worker import Worker

#: The last jobs do not keep all lanes busy, since ids do not fall evenly into shards.
MOST = 0.7


def nodes(bench: Bench) -> Iterator[Row]:
    one, two = (_throughput(bench, nodes=n, lanes=5, count=bench.count(4_000, 1_500) * n) for n in (1, 2))
    yield Row(
        "nodes",
        "5 ms tasks, two nodes of 5 lanes",
        "jobs/s",
        two,
        (Side("one node", one),),
        (Target(1.9, "one node", at_least=True),),
        more_is_better=True,
    )


def lanes(bench: Bench) -> Iterator[Row]:
    yield Row(
        "lanes20",
        "5 ms tasks, one node of 20 lanes",
        "jobs/s",
        _throughput(bench, nodes=1, lanes=20, count=bench.count(20_000, 6_000)),
        (Side("ideal", 20 / NAP),),
        (Target(0.95, "ideal", at_least=True),),
        more_is_better=True,
    )


def bodies(bench: Bench) -> Iterator[Row]:
    """20 lanes of 50 coroutines each."""
    count = bench.count(60_000, 20_000)
    bench.empty()
    queue = bench.spec("awaits")
    with Worker(bench, "awaits", lanes=20) as worker:
        worker.until(lambda: "" not in bench.owned(queue))
        bench.fill(queue, count)
        cost = worker.cost(lambda: bench.processed(queue), count)
    cpu = cost.cpu["worker"]
    yield Row(
        "async",
        "100 ms of awaited I/O, 20 lanes of 50 ids",
        "ids/s",
        1e6 / cost.wall,
        (Side("ideal", 20 * 50 / AWAITED),),
        (Target(5_000, at_least=True),),
        more_is_better=True,
    )
    yield Row("async-cpu", "the same, processor time", "us/id", cpu, (), (Target(50),), yardstick="machine")


def _throughput(bench: Bench, nodes: int, lanes: int, count: int) -> float:
    """All shards are dealt before the jobs come."""
    bench.empty()
    queue = bench.spec("naps")
    with ExitStack() as stack:
        workers = [
            stack.enter_context(Worker(bench, "naps", lanes=lanes, name=f"w{n}")) for n in range(nodes)
        ]
        workers[0].until(lambda: bench.is_dealt(queue, nodes))
        bench.fill(queue, count)
        return workers[0].rate(lambda: bench.processed(queue), count, high=MOST)
