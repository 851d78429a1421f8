"""What 100 queues of 24 shards cost in which nothing happens: one node, and four that share them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from ..bench import Bench
from ..proj import IDLE_QUEUES
from ..row import Row, Target
from ..worker import Worker

#: Seconds until a cluster has its shares, and its quiet; and of the measurement: three lease times.
SETTLING = 15.0
SECONDS = 30.0
#: What four nodes may cost, as a multiple of one.
FOUR = 1.5


class Idle(NamedTuple):
    """What happens in a second. Processor times are in percent of a core; that of workers is one's mean."""

    scripts: float
    kilobytes: float
    redis: float
    worker: float


def idle_queues(bench: Bench) -> Iterator[Row]:
    one = _cost(bench, nodes=1)
    yield from _rows("one node", "idle-queues", one, Idle(40, 250, 1.5, 3))
    four = _cost(bench, nodes=4)
    limits = Idle(*(FOUR * value for value in one[:3]), worker=3)
    yield from _rows("four nodes", "idle-queues4", four, limits)


def _rows(who: str, name: str, cost: Idle, limits: Idle) -> Iterator[Row]:
    texts = Idle(
        *("script calls 1/s", "to and from Redis KB/s", "Redis, of a core %", "a worker, of a core %")
    )
    for part, text, ours, limit in zip(Idle._fields, texts, cost, limits, strict=True):
        what, _, unit = str(text).rpartition(" ")
        text = f"{who}, 100 idle queues x 24 shards: {what}"
        counted = part in ("scripts", "kilobytes")
        target = Target(round(limit, 1))
        yardstick = "nothing" if counted else "machine"
        yield Row(f"{name}-{part}", text, unit, ours, targets=(target,), yardstick=yardstick)


def _cost(bench: Bench, nodes: int) -> Idle:
    bench.empty()
    queues = [bench.spec(name) for name in IDLE_QUEUES]
    with ExitStack() as stack:
        workers = [stack.enter_context(_worker(bench, number)) for number in range(nodes)]
        share = sum(queue.shards for queue in queues) // nodes
        workers[0].until(lambda: _shares([o for queue in queues for o in bench.owned(queue)], nodes, share))
        time.sleep(SETTLING)
        before = _totals(bench, workers)
        time.sleep(SECONDS)
        after = _totals(bench, workers)
    scripts, bytes_, redis, worker = ((b - a) / SECONDS for a, b in zip(before, after, strict=True))
    return Idle(scripts, bytes_ / 1000, redis * 100, worker * 100 / nodes)


def _worker(bench: Bench, number: int) -> Worker:
    return Worker(bench, "idle-queues", "-Q", ",".join(IDLE_QUEUES), lanes=8, name=f"w{number}")


def _shares(owners: Sequence[str], nodes: int, share: int) -> bool:
    return len(set(owners) - {""}) == nodes and all(owners.count(name) == share for name in set(owners))


def _totals(bench: Bench, workers: Sequence[Worker]) -> Idle:
    stats: Any = bench.direct.info("stats")
    commands: Any = bench.direct.info("commandstats")
    cpu: Any = bench.direct.info("cpu")
    return Idle(
        commands["cmdstat_evalsha"]["calls"],
        stats["total_net_input_bytes"] + stats["total_net_output_bytes"],
        cpu["used_cpu_user"] + cpu["used_cpu_sys"],
        sum(worker.cpu_seconds() for worker in workers),
    )
